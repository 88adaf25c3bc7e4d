"""Bytes to Batches: what a receiver feeds with a server's stream or a file's bytes, and takes Batches from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

import numpy as np
import zstandard

from cdc.batch import Batch, Changes
from cdc.binlog import events as ev
from cdc.binlog import framing as fr
from cdc.binlog import layout
from cdc.binlog import rows as row_events
from cdc.binlog.buffer import MIN_ROOM, StreamBuffer
from cdc.binlog.control import ControlEvents, Source
from cdc.binlog.events import Malformed, ServerError, Statement
from cdc.binlog.gtids import Gtids
from cdc.binlog.registry import Registry
from cdc.binlog.xa import OpenXa
from cdc.errors import CdcError, DecodeError, SourceRewound
from cdc.position import BinlogPosition
from cdc.schema import TableSchema

if TYPE_CHECKING:
    from cdc.binlog.tables import TableMap
    from cdc.receiver.base import Selection

_MAX_LISTED_EVENTS = 1 << 16  # row events of one Batch: a million bytes of bookkeeping
_MAX_TRANSACTIONS = 1 << 16
_MAX_MAPS = 1 << 12  # tables of one statement; MySQL joins 61 at most, triggers and cascades add some
LARGEST_EVENT = (1 << 30) + (1 << 25)  # bytes; max_allowed_packet of a replica is 1 GiB at most
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


class BinlogDecoder(ControlEvents):
    """One stream's decoder: framing, control events, transactions, positions, rows.

    Calls: ``room`` and ``feed`` with bytes, then ``next`` until None; one thread. Kernels release the GIL.
    Never: does I/O, or keeps a reference from a Batch into its buffer.
    """

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
        on_unknown_xa: Callable[[str, BinlogPosition], None] = lambda xid, place: None,
        leaves_out: Callable[[CdcError, Collection[str]], bool] = lambda error, tables: False,
        gtids_known: bool = False,
    ) -> None:
        """``framed``: MySQL packets from a socket, else files' bytes from their magic on. ``sequence``: of the last row
        before. ``skip_rows``: rows of the first transaction that were handed out before a reconnect, dropped now.
        ``on_unknown_xa``: told the xid and place of an XA COMMIT whose XA PREPARE lies before the start.
        ``gtids_known``: an empty GTID set of ``start`` is the set executed there, not an unknown one.
        ``leaves_out``: asked whether to go on without changes of some tables that cannot be read, for an error."""
        self.position = start
        self.ended = False
        self.server_version = ""
        self.mariadb = False
        self.skipped_types = {}
        self._on_statement = on_statement
        self._on_unknown_xa = on_unknown_xa
        self._leaves_out = leaves_out
        self._sequence = sequence
        self._skip_rows = skip_rows
        self._batch_bytes = batch_bytes
        self._file = start.file
        self._created = start.created or None
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
        self._gtids = Gtids(start.gtid_set, _ORIGINS, is_complete=gtids_known)
        self._scratch = row_events.Scratch()
        self._sources = [Source(framed)]
        self._unpacker = zstandard.ZstdDecompressor()
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
        if name != self._file:
            self._created = None
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
    def impossible_dates(self) -> dict[tuple[str, str], int]:
        """Zero and impossible dates that became NULL, by table and column. Calls: any thread."""
        counts: dict[tuple[str, str], int] = {}
        for slot in self._registry.slots.copy():
            for column, count in slot.impossible_dates.copy().items():
                key = (slot.schema.name, column)
                counts[key] = counts.get(key, 0) + count
        return counts

    @property
    def seen_events(self) -> int:
        """Events of any kind, since the start."""
        return int(self._state[fr.SEEN_EVENTS])

    @property
    def read_to(self) -> BinlogPosition:
        """The position after the last whole event between transactions. Calls: after ``next`` gave None."""
        idle = self._state[fr.PHASE] == fr.IDLE and len(self._sources) == 1
        return self._position(int(self._state[fr.FILE_AT])) if idle else self.position

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
            if code == fr.NEED_MORE and len(self._sources) > 1 and not self._crowded():
                self._refill()
            elif code in (fr.NEED_MORE, fr.FULL):
                crowded = code == fr.FULL or self._crowded()
                batch = self._cut(crowded)
                if batch is not None:
                    return batch
                if not crowded:
                    return self._moved_batch()
            elif code == fr.SPLIT:
                joined = self._buffer.squeeze()
                if joined is None:
                    if int(self._state[fr.NEED]) > LARGEST_EVENT:
                        raise self._error("An event is larger than 1 GiB, the most that a server writes")
                    return self._cut(False) or self._moved_batch()
                at, size = joined
                self._push(Source(False, at + size, at + size), at)
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

    def _crowded(self) -> bool:
        """Whether listed rows hold back so many unpacked bytes, of other tables' rows, that they must go out first."""
        if self._buffer.inner_used <= 4 * self._batch_bytes:
            return False
        self._buffer.compact_inner()
        return self._buffer.inner_used > 4 * self._batch_bytes and bool(self._state[fr.EVENT_COUNT])

    def _refill(self) -> None:
        """Get more bytes for the payload under scan, or go back to the source below."""
        source = self._sources[-1]
        if source.payload:
            if self._state[fr.EVENT_COUNT] == 0 or self._buffer.inner_left < MIN_ROOM:
                self._buffer.compact_inner()
            if self._buffer.inner_left < MIN_ROOM:
                self._buffer.grow_inner(max(2 * self._buffer.inner_size, self._batch_bytes))
            try:
                count = source.reader.readinto(self._buffer.inner_room())
            except zstandard.ZstdError as error:
                raise Malformed(f"the transaction payload is damaged: {error}") from error
            if count:
                self._buffer.inner_used += count
                return
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

    def _moved_batch(self) -> Batch | None:
        """A Batch without rows that tells a new Position: a file ended, or the server skipped a stretch."""
        # a Position without the time when its file was created would be taken for one in any file of that name
        if not self._moved or self._created is None or self._state[fr.PHASE] != fr.IDLE:
            return None
        self._moved = False
        first = self._safe_position()
        self.position = self._position(int(self._state[fr.FILE_AT]))
        last = self._safe_position()
        return Batch((), first, last, not self.open_xa, 0, 0, 0, None, None) if last != first else None

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
        layout.group_events(self._events, 0, count, len(slots), order, bounds)
        used = np.flatnonzero(np.diff(bounds))
        faults = []
        for slot_number in used.tolist():
            mine = order[bounds[slot_number] : bounds[slot_number + 1]]
            decoded = self._decode_slot(slots[slot_number], mine, event_rows)
            if not isinstance(decoded, row_events.Fault):
                found.append(decoded)
            elif self._is_left_out(decoded):
                event_rows[mine] = 0
            else:
                faults.append(decoded)
        found.sort(key=lambda decoded: int(decoded.order[0]))
        return min(faults, key=lambda fault: fault.event, default=None)

    def _decode_slot(
        self, slot: row_events.Slot, mine: np.ndarray, event_rows: np.ndarray
    ) -> row_events.Decoded | row_events.Fault:
        documents = _NO_DOCUMENTS
        unpacked = self._buffer.inner_used
        try:
            if (self._events[mine, fr.KIND] == ev.PARTIAL_UPDATE).any():
                made = row_events.json_documents(slot, self._buffer.data, self._events, mine)
                if isinstance(made, row_events.Fault):
                    return made
                plain, documents = made
                documents = documents + np.array([self._buffer.put_inner(plain), 0])
            return row_events.decode(slot, self._buffer.data, self._events, mine, event_rows, documents, self._scratch)
        except DecodeError as error:
            row = int(error.where.get("row", 0))  # type: ignore[call-overload]
            behind = np.cumsum(event_rows[mine])
            event = int(mine[min(int(np.searchsorted(behind, row, "right")), len(mine) - 1)])
            return row_events.Fault(DecodeError, error.message, error.mend, event, str(error.where.get("column", "")))
        except Malformed as error:
            return row_events.Fault(DecodeError, str(error).capitalize(), _DAMAGED, int(mine[0]))
        finally:
            # the rows are copies; left behind a payload's bytes, documents would be scanned as events
            self._buffer.inner_used = unpacked

    def _is_left_out(self, fault: row_events.Fault) -> bool:
        error = self._row_error(fault)
        if not self._leaves_out(error, [str(error.where["table"])]):
            fault.mend = error.mend  # it may be another one now
            return False
        if self._skip_rows:  # they are counted, and these may have been handed out before the cut
            raise SourceRewound(
                "Rows that are left out lie in a transaction of which some were handed out before the line was cut",
                mend="It is read again from its beginning.",
                position=self.position,
            )
        return True

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

    # -- errors --------------------------------------------------------------------------------------------------

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
            self._encryption(b"")
        if magic != _MAGIC:
            raise DecodeError("This is no binlog file", mend="Name the binlog files only.", file=self._file)
        self._state[fr.AT] += 4
        self._magic = False
        return True


_NO_DOCUMENTS = np.zeros((0, 2), np.int64)


def _behind(changes: Changes, sequence: int) -> Changes | None:
    """The rows with a larger sequence, or None."""
    numbers = changes.rows.column(changes.rows.num_columns - 1).to_numpy()
    first = int(np.searchsorted(numbers, sequence, "right"))
    return Changes(changes.schema, changes.rows.slice(first)) if first < len(numbers) else None
