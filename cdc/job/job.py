"""Job: the states of one job file, and its runs one after the other.

``PENDING -> RUNNING <-> PAUSED -> CANCELLED``, and DONE for a source that ends::

    run          lock the job, check the job file, save PENDING, then enter the run loop
    run loop     take the next request (pause, resume, stop, end); if there is none, run once
    run once     Consumer.run: recovery, RUNNING, then commit cycles until a request, an error or the end of the source
    error        ``action_for`` returns the action: PAUSED until a person acts, PAUSED and a retry, or the process ends

Requests arrive from the status endpoint and from signals, on other threads. The run loop carries them out.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cdc.api.models import JobStatus, LoadTable, PauseJob, RequestBody, Resume, StopJob
from cdc.api.server import StatusEndpoint
from cdc.api.verify_models import StartVerify
from cdc.config.models import Config, load_config
from cdc.errors import ConfigError, LeaseLost
from cdc.job.compatibility import build_identity, check_destination, check_file, check_identity
from cdc.job.lease import LeaseKeeper, RunSummary
from cdc.job.process_end import ProcessEnd, restored_signals
from cdc.job.record import SavedRecord
from cdc.job.remote_calls import RemoteCalls, desired_request
from cdc.job.requests import JobRequest, RequestQueue
from cdc.job.resume_policy import ResumePolicy, check_resume
from cdc.job.runner import JobRunner
from cdc.job.status_builder import LiveStatus, build_status
from cdc.job.stored_status import StoredStatusReader
from cdc.job.webhook import Webhook
from cdc.job.wiring import Components, build
from cdc.logging_setup import hide
from cdc.model.position import Position
from cdc.model.snapshot import SnapshotRequest, SnapshotState
from cdc.model.table_names import table_of, table_text
from cdc.model.timing import utc_now
from cdc.paths import state_folder
from cdc.pipeline.consumer import Ended
from cdc.state.base import CheckpointStore, JobRecord, JobState, ResumeKind, forgetting
from cdc.state.job_directory import JobDirectory
from cdc.state.opening import open_store
from spark.session import SessionHolder

POLL_S = 0.1  # interval at which the position is compared with a stop position


class Job:
    """Runs one job in this process. Implements ``cdc.api.models.Controls``."""

    def __init__(
        self,
        file: Path,
        store: CheckpointStore,
        *,
        load: Callable[[Path], Config] = load_config,
        build: Callable[..., Components] = build,
        adopt: bool = False,
        resume: Resume | None = None,
        sessions: SessionHolder | None = None,
    ) -> None:
        """Read the job file.

        ``resume``: options of ``cdc resume``, if the start resumes a job. ``sessions``: a Spark session that is
        starting already, for the first run. Raises: ConfigError.
        """
        self._file = file.absolute()
        self._store = store
        self._load = load
        self._config = self._read()
        self._saved = SavedRecord(store, self._config.name, str(self._file))
        self._stored = StoredStatusReader(store, self._config.name)
        self._requests = RequestQueue()
        self._end = ProcessEnd(self._saved, self._requests)
        self._policy = ResumePolicy(resume)
        self._runner = JobRunner(
            store, self._saved, self._policy, self._requests, build, adopt=adopt, sessions=sessions
        )
        self._resumes = 0
        self._lost: LeaseLost | None = None
        self._lease = LeaseKeeper(
            store, summary=RunSummary(self._runner, self._saved), lost=self._lose, cut_off=self._cut_off
        )

    @property
    def config(self) -> Config:
        """The job file, as it was read most recently."""
        return self._config

    # called by other threads

    def status(self) -> JobStatus:
        """See ``Controls``."""
        resumes = self._resumes  # read before the record: a counted resume is never shown with the pause before it
        record, progress = replace(self._saved.now, identity=build_identity(self._config)), self._runner.progress()
        live = LiveStatus(
            self._config.memory.window,
            progress,
            self._runner.is_running,
            self._runner.warning(progress),
            self._runner.left_out,
            resumes,
            self._runner.alter_progress,
            self._store.write_times,
        )
        stored = self._stored.read()
        return build_status(record, stored.checkpoint, stored.requests, stored.changes, live, stored.verifications)

    def watched(self) -> tuple[JobRecord, float | None]:
        """See ``cdc.job.webhook.WatchedJob``."""
        progress = self._runner.progress() if self._runner.is_running else None
        return self._saved.now, progress.lag_s if progress else None

    def save_lag_posted(self, *, is_posted: bool) -> None:
        """See ``cdc.job.webhook.WatchedJob``."""
        with suppress(LeaseLost):  # the job has ended, or ends at its next write
            self._saved.save(is_lag_posted=is_posted)

    @property
    def is_over(self) -> bool:
        """Whether ``run`` has ended."""
        return self._end.is_over

    def has_reached(self, position: Position) -> bool:
        """Return whether everything up to ``position`` is committed, and every table is consistent.

        Raises: ValueError - the position is of another source.
        """
        progress = self._runner.progress()
        if progress is None or not self._runner.is_running:
            return False
        snapshots = (channel.snapshot for channel in progress.channels if channel.snapshot is not None)
        is_loaded = all(one.state is SnapshotState.CONSISTENT for one in snapshots)
        return is_loaded and progress.position.reached(position)

    def request(self, request: RequestBody) -> None:
        """See ``Controls``."""
        match request:
            case PauseJob():
                self._put_request(JobRequest.PAUSE)
            case Resume():
                is_paused = self._saved.now.state is JobState.PAUSED or self._requests.stays_paused
                if is_paused or request.replay_bad:  # a run that is replaced commits what is open
                    check_identity(self._saved.now, self._read(), accept_server=request.accept_server)
                    with self._requests.changed:  # a pause that is requested after the check replaces the resume
                        is_requested = self._requests.stays_paused
                        check_resume(
                            self._saved.now, request, pause_requested=is_requested, resumed=self._policy.resumed
                        )
                        self._put_request(JobRequest.RESUME, request)
            case LoadTable():
                table = SnapshotRequest(table_text(*table_of(request.table)), request.where)
                self._runner.check_request(table, self._read)  # without a run, by the job file as it is now
                self._store.add_request(self._saved.now.name, table)
            case StartVerify():
                self._runner.check_verify(request.as_request(), self._read)
                self._store.add_verification(self._saved.now.name, request.as_request())
            case StopJob():
                self._put_request(JobRequest.STOP)

    def end(self, number: int = 0) -> None:
        """End the process as signal ``number`` does: commit what is PREPARED, and keep a pause. 0: no signal."""
        self._end.signal = self._end.signal or number
        self._put_request(JobRequest.END)

    def _lose(self, error: LeaseLost) -> None:
        """End the process, because another one runs the job. It saves nothing, and commits only what is PREPARED."""
        self._lost = self._end.lost = error
        self._put_request(JobRequest.END)

    def _cut_off(self) -> None:
        """End the run: the state store does not answer, so the next one is PAUSED until it does."""
        self._runner.stop()

    def _put_request(self, request: JobRequest, resume: Resume | None = None) -> None:
        self._requests.put(request, resume)
        at_work = self._runner.at_work
        if request is JobRequest.RESUME:
            if at_work is not None:
                at_work.stop()  # its commit waits for the sink; a new run repeats the commit at once
            return
        consumer = self._runner.stop()
        if consumer is not None or request is not JobRequest.PAUSE:
            self._end.limit(request, lambda: request is JobRequest.PAUSE and self._runner.at_work is not consumer)

    # the life of the job

    def run(self, listen: Callable[[], str | None] = lambda: None, supervisor_pid: int | None = None) -> int:
        """Run until the job is CANCELLED or DONE, or the process is to end. Return the exit code.

        ``listen`` starts the status endpoint and returns its address. It is called when this process has the lock.

        Raises: LeaseLost - another process runs the job; ConfigError - the file does not match the job, or the job was
        cancelled; SinkOwnershipError - the sink has commits that the state does not have.
        """
        asked_at = time.monotonic()
        self._saved.now = self._store.acquire(self._config.name, str(self._file))
        self._end.take_signals(self.end)
        self._lease.start(asked_at)
        try:
            self._begin(listen(), supervisor_pid)
            code = self._loop()
            self._saved.change(supervisor_pid=None)  # the supervisor ends after its driver
            return code
        finally:
            self._runner.close()
            with suppress(LeaseLost):
                self._saved.save(driver_pid=None, status_url=None)
            self._saved.close()
            self._stored.close()
            self._lease.close()
            self._store.release()
            self._end.is_over = True

    def _begin(self, status_url: str | None, supervisor_pid: int | None) -> None:
        before = self._saved.now
        if before.state in (JobState.CANCELLED, JobState.DONE):
            raise ConfigError(f"Job {before.name} is {before.state}.", hint=forgetting(before.name))
        position = self._check_file(self._config)
        self._policy.start_at(position, before.pending_change)
        self._runner.use(self._config)
        if not (self._saved.is_paused_by_hand and self._policy.options is None):  # a start keeps the pause of a user
            acknowledged = self._policy.acknowledged(before, position)
            self._saved.change(
                state=JobState.PENDING,
                reason=None,
                hint=None,
                resume=None,
                pause=None,
                stopped_at_ddl=None,
                pending_change=None,
                acknowledged_ddl=acknowledged,
            )
        save = self._saved.save if self._policy.options is None else self._saved.resume
        save(
            identity=build_identity(self._config),
            started_at=utc_now(),
            driver_pid=os.getpid(),
            supervisor_pid=supervisor_pid,
            status_url=status_url,
        )
        try:
            check_destination(self._config, self._store.jobs())  # after the save, because two jobs may start together
        except ConfigError:
            self._saved.save(identity=before.identity)
            raise

    def _loop(self) -> int:
        while True:
            with self._requests.changed:  # from here on, no other resume ends the same pause
                request = self._requests.take()
                resumes = request is JobRequest.RESUME and self._policy.take(self._requests.resume, self._saved.now)
            if self._lost is not None:
                raise self._lost
            if request is JobRequest.STOP:
                self._saved.set_state(JobState.CANCELLED, "stopped by its user")
                return self._end.after_save(0)
            if request is JobRequest.END:
                self._save_end()
                return self._end.after_save(self._end.exit_code)
            if request is JobRequest.PAUSE and not self._saved.is_paused_by_hand:
                self._saved.pause_by_hand()
            if resumes:
                self._apply_resume()
                self._resumes += 1
            if self._saved.is_paused_by_hand:
                self._requests.wait(None)
            elif self._runner.run_once() is Ended.FINISHED:
                self._saved.set_state(JobState.DONE, "the source has ended, and all its changes are committed")
                return self._end.after_save(0)

    def _save_end(self) -> None:
        if self._saved.is_paused_by_hand:  # the next start keeps the pause
            return
        if self._requests.stays_paused:
            self._saved.pause_by_hand()
        else:
            # a job that is PAUSED at a DDL statement keeps it: `cdc resume` without a driver accepts this statement
            self._saved.save(state=JobState.PENDING, reason=self._end.reason, hint=None, resume=None)

    def _apply_resume(self) -> None:
        """Read the job file again, and apply the options of ``cdc resume`` to the next run."""
        now = self._saved.now
        self._policy.begin(self._requests.resume, self._runner.position(), now.pending_change)
        try:
            config = self._read()
            position = self._check_file(config)
        except ConfigError as error:
            self._saved.pause(error, ResumeKind.MANUAL, keeps_statement=True)
            return
        self._config = config
        self._runner.use(config)
        acknowledged = self._policy.acknowledged(self._saved.now, position)
        self._saved.resume(
            state=JobState.PENDING, reason=None, hint=None, resume=None, pause=None, stopped_at_ddl=None,
            pending_change=None,
            identity=build_identity(config), acknowledged_ddl=acknowledged,
        )  # fmt: skip

    def _read(self) -> Config:
        """Read the job file. Raises: ConfigError."""
        config = self._load(self._file)
        hide(config.secrets())
        return config

    def _check_file(self, config: Config) -> Position | None:
        """Raise ConfigError if ``config`` does not match the job. Return the position of the job."""
        committed = self._saved.last_committed()
        check_file(self._saved.now, config, committed, accept_server=self._policy.accepts_server)
        return self._runner.position()


def run_job(
    job_file: Path | str,
    *,
    adopt: bool = False,
    resume: Resume | None = None,
    until: Position | None = None,
    supervisor_pid: int | None = None,
    sessions: SessionHolder | None = None,
) -> int:
    """Run a job in this process, with its state and its status endpoint. Return the exit code.

    ``until``: end the process when everything up to this position is committed and all tables are consistent; a later
    start continues there. ``sessions``: see ``Job``; the caller closes it. Blocks while the job runs or is PAUSED.
    Raises: CdcError - the start is refused.
    """
    store = open_store()
    endpoint: StatusEndpoint | None = None
    calls: RemoteCalls | None = None
    webhook: Webhook | None = None
    with restored_signals():
        try:
            job = Job(Path(job_file), store, adopt=adopt, resume=resume, sessions=sessions)
            messages = webhook = Webhook(job)
            address, folder = job.config.status, JobDirectory(state_folder(), job.config.name)

            def listen() -> str | None:  # called when this process has the lock, so it may write the job directory
                nonlocal endpoint, calls
                folder.use_temporary()
                folder.delete_orphans()
                folder.set_failure(None)
                if address.token is not None:
                    folder.set_token(address.token.get_secret_value())
                endpoint = StatusEndpoint(job, host=address.host, port=address.port, token=folder.token())
                if store.is_shared:
                    calls = RemoteCalls(store, job.config.name, job, folder)
                    calls.start()
                messages.start()
                if resume is None and (lost := desired_request(store, job.config.name)) is not None:
                    job.request(lost)
                return endpoint.start()

            if until is not None:
                threading.Thread(target=_end_at, args=(job, until), name="stop position", daemon=True).start()
            return job.run(listen, supervisor_pid)
        finally:
            for part in (endpoint, calls, webhook):
                if part is not None:
                    part.close()
            store.close()


def _end_at(job: Job, until: Position) -> None:
    """End the process when the job has reached ``until``. A position of another source is never reached."""
    while not job.is_over:
        with suppress(ValueError):
            if job.has_reached(until):
                job.end()
                return
        time.sleep(POLL_S)
