"""Events that are no rows: what each of them does to the stream's place, its transactions and its tables."""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from cdc.batch import Batch, Changes
from cdc.binlog import events as ev
from cdc.binlog import framing as fr
from cdc.binlog.charsets import charset_of
from cdc.binlog.checksum import crc32
from cdc.binlog.events import Malformed, ServerError, Statement
from cdc.binlog.tables import text_of
from cdc.binlog.xa import OpenXa, PreparedPiece, renumbered, xid_of
from cdc.errors import LEAVE_OUT, READ_OLDEST, CdcError, DecodeError, PositionLost, UnsupportedImage
from cdc.position import BinlogPosition, file_number

if TYPE_CHECKING:
    from cdc.binlog.buffer import StreamBuffer
    from cdc.binlog.gtids import Gtids
    from cdc.binlog.registry import Registry

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Source:
    """A range of bytes under scan: the received ones, a joined event, or what a payload unpacks to."""

    framed: bool
    end: int = 0  # of a joined event; the others end where their bytes do
    back_to: int = 0  # where the scan of the source below goes on
    reader: Any = None  # of a payload: gives plain bytes
    payload: bool = False


class ControlEvents(ABC):
    """The part of the decoder that handles what the scan leaves to Python.

    Calls: by the decoder, an event at a time. Never: takes an event whose effect must come behind a Batch that is not
    cut yet; it gives that Batch instead, and the scan comes here again.
    """

    position: BinlogPosition  # behind the last whole transaction returned
    ended: bool  # the server sent EOF: the end of a non-blocking dump
    skipped_types: dict[int, int]  # unknown events stepped over, and how many
    server_version: str  # as the format description says
    mariadb: bool
    _state: np.ndarray
    _events: np.ndarray
    _transactions: np.ndarray
    _map_ids: np.ndarray
    _map_slots: np.ndarray
    _batch_bytes: int
    _buffer: StreamBuffer
    _registry: Registry
    _gtids: Gtids
    _sources: list[Source]
    _unpacker: zstandard.ZstdDecompressor
    _on_statement: Callable[[Statement], None]
    _sequence: int
    _file: str
    _created: int | None  # header timestamp of the file's format description; None: it was not read yet
    _magic: bool
    _moved: bool
    _ready: deque[Batch]
    _xa: OpenXa | None
    _prepared: dict[str, OpenXa]
    _on_unknown_xa: Callable[[str, BinlogPosition], None]
    _leaves_out: Callable[[CdcError, Collection[str]], bool]

    @abstractmethod
    def _cut(self, full: bool) -> Batch | None: ...

    @abstractmethod
    def _cut_transactions(self) -> Batch: ...

    @abstractmethod
    def _decode(self, count: int, transactions: int) -> tuple[tuple[Changes, ...], int, int]: ...

    @property
    def open_xa(self) -> tuple[OpenXa, ...]:
        """XA transactions with rows of mapped tables that are not decided, in the order in which they began."""
        everyone = [*self._prepared.values(), *([self._xa] if self._xa else [])]
        return tuple(xa for xa in everyone if xa.rows)

    @property
    def inside_xa(self) -> bool:
        """Whether the events that come now belong to an XA transaction."""
        return self._xa is not None

    @property
    def is_ahead(self) -> bool:
        """Whether whole transactions wait to be returned: ``position`` lies before them."""
        return bool(self._state[fr.TX_COUNT])

    def _position(self, offset: int) -> BinlogPosition:
        return BinlogPosition(self._file, offset, self.position.server, self._gtids.text, self._created or 0)

    def _safe_position(self) -> BinlogPosition:
        """The position, or where the oldest undecided XA transaction with rows begins."""
        return next((xa.since for xa in self.open_xa), self.position)

    def _event_place(self) -> dict[str, object]:
        state = self._state
        place: dict[str, object] = {"file": self._file or "?", "offset": int(state[fr.FILE_AT])}
        at = int(state[fr.EVENT_AT])
        if at + ev.HEADER_BYTES <= len(self._buffer.data):
            place["event"] = ev.name_of(int(self._buffer.data[at + 4]))
        return place

    def _push(self, source: Source, at: int) -> None:
        self._sources.append(source)
        self._state[fr.AT] = at

    # -- control events ------------------------------------------------------------------------------------------

    def _judge(self, code: int) -> Batch | None:
        """Handle what the kernel left to Python; a Batch where that must come first."""
        state = self._state
        at, size = int(state[fr.EVENT_AT]), int(state[fr.EVENT_SIZE])
        data = self._buffer.data
        if code == fr.UNKNOWN_MAP:
            return self._learn_map(at, size)
        if code != fr.LOOK:
            if state[fr.TX_COUNT]:
                return self._cut_transactions()
            if code == fr.ERROR_PACKET:
                raise _server_error(data[at : at + size].tobytes())
            if code == fr.END_PACKET:
                self.ended = True
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
            if kind not in self.skipped_types:
                log.warning("events of type %d are not known, and stepped over; told once", kind)
            self.skipped_types[kind] = self.skipped_types.get(kind, 0) + 1
            self._step()
            return None
        if kind not in _GOES_ON and state[fr.TX_COUNT]:
            return self._cut_transactions()
        return handler(self, data[at:body_end].tobytes())

    def _step(self, in_the_file: bool = True) -> None:
        """Go behind the event. ``in_the_file``: False where it takes nothing of the file in spite of its header."""
        state = self._state
        if in_the_file:
            state[fr.FILE_AT] = state[fr.FILE_NEXT]
        state[fr.AT] = state[fr.EVENT_NEXT]
        state[fr.TX_ENTRIES] += 1
        state[fr.SEEN_EVENTS] += 1

    def _step_over_head(self, event: bytes) -> None:
        """Go behind an event of a file's head; where a dump begins behind it, what comes is a copy without a place."""
        log_pos = struct.unpack_from("<I", event, 13)[0]
        self._step(log_pos != 0)

    def _learn_map(self, at: int, size: int) -> Batch | None:
        crc = 4 if self._state[fr.CHECKSUM] and not self._state[fr.INNER_END] else 0
        content = self._buffer.data[at + ev.HEADER_BYTES + 6 : at + size - crc].tobytes()
        before = self._position(int(self._state[fr.TX_START]))
        try:
            self._registry.add(content, int(self._state[fr.MAP_HASH]), mariadb=self.mariadb, since=before)
        except (CdcError, Malformed):
            if self._state[fr.TX_COUNT]:
                return self._cut_transactions()  # the scan comes here again
            raise
        return None

    def _format_description(self, event: bytes) -> Batch | None:
        if self._state[fr.PHASE] != fr.IDLE:
            raise Malformed("a new file begins inside a transaction")
        created = struct.unpack_from("<I", event)[0]
        if self._created not in (None, created):
            raise self._new_log(f"A binary log {self._file} created at another time")
        self._created = created
        told = ev.parse_format_description(event)
        self.server_version, self.mariadb = told.server_version, told.mariadb
        self._state[fr.CHECKSUM] = int(told.checksum)
        self._state[fr.MAP_COUNT] = 0
        self._step_over_head(event)
        return None

    def _new_log(self, what: str) -> PositionLost:
        return PositionLost(
            f"{what} comes after {self.position}: the binary logs were reset or replaced.",
            mend=READ_OLDEST,
            position=self.position,
        )

    def _rotate(self, event: bytes) -> Batch | None:
        body = event[ev.HEADER_BYTES :]
        if self._state[fr.CHECKSUM] < 0 and len(body) > 12:
            at = int(self._state[fr.EVENT_AT])
            last = at + int(self._state[fr.EVENT_SIZE]) - 4
            if crc32(self._buffer.data, at, last) == int.from_bytes(event[-4:], "little"):
                body = body[:-4]  # the first packet of a stream says nowhere whether it has a checksum
        name, offset = ev.parse_rotate(body)
        flags = struct.unpack_from("<H", event, 17)[0]
        if name != self._file:
            before, now = file_number(self._file), file_number(name)
            if before and now and before[0] == now[0] and now[1] < before[1]:
                raise self._new_log(f"Binary log {name}")
            self._created = None
        self._step(in_the_file=False)
        self._moved = self._moved or (bool(self._file) and name != self._file)
        self._file = name
        self._state[fr.FILE_AT] = offset
        self._state[fr.MAP_COUNT] = 0
        if not self._sources[0].framed and not flags & ev.ARTIFICIAL_FLAG:
            self._magic = True
            self._state[fr.CHECKSUM] = -1
            self._state[fr.SKIP_UNTIL] = 0
        return None

    def _heartbeat(self, event: bytes) -> Batch | None:
        body = event[ev.HEADER_BYTES :]
        state = self._state
        if event[4] == ev.HEARTBEAT_V2:
            offset = ev.parse_heartbeat_v2(body) or 0
        else:
            offset = struct.unpack_from("<I", event, 13)[0]
            if offset:
                offset |= int(state[fr.FILE_AT]) & ~0xFFFFFFFF
        if offset > state[fr.FILE_AT] and state[fr.PHASE] == fr.IDLE:
            state[fr.FILE_AT] = offset
            self._moved = True
        self._step(in_the_file=False)
        return None

    def _gtid_set(self, event: bytes) -> Batch | None:
        body = event[ev.HEADER_BYTES :]
        if event[4] == ev.PREVIOUS_GTIDS:
            self._gtids.adopt(ev.parse_gtid_set(body))
        else:
            self._gtids.adopt_mariadb(ev.parse_gtid_list(body))
        self._step()
        return None

    def _incident(self, event: bytes) -> Batch | None:
        raise DecodeError(
            f"The server lost changes before they reached its binlog: {ev.parse_incident(event[ev.HEADER_BYTES :])}",
            mend="Find out why in the server's error log, then take a new snapshot of every table.",
            **self._event_place(),
        )

    def _encryption(self, event: bytes) -> Batch | None:
        if not self._sources[0].framed:
            raise DecodeError(
                "The binlog file is encrypted",
                mend="Read from the server instead of its files: over the network the stream is clear.",
                **self._event_place(),
            )
        self._step_over_head(event)
        return None

    def _fragment(self, event: bytes) -> Batch | None:
        raise DecodeError(
            "A row event comes in fragments (PARTIAL_ROW_DATA), which are not put together",
            mend="Raise the size from which the server fragments row events (SHOW VARIABLES LIKE '%fragment%'), or "
            "write smaller rows; then take a new snapshot of the table.",
            **self._event_place(),
        )

    def _payload(self, event: bytes) -> Batch | None:
        body = event[ev.HEADER_BYTES :]
        header = ev.parse_payload(body)
        content = memoryview(body)[header.offset : header.offset + header.size]
        reader: Any = _BytesReader(content)
        if header.zstd:
            reader = self._unpacker.stream_reader(content, read_across_frames=True)
        self._buffer.grow_inner(self._batch_bytes)
        behind = int(self._state[fr.EVENT_NEXT])
        self._state[fr.INNER_END] = self._state[fr.FILE_NEXT]
        self._state[fr.SEEN_EVENTS] += 1
        self._push(Source(False, 0, behind, reader, True), self._buffer.inner_end)
        return None

    def _compressed_rows(self, event: bytes) -> Batch | None:
        """MariaDB's packed row events: unpacked behind the received bytes and listed as plain ones."""
        state = self._state
        kind = (ev.WRITE_V1, ev.UPDATE_V1, ev.DELETE_V1)[(event[4] - ev.COMPRESSED_ROWS.start) % 3]
        version_2 = event[4] >= ev.COMPRESSED_ROWS.start + 3
        cursor = ev.Cursor(event, ev.HEADER_BYTES + 8)
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
        if self._buffer.inner_left < len(body) and state[fr.EVENT_COUNT] and self._buffer.inner_used:
            batch = self._cut(True)
            if batch is not None:
                return batch
        self._buffer.grow_inner(self._batch_bytes)
        at = self._buffer.put_inner(np.frombuffer(body, np.uint8))
        fault = fr.list_rows(
            self._buffer.data, kind, at, at + len(body), state, self._events, self._map_ids, self._map_slots
        )
        if fault:
            raise Malformed(fr.FAULTS[fault])
        ends = bool(state[fr.TX_STANDALONE]) and state[fr.MAP_COUNT] == 0
        self._step()
        if ends:
            self._end_transaction()
        return None

    def _query(self, event: bytes) -> Batch | None:
        kind = event[4]
        query = ev.parse_query(
            event[ev.HEADER_BYTES :],
            extra_header=13 if kind == ev.EXECUTE_LOAD_QUERY else 0,
            compressed=kind == ev.QUERY_COMPRESSED,
        )
        state = self._state
        sql = _decode_sql(query, "mariadb" if self.mariadb else "mysql")
        words = sql.upper().split(None, 2)[:2]
        if words[:1] == ["XA"] and len(words) == 2:
            return self._xa_query(words[1], sql)
        if words[:2] in (["RELEASE", "SAVEPOINT"], ["SAVEPOINT"]):
            self._step()
            return None
        if words[:1] == ["ROLLBACK"] and state[fr.PHASE] != fr.IDLE:
            if state[fr.TX_ROW_EVENTS]:
                if state[fr.TX_COUNT]:
                    return self._cut_transactions()
                error = UnsupportedImage(
                    "A transaction over tables of several storage engines was rolled back in part; which of its rows "
                    "stand the binlog does not say",
                    mend=f"{LEAVE_OUT} Change mapped tables to InnoDB; on MariaDB make temporary tables outside of "
                    "transactions that go back to a savepoint.",
                    **self._event_place(),
                )
                if not self._leaves_out(error, self._tables_of_transaction()):
                    raise error
            self._step()
            if len(words) == 1:
                self._end_transaction()
            return None
        if state[fr.TX_COUNT]:
            return self._cut_transactions()
        self._statement(query, sql, struct.unpack_from("<I", event)[0], words)
        return None

    def _tables_of_transaction(self) -> set[str]:
        """Mapped tables with rows in the open transaction; all that have had any where pieces of it have gone out."""
        state, slots = self._state, self._registry.slots
        listed = self._events[int(state[fr.DONE_EVENTS]) : int(state[fr.EVENT_COUNT]), fr.SLOT]
        if len(listed) == state[fr.TX_ROW_EVENTS]:
            slots = [slots[number] for number in set(listed.tolist())]
        return {slot.schema.name for slot in slots}

    def _statement(self, query: ev.Query, sql: str, timestamp: int, words: list[str]) -> None:
        state = self._state
        inside = state[fr.PHASE] == fr.RUNNING
        if state[fr.PHASE] == fr.IDLE:  # a server without GTID events
            state[fr.TX_START] = state[fr.FILE_AT]
            state[fr.TX_COMMIT_US] = timestamp * 1_000_000
            state[fr.TX_ORIGIN] = -1
            state[fr.TX_ENTRIES] = 0
        end = int(state[fr.INNER_END] or state[fr.FILE_NEXT])
        gtids = self._gtids.text if inside else self._gtids.text_with(int(state[fr.TX_ORIGIN]), int(state[fr.TX_GNO]))
        after = BinlogPosition(self._file, end, self.position.server, gtids, self._created or 0)
        dml = bool(inside) and words[:1] != ["CREATE"]
        before = self._position(int(state[fr.TX_START]))
        if query.takes_effect:
            statement = Statement(
                query.database, sql, before, after, timestamp, query.ansi_quotes, dml, mariadb=self.mariadb
            )
            self._on_statement(statement)
            if not dml:
                self._registry.forget_schemas()
        self._step()
        if not inside:
            self._end_transaction()

    def _end_transaction(self) -> None:
        fr.end_transaction(self._state, self._transactions, int(self._state[fr.FILE_AT]))

    # -- XA ------------------------------------------------------------------------------------------------------

    def _xa_query(self, verb: str, sql: str) -> Batch | None:
        state = self._state
        if state[fr.TX_COUNT]:
            return self._cut_transactions()
        if verb in ("START", "BEGIN"):
            state[fr.PHASE] = fr.RUNNING
            self._xa = OpenXa(self._position(int(state[fr.TX_START])), int(state[fr.TX_COMMIT_US]))
            self._step()
        elif verb == "END":
            self._step()
        elif verb in ("COMMIT", "ROLLBACK"):
            if state[fr.PHASE] == fr.IDLE:
                raise Malformed("XA COMMIT outside a transaction")
            xid = xid_of(sql) or ""
            if verb == "COMMIT" and xid not in self._prepared:
                self._on_unknown_xa(xid, self._position(int(state[fr.TX_START])))
            prepared = self._prepared.pop(xid, None)
            commit_us = int(state[fr.TX_COMMIT_US])
            self._step()
            self._end_transaction()
            if prepared is not None and verb == "COMMIT":
                self._release(prepared, commit_us)
        else:
            self._step()
        return None

    def _xa_gtid(self, event: bytes) -> Batch | None:
        """MariaDB has no XA START: a flag of the GTID tells that what follows will be prepared."""
        started_us = struct.unpack_from("<I", event)[0] * 1_000_000
        self._xa = OpenXa(self._position(int(self._state[fr.FILE_AT])), started_us)
        self._state[fr.XA_ANNOUNCED] = 1
        return None

    def _xa_prepare(self, event: bytes) -> Batch | None:
        state = self._state
        one_phase, xid = ev.parse_xa_prepare(event[ev.HEADER_BYTES :])
        open_xa = self._xa
        if open_xa is None:
            raise Malformed("XA PREPARE without XA START")
        count, entries = int(state[fr.EVENT_COUNT]), int(state[fr.TX_ENTRIES])
        if count:
            changes, rows, size_of_rows = self._decode(count, 0)
            self._stash(changes, rows, size_of_rows, entries)
        self._xa = None
        commit_us = int(state[fr.TX_COMMIT_US])
        self._step()
        self._end_transaction()
        if one_phase:
            self._release(open_xa, commit_us)
        else:
            open_xa.xid = xid
            self._prepared[xid] = open_xa
        return None

    def _stash(self, changes: tuple[Changes, ...], rows: int, size: int, entries: int) -> None:
        assert self._xa is not None
        self._xa.pieces.append(PreparedPiece(changes, rows, size, entries))
        self._xa.rows += rows
        self._xa.bytes += sum(change.rows.get_total_buffer_size() for change in changes)

    def _release(self, prepared: OpenXa, commit_us: int) -> None:
        """Hand out a decided XA transaction: its pieces, then the end that the transaction list holds."""
        place = self._safe_position()
        for piece in prepared.pieces:
            changes = tuple(renumbered(change, self._sequence) for change in piece.changes)
            self._ready.append(
                Batch(changes, place, place, False, piece.entries, piece.rows, piece.bytes, commit_us, commit_us)
            )
        self._sequence += prepared.rows


