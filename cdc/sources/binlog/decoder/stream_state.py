"""The state of one stream, which ``decoder``, ``control_events``, ``batch_cutting`` and ``xa_events`` share."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from cdc.errors import CdcError
from cdc.model.batch import Batch
from cdc.model.position import BinlogPosition
from cdc.sources.binlog.decoder import events as ev
from cdc.sources.binlog.decoder import framing as fr
from cdc.sources.binlog.decoder import row_events
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.decoder.gtid_tracker import Gtids
from cdc.sources.binlog.decoder.stream_buffer import StreamBuffer
from cdc.sources.binlog.decoder.table_map_cache import TableMapCache
from cdc.sources.binlog.decoder.xa import OpenXa

if TYPE_CHECKING:
    from cdc.model.table_filter import TableFilter
    from cdc.sources.binlog.decoder.table_map_cache import TableSource

_MAX_LISTED_EVENTS = 1 << 16  # row events of one Batch; the array takes 3 MiB
_MAX_TRANSACTIONS = 1 << 16
_MAX_MAPS = 1 << 12  # tables of one statement; MySQL joins at most 61, triggers and cascades add some
_ORIGINS = 64  # sources of GTIDs for which there is room at first


@dataclass(slots=True)
class ScanRange:
    """A range of bytes that is scanned: received bytes, a joined event, or the unpacked bytes of a payload."""

    framed: bool
    end: int = 0  # of a joined event; other sources end with their bytes
    back_to: int = 0  # offset at which the scan of the source below continues
    reader: Any = None  # of a payload: returns unpacked bytes
    payload: bool = False


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The functions that a decoder calls. See ``BinlogDecoder``."""

    on_statement: Callable[[Statement], None]
    on_unknown_xa: Callable[[str, BinlogPosition], None]
    omits: Callable[[CdcError, Collection[str]], bool]


@dataclass(slots=True)
class StreamState:
    """The state of one stream. ``framing`` describes the arrays."""

    position: BinlogPosition  # after the last whole transaction that was returned
    callbacks: Callbacks
    sequence: int  # of the last row
    skip_rows: int  # rows of the first transaction that were delivered before a reconnect
    batch_bytes: int
    file: str
    created: int | None  # header timestamp of the file's format description; None: it was not read yet
    magic: bool  # the next bytes are the magic number of a file
    state: np.ndarray
    events: np.ndarray
    transactions: np.ndarray
    map_ids: np.ndarray
    map_slots: np.ndarray
    buffer: StreamBuffer
    registry: TableMapCache
    gtids: Gtids
    sources: list[ScanRange]
    scratch: row_events.Scratch = field(default_factory=row_events.Scratch)
    unpacker: zstandard.ZstdDecompressor = field(default_factory=zstandard.ZstdDecompressor)
    ready: deque[Batch] = field(default_factory=deque)
    moved: bool = False  # the position changed without rows
    ended: bool = False  # the server sent EOF: the end of a non-blocking dump
    failure: Exception | None = None  # is raised after everything before it was returned
    xa: OpenXa | None = None  # the XA transaction whose rows are read now
    prepared: dict[str, OpenXa] = field(default_factory=dict)
    server_version: str = ""  # from the format description
    mariadb: bool = False
    skipped_types: dict[int, int] = field(default_factory=dict)  # by type: how many unknown events were skipped

    @classmethod
    def begin(
        cls,
        table_filter: TableFilter,
        tables: TableSource,
        callbacks: Callbacks,
        start: BinlogPosition,
        *,
        sequence: int,
        framed: bool,
        skip_rows: int,
        batch_bytes: int,
        gtids_known: bool,
    ) -> StreamState:
        """Return the state at ``start``, before any bytes. See ``BinlogDecoder``."""
        state = np.zeros(fr.STATE_SIZE, np.int64)
        state[fr.CHECKSUM] = -1
        state[fr.FILE_AT] = start.offset if framed else 4
        state[fr.SKIP_UNTIL] = 0 if framed else start.offset
        state[fr.TX_ORIGIN] = -1
        events = np.zeros((_MAX_LISTED_EVENTS, fr.EVENT_FIELDS), np.int64)
        return cls(
            start,
            callbacks,
            sequence,
            skip_rows,
            batch_bytes,
            start.file,
            start.created or None,
            magic=not framed,
            state=state,
            events=events,
            transactions=np.zeros((_MAX_TRANSACTIONS, fr.TRANSACTION_FIELDS), np.int64),
            map_ids=np.zeros(_MAX_MAPS, np.int64),
            map_slots=np.zeros(_MAX_MAPS, np.int64),
            buffer=StreamBuffer(2 * batch_bytes, state, events),
            registry=TableMapCache.empty(table_filter, tables),
            gtids=Gtids(start.gtid_set, _ORIGINS, is_complete=gtids_known),
            sources=[ScanRange(framed)],
        )

    @property
    def open_xa(self) -> tuple[OpenXa, ...]:
        """Return the undecided XA transactions with rows of mapped tables, in the order in which they began."""
        everyone = [*self.prepared.values(), *([self.xa] if self.xa else [])]
        return tuple(xa for xa in everyone if xa.rows)

    def position_at(self, offset: int) -> BinlogPosition:
        """Return the position at ``offset`` of the file."""
        return replace(
            self.position, file=self.file, offset=offset, gtid_set=self.gtids.text, created=self.created or 0
        )

    def event_start(self) -> int:
        """Return the file offset of the event that is read now, also after events that the server did not send."""
        state = self.state
        return int(max(state[fr.FILE_AT], state[fr.FILE_NEXT] - state[fr.EVENT_SIZE]))

    def safe_position(self) -> BinlogPosition:
        """Return the position, or the start of the oldest undecided XA transaction with rows."""
        return next((xa.since for xa in self.open_xa), self.position)

    def event_position(self) -> dict[str, object]:
        """Return file, offset and type of the event that is read now, for messages."""
        state = self.state
        location: dict[str, object] = {"file": self.file or "?", "offset": int(state[fr.FILE_AT])}
        at = int(state[fr.EVENT_AT])
        if at + ev.HEADER_BYTES <= len(self.buffer.data):
            location["event"] = ev.name_of(int(self.buffer.data[at + 4]))
        return location

    def push(self, source: ScanRange, at: int) -> None:
        """Scan ``source`` from ``at`` on, then the source below it."""
        self.sources.append(source)
        self.state[fr.AT] = at

    def step(self, in_the_file: bool = True) -> None:
        """Move past the event. ``in_the_file``: False if the file does not have it, although its header has a size."""
        state = self.state
        if in_the_file:
            state[fr.FILE_AT] = state[fr.FILE_NEXT]
        state[fr.AT] = state[fr.EVENT_NEXT]
        state[fr.TX_ENTRIES] += 1
        state[fr.SEEN_EVENTS] += 1

    def step_over_head(self, event: bytes) -> None:
        """Move past an event of a file's head. If the dump began after it, it is a copy with the position 0."""
        log_pos = struct.unpack_from("<I", event, 13)[0]
        self.step(log_pos != 0)

    def end_transaction(self) -> None:
        """List the transaction as ended at the file position."""
        fr.end_transaction(self.state, self.transactions, int(self.state[fr.FILE_AT]))
