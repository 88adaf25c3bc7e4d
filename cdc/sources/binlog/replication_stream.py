"""A replication connection: the server sends its binlog as it does to a replica.

``transport.ServerByteSource`` reads the stream of a job with it, ``event_scan`` reads single events and control
events.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from contextlib import suppress
from dataclasses import dataclass

import pymysql
from pymysql.constants import COMMAND

from cdc.errors import PositionLost, SourceUnavailable
from cdc.model.gtid import GtidSet, MariadbGtidSet, parse_gtid_set
from cdc.model.position import BinlogPosition
from cdc.mysql.connection import (
    DENIED,
    GRANT,
    NET_WRITE_TIMEOUT_S,
    NO_LOGIN,
    Endpoint,
    code_and_text,
    connect,
    query,
    translated,
)
from cdc.sources.binlog.decoder.events import encode_gtid_set

HEARTBEAT_S = 5.0
SILENT_HEARTBEATS = 3  # after so many heartbeat periods without a byte the connection counts as dead
BEYOND_DUMP = 1 << 32  # COM_BINLOG_DUMP has 32 bits for the offset
_IDENTITIES = uuid.UUID("6b1b6f5e-6c0e-5d0a-8f3c-0c4f5cdcb10c")
_NON_BLOCKING = 0x01
_LONG_HEARTBEATS = 0x02  # heartbeats with 64 bits for the offset; servers before MySQL 8.0.26 ignore it


@dataclass(frozen=True, slots=True)
class ReaderIdentity:
    """How this job identifies itself to the server, which treats it as a replica."""

    server_id: int
    uuid: str  # unique per job: a second reader with the same uuid ends the first one
    name: str  # shown as host in SHOW REPLICAS

    @classmethod
    def of(cls, job: str, incarnation: str, host: str, server_id: int | None = None) -> ReaderIdentity:
        """Return the identity of a job. It is always the same for the same job and incarnation.

        Without ``server_id`` the number is derived from the job's name and the source's ``host``. It is larger than the
        small numbers that people give to their servers.
        """
        derived = 1_000_000 + zlib.crc32(f"{job}@{host}".encode()) % 4_000_000_000
        name = f"cdc-{job}-{incarnation}"[:60]
        return cls(server_id or derived, str(uuid.uuid5(_IDENTITIES, f"{job}/{incarnation}")), name)

    def same_job(self, name: str) -> bool:
        """Return whether ``name`` belongs to a reader of this job, in any incarnation."""
        return name.rpartition("-")[0] == self.name.rpartition("-")[0]


class BinlogStream:
    """A binlog dump as raw bytes, including MySQL packet headers.

    Calls: one thread. Never: reads more bytes than requested.
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
            # MySQL 8.0.26 and later check the names with source_ and replica_ first. Older ones and MariaDB use the
            # names with master_ and slave_.
            cursor.execute("SET @source_binlog_checksum='CRC32', @master_binlog_checksum='CRC32'")
            cursor.execute(f"SET @source_heartbeat_period={period}, @master_heartbeat_period={period}")
            cursor.execute("SET @replica_uuid=%s, @slave_uuid=%s", (self._identity.uuid, self._identity.uuid))
            cursor.execute(f"SET SESSION net_write_timeout={NET_WRITE_TIMEOUT_S}")
            cursor.execute("SET @mariadb_slave_capability=4")

    def check_server(self, expected: str) -> None:
        """Check that this connection reached the server with the ``Server.identity`` ``expected``.

        A virtual address or a proxy may lead to several servers, and the Position was checked on another connection.
        Raises: SourceUnavailable - the connections lead to two servers.
        """
        name = "server_id" if self._mariadb else "server_uuid"
        try:
            value = query(self._connection, f"SELECT @@GLOBAL.{name} AS identity")[0]["identity"]
        except (pymysql.err.MySQLError, OSError) as error:
            raise translated(error, self._endpoint) from error
        found = f"mariadb-{value}" if self._mariadb else str(value)
        if found != expected:
            raise SourceUnavailable(
                "Two connections to `source.host` reached two servers.",
                hint="Set `source.host` to one server, or to an address that leads to one server at a time.",
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
            if code_and_text(error)[0] in (*NO_LOGIN, *DENIED):  # "access denied", although the login succeeded
                user = f"'{self._endpoint.username}'"
                raise SourceUnavailable(
                    "A privilege is missing: the account may not read the binlog.",
                    hint=GRANT.format(user=user),
                    server=self._endpoint,
                ) from error
            raise translated(error, self._endpoint) from error

    def dump(self, start: BinlogPosition, *, by_gtid: bool, until_end: bool = False) -> None:
        """Request everything after ``start``: by file and offset, or by the GTID set only.

        ``until_end``: the server ends the stream at the current end of its binlog. Other readers are not disturbed.
        Raises: SourceUnavailable, PositionLost.
        """
        # A new reader ends an older one with the same uuid. Without a uuid the server compares server ids, except 0.
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
                # A heartbeat follows the transactions that are not sent. In a file of more than 4 GiB its offset would
                # be cut to 32 bits, and those of all later events would be wrong.
                head = struct.pack("<HIIQI", flags | _LONG_HEARTBEATS, server_id, 0, 4, len(encoded))
                self._command(COMMAND.COM_BINLOG_DUMP_GTID, head + encoded)
            elif start.offset >= BEYOND_DUMP:
                raise PositionLost(
                    "Without GTIDs the server cannot send from an offset of 4 GiB or more.",
                    hint="Set gtid_mode=ON on the server, then run `cdc snapshot` for the job's tables.",
                    position=start,
                )
            else:
                head = struct.pack("<IHI", start.offset, flags, server_id)
                self._command(COMMAND.COM_BINLOG_DUMP, head + start.file.encode())
        except (pymysql.err.MySQLError, OSError) as error:
            raise translated(error, self._endpoint) from error

    def _command(self, command: int, payload: bytes) -> None:
        self._connection._execute_command(command, payload)  # type: ignore[attr-defined]

    def receive(self, free: memoryview, wait_s: float) -> int:
        """Read all available bytes into ``free``. Return their number; 0 if none arrived within ``wait_s``.

        With TLS one system call returns one record, and a busy server sends each event as a record: read in a loop.
        Raises: SourceUnavailable - the server closed the connection, or no byte arrived for ``SILENT_HEARTBEATS``
        periods. Time outside this call does not count.
        """
        sock = self._connection._sock  # type: ignore[attr-defined]
        try:
            sock.settimeout(wait_s)
            count: int = sock.recv_into(free)
        except TimeoutError:
            self._silence_s += wait_s
            if self._silence_s > self._dead_after_s:
                raise SourceUnavailable(
                    f"The server has sent nothing for {self._silence_s:.0f} s, not even heartbeats.",
                    hint="Check the network. The job reconnects automatically.",
                    server=self._endpoint,
                ) from None
            return 0
        except (OSError, AttributeError) as error:
            raise translated(error, self._endpoint) from error
        if count == 0:
            raise SourceUnavailable(
                "The server closed the replication connection.",
                hint="Read the server's error log. The job reconnects automatically.",
                server=self._endpoint,
            )
        self._silence_s = 0.0
        with suppress(OSError):  # no more bytes at the moment; a broken connection raises in the next call
            sock.settimeout(0)
            while count < len(free) and (more := sock.recv_into(free[count:])):
                count += more
        return count

    def close(self) -> None:
        """Close the connection. May be repeated."""
        self._connection._force_close()  # type: ignore[attr-defined]
