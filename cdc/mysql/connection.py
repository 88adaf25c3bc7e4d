"""Connections to the source: log in, run statements, and translate the errors of the server.

Source: MySQL manual, "Replication Protocol"; MySQL source, sql/rpl_source.cc; MariaDB knowledge base, "Replication
Protocol".
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pymysql

from cdc.errors import GAP_SNAPSHOT_HINT, PositionLost, ReaderConflict, ServerMismatch, SourceError, SourceUnavailable
from cdc.model.position import BinlogPosition
from cdc.mysql.client import MALFORMED, SILENT, TOO_LARGE, UNSAFE_LOGIN, GuardedConnection, Limits, shown

CONNECT_TIMEOUT_S = 10.0
QUERY_TIMEOUT_S = 60.0  # a busy server answers queries about itself within this time; else it counts as unavailable
NET_WRITE_TIMEOUT_S = 3600  # reading stops while the window is full; the default of 60 s would close the connection

Connection = pymysql.connections.Connection


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of a connection. ``mode``: off, required, verify_ca or verify_identity."""

    mode: str
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    public_key: str | None = None  # file with the server's RSA key, for logins without TLS

    def context(self) -> ssl.SSLContext | None:
        """Return the SSL context; None for off. Raises: SourceUnavailable - a file cannot be read."""
        if self.mode == "off":
            return None
        try:
            if self.mode == "required" and self.ca is None:
                # nothing is verified, and the certificates of the system take 30 ms to load
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            else:
                context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise SourceUnavailable(
                f"The TLS files cannot be read: {error}.", hint="Check `source.tls` in the job file.", ca=self.ca
            ) from error
        # certificates that MySQL generates lack extensions that the strict check requires
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
        hint="Set `source.tls.public_key` to a copy of public_key.pem from the data directory of the MySQL server.",
        file=file,
    )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address, account and TLS settings of a MySQL or MariaDB server."""

    host: str
    port: int = 3306
    username: str = ""
    password: str = field(default="", repr=False)
    tls: Tls | None = None  # None: encrypted if the server offers TLS, without verification
    unix_socket: str | None = None
    limits: Limits = field(default_factory=Limits)
    until: float | None = None  # time.monotonic() of this process at which every call ends

    def __str__(self) -> str:
        return self.unix_socket or address(self.host, self.port)

    def within(self, seconds: float) -> Endpoint:
        """Return the same server with a deadline for all calls."""
        return replace(self, until=time.monotonic() + seconds)


def address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


# Override limits of the server for its users: a result that is cut short would count as the whole table.
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
            password=endpoint.password.encode(),  # PyMySQL would send a str as latin1
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
    """Run ``sql`` and return its rows, with the column names of the server."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(sql, arguments or None)
        return list(cursor.fetchall())


GRANT = "Run `GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}` and grant SELECT on the mapped tables."
_LOGIN = "Check `source.username` and `source.password`, and that the account may log in from this machine."
_USE_TLS = "Set `source.tls`, for example `tls: {mode: verify_ca, ca: ca.pem}` with a copy of the server's ca.pem."
_TRUST = (
    "Set `source.tls` to `verify_identity` or `verify_ca` with the server's `ca`. Without TLS, set "
    "`source.tls: {mode: off, public_key: FILE}` with a copy of the server's public_key.pem."
)
_ACCEPT_SERVER = "Run `cdc resume NAME --accept-server`, then `cdc snapshot` for the job's tables."
_NEEDS_TLS = 3159  # ER_SECURE_TRANSPORT_REQUIRED
NO_LOGIN = frozenset((1044, 1045, 1130, 1251, 1698, 1820, 1862, 2059, 3118, 3955))
DENIED = frozenset((1142, 1143, 1227, 1370))

