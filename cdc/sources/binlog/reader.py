"""The thread that reads a binlog: it feeds bytes to the decoder, puts its Batches into the window, and reconnects.

``receiver`` creates one ``BinlogReader`` for each start or rollback. After a transient error the reader connects again
directly after the last position that the window has. Any other error is passed to the Consumer through the window.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

from cdc.errors import CdcError, DdlStop, DecodeError, ErrorAction, SourceRewound, action_for
from cdc.model.batch import Batch
from cdc.model.position import BinlogPosition
from cdc.model.schema import SEQUENCE
from cdc.model.table_filter import TableFilter
from cdc.mysql.connection import Endpoint, ServerError, translated
from cdc.mysql.values.kernels import nothing_compiled
from cdc.retry import Backoff
from cdc.sources.binlog.ddl_handler import DdlHandler
from cdc.sources.binlog.decoder.decoder import BinlogDecoder
from cdc.sources.binlog.decoder.warm_up import warm_up
from cdc.sources.binlog.table_registry import TableRegistry
from cdc.sources.binlog.transport import ByteSource
from cdc.sources.binlog.xa_watch import XaWatch, refuse_undecided
from cdc.sources.prepared_xa import refuse_unknown
from cdc.sources.window import Window

log = logging.getLogger(__name__)

_WAIT_S = 0.25  # longest wait for bytes; a stop takes effect after this time at most
_DRAINED_S = 0.05  # if no bytes arrive for so long, everything that the server has was read
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
# A server under writes sends each transaction separately, and a Batch costs the same for one row as for thousands.
# After a small read the thread sleeps, so that small Batches use at most a third of its time.
_SMALL_READ = 64 << 10
_PAUSE_S, _LONGEST_READ_PAUSE_S = 0.02, 0.1
# After transactions of other tables only: a job of few tables reads the whole binlog. If they arrive all the time, the
# source is never at its end, and cycles end with their interval.
_FOREIGN_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class ReaderSource:
    """The parts that all readers of one receiver share. One reader uses them at a time."""

    feed: ByteSource
    table_filter: TableFilter
    tables: TableRegistry
    ddl: DdlHandler
    xa: XaWatch
    endpoint: Endpoint | None = None
    accept_gap: bool = False


class BinlogReader:
    """Read from a position into a window. Reconnect directly after the last position that the window has.

    Calls: ``start``, ``stop`` by the Consumer's thread; the attributes and ``invalid_dates`` from any thread.
    """

    def __init__(self, source: ReaderSource, start: BinlogPosition, sequence: int, window: Window) -> None:
        """``sequence``: of the last row before; the first row gets the next number."""
        self.window = window
        self.sequence = sequence
        self.safe = start  # the newest position between transactions that the window has
        self.read_to = start  # the window has everything up to here; updated when no bytes arrive
        self.is_drained = self.is_finished = self.is_compiling = False
        self.disconnects = 0
        self.away: tuple[float, CdcError] | None = None  # monotonic time since which the server is unreachable; why
        self._source = source
        self._stopping = threading.Event()
        self._is_warm = threading.Event()
        self._thread: threading.Thread | None = None
        self._decoder: BinlogDecoder | None = None  # of the newest connection
        self._dates_before: Counter[str] = Counter()  # of earlier connections
        self._piece_rows = 0  # rows after ``safe`` in the window: the first pieces of one transaction
        # The rows after ``safe`` cannot be skipped by count: an XA transaction is open, or some rows were omitted.
        self._scattered = False

    def start(self) -> None:
        """Connect, then read on a thread. Raises: see ``ByteSource.begin``."""
        self._source.xa.note_released()
        decoder = self._connect()
        self._thread = threading.Thread(target=self._run, args=(decoder,), name="binlog-reader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the window. May be repeated."""
        self._stopping.set()
        self.window.close()
        # A thread that still compiles shares nothing with others and ends after the compilation: do not wait for it.
        if self._thread is not None and self._is_warm.is_set():
            self._thread.join()
        self._thread = None

    def invalid_dates(self) -> Counter[str]:
        """Return how many zero and invalid dates became NULL, by table."""
        found, decoder = self._dates_before.copy(), self._decoder
        if decoder is not None:
            _add_dates(found, decoder)
        return found

    # --- the thread ---

    def _run(self, decoder: BinlogDecoder) -> None:
        try:
            self.is_compiling = nothing_compiled()
            warm_up()
        except Exception as error:  # noqa: BLE001 - without it the Consumer would wait for ever
            self.window.stop(error)
            return
        self._is_warm.set()
        if self._stopping.is_set():
            return
        self.is_compiling = False
        self._read(decoder)

    def _read(self, decoder: BinlogDecoder | None) -> None:
        """Read until the end of the source, a stop or an error; reconnect after transient errors."""
        backoff, delay_s = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), _FIRST_PAUSE_S
        damaged_at: tuple[BinlogPosition, int] | None = None
        while not self._stopping.is_set():
            try:
                if decoder is None:
                    decoder = self._connect()
                self._pump(decoder)
                return
            except (CdcError, ServerError) as fault:
                error = fault if isinstance(fault, CdcError) else self._translated(fault)
                here, framed = (self.safe, self._piece_rows), self._source.feed.framed
                is_damage = isinstance(error, DecodeError) and framed
                if action_for(error, int(damaged_at == here) if is_damage else None) is not ErrorAction.RETRY:
                    self._save_stop_position(error)
                    self.window.stop(error)
                    return
                if is_damage:
                    # Bits that the network changed are correct when read again; damage on the server's disk remains.
                    damaged_at = here
                    log.warning("damaged event, reading again from %s: %s", self.safe, error)
                else:
                    if self.away is None:
                        self.disconnects += 1
                        backoff.reset()
                    delay_s = next(backoff)
                    self.away = (self.away[0] if self.away else time.monotonic(), error)
                    log.warning("reconnecting in %.1f s: %s", delay_s, error)
                if self._scattered:
                    self.window.stop(self._rewound())
                    return
            except Exception as error:  # noqa: BLE001 - without it the Consumer would wait for ever
                self.window.stop(error)
                return
            decoder, self.is_drained = None, False
            self._stopping.wait(delay_s)

    def _connect(self) -> BinlogDecoder:
        source = self._source
        found = source.feed.begin(self.safe, source.tables)
        if self._piece_rows and (found.by_gtid or found.position.server != self.safe.server):
            raise SourceRewound(
                "Another server answers after a reconnect inside a transaction; its rows may have another order.",
                hint="No action is needed: the transaction is read again from its beginning.",
                position=self.safe,
            )
        is_elsewhere = found.gap or found.position.gtid_set != self.safe.gtid_set
        is_same_file = found.position.file == self.safe.file and not self._piece_rows
        if is_elsewhere or (is_same_file and found.position.created != self.safe.created):
            # The user accepted to continue at another position, or the position gets its file's creation time, which
            # older versions did not save. A Batch without rows lets the Consumer save the new position.
            gaps = source.tables.rules.omitted.take()
            self.window.put(Batch((), self.safe, found.position, True, 0, 0, 0, None, None, gaps))
            self.safe = found.position
        decoder = BinlogDecoder(
            table_filter=source.table_filter,
            tables=source.tables,
            on_statement=source.ddl.handle,
            start=found.position,
            sequence=self.sequence,
            framed=source.feed.framed,
            skip_rows=self._piece_rows,
            on_unknown_xa=partial(self._check_unknown_xa, found.position),
            omits=source.tables.rules.omits,
            gtids_known=found.gtids_known,
        )
        source.tables.rules.progress = decoder
        before, self._decoder = self._decoder, decoder
        if before is not None:
            _add_dates(self._dates_before, before)
        return decoder

    def _check_unknown_xa(self, began: BinlogPosition, xid: str, position: BinlogPosition) -> None:
        if self._source.accept_gap:
            log.warning("omitting the rows of XA transaction %s, prepared before %s", xid, began)
            return
        tables = self._source.tables
        refuse_unknown(xid, began, position, tables.history.connect, tables.maps)

    def _translated(self, fault: ServerError) -> CdcError:
        return translated(fault, self._source.endpoint or Endpoint(""), self.safe)

    def _rewound(self) -> SourceRewound:
        return SourceRewound(
            "The connection was lost inside a transaction whose rows must be read again.",
            hint="No action is needed: reading continues from the last checkpoint.",
            position=self.safe,
        )

    def _pump(self, decoder: BinlogDecoder) -> None:
        feed, xa = self._source.feed, self._source.xa
        while not self._stopping.is_set():
            count = feed.read_into(decoder, _WAIT_S if self.is_drained else _DRAINED_S)
            began = time.monotonic()
            if count:
                self.is_drained = False
                if self.away is not None:
                    log.info("reconnected, reading from %s", self.safe)
                    self.away = None
            rows = 0
            while (batch := decoder.next()) is not None:
                rows += batch.rows
                if not self._deliver(batch, xa_open=bool(decoder.open_xa)):
                    return
            self._source.tables.note_read()
            xa.check(decoder.open_xa)
            if not count:
                self.read_to = decoder.read_to
            if feed.ended:
                decoder.begin_file(self.safe.file)  # raises if the files end inside an event or a transaction
                refuse_undecided(decoder.open_xa)
                self.is_finished = True
                return
            if count == 0:
                self.is_drained = decoder.seen_events > 0
            elif count < _SMALL_READ:
                spent_s = time.monotonic() - began
                least_s = _PAUSE_S if rows else _FOREIGN_PAUSE_S
                self._stopping.wait(min(max(least_s, 2 * spent_s), _LONGEST_READ_PAUSE_S))

    def _deliver(self, batch: Batch, *, xa_open: bool) -> bool:
        """Put a Batch into the window; return False if the window was closed meanwhile."""
        tables = self._source.tables
        changes = tuple(replace(each, schema=tables.described(each.schema, batch.first)) for each in batch.changes)
        if changes:
            self.sequence = max(each.rows.column(SEQUENCE)[-1].as_py() for each in changes)
        gaps = tables.rules.omitted.take()
        if not self.window.put(replace(batch, changes=changes, gaps=gaps)):
            return False
        assert isinstance(batch.last, BinlogPosition)
        if batch.ends_transaction:
            self.safe, self._piece_rows, self._scattered = batch.last, 0, False
            self._source.xa.note_released()
        elif xa_open or self._scattered or gaps:
            self._scattered = True  # even while rows of a decided XA transaction are delivered, before its XA COMMIT
        else:
            self.safe = batch.last
            self._piece_rows += batch.rows
        return True

    def _save_stop_position(self, error: CdcError) -> None:
        """Deliver the position of the statement that stops the job, so that a resume starts exactly there."""
        position = error.context.get("position")
        if not isinstance(error, DdlStop) or self._scattered or not isinstance(position, BinlogPosition):
            return
        if position != self.safe:
            self.window.put(Batch((), self.safe, position, True, 0, 0, 0, None, None))
            self.safe = position


def _add_dates(counts: Counter[str], decoder: BinlogDecoder) -> None:
    for (table, _), count in decoder.invalid_dates.items():
        counts[table] += count
