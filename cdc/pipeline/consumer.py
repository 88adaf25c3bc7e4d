"""Consumer: Batch -> Channels -> checkpoint -> ack. Only this package uses the receiver and saves checkpoints.

The steps of a row through one commit cycle::

    Dispatcher.dispatch      gets the row from the receiver and buffers it in its Channel
    Dispatcher.start_tasks   starts a Task, which loads the row into the sink while the cycle is still open
    Cycles.close             closes the cycle between two transactions and passes it to the commit thread
    Committer.finish         waits until all Tasks are prepared, saves PREPARED, commits, saves COMMITTED
    Cycles.acknowledge       acks the cycle to the receiver, which frees its memory; Canal gets an ack, MySQL nothing

Between two cycles, ``BoundarySteps`` load rows that existed before the job, and compare source and target.

While cycle N commits, cycle N+1 reads. N+1 closes only after N is COMMITTED and acknowledged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from enum import Enum

from cdc.errors import CdcError, DdlStop, ErrorAction, SinkBusy, SourceError, action_for
from cdc.model.batch import Batch
from cdc.model.position import Position
from cdc.model.snapshot import SnapshotRequest, SnapshotState
from cdc.pipeline.boundary_steps import BoundarySteps
from cdc.pipeline.commit_cycle import Cancelled
from cdc.pipeline.commit_thread import CommitThread
from cdc.pipeline.committer import Committer, last_of
from cdc.pipeline.cycles import Cycles
from cdc.pipeline.dispatcher import CANCEL_S, Dispatcher
from cdc.pipeline.flow_control import BUSY_POLL_S, CommitLimits, FlowControl
from cdc.pipeline.maintenance import MaintenanceSchedule
from cdc.pipeline.omitted_tables import restore_tables
from cdc.pipeline.progress import Progress, progress_of
from cdc.pipeline.range_reads import RangeReads
from cdc.pipeline.recovery import Recovery
from cdc.pipeline.schema_changes import prepare_change
from cdc.run_context import RunContext
from cdc.snapshot.coordinator import SnapshotCoordinator
from cdc.sources.base import RangePlanner
from cdc.state.base import Checkpoint, CloseReason
from cdc.verify.session import VerifySession
from channels.sinks.base import can_alter, can_list_keys

_ALL_ROWS = "1 = 1"  # a snapshot with a condition deletes no orphan rows, as the sink cannot list its keys

_log = logging.getLogger(__name__)


class Ended(Enum):
    """Why a run of the Consumer ended without an error."""

    STOPPED = "stopped"  # a stop was requested
    FINISHED = "finished"  # the source has an end, and everything up to it is committed
    CHANGING = "changing"  # a schema change is PREPARED: the recovery of the next run makes it


class Consumer:
    """One run: recovery, then commit cycles until a stop is requested, the source ends or an error occurs.

    Calls: ``run`` once, on one thread; ``stop`` and ``progress`` from any thread.
    """

    def __init__(
        self,
        context: RunContext,
        limits: CommitLimits,
        *,
        sequence: int = 0,
        now: Callable[[], float] = time.monotonic,
        flow: FlowControl | None = None,  # used by all runs of the job
        on_wait: Callable[[CdcError | None], None] = lambda reason: None,
    ) -> None:
        """Prepare a run. Its thread calls ``on_wait(reason)`` when a commit begins to wait, then ``on_wait(None)``.

        An exception from ``on_wait`` ends the run.
        """
        self.sequence = sequence  # highest used sequence; the next run of this process starts above it
        self._context = context
        self._receiver = context.receiver
        self._flow = flow or FlowControl(now)
        self._flow.begin_run(limits)
        self._now = now
        self._stopping = threading.Event()
        committer = Committer(context.run, context.store, context.sink, self._stopping, self._flow.note_overload)
        self._commits = CommitThread(committer, on_wait)
        self._maintenance = MaintenanceSchedule(context, self._stopping, now)
        self._cycles: Cycles | None = None  # after recovery
        self._steps: BoundarySteps | None = None  # after recovery, if the source has tables
        self._ranges: RangeReads | None = None  # after recovery, if executors read the stream

    # from other threads

    def stop(self) -> None:
        """Ask ``run`` to commit what is PREPARED, to close or abort the open cycle, and to return."""
        self._stopping.set()
        if self._cycles is None and can_alter(self._context.sink):
            self._context.sink.stop_altering()  # the recovery may wait for a change of a target

    def progress(self) -> Progress | None:
        """Return the progress of the run; None during recovery."""
        cycles = self._cycles
        if cycles is None:
            return None
        closed = self._commits.closed
        return progress_of(self._context, cycles.committed, closed, cycles.dispatcher, at_end=cycles.is_at_end)

    # the run

    def run(self, resolve_start: Callable[[], Position], recovered: Callable[[], None] = lambda: None) -> Ended:
        """Recover, call ``recovered``, then run commit cycles until a stop or the end of the source.

        Raises: the error that ended the run. The next recovery can continue from any error.
        """
        try:
            whole = restore_tables(self._context)
            recovery = Recovery(self._context, self._flow, self._commits.committer, self.sequence, self._stopping)
            committed = recovery.run(resolve_start)
            if committed.closed_by is not CloseReason.START:
                self._flow.note_waiting_rows()
            cycles = self._create_cycles(committed, whole)
            recovered()
            return self._run_cycles(cycles)
        except Cancelled as error:
            _log.info("stopped %s", error)
            return Ended.STOPPED
        except SinkBusy:
            self._flow.note_overload()
            raise
        finally:
            self._clean_up()

    def _create_cycles(self, committed: Checkpoint, whole: Collection[str]) -> Cycles:
        """Create the components that need the recovered checkpoint. ``whole``: tables that need a full snapshot."""
        context, settings, coordinator, session = self._context, self._context.snapshot, None, None
        snapshots = committed.snapshots if settings is not None else {}
        waiting = frozenset(name for name, one in snapshots.items() if one.state is SnapshotState.WAITING)
        dispatcher = Dispatcher(context, last_of(committed), max(self.sequence, committed.sequence), waiting)
        if settings is not None:
            coordinator = SnapshotCoordinator(context, settings, dispatcher.channel_for)
            session = VerifySession(context, settings, dispatcher.channel_for, self._now)
            session.begin(committed.verify)
        cycles = self._cycles = Cycles(
            context, self._flow, self._commits, self._maintenance, self._stopping, self._now,
            dispatcher=dispatcher, committed=committed, coordinator=coordinator, session=session,
        )  # fmt: skip
        if settings is not None and coordinator is not None and session is not None:
            self._steps = BoundarySteps(
                context, settings, coordinator, cycles, session, self._commits, self._stopping, self._now
            )
            self._steps.begin(whole)
        if isinstance(self._receiver, RangePlanner) and self._receiver.plans:
            self._ranges = RangeReads(context, self._receiver, cycles, self._flow, self._stopping, self._now)
        # Columns are saved before a target is created with them: else the run after a stop without a commit would begin
        # with the columns of that day, and the targets would not fit. The status shows the pending snapshots at once.
        cycles.save_state()
        dispatcher.join_all()
        return cycles

    def _run_cycles(self, cycles: Cycles) -> Ended:
        """Repeat until a stop or the end of the source: get a Batch, start Tasks, close the cycle when it is due.

        A due step runs between two cycles. Before an error of the source ends the run, the whole transactions
        are committed.
        """
        while not self._stopping.is_set():
            cycles.poll_tasks()
            cycles.dispatcher.join_new(cycles.committed.schemas)
            if self._flow.is_full(cycles.dispatcher.cycle) and not cycles.may_close:
                self._stopping.wait(BUSY_POLL_S)
                continue
            if self._steps is not None and self._steps.is_due and cycles.dispatcher.is_fresh:
                # do not read more rows of the stream: a steady stream would delay the step without limit
                if not self._steps.may_begin:
                    self._stopping.wait(BUSY_POLL_S)
                    continue
                self._steps.take()
            try:
                batch = self._dispatch(cycles)
            except Exception as error:
                if action_for(error) is not ErrorAction.ABORT_OPEN:
                    self._commit_whole_transactions(cycles, error)
                    if isinstance(error, DdlStop) and prepare_change(self._context, cycles.committed, error):
                        return Ended.CHANGING
                    raise
                _log.warning("reading the open cycle again: %s", error)
                cycles.abort_open()
                continue
            if batch is None and self._receiver.status().is_finished:
                cycles.close_and_commit(CloseReason.END)
                cycles.dispatcher.join_new(cycles.committed.schemas)  # tables without rows
                if self._receiver.status().is_finished:  # False after a replay, which rolls the receiver back
                    return Ended.FINISHED
            self._check_close(cycles, batch)
        self._shut_down(cycles)
        return Ended.STOPPED

    def _dispatch(self, cycles: Cycles) -> Batch | None:
        """Get and buffer a Batch. Request snapshots of tables with missing changes before its end can be saved.

        Return None too if executors have read a range instead.
        """
        dispatcher = cycles.dispatcher
        if self._ranges is not None:
            self._ranges.request()
        batch = dispatcher.dispatch(self._flow.poll_s(dispatcher.cycle, committing=self._commits.is_busy), self._now())
        if batch is not None and batch.is_planned and self._ranges is not None:
            self._ranges.take(batch)
            return None
        if batch is not None and self._cycles is not None and self._cycles.session is not None:
            self._cycles.session.note_changes(batch)
        if batch is not None and batch.gaps:
            self._close_gaps(batch.gaps)
        return batch

    def _close_gaps(self, tables: Iterable[str]) -> None:
        """Request snapshots of tables with omitted changes. They delete orphan rows if the sink can list its keys."""
        coordinator = self._cycles.coordinator if self._cycles is not None else None
        deletes = can_list_keys(self._context.sink)
        for table in sorted(tables):
            if coordinator is None:
                _log.warning("changes of %s are missing, and this source has no tables for a snapshot", table)
                continue
            if not deletes:
                _log.warning("rows that the source deleted remain in %s: this sink cannot list its keys", table)
            coordinator.requests.add(SnapshotRequest(table, where=None if deletes else _ALL_ROWS))

    def _check_close(self, cycles: Cycles, batch: Batch | None) -> None:
        """Start the Tasks that are due, and close the cycle if a limit is reached."""
        dispatcher = cycles.dispatcher
        self._maintenance.poll(dispatcher)
        dispatcher.start_tasks(self._flow.task_bytes(len(dispatcher.cycle.loading)))
        status = self._receiver.status()
        waits_for_ack = self._flow.relieve_window(dispatcher, status)
        cycles.is_at_end = status.is_at_end
        idle = batch is None and cycles.is_at_end
        reason = self._flow.close_reason(dispatcher.cycle, idle=idle, window_full=waits_for_ack)
        if reason is None and dispatcher.cycle.may_close and self._is_step_due:
            reason = CloseReason.SNAPSHOT
        if reason is not None and (cycles.may_close or (waits_for_ack and not self._commits.is_busy)):
            cycles.close(reason)
        elif idle and cycles.coordinator is not None and not self._commits.is_busy and dispatcher.is_fresh:
            cycles.save_at_rest()

    @property
    def _is_step_due(self) -> bool:
        return self._steps is not None and self._steps.is_due

    # the end

    def _commit_whole_transactions(self, cycles: Cycles, error: Exception) -> None:
        """Commit the whole transactions before the position at which ``error`` stopped the source."""
        cycle = cycles.dispatcher.cycle
        boundary, has_whole = cycle.last, cycle.last != cycle.first
        if cycle.inside_transaction:
            cycles.abort_open()
        else:
            cycles.wait_for_commit()
        if not has_whole:
            return
        if not cycles.dispatcher.cycle.last.reached(boundary):
            if action_for(error) is not ErrorAction.PAUSE:
                return  # a replay rolled the receiver back; the next run reads these transactions again
            while cycles.dispatcher.cycle.inside_transaction or not cycles.dispatcher.cycle.last.reached(boundary):
                if self._stopping.is_set():
                    raise Cancelled("while reading whole transactions again")
                self._load_one_batch(cycles)
        cycles.close_and_commit(CloseReason.DDL if isinstance(error, DdlStop) else CloseReason.PAUSE)

    def _load_one_batch(self, cycles: Cycles) -> None:
        cycles.poll_tasks()
        self._dispatch(cycles)
        cycles.dispatcher.start_tasks(self._flow.task_bytes(len(cycles.dispatcher.cycle.loading)))
        self._flow.relieve_window(cycles.dispatcher, self._receiver.status())

    def _shut_down(self, cycles: Cycles) -> None:
        """Commit what can be committed within ``SHUTDOWN_S``, after a pause or a signal."""
        deadline = cycles.shutdown_deadline()
        with suppress(SourceError):  # the next start gets the same error
            while cycles.dispatcher.cycle.inside_transaction and self._now() < deadline:
                self._load_one_batch(cycles)
        if self._now() < deadline:
            cycles.close_and_commit(CloseReason.PAUSE, deadline)
        else:
            cycles.wait_for_commit(deadline)
        if cycles.coordinator is not None and not self._commits.is_busy and cycles.dispatcher.is_fresh:
            cycles.save_state()

    def _clean_up(self) -> None:
        """Abort the open cycle, and close threads and receiver. The next recovery repeats what fails here."""
        self._stopping.set()
        try:
            if self._cycles is not None:
                self.sequence = self._cycles.dispatcher.sequence
                self._cycles.end()
            else:
                self._context.runner.cancel(CANCEL_S)  # what a replay has started
        except Exception as error:  # noqa: BLE001 - the error that ended the run is more important
            _log.warning("the next start aborts the OPEN checkpoint: %s", error)
        finally:
            self._commits.close()
            self._maintenance.close()
            self._receiver.close()
