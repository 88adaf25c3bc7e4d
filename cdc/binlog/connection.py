"""Connections to the source: log in, declare what we understand, ask for the binlog, read its raw bytes.

PyMySQL speaks the handshake and runs statements; once a dump is asked for, the socket is read past it, because its
packet reader makes a Python object per packet.

Source: MySQL manual, "Replication Protocol"; MySQL source, sql/rpl_source.cc; MariaDB knowledge base, "Replication
Protocol".
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
import uuid
import zlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import COMMAND

from cdc.binlog.events import ServerError, encode_gtid_set
from cdc.errors import LOAD_AGAIN, PositionLost, ReaderConflict, SourceError, SourceUnavailable, WrongServer
from cdc.mysql_client import MALFORMED, TOO_LARGE, UNSAFE_LOGIN, GuardedConnection, Limits, shown
from cdc.position import BinlogPosition, GtidSet, MariadbGtidSet, parse_gtid_set

CONNECT_TIMEOUT_S = 10.0
QUERY_TIMEOUT_S = 60.0  # a busy server answers questions about itself within this, or is taken for gone
HEARTBEAT_S = 5.0
SILENT_HEARTBEATS = 3  # that many periods without a byte: the line is dead, whatever TCP says
NET_WRITE_TIMEOUT_S = 3600  # we stop reading while the window is full; the server's own 60 s would cut the line
BEYOND_DUMP = 1 << 32  # the plain dump command has 32 bits for the offset
_IDENTITIES = uuid.UUID("6b1b6f5e-6c0e-5d0a-8f3c-0c4f5cdcb10c")
_NON_BLOCKING = 0x01

Connection = pymysql.connections.Connection


@dataclass(frozen=True, slots=True)
class Tls:
    """How the line is encrypted. ``mode``: off, required, verify_ca or verify_identity."""

    mode: str
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    public_key: str | None = None  # file with the server's RSA key, for logins without TLS

    def context(self) -> ssl.SSLContext | None:
        """What the ssl module wants; None for off. Raises: SourceUnavailable - a file cannot be read."""
        if self.mode == "off":
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise SourceUnavailable(
                f"The TLS files cannot be read: {error}.", mend="Check `source.tls` in the job file.", ca=self.ca
            ) from error
        # certificates that MySQL makes for itself lack what strict checking wants
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.mode == "verify_identity"
        context.verify_mode = ssl.CERT_NONE if self.mode == "required" else ssl.CERT_REQUIRED
        return context

    def server_key(self) -> bytes | None:
        """Return the text of ``public_key``. Raises: SourceUnavailable - it cannot be read, or is not a public key."""
        if self.public_key is None:
            return None
        try:
            text = Path(self.public_key).read_bytes()
        except OSError as error:
            raise _bad_key(f"cannot be read: {error.strerror}", self.public_key) from error
        if b"PUBLIC KEY" not in text:
            raise _bad_key("is not a public key in PEM format", self.public_key)
        return text


def _bad_key(why: str, file: str) -> SourceUnavailable:
    return SourceUnavailable(
        f"The file of the server's public key {why}.",
        mend="Set `source.tls.public_key` to a copy of public_key.pem from the data directory of the MySQL server.",
        file=file,
    )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a MySQL or MariaDB server is and who we are there."""

    host: str
    port: int = 3306
    username: str = ""
    password: str = field(default="", repr=False)
    tls: Tls | None = None  # None: encrypted if the server offers it, unverified
    unix_socket: str | None = None
    limits: Limits = field(default_factory=Limits)
    until: float | None = None  # no call lasts beyond this moment of time.monotonic(), in this process only

    def __str__(self) -> str:
        return self.unix_socket or address(self.host, self.port)

    def within(self, seconds: float) -> Endpoint:
        """Return the same server with a deadline for everything that is asked of it."""
        return replace(self, until=time.monotonic() + seconds)


def address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


