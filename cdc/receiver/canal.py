"""CanalReceiver: a Canal destination as a source.

The server's batches cut transactions anywhere; they are cut anew at transaction ends, and the open rest waits until its
end comes. The server's cursor decides where the stream goes on; the checkpoint only drops what comes again.

The newest batch that is committed is not acked before the next one is committed in part: so whatever session comes
next begins with something that is known, and where it does not, rows in between are missing. ``CanalPosition.held``
says so; it is not the case of the first batch of a server's life, whose ack makes the server keep a cursor at all.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from cdc.batch import Batch, Changes
from cdc.binlog.connection import Endpoint
from cdc.binlog.server import Server
from cdc.canal import kernels
from cdc.canal.client import CanalClient
from cdc.canal.entries import Entries, EntryDecoder
from cdc.canal.protocol_pb2 import EventKind
from cdc.errors import CdcError, PositionLost, SchemaChanged, SchemaMismatch, WrongServer
from cdc.position import CanalPosition, Position
from cdc.receiver.base import Selection
from cdc.receiver.canal_places import Places
from cdc.receiver.canal_stall import ASK_EVERY_S, StallWatch
from cdc.receiver.canal_tables import CanalStatement, CanalTables
from cdc.receiver.canal_xa import CanalXa, edges, undecided
from cdc.receiver.fetching import HALF, Fetched, Fetcher, Ring
from cdc.receiver.tables import Resumption
from cdc.schema import TableSchema

log = logging.getLogger(__name__)

BATCH_SIZE = 8192
WINDOW_BYTES = 256 << 20
PATIENCE_S = 30.0  # a server away for longer is told to the Consumer, which shows it; trying goes on
TRANSACTION_ENTRIES = 1024  # canal.instance.transaction.size; a multiple of it may lose its END
HELD_MOST = 1 / 4  # of ring or window: a batch larger than that, as one giant row makes it, is not held
_LOST_END_S = 2.0
_FILTERED_END_S = 10.0  # of any other length: its END is filtered away (canal.instance.filter.transaction.entry)
_FIRST_PLACE_MS = 500
_CANAL_STATEMENTS = (EventKind.INSERT, EventKind.UPDATE, EventKind.DELETE)


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
    gtid_set: str = ""  # up to and with it
    xid: str = ""  # of an XA transaction

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
        self.gtid_set = entries.text(last - 1, kernels.GTID_AT)
        self.touched_at = time.monotonic()


class _Unacked(NamedTuple):
    """A server batch that is not acked, and the places of its first and last entry."""

    fetched: Fetched
    first: CanalPosition
    last: CanalPosition


def first_place(client: CanalClient) -> CanalPosition:
    """Where the server goes on, as its next entry tells; nothing is acked.

    A server that has nothing at the moment does not tell: then wherever its cursor stands.
    Raises: SourceUnavailable.
    """
    with client:
        message = client.get(1, _FIRST_PLACE_MS)
    if message is None:
        return CanalPosition("", 0)
    first = Places(Entries(message.body), CanalPosition("", 0))[0]
    return replace(first, entry=0, gtid_set="")


class CanalReceiver:
    """The Receiver of a Canal destination. See ``cdc.receiver.base.Receiver`` for the contract.

    Every Batch ends where the job can go on from. Where one transaction alone fills the server's ring, that lies inside
    the transaction; ``CanalPosition.splits`` counts these.
    """

    acks_make_room = True  # the server's ring counts, and not our memory

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
        stall_every_s: float = ASK_EVERY_S,
    ) -> None:
        """``client``: makes a client of the destination. ``zone_us``: what the server's clock is ahead of UTC."""
        self._client = client
        self._ring, self._batch_size, self._window_bytes = ring, batch_size, window_bytes
        self._accept_gap, self._accept_server = accept_gap, accept_server
        self._patience_s = patience_s
        ask = (lambda: Server(mysql)) if mysql else None
        self._stall = StallWatch(ask, every_s=stall_every_s)
        self._tables = CanalTables(selection, ask, resumption)
        self._xa = CanalXa(ask, selection.maps)
        self._decoder = EntryDecoder(selection, self._tables, zone_us=zone_us, leaves_out=self._tables.leaves_out)
        self._fetcher: Fetcher | None = None
        self._sequence = 0
        self._begin_at(CanalPosition("", 0))

    def _begin_at(self, start: CanalPosition) -> None:
        self._handed = self._acked = self._start = start
        self._began_at = start  # the session: what was handed out when its first batch came
        self._may_hold = start.held
        self._holds = False  # the batch that is being read
        self._ready: deque[Batch] = deque()
        self._error: CdcError | None = None
        self._unacked: deque[_Unacked] = deque()
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
            elif not self._split_if_stuck() and not self._end_if_lost():
                if self._fetcher.drained:
                    self._stall.look(self._fetcher.came_at)
                if time.monotonic() >= deadline:
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
        if position != self._start:  # said of the gap at hand, which is passed now, and not of any that comes later
            self._accept_gap = self._accept_server = False
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

    def note_loaded(self, tables: Iterable[str]) -> None:
        """See ``Receiver``."""
        self._tables.note_loaded(tables)

    def schemas(self) -> tuple[TableSchema, ...]:
        """See ``Receiver``."""
        return self._tables.at(self._handed)

    def window_full(self) -> bool:
        """See ``Receiver``. The ring counts: half of it is held until an ack."""
        fetcher = self._fetcher
        if fetcher is None or self._ready or not fetcher.is_empty:
            return False  # what has come already is gathered first: one Task of it costs less than several
        return fetcher.used >= HALF and not self._acked.reached(self._handed)

    def taken(self, position: Position, byte_count: int) -> None:
        """See ``Receiver``. Only an ack frees the server's ring."""

    def window_bytes(self) -> int:
        """See ``Receiver``: the bodies of messages that are not acked."""
        fetcher = self._fetcher
        return fetcher.bytes_held if fetcher is not None else 0

    def impossible_dates(self) -> Mapping[str, int]:
        """See ``Receiver``."""
        found: Counter[str] = Counter()
        for (table, _), count in self._decoder.impossible_dates.copy().items():
            found[table] += count
        return found

    def at_end(self) -> bool:
        """See ``Receiver``."""
        if self._fetcher is None or self._ready or self._open.changes or self._stall.trouble is not None:
            return False
        # a server whose ring is full sends nothing, whatever there is
        return self._fetcher.drained and self._fetcher.used < HALF

    def trouble(self) -> CdcError | None:
        """See ``Receiver``."""
        return self._stall.trouble

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
        begins_session = fetched.epoch != self._epoch
        if begins_session:
            self._epoch = fetched.epoch
            self._unacked.clear()
            self._began_at = self._behind_ready()
            self._may_hold &= not fetched.server_is_new  # it may have no cursor yet
            self._at = self._anchor(entries)
        self._may_hold |= self._behind_ready() != self._began_at
        self._holds = self._may_hold and self._fetcher is not None and self._fetcher.part(fetched) <= HELD_MOST
        places = Places(entries, self._at)
        self._at = places.last
        self._unacked.append(_Unacked(fetched, places[0], places.last))
        try:
            self._xa.note(entries)
            if begins_session:
                self._check_gap(fetched, places)
            for first, last, back in places.stretches():
                if back or (begins_session and first == 0):
                    # what has come since the last whole transaction comes again
                    self._open = _Open(length=self._open.length if self._behind_ready().entry else 0)
                    self._dropping = True
                new = self._first_new(entries, places, first, last) if self._dropping else first
                self._read_entries(entries, places, new, last)
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

    def _check_gap(self, fetched: Fetched, places: Places) -> None:
        """A session begins: its first entry must be known already, or be the very next one.

        Where no batch is held for this, only the number of a batch tells that the server has forgotten everything.
        """
        start, first = self._behind_ready(), places[0]
        if not start.file or self._accept_gap or (not start.held and not fetched.server_is_new):
            return
        if not start.is_followed_by(first) and not self._covers(start, first):
            raise PositionLost(
                f"Canal goes on at {fetched.entries.place(0)} and not where the job stopped: its cursor was lost or "
                "moved, and what lies between may be missing.",
                mend="Take a new snapshot, or run `cdc resume --accept-gap` if nothing was written between; let Canal "
                "keep its cursor (file-instance.xml or ZooKeeper), and no other client on this destination.",
                stopped_at=start,
                goes_on_at=fetched.entries.place(0),
            )

    def _first_new(self, entries: Entries, places: Places, first: int, last: int) -> int:
        """The first entry from ``first`` on that was not handed out before; ``last`` where none is new."""
        start = self._behind_ready()
        if not start.file:
            self._dropping = False
            return first
        new = first
        while new < last and self._covers(start, places[new]):
            new += 1
        newer = entries.index[first:new, kernels.TIME_MS] > (start.newest_ms or np.iinfo(np.int64).max)
        for number in (first + np.flatnonzero(newer)).tolist():
            if not self._accept_server and entries.has_rows(number) and self._decoder.maps(entries, number):
                raise WrongServer(
                    "Rows before our position are newer than all that was seen: Canal reads another server, or the "
                    "source's binlog was reset.",
                    mend="Take a new snapshot; `cdc resume --accept-server` goes on without these rows.",
                    stopped_at=start,
                    at=entries.place(number),
                )
        self._dropping = new == last
        return new

    def _covers(self, start: CanalPosition, place: CanalPosition) -> bool:
        """Whether ``start`` lies behind the entry at ``place``."""
        try:
            return start.reached(place)
        except ValueError as error:
            if self._accept_server:
                return False
            raise WrongServer(
                f"Canal reads another server: its binlog file is {place.file}.",
                mend="Let Canal read by GTIDs (canal.instance.gtidon), or take a new snapshot; `cdc resume "
                "--accept-server` goes on, where it is the same server under another log_bin name.",
                stopped_at=start,
                at=place,
            ) from error

    def _read_entries(self, entries: Entries, places: Places, first: int, last: int) -> None:
        index = entries.index[first:last]
        bare = (index[:, kernels.KIND] == kernels.ROW_DATA) & (index[:, kernels.ROWS] == 0)
        for number in (np.flatnonzero(bare) + first).tolist():
            if entries.index[number, kernels.EVENT] == EventKind.XA_COMMIT and not self._accept_gap:
                self._read_transactions(entries, places, first, number)
                first = number
                self._xa.check_commit(entries.text(number, kernels.SQL_AT), places[number])
            statement = self._statement(entries, number, places)
            if statement is None:
                continue
            if statement.dml:
                if left_out := self._tables.left_out_by(statement):
                    self._read_transactions(entries, places, first, number)  # what lies before goes out without the gap
                    self._tables.note_gaps(left_out)
                    first = number
                continue
            self._read_transactions(entries, places, first, number)
            # a statement of its own ends what came before it, also where the END did not come
            self._hand_out(statement.before)
            if self._tables.on_statement(statement):
                self._decoder.forget()
            self._open.length = 0
            self._open.add((), 0, entries, number, number + 1)
            self._hand_out(statement.after)
            first = number + 1
        self._read_transactions(entries, places, first, last)

    def _read_transactions(self, entries: Entries, places: Places, first: int, last: int) -> None:
        """Row entries and the edges of transactions, but for the undecided rows of XA transactions."""
        kinds = entries.index[:, kernels.KIND]
        for number, xid in edges(entries, first, last):
            if kinds[number] == kernels.BEGIN:
                continue
            before = np.flatnonzero((kinds[first:number] == kernels.END) | (kinds[first:number] == kernels.BEGIN))
            began = first + int(before[-1] if len(before) else 0)  # the edge before its rows, where that came with them
            mapped = {self._decoder.maps(entries, each) for each in range(began, number) if entries.has_rows(each)}
            tables = sorted(f"{name[0]}.{name[1]}" for name in mapped if name)
            tables += [] if len(before) else sorted({changes.schema.name for changes in self._open.changes} - {*tables})
            if not tables:
                continue
            # with the edge: it ends what came before it
            self._read_rows(entries, places, first, began + 1 if len(before) else first)
            self._open = _Open()
            self._leave_out(xid, tables)
            first = number
        self._read_rows(entries, places, first, last)

    def _leave_out(self, xid: str, tables: Sequence[str]) -> None:
        """Go on without rows that are not decided, or stop. Raises: SourceBlocked."""
        if not self._accept_gap:
            raise undecided(xid, ", ".join(tables))
        log.warning("going on without the rows of XA transaction %s in %s", xid, ", ".join(tables))

    def _statement(self, entries: Entries, number: int, places: Places) -> CanalStatement | None:
        """The statement of an entry without rows; None where it only tells the text behind row events."""
        entry = entries.index[number]
        event, sql = int(entry[kernels.EVENT]), entries.text(number, kernels.SQL_AT)
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
            int(entry[kernels.TIME_MS]),
        )

    def _read_rows(self, entries: Entries, places: Places, first: int, last: int) -> None:
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
            self._hand_out(replace(end, offset=end.offset + length, entry=0))
        elif len(begins) and self._open.length:
            # a BEGIN ends a transaction whose END did not come
            self._open.length = 0
            self._hand_out(replace(places[first], entry=0, gtid_set=""))
        if whole < last:
            self._take(entries, whole, last)
            self._open.xid = next((xid for _, xid in edges(entries, whole, last)), self._open.xid)

    def _take(self, entries: Entries, first: int, last: int) -> None:
        self._tables.place = self._behind_ready()
        changes, rows = self._decoder.changes(entries, first, last, self._sequence)
        self._sequence += rows
        self._open.add(changes, rows, entries, first, last)

    def _hand_out(self, place: CanalPosition, *, splits: bool = False) -> None:
        """What is open becomes a Batch that ends at ``place``, which ``splits`` a transaction that was whole so far."""
        before, taken = self._behind_ready(), self._open
        if not taken.entries and before.reached(place):
            return
        if taken.xid and taken.changes:  # too large for the ring, or its end has not come
            self._leave_out(taken.xid, sorted({changes.schema.name for changes in taken.changes}))
            taken.changes, taken.rows = [], 0
        last = replace(
            place,
            gtid_set=taken.gtid_set or place.gtid_set or before.gtid_set,
            newest_ms=max(before.newest_ms, taken.newest_ms),
            splits=before.splits + splits,
            held=self._holds,
        )
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
                self._tables.take_gaps(),
            )
        )
        self._open = _Open(length=taken.length)

    def _split_if_stuck(self) -> bool:
        """Hand out a piece of the transaction that fills the ring alone: only an ack lets its rest come."""
        if self._fetcher is None or not self._fetcher.stands_still or not self._covered(self._handed):
            return False
        if not self._open.entries:
            return False
        self._hand_out(self._at, splits=not self._handed.entry)
        return True

    def _end_if_lost(self) -> bool:
        """Hand out a transaction whose END Canal has swallowed, as it does where the last entry fills its buffer.

        Of other lengths only where somebody filters the edges of transactions away. Where it is Canal that pauses in
        the middle, the rest follows as that of a split transaction does.
        """
        taken = self._open
        patience_s = _FILTERED_END_S if taken.length % TRANSACTION_ENTRIES else _LOST_END_S
        if not taken.changes or taken.xid or time.monotonic() - taken.touched_at < patience_s:
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
        """Ack the server batches that end at or before what is committed, but for the one that is held."""
        while self._unacked and self._acked.file and self._is_covered() and not self._is_held():
            fetched = self._unacked.popleft().fetched
            if self._fetcher is not None:
                self._fetcher.ack(fetched)

    def _is_covered(self) -> bool:
        """Whether the oldest un-acked batch is committed. Of another name of binlog files, the next one tells."""
        for each in self._unacked:
            with suppress(ValueError):
                return self._acked.reached(each.last)
        return False

    def _is_held(self) -> bool:
        """Whether the oldest un-acked batch is the only one that a next session would know."""
        return self._acked.held and not (len(self._unacked) > 1 and self._covered(self._unacked[1].first))

    def _covered(self, end: CanalPosition) -> bool:
        try:
            return self._acked.reached(end)
        except ValueError:
            return False
