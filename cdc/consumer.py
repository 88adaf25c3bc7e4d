"""Consumer: Batch -> Channels -> checkpoint -> ack. The only one that touches receiver and checkpoints.

Where a row is::

    Gatherer.gather        enters through receiver.get; waits in its Channel
    Gatherer.start_tasks   leaves for a Task, which loads it into the sink while the cycle still gathers
    Committer.finish       all Tasks prepared, PREPARED saved, committed, COMMITTED saved; on a thread of its own
    _acknowledge           the source may forget it

Rows that were there before enter through ``_turn`` instead: chunks, read between two cycles.

While cycle N is with the Committer, cycle N+1 gathers; it closes only after N is COMMITTED and acknowledged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from cdc.batch import Batch, PreparedLoad
from cdc.checkpoint import ChannelCounts, Checkpoint, CheckpointState
from cdc.commit import Committer, is_turn, last_of, utc_now
from cdc.cycle import Closed, GivenUp, Loading
from cdc.errors import (
    Answer,
    CdcError,
    LoadLost,
    SchemaChanged,
    SchemaMismatch,
    SinkBusy,
    SourceError,
    SourceRewound,
    decide,
)
from cdc.gather import Gatherer
from cdc.parts import Limits, Parts, Widening
from cdc.position import Position
from cdc.recovery import Recovery
from cdc.reload import Reload, lost_targets
from cdc.snapshot.chunks import TableSnapshot
from cdc.taking_in import restored
from cdc.turns import Request, Turn, Turns
from spark.chunks import TurnOutcome

MISFIT_S = 10.0  # at its end the stream has every statement that was executed this long ago
TIDY_S = 5.0  # between tables that are quiet: each is looked at within an hour where there are hundreds
WIND_UP_S = 5.0  # pause and SIGTERM give an OPEN cycle this long
_POLL_S = 0.1  # how soon a request or a commit that is done is noticed while the source is quiet
_BUSY_POLL_S = 0.02  # the same while something is under way
_ALL_ROWS = "1 = 1"  # as a condition: nothing is deleted, which takes a sink that tells its keys

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


class Ended(Enum):
    """Why a run of the Consumer ended without an error."""

    STOPPED = "stopped"  # it was asked to
    FINISHED = "finished"  # the source has an end, and all of it is committed


@dataclass(frozen=True, slots=True)
class ChannelProgress:
    """How a channel is."""

    source: str
    target: str
    buffered_rows: int
    counts: ChannelCounts
    snapshot: TableSnapshot | None = None
    impossible_dates: int = 0  # since the run's start


@dataclass(frozen=True, slots=True)
class Progress:
    """How a run is."""

    position: Position  # everything before it is visible
    lag_s: float | None  # None where the source tells no commit times
    checkpoint: Checkpoint  # PREPARED and being committed, else the last COMMITTED one
    channels: tuple[ChannelProgress, ...]
    waits_for: CdcError | None  # a sink that is away while a commit is under way
    trouble: CdcError | None = None  # what is wrong with the source though rows may come
    window_bytes: int = 0  # rows in memory that no Task has taken


class Consumer:
    """One run: from recovery until it is asked to stop, its source ends or an error ends it.

    Calls: ``run`` once, on one thread; ``stop`` and ``progress`` from any.
    """

    def __init__(
        self,
        parts: Parts,
        limits: Limits,
        *,
        sequence: int = 0,
        now: Callable[[], float] = time.monotonic,
        widening: Widening | None = None,  # outlives the run
    ) -> None:
        self.sequence = sequence  # highest one handed out; a later run of this process starts above it
        self._parts = parts
        self._receiver = parts.receiver
        self._asked_for, self._widening = limits, widening or Widening(now)
        self._now = now
        self._stopping = threading.Event()
        self._committer = Committer(parts.run, parts.store, parts.sink, self._stopping, self._widening.busy)
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
        self._gatherer: Gatherer | None = None  # once recovered
        self._closed: Closed | None = None  # the cycle before, while it is with the Committer
        self._committing: Future[Checkpoint] | None = None
        self._committed: Checkpoint | None = None
        # a merge that outlasts the interval keeps the next cycle open by as long; not where acks are waited for
        self._close_not_before = 0.0
        self._is_at_end = False
        self._turns: Turns | None = None  # once recovered, where there is something to read
        self._misfit: tuple[Position, float] | None = None  # a table was found changed: where and since when
        self._next_turn = 0.0  # the stream goes on until then, or until it stands at its end
        self._tidying: Future[None] | None = None
        self._tidy_next, self._tidy_at = 0, now() + TIDY_S

    # from other threads

    def stop(self) -> None:
        """Ask ``run`` to finish what is PREPARED, close or abort what is OPEN, and return."""
        self._stopping.set()

    def request_snapshot(self, request: Request) -> None:
        """Load a table again, from the next turn on. Harmless where there is no snapshot to make."""
        if self._turns is not None:
            self._turns.request(request)

    def progress(self) -> Progress | None:
        """How it is at this moment; None until it has recovered."""
        committed, closed, gatherer = self._committed, self._closed, self._gatherer
        if committed is None:
            return None
        channels = gatherer.channels.copy() if gatherer else {}
        dates = self._receiver.impossible_dates()
        return Progress(
            position=last_of(committed),
            lag_s=self._lag_s(),
            checkpoint=closed.checkpoint if closed and closed.is_prepared else committed,
            channels=tuple(
                ChannelProgress(
                    source,
                    channel.target.name,
                    channel.buffered_rows,
                    committed.counts.get(source, ChannelCounts()),
                    committed.snapshots.get(source),
                    dates.get(source, 0),
                )
                for source, channel in sorted(channels.items())
            ),
            waits_for=self._committer.trouble,
            trouble=self._receiver.trouble(),
            window_bytes=self._receiver.window_bytes(),
        )

    def _lag_s(self) -> float | None:
        """Seconds since the commit of the oldest transaction that was received and is not visible."""
        closed, gatherer = self._closed, self._gatherer
        cycles = (closed, gatherer.cycle if gatherer else None)
        oldest = [cycle.oldest_commit_us for cycle in cycles if cycle and cycle.oldest_commit_us is not None]
        if not oldest and self._is_at_end:
            return 0.0
        newest = gatherer.newest_commit_us if gatherer else None
        since_us = min(oldest) if oldest else newest
        return None if since_us is None else max(0.0, time.time() - since_us / 1e6)

    # the run

    def run(self, resolve_start: Callable[[], Position], recovered: Callable[[], None] = lambda: None) -> Ended:
        """Recover, call ``recovered``, then carry rows until there is a reason to end.

        Raises: what ended it; sink and state are as recovery wants them, whatever it was.
        """
        try:
            whole = restored(self._parts)
            recovery = Recovery(self._parts, self._limits, self._committer, self.sequence, self._stopping)
            self._committed = recovery.run(resolve_start)
            sequence = max(self.sequence, self._committed.sequence)
            self._gatherer = Gatherer(self._parts, last_of(self._committed), sequence)
            if self._parts.snapshot is not None:
                self._turns = Turns(self._parts, self._parts.snapshot, self._gatherer.channel_for)
                self._turns.begin(self._committed.snapshots, whole)
            recovered()
            return self._carry(self._gatherer)
        except GivenUp as error:
            _log.info("stopped %s", error)
            return Ended.STOPPED
        except SinkBusy:
            self._widening.busy()
            raise
        finally:
            self._end()

    def _carry(self, gatherer: Gatherer) -> Ended:
        if self._turns is not None:
            self._save_snapshots(gatherer)  # people see at once what is to be loaded
        while not self._stopping.is_set():
            self._settle()
            if gatherer.cycle.is_full(self._limits) and not self._may_close:
                self._stopping.wait(_BUSY_POLL_S)
                continue
            if self._turn_is_due and gatherer.is_fresh:
                if self._committing is not None:  # gathering on would put the turn off for as long as rows come
                    self._stopping.wait(_BUSY_POLL_S)
                    continue
                self._turn(gatherer)
            try:
                batch = self._gather()
            except SourceRewound as error:
                _log.warning("gathering again: %s", error)
                self._abort_open()
                continue
            except Exception as error:
                self._save_what_is_whole(error)
                raise
            if batch is None and self._receiver.finished():
                self._close_and_commit("end")
                if self._receiver.finished():  # not after a rollback, which a lost load makes
                    return Ended.FINISHED
            self._look_for_close(batch)
        self._wind_up()
        return Ended.STOPPED

    def _gather(self) -> Batch | None:
        """See ``Gatherer.gather``. What the Batch lacks is asked for before its end can be saved."""
        batch = self._gathering.gather(self._patience_s(), self._now())
        if batch is not None and batch.gaps:
            self._close_gaps(batch.gaps)
        return batch

    def _close_gaps(self, tables: Iterable[str]) -> None:
        """Changes of these were left out: what the source holds by now replaces them, deletes where the sink can."""
        sweeps = self._parts.sink.tells_keys
        for table in sorted(tables):
            if self._turns is None:
                _log.warning("%s lacks changes now, and this source has no tables to load it again from", table)
                continue
            if not sweeps:
                _log.warning("rows of %s that should be gone stay: this sink cannot tell its keys", table)
            self._turns.request(Request(table, where=None if sweeps else _ALL_ROWS))

    @property
    def _limits(self) -> Limits:
        return self._widening.over(self._asked_for)

    @property
    def _gathering(self) -> Gatherer:
        if self._gatherer is None:
            raise RuntimeError("the run has not recovered yet")
        return self._gatherer

    def _patience_s(self) -> float:
        """How long to wait for the source: not beyond the moment when the cycle should close."""
        if self._committing is not None:
            return _BUSY_POLL_S
        began = self._gathering.cycle.began
        if began is None:
            return _POLL_S
        return min(_POLL_S, max(_BUSY_POLL_S, began + self._limits.interval_s - self._now()))

    # closing, committing, acknowledging

    def _look_for_close(self, batch: Batch | None) -> None:
        """Start the Tasks that are due, and close the cycle if it is due."""
        gatherer = self._gathering
        self._tidy_quiet(gatherer)
        gatherer.start_tasks(at_least=self._limits.task_bytes)
        waits_for_ack = gatherer.make_room()
        self._is_at_end = self._receiver.at_end()
        idle = batch is None and self._is_at_end
        reason = gatherer.cycle.closed_by(self._limits, self._now(), idle=idle, window_full=waits_for_ack)
        if reason is None and gatherer.cycle.may_close and self._turn_is_due:
            reason = "snapshot"
        if reason is not None and (self._may_close or (waits_for_ack and self._committing is None)):
            self._close(reason)
        elif idle and self._turns is not None and self._committing is None and gatherer.is_fresh:
            self._save_snapshots(gatherer)

    def _save_snapshots(self, gatherer: Gatherer) -> None:
        """A quiet source closes no cycle in which it would be saved that tables have become consistent."""
        before = self._committed
        if before is None:
            return
        if (
            self._snapshots(before, gatherer.cycle.first) != before.snapshots
            or self._parts.routes.left_out != before.left_out
        ):
            self._save_empty(before, gatherer.cycle.first, "snapshot")

    @property
    def _may_close(self) -> bool:
        return self._committing is None and self._now() >= self._close_not_before

    def _close(self, reason: str) -> None:
        """The cycle gathers no more: the Committer takes it over, and the next one begins."""
        gatherer, before = self._gathering, self._committed
        opened, cycle = gatherer.close(), gatherer.cycle
        if before is None or cycle.began is None:
            raise RuntimeError("there is nothing to close")
        gatherer.begin(cycle.last)
        if opened is None:
            self._save_empty(before, cycle.last, reason)
            return
        opened = replace(opened, schemas=gatherer.schemas, snapshots=self._snapshots(before, cycle.last))
        opened = replace(opened, left_out=self._parts.routes.left_out)
        self._closed = cycle.close(opened, before, reason, self._now() - cycle.began)
        self._committing = self._threads.submit(self._committer.finish, self._closed)

    def _save_empty(self, before: Checkpoint, last: Position, reason: str) -> None:
        """Nothing to load: the place alone is saved, and the sink is left in peace."""
        committed = Checkpoint(
            self._parts.store.next_id(),
            self._parts.run.fence,
            CheckpointState.COMMITTED,
            first=last_of(before),
            last=last,
            schemas=self._gathering.schemas,
            sequence=before.sequence,
            closed_by=reason,
            committed_at=utc_now(),
            counts=before.counts,
            snapshots=self._snapshots(before, last),
            targets=before.targets,
            sink=before.sink,
            left_out=self._parts.routes.left_out,
        )
        self._parts.store.save(committed)
        self._acknowledge(committed)

    def _snapshots(self, before: Checkpoint, last: Position) -> Mapping[str, TableSnapshot]:
        if self._turns is None:
            return before.snapshots
        return self._turns.at(last, [*self._gathering.channels], at_end=self._is_at_end)

    def _acknowledge(self, committed: Checkpoint) -> None:
        """Everything up to its end is visible and saved: the source may forget it."""
        self._committed = committed
        if not is_turn(committed):
            self._receiver.ack(last_of(committed))

    def _settle(self) -> None:
        """Look after Tasks that have started, Tasks that failed, and a commit that is done.

        Raises: what a Task or the commit has raised.
        """
        committing, closed = self._committing, self._closed
        self._gathering.watch(closed.loading if closed else ())
        if committing is None or closed is None or not committing.done():
            return
        try:
            committed = committing.result()
        except LoadLost as error:
            if is_turn(closed.checkpoint):
                committed = self._give_back(closed.checkpoint)
            else:
                committed = self._load_again(closed.checkpoint, error)
        self._committing = self._closed = None
        self._acknowledge(committed)
        self._close_not_before = self._now() + max(0.0, self._committer.merge_s - self._limits.interval_s)
        self._threads.submit(self._maintain, closed.targets)

    def _wait_for_commit(self, deadline: float | None = None) -> None:
        """Until the cycle before is COMMITTED and acknowledged; once a stop is asked for, not for long if OPEN."""
        while self._committing is not None:
            if deadline is None and self._stopping.is_set():
                deadline = self._now() + WIND_UP_S
            if deadline is not None and self._now() >= deadline and self._closed is not None:
                self._closed.give_up()
            wait([self._committing], _BUSY_POLL_S)
            self._settle()

    def _close_and_commit(self, reason: str, deadline: float | None = None) -> None:
        self._wait_for_commit(deadline)
        if self._gathering.cycle.may_close:
            self._close(reason)
            self._wait_for_commit(deadline)

    @property
    def _reload(self) -> Reload:
        return Reload(self._parts, self._limits, self._stopping)

    def _load_again(self, prepared: Checkpoint, error: LoadLost) -> Checkpoint:
        """The sink lost loads: nothing newer commits before the range is read and loaded again."""
        before = self._committed
        if before is None:
            raise RuntimeError("there is nothing that a checkpoint could follow")
        self._gathering.discard()
        self._gathering.begin(last_of(prepared))
        committed = None
        while committed is None:
            self._receiver.rollback(prepared.first)
            prepared = self._reload.run(prepared, lost_targets(prepared, error), before)
            try:
                committed = self._committer.roll_forward(prepared)
            except LoadLost as again:
                error = again
        self._reload.tidy(committed)
        # the last Batch read may have ended behind the range
        self._receiver.ack(last_of(committed))
        self._receiver.rollback(last_of(committed))
        return committed

    def _tidy_quiet(self, gatherer: Gatherer) -> None:
        """Now and then one table, committed or not: what its last commits replaced may go only after retention."""
        if self._now() < self._tidy_at or (self._tidying is not None and not self._tidying.done()):
            return
        self._tidy_at = self._now() + TIDY_S
        names = sorted({channel.target.name for channel in gatherer.channels.values()})
        if names:
            self._tidy_next += 1
            name = names[self._tidy_next % len(names)]
            self._tidying = self._threads.submit(self._maintain, frozenset({name}))

    def _maintain(self, targets: frozenset[str]) -> None:
        """Housekeeping of the sink, on the commit thread and so never beside a commit."""
        try:
            self._parts.store.check_fence()
            self._parts.sink.maintain(self._gathering.targets(targets))
        except Exception as error:  # noqa: BLE001 - an untidy table loses nothing, and the next commit tries again
            _log.warning("housekeeping failed: %s", error)

    # the snapshot

    @property
    def _turn_is_due(self) -> bool:
        """Whether the stream lets a turn of the snapshot in: after some time of its own, or at its end.

        Not while Spark starts: a turn would wait for it, and the stream for the turn.
        """
        turns = self._turns
        if turns is None or not turns.is_due or self._parts.runner.is_warming:
            return False
        return self._receiver.at_end() or self._now() >= self._next_turn

    def _turn(self, gatherer: Gatherer) -> None:
        """Read some chunks at the place where the stream stands, and close them as a checkpoint of their own."""
        self._save_snapshots(gatherer)  # what is asked for outlives a turn that is lost
        turns, settings, before = self._turns, self._parts.snapshot, self._committed
        if turns is None or settings is None or before is None:
            raise RuntimeError("there is no snapshot to make")
        began = self._now()
        turn = None
        try:
            turn = turns.next(gatherer.cycle.first, gatherer.sequence, self._parts.store.next_id())
        except SchemaMismatch as error:
            self._await_statement(error, gatherer.cycle.first)
        self._next_turn = self._now() + settings.turn_s
        if turn is None:
            return
        opened, outcome, snapshots = gatherer.open(), None, None
        try:
            outcome = self._read(turn)
            snapshots = turns.after(turn, outcome, self._now() - began) if outcome is not None else None
        except SchemaMismatch as error:
            self._await_statement(error, gatherer.cycle.first)
        self._next_turn = self._now() + settings.turn_s
        if outcome is None or snapshots is None:
            gatherer.discard()
            gatherer.begin(gatherer.cycle.first)
            return
        loads: Future[tuple[PreparedLoad, ...]] = Future()
        loads.set_result(outcome.loads)
        read = replace(
            opened,
            last=opened.first,
            schemas=gatherer.schemas,
            rows=sum(one.rows for one in outcome.chunks),
            bytes=sum(one.bytes for one in outcome.chunks),
            sequence=max(before.sequence, gatherer.sequence),
            closed_by="snapshot",
            seconds={"gather": self._now() - began},
            counts=before.counts,
            snapshots=snapshots,
            targets=before.targets,
            sink=before.sink,
            left_out=self._parts.routes.left_out,
        )
        gatherer.begin(gatherer.cycle.first)
        self._closed = Closed(read, [Loading("", 0, 0, 0, read.sequence, loads, taken=True)], None)
        self._committing = self._threads.submit(self._committer.finish, self._closed)

    def _await_statement(self, error: SchemaMismatch, place: Position) -> None:
        """A table was changed, and the stream, which has the statement ahead of it, decides. Raises: it has none."""
        if self._misfit is None or self._misfit[0] != place:
            self._misfit = place, self._now()
            _log.warning("the snapshot waits for the stream: %s", error)
        elif self._receiver.at_end() and self._now() - self._misfit[1] > MISFIT_S:
            raise SchemaMismatch(
                f"{error.message} The binlog has no statement of it.",
                mend="Undo the change, then `cdc resume`; or `cdc stop` the job, and load the table as it is with "
                "a job of another name, into an empty target.",
                **error.where,
            ) from error

    def _read(self, turn: Turn) -> TurnOutcome | None:
        """What came of the turn; None where a stop came before its end."""
        runner = self._parts.runner
        if turn.reading is not None:
            return self._awaited(runner.submit_reading(turn.reading))
        if turn.sweep is None:
            raise RuntimeError("a turn reads or sweeps")
        swept = self._threads.submit(turn.sweep)
        self._awaited(swept)
        if not swept.done():
            return None
        task = swept.result()
        if task is None:
            return TurnOutcome((), ())
        loads = self._awaited(runner.submit([task])[0])
        return None if loads is None else TurnOutcome(loads, ())

    def _awaited(self, future: Future[_Result]) -> _Result | None:
        while not future.done():
            if self._stopping.is_set():
                return None
            self._is_at_end = self._receiver.at_end()
            wait([future], _POLL_S)
        return future.result()

    def _give_back(self, prepared: Checkpoint) -> Checkpoint:
        """The sink lost chunks of a turn: they count as not read."""
        before = self._committed
        if before is None or self._turns is None:
            raise RuntimeError("a turn comes after a checkpoint")
        committed = self._committer.give_back(prepared, before)
        self._turns.tables = committed.snapshots
        return committed

    # stopping

    def _save_what_is_whole(self, error: Exception) -> None:
        """The source cannot go on: what lies before that place is committed, alone."""
        cycle = self._gathering.cycle
        boundary, has_whole = cycle.last, cycle.last != cycle.first
        if cycle.inside_transaction:
            self._abort_open()
        else:
            self._wait_for_commit()
        if not has_whole:
            return
        if not self._gathering.cycle.last.reached(boundary):
            if decide(error) is not Answer.PAUSE:
                return  # it may pass by itself, and then all of it is read again
            self._gather_up_to(boundary)
        self._close_and_commit("ddl" if isinstance(error, SchemaChanged) else "pause")

    def _gather_up_to(self, boundary: Position) -> None:
        gatherer = self._gathering
        while gatherer.cycle.inside_transaction or not gatherer.cycle.last.reached(boundary):
            if self._stopping.is_set():
                raise GivenUp("while reading whole transactions again")
            self._move_one_batch()

    def _move_one_batch(self) -> None:
        self._settle()
        self._gather()
        self._gathering.start_tasks(at_least=self._limits.task_bytes)
        self._gathering.make_room()

    def _wind_up(self) -> None:
        """A pause or a signal: finish, within a few seconds, what can be finished."""
        deadline = self._now() + WIND_UP_S
        with suppress(SourceError):  # it will come again at the next start
            while self._gathering.cycle.inside_transaction and self._now() < deadline:
                self._move_one_batch()
        if self._now() < deadline:
            self._close_and_commit("pause", deadline)
        else:
            self._wait_for_commit(deadline)
        if self._turns is not None and self._committing is None and self._gathering.is_fresh:
            self._save_snapshots(self._gathering)

    def _abort_open(self) -> None:
        """Gather the cycle again from its first Position on."""
        self._wait_for_commit()
        gatherer = self._gathering
        gatherer.discard()
        self._receiver.rollback(gatherer.cycle.first)
        gatherer.begin(gatherer.cycle.first)

    def _end(self) -> None:
        """Leave nothing under way. What cannot be tidied now is tidied by the next recovery."""
        self._stopping.set()
        try:
            self._end_commit()
            if self._gatherer is not None:
                self.sequence = self._gatherer.sequence
                closed = self._closed if self._closed is not None and not self._closed.is_prepared else None
                self._gatherer.discard()
                if closed is not None:
                    self._gatherer.abort(closed.checkpoint)
        except Exception as error:  # noqa: BLE001 - the error that ends the run is already on its way
            _log.warning("an OPEN checkpoint is left to the next start: %s", error)
        finally:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._receiver.close()

    def _end_commit(self) -> None:
        if self._committing is None or self._closed is None:
            return
        wait([self._committing], WIND_UP_S)
        self._closed.give_up()  # has no effect on what is PREPARED
        if self._committing.exception() is None:
            self._closed = None
            self._acknowledge(self._committing.result())
