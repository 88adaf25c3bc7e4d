"""CanalReceiver: a Canal destination as a source.

The server's batches cut transactions anywhere; they are cut anew at transaction ends, and the open rest waits until its
end comes. The server's cursor decides where the stream goes on; the checkpoint only drops what comes again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from cdc.batch import Batch, Changes
from cdc.binlog.connection import Endpoint
from cdc.binlog.server import Server
from cdc.canal import kernels
from cdc.canal.client import CanalClient
from cdc.canal.entries import Entries, EntryDecoder
from cdc.canal.protocol_pb2 import EventKind
from cdc.errors import CdcError, PositionLost, SchemaChanged, SchemaMismatch, SourceBlocked, WrongServer
from cdc.position import CanalPosition, Position
from cdc.receiver.base import Selection
from cdc.receiver.canal_tables import CanalStatement, CanalTables
from cdc.receiver.fetching import HALF, Fetched, Fetcher, Ring
from cdc.receiver.tables import Resumption
from cdc.schema import TableSchema

log = logging.getLogger(__name__)

BATCH_SIZE = 8192
WINDOW_BYTES = 256 << 20
PATIENCE_S = 30.0  # a server away for longer is told to the Consumer, which shows it; trying goes on
TRANSACTION_ENTRIES = 1024  # canal.instance.transaction.size; a multiple of it may lose its END
_LOST_END_S = 2.0
_CANAL_STATEMENTS = (EventKind.INSERT, EventKind.UPDATE, EventKind.DELETE)
_XA = (EventKind.XA_COMMIT, EventKind.XA_ROLLBACK)


@dataclass(slots=True)
class _Open:
    """The transaction whose end has not come."""

    changes: list[Changes] = field(default_factory=list)
    entries: int = 0
    rows: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    touched_at: float = 0.0  # monotonic
    length: int = 0  # entries since its BEGIN, also those that a split has handed out

    def add(self, changes: tuple[Changes, ...], rows: int, entries: Entries, first: int, last: int) -> None:
        """Entries ``first`` up to, not with, ``last``."""
        index = entries.index[first:last]
        times = index[index[:, kernels.TIME_MS] > 0, kernels.TIME_MS]
        if len(times):
            self.oldest_ms = min(self.oldest_ms or int(times.min()), int(times.min()))
            self.newest_ms = max(self.newest_ms, int(times.max()))
        self.changes += changes
        self.entries += last - first
        self.length += last - first
        self.rows += rows
        self.bytes += int(index[:, kernels.SIZE].sum())
        self.touched_at = time.monotonic()


class CanalReceiver:
    """The Receiver of a Canal destination. See ``cdc.receiver.base.Receiver`` for the contract.

    Every Batch ends where the job can go on from. Where one transaction alone fills the server's ring, that lies inside
    the transaction; ``split_transactions`` counts these.
    """

    def __init__(
        self,
        client: Callable[[], CanalClient],
        selection: Selection,
        *,
        zone_us: int = 0,
        batch_size: int = BATCH_SIZE,
        ring: Ring = Ring(),  # noqa: B008 - a frozen value
        window_bytes: int = WINDOW_BYTES,
        mysql: Endpoint | None = None,
        accept_gap: bool = False,
        accept_server: bool = False,
        resumption: Resumption = Resumption(),  # noqa: B008
        patience_s: float = PATIENCE_S,
    ) -> None:
        """``client``: makes a client of the destination. ``zone_us``: what the server's clock is ahead of UTC."""
        self.split_transactions = 0
        self._client = client
        self._ring, self._batch_size, self._window_bytes = ring, batch_size, window_bytes
        self._accept_gap, self._accept_server = accept_gap, accept_server
        self._patience_s = patience_s
        self._tables = CanalTables(selection, (lambda: Server(mysql)) if mysql else None, resumption)
        self._decoder = EntryDecoder(selection, self._tables, zone_us=zone_us)
        self._fetcher: Fetcher | None = None
        self._sequence = 0
        self._begin_at(CanalPosition("", 0))

    def _begin_at(self, start: CanalPosition) -> None:
        self._handed = self._acked = start
        self._ready: deque[Batch] = deque()
        self._error: CdcError | None = None
        self._unacked: deque[tuple[Fetched, CanalPosition]] = deque()  # and where each ends
        self._open = _Open()
        self._epoch = 0
        self._dropping = True  # what comes may have been handed out before
        self._at = start  # of the last entry read, as a place inside a transaction

    # --- the contract ---

    def open(self, start: Position, schemas: tuple[TableSchema, ...], sequence: int) -> None:
        """See ``Receiver``."""
        assert isinstance(start, CanalPosition)
        self.close()
        self._sequence = sequence
        self._tables.begin(start, schemas)
        self._decoder.forget()
        self._begin_at(start)
        self._connect()

    def rollback(self, position: Position) -> None:
        """See ``Receiver``."""
        assert isinstance(position, CanalPosition)
        self.close()
        self._tables.rewind(position)
        self._decoder.forget()
        self._begin_at(position)
        self._connect()

    def _connect(self) -> None:
        client = self._client()
        client.connect()
        self._fetcher = Fetcher(client, self._ring, batch_size=self._batch_size, window_bytes=self._window_bytes)
        self._fetcher.start()

    def get(self, timeout_s: float) -> Batch | None:
        """See ``Receiver``."""
        deadline = time.monotonic() + timeout_s
        while not self._ready and self._fetcher is not None:
            if self._error is not None:
                raise self._error
            fetched = self._fetcher.take(min(0.05, max(0.0, deadline - time.monotonic())))
            if fetched is not None:
                self._read(fetched)
            elif not self._split_if_stuck() and not self._end_if_lost() and time.monotonic() >= deadline:
                break
        if self._ready:
            batch = self._ready.popleft()
            assert isinstance(batch.last, CanalPosition)
            self._handed = batch.last
            return batch
        away = self._fetcher.away if self._fetcher is not None else None
        if away is not None and time.monotonic() - away[0] > self._patience_s:
            raise away[1]
        return None

    def ack(self, position: Position) -> None:
        """See ``Receiver``."""
        assert isinstance(position, CanalPosition)
        self._acked = position
        self._release()

    def schema(self, database: str, table: str) -> TableSchema:
        """See ``Receiver``."""
        found = self._tables.current(database, table) or self._tables.look_up(database, table)
        if found is None:
            raise SchemaMismatch(
                f"The columns of {database}.{table} are not known.",
                mend="Correct `source` of the channel; give source.mysql, so that tables are known before their rows.",
                table=f"{database}.{table}",
            )
        return found

    def schemas(self) -> tuple[TableSchema, ...]:
        """See ``Receiver``."""
        return self._tables.at(self._handed)

    def window_full(self) -> bool:
        """See ``Receiver``. The ring counts: half of it is held until an ack."""
        fetcher = self._fetcher
        return (
            fetcher is not None and not self._ready and fetcher.used >= HALF and not self._acked.reached(self._handed)
        )

    def taken(self, position: Position, byte_count: int) -> None:
        """See ``Receiver``. Only an ack frees the server's ring."""

    def window_bytes(self) -> int:
        """See ``Receiver``: the bodies of messages that are not acked."""
        fetcher = self._fetcher
        return fetcher.bytes_held if fetcher is not None else 0

    def at_end(self) -> bool:
        """See ``Receiver``."""
        return self._fetcher is not None and self._fetcher.drained and not self._ready and not self._open.changes

    def trouble(self) -> CdcError | None:
        """See ``Receiver``."""
        return None

    def finished(self) -> bool:
        """See ``Receiver``. A Canal destination has no end."""
        return False

    def close(self) -> None:
        """See ``Receiver``."""
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None

    # --- reading a server batch ---

    def _read(self, fetched: Fetched) -> None:
        entries = fetched.entries
        if fetched.epoch != self._epoch:
            self._epoch = fetched.epoch
            self._unacked.clear()
            self._open = _Open(length=self._open.length if self._handed.entry else 0)
            self._dropping = True
            self._at = self._anchor(entries)
        places = self._places(entries)
        self._unacked.append((fetched, places[-1]))
        try:
            first = self._first_new(fetched, places) if self._dropping else 0
            self._read_entries(entries, places, first)
        except CdcError as error:
            error.where.setdefault("position", self._behind_ready())
            self._tell_position(error)
            self._error = error
        self._release()

    def _anchor(self, entries: Entries) -> CanalPosition:
        """What the first entry that comes again is counted on from.

        All entries of a compressed transaction lie at one offset. Where they go on in its middle, it is not known at
        which: they are taken for new then, since rows that come twice in order do no harm and missing ones do.
        """
        place = self._behind_ready()
        if place.entry <= 1 or entries.index[0, kernels.KIND] == kernels.BEGIN:
            return CanalPosition("", 0)
        return place

    def _behind_ready(self) -> CanalPosition:
        """The last place that was handed out or is ready to be."""
        last = self._ready[-1].last if self._ready else self._handed
        assert isinstance(last, CanalPosition)
        return last

    def _places(self, entries: Entries) -> list[CanalPosition]:
        """Where each entry lies, as a place inside a transaction: all with one offset are numbered."""
        files: dict[bytes, str] = {}
        found = []
        at = self._at
        for file_at, file_size, offset in entries.index[
            :, (kernels.FILE_AT, kernels.FILE_AT + 1, kernels.OFFSET)
        ].tolist():
            raw = entries.body[file_at : file_at + file_size]
            file = files.get(raw) or files.setdefault(raw, raw.decode("utf-8", "replace"))
            same = (file, offset) == (at.file, at.offset)
            at = CanalPosition(file, offset, at.entry + 1 if same else 1)
            found.append(at)
        self._at = at
        return found

    def _first_new(self, fetched: Fetched, places: list[CanalPosition]) -> int:
        """The number of the first entry that was not handed out before; all of them where none is new."""
        start, entries = self._behind_ready(), fetched.entries
        if not start.file:
            self._dropping = False
            return 0
        covered = [self._covers(start, place, entries, number) for number, place in enumerate(places)]
        if fetched.message.id == 1 and not covered[0] and not self._accept_gap:
            raise PositionLost(
                f"Canal goes on at {entries.place(0)} and not where the job stopped: it has lost its cursor, and what "
                "lies between may be missing.",
                mend="Take a new snapshot, or run `cdc resume --accept-gap` if nothing was written between; let Canal "
                "keep its cursor (file-instance.xml or ZooKeeper).",
                stopped_at=start,
                goes_on_at=entries.place(0),
            )
        new = next((number for number, old in enumerate(covered) if not old), len(places))
        newer = start.newest_ms and entries.index[:new, kernels.TIME_MS] > start.newest_ms
        for number in np.flatnonzero(newer).tolist():
            if not self._accept_server and entries.has_rows(number) and self._decoder.maps(entries, number):
                raise WrongServer(
                    "Rows before our position are newer than all that was seen: Canal reads another server, or the "
                    "source's binlog was reset.",
                    mend="Take a new snapshot; `cdc resume --accept-server` goes on without these rows.",
                    stopped_at=start,
                    at=entries.place(number),
                )
        self._dropping = new == len(places)
        return new

    def _covers(self, start: CanalPosition, place: CanalPosition, entries: Entries, number: int) -> bool:
        """Whether ``start`` lies behind an entry."""
        gtid_set = entries.text(number, kernels.GTID_AT)
        try:
            return start.reached(replace(place, gtid_set=gtid_set))
        except ValueError as error:
            raise WrongServer(
                f"Canal reads another server: its binlog file is {place.file}.",
                mend="Let Canal read by GTIDs (canal.instance.gtidon), or take a new snapshot.",
                stopped_at=start,
                at=entries.place(number),
            ) from error

    def _read_entries(self, entries: Entries, places: list[CanalPosition], first: int) -> None:
        index = entries.index
        bare = (index[:, kernels.KIND] == kernels.ROW_DATA) & (index[:, kernels.ROWS] == 0)
        for number in (np.flatnonzero(bare[first:]) + first).tolist():
            statement = self._statement(entries, number, places)
            if statement is None:
                continue
            if statement.dml:
                self._tables.on_statement(statement)
                continue
            self._read_rows(entries, places, first, number)
            # a statement of its own ends what came before it, also where the END did not come
            self._hand_out(statement.before)
            if self._tables.on_statement(statement):
                self._decoder.forget()
            self._open.length = 0
            self._open.add((), 0, entries, number, number + 1)
            self._hand_out(statement.after)
            first = number + 1
        self._read_rows(entries, places, first, len(entries))

    def _statement(self, entries: Entries, number: int, places: list[CanalPosition]) -> CanalStatement | None:
        """The statement of an entry without rows; None where it only tells the text behind row events."""
        entry = entries.index[number]
        event, sql = int(entry[kernels.EVENT]), entries.text(number, kernels.SQL_AT)
        if event in _XA:
            raise SourceBlocked(
                "XA transactions cannot be followed through Canal, which tells their rows before they are decided.",
                mend="Use a binlog source, or no XA on mapped tables; then take a new snapshot.",
                statement=sql[:120],
            )
        dml = event in _CANAL_STATEMENTS and not entry[kernels.IS_DDL]
        if not sql or not (entry[kernels.IS_DDL] or dml):
            return None
        place = places[number]
        gtid_set, newest = entries.text(number, kernels.GTID_AT), self._behind_ready().newest_ms
        return CanalStatement(
            entries.text(number, kernels.DDL_DATABASE_AT) or entries.text(number, kernels.DATABASE_AT),
            sql,
            CanalPosition(place.file, place.offset, 0, self._behind_ready().gtid_set, newest),
            CanalPosition(place.file, place.offset + int(entry[kernels.EVENT_LENGTH]), 0, gtid_set, newest),
            dml,
        )

    def _read_rows(self, entries: Entries, places: list[CanalPosition], first: int, last: int) -> None:
        """Row entries and the edges of transactions: what is whole becomes a Batch, the rest waits."""
        if first >= last:
            return
        kinds = entries.index[first:last, kernels.KIND]
        ends, begins = np.flatnonzero(kinds == kernels.END), np.flatnonzero(kinds == kernels.BEGIN)
        whole = max(int(ends[-1]) + 1 if len(ends) else 0, int(begins[-1]) if len(begins) else 0) + first
        if whole > first:
            self._take(entries, first, whole)
            self._open.length = 0
            end = places[whole - 1]
            length = int(entries.index[whole - 1, kernels.EVENT_LENGTH])
            self._hand_out(replace(end, offset=end.offset + length, entry=0), entries.text(whole - 1, kernels.GTID_AT))
        elif len(begins) and self._open.length:
            # a BEGIN ends a transaction whose END did not come
            self._open.length = 0
            self._hand_out(replace(places[first], entry=0))
        if whole < last:
            self._take(entries, whole, last)

    def _take(self, entries: Entries, first: int, last: int) -> None:
        self._tables.place = self._behind_ready()
        changes, rows = self._decoder.changes(entries, first, last, self._sequence)
        self._sequence += rows
        self._open.add(changes, rows, entries, first, last)

    def _hand_out(self, place: CanalPosition, gtid_set: str = "") -> None:
        """What is open becomes a Batch that ends at ``place``."""
        before, taken = self._behind_ready(), self._open
        if not taken.entries and before.reached(place):
            return
        newest = max(before.newest_ms, taken.newest_ms)
        last = replace(place, gtid_set=gtid_set or place.gtid_set or before.gtid_set, newest_ms=newest)
        self._ready.append(
            Batch(
                tuple(taken.changes),
                before,
                last,
                True,
                taken.entries,
                taken.rows,
                taken.bytes,
                taken.oldest_ms * 1000 or None,
                taken.newest_ms * 1000 or None,
            )
        )
        self._open = _Open(length=taken.length)

    def _split_if_stuck(self) -> bool:
        """Hand out a piece of the transaction that fills the ring alone: only an ack lets its rest come."""
        if self._fetcher is None or not self._fetcher.stands_still or not self._covered(self._handed):
            return False
        if not self._open.entries:
            return False
        self.split_transactions += not self._handed.entry
        self._hand_out(self._at)
        return True

    def _end_if_lost(self) -> bool:
        """Hand out a transaction whose END Canal has swallowed, as it does where the last entry fills its buffer."""
        taken, now = self._open, time.monotonic()
        if not taken.changes or taken.length % TRANSACTION_ENTRIES or now - taken.touched_at < _LOST_END_S:
            return False
        if self._fetcher is None or not self._fetcher.drained:
            return False
        self._open.length = 0
        self._hand_out(self._at)
        return True

    def _tell_position(self, error: CdcError) -> None:
        """Let the Consumer commit up to just before the statement that stopped us, so that a resume begins there."""
        place = error.where.get("position")
        if isinstance(error, SchemaChanged) and isinstance(place, CanalPosition):
            self._hand_out(place)

    def _release(self) -> None:
        """Ack the server batches that end at or before what is committed."""
        while self._unacked and self._acked.file and self._covered(self._unacked[0][1]):
            fetched, _ = self._unacked.popleft()
            if self._fetcher is not None:
                self._fetcher.ack(fetched)

    def _covered(self, end: CanalPosition) -> bool:
        try:
            return self._acked.reached(end)
        except ValueError:
            return False