@dataclass(frozen=True, slots=True)
class ReaderIdentity:
    """Who reads, as the server knows its replicas."""

    server_id: int
    uuid: str  # a second reader with it ends the first one, so it is the job's own
    name: str  # shown as host in SHOW REPLICAS

    @classmethod
    def of(cls, job: str, incarnation: str, host: str, server_id: int | None = None) -> ReaderIdentity:
        """The identity of a job, always the same for the same job and incarnation.

        The server id of a job that names none comes from its name and the source's ``host``, above the small
        numbers that people give to their servers.
        """
        derived = 1_000_000 + zlib.crc32(f"{job}@{host}".encode()) % 4_000_000_000
        name = f"cdc-{job}-{incarnation}"[:60]
        return cls(server_id or derived, str(uuid.uuid5(_IDENTITIES, f"{job}/{incarnation}")), name)

    def same_job(self, name: str) -> bool:
        """Whether ``name`` is that of this job's reader, in whichever incarnation."""
        return name.rpartition("-")[0] == self.name.rpartition("-")[0]


# whatever limits the server gives its users: a result that was cut short would be taken for the whole table
_UNLIMITED = (
    "SET SESSION sql_select_limit = 18446744073709551615, sql_big_selects = 1"
    "/*!50708 , max_execution_time = 0 *//*M! , max_statement_time = 0 */"
)


