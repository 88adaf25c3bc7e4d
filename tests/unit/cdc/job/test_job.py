"""What a driver does with the state that a user of the REST API wants, without a run of the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import cdc.api.client
from cdc.api.client import Driver
from cdc.api.models import PauseJob, Resume, StopJob
from cdc.config.models import Config
from cdc.errors import ConfigError
from cdc.job.job import Job, run_job
from cdc.job.runner import JobRunner
from cdc.model.position import Position
from cdc.pipeline.consumer import Ended
from cdc.state.base import JobRecord, JobState
from cdc.state.deployments import DesiredState
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.support.job_files import JOB

LIMIT_S = 120.0  # finds hangs


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CDC_STORE", raising=False)
    monkeypatch.setattr(
        cdc.api.client, "is_driver_alive", lambda record: True
    )  # the driver is a thread of this process
    with closing(SqliteStore(tmp_path / "home")) as found:
        yield found


def saved_job(store: SqlStore, state: JobState, desired: DesiredState) -> JobRecord:
    """Save a job whose driver has died, with the desired state of a request that it had accepted."""
    record = replace(store.acquire("shop", "shop.yaml"), state=state)
    store.save_job(record)
    store.release()
    store.deployments.declare("shop", desired=desired)
    return record


@contextmanager
def driver(tmp_path: Path, resume: Resume | None = None) -> Iterator[None]:
    """Run a driver on a thread."""
    file = tmp_path / "shop.yaml"
    file.write_text(JOB)
    thread = threading.Thread(target=run_job, args=(file,), kwargs={"resume": resume}, daemon=True)
    thread.start()
    yield
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def until_state(store: SqlStore, state: JobState) -> JobRecord:
    deadline = time.monotonic() + LIMIT_S
    while (record := store.job("shop")) is None or record.state is not state or record.driver_pid is None:
        assert time.monotonic() < deadline, record
        time.sleep(0.02)
    return record


@pytest.fixture(autouse=True)
def began(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Replace the runs of a job by a wait for its next request. Return the event that is set when one has begun."""
    began = threading.Event()

    def run_once(self: JobRunner) -> Ended:
        self._saved.set_state(JobState.RUNNING)
        began.set()
        self._requests.wait(None)
        return Ended.STOPPED

    monkeypatch.setattr(JobRunner, "run_once", run_once)
    return began


def test_pause_that_an_earlier_driver_lost_is_carried_out(store: SqlStore, tmp_path: Path) -> None:
    saved_job(store, JobState.RUNNING, DesiredState.PAUSED)
    with driver(tmp_path):
        record = until_state(store, JobState.PAUSED)
        assert record.is_paused_by_user and record.reason == "paused by its user"
        Driver(record).request(StopJob())
    assert store.job("shop").state is JobState.CANCELLED  # type: ignore[union-attr]


def test_stop_that_an_earlier_driver_lost_is_carried_out(store: SqlStore, tmp_path: Path) -> None:
    saved_job(store, JobState.RUNNING, DesiredState.CANCELLED)
    with driver(tmp_path):
        pass
    assert store.job("shop").state is JobState.CANCELLED  # type: ignore[union-attr]


@pytest.mark.parametrize("is_running", [True, False], ids=["sent to the driver", "starts the driver"])
def test_resume_ends_the_desired_pause(
    store: SqlStore, tmp_path: Path, began: threading.Event, is_running: bool
) -> None:
    """`cdc resume` after a pause by the REST API. The next driver must not pause the job again."""
    saved_job(store, JobState.RUNNING, DesiredState.PAUSED)
    with driver(tmp_path, None if is_running else Resume()):
        if is_running:
            Driver(until_state(store, JobState.PAUSED)).request(Resume())
        assert began.wait(LIMIT_S)
        found = store.deployments.get("shop")
        assert found is not None and (found.desired, found.generation) == (DesiredState.RUNNING, 2)
        Driver(until_state(store, JobState.RUNNING)).request(StopJob())


@pytest.mark.parametrize("names_pause", [True, False], ids=["of an earlier pause", "of any pause"])
def test_requested_pause_is_ended_by_no_resume_of_an_earlier_one(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_pause: bool
) -> None:
    """A dialog of the page still shows a pause that has ended, and the run finishes its commit before the next one."""
    committing, committed, runs_again = threading.Event(), threading.Event(), threading.Event()

    def run_once(self: JobRunner) -> Ended:
        self._saved.set_state(JobState.RUNNING)
        (runs_again if committing.is_set() else committing).set()
        committed.wait(LIMIT_S)
        self._requests.wait(None)
        return Ended.STOPPED

    saved_job(store, JobState.RUNNING, DesiredState.PAUSED)
    monkeypatch.setattr(JobRunner, "run_once", run_once)
    with driver(tmp_path):
        ended = until_state(store, JobState.PAUSED)
        Driver(ended).request(Resume(pause=ended.pause))
        assert committing.wait(LIMIT_S)
        running = until_state(store, JobState.RUNNING)
        Driver(running).request(PauseJob())
        if names_pause:
            with pytest.raises(ConfigError, match="A pause of the job shop was requested"):
                Driver(running).request(Resume(pause=ended.pause))
        else:
            Driver(running).request(Resume())
        committed.set()
        if names_pause:
            until_state(store, JobState.PAUSED)
        else:
            assert runs_again.wait(LIMIT_S)
            until_state(store, JobState.RUNNING)
        Driver(running).request(StopJob())


def test_requested_pause_is_not_ended_by_the_resume_before_it(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume is applied, a pause is requested, and a second resume names the pause that the first one ends."""
    applying, applied, calls = threading.Event(), threading.Event(), []
    check = Job._check_file

    def check_file(self: Job, config: Config) -> Position | None:
        calls.append(config)
        if len(calls) == 2:  # of the first resume
            applying.set()
            assert applied.wait(LIMIT_S)
        return check(self, config)

    saved_job(store, JobState.RUNNING, DesiredState.PAUSED)
    monkeypatch.setattr(Job, "_check_file", check_file)
    with driver(tmp_path):
        paused = until_state(store, JobState.PAUSED)
        Driver(paused).request(Resume(pause=paused.pause))
        assert applying.wait(LIMIT_S)
        Driver(paused).request(PauseJob())
        with pytest.raises(ConfigError, match="A pause of the job shop was requested"):
            Driver(paused).request(Resume(pause=paused.pause))
        applied.set()
        deadline = time.monotonic() + LIMIT_S
        while until_state(store, JobState.PAUSED).pause == paused.pause:
            assert time.monotonic() < deadline
        Driver(paused).request(StopJob())


def test_posted_lag_that_is_saved_during_the_start_is_kept(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the webhook saves it while the start checks the job file."""
    saved_job(store, JobState.RUNNING, DesiredState.RUNNING)
    check = Job._check_file

    def check_file(self: Job, config: Config) -> Position | None:
        self.save_lag_posted(is_posted=True)
        return check(self, config)

    monkeypatch.setattr(Job, "_check_file", check_file)
    with driver(tmp_path):
        record = until_state(store, JobState.RUNNING)
        assert record.is_lag_posted
        Driver(record).request(StopJob())
