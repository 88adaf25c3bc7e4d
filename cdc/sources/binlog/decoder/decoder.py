"""The binlog decoder: bytes of a stream or of files to Batches.

::

    feed -> stream_buffer -> framing.scan (kernel) --row events------> batch_cutting -> row_events, columns -> Batch
                                   |                                        ^
                                   +--any other event--> control_events ----+ (when transactions have ended)

The kernel ``scan`` handles the events that a busy stream consists of. It lists the row events of mapped tables, and
returns to Python at a rarer event or when a Batch is full. ``stream_state`` has the state that these modules share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import zstandard

from cdc.errors import CdcError, DecodeError
from cdc.model.batch import Batch
from cdc.model.position import BinlogPosition
from cdc.mysql.connection import ServerError
from cdc.sources.binlog.decoder import framing as fr
from cdc.sources.binlog.decoder.batch_cutting import DAMAGED, cut, moved_batch
from cdc.sources.binlog.decoder.control_events import handle_event, read_encryption
from cdc.sources.binlog.decoder.events import Malformed, Statement
from cdc.sources.binlog.decoder.stream_buffer import MIN_FREE
from cdc.sources.binlog.decoder.stream_state import Callbacks, ScanRange, StreamState
from cdc.sources.binlog.decoder.xa import OpenXa

if TYPE_CHECKING:
    from cdc.model.table_filter import TableFilter
    from cdc.sources.binlog.decoder.table_map_cache import TableSource

LARGEST_EVENT = (1 << 30) + (1 << 25)  # bytes; max_allowed_packet of a replica is 1 GiB at most
_MAGIC = b"\xfebin"
_ENCRYPTED_MAGIC = b"\xfdbin"


class BinlogDecoder:
    """Decode one stream: packets, control events, transactions, positions, rows.

    Calls: write bytes into ``free_space``, call ``feed``, then ``next`` until it returns None; one thread. Kernels
    release the GIL.
    Never: does I/O, or returns a Batch that refers to its buffer.
    """

    def __init__(
        self,
        *,
        table_filter: TableFilter,
        tables: TableSource,
        on_statement: Callable[[Statement], None],
        start: BinlogPosition,
        sequence: int,
        framed: bool,
        skip_rows: int = 0,
        batch_bytes: int = 4 << 20,
        on_unknown_xa: Callable[[str, BinlogPosition], None] = lambda xid, offset: None,
        omits: Callable[[CdcError, Collection[str]], bool] = lambda error, tables: False,
        gtids_known: bool = False,
    ) -> None:
        """``framed``: the bytes are MySQL packets; else they are files from their magic number on.
        ``sequence``: of the last row before ``start``.
        ``skip_rows``: drop so many rows of the first transaction: they were delivered before a reconnect.
        ``on_unknown_xa``: called with xid and position of an XA COMMIT whose XA PREPARE is before ``start``.
        ``gtids_known``: an empty GTID set of ``start`` is the set executed there, not an unknown one.
        ``omits``: returns whether to omit unreadable changes, by their error and their tables."""
        self._stream = StreamState.begin(
            table_filter,
            tables,
            Callbacks(on_statement, on_unknown_xa, omits),
            start,
            sequence=sequence,
            framed=framed,
            skip_rows=skip_rows,
            batch_bytes=batch_bytes,
            gtids_known=gtids_known,
        )

    @property
    def position(self) -> BinlogPosition:
        """Return the position after the last whole transaction that was returned."""
        return self._stream.position

    @property
    def ended(self) -> bool:
        """Return whether the server sent EOF: the end of a non-blocking dump."""
        return self._stream.ended

    @property
    def skipped_types(self) -> dict[int, int]:
        """Return how many events of each unknown type were skipped."""
        return self._stream.skipped_types

    @property
    def open_xa(self) -> tuple[OpenXa, ...]:
        """Return the undecided XA transactions with rows of mapped tables, in the order in which they began."""
        return self._stream.open_xa

    @property
    def inside_xa(self) -> bool:
        """Return whether the events that are read now belong to an XA transaction."""
        return self._stream.xa is not None

    @property
    def is_ahead(self) -> bool:
        """Return whether whole transactions wait to be returned. ``position`` is before them."""
        return bool(self._stream.state[fr.TX_COUNT])

    # -- bytes in ------------------------------------------------------------------------------------------------

    def begin_file(self, name: str, offset: int = 4) -> None:
        """Begin the file ``name``: the next bytes are its magic number. Events before ``offset`` are dropped.

        Calls: between files on disk, after ``next`` returned None. Raises: DecodeError - the previous file ended inside
        an event or a transaction.
        """
        if self.unread or self._stream.state[fr.PHASE] != fr.IDLE:
            raise self._error("The file ends inside an event or a transaction.", file=self._stream.file)
        if name != self._stream.file:
            self._stream.created = None
        self._stream.file = name
        self._stream.magic = True
        self._stream.state[fr.FILE_AT] = 4
        self._stream.state[fr.SKIP_UNTIL] = offset
        self._stream.state[fr.CHECKSUM] = -1
        self._stream.moved = True

    @property
    def unread(self) -> int:
        """Return the number of bytes that are not a whole event yet."""
        return int(self._stream.buffer.filled - self._stream.state[fr.AT]) if len(self._stream.sources) == 1 else 1

    def free_space(self) -> memoryview:
        """Return writable memory of at least 64 KiB for ``recv_into`` or ``readinto``, valid until the next call."""
        return self._stream.buffer.free_space(pinned=len(self._stream.sources) > 1)

    def feed(self, byte_count: int) -> None:
        """Take over ``byte_count`` bytes that were written into ``free_space()``."""
        self._stream.buffer.filled += byte_count

    # -- Batches out ---------------------------------------------------------------------------------------------

    def next(self) -> Batch | None:
        """Return the next Batch, or None if more bytes are needed.

        Raises, after everything before the error was returned, and again at each later call: ServerError - an ERR
        packet; DecodeError; UnsupportedRowFormat; the errors of ``on_statement``, ``TableFilter.reads`` and
        ``TableSource.schema``.
        """
        if self._stream.failure is not None:
            raise self._stream.failure
        try:
            return self._next()
        except Malformed as error:
            self._stream.failure = self._error(error.sentence, **self._stream.event_position())
            raise self._stream.failure from error
        except (CdcError, ServerError) as error:
            self._stream.failure = error
            raise

    @property
    def invalid_dates(self) -> dict[tuple[str, str], int]:
        """Return how many zero and invalid dates became NULL, by table and column. Calls: any thread."""
        counts: dict[tuple[str, str], int] = {}
        for slot in self._stream.registry.slots.copy():
            if not slot.invalid_dates:
                continue
            for column, count in slot.invalid_dates.copy().items():
                key = (slot.schema.name, column)
                counts[key] = counts.get(key, 0) + count
        return counts

    @property
    def seen_events(self) -> int:
        """Return the number of events since the start, of any type."""
        return int(self._stream.state[fr.SEEN_EVENTS])

    @property
    def offset(self) -> int:
        """Return the file offset of the next event. Calls: after ``next`` returned None."""
        return int(self._stream.state[fr.FILE_AT])

    @property
    def read_to(self) -> BinlogPosition:
        """Return the position after the last whole event between transactions. Calls: after ``next`` returned None."""
        idle = self._stream.state[fr.PHASE] == fr.IDLE and len(self._stream.sources) == 1
        return self._stream.position_at(int(self._stream.state[fr.FILE_AT])) if idle else self._stream.position

    def forget_schemas(self) -> None:
        """Query the TableSource again for each table with an incomplete map, as the decoder does after each DDL."""
        self._stream.registry.forget_schemas()

    def _next(self) -> Batch | None:
        if self._stream.magic and not self._read_magic():
            return None
        while True:
            if self._stream.ready:
                return self._stream.ready.popleft()
            code = self._scan()
            if code == fr.NEED_MORE and len(self._stream.sources) > 1 and not self._crowded():
                self._refill()
            elif code in (fr.NEED_MORE, fr.FULL):
                crowded = code == fr.FULL or self._crowded()
                batch = cut(self._stream, crowded)
                if batch is not None:
                    return batch
                if not crowded:
                    return moved_batch(self._stream)
            elif code == fr.SPLIT:
                joined = self._stream.buffer.squeeze()
                if joined is None:
                    if int(self._stream.state[fr.NEED]) > LARGEST_EVENT:
                        raise self._error("An event is larger than 1 GiB, the limit of the server.")
                    return cut(self._stream, False) or moved_batch(self._stream)
                at, size = joined
                self._stream.push(ScanRange(False, at + size, at + size), at)
            elif code == fr.UNKNOWN_ORIGIN:
                self._stream.gtids.grow()
            elif (batch := handle_event(self._stream, code)) is not None:
                return batch
            if self._stream.magic and not self._read_magic():
                return cut(self._stream, False) or moved_batch(self._stream)

    def _scan(self) -> int:
        stream = self._stream
        source, registry, buffer = stream.sources[-1], stream.registry, stream.buffer
        end = source.end if source.end else buffer.inner_end if source.payload else buffer.filled
        return int(
            fr.scan(
                buffer.data, end, source.framed, stream.batch_bytes, stream.state, stream.events, stream.transactions,
                stream.map_ids, stream.map_slots, registry.index, registry.known, registry.arena, stream.gtids.origins,
            )
        )  # fmt: skip

    def _crowded(self) -> bool:
        """Return whether listed rows keep so many unpacked bytes that a Batch must be cut first."""
        if self._stream.buffer.inner_used <= 4 * self._stream.batch_bytes:
            return False
        self._stream.buffer.compact_inner()
        return self._stream.buffer.inner_used > 4 * self._stream.batch_bytes and bool(
            self._stream.state[fr.EVENT_COUNT]
        )

    def _refill(self) -> None:
        """Unpack more bytes of the payload that is scanned, or return to the source below it."""
        source = self._stream.sources[-1]
        if source.payload:
            if self._stream.state[fr.EVENT_COUNT] == 0 or self._stream.buffer.inner_left < MIN_FREE:
                self._stream.buffer.compact_inner()
            if self._stream.buffer.inner_left < MIN_FREE:
                self._stream.buffer.grow_inner(max(2 * self._stream.buffer.inner_size, self._stream.batch_bytes))
            try:
                count = source.reader.readinto(self._stream.buffer.inner_free_space())
            except zstandard.ZstdError as error:
                raise Malformed(f"the transaction payload cannot be unpacked: {error}") from error
            if count:
                self._stream.buffer.inner_used += count
                return
            if int(self._stream.state[fr.AT]) != self._stream.buffer.inner_end:
                raise Malformed("the transaction payload ends inside an event")
        elif int(self._stream.state[fr.AT]) != source.end:
            raise Malformed("the size of the event does not match its packets")
        self._stream.sources.pop()
        if source.payload:
            self._stream.state[fr.FILE_AT] = self._stream.state[fr.INNER_END]
            self._stream.state[fr.INNER_END] = 0
            if self._stream.state[fr.PHASE] != fr.IDLE and self._stream.xa is None:
                raise Malformed("the transaction payload ends inside its transaction")
        self._stream.state[fr.AT] = source.back_to

    def _error(self, message: str, **where: object) -> DecodeError:
        return DecodeError(message, hint=DAMAGED, **where)

    def _read_magic(self) -> bool:
        """Skip the magic number of a file. Return False if its bytes have not arrived yet."""
        at = int(self._stream.state[fr.AT])
        if self._stream.buffer.filled - at < 4:
            self._stream.state[fr.NEED] = 4
            return False
        magic = self._stream.buffer.data[at : at + 4].tobytes()
        if magic == _ENCRYPTED_MAGIC:
            read_encryption(self._stream, b"")
        if magic != _MAGIC:
            raise DecodeError(
                "The file is not a binlog file.",
                hint="Correct `source.path`, so that it matches binlog files only.",
                file=self._stream.file,
            )
        self._stream.state[fr.AT] += 4
        self._stream.magic = False
        return True
