"""The runs of a job, each with a new Consumer. An error ends a run; ``_handle_error`` carries out the action for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from cdc.config.models import Config
from cdc.errors import (
    CdcError,
    CheckpointError,
    ErrorAction,
    LeaseLost,
    ReaderConflict,
    SinkBusy,
    SinkOwnershipError,
    action_for,
)
from cdc.job.record import SavedRecord
from cdc.job.requests import RequestQueue
from cdc.job.resume_policy import ResumePolicy, acknowledged_statements
from cdc.job.snapshot_requests import check_request, check_verify, check_without_run
from cdc.job.wiring import Components, limits_of
from cdc.model.batch import FENCE_STEP
from cdc.model.left_out import LeftOut
from cdc.model.position import Position
from cdc.model.snapshot import SnapshotRequest
from cdc.model.verify import VerifyRequest
from cdc.pipeline.consumer import Consumer, Ended
from cdc.pipeline.flow_control import FlowControl
from cdc.pipeline.progress import Progress
from cdc.pipeline.recovery import adopt, check_sink_state
from cdc.pipeline.targets import mapped_targets
from cdc.retry import Backoff
from cdc.run_context import RunContext
from cdc.state.base import CheckpointStore, JobState, ResumeKind
from channels.channel import Channel
from channels.sinks.base import can_alter
from channels.task import RunIdentity
from spark.session import SessionHolder

HEALTHY_S = 60.0  # after a run of this length the back-off begins again

_log = logging.getLogger(__name__)


class JobRunner:
    """Runs one Consumer after the other.

    Calls: ``use``, ``run_once`` and ``close`` from the run loop, the other methods from any thread.
    """

    def __init__(
        self,
        store: CheckpointStore,
        saved: SavedRecord,
        policy: ResumePolicy,
        requests: RequestQueue,
        build: Callable[..., Components],
        *,
        adopt: bool,
        sessions: SessionHolder | None = None,
    ) -> None:
        """Take requests from ``requests``: a request also ends the wait after an error.

        ``build`` gets the job file and, for the first run, ``sessions`` if there is one.
        """
        self._store = store
        self._saved = saved
        self._policy = policy
        self._requests = requests
        self._build = build
        self._adopt = adopt
        self._sessions = sessions
        self._config: Config | None = None
        self._components: Components | None = None
        self._consumer: Consumer | None = None  # of the newest run
        self.at_work: Consumer | None = None  # of the current run; None between two runs
        self._last: Progress | None = None  # last progress of a run that has ended
        self._is_sink_checked = False  # the sink has no commits that the state does not have
        self._is_recovered = False  # the run has recovered and has not ended
        self._is_waiting = False  # a commit waits for the sink: PAUSED, while the run continues
        self._ended: tuple[Consumer | None, int] = None, 0  # the newest run that has ended; disconnects up to its end
        self._backoff = Backoff()
        self._conflicts = 0  # number of ReaderConflict since the last resume or run of ``HEALTHY_S``
        self._flow = FlowControl()
        self._ended_by: Ended | None = None  # how the newest run ended; None after an error
        self._channels: dict[str, Channel] = {}  # see RunContext

    def use(self, config: Config) -> None:
        """Let the next run use ``config``, after a start or a resume."""
        if config != self._config:
            self.close()
        self._config = config
        self._ended_by = None  # targets may have changed while the job was PAUSED
        self._reset_backoff()

    def close(self) -> None:
        """Close sink, Spark session and threads. A later run creates them again."""
        if self._components is not None:
            self._components.close()
            self._components = None

    def stop(self) -> Consumer | None:
        """Ask the newest run to end, and return its Consumer; None if no run has begun."""
        consumer = self._consumer
        if consumer is not None:  # None: the run is still starting, and may wait for a server that never answers
            consumer.stop()
        return consumer

    @property
    def is_running(self) -> bool:
        """Whether the run has recovered and continues, even while a commit waits."""
        return self._saved.now.state is JobState.RUNNING or (self._is_waiting and self._is_recovered)

    @property
    def left_out(self) -> Mapping[str, LeftOut] | None:
        """The tables that the job omits; None until a run has recovered, which reads them from the checkpoint."""
        components = self._components
        return components.routes.left_out if components and self.progress() is not None else None

    @property
    def alter_progress(self) -> float | None:
        """How much of the step of a schema change is done, from 0 to 1; None if no step is taken or it is unknown."""
        sink = self._components.sink if self._components is not None else None
        return sink.alter_progress if can_alter(sink) else None

    def progress(self) -> Progress | None:
        """Return the progress of the newest run; None until a run has recovered. ``disconnects``: of all runs."""
        ended, before = self._ended  # before the run: a run that ends meanwhile is not counted twice
        consumer = self._consumer
        found = consumer.progress() if consumer is not None else None
        if found is None or found.disconnects is None:
            return found or self._last
        return replace(found, disconnects=before + (found.disconnects if consumer is not ended else 0))

    def position(self) -> Position | None:
        """Return the position up to which everything is committed; None before the first run."""
        progress = self.progress()
        committed = None if progress else self._saved.last_committed()
        return progress.position if progress else committed.last if committed else None

    def warning(self, progress: Progress | None) -> CdcError | None:
        """Return the current problem of a job that is not PAUSED: of its source, or of Spark, even during recovery."""
        state, components = self._saved.now.state, self._components
        if state not in (JobState.PENDING, JobState.RUNNING):
            return None
        source = progress.warning if progress and state is JobState.RUNNING else None
        return source or (components.runner.warning() if components is not None else None)

    def check_request(self, request: SnapshotRequest, read: Callable[[], Config]) -> None:
        """Raise ConfigError if the table cannot be loaded again. Without a run, ``read`` returns the job file."""
        components = self._components
        if self.is_running and components is not None:
            check_request(request, components.snapshot, components.routes, components.sink)
        else:
            check_without_run(request, self._build(read()))

    def check_verify(self, request: VerifyRequest, read: Callable[[], Config]) -> None:
        """Raise ConfigError if the job cannot be verified so. Without a run, ``read`` returns the job file."""
        components = self._components
        if self.is_running and components is not None:
            check_verify(request, components.snapshot, components.routes, components.sink)
            return
        components = self._build(read())
        try:
            check_verify(request, components.snapshot, components.routes, components.sink)
        finally:
            components.close()

    def run_once(self) -> Ended | None:
        """Run until the source ends, a request arrives, or an error occurs; then wait if the run may be repeated.

        Return None after an error. Raises: the error, if the job ends with it.
        """
        began = time.monotonic()
        try:
            consumer = self._consumer = self._new_consumer()
            if self._requests.pending is not None:
                return Ended.STOPPED  # the request arrived before the consumer was created
            self.at_work = consumer
            try:
                self._ended_by = consumer.run(self._resolve_start, self._recovered)
                return self._ended_by
            finally:
                self.at_work = None
                self._end_of_run(consumer)
        except Exception as error:  # noqa: BLE001 - the action for every error is decided here
            if time.monotonic() - began > HEALTHY_S:
                self._reset_backoff()
            self._handle_error(error)
            return None

    def _new_consumer(self) -> Consumer:
        parts, run, record = self._build_once(), self._run_identity(), self._saved.now
        if not self._is_sink_checked:
            self._check_sink_state(parts)
            run, record = self._run_identity(), self._saved.now  # an adoption changes both
        is_continued, self._ended_by = self._ended_by is Ended.CHANGING, None
        if not is_continued:
            self._channels = {}
        parts.runner.warm_up()  # after the comparison, so that a refused start does not begin a JVM
        context = RunContext(
            run,
            parts.receiver(run, self._policy.options, acknowledged_statements(record)),
            parts.routes,
            parts.runner,
            parts.sink,
            self._store,
            parts.types,
            parts.snapshot,
            parts.verify,
            reload_missing=self._policy.reloads_missing,
            is_verified=self._policy.is_verified,
            applies=self._policy.applies,
            is_continued=is_continued,
            channels=self._channels,
        )
        sequence = max(record.fence * FENCE_STEP, self._consumer.sequence if self._consumer else 0)
        return Consumer(
            context,
            limits_of(self._used()),
            sequence=sequence,
            flow=self._flow,
            on_wait=self._commit_waits,
        )

    def _check_sink_state(self, parts: Components) -> None:
        sink = parts.sink
        try:
            check_sink_state(self._saved.now, self._store, sink)
        except SinkOwnershipError:
            if not self._adopt:
                raise
            adopted = adopt(self._saved.now, self._store, sink, lambda: mapped_targets(parts.routes, parts.snapshot))
            self._saved.change(incarnation=adopted.incarnation, fence=adopted.fence, adopted=adopted.adopted)
        self._is_sink_checked = True

    def _recovered(self) -> None:
        self._policy.note_verified()
        self._is_recovered = True
        if self._saved.now.state is not JobState.RUNNING:
            _log.info("running from %s", self.position())
            self._saved.set_state(JobState.RUNNING)

    def _commit_waits(self, reason: CdcError | None) -> None:
        """Save that the job is PAUSED while a commit waits for the sink, and RUNNING again after it."""
        self._is_waiting = reason is not None
        if reason is not None:
            self._saved.pause(reason, ResumeKind.AUTOMATIC)
        elif self._is_recovered:
            self._saved.set_state(JobState.RUNNING)

    def _end_of_run(self, consumer: Consumer) -> None:
        self._is_waiting = self._is_recovered = False
        self._last = last = self.progress()
        if last is not None and last.log is not None and last.log.retention_s is not None:
            # saved with the next state: a driver that starts PAUSED does not ask the server
            self._saved.change(source_retention_s=last.log.retention_s)
        self._ended = consumer, (last.disconnects if last is not None else None) or self._ended[1]
        if self._last and self._policy.expire(self._last.position):
            self._backoff.reset()

    def _handle_error(self, error: Exception) -> None:
        """Carry out the action for ``error``: save the pause, and wait before a retry. Raise it if the process ends."""
        try:
            action = self._action_for(error)
        except LeaseLost as lost:
            error, action = lost, ErrorAction.EXIT
        if action is ErrorAction.EXIT or (isinstance(error, SinkOwnershipError) and not self._is_sink_checked):
            if isinstance(error, CdcError) and not isinstance(error, LeaseLost):
                self._saved.refuse(error)
            raise error
        if isinstance(error, SinkOwnershipError):
            self._is_sink_checked = False  # another process may have committed; the next run compares again
        text = f"{type(error).__name__}: {error}"
        with_traceback = not isinstance(error, CdcError) or _log.isEnabledFor(logging.DEBUG)
        if action is ErrorAction.PAUSE:
            _log.error("paused until a person acts: %s", text, exc_info=with_traceback)
            self._saved.pause(error, ResumeKind.MANUAL)
            return
        delay_s = max(next(self._backoff), error.after_s if isinstance(error, SinkBusy) else 0.0)
        _log.warning("paused, retry in %.1f s: %s", delay_s, text, exc_info=with_traceback)
        self._saved.pause(error, ResumeKind.AUTOMATIC)
        self._requests.wait(delay_s)

    def _action_for(self, error: Exception) -> ErrorAction:
        """Return the action for ``error``. Raises: LeaseLost - another process runs the job.

        An older process of the job may reconnect once more and end the stream of this one, so a few are retried.
        """
        if not isinstance(error, ReaderConflict):
            return action_for(error)
        with suppress(CheckpointError):
            self._store.check_fence()
        action = action_for(error, self._conflicts)
        self._conflicts += 1
        return action

    def _reset_backoff(self) -> None:
        self._backoff.reset()
        self._conflicts = 0

    def _build_once(self) -> Components:
        if self._components is None:
            given, self._sessions = self._sessions, None
            self._components = self._build(self._used(), *([] if given is None else [given]))
        return self._components

    def _used(self) -> Config:
        assert self._config is not None, "call `use` before the first run"
        return self._config

    def _run_identity(self) -> RunIdentity:
        record = self._saved.now
        return RunIdentity(record.name, record.incarnation, record.fence)

    def _resolve_start(self) -> Position:
        return self._build_once().resolve_start(self._run_identity())