def connect(endpoint: Endpoint, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Connection[Any]:
    """Log in, with autocommit and utf8mb4. Raises: SourceUnavailable."""
    settings: dict[str, Any] = {"ssl": endpoint.tls.context()} if endpoint.tls else {}
    if endpoint.tls and endpoint.tls.mode == "off":
        settings = {"ssl_disabled": True}
    if endpoint.until is not None:
        timeout_s = min(timeout_s, endpoint.until - time.monotonic())
    try:
        return GuardedConnection(
            public_key=endpoint.tls.server_key() if endpoint.tls else None,
            limits=endpoint.limits,
            until=endpoint.until,
            host=endpoint.host.strip("[]"),
            port=endpoint.port,
            user=endpoint.username,
            password=endpoint.password.encode(),  # text would be sent as latin1
            unix_socket=endpoint.unix_socket,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=max(1, round(timeout_s)),
            read_timeout=round(QUERY_TIMEOUT_S),
            write_timeout=round(QUERY_TIMEOUT_S),
            program_name="spark-binlog-load",
            init_command=_UNLIMITED,
            **settings,
        )
    except (pymysql.err.MySQLError, OSError) as error:
        raise translated(error, endpoint) from error


def query(connection: Connection[Any], sql: str, arguments: tuple[object, ...] = ()) -> list[dict[str, Any]]:
    """Run ``sql`` and give its rows, column names as the server spells them."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(sql, arguments or None)
        return list(cursor.fetchall())


class BinlogStream:
    """A binlog dump as raw bytes, MySQL packets included.

    Calls: one thread. Never: reads further than asked for.
    """

    def __init__(
        self, endpoint: Endpoint, identity: ReaderIdentity, *, mariadb: bool, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._endpoint = endpoint
        self._silence_s = 0.0
        self._dead_after_s = heartbeat_s * SILENT_HEARTBEATS
        self._mariadb = mariadb
        self._identity = identity
        self._connection = connect(endpoint)
        try:
            self._declare(heartbeat_s)
        except (pymysql.err.MySQLError, OSError) as error:
            self.close()
            raise translated(error, endpoint) from error

    def _declare(self, heartbeat_s: float) -> None:
        period = round(heartbeat_s * 1e9)
        with self._connection.cursor() as cursor:
            # servers from 8.0.26 on look for source_ and replica_ names first, older ones and MariaDB know the others
            cursor.execute("SET @source_binlog_checksum='CRC32', @master_binlog_checksum='CRC32'")
            cursor.execute(f"SET @source_heartbeat_period={period}, @master_heartbeat_period={period}")
            cursor.execute("SET @replica_uuid=%s, @slave_uuid=%s", (self._identity.uuid, self._identity.uuid))
            cursor.execute(f"SET SESSION net_write_timeout={NET_WRITE_TIMEOUT_S}")
            cursor.execute("SET @mariadb_slave_capability=4")
        sock = self._connection._sock  # type: ignore[attr-defined]
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def check_server(self, expected: str) -> None:
        """Compare with the ``Server.identity`` that another connection gave.

        One address may lead to several servers (a virtual address, a proxy), and a Position is checked on another
        connection than this one. Raises: SourceUnavailable - the connections lead to two servers.
        """
        name = "server_id" if self._mariadb else "server_uuid"
        try:
            value = query(self._connection, f"SELECT @@GLOBAL.{name} AS identity")[0]["identity"]
        except (pymysql.err.MySQLError, OSError) as error:
            raise translated(error, self._endpoint) from error
        found = f"mariadb-{value}" if self._mariadb else str(value)
        if found != expected:
            raise SourceUnavailable(
                "Two connections to the source reached two servers.",
                mend="Set `source.host` to one server, or to an address that leads to one server at a time.",
                server=self._endpoint,
                first=expected,
                second=found,
            )

    def register(self) -> None:
        """Show this reader in SHOW REPLICAS. Raises: SourceUnavailable - the privilege is missing."""
        name = self._identity.name.encode()
        payload = struct.pack("<I", self._identity.server_id) + bytes([len(name)]) + name + b"\0\0" + bytes(10)
        try:
            self._connection._execute_command(COMMAND.COM_REGISTER_SLAVE, payload)  # type: ignore[attr-defined]
            self._connection._read_packet()  # type: ignore[no-untyped-call]
        except (pymysql.err.MySQLError, OSError) as error:
            if _code_and_text(error)[0] in (*_NO_LOGIN, *_DENIED):  # "access denied", though the login was right
                user = f"'{self._endpoint.username}'"
                raise SourceUnavailable(
                    "A privilege is missing: the account may not read the binlog.",
                    mend=_GRANT.format(user=user),
                    server=self._endpoint,
                ) from error
            raise translated(error, self._endpoint) from error

    def dump(self, start: BinlogPosition, *, by_gtid: bool, until_end: bool = False) -> None:
        """Ask for everything after ``start``: by file and offset, or by the GTID set alone.

        ``until_end``: the server ends the stream where its binlog ends now, and no other reader is disturbed by it.
        Raises: SourceUnavailable, PositionLost.
        """
        # "a newer reader ends an older one" looks at the uuid, and only without one at the server id, with 0 exempt
        server_id = 0 if until_end else self._identity.server_id
        flags = _NON_BLOCKING if until_end else 0
        gtid_set = parse_gtid_set(start.gtid_set)
        try:
            if until_end:
                with self._connection.cursor() as cursor:
                    cursor.execute("SET @replica_uuid=NULL, @slave_uuid=NULL")
            if by_gtid and self._mariadb:
                assert gtid_set is None or isinstance(gtid_set, MariadbGtidSet)
                with self._connection.cursor() as cursor:
                    cursor.execute("SET @slave_connect_state=%s", (str(gtid_set or ""),))
                self._command(COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", 4, flags, server_id))
            elif by_gtid:
                encoded = encode_gtid_set(gtid_set if isinstance(gtid_set, GtidSet) else GtidSet.empty())
                head = struct.pack("<HIIQI", flags, server_id, 0, 4, len(encoded))
                self._command(COMMAND.COM_BINLOG_DUMP_GTID, head + encoded)
            elif start.offset >= BEYOND_DUMP:
                raise PositionLost(
                    "A position beyond 4 GiB cannot be asked for without GTIDs.",
                    mend="Switch GTIDs on (gtid_mode=ON), then run `cdc snapshot` for the job's tables.",
                    position=start,
                )
            else:
                head = struct.pack("<IHI", start.offset, flags, server_id)
                self._command(COMMAND.COM_BINLOG_DUMP, head + start.file.encode())
        except (pymysql.err.MySQLError, OSError) as error:
            raise translated(error, self._endpoint) from error

    def _command(self, command: int, payload: bytes) -> None:
        self._connection._execute_command(command, payload)  # type: ignore[attr-defined]

    def receive(self, room: memoryview, wait_s: float) -> int:
        """Read into ``room`` all that is there; 0 when nothing came within ``wait_s``.

        With TLS one read gives one record, and a server that is written to sends each event as one.

        Raises: SourceUnavailable - the line was closed, or was silent for longer than heartbeats allow. Time spent
        outside this call does not count as silence.
        """
        sock = self._connection._sock  # type: ignore[attr-defined]
        try:
            sock.settimeout(wait_s)
            count: int = sock.recv_into(room)
        except TimeoutError:
            self._silence_s += wait_s
            if self._silence_s > self._dead_after_s:
                raise SourceUnavailable(
                    f"The line has been silent for {self._silence_s:.0f} s, without heartbeats.",
                    mend="Check the network; the job connects again by itself.",
                    server=self._endpoint,
                ) from None
            return 0
        except (OSError, AttributeError) as error:
            raise translated(error, self._endpoint) from error
        if count == 0:
            raise SourceUnavailable(
                "The server closed the line.",
                mend="Look into the server's error log; the job connects again by itself.",
                server=self._endpoint,
            )
        self._silence_s = 0.0
        with suppress(OSError):  # nothing more at the moment; a line that broke says so to the next call
            sock.settimeout(0)
            while count < len(room) and (more := sock.recv_into(room[count:])):
                count += more
        return count

    def close(self) -> None:
        """Let the line go. Harmless when repeated."""
        self._connection._force_close()  # type: ignore[attr-defined]


_GRANT = "Run `GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}` and grant SELECT on the mapped tables."
_LOGIN = "Check `source.username` and `source.password`, and that the account may log in from this machine."
_USE_TLS = "Set `source.tls`, for example `tls: {mode: verify_ca, ca: ca.pem}` with a copy of the server's ca.pem."
_TRUST = (
    "Set `source.tls` to `verify_identity` or `verify_ca` with the server's `ca`. Without TLS, set "
    "`source.tls: {mode: off, public_key: FILE}` with a copy of the server's public_key.pem."
)
_NEEDS_TLS = 3159  # ER_SECURE_TRANSPORT_REQUIRED
_NO_LOGIN = frozenset((1044, 1045, 1130, 1251, 1698, 1820, 1862, 2059, 3118, 3955))
_DENIED = frozenset((1142, 1143, 1227, 1370))

# The server gives all faults of a dump one number, 1236, so here its text decides.
_DUMP_FAULTS: tuple[tuple[str, type[SourceError], str, str], ...] = (
    (
        "same server_uuid/server_id",
        ReaderConflict,
        "Another reader uses our identity and has taken the stream.",
        "Stop the other job or replica (SHOW REPLICAS names it), or set another `source.server_id`.",
    ),
    ("first log file name", PositionLost, "The binlog file is gone from the server.", LOAD_AGAIN),
    ("log file name or purged", PositionLost, "The binlog file is gone from the server.", LOAD_AGAIN),
    (
        "purged required binary logs",
        PositionLost,
        "Transactions after our GTID set are gone from the server.",
        LOAD_AGAIN,
    ),
    (
        "purged binary logs containing gtids",  # MySQL 5.7
        PositionLost,
        "Transactions after our GTID set are gone from the server.",
        LOAD_AGAIN,
    ),
    ("gtid state requested", PositionLost, "Transactions after our GTID set are gone from the server.", LOAD_AGAIN),
    (
        "not in the master's binlog",
        WrongServer,
        "The server does not have our last transaction.",
        "Point `source.host` at a server that has it, or run `cdc resume --accept-server`.",
    ),
    (
        "more gtids than the",
        WrongServer,
        "The server lacks transactions that this job has read from it: it lost data or was reset.",
        "Run `cdc snapshot` for the job's tables, or `cdc resume --accept-server` to go on regardless.",
    ),
    (
        "position > file size",
        PositionLost,
        "The binlog file ends before our position: it was cut or replaced.",
        LOAD_AGAIN,
    ),
    (
        "impossible position",
        PositionLost,
        "The binlog file ends before our position: it was cut or replaced.",
        LOAD_AGAIN,
    ),
    ("position < 4", PositionLost, "No binlog position is smaller than 4.", "Correct `source.start.offset`."),
    (
        "exceeded max_allowed_packet",
        PositionLost,
        "No event begins at our position, or the file is damaged.",
        LOAD_AGAIN,
    ),
    ("bogus data", PositionLost, "No event begins at our position, or the file is damaged.", LOAD_AGAIN),
    ("truncated in the middle", PositionLost, "The binlog file is damaged.", LOAD_AGAIN),
    ("did not pass", PositionLost, "The binlog file is damaged.", LOAD_AGAIN),  # a checksum, MySQL 5.7 and MariaDB
    ("error reading", PositionLost, "The binlog file cannot be read.", LOAD_AGAIN),
)


def translated(error: Exception, endpoint: Endpoint, position: BinlogPosition | None = None) -> SourceError:
    """Our error for one of the client library, the socket or the server's stream."""
    if isinstance(error, SourceError):
        return error
    code, text = _code_and_text(error)
    text = shown(text, endpoint.password)
    where: dict[str, object] = {"server": endpoint}
    if position is not None:
        where["position"] = position
    if code in (1236, 4052):  # MariaDB has a number of its own for a second reader with our server id
        for fragment, kind, message, mend in _DUMP_FAULTS:
            if fragment in text.lower():
                return kind(f"{message} It says: {text}", mend=mend, **where)
    user = f"'{endpoint.username}'"
    if code in _NO_LOGIN:
        return SourceUnavailable(f"The server refuses the login: {text}.", mend=_LOGIN, user=endpoint.username, **where)
    if code in _DENIED:
        return SourceUnavailable(f"A privilege is missing: {text}.", mend=_GRANT.format(user=user), **where)
    if code == _NEEDS_TLS:
        return SourceUnavailable(
            "The server accepts encrypted connections only (require_secure_transport).", mend=_USE_TLS, **where
        )
    if code == UNSAFE_LOGIN:
        return SourceUnavailable(f"The login was stopped and the password was not sent: {text}.", mend=_TRUST, **where)
    if code in (MALFORMED, TOO_LARGE):
        return SourceUnavailable(
            f"The server does not follow MySQL's protocol: {text}.",
            mend="Check that `source.host` and `source.port` name a MySQL or MariaDB server and no other program.",
            **where,
        )
    original = getattr(error, "original_exception", error)
    if isinstance(original, ssl.SSLError) or code == 2026:
        return SourceUnavailable(
            f"TLS fails: {shown(str(original) if code != 2026 else text)}.",
            mend="Check `source.tls`: its mode, `ca`, the name in `source.host`, and that the server offers TLS.",
            **where,
        )
    return SourceUnavailable(
        f"The server cannot be reached: {text}.",
        mend="Check that it runs and that `source.host` and `source.port` are right.",
        **where,
    )


def _code_and_text(error: Exception) -> tuple[int, str]:
    if isinstance(error, ServerError):
        return error.code, error.text
    if isinstance(error, pymysql.err.MySQLError) and error.args and isinstance(error.args[0], int):
        return error.args[0], str(error.args[-1]).rstrip(".")
    return 0, str(error) or type(error).__name__
