"""Events without rows: apply each one to the stream's position, its transactions and its tables.

``decoder`` calls ``handle_event`` for each event that the kernel ``scan`` does not handle.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cdc.errors import (
    GAP_HINT,
    GAP_OLDEST_HINT,
    MISSING_FILES_HINT,
    OTHER_FILES_HINT,
    CdcError,
    DecodeError,
    PositionLost,
    UnsupportedRowFormat,
)
from cdc.model.batch import Batch
from cdc.model.gtid import AnyGtidSet, MariadbGtidSet
from cdc.model.position import file_number
from cdc.mysql.charsets import charset_of
from cdc.mysql.connection import ServerError
from cdc.sources.binlog.decoder import batch_cutting, xa_events
from cdc.sources.binlog.decoder import events as ev
from cdc.sources.binlog.decoder import framing as fr
from cdc.sources.binlog.decoder.checksum import crc32
from cdc.sources.binlog.decoder.events import Malformed, Statement
from cdc.sources.binlog.decoder.stream_state import ScanRange, StreamState
from cdc.sources.binlog.decoder.table_map import text_of

log = logging.getLogger(__name__)


def handle_event(stream: StreamState, code: int) -> Batch | None:
    """Handle an event that the scan does not handle. Return a Batch if it must be returned before this event.

    In that case the event was not handled: the scan reaches it again.
    """
    state = stream.state
    at, size = int(state[fr.EVENT_AT]), int(state[fr.EVENT_SIZE])
    data = stream.buffer.data
    if code == fr.UNKNOWN_MAP:
        return _learn_map(stream, at, size)
    if code != fr.CHECK:
        if state[fr.TX_COUNT]:
            return batch_cutting.cut_transactions(stream)
        if code == fr.ERROR_PACKET:
            raise _server_error(data[at : at + size].tobytes())
        if code == fr.END_PACKET:
            stream.ended = True
            state[fr.AT] = state[fr.EVENT_NEXT]
            return None
        raise Malformed(fr.FAULTS[code])
    kind = int(data[at + 4])
    if kind == ev.FORMAT_DESCRIPTION or state[fr.CHECKSUM] < 0:
        body_end = at + size
    else:
        body_end = at + size - (4 if state[fr.CHECKSUM] and not state[fr.INNER_END] else 0)
    handler = _HANDLERS.get(kind)
    if handler is None:
        flags = int(data[at + 17]) | int(data[at + 18]) << 8
        if not flags & ev.IGNORABLE_FLAG and kind < ev.FIRST_TYPE_TO_STEP_OVER:
            raise Malformed(f"events of {ev.name_of(kind)} are not supported")
        if kind not in stream.skipped_types:
            log.warning("skipping events of type %d (unknown to this version; logged once)", kind)
        stream.skipped_types[kind] = stream.skipped_types.get(kind, 0) + 1
        stream.step()
        return None
    if kind not in _CONTINUES and state[fr.TX_COUNT]:
        return batch_cutting.cut_transactions(stream)
    return handler(stream, data[at:body_end].tobytes())


def _learn_map(stream: StreamState, at: int, size: int) -> Batch | None:
    crc = 4 if stream.state[fr.CHECKSUM] and not stream.state[fr.INNER_END] else 0
    content = stream.buffer.data[at + ev.HEADER_BYTES + 6 : at + size - crc].tobytes()
    before = stream.position_at(int(stream.state[fr.TX_START]))
    try:
        stream.registry.add(content, int(stream.state[fr.MAP_HASH]), mariadb=stream.mariadb, since=before)
    except (CdcError, Malformed):
        if stream.state[fr.TX_COUNT]:
            return batch_cutting.cut_transactions(stream)  # the scan reaches this event again
        raise
    return None


def _format_description(stream: StreamState, event: bytes) -> Batch | None:
    if stream.state[fr.PHASE] != fr.IDLE:
        raise Malformed("a new file begins inside a transaction")
    created = struct.unpack_from("<I", event)[0]
    if stream.created not in (None, created):
        raise _new_log(stream, f"Binary log {stream.file}, created at another time,")
    stream.created = created
    description = ev.parse_format_description(event)
    stream.server_version, stream.mariadb = description.server_version, description.mariadb
    stream.state[fr.CHECKSUM] = int(description.checksum)
    stream.state[fr.MAP_COUNT] = 0
    stream.step_over_head(event)
    return None


def _new_log(stream: StreamState, what: str) -> PositionLost:
    if not stream.sources[0].framed:
        return PositionLost(
            f"{what} follows {stream.position}: the binlog files were replaced by other ones.",
            hint=OTHER_FILES_HINT,
            position=stream.position,
        )
    return PositionLost(
        f"{what} follows {stream.position}: the binary logs were reset or replaced.",
        hint=GAP_OLDEST_HINT,
        position=stream.position,
    )


def _rotate(stream: StreamState, event: bytes) -> Batch | None:
    body = event[ev.HEADER_BYTES :]
    if stream.state[fr.CHECKSUM] < 0 and len(body) > 12:
        at = int(stream.state[fr.EVENT_AT])
        last = at + int(stream.state[fr.EVENT_SIZE]) - 4
        if crc32(stream.buffer.data, at, last) == int.from_bytes(event[-4:], "little"):
            body = body[:-4]  # the first event of a stream has no field that says whether it has a checksum
    name, offset = ev.parse_rotate(body)
    flags = struct.unpack_from("<H", event, 17)[0]
    if name != stream.file:
        before, now = file_number(stream.file), file_number(name)
        if before and now and before[0] == now[0] and now[1] < before[1]:
            raise _new_log(stream, f"Binary log {name}")
        stream.created = None
    stream.step(in_the_file=False)
    stream.moved = stream.moved or (bool(stream.file) and name != stream.file)
    stream.file = name
    stream.state[fr.FILE_AT] = offset
    stream.state[fr.MAP_COUNT] = 0
    if not stream.sources[0].framed and not flags & ev.ARTIFICIAL_FLAG:
        stream.magic = True
        stream.state[fr.CHECKSUM] = -1
        stream.state[fr.SKIP_UNTIL] = 0
    return None


def _heartbeat(stream: StreamState, event: bytes) -> Batch | None:
    body = event[ev.HEADER_BYTES :]
    state = stream.state
    if event[4] == ev.HEARTBEAT_V2:
        offset = ev.parse_heartbeat_v2(body) or 0
    else:
        offset = struct.unpack_from("<I", event, 13)[0]
        if offset:
            offset |= int(state[fr.FILE_AT]) & ~0xFFFFFFFF
        else:
            offset = ev.parse_long_heartbeat(body, stream.file)
    if offset > state[fr.FILE_AT] and state[fr.PHASE] == fr.IDLE:
        state[fr.FILE_AT] = offset
        stream.moved = True
    stream.step(in_the_file=False)
    return None


def _gtid_set(stream: StreamState, event: bytes) -> Batch | None:
    """Compare the transactions before a file with those that were read. A server sends its files whole."""
    body = event[ev.HEADER_BYTES :]
    executed: AnyGtidSet
    if event[4] == ev.PREVIOUS_GTIDS:
        executed = ev.parse_gtid_set(body)
    else:
        executed = MariadbGtidSet.empty()
        for domain, server, number in ev.parse_gtid_list(body):  # of several servers of a domain the last is newest
            executed = executed.add(domain, server, number)
    if not stream.sources[0].framed and stream.gtids.lacks(executed):
        error = PositionLost(
            f"Transactions between {stream.position} and the beginning of {stream.file} are missing: a binlog file was "
            "cut, or replaced by another one.",
            hint=MISSING_FILES_HINT,
            position=stream.position,
        )
        if not stream.callbacks.omits(error, ()):
            raise error
    stream.gtids.adopt(executed)
    stream.step()
    return None


def _incident(stream: StreamState, event: bytes) -> Batch | None:
    raise DecodeError(
        f"The server reports changes that are not in its binlog: {ev.parse_incident(event[ev.HEADER_BYTES :])}.",
        hint="Find the cause in the server's error log, then run `cdc snapshot` for every table.",
        **stream.event_position(),
    )


def read_encryption(stream: StreamState, event: bytes) -> Batch | None:
    """Raise DecodeError for an encrypted file. A server sends its stream decrypted."""
    if not stream.sources[0].framed:
        raise DecodeError(
            "The binlog file is encrypted.",
            hint="Use `source.type: binlog`: the server sends its binlog decrypted.",
            **stream.event_position(),
        )
    stream.step_over_head(event)
    return None


def _fragment(stream: StreamState, event: bytes) -> Batch | None:
    raise DecodeError(
        "A row event is split into fragments (PARTIAL_ROW_DATA), which are not supported.",
        hint="Raise the size from which the server fragments row events (SHOW VARIABLES LIKE '%fragment%'), or "
        "write smaller rows. Then run `cdc snapshot` for the table.",
        **stream.event_position(),
    )


def _payload(stream: StreamState, event: bytes) -> Batch | None:
    body = event[ev.HEADER_BYTES :]
    header = ev.parse_payload(body)
    content = memoryview(body)[header.offset : header.offset + header.size]
    reader: Any = _BytesReader(content)
    if header.zstd:
        reader = stream.unpacker.stream_reader(content, read_across_frames=True)
    stream.buffer.grow_inner(stream.batch_bytes)
    after = int(stream.state[fr.EVENT_NEXT])
    stream.state[fr.INNER_END] = stream.state[fr.FILE_NEXT]
    stream.state[fr.SEEN_EVENTS] += 1
    stream.push(ScanRange(False, 0, after, reader, True), stream.buffer.inner_end)
    return None


def _compressed_rows(stream: StreamState, event: bytes) -> Batch | None:
    """Unpack a compressed row event of MariaDB after the received bytes, and list it as a plain one."""
    state = stream.state
    kind = (ev.WRITE_V1, ev.UPDATE_V1, ev.DELETE_V1)[(event[4] - ev.COMPRESSED_ROWS.start) % 3]
    version_2 = event[4] >= ev.COMPRESSED_ROWS.start + 3
    cursor = ev.ByteCursor(event, ev.HEADER_BYTES + 8)
    if version_2:
        cursor.take(max(cursor.uint(2), 2) - 2)
    count = cursor.pint()
    cursor.take((count + 7) // 8 * (2 if kind == ev.UPDATE_V1 else 1))
    bitmaps_end = cursor.offset
    start = ev.HEADER_BYTES + 8
    plain = event[start:bitmaps_end]
    if version_2:
        plain = event[start + int.from_bytes(event[start : start + 2], "little") : bitmaps_end]
    body = event[ev.HEADER_BYTES : start] + plain + ev.uncompress(event[bitmaps_end:])
    if stream.buffer.inner_left < len(body) and state[fr.EVENT_COUNT] and stream.buffer.inner_used:
        batch = batch_cutting.cut(stream, True)
        if batch is not None:
            return batch
    stream.buffer.grow_inner(stream.batch_bytes)
    at = stream.buffer.put_inner(np.frombuffer(body, np.uint8))
    fault = fr.list_rows(
        stream.buffer.data, kind, at, at + len(body), state, stream.events, stream.map_ids, stream.map_slots
    )
    if fault:
        raise Malformed(fr.FAULTS[fault])
    ends = bool(state[fr.TX_STANDALONE]) and state[fr.MAP_COUNT] == 0
    stream.step()
    if ends:
        stream.end_transaction()
    return None


def _query(stream: StreamState, event: bytes) -> Batch | None:
    kind = event[4]
    query = ev.parse_query(
        event[ev.HEADER_BYTES :],
        extra_header=13 if kind == ev.EXECUTE_LOAD_QUERY else 0,
        compressed=kind == ev.QUERY_COMPRESSED,
    )
    state = stream.state
    sql = _decode_sql(query, "mariadb" if stream.mariadb else "mysql")
    words = sql.upper().split(None, 2)[:2]
    if words[:1] == ["XA"] and len(words) == 2:
        return xa_events.xa_query(stream, words[1], sql)
    if words[:2] in (["RELEASE", "SAVEPOINT"], ["SAVEPOINT"]):
        stream.step()
        return None
    if words[:1] == ["ROLLBACK"] and state[fr.PHASE] != fr.IDLE:
        if state[fr.TX_ROW_EVENTS]:
            if state[fr.TX_COUNT]:
                return batch_cutting.cut_transactions(stream)
            error = UnsupportedRowFormat(
                "A transaction over tables of several storage engines was rolled back in part, and the binlog does "
                "not record which of its rows remain.",
                hint=f"{GAP_HINT} Change mapped tables to InnoDB. On MariaDB, create temporary tables outside of "
                "transactions with ROLLBACK TO SAVEPOINT.",
                **stream.event_position(),
            )
            if not stream.callbacks.omits(error, _tables_of_transaction(stream)):
                raise error
        stream.step()
        if len(words) == 1:
            stream.end_transaction()
        return None
    if state[fr.TX_COUNT]:
        return batch_cutting.cut_transactions(stream)
    _statement(stream, query, sql, struct.unpack_from("<I", event)[0], words)
    return None


def _tables_of_transaction(stream: StreamState) -> set[str]:
    """Return the mapped tables with rows in the open transaction; all known ones if pieces of it were returned."""
    state, slots = stream.state, stream.registry.slots
    listed = stream.events[int(state[fr.DONE_EVENTS]) : int(state[fr.EVENT_COUNT]), fr.SLOT]
    if len(listed) == state[fr.TX_ROW_EVENTS]:
        slots = [slots[number] for number in set(listed.tolist())]
    return {slot.schema.name for slot in slots}


def _statement(stream: StreamState, query: ev.Query, sql: str, timestamp: int, words: list[str]) -> None:
    state = stream.state
    inside = state[fr.PHASE] == fr.RUNNING
    if state[fr.PHASE] == fr.IDLE:  # a server without GTID events
        state[fr.TX_START] = stream.event_start()
        state[fr.TX_COMMIT_US] = timestamp * 1_000_000
        state[fr.TX_ORIGIN] = -1
        state[fr.TX_ENTRIES] = 0
    end = int(state[fr.INNER_END] or state[fr.FILE_NEXT])
    gtids = stream.gtids.text if inside else stream.gtids.text_with(int(state[fr.TX_ORIGIN]), int(state[fr.TX_GNO]))
    after = replace(stream.position_at(end), gtid_set=gtids)
    dml = bool(inside) and words[:1] != ["CREATE"]
    before = stream.position_at(int(state[fr.TX_START]))
    if query.takes_effect:
        statement = Statement(
            query.database,
            sql,
            before,
            after,
            timestamp,
            query.ansi_quotes,
            dml,
            stream.mariadb,
            query.sql_mode,
            is_part=bool(inside),
            microseconds=query.microseconds,
            time_zone=query.time_zone,
            explicit_timestamps=query.explicit_timestamps,
        )
        stream.callbacks.on_statement(statement)
        if not dml:
            stream.registry.forget_schemas()
    stream.step()
    if not inside:
        stream.end_transaction()


class _BytesReader:
    """A reader of a payload that is not compressed."""

    def __init__(self, content: memoryview) -> None:
        self._left = content

    def readinto(self, free: memoryview) -> int:
        count = min(len(free), len(self._left))
        free[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


_Handler = Callable[[StreamState, bytes], Batch | None]
_HANDLERS: dict[int, _Handler] = {
    ev.FORMAT_DESCRIPTION: _format_description,
    ev.ROTATE: _rotate,
    ev.HEARTBEAT: _heartbeat,
    ev.HEARTBEAT_V2: _heartbeat,
    ev.PREVIOUS_GTIDS: _gtid_set,
    ev.GTID_LIST: _gtid_set,
    ev.INCIDENT: _incident,
    ev.START_ENCRYPTION: read_encryption,
    ev.PARTIAL_ROW_DATA: _fragment,
    ev.TRANSACTION_PAYLOAD: _payload,
    ev.QUERY: _query,
    ev.QUERY_COMPRESSED: _query,
    ev.EXECUTE_LOAD_QUERY: _query,
    ev.XA_PREPARE: xa_events.xa_prepare,
    ev.MARIADB_GTID: xa_events.xa_gtid,
    **dict.fromkeys(ev.COMPRESSED_ROWS, _compressed_rows),
}
# These continue in the same Batch, or return the ended transactions themselves.
_CONTINUES = {ev.TRANSACTION_PAYLOAD, ev.QUERY, ev.QUERY_COMPRESSED, ev.EXECUTE_LOAD_QUERY, *ev.COMPRESSED_ROWS}


def _decode_sql(query: ev.Query, flavor: str) -> str:
    """Return the statement as text. Replace undecodable bytes, because most statements are not about mapped tables."""
    try:
        return text_of(query.sql, charset_of(query.client_collation, flavor) if query.client_collation else "utf8mb4")
    except CdcError:
        return query.sql.decode("utf-8", "replace")


def _server_error(packet: bytes) -> ServerError:
    code = int.from_bytes(packet[1:3], "little")
    marked = packet[3:4] == b"#"
    state = packet[4:9].decode("ascii", "replace") if marked else "HY000"
    return ServerError(code, state, packet[9 if marked else 3 :].decode("utf-8", "replace"))
