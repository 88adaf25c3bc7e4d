"""Bytes to Batches: what a receiver feeds with a server's stream or a file's bytes, and takes Batches from."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import zstandard

from cdc.batch import Batch, Changes
from cdc.binlog import events as ev
from cdc.binlog import framing as fr
from cdc.binlog import rows as row_events
from cdc.binlog import walk
from cdc.binlog.buffer import StreamBuffer
from cdc.binlog.charsets import charset_of
from cdc.binlog.checksum import crc32
from cdc.binlog.events import Malformed, ServerError, Statement
from cdc.binlog.gtids import Gtids
from cdc.binlog.registry import Registry
from cdc.binlog.tables import text_of
from cdc.binlog.xa import OpenXa, PreparedPiece, renumbered, xid_of
from cdc.errors import CdcError, DecodeError, SourceRewound, UnsupportedImage
from cdc.position import BinlogPosition
from cdc.schema import TableSchema

if TYPE_CHECKING:
    from cdc.binlog.tables import TableMap
    from cdc.receiver.base import Selection

_MAX_LISTED_EVENTS = 1 << 16  # row events of one Batch: a million bytes of bookkeeping
_MAX_TRANSACTIONS = 1 << 16
_MAX_MAPS = 1 << 12  # tables of one statement; MySQL joins 61 at most, triggers and cascades add some
_ORIGINS = 64  # GTID sources to begin with
_DAMAGED = "Compare the file with the server's own (mysqlbinlog --verify-binlog-checksum); then take a new snapshot."
_MAGIC = b"\xfebin"
_ENCRYPTED_MAGIC = b"\xfdbin"


class TableSource(Protocol):
    """Schemas of tables whose TABLE_MAP does not carry names, key and labels (row metadata is not FULL; MariaDB)."""

    def schema(self, table_map: TableMap) -> TableSchema | None:
        """The table as it is at the place read up to; None: no table to follow (a sequence), its rows are skipped.

        Calls: once per distinct TABLE_MAP, and again after each DDL statement. Raises: SchemaMismatch.
        """


@dataclass(slots=True)
class _Source:
    """A range of bytes under scan: the received ones, a joined event, or what a payload unpacks to."""

    framed: bool
    end: int = 0  # of a joined event; the others end where their bytes do
    back_to: int = 0  # where the scan of the source below goes on
    reader: Any = None  # of a payload: gives plain bytes
    payload: bool = False


class BinlogDecoder:
    """One stream's decoder: framing, control events, transactions, positions, rows.

    Calls: ``room`` and ``feed`` with bytes, then ``next`` until None; one thread. Kernels release the GIL.
    Never: does I/O, or keeps a reference from a Batch into its buffer.
    """

    position: BinlogPosition  # behind the last whole transaction returned
    ended: bool  # the server sent EOF: the end of a non-blocking dump
    skipped_types: dict[int, int]  # unknown events stepped over, and how many

    def __init__(
        self,
        *,
        selection: Selection,
        tables: TableSource,
        on_statement: Callable[[Statement], None],
        start: BinlogPosition,
        sequence: int,
        framed: bool,
        skip_rows: int = 0,
        batch_bytes: int = 4 << 20,
    ) -> None:
        """``framed``: MySQL packets from a socket, else files' bytes from their magic on. ``sequence``: of the last row
        before. ``skip_rows``: rows of the first transaction that were handed out before a reconnect, dropped now."""
        self.position = start
        self.ended = False
        self.server_version = ""
        self.mariadb = False
        self.skipped_types = {}
        self._on_statement = on_statement
        self._sequence = sequence
        self._skip_rows = skip_rows
        self._batch_bytes = batch_bytes
        self._file = start.file
        self._state = np.zeros(fr.STATE_SIZE, np.int64)
        self._state[fr.CHECKSUM] = -1
        self._state[fr.FILE_AT] = start.offset
        self._state[fr.TX_ORIGIN] = -1
        self._events = np.zeros((_MAX_LISTED_EVENTS, fr.EVENT_FIELDS), np.int64)
        self._transactions = np.zeros((_MAX_TRANSACTIONS, fr.TRANSACTION_FIELDS), np.int64)
        self._map_ids = np.zeros(_MAX_MAPS, np.int64)
        self._map_slots = np.zeros(_MAX_MAPS, np.int64)
        self._buffer = StreamBuffer(2 * batch_bytes, self._state, self._events)
        self._registry = Registry.empty(selection, tables)
        self._gtids = Gtids(start.gtid_set, _ORIGINS)
        self._scratch = row_events.Scratch()
        self._sources = [_Source(framed)]
        self._ready: deque[Batch] = deque()
        self._magic = not framed
        self._moved = False
        self._failure: Exception | None = None
        self._xa: OpenXa | None = None  # the XA transaction whose rows come now
        self._prepared: dict[str, OpenXa] = {}
        if not framed:
            self._state[fr.SKIP_UNTIL] = start.offset
            self._state[fr.FILE_AT] = 4

    # -- bytes in ------------------------------------------------------------------------------------------------

    def begin_file(self, name: str, offset: int = 4) -> None:
        """The bytes fed next are those of the file ``name``, from its magic on; events before ``offset`` are dropped.

        Calls: between files on disk, after ``next`` gave None. Raises: DecodeError - the file before ended inside an
        event or a transaction.
        """
        if self.unread or self._state[fr.PHASE] != fr.IDLE:
            raise self._error("The file ends inside an event or a transaction", file=self._file)
        self._file = name
        self._magic = True
        self._state[fr.FILE_AT] = 4
        self._state[fr.SKIP_UNTIL] = offset
        self._state[fr.CHECKSUM] = -1
        self._moved = True

    @property
    def unread(self) -> int:
        """Bytes fed that are not yet a whole event."""
        return int(self._buffer.filled - self._state[fr.AT]) if len(self._sources) == 1 else 1

    def room(self) -> memoryview:
        """A writable place of at least 64 KiB for ``recv_into`` or ``readinto``; valid until the next call."""
        return self._buffer.room(pinned=len(self._sources) > 1)

    def feed(self, byte_count: int) -> None:
        """``byte_count`` bytes were written into ``room()``."""
        self._buffer.filled += byte_count

    # -- Batches out ---------------------------------------------------------------------------------------------

    def next(self) -> Batch | None:
        """The next Batch, or None when more bytes are needed.

        Raises, after everything before it was returned: ServerError - an ERR packet; DecodeError, UnsupportedImage;
        what ``on_statement``, ``Selection.reads`` and ``TableSource.schema`` raise. The same again when called again.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return self._next()
        except Malformed as error:
            self._failure = self._error(str(error).capitalize(), **self._event_place())
            raise self._failure from error
        except (CdcError, ServerError) as error:
            self._failure = error
            raise

    @property
    def open_xa(self) -> tuple[OpenXa, ...]:
        """XA transactions with rows of mapped tables that are not decided: since when, and how large."""
        everyone = [*self._prepared.values(), *([self._xa] if self._xa else [])]
        return tuple(xa for xa in everyone if xa.rows)

    @property
    def impossible_dates(self) -> dict[tuple[str, str], int]:
        """Zero and impossible dates that became NULL, by table and column."""
        counts: dict[tuple[str, str], int] = {}
        for slot in self._registry.slots:
            for column, count in slot.impossible_dates.items():
                key = (slot.schema.name, column)
                counts[key] = counts.get(key, 0) + count
        return counts

    @property
    def seen_events(self) -> int:
        """Events of any kind, since the start."""
        return int(self._state[fr.SEEN_EVENTS])

    def forget_schemas(self) -> None:
        """Ask the TableSource again for every table whose map does not tell all. Done by itself after DDL."""
        self._registry.forget_schemas()

    def _next(self) -> Batch | None:
        if self._magic and not self._read_magic():
            return None
        while True:
            if self._ready:
                return self._ready.popleft()
            code = self._scan()
            if code in (fr.NEED_MORE, fr.FULL):
                batch = self._cut(code == fr.FULL)
                if batch is not None:
                    return batch
                if code == fr.NEED_MORE and not self._refill():
                    return self._moved_batch()
            elif code == fr.SPLIT:
                joined = self._buffer.squeeze()
                if joined is None:
                    return self._cut(False) or self._moved_batch()
                at, size = joined
                self._push(_Source(False, at + size, at + size), at)
            elif code == fr.UNKNOWN_ORIGIN:
                self._gtids.grow()
            elif (batch := self._judge(code)) is not None:
                return batch
            if self._magic and not self._read_magic():
                return self._cut(False) or self._moved_batch()

    def _scan(self) -> int:
        source = self._sources[-1]
        end = source.end if source.end else self._buffer.inner_end if source.payload else self._buffer.filled
        registry, buffer = self._registry, self._buffer
        return int(
            fr.scan(
                buffer.data, end, source.framed, self._batch_bytes, self._state, self._events, self._transactions,
                self._map_ids, self._map_slots, registry.index, registry.known, registry.arena, self._gtids.origins,
            )
        )  # fmt: skip

    def _push(self, source: _Source, at: int) -> None:
        self._sources.append(source)
        self._state[fr.AT] = at

    def _refill(self) -> bool:
        """Get more bytes for the source under scan, or go back to the one below; False: the receiver must feed."""
        source = self._sources[-1]
        if len(self._sources) == 1:
            return False
        if source.payload:
            at = int(self._state[fr.AT])
            if self._state[fr.EVENT_COUNT] == 0:
                self._state[fr.AT] = at = self._buffer.keep_inner_tail(at)
            if self._buffer.inner_left == 0:
                self._buffer.grow_inner(max(2 * self._buffer.inner_size, self._batch_bytes))
            try:
                count = source.reader.readinto(self._buffer.inner_room())
            except zstandard.ZstdError as error:
                raise Malformed(f"the transaction payload is damaged: {error}") from error
            if count:
                self._buffer.inner_used += count
                return True
            if int(self._state[fr.AT]) != self._buffer.inner_end:
                raise Malformed("the transaction payload ends inside an event")
        elif int(self._state[fr.AT]) != source.end:
            raise Malformed("the event's size does not fit its packets")
        self._sources.pop()
        if source.payload:
            self._state[fr.FILE_AT] = self._state[fr.INNER_END]
            self._state[fr.INNER_END] = 0
            if self._state[fr.PHASE] != fr.IDLE and self._xa is None:
                raise Malformed("the transaction payload ends inside its transaction")
        self._state[fr.AT] = source.back_to
        return True

    def _moved_batch(self) -> Batch | None:
        """A Batch without rows that tells a new Position: a file ended, or the server skipped a stretch."""
        if not self._moved or self._state[fr.PHASE] != fr.IDLE:
            return None
        self._moved = False
        first = self._safe_position()
        self.position = self._position(int(self._state[fr.FILE_AT]))
        last = self._safe_position()
        return Batch((), first, last, not self.open_xa, 0, 0, 0, None, None) if last != first else None

    def _position(self, offset: int) -> BinlogPosition:
        return BinlogPosition(self._file, offset, self.position.server, self._gtids.text)

    def _safe_position(self) -> BinlogPosition:
        """The position, or where the oldest undecided XA transaction with rows begins."""
        return min((xa.since for xa in self.open_xa), key=lambda p: (p.file, p.offset), default=self.position)

    # -- cutting Batches -----------------------------------------------------------------------------------------

    def _cut(self, full: bool) -> Batch | None:
        """A Batch of the transactions that ended; else, if there is no room for more, of a piece of the open one."""
        state = self._state
        if state[fr.TX_COUNT]:
            return self._cut_transactions()
        if not full or not state[fr.EVENT_COUNT]:
            return None
        count = int(state[fr.EVENT_COUNT])
        commit_us = int(state[fr.TX_COMMIT_US])
        entries, state[fr.TX_ENTRIES] = int(state[fr.TX_ENTRIES]), 0
        changes, rows, size = self._decode(count, 0)
        if self._xa is not None:
            self._stash(changes, rows, size, entries)
            return None
        place = self._safe_position()
        return Batch(changes, place, place, False, entries, rows, size, commit_us, commit_us)

    def _cut_transactions(self) -> Batch:
        state = self._state
        count = int(state[fr.TX_COUNT])
        first = self._safe_position()
        changes, rows, size = self._decode(int(state[fr.DONE_EVENTS]), count)
        count = int(state[fr.TX_COUNT])  # fewer where rows of a later one are faulty
        ended = self._transactions[:count]
        self._gtids.add(ended)
        self.position = self._position(int(ended[-1, fr.STOP_AT]))
        entries = int(ended[:, fr.ENTRIES].sum())
        oldest, newest = int(ended[0, fr.COMMIT_US]), int(ended[-1, fr.COMMIT_US])
        state[fr.TX_COUNT] = 0
        held = bool(self.open_xa)
        return Batch(changes, first, self._safe_position(), not held, entries, rows, size, oldest, newest)

    def _decode(self, count: int, transactions: int) -> tuple[tuple[Changes, ...], int, int]:
        """Rows of the first ``count`` listed events, which then leave the list; their number and source bytes."""
        found: list[row_events.Decoded] = []
        event_rows = np.zeros(count, np.int64)
        fault = self._decode_slots(count, event_rows, found) if count else None
        if fault is not None:
            error = self._row_error(fault)
            before = int((self._transactions[:transactions, fr.LAST_EVENT] <= fault.event).sum())
            if not before:
                raise error
            self._failure = error  # what is whole goes out first
            self._state[fr.TX_COUNT] = before
            count = int(self._transactions[before - 1, fr.LAST_EVENT])
            transactions = before
            found, event_rows = [], np.zeros(count, np.int64)
            if count and self._decode_slots(count, event_rows, found) is not None:
                raise error
        total = int(event_rows.sum())
        dropped = self._dropped(event_rows, transactions) if self._skip_rows else 0
        base = 0 if self._xa is not None else self._sequence
        first_of_event = np.cumsum(event_rows) - event_rows + (base + 1 - dropped)
        if self._xa is not None:
            first_of_event += self._xa.rows
        else:
            self._sequence += total - dropped
        changes = [decoded.numbered(event_rows, first_of_event) for decoded in found if decoded.rows]
        if dropped:
            changes = [kept for change in changes if (kept := _behind(change, base)) is not None]
        listed = self._events[:count]
        size = int((listed[:, fr.END] - listed[:, fr.BITMAPS_AT]).sum())
        self._drop_events(count)
        return tuple(changes), total - dropped, size

    def _decode_slots(
        self, count: int, event_rows: np.ndarray, found: list[row_events.Decoded]
    ) -> row_events.Fault | None:
        slots = self._registry.slots
        order = np.empty(count, np.int64)
        bounds = np.empty(len(slots) + 1, np.int64)
        walk.group_events(self._events, 0, count, len(slots), order, bounds)
        used = np.flatnonzero(np.diff(bounds))
        faults = []
        for slot_number in used.tolist():
            mine = order[bounds[slot_number] : bounds[slot_number + 1]]
            decoded = self._decode_slot(slots[slot_number], mine, event_rows)
            if isinstance(decoded, row_events.Fault):
                faults.append(decoded)
            else:
                found.append(decoded)
        found.sort(key=lambda decoded: int(decoded.order[0]))
        return min(faults, key=lambda fault: fault.event, default=None)

    def _decode_slot(
        self, slot: row_events.Slot, mine: np.ndarray, event_rows: np.ndarray
    ) -> row_events.Decoded | row_events.Fault:
        documents = _NO_DOCUMENTS
        try:
            if (self._events[mine, fr.KIND] == ev.PARTIAL_UPDATE).any():
                made = row_events.json_documents(slot, self._buffer.data, self._events, mine)
                if isinstance(made, row_events.Fault):
                    return made
                plain, documents = made
                documents = documents + np.array([self._buffer.put_inner(plain), 0])
            return row_events.decode(
                slot, self._buffer.data, self._events, mine, event_rows, documents, self._scratch
            )
        except DecodeError as error:
            row = int(error.where.get("row", 0))  # type: ignore[call-overload]
            behind = np.cumsum(event_rows[mine])
            event = int(mine[min(int(np.searchsorted(behind, row, "right")), len(mine) - 1)])
            return row_events.Fault(DecodeError, error.message, error.mend, event, str(error.where.get("column", "")))
        except Malformed as error:
            return row_events.Fault(DecodeError, str(error).capitalize(), _DAMAGED, int(mine[0]))

    def _dropped(self, event_rows: np.ndarray, transactions: int) -> int:
        """Rows that were handed out before a reconnect."""
        last = int(self._transactions[0, fr.LAST_EVENT]) if transactions else len(event_rows)
        there = int(event_rows[:last].sum())
        dropped = min(self._skip_rows, there)
        self._skip_rows -= dropped
        if transactions and self._skip_rows:
            raise SourceRewound(
                f"The transaction has {self._skip_rows} rows less than were read of it before",
                mend="It is read again from its beginning.",
                position=self.position,
            )
        return dropped

    def _drop_events(self, count: int) -> None:
        state = self._state
        left = int(state[fr.EVENT_COUNT]) - count
        if left:
            self._events[:left] = self._events[count : count + left].copy()
        state[fr.EVENT_COUNT] = left
        state[fr.DONE_EVENTS] = max(int(state[fr.DONE_EVENTS]) - count, 0)
        listed = self._events[:left]
        state[fr.PENDING_BYTES] = int((listed[:, fr.END] - listed[:, fr.BITMAPS_AT]).sum())
        if not left and not any(source.payload for source in self._sources):
            self._buffer.drop_inner()

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
            self.skipped_types[kind] = self.skipped_types.get(kind, 0) + 1
            self._step(size)
            return None
        if kind not in _GOES_ON and state[fr.TX_COUNT]:
            return self._cut_transactions()
        return handler(self, data[at:body_end].tobytes(), size)

    def _step(self, size: int) -> None:
        """Go behind the event, which takes ``size`` bytes of the file (0: it is not in the file)."""
        state = self._state
        if state[fr.EVENT_AT] and not state[fr.INNER_END]:
            flags = int(self._buffer.data[state[fr.EVENT_AT] + 17])
            state[fr.FILE_AT] += 0 if flags & ev.ARTIFICIAL_FLAG else size
        elif not state[fr.INNER_END]:
            state[fr.FILE_AT] += size
        state[fr.AT] = state[fr.EVENT_NEXT]
        state[fr.TX_ENTRIES] += 1
        state[fr.SEEN_EVENTS] += 1

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

    def _format_description(self, event: bytes, size: int) -> Batch | None:
        if self._state[fr.PHASE] != fr.IDLE:
            raise Malformed("a new file begins inside a transaction")
        told = ev.parse_format_description(event)
        self.server_version, self.mariadb = told.server_version, told.mariadb
        self._state[fr.CHECKSUM] = int(told.checksum)
        log_pos = struct.unpack_from("<I", event, 13)[0]
        self._state[fr.MAP_COUNT] = 0
        self._step(size if log_pos else 0)
        return None

    def _rotate(self, event: bytes, size: int) -> Batch | None:
        body = event[ev.HEADER_BYTES :]
        if self._state[fr.CHECKSUM] < 0 and len(body) > 12:
            at = int(self._state[fr.EVENT_AT])
            last = at + size - 4
            if crc32(self._buffer.data, at, last) == int.from_bytes(event[-4:], "little"):
                body = body[:-4]  # the first packet of a stream says nowhere whether it has a checksum
        name, offset = ev.parse_rotate(body)
        flags = struct.unpack_from("<H", event, 17)[0]
        self._step(0)
        self._moved = self._moved or (bool(self._file) and name != self._file)
        self._file = name
        self._state[fr.FILE_AT] = offset
        self._state[fr.MAP_COUNT] = 0
        if not self._sources[0].framed and not flags & ev.ARTIFICIAL_FLAG:
            self._magic = True
            self._state[fr.CHECKSUM] = -1
            self._state[fr.SKIP_UNTIL] = 0
        return None

    def _heartbeat(self, event: bytes, size: int) -> Batch | None:
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
        self._step(0)
        return None

    def _gtid_set(self, event: bytes, size: int) -> Batch | None:
        body = event[ev.HEADER_BYTES :]
        if event[4] == ev.PREVIOUS_GTIDS:
            self._gtids.adopt(ev.parse_gtid_set(body))
        else:
            self._gtids.adopt_mariadb(ev.parse_gtid_list(body))
        self._step(size)
        return None

    def _incident(self, event: bytes, size: int) -> Batch | None:
        raise DecodeError(
            f"The server lost changes before they reached its binlog: {ev.parse_incident(event[ev.HEADER_BYTES :])}",
            mend="Find out why in the server's error log, then take a new snapshot of every table.",
            **self._event_place(),
        )

    def _encryption(self, event: bytes, size: int) -> Batch | None:
        raise DecodeError(
            "The binlog file is encrypted",
            mend="Read from the server instead of its files: over the network the stream is clear.",
            **self._event_place(),
        )

    def _payload(self, event: bytes, size: int) -> Batch | None:
        body = event[ev.HEADER_BYTES :]
        header = ev.parse_payload(body)
        content = memoryview(body)[header.offset : header.offset + header.size]
        reader: Any = _BytesReader(content)
        if header.zstd:
            reader = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True)
        self._buffer.grow_inner(self._batch_bytes)
        behind = int(self._state[fr.EVENT_NEXT])
        self._state[fr.INNER_END] = int(self._state[fr.FILE_AT]) + size
        self._state[fr.SEEN_EVENTS] += 1
        self._push(_Source(False, 0, behind, reader, True), self._buffer.inner_end)
        return None

    def _compressed_rows(self, event: bytes, size: int) -> Batch | None:
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
        self._step(size)
        if ends:
            self._end_transaction()
        return None

    def _query(self, event: bytes, size: int) -> Batch | None:
        kind = event[4]
        query = ev.parse_query(
            event[ev.HEADER_BYTES :],
            extra_header=13 if kind == ev.EXECUTE_LOAD_QUERY else 0,
            compressed=kind == ev.QUERY_COMPRESSED,
        )
        state = self._state
        sql = _decode_sql(query)
        words = sql.upper().split(None, 2)[:2]
        if words[:1] == ["XA"] and len(words) == 2:
            return self._xa_query(words[1], sql, size)
        if words[:2] in (["RELEASE", "SAVEPOINT"], ["SAVEPOINT"]):
            self._step(size)
            return None
        if words[:1] == ["ROLLBACK"] and state[fr.PHASE] != fr.IDLE:
            if state[fr.TX_ROW_EVENTS]:
                if state[fr.TX_COUNT]:
                    return self._cut_transactions()
                raise UnsupportedImage(
                    "A transaction over tables of several storage engines was rolled back in part; which of its rows "
                    "stand the binlog does not say",
                    mend="Change mapped tables to InnoDB; then take a new snapshot of them.",
                    **self._event_place(),
                )
            self._step(size)
            if len(words) == 1:
                self._end_transaction()
            return None
        if state[fr.TX_COUNT]:
            return self._cut_transactions()
        self._statement(query, sql, size, struct.unpack_from("<I", event)[0], words)
        return None

    def _statement(self, query: ev.Query, sql: str, size: int, timestamp: int, words: list[str]) -> None:
        state = self._state
        inside = state[fr.PHASE] == fr.RUNNING
        if state[fr.PHASE] == fr.IDLE:  # a server without GTID events
            state[fr.TX_START] = state[fr.FILE_AT]
            state[fr.TX_COMMIT_US] = timestamp * 1_000_000
            state[fr.TX_ORIGIN] = -1
            state[fr.TX_ENTRIES] = 0
        end = int(state[fr.INNER_END] or state[fr.FILE_AT] + size)
        gtids = self._gtids.text if inside else self._gtids.text_with(int(state[fr.TX_ORIGIN]), int(state[fr.TX_GNO]))
        after = BinlogPosition(self._file, end, self.position.server, gtids)
        dml = bool(inside) and words[:1] != ["CREATE"]
        before = self._position(int(state[fr.TX_START]))
        self._on_statement(Statement(query.database, sql, before, after, timestamp, query.ansi_quotes, dml))
        if not dml:
            self._registry.forget_schemas()
        self._step(size)
        if not inside:
            self._end_transaction()

    def _end_transaction(self) -> None:
        fr.end_transaction(self._state, self._transactions, int(self._state[fr.FILE_AT]))

    # -- XA ------------------------------------------------------------------------------------------------------

    def _xa_query(self, verb: str, sql: str, size: int) -> Batch | None:
        state = self._state
        if state[fr.TX_COUNT]:
            return self._cut_transactions()
        if verb in ("START", "BEGIN"):
            state[fr.PHASE] = fr.RUNNING
            self._xa = OpenXa(self._position(int(state[fr.TX_START])), int(state[fr.TX_COMMIT_US]))
            self._step(size)
        elif verb == "END":
            self._step(size)
        elif verb in ("COMMIT", "ROLLBACK"):
            if state[fr.PHASE] == fr.IDLE:
                raise Malformed("XA COMMIT outside a transaction")
            prepared = self._prepared.pop(xid_of(sql) or "", None)
            commit_us = int(state[fr.TX_COMMIT_US])
            self._step(size)
            self._end_transaction()
            if prepared is not None and verb == "COMMIT":
                self._release(prepared, commit_us)
        else:
            self._step(size)
        return None

    def _xa_prepare(self, event: bytes, size: int) -> Batch | None:
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
        self._step(size)
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

    # -- errors --------------------------------------------------------------------------------------------------

    def _event_place(self) -> dict[str, object]:
        state = self._state
        place: dict[str, object] = {"file": self._file or "?", "offset": int(state[fr.FILE_AT])}
        at = int(state[fr.EVENT_AT])
        if at + ev.HEADER_BYTES <= len(self._buffer.data):
            place["event"] = ev.name_of(int(self._buffer.data[at + 4]))
        return place

    def _error(self, message: str, **where: object) -> DecodeError:
        return DecodeError(message, mend=_DAMAGED, **where)

    def _row_error(self, fault: row_events.Fault) -> CdcError:
        event = self._events[fault.event]
        where: dict[str, object] = {
            "file": self._file,
            "offset": int(event[fr.EVENT_FILE_AT]),
            "event": ev.name_of(int(event[fr.KIND])),
            "table": self._registry.slots[int(event[fr.SLOT])].schema.name,
        }
        if fault.column:
            where["column"] = fault.column
        return fault.error(fault.message, mend=fault.mend, **where)

    def _read_magic(self) -> bool:
        """Step over the magic of a file; False: it is not there yet."""
        at = int(self._state[fr.AT])
        if self._buffer.filled - at < 4:
            self._state[fr.NEED] = 4
            return False
        magic = self._buffer.data[at : at + 4].tobytes()
        if magic == _ENCRYPTED_MAGIC:
            self._encryption(b"", 0)
        if magic != _MAGIC:
            raise DecodeError("This is no binlog file", mend="Name the binlog files only.", file=self._file)
        self._state[fr.AT] += 4
        self._magic = False
        return True


