"""The work between two cycles of the stream: snapshot steps first, then verification steps.

A snapshot step reads its rows while the previous one is committed. It is committed after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from cdc.pipeline.commit_thread import CommitThread
from cdc.pipeline.cycles import Cycles
from cdc.pipeline.verify_steps import VerifySteps
from cdc.run_context import RunContext, SnapshotSettings
from cdc.snapshot.coordinator import SnapshotCoordinator
from cdc.snapshot.step import StepRunner
from cdc.verify.session import VerifySession
from channels.sinks.base import can_list_keys


class BoundarySteps:
    """Runs a step at a cycle boundary, where the stream is committed. Calls: the Consumer's thread."""

    def __init__(
        self,
        context: RunContext,
        settings: SnapshotSettings,
        coordinator: SnapshotCoordinator,
        cycles: Cycles,
        session: VerifySession,
        commits: CommitThread,
        stopping: threading.Event,
        now: Callable[[], float],
    ) -> None:
        self._sink = context.sink
        self._cycles = cycles
        self._coordinator = coordinator
        self._snapshot = StepRunner(
            context, settings, coordinator, commits.submit, stopping, on_poll=cycles.poll, now=now
        )
        self._verify = VerifySteps(
            context, session, settings.step_s, commits.submit, stopping, on_poll=cycles.poll, now=now
        )

    def begin(self, whole: Collection[str]) -> None:
        """Restore the saved progress. ``whole``: tables that need a full snapshot. Raises: SourceUnavailable."""
        committed = self._cycles.committed
        dropped = [schema.name for schema in committed.schemas if schema.is_dropped]
        written = [name for name, one in committed.counts.items() if one.last_committed_at is not None]
        # without saved snapshots the job had another `start` until now, and its targets may have had rows before it
        can_delete = bool(committed.snapshots) and can_list_keys(self._sink)
        self._coordinator.begin(committed.snapshots, whole, dropped, written if can_delete else ())

    @property
    def is_due(self) -> bool:
        """Whether a step should run as soon as the open cycle is committed."""
        if self._coordinator.is_due:
            return self._snapshot.is_due
        return self._verify.is_due(self._cycles.dispatcher.cycle.last)

    @property
    def may_begin(self) -> bool:
        """Whether a due step can begin: nothing is being committed, or the previous snapshot step."""
        return not self._cycles.is_committing or (self._cycles.is_committing_step and self._coordinator.is_due)

    def take(self) -> None:
        """Run a step at the current position of the stream, and pass its loads to the commit thread."""
        if not self._cycles.is_committing:
            self._cycles.save_state()  # if the step fails, its requests are saved already
        if self._coordinator.is_due:
            self._take_snapshot_step()
        else:
            self._verify.take(self._cycles)

    def _take_snapshot_step(self) -> None:
        cycles, dispatcher = self._cycles, self._cycles.dispatcher
        first, lost_steps, result = dispatcher.cycle.first, cycles.lost_steps, None
        step = self._snapshot.plan(first, dispatcher.sequence)
        if step is None:
            return
        opened = dispatcher.open()
        if step.read_request is None:
            cycles.wait_for_commit()  # the step compares the rows that are visible in the target
        outcome = self._snapshot.read(step, first) if cycles.lost_steps == lost_steps else None
        cycles.wait_for_commit()
        if outcome is not None and cycles.lost_steps == lost_steps:  # else the plan contains chunks that were lost
            result = self._snapshot.complete(step, outcome, first, cycles.committed.counts)
        if result is None:
            dispatcher.discard()
            dispatcher.begin(first)
            return
        cycles.close_step(opened, result)