# The server uses one number, 1236, for all faults of a dump, so its text must be compared.
_DUMP_FAULTS: tuple[tuple[str, type[SourceError], str, str], ...] = (
    (
        "same server_uuid/server_id",
        ReaderConflict,
        "Another reader with the same server id has ended the stream of this job.",
        "Stop the other job or replica (SHOW REPLICAS shows it), or set another `source.server_id`.",
    ),
    ("first log file name", PositionLost, "The binlog file does not exist on the server.", GAP_SNAPSHOT_HINT),
    ("log file name or purged", PositionLost, "The binlog file does not exist on the server.", GAP_SNAPSHOT_HINT),
    (
        "purged required binary logs",
        PositionLost,
        "Transactions after the job's GTID set were purged.",
        GAP_SNAPSHOT_HINT,
    ),
    (
        "purged binary logs containing gtids",  # MySQL 5.7
        PositionLost,
        "Transactions after the job's GTID set were purged.",
        GAP_SNAPSHOT_HINT,
    ),
    ("gtid state requested", PositionLost, "Transactions after the job's GTID set were purged.", GAP_SNAPSHOT_HINT),
    (
        "not in the master's binlog",
        ServerMismatch,
        "The server does not have the last transaction of the job.",
        "Set `source.host` to a server that has it. Otherwise: " + _ACCEPT_SERVER,
    ),
    (
        "more gtids than the",
        ServerMismatch,
        "The server lacks transactions that this job has read from it: it lost data or was reset.",
        _ACCEPT_SERVER,
    ),
    (
        "position > file size",
        PositionLost,
        "The binlog file ends before the job's position: it was truncated or replaced.",
        GAP_SNAPSHOT_HINT,
    ),
    (
        "impossible position",
        PositionLost,
        "The binlog file ends before the job's position: it was truncated or replaced.",
        GAP_SNAPSHOT_HINT,
    ),
    ("position < 4", PositionLost, "A binlog position must be at least 4.", "Correct `source.start.offset`."),
    (
        "exceeded max_allowed_packet",
        PositionLost,
        "No event begins at the job's position, or the file is damaged.",
        GAP_SNAPSHOT_HINT,
    ),
    ("bogus data", PositionLost, "No event begins at the job's position, or the file is damaged.", GAP_SNAPSHOT_HINT),
    ("truncated in the middle", PositionLost, "The binlog file is damaged.", GAP_SNAPSHOT_HINT),
    (
        "did not pass",
        PositionLost,
        "The binlog file is damaged.",
        GAP_SNAPSHOT_HINT,
    ),  # a checksum, MySQL 5.7 and MariaDB
    ("error reading", PositionLost, "The binlog file cannot be read.", GAP_SNAPSHOT_HINT),
)


def translated(error: Exception, endpoint: Endpoint, position: BinlogPosition | None = None) -> SourceError:
    """Translate an error of PyMySQL, of the socket or of the server's stream."""
    if isinstance(error, SourceError):
        return error
    code, text = code_and_text(error)
    text = shown(text, endpoint.password)
    where: dict[str, object] = {"server": endpoint}
    if position is not None:
        where["position"] = position
    if code in (1236, 4052):  # 4052: MariaDB's number for a second reader with the same server id
        for fragment, kind, message, hint in _DUMP_FAULTS:
            if fragment in text.lower():
                return kind(f"{message} The server reports: {text}", hint=hint, **where)
    user = f"'{endpoint.username}'"
    if code in NO_LOGIN:
        return SourceUnavailable(f"The server refuses the login: {text}.", hint=_LOGIN, user=endpoint.username, **where)
    if code in DENIED:
        return SourceUnavailable(f"A privilege is missing: {text}.", hint=GRANT.format(user=user), **where)
    if code == _NEEDS_TLS:
        return SourceUnavailable(
            "The server accepts only encrypted connections (require_secure_transport).", hint=_USE_TLS, **where
        )
    if code == UNSAFE_LOGIN:
        return SourceUnavailable(f"The login was stopped and the password was not sent: {text}.", hint=_TRUST, **where)
    if code in (MALFORMED, TOO_LARGE):
        return SourceUnavailable(
            f"The server does not follow MySQL's protocol: {text}.",
            hint="Check that `source.host` and `source.port` are those of a MySQL or MariaDB server.",
            **where,
        )
    original = getattr(error, "original_exception", error)
    if isinstance(original, ssl.SSLError) or code == 2026:
        return SourceUnavailable(
            f"TLS fails: {shown(str(original) if code != 2026 else text)}.",
            hint="Check the mode and `ca` of `source.tls`, the name in `source.host`, and that the server offers TLS.",
            **where,
        )
    hint = "Check that it runs and that `source.host` and `source.port` are right."
    if text == SILENT:
        hint += " If it runs, look for a lock on a table that the job reads (SHOW PROCESSLIST)."
    return SourceUnavailable(f"The server cannot be reached: {text}.", hint=hint, **where)


def code_and_text(error: Exception) -> tuple[int, str]:
    """Return the error number of the server (0 if it has none) and its text."""
    if isinstance(error, ServerError):
        return error.code, error.text
    if isinstance(error, pymysql.err.MySQLError) and error.args and isinstance(error.args[0], int):
        return error.args[0], str(error.args[-1]).rstrip(".")
    return 0, str(error) or type(error).__name__


class ServerError(Exception):
    """The server ended the stream with an ERR packet: its error number, SQL state and text. See ``translated``."""

    def __init__(self, code: int, sql_state: str, text: str) -> None:
        super().__init__(f"server error {code} ({sql_state}): {text}")
        self.code = code
        self.sql_state = sql_state
        self.text = text
