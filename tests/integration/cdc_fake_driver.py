"""A driver without Spark: the real lock, record, folder and endpoint around a job that only changes its state.

Usage: ``python -m tests.integration.cdc_fake_driver start JOB.yaml --foreground [--resume FLAGS]``. Files beside the
job file control it: ``fail`` (raise that class at start), ``die`` (exit with that code once RUNNING), ``still`` (a
resume ends in the same pause), ``away`` (the job is PAUSED automatically), ``end`` (the job is DONE), ``hold`` (start
only after the file is deleted), ``lose`` (die once, with a request that was accepted).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from cdc import errors
from cdc.api.models import ChannelStatus, JobStatus, PauseJob, RequestBody, Resume, SinkStatus, SourceStatus, StopJob
from cdc.api.server import StatusEndpoint
from cdc.config.models import load_config
from cdc.job.compatibility import check_identity
from cdc.job.remote_calls import RemoteCalls
from cdc.job.resume_policy import check_resume
from cdc.logging_setup import set_up_logs
from cdc.paths import state_folder
from cdc.state.base import JobRecord, JobState, ResumeKind, new_pause
from cdc.state.job_directory import JobDirectory
from cdc.state.opening import open_store
from cdc.state.sql import SqlStore


class FakeJob:
    def __init__(self, store: SqlStore, record: JobRecord) -> None:
        self.store = store
        self.record = record
        self.over = threading.Event()
        self.code = 0
        self.resumes = 0
        self.lost = False

    def keep_lease(self, folder: JobDirectory) -> None:
        while not self.over.wait(self.store.lease_s / 5):
            try:
                self.store.renew()
            except errors.LeaseLost as error:
                folder.set_failure(error)
                self.code, self.lost = error.exit_code, True
                self.over.set()
            except errors.CheckpointError:
                continue

    def become(self, state: JobState, reason: str | None = None, resume: ResumeKind | None = None) -> None:
        resume = resume or (ResumeKind.MANUAL if state is JobState.PAUSED else None)
        pause = new_pause() if state is JobState.PAUSED else None
        self.record = replace(self.record, state=state, reason=reason, resume=resume, hint=None, pause=pause)
        self.store.save_job(self.record)

    def status(self) -> JobStatus:
        record = self.record
        return JobStatus(
            job=record.name,
            state=record.state,
            reason=record.reason,
            resume=record.resume,
            pause=record.pause,
            started_at=record.started_at,
            source=SourceStatus("binlog", "127.0.0.1:3306"),
            sink=SinkStatus("delta", "./warehouse"),
            lag_seconds=0.4,
            resumes=self.resumes,
            channels=(ChannelStatus("shop.orders", "ods.orders", record.state, 1000, 10, 90_000, 3),),
        )

    def request(self, request: RequestBody) -> None:
        lose = Path(self.record.job_file).with_name("lose")
        if lose.exists():
            lose.unlink()
            threading.Timer(0.3, os._exit, (9,)).start()  # after the answer
            return
        match request:
            case PauseJob():
                self.pause()
            case Resume():
                self.resume(request)
            case StopJob():
                self.become(JobState.CANCELLED)
                self.over.set()

    def pause(self) -> None:
        after_s = 2.0 if self.record.resume == "automatic" else 0.2  # a run that hangs needs longer
        threading.Timer(after_s, self.become, (JobState.PAUSED, "paused by its user")).start()

    def resume(self, resume: Resume) -> None:
        check_identity(self.record, load_config(Path(self.record.job_file)))
        check_resume(self.record, resume)
        if Path(self.record.job_file).with_name("ddl").exists() and not resume.past_ddl:
            raise errors.DdlStop("A TRUNCATE follows.", hint="Use --past-ddl.")
        threading.Timer(0.2, self.start_again).start()

    def start_again(self) -> None:
        reason = self.record.reason
        self.become(JobState.PENDING)
        self.resumes += 1
        still = Path(self.record.job_file).with_name("still").exists()
        self.become(*((JobState.PAUSED, reason) if still else (JobState.RUNNING,)))

    def terminate(self, number: int, _: object) -> None:
        self.code = 128 + number
        self.over.set()


def main() -> int:
    file = Path(sys.argv[2])
    name = sys.argv[sys.argv.index("--name") + 1] if "--name" in sys.argv else load_config(file).name
    set_up_logs(name)
    folder = JobDirectory(state_folder(), name)
    store = open_store()
    try:
        fail = file.with_name("fail")
        if fail.exists():
            raise getattr(errors, fail.read_text())("The server is unavailable.", hint="Start it.", host="db")
        config = load_config(file)
        record = store.acquire(config.name, str(file))
    except errors.CdcError as error:
        folder.set_failure(error)
        store.close()
        return error.exit_code
    supervisor = os.environ.get("CDC_SUPERVISOR_PID")
    job = FakeJob(store, record)
    endpoint = StatusEndpoint(job, host=config.status.host, port=config.status.port, token=folder.token())
    url = endpoint.start()
    job.record = replace(
        record,
        driver_pid=os.getpid(),
        supervisor_pid=int(supervisor) if supervisor else None,
        status_url=url,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    signal.signal(signal.SIGTERM, job.terminate)
    calls = RemoteCalls(store, config.name, job, folder)
    if store.is_shared:
        threading.Thread(target=job.keep_lease, args=(folder,), daemon=True).start()
        calls.start()
    while file.with_name("hold").exists():
        time.sleep(0.02)
    if file.with_name("away").exists():
        job.become(JobState.PAUSED, "the server is unavailable", ResumeKind.AUTOMATIC)
    else:
        job.become(JobState.RUNNING)
    die = file.with_name("die")
    if die.exists():
        os._exit(int(die.read_text()))
    if file.with_name("end").exists():
        job.become(JobState.DONE)
        job.over.set()
    job.over.wait()
    if job.code and not job.lost:
        job.become(JobState.PENDING)
    endpoint.close()
    calls.close()
    store.close()
    return job.code


if __name__ == "__main__":
    sys.exit(main())