class _BytesReader:
    """A payload that is not packed, read like one that is."""

    def __init__(self, content: memoryview) -> None:
        self._left = content

    def readinto(self, room: memoryview) -> int:
        count = min(len(room), len(self._left))
        room[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


_Handler = Callable[[ControlEvents, bytes], Batch | None]
_HANDLERS: dict[int, _Handler] = {
    ev.FORMAT_DESCRIPTION: ControlEvents._format_description,
    ev.ROTATE: ControlEvents._rotate,
    ev.HEARTBEAT: ControlEvents._heartbeat,
    ev.HEARTBEAT_V2: ControlEvents._heartbeat,
    ev.PREVIOUS_GTIDS: ControlEvents._gtid_set,
    ev.GTID_LIST: ControlEvents._gtid_set,
    ev.INCIDENT: ControlEvents._incident,
    ev.START_ENCRYPTION: ControlEvents._encryption,
    ev.PARTIAL_ROW_DATA: ControlEvents._fragment,
    ev.TRANSACTION_PAYLOAD: ControlEvents._payload,
    ev.QUERY: ControlEvents._query,
    ev.QUERY_COMPRESSED: ControlEvents._query,
    ev.EXECUTE_LOAD_QUERY: ControlEvents._query,
    ev.XA_PREPARE: ControlEvents._xa_prepare,
    ev.MARIADB_GTID: ControlEvents._xa_gtid,
    **dict.fromkeys(ev.COMPRESSED_ROWS, ControlEvents._compressed_rows),
}
# these go on in the same Batch, or see to it themselves that ended transactions go out first
_GOES_ON = {ev.TRANSACTION_PAYLOAD, ev.QUERY, ev.QUERY_COMPRESSED, ev.EXECUTE_LOAD_QUERY, *ev.COMPRESSED_ROWS}


def _decode_sql(query: ev.Query, flavor: str) -> str:
    """The statement as text. What cannot be read is replaced, since most statements are of no concern to us."""
    try:
        return text_of(query.sql, charset_of(query.client_collation, flavor) if query.client_collation else "utf8mb4")
    except CdcError:
        return query.sql.decode("utf-8", "replace")


def _server_error(packet: bytes) -> ServerError:
    code = int.from_bytes(packet[1:3], "little")
    marked = packet[3:4] == b"#"
    state = packet[4:9].decode("ascii", "replace") if marked else "HY000"
    return ServerError(code, state, packet[9 if marked else 3 :].decode("utf-8", "replace"))
