"""Read events of a server's binlog on a separate connection, without rows.

``scan`` reads the control events of a range: statements and GTIDs. ``first_event`` reads the type of the event after a
position. Other readers are not disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from cdc.errors import CdcError
from cdc.model.batch import RequiredColumns
from cdc.model.position import BinlogPosition
from cdc.model.schema import TableSchema
from cdc.mysql.connection import Endpoint, ServerError, translated
from cdc.mysql.server import Server
from cdc.sources.binlog.decoder.decoder import BinlogDecoder
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.replication_stream import BEYOND_DUMP, BinlogStream, ReaderIdentity

_FIRST_EVENT_WAIT_S = 10.0


class NoTables:
    """A selection that maps no table, so that a decoder returns control events only."""

    def maps(self, database: str, table: str) -> bool:
        """See ``TableFilter``."""
        return False

    def may_map(self, database: str, table: str) -> bool:
        """See ``TableFilter``."""
        return False

    def reads(self, schema: TableSchema) -> RequiredColumns:
        """See ``TableFilter``."""
        raise AssertionError("no table is mapped")

    def leave_out(self, database: str, table: str, error: CdcError) -> bool:
        """See ``TableFilter``."""
        raise AssertionError("no table is mapped")

    def schema(self, table_map: object) -> TableSchema:
        """See ``TableSource``."""
        raise AssertionError("no table is mapped")


def scan(
    server: Server,
    start: BinlogPosition,
    end: BinlogPosition,
    identity: ReaderIdentity,
    on_statement: Callable[[Statement], None] = lambda _: None,
) -> BinlogPosition:
    """Read the control events from ``start`` to ``end``. Return the Position reached, with its GTID set.

    Within one file it is exactly ``end``; over several files it may be slightly after it. Rows are skipped without
    decoding. Raises: SourceUnavailable, PositionLost.
    """
    if start.file and start.offset >= BEYOND_DUMP and start.gtid_set:  # the server cannot begin there by its offset
        start = replace(start, file="", offset=0)
    nothing = NoTables()
    decoder = BinlogDecoder(
        table_filter=nothing, tables=nothing, on_statement=on_statement, start=start, sequence=0, framed=True
    )
    stream = BinlogStream(server.endpoint, identity, mariadb=server.mariadb)
    try:
        stream.dump(start, by_gtid=not start.file, until_end=True)
        in_one_file = bool(start.file) and start.file == end.file
        while not (decoder.ended or (decoder.position.file and decoder.position.reached(end))):
            if in_one_file and decoder.read_to.offset >= end.offset:
                return decoder.read_to  # `end` is in the head of a file, before its first transaction
            free = decoder.free_space()
            if in_one_file:
                # The decoder reads everything that it is fed: feed it bytes up to the end only, finally one by one.
                left = end.offset - decoder.offset - decoder.unread
                free = free[: max(left, 1)]
            decoder.feed(stream.receive(free, 1.0))
            while decoder.next() is not None:
                pass
    except ServerError as error:
        raise translated(error, server.endpoint, decoder.position) from error
    finally:
        stream.close()
    return decoder.position


def first_event(
    server: Server, position: BinlogPosition, identity: ReaderIdentity, is_asked_for: Callable[[int], bool]
) -> tuple[int, int] | None:
    """Return timestamp and type of the first requested event that a dump from ``position`` sends, or None."""
    stream = BinlogStream(server.endpoint, identity, mariadb=server.mariadb)
    data = bytearray()
    free = bytearray(1 << 16)
    deadline = time.monotonic() + _FIRST_EVENT_WAIT_S
    found = None
    try:
        stream.dump(position, by_gtid=False, until_end=True)
        while found is None and time.monotonic() < deadline:
            data += free[: stream.receive(memoryview(free), 1.0)]
            found = _find_event(data, server.endpoint, position, is_asked_for)
    finally:
        stream.close()
    return found if found and found[1] else None


def _find_event(
    data: bytearray, endpoint: Endpoint, position: BinlogPosition, is_asked_for: Callable[[int], bool]
) -> tuple[int, int] | None:
    """Return the event's timestamp and type; type 0: the binlog ended; None: the event has not arrived yet."""
    at = 0
    while at + 4 + 1 <= len(data):
        length = int.from_bytes(data[at : at + 3], "little")
        status = data[at + 4]
        if status == 0xFF and at + 4 + length <= len(data):
            packet = bytes(data[at + 5 : at + 4 + length])
            error = ServerError(
                int.from_bytes(packet[:2], "little"),
                packet[3:8].decode("ascii", "replace"),
                packet[8:].decode("utf-8", "replace"),
            )
            raise translated(error, endpoint, position)
        if status == 0xFE:
            return 0, 0
        if at + 10 > len(data):
            return None
        kind = data[at + 9]  # after length, sequence number, status and timestamp
        if status == 0 and is_asked_for(kind):
            return int.from_bytes(data[at + 5 : at + 9], "little"), kind
        at += 4 + length
    return None