class _BytesReader:
    """A payload that is not packed, read like one that is."""

    def __init__(self, content: memoryview) -> None:
        self._left = content

    def readinto(self, room: memoryview) -> int:
        count = min(len(room), len(self._left))
        room[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


_NO_DOCUMENTS = np.zeros((0, 2), np.int64)
_Handler = Callable[[BinlogDecoder, bytes, int], Batch | None]
_HANDLERS: dict[int, _Handler] = {
    ev.FORMAT_DESCRIPTION: BinlogDecoder._format_description,
    ev.ROTATE: BinlogDecoder._rotate,
    ev.HEARTBEAT: BinlogDecoder._heartbeat,
    ev.HEARTBEAT_V2: BinlogDecoder._heartbeat,
    ev.PREVIOUS_GTIDS: BinlogDecoder._gtid_set,
    ev.GTID_LIST: BinlogDecoder._gtid_set,
    ev.INCIDENT: BinlogDecoder._incident,
    ev.START_ENCRYPTION: BinlogDecoder._encryption,
    ev.TRANSACTION_PAYLOAD: BinlogDecoder._payload,
    ev.QUERY: BinlogDecoder._query,
    ev.QUERY_COMPRESSED: BinlogDecoder._query,
    ev.EXECUTE_LOAD_QUERY: BinlogDecoder._query,
    ev.XA_PREPARE: BinlogDecoder._xa_prepare,
    **dict.fromkeys(ev.COMPRESSED_ROWS, BinlogDecoder._compressed_rows),
}
# these go on in the same Batch, or see to it themselves that ended transactions go out first
_GOES_ON = {ev.TRANSACTION_PAYLOAD, ev.QUERY, ev.QUERY_COMPRESSED, ev.EXECUTE_LOAD_QUERY, *ev.COMPRESSED_ROWS}


def _decode_sql(query: ev.Query) -> str:
    name = charset_of(query.client_collation, "mysql") if query.client_collation else "utf8mb4"
    try:
        return text_of(query.sql, name)
    except CdcError:
        return query.sql.decode("utf-8", "replace")


def _behind(changes: Changes, sequence: int) -> Changes | None:
    """The rows with a larger sequence, or None."""
    numbers = changes.rows.column(changes.rows.num_columns - 1).to_numpy()
    first = int(np.searchsorted(numbers, sequence, "right"))
    return Changes(changes.schema, changes.rows.slice(first)) if first < len(numbers) else None


def _server_error(packet: bytes) -> ServerError:
    code = int.from_bytes(packet[1:3], "little")
    marked = packet[3:4] == b"#"
    state = packet[4:9].decode("ascii", "replace") if marked else "HY000"
    return ServerError(code, state, packet[9 if marked else 3 :].decode("utf-8", "replace"))
