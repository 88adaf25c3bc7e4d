"""Job: one YAML file at work. Its states, its pauses and what ends them; run after run of the Consumer.

``PENDING -> RUNNING <-> PAUSED -> CANCELLED``, and DONE for sources that end. Whatever ends a run goes through
``_after``, which asks ``decide`` what follows. Requests come from the status endpoint's threads and from signals; they
are noted, and the run loop carries them out.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from cdc.assembly import Assembly, Passed, assemble
from cdc.batch import FENCE_STEP
from cdc.checkpoint import Checkpoint, CheckpointStore, JobRecord, JobState, forgetting
from cdc.checkpoint_sqlite import SqliteStore, state_folder
from cdc.commit import delays, utc_now
from cdc.config import Config, load_config
from cdc.consumer import Consumer, Ended, Progress
from cdc.endpoint import StatusEndpoint
from cdc.errors import (
    Answer,
    CdcError,
    CheckpointError,
    ConfigError,
    LeaseLost,
    ReaderConflict,
    SchemaChanged,
    SinkBusy,
    SinkForeign,
    decide,
    with_job,
)
from cdc.folder import JobFolder
from cdc.identity import check_destination, check_identity, check_loaded, identity_of, sink_status, source_status
from cdc.logs import hide, masked
from cdc.names import parse_table
from cdc.parts import Limits, Parts, Widening
from cdc.position import Position, position_from_json
from cdc.recovery import adopt, compare
from cdc.status import (
    ChannelStatus,
    CheckpointStatus,
    JobStatus,
    LeftOutStatus,
    Resume,
    SnapshotStatus,
    position_status,
    saved_channels,
    split_transactions,
)
from cdc.turns import Request, check_request
from cdc.wishes import Wish, Wishes
from channels.sinks.base import Sink
from channels.task import RunIdentity

# A commit that hangs in its sink is left behind after this long: it is PREPARED, and rolls forward at the next start.
END_GRACE_S = 25.0  # who sends SIGTERM often sends SIGKILL after 30 s
PAUSE_GRACE_S = 60.0  # longer, since it costs a new process, and large merges take their time
CONFLICTS = 5  # in a row: an older process of this job ends at its first one, since it has lost the fence
HEALTHY_S = 60.0  # a run that lasted this long had its fault mended: waiting begins anew

_log = logging.getLogger(__name__)


class Job:
    """Runs one job in this process. Implements ``cdc.status.Controls``."""

    def __init__(
        self,
        file: Path,
        store: CheckpointStore,
        *,
        load: Callable[[Path], Config],
        assemble: Callable[[Config], Assembly],
        adopt: bool = False,
        resume: Resume | None = None,
    ) -> None:
        """``resume``: a start that is the resume of a job PAUSED by hand. Raises: ConfigError."""
        self._file = file.absolute()
        self._store = store
        self._load = load
        self._assemble = assemble
        self._adopt = adopt
        self._config = self._read()
        self._wishes = Wishes()
        self._resume = resume
        self._resumed_at: Position | None = None  # what was agreed to holds for what lies right behind it
        self._assembly: Assembly | None = None
        self._consumer: Consumer | None = None
        self._last: Progress | None = None  # of the newest run
        self._is_compared = False
        self._is_verified = False  # a run has verified the targets since the last start or resume
        self._at_work: Consumer | None = None  # whose run has not ended
        self._is_over = False
        self._signal = 0
        self._resumes = 0
        self._delays = delays()
        self._conflicts = 0  # with another reader of this server id, since the last resume or long run
        self._widening = Widening()
        record = store.job(self._config.name)
        self._record = record or JobRecord(self._config.name, "", 0, JobState.PENDING, str(self._file))

    @property
    def config(self) -> Config:
        """The job file as it was last read."""
        return self._config

    # asked from other threads

    def status(self) -> JobStatus:
        """See ``Controls``."""
        assembly = self._assembly
        resumes = self._resumes  # before the record: it counts a resume once the record is no longer the old pause
        record, progress = self._record, self._progress()
        waits_for = progress.waits_for if progress and record.state is JobState.RUNNING else None
        if waits_for is not None:
            record = _paused(record, waits_for, "automatic")
        elif (trouble := self._trouble(progress, record)) is not None:
            record = replace(record, reason=_reason(trouble), mend=with_job(trouble.mend, record.name))
        checkpoint = progress.checkpoint if progress else self._last_committed()
        position = progress.position if progress else checkpoint.last if checkpoint else None
        return JobStatus(
            job=record.name,
            state=record.state.value,
            source=source_status(self._config),
            sink=sink_status(self._config),
            reason=record.reason,
            mend=record.mend,
            resume=record.resume,
            started_at=record.started_at,
            position=position_status(position) if position else None,
            lag_seconds=progress.lag_s if progress and self._record.state is JobState.RUNNING else None,
            split_transactions=split_transactions(position),
            checkpoint=CheckpointStatus.of(checkpoint) if checkpoint else None,
            channels=tuple(_channel_statuses(progress, record.state)) if progress else self._saved_channels(checkpoint),
            window_bytes=progress.window_bytes if progress and self._record.state is JobState.RUNNING else 0,
            window_limit_bytes=self._config.memory.window,
            left_out=LeftOutStatus.of(
                assembly.routes.left_out if assembly else checkpoint.left_out if checkpoint else {},
                record.name,
            ),
            resumes=resumes,
        )

    def _trouble(self, progress: Progress | None, record: JobRecord) -> CdcError | None:
        """What holds up a job that is not paused: its source, or Spark, which may also hold up the recovery."""
        if record.state not in (JobState.PENDING, JobState.RUNNING):
            return None
        assembly = self._assembly
        source = progress.trouble if progress and record.state is JobState.RUNNING else None
        return source or (assembly.runner.trouble() if assembly is not None else None)

    def _saved_channels(self, checkpoint: Checkpoint | None) -> tuple[ChannelStatus, ...]:
        targets = {channel.source: parse_table(channel.target).plain for channel in self._config.channels}
        return saved_channels(checkpoint, self._record.state.value, targets)

    def request_pause(self) -> None:
        """See ``Controls``."""
        self._note(Wish.PAUSE)

    def request_resume(self, resume: Resume) -> None:
        """See ``Controls``."""
        if self._record.state is JobState.PAUSED or self._wishes.wish is Wish.PAUSE:
            check_identity(self._record, self._read(), accept_server=resume.accept_server)
            self._note(Wish.RESUME, resume)

    def request_snapshot(self, table: str, where: str | None) -> None:
        """See ``Controls``."""
        consumer, assembly = self._consumer, self._assembly
        if self._record.state is not JobState.RUNNING or consumer is None or assembly is None:
            raise CdcError(
                f"Job {self._record.name} is {self._record.state.value}: tables are loaded while it runs.",
                mend=self._record.mend or f"`cdc resume {self._record.name}`, then ask again.",
            )
        request = Request(table, where)
        check_request(request, assembly.snapshot, assembly.routes, assembly.sink)
        consumer.request_snapshot(request)

    def request_stop(self) -> None:
        """See ``Controls``."""
        self._note(Wish.STOP)

    def _note(self, wish: Wish, resume: Resume | None = None) -> None:
        self._wishes.note(wish, resume)
        consumer = self._consumer
        if wish is Wish.RESUME or (consumer is None and wish is Wish.PAUSE):
            return
        if consumer is not None:  # else it still starts, and what it waits for may never answer
            consumer.stop()
        grace_s = PAUSE_GRACE_S if wish is Wish.PAUSE else END_GRACE_S
        timer = threading.Timer(grace_s, self._leave, (wish, consumer, grace_s))
        timer.daemon = True
        timer.start()

    def _leave(self, wish: Wish, consumer: Consumer | None, grace_s: float) -> None:
        """End the process, unless what was asked for was done in time. State is durable at every moment."""
        if self._is_over or (wish is Wish.PAUSE and self._at_work is not consumer):
            return
        code = {Wish.PAUSE: 1, Wish.STOP: 0}.get(wish, 128 + self._signal)
        settled = Wish.PAUSE if wish is Wish.END and self._wishes.stays_paused else wish
        state, told, mend = {
            Wish.PAUSE: (JobState.PAUSED, "paused by its user", f"cdc resume {self._record.name}"),
            Wish.STOP: (JobState.CANCELLED, "stopped by its user", None),
        }.get(settled, (JobState.PENDING, "ended by a signal", None))
        reason = f"{told}; what was under way did not end within {grace_s:.0f} s, and is finished at the next start"
        _log.error("the process leaves: %s", reason)
        with suppress(CdcError):
            self._save(
                replace(
                    self._record,
                    state=state,
                    reason=reason,
                    mend=mend,
                    resume="manual" if settled is Wish.PAUSE else None,
                    driver_pid=None,
                    status_url=None,
                )
            )
        os._exit(code)

    def _read(self) -> Config:
        """The job file as it is now. Raises: ConfigError."""
        config = self._load(self._file)
        hide(config.secrets())
        return config

    # the run

    def run(self, listen: Callable[[], str | None] = lambda: None, supervisor_pid: int | None = None) -> int:
        """Run until the job is cancelled, done, or its process is told to end; the exit code.

        ``listen`` starts the status endpoint, once the job is ours, and gives its address.

        Raises: LeaseLost - another process runs the job; ConfigError - the file does not fit the job, or the job was
        cancelled; SinkForeign - the sink knows more than our state.
        """
        self._record = self._store.acquire(self._config.name, str(self._file))
        self._take_signals()
        try:
            self._begin(listen(), supervisor_pid)
            code = self._loop()
            self._record = replace(self._record, supervisor_pid=None)  # it ends with us
            return code
        finally:
            if self._assembly is not None:
                self._assembly.close()
            with suppress(CheckpointError, LeaseLost):
                self._save(replace(self._record, driver_pid=None, status_url=None))
            self._store.release()
            self._is_over = True

    def _begin(self, status_url: str | None, supervisor_pid: int | None) -> None:
        record = self._record
        if record.state in (JobState.CANCELLED, JobState.DONE):
            raise ConfigError(f"Job {record.name} is {record.state.value}.", mend=forgetting(record.name))
        check_identity(record, self._config, accept_server=self._accepts_server)
        check_loaded(record, self._config, self._last_committed())
        self._resumed_at = self._last_position()
        record = self._with_passed(record)
        stays_paused = record.state is JobState.PAUSED and record.resume == "manual" and self._resume is None
        state = JobState.PAUSED if stays_paused else JobState.PENDING
        self._save(
            replace(
                record,
                state=state,
                reason=record.reason if stays_paused else None,
                mend=record.mend if stays_paused else None,
                resume=record.resume if stays_paused else None,
                statement_at=record.statement_at if stays_paused else None,
                identity=identity_of(self._config),
                started_at=utc_now(),
                driver_pid=os.getpid(),
                supervisor_pid=supervisor_pid,
                status_url=status_url,
            )
        )
        try:
            check_destination(self._config, self._store.jobs())  # not before: two jobs may start at one moment
        except ConfigError:
            self._save(replace(self._record, identity=record.identity))
            raise

    def _loop(self) -> int:
        while True:
            wish = self._wishes.take()
            if wish is Wish.STOP:
                self._settle(JobState.CANCELLED, "stopped by its user")
                return 0
            if wish is Wish.END:
                if self._wishes.stays_paused and not self._is_paused_by_hand:
                    self._pause()
                elif not self._is_paused_by_hand:  # a pause outlives its process
                    self._settle(JobState.PENDING, f"ended by {signal.Signals(self._signal).name}")
                return 128 + self._signal
            if wish is Wish.PAUSE and not self._is_paused_by_hand:
                self._pause()
            if wish is Wish.RESUME:
                self._take_up_again()
                self._resumes += 1
            if self._is_paused_by_hand:
                self._wishes.wait(None)
                continue
            if self._run_once() is Ended.FINISHED:
                self._settle(JobState.DONE, "its source has ended, and all of it is committed")
                return 0

    def _pause(self) -> None:
        self._settle(JobState.PAUSED, "paused by its user", f"cdc resume {self._record.name}", "manual")

    def _run_once(self) -> Ended | None:
        began = time.monotonic()
        try:
            consumer = self._prepared_consumer()
            self._consumer = consumer
            if self._wishes.wish is not None:
                return Ended.STOPPED  # it came before there was anybody to pass it to
            self._at_work = consumer
            try:
                return consumer.run(self._resolve_start, self._recovered)
            finally:
                self._at_work = None
                self._end_of_run(consumer)
        except Exception as error:  # noqa: BLE001 - the one place that decides
            if time.monotonic() - began > HEALTHY_S:
                self._delays, self._conflicts = delays(), 0
            self._after(error)
            return None

    def _after(self, error: Exception) -> None:
        """What follows from an error: a pause that ends by itself, one that waits for a person, or the end."""
        try:
            answer = self._answer(error)
        except LeaseLost as lost:
            error, answer = lost, Answer.EXIT
        if answer is Answer.EXIT or (isinstance(error, SinkForeign) and not self._is_compared):
            self._refused(error)
            raise error
        if isinstance(error, SinkForeign):
            self._is_compared = False  # whoever was there may have committed what our state does not know
        told = f"{type(error).__name__}: {error}"
        with_place = not isinstance(error, CdcError) or _log.isEnabledFor(logging.DEBUG)
        if answer is Answer.PAUSE:
            _log.error("paused until a person acts: %s", told, exc_info=with_place)
            self._save(_paused(self._record, error, "manual"))
            return
        delay_s = max(next(self._delays), error.after_s if isinstance(error, SinkBusy) else 0.0)
        _log.warning("paused, again in %.1f s: %s", delay_s, told, exc_info=with_place)
        self._save(_paused(self._record, error, "automatic"))
        self._wishes.wait(delay_s)

    def _answer(self, error: Exception) -> Answer:
        """Return the action for ``error``. Raises: LeaseLost - another process runs the job.

        During a take-over the older process may reconnect once more and end the stream of the newer one.
        """
        if not isinstance(error, ReaderConflict):
            return decide(error)
        with suppress(CheckpointError):
            self._store.check_fence()
        self._conflicts += 1
        return decide(error) if self._conflicts > CONFLICTS else Answer.RETRY

    def _refused(self, error: Exception) -> None:
        if isinstance(error, CdcError) and not isinstance(error, LeaseLost):
            self._settle(JobState.PENDING, _reason(error), with_job(error.mend, self._record.name))

    def _prepared_consumer(self) -> Consumer:
        parts = self._assembled()
        if not self._is_compared:
            self._compare(parts.sink)
        parts.runner.warm_up()  # not before: a start that is refused should not wait for a JVM to come and go
        record, config = self._record, self._config
        run = RunIdentity(record.name, record.incarnation, record.fence)
        last = self._consumer.sequence if self._consumer else 0
        return Consumer(
            Parts(
                run,
                parts.receiver(run, self._resume, _passed(record)),
                parts.routes,
                parts.runner,
                parts.sink,
                self._store,
                parts.types,
                parts.snapshot,
                # for what was lost before the resume: on a quiet source the agreement would hold for ever
                reload_missing=self._resume is not None and self._resume.reload_missing and not self._is_verified,
                is_verified=self._is_verified,
            ),
            Limits(
                config.commit.interval,
                config.commit.min_rows,
                config.commit.min_bytes,
                config.commit.max_bytes,
                config.commit.max_rows,
                config.tasks.max_bytes,
            ),
            sequence=max(record.fence * FENCE_STEP, last),
            widening=self._widening,
        )

    def _compare(self, sink: Sink) -> None:
        try:
            compare(self._record, self._store, sink)
        except SinkForeign:
            if not self._adopt:
                raise
            self._record = adopt(self._record, self._store, sink)
        self._is_compared = True

    def _assembled(self) -> Assembly:
        if self._assembly is None:
            self._assembly = self._assemble(self._config)
        return self._assembly

    def _resolve_start(self) -> Position:
        record = self._record
        return self._assembled().resolve_start(RunIdentity(record.name, record.incarnation, record.fence))

    def _recovered(self) -> None:
        self._is_verified = True
        if self._record.state is not JobState.RUNNING:
            _log.info("running from %s", self._last_position())
            self._settle(JobState.RUNNING)

    def _end_of_run(self, consumer: Consumer) -> None:
        self._last = consumer.progress() or self._last
        if self._last and self._last.position != self._resumed_at:
            self._delays, self._resume = delays(), None
            self._resumed_at = self._last.position

    def _take_up_again(self) -> None:
        """A resume: the job file is read again, and the run starts with what was agreed to."""
        self._resume, self._delays, self._resumed_at = self._wishes.resume, delays(), self._last_position()
        self._is_verified = False
        self._conflicts = 0
        try:
            config = self._read()
            check_identity(self._record, config, accept_server=self._accepts_server)
            check_loaded(self._record, config, self._last_committed())
        except ConfigError as error:
            self._save(replace(_paused(self._record, error, "manual"), statement_at=self._record.statement_at))
            return
        if config != self._config and self._assembly is not None:
            self._assembly.close()
            self._assembly = None
        self._config = config
        self._save(replace(self._with_passed(self._record), identity=identity_of(config)))
        self._settle(JobState.PENDING)

    def _with_passed(self, record: JobRecord) -> JobRecord:
        """With the statement that is resumed behind.

        The position may stay far before it (an XA transaction is open): it will be met again, by drivers to come too.
        """
        resume, position = self._resume, self._last_position()
        if resume is None:
            return record
        # another log may have something else at those places
        is_same_log = not (resume.accept_gap or resume.accept_server)
        passed = [each for each in record.passed if is_same_log and not _is_behind(position, each["at"])]
        if record.statement_at is not None:
            passed.append({"at": record.statement_at, "past_ddl": resume.past_ddl})
        return replace(record, passed=tuple(passed))

    # states

    @property
    def _accepts_server(self) -> bool:
        return self._resume is not None and self._resume.accept_server

    @property
    def _is_paused_by_hand(self) -> bool:
        return self._record.state is JobState.PAUSED and self._record.resume == "manual"

    def _settle(
        self, state: JobState, reason: str | None = None, mend: str | None = None, resume: str | None = None
    ) -> None:
        self._save(replace(self._record, state=state, reason=reason, mend=mend, resume=resume, statement_at=None))

    def _save(self, record: JobRecord) -> None:
        """Raises: LeaseLost. A store that cannot be written is told, and the state is kept here meanwhile."""
        self._record = record
        try:
            self._store.save_job(record)
        except CheckpointError as error:
            _log.warning("the state %s is not saved: %s", record.state.value, error)

    def _progress(self) -> Progress | None:
        consumer = self._consumer
        return (consumer.progress() if consumer else None) or self._last

    def _last_committed(self) -> Checkpoint | None:
        try:
            return self._store.last_committed(self._record.name)
        except CheckpointError:
            return None

    def _last_position(self) -> Position | None:
        progress = self._progress()
        committed = None if progress else self._last_committed()
        return progress.position if progress else committed.last if committed else None

    # signals

    def _take_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._signal:
            os._exit(128 + number)  # the second one: state is durable at every moment, so nothing is lost
        self._signal = number
        # a handler interrupts the run loop anywhere, also while it holds the lock of the wishes
        threading.Thread(target=self._note, args=(Wish.END,), name="signal", daemon=True).start()


def _reason(error: BaseException) -> str:
    """What happened and where; the mend is told beside it."""
    if not isinstance(error, CdcError):
        return masked(f"unknown fault: {type(error).__name__}: {error}")
    return masked(f"{error.message} ({error.place})" if error.place else error.message)


def _paused(record: JobRecord, error: BaseException, resume: str) -> JobRecord:
    mend = with_job(error.mend, record.name) if isinstance(error, CdcError) else f"See `cdc logs {record.name}`."
    place = error.where.get("position") if isinstance(error, SchemaChanged) else None
    statement_at = place.to_json() if isinstance(place, Position) else None
    return replace(
        record, state=JobState.PAUSED, reason=_reason(error), mend=mend, resume=resume, statement_at=statement_at
    )


def _passed(record: JobRecord) -> Passed:
    return {position_from_json(each["at"]): each["past_ddl"] for each in record.passed}


def _is_behind(position: Position | None, at: Mapping[str, Any]) -> bool:
    """Whether what lies ``at`` a place will not be read again."""
    place = position_from_json(at)
    try:
        return position is not None and position.reached(place) and not place.reached(position)
    except ValueError:  # nothing in common that tells
        return False


def _channel_statuses(progress: Progress, state: JobState) -> Iterator[ChannelStatus]:
    for channel in progress.channels:
        counts = channel.counts
        yield ChannelStatus(
            channel.source,
            channel.target,
            state.value,
            counts.upserts,
            counts.deletes,
            counts.bytes,
            channel.buffered_rows,
            counts.last_committed_at,
            SnapshotStatus.of(channel.snapshot) if channel.snapshot else None,
            channel.impossible_dates,
        )


def run_job(
    job_file: Path, *, adopt: bool = False, resume: Resume | None = None, supervisor_pid: int | None = None
) -> int:
    """Be the driver of a job: state file, status endpoint and Job; returns the exit code.

    Raises: CdcError - the start is refused.
    """
    store = SqliteStore(state_folder())
    endpoint: StatusEndpoint | None = None
    try:
        job = Job(job_file, store, load=load_config, assemble=assemble, adopt=adopt, resume=resume)
        address, folder = job.config.status, JobFolder(state_folder(), job.config.name)

        def listen() -> str | None:  # the folder is the driver's that holds the job
            nonlocal endpoint
            folder.use_temporary()
            folder.set_failure(None)
            if address.token is not None:
                folder.set_token(address.token.get_secret_value())
            endpoint = StatusEndpoint(job, host=address.host, port=address.port, token=folder.token())
            return endpoint.start()

        return job.run(listen, supervisor_pid)
    finally:
        if endpoint is not None:
            endpoint.close()
        store.close()
