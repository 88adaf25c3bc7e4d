"""The receiver of a Canal destination.

::

    client --Message--> fetcher (thread) --Entries--> repeats, xa --> transactions --Batch--> CanalReceiver.get
               ^                |                                           |
               +----- acks -----+                 entries, value_parsers: rows; table_registry: schemas, statements

The cursor of the Canal server decides where the stream continues, not the job. The job's position is used only to drop
entries that arrive again, and to detect missing ones. Everything except the fetcher runs on the Consumer's thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from cdc.errors import CdcError, DdlStop, ServerMismatch
from cdc.model.batch import Batch
from cdc.model.position import CanalPosition, Position
from cdc.model.schema import TableSchema
from cdc.model.table_filter import TableFilter
from cdc.mysql.connection import Endpoint
from cdc.mysql.server import Server
from cdc.sources.base import ReceiverStatus
from cdc.sources.canal import kernels
from cdc.sources.canal.acks import AckTracker
from cdc.sources.canal.client import CanalClient
from cdc.sources.canal.entries import Entries, EntryDecoder
from cdc.sources.canal.fetcher import HALF, Fetched, Fetcher, Ring
from cdc.sources.canal.lost_end import has_lost_end
from cdc.sources.canal.positions import EntryPositions
from cdc.sources.canal.repeats import AcceptedOnce, RepeatFilter
from cdc.sources.canal.stall_detector import ASK_EVERY_S, StallDetector
from cdc.sources.canal.table_registry import CanalTables
from cdc.sources.canal.transactions import OpenTransaction, TransactionCutter
from cdc.sources.canal.wrapped_offsets import WrapDetector, begins_at, position_unknown
from cdc.sources.canal.xa import CanalXa
from cdc.sources.schema_history import ResumeOptions

BATCH_SIZE = 8192
WINDOW_BYTES = 256 << 20
TIMEOUT_S = 30.0  # if the server is unreachable for longer, get raises SourceUnavailable; reconnecting continues
_FIRST_POSITION_MS = 500
_HINT = "Correct `source` of the channel, or create the table. With `source.mysql`, tables are known before their rows."


def first_position(client: CanalClient) -> CanalPosition:
    """Return the position of the server's next entry, without acking it.

    If the server has no entry at the moment, return the position without a file, which means the server's cursor.
    Raises: SourceUnavailable.
    """
    with client:
        message = client.get(1, _FIRST_POSITION_MS)
    if message is None:
        return CanalPosition("", 0)
    first = EntryPositions(Entries(message.body), CanalPosition("", 0))[0]
    return replace(first, entry=0, gtid_set="")


class CanalReceiver:
    """The Receiver of a Canal destination. See ``cdc.sources.base.Receiver`` for the contract.

    Every Batch ends at a position from which the job can resume. If a single transaction fills the server's ring, this
    position is inside the transaction. ``CanalPosition.splits`` counts such transactions.
    """

    def __init__(
        self,
        client: Callable[[], CanalClient],
        table_filter: TableFilter,
        *,
        zone_us: int = 0,
        batch_size: int = BATCH_SIZE,
        ring: Ring = Ring(),  # noqa: B008 - a frozen value
        window_bytes: int = WINDOW_BYTES,
        mysql: Endpoint | None = None,
        accept_gap: bool = False,
        accept_server: bool = False,
        resume_options: ResumeOptions = ResumeOptions(),  # noqa: B008
        timeout_s: float = TIMEOUT_S,
        stall_every_s: float = ASK_EVERY_S,
    ) -> None:
        """``client``: creates a client of the destination. ``zone_us``: how far the server's clock is ahead of UTC."""
        self._client = client
        self._ring, self._batch_size, self._window_bytes = ring, batch_size, window_bytes
        self._timeout_s = timeout_s
        connect = (lambda: Server(mysql)) if mysql else None
        self._stall = StallDetector(connect, every_s=stall_every_s)
        self._tables = CanalTables(table_filter, connect, resume_options)
        self._decoder = EntryDecoder(table_filter, self._tables, zone_us=zone_us, omits=self._tables.omits)
        self._accepted = AcceptedOnce(accept_gap, accept_server)
        self._xa = CanalXa(connect, table_filter.maps)
        self._cutter = TransactionCutter(self._decoder, self._tables, self._xa, self._accepted)
        self._fetcher: Fetcher | None = None
        self._begin_at(CanalPosition("", 0))

    def _begin_at(self, start: CanalPosition) -> None:
        self._start = start
        self._error: CdcError | None = None
        self._epoch = 0
        self._at = start  # position of the last entry read, which may be inside a transaction
        self._is_number_guessed = False  # of the first entry of the session, see ``_anchor``
        self._acks = AckTracker(start)
        self._awaited: tuple[str, int] | None = None  # the BEGIN before which an END that was not read may be repeated
        self._repeats = RepeatFilter(self._decoder, self._accepted)
        self._wraps = WrapDetector(start)
        self._cutter.begin(start)

    # --- the contract ---

    def open(self, start: Position, schemas: tuple[TableSchema, ...], sequence: int) -> None:
        """See ``Receiver``."""
        assert isinstance(start, CanalPosition)
        self.close()
        self._tables.history.begin_run()
        self._cutter.sequence = sequence
        self._connect(start, schemas)

    def rollback(self, position: Position) -> None:
        """See ``Receiver``."""
        assert isinstance(position, CanalPosition)
        self.close()
        self._connect(position, self._tables.history.at(position))

    def _connect(self, start: CanalPosition, schemas: tuple[TableSchema, ...]) -> None:
        self._tables.begin(start, schemas)
        self._decoder.forget()
        self._begin_at(start)
        client = self._client()
        client.connect()
        self._fetcher = Fetcher(client, self._ring, batch_size=self._batch_size, window_bytes=self._window_bytes)
        self._fetcher.start()

    def get(self, timeout_s: float) -> Batch | None:
        """See ``Receiver``."""
        deadline = time.monotonic() + timeout_s
        while not self._cutter.ready and self._fetcher is not None:
            if self._error is not None:
                raise self._error
            fetched = self._fetcher.take(min(0.05, max(0.0, deadline - time.monotonic())))
            if fetched is not None:
                self._read(fetched)
            elif not self._cut_unfinished(self._fetcher):
                if self._fetcher.is_idle:
                    self._stall.check(self._fetcher.came_at)
                if time.monotonic() >= deadline:
                    break
        batch = self._cutter.take()
        away = self._fetcher.away if self._fetcher is not None else None
        if batch is None and away is not None and time.monotonic() - away[0] > self._timeout_s:
            raise away[1]
        return batch

    def release(self, byte_count: int) -> None:
        """See ``Receiver``. Does nothing: only an ack frees the server's ring."""

    def ack(self, position: Position) -> None:
        """See ``Receiver``."""
        assert isinstance(position, CanalPosition)
        if position != self._start:  # the accepted gap is before this position
            self._accepted.end()
        self._acks.committed = position
        self._acks.release(self._fetcher)

    def schema(self, database: str, table: str) -> TableSchema:
        """See ``Receiver``."""
        return self._tables.history.require(database, table, hint=_HINT)

    def note_loaded(self, tables: Iterable[str]) -> None:
        """See ``Receiver``."""
        self._tables.history.note_loaded(tables)

    def schemas(self) -> tuple[TableSchema, ...]:
        """See ``Receiver``."""
        return self._tables.history.at(self._cutter.handed)

    def status(self) -> ReceiverStatus:
        """See ``Receiver``. ``window_bytes`` counts the bodies of messages that are not acked."""
        fetcher, cutter, warning = self._fetcher, self._cutter, self._stall.warning
        dates: Counter[str] = Counter()
        for (table, _), count in self._decoder.invalid_dates.copy().items():
            dates[table] += count
        if fetcher is None:
            return ReceiverStatus(is_at_end=False, warning=warning, invalid_dates=dates)
        # Deliver all rows that have arrived before the cycle closes: one Task costs less than several.
        waits = not cutter.ready and fetcher.is_empty and fetcher.used >= HALF
        # A server with a full ring sends nothing, so silence does not prove that it has nothing.
        is_drained = fetcher.is_idle and fetcher.used < HALF
        return ReceiverStatus(
            is_at_end=is_drained and not cutter.ready and not cutter.open.changes and warning is None,
            heard_at=fetcher.heard_at,
            needs_ack=waits and not self._acks.covers(cutter.handed),
            window_bytes=fetcher.bytes_held,
            warning=warning,
            is_connected=fetcher.away is None,
            disconnects=fetcher.disconnects,
            invalid_dates=dates,
            created=self._tables.history.created,
            removed=self._tables.history.removed,
        )

    def close(self) -> None:
        """See ``Receiver``."""
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None

    # --- reading a server batch ---

    def _read(self, fetched: Fetched) -> None:
        entries, acks, cutter = fetched.entries, self._acks, self._cutter
        begins_session = fetched.epoch != self._epoch
        if begins_session:
            self._epoch = fetched.epoch
            acks.begin_session(fetched, cutter.end)
            self._at = self._anchor(entries)
            self._is_number_guessed = bool(self._at.file)
        positions = EntryPositions(entries, self._at)
        before, self._at = self._at, positions.last
        acks.add(fetched, positions, self._fetcher.part(fetched) if self._fetcher is not None else 1.0, cutter.end)
        cutter.keeps_marker = acks.keeps_marker
        try:
            self._xa.note(entries)
            if begins_session and self._repeats.check_gap(fetched, positions, cutter.end):
                self._tables.note_gap(cutter.end)
            awaited, self._awaited = None if begins_session else self._awaited, None
            for first, last, back in positions.ranges():
                begins = begins_session and first == 0
                awaits = first == 0 and awaited is not None
                if back and not begins and self._wraps.needs_next(entries, first, positions[first], cutter.open):
                    self._awaited, self._at = cutter.open.begin, before
                    acks.hold(before)
                    break
                if back or begins or awaits:
                    is_unknown = awaits and not begins_at(entries, first, awaited)
                    wraps = is_unknown or self._may_wrap(fetched, positions, first, before, begins)
                    if wraps:
                        self._accept_wrap(cutter.end if begins else before, positions[first])
                    if not begins:
                        if wraps or self._is_comparable(entries, positions, first, before):
                            # The batches of these rows keep room in the ring until a position after them is committed.
                            cutter.cut_open(before)
                        else:
                            acks.drop_copies(cutter.end)
                    cutter.drop_open()  # the entries since the last Batch arrive again
                    if wraps:
                        acks.hold(cutter.end)
                    self._repeats.is_dropping = True
                new = self._repeats.first_new(entries, positions, first, last, cutter.end)
                cutter.read(entries, positions, new, last)
                self._wraps.note(entries, positions, first, last)
                before = positions[last - 1]
        except CdcError as error:
            if isinstance(error, ServerMismatch):
                acks.withdraw()
            error.context.setdefault("position", cutter.end)
            self._save_stop_position(error)
            self._error = error
        acks.release(self._fetcher)

    def _may_wrap(
        self, fetched: Fetched, positions: EntryPositions, first: int, before: CanalPosition, begins: bool
    ) -> bool:
        """Return whether the offsets may have begun at 0 again at an entry. ``begins``: it begins a session."""
        end, transaction = self._cutter.end, self._cutter.open
        if begins:
            # A server that was started again reads MySQL from an offset of 32 bits: the entry is in the first 4 GiB.
            if fetched.server_is_new or positions[first].offset >= end.offset:
                return False
            before, transaction = end, OpenTransaction()
        if not transaction.length:
            transaction = OpenTransaction(length=end.entry)
        batches = [each.first for each in self._acks.unacked][:-1]
        return self._wraps.may_wrap(
            fetched.entries, first, positions[first], before, end, transaction, batches, begins_session=begins
        )

    def _is_comparable(self, entries: Entries, positions: EntryPositions, first: int, before: CanalPosition) -> bool:
        """Return whether ``before``, inside the open transaction, distinguishes its entries that arrive again.

        It does not if another server, which has other offsets, sends the transaction again from its BEGIN on.
        """
        end, transaction = self._cutter.end, self._cutter.open
        if self._is_number_guessed and (before.file, before.offset) == (end.file, end.offset):
            return False
        if not transaction.gtid_set or end.entry or transaction.contains(entries, first):
            return True
        return self._wraps.is_known_end(entries, first, positions[first])

    def _accept_wrap(self, before: CanalPosition, position: CanalPosition) -> None:
        """Record a gap after ``before`` if the user accepted it. Raises: PositionLost - the user did not."""
        if not self._accepted.gap:
            self._acks.withdraw()
            raise position_unknown(before, position)
        self._tables.note_gap(before)
        self._repeats.wrapped_file = before.file

    def _anchor(self, entries: Entries) -> CanalPosition:
        """Return the position from which the first entries of a session are numbered.

        All entries of a compressed transaction have one offset. If a session begins inside such a transaction, the
        number of its first entry is unknown. Its entries are read as new: repeated rows are harmless, missing rows not.
        """
        position = self._cutter.end
        if position.entry <= 1 or entries.index[0, kernels.KIND] == kernels.BEGIN:
            return CanalPosition("", 0)
        return position

    def _cut_unfinished(self, fetcher: Fetcher) -> bool:
        """Make a Batch of rows whose transaction end cannot arrive now. Return whether there are such rows."""
        cutter = self._cutter
        if fetcher.is_blocked and cutter.open.entries and self._acks.covers(cutter.handed):
            # One transaction fills the ring: its other entries arrive only after an ack.
            cutter.cut(self._at, splits=not cutter.handed.entry)
            return True
        if fetcher.is_idle and has_lost_end(cutter.open):
            cutter.open.length = 0
            cutter.cut(self._at)
            return True
        return False

    def _save_stop_position(self, error: CdcError) -> None:
        """Deliver the position of the statement that stops the job, so that a resume starts exactly there."""
        position = error.context.get("position")
        if isinstance(error, DdlStop) and isinstance(position, CanalPosition):
            self._cutter.cut(position)
