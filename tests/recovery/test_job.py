"""The Job: states, automatic and manual pauses, requests, signals, start and adoption."""

import io
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import cdc.job.job
import cdc.job.process_end
import cdc.job.record
import cdc.job.requests
import cdc.job.runner
import cdc.pipeline.consumer
import cdc.pipeline.cycles
import cdc.retry
from cdc.api.models import PauseJob, Resume, StopJob
from cdc.config.models import load_config
from cdc.errors import (
    CheckpointError,
    ConfigError,
    DdlStop,
    LeaseLost,
    LoadRejected,
    ReaderConflict,
    SinkOwnershipError,
    SinkUnavailable,
    SourceUnavailable,
)
from cdc.job import webhook
from cdc.job.job import Job
from cdc.job.requests import JobRequest
from cdc.job.wiring import Components
from cdc.logging_setup import LineFormatter
from cdc.model.schema_change import ChangeMode, ChangePolicy
from cdc.pipeline.consumer import Consumer
from cdc.sources.base import LogProgress
from cdc.state.base import JobState
from cdc.state.job_directory import JobDirectory
from cdc.state.sqlite import SqliteStore
from channels.routes import Routes
from channels.sinks.base import ownership_error
from tests.model.harness import MAPPINGS
from tests.model.runner import ThreadRunner
from tests.model.sink import FileSink
from tests.model.source import Source, SourceReceiver, position_at
from tests.support.limits import HANG_S
from tests.support.webhook_receiver import WebhookReceiver

ROOT = Path(__file__).parents[2]
FILE = """
name: shop
source: {type: binlog, host: 127.0.0.1, port: %(port)s, username: cdc, start: latest}
sink: {type: delta, path: ./warehouse}
channels:
  - {source: shop.orders, target: %(target)s}
%(more)s
commit: {interval: 20ms, min_rows: 1, min_bytes: 1B, max_bytes: 200B}
tasks: {max_bytes: 1B}
"""


class Delegating:
    """A sink that delegates to another one what it does not implement."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.pipeline.cycles, "SHUTDOWN_S", 0.3)


class JobSetup:
    """A Job with a source in memory, run on a thread."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "shop.yaml"
        self.source = Source.random(1, transactions=20)
        self.endless = True
        self.start = 0  # what `source.start` is at the first start
        self.wrap_sink = lambda sink: sink
        self.mappings = MAPPINGS
        self.accepted, self.acknowledged_ddl = [], {}
        self.jobs = []
        self.write()

    def write(self, port=3306, target="ods.orders", more=""):
        self.file.write_text(FILE % {"port": port, "target": target, "more": more})

    def build(self, config):
        routes = Routes(self.mappings)
        sink = self.wrap_sink(FileSink(self.folder / "sink.db"))

        def receiver(run, resume, passed):
            self.accepted.append(resume)
            self.acknowledged_ddl = dict(passed)
            return SourceReceiver(self.source, routes, endless=self.endless)

        return Components(routes, sink, ThreadRunner(sink), receiver, lambda run: position_at(self.start))

    def job(self, home="home", supervisor_pid=None, **options):
        store = SqliteStore(self.folder / home)
        job = Job(self.file, store, load=load_config, build=self.build, **options)
        self.jobs.append(Running(job, store, supervisor_pid))
        return self.jobs[-1]

    def end_jobs(self):
        """End what a failed test has left, so that its threads and files disturb no other test."""
        for running in self.jobs:
            if running.thread.is_alive():
                with pytest.MonkeyPatch.context() as patch:
                    for name in ("END_GRACE_S", "LOST_GRACE_S"):  # a forced end would end pytest
                        patch.setattr(cdc.job.process_end, name, 3600)
                    running.job.end(signal.SIGTERM)
                running.thread.join(60)

    def rows(self):
        sink = FileSink(self.folder / "sink.db")
        try:
            return sink.rows()
        finally:
            sink.close()

    def expected(self):
        return {f"ods.{name.split('.')[1]}": rows for name, rows in self.source.state().items()}


class Running:
    """A Job that runs."""

    def __init__(self, job, store, supervisor_pid=None):
        self.job, self.store, self.supervisor_pid = job, store, supervisor_pid
        self.code = self.error = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            self.code = self.job.run(supervisor_pid=self.supervisor_pid)
        except BaseException as error:
            self.error = error
        finally:
            self.store.close()

    def until(self, state, timeout_s=240, **fields):
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.job.status()
            if status.state == state and all(getattr(status, name) == value for name, value in fields.items()):
                return status
            assert time.monotonic() < deadline, status
            assert self.thread.is_alive() or state in ("DONE", "CANCELLED"), (self.error, status)
            time.sleep(0.005)

    def saved(self, state, timeout_s=240):
        """Return the saved record when it has ``state``: the status shows a state before it is saved."""
        deadline = time.monotonic() + timeout_s
        while (record := self.store.job("shop")).state is not state:
            assert time.monotonic() < deadline, record
            time.sleep(0.005)
        return record

    def until_caught_up(self, source):
        deadline = time.monotonic() + 240
        while True:
            status = self.job.status()
            if status.position and status.position["offset"] == len(source.transactions):
                return status
            assert time.monotonic() < deadline, status
            time.sleep(0.005)

    def ended(self):
        self.thread.join(240)
        assert not self.thread.is_alive()
        if self.error:
            raise self.error
        return self.code

    def stop(self):
        self.job.request(StopJob())
        return self.ended()


def end_by_signal(job):
    """End the job as a signal does. Signals themselves reach only main threads."""
    job.job.end(signal.SIGTERM)
    return job.ended()


@pytest.fixture
def setup(tmp_path):
    setup = JobSetup(tmp_path)
    yield setup
    setup.end_jobs()


def test_job_runs_pauses_resumes_and_is_cancelled(setup):
    job = setup.job()
    job.until("RUNNING")
    job.until_caught_up(setup.source)
    job.job.request(PauseJob())
    paused = job.until("PAUSED", resume="manual")
    assert paused.hint == "cdc resume shop" and paused.desired_state == "PAUSED"
    setup.source.write(("shop.orders", 99))
    time.sleep(0.05)
    assert setup.rows() != setup.expected()
    job.job.request(Resume())
    job.until("RUNNING")
    status = job.until_caught_up(setup.source)
    assert sum(channel.upserts + channel.deletes for channel in status.channels) == setup.source.operations
    assert job.stop() == 0
    assert setup.rows() == setup.expected()
    with pytest.raises(ConfigError, match="--forget"):
        setup.job().ended()


def test_paused_job_knows_the_retention_of_its_server_after_a_restart(setup, monkeypatch):
    """An alert compares it with the age of the last commit. A driver that starts PAUSED does not ask the server."""
    status, kept = SourceReceiver.status, [None]
    monkeypatch.setattr(
        SourceReceiver, "status", lambda self: replace(status(self), log=LogProgress(0, 0, retention_s=kept[0]))
    )

    def restarted():
        job.job.request(PauseJob())
        job.until("PAUSED", resume="manual")
        assert end_by_signal(job) == 128 + signal.SIGTERM
        return setup.job()

    job = setup.job()
    job.until("RUNNING")
    kept[0] = 3600.0
    job = restarted()
    assert job.until("PAUSED").source_log.retention_seconds == 3600.0
    kept[0] = None  # the next run has not asked the server yet
    job.job.request(Resume())
    job.until("RUNNING")
    job = restarted()
    assert job.until("PAUSED").source_log.retention_seconds == 3600.0
    kept[0] = 0.0  # the server keeps its files for ever
    job.job.request(Resume())
    job.until("RUNNING")
    job = restarted()
    assert job.until("PAUSED").source_log is None
    job.stop()


def test_job_posts_its_pause_and_continues_while_the_webhook_hangs(setup, monkeypatch):
    monkeypatch.setattr(webhook, "POLL_S", 0.01)
    with WebhookReceiver(200, None) as server:
        setup.write(more=f'alerts: {{webhook: "{server.url}"}}')
        job = setup.job()
        posts = webhook.Webhook(job.job)
        posts.start()
        job.until("RUNNING")
        job.job.request(PauseJob())
        message = server.message()
        assert (message["state"], message["reason"], message["resume"]) == ("PAUSED", "paused by its user", "manual")
        job.job.request(Resume())
        assert server.message()["resolved"] is True  # it gets no reply to this one
        setup.source.write(("shop.orders", 99))
        job.until_caught_up(setup.source)
        assert setup.rows() == setup.expected()
        assert job.stop() == 0
        server.released.set()
        posts.close()
        server.shutdown()


def test_job_of_a_finite_source_is_done(setup):
    setup.endless = False
    job = setup.job()
    assert job.ended() == 0
    assert job.job.status().state == "DONE"
    assert setup.rows() == setup.expected()


def test_source_warning_is_shown_while_the_job_runs(setup):
    job = setup.job()
    assert job.until("RUNNING").reason is None
    setup.source.warning = SourceUnavailable("Canal is stalled.", hint="See its log.", silent_for="30 s")
    job.until("RUNNING", reason="Canal is stalled. (silent for 30 s)", hint="See its log.")
    setup.source.warning = None
    job.until("RUNNING", reason=None)
    job.job.request(StopJob())
    job.ended()


def test_unknown_error_pauses_and_resumes_automatically(setup):
    setup.endless, broken = False, []

    class Once(Exception):
        pass

    class Breaks(Delegating):
        def commit(self, loads, checkpoint):
            if len(broken) < 3:
                broken.append(1)
                raise Once("unknown")
            return self.inner.commit(loads, checkpoint)

    setup.wrap_sink = Breaks
    assert setup.job().ended() == 0
    assert setup.rows() == setup.expected()


def test_reader_conflict_is_retried_and_then_pauses(setup, monkeypatch):
    conflicts, allowed = [], [3]
    get = SourceReceiver.get

    def conflicting(receiver, timeout_s):
        if len(conflicts) < allowed[0]:
            conflicts.append(1)
            raise ReaderConflict("Another reader has taken the stream.", hint="Stop it.")
        return get(receiver, timeout_s)

    monkeypatch.setattr(SourceReceiver, "get", conflicting)
    monkeypatch.setattr(cdc.retry, "LONGEST_DELAY_S", 0.01)
    job = setup.job()
    job.until_caught_up(setup.source)
    job.until("RUNNING")
    allowed[0] = 1000
    paused = job.until("PAUSED", resume="manual")
    assert "taken the stream" in paused.reason and paused.desired_state == "RUNNING"
    assert len(conflicts) == 6  # retried five times
    job.stop()


def test_reader_conflict_after_lost_lease_ends_the_job(setup, monkeypatch, caplog):
    def conflicting(receiver, timeout_s):
        raise ReaderConflict("Another reader has taken the stream.", hint="Stop it.")

    def lost(store):
        raise LeaseLost("Another process runs the job.", hint="Stop this one.")

    job = setup.job()
    job.until_caught_up(setup.source)
    monkeypatch.setattr(SqliteStore, "check_fence", lost)
    monkeypatch.setattr(SourceReceiver, "get", conflicting)
    with pytest.raises(LeaseLost, match="Another process"):
        job.ended()
    assert "retry in" not in caplog.text, "an older process must not take the stream once more"


def test_waiting_commit_shows_a_pause_and_does_not_block_stop(setup):
    away = threading.Event()

    class Away(Delegating):
        def commit(self, loads, checkpoint):
            if not away.is_set():
                raise SinkUnavailable("The sink is unavailable.", hint="Start it.")
            return self.inner.commit(loads, checkpoint)

    setup.wrap_sink = Away
    job = setup.job()
    status = job.until("PAUSED", resume="automatic")
    assert (status.reason, status.hint) == ("The sink is unavailable.", "Start it.")
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    away.set()
    job.job.request(Resume())
    job.until_caught_up(setup.source)
    assert job.stop() == 0
    assert setup.rows() == setup.expected()


class Away:
    """A sink wrapper whose commits fail until ``returned`` is set."""

    def __init__(self):
        self.returned = threading.Event()

    def __call__(self, inner):
        returned = self.returned

        class Sink(Delegating):
            def commit(self, loads, checkpoint):
                if not returned.is_set():
                    raise SinkUnavailable("The sink is unavailable.", hint="Start it.")
                return self.inner.commit(loads, checkpoint)

        return Sink(inner)


def test_waiting_commit_saves_the_shown_pause(setup):
    away = setup.wrap_sink = Away()
    job = setup.job()
    status = job.until("PAUSED", resume="automatic")
    record = job.saved(JobState.PAUSED)
    assert (record.state.value, record.reason, record.hint, record.resume) == (
        (status.state, status.reason, status.hint, status.resume)
    )
    assert status.lag_seconds is not None
    away.returned.set()
    job.until("RUNNING", reason=None)
    assert job.saved(JobState.RUNNING).reason is None
    job.until_caught_up(setup.source)
    assert job.stop() == 0


def test_resume_during_a_waiting_commit_commits_immediately(setup, monkeypatch):
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 3600.0)
    away = setup.wrap_sink = Away()
    job = setup.job()
    job.until("PAUSED", resume="automatic")
    away.returned.set()
    job.job.request(Resume())
    job.until("RUNNING", resumes=1)
    job.until_caught_up(setup.source)
    assert job.stop() == 0
    assert setup.rows() == setup.expected()


def test_waiting_commit_in_recovery_shows_the_pause(setup):
    away = setup.wrap_sink = Away()
    job = setup.job()
    job.until("PAUSED", resume="automatic")
    assert end_by_signal(job) == 143
    again = setup.job()
    again.until("PAUSED", resume="automatic", reason="The sink is unavailable.")
    away.returned.set()
    again.until("RUNNING")
    again.until_caught_up(setup.source)
    assert again.stop() == 0
    assert setup.rows() == setup.expected()


def test_ddl_pauses_after_earlier_rows_until_resumed(setup):
    setup.source.stops[12] = DdlStop("DDL: DROP COLUMN a.", hint="cdc resume shop", table="shop.orders")
    job = setup.job()
    status = job.until("PAUSED", resume="manual")
    assert status.reason == "DDL: DROP COLUMN a. (table shop.orders)"
    assert status.position["offset"] == 12
    assert status.checkpoint.closed_by in ("ddl", "interval", "idle", "max_bytes")
    setup.source.stops.clear()
    job.job.request(Resume(past_ddl=True))
    job.until_caught_up(setup.source)
    assert job.stop() == 0
    assert setup.accepted == [None, Resume(past_ddl=True)]
    assert setup.rows() == setup.expected()


def test_resume_flags_expire_when_the_position_moves(setup):
    setup.source.stops[12] = DdlStop("DDL.", hint="cdc resume shop")
    job = setup.job()
    job.until("PAUSED", resume="manual")
    setup.source.stops = {15: OSError("something else")}
    job.job.request(Resume(past_ddl=True))
    job.until("PAUSED", resume="automatic")
    while len(setup.accepted) < 4:
        time.sleep(0.005)
    assert setup.accepted[:2] == [None, Resume(past_ddl=True)]
    assert setup.accepted[3] is None
    job.stop()


def test_reload_missing_is_for_first_verification_after_resume(setup, monkeypatch):
    accepted = []

    def consumer(parts, *arguments, **options):
        accepted.append(parts.reload_missing)
        return Consumer(parts, *arguments, **options)

    monkeypatch.setattr(cdc.job.runner, "Consumer", consumer)
    job = setup.job()
    job.until_caught_up(setup.source)
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    job.job.request(Resume(reload_missing=True))
    job.until("RUNNING")
    setup.source.stops[len(setup.source.transactions)] = OSError("the position does not move")
    job.until("PAUSED", resume="automatic")
    while len(accepted) < 4:
        time.sleep(0.005)
    assert accepted[:4] == [False, True, False, False]
    job.stop()


def test_reload_missing_is_kept_until_the_sink_is_verified(setup, monkeypatch):
    accepted = []

    class Away(Delegating):
        def target_states(self, *arguments):
            if accepted == [False, True]:
                raise SinkUnavailable("The sink is unavailable.", hint="Start it.")
            return self.inner.target_states(*arguments)

    def consumer(parts, *arguments, **options):
        accepted.append(parts.reload_missing)
        return Consumer(parts, *arguments, **options)

    setup.wrap_sink = Away
    monkeypatch.setattr(cdc.job.runner, "Consumer", consumer)
    job = setup.job()
    job.until_caught_up(setup.source)
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    job.job.request(Resume(reload_missing=True))
    job.until("RUNNING")
    assert accepted == [False, True, True]
    job.stop()


def test_resume_ends_only_the_pause_that_its_sender_has_seen(setup):
    """Two persons see the first statement. The second one sends the resume when the job is paused at the next one."""
    setup.source.stops = {at: DdlStop("DDL.", hint="cdc resume shop", position=position_at(at + 2)) for at in (12, 16)}
    job = setup.job()
    first = job.until("PAUSED", resume="manual")
    both = Resume(past_ddl=True, pause=first.pause)
    del setup.source.stops[12]
    job.job.request(both)
    second = job.until("PAUSED", resumes=1)
    assert first.pause and second.pause and second.pause != first.pause
    with pytest.raises(ConfigError, match="paused for another reason now"):
        job.job.request(both)
    job.job._put_request(JobRequest.RESUME, both)  # it was accepted before the first one was carried out
    time.sleep(0.1)
    still = job.until("PAUSED")
    assert (still.pause, still.resumes) == (second.pause, 1)
    setup.source.stops.clear()
    job.job.request(Resume(past_ddl=True, pause=second.pause))
    job.until_caught_up(setup.source)
    assert job.job.status().pause is None
    job.stop()


def test_retries_of_one_error_are_one_pause(setup):
    tries, is_away = [], [True]

    class Away(Delegating):
        def last_checkpoint(self, *arguments):
            tries.append(1)
            if is_away[0]:
                raise SinkUnavailable("The sink is unavailable.", hint="Start it.")
            return self.inner.last_checkpoint(*arguments)

    setup.wrap_sink = Away
    job = setup.job()
    first = job.until("PAUSED", resume="automatic")
    while len(tries) < 3:
        time.sleep(0.005)
    assert job.until("PAUSED", resume="automatic").pause == first.pause
    job.job.request(Resume(reload_missing=True, pause=first.pause))
    assert job.until("PAUSED", resumes=1).pause != first.pause
    is_away[0] = False
    job.until("RUNNING")
    job.stop()


def test_acknowledged_ddl_is_skipped_by_later_runs(setup):
    """Also if the saved position stays far before it, and if the process ends during the pause."""
    setup.source.stops[12] = DdlStop("DDL.", hint="cdc resume shop", position=position_at(14))
    first = setup.job()
    first.until("PAUSED", resume="manual")
    assert end_by_signal(first) == 143
    again = setup.job()
    again.until("PAUSED", resume="manual")
    setup.source.stops = {13: DdlStop("DDL.", hint="cdc resume shop", position=position_at(16))}
    again.job.request(Resume(past_ddl=True))
    again.until("PAUSED", resume="manual", resumes=1)
    assert setup.acknowledged_ddl == {position_at(14): True}
    setup.source.stops = {15: OSError("something else")}
    again.job.request(Resume())
    again.until("PAUSED", resume="automatic")
    end_by_signal(again)
    setup.source.stops.clear()
    another = setup.job()
    another.until_caught_up(setup.source)
    assert setup.acknowledged_ddl == {position_at(14): True, position_at(16): False}
    another.stop()


def test_resume_without_a_driver_accepts_the_statement_of_the_pause(setup):
    setup.source.stops[12] = DdlStop("DDL.", hint="cdc resume shop", position=position_at(14))
    first = setup.job()
    first.until("PAUSED", resume="manual")
    end_by_signal(first)
    setup.source.stops.clear()
    again = setup.job(resume=Resume())
    again.until_caught_up(setup.source)
    assert setup.acknowledged_ddl == {position_at(14): False}
    again.stop()


def test_resume_after_a_pause_by_hand_accepts_no_statement(setup):
    job = setup.job()
    job.until_caught_up(setup.source)
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    job.job.request(Resume(past_ddl=True))
    job.until("RUNNING")
    assert setup.acknowledged_ddl == {}
    job.stop()


def test_acknowledged_ddl_is_dropped_after_its_position(setup):
    stops = [(12, position_at(14)), (15, position_at(17)), (18, position_at(19))]
    setup.source.stops = {at: DdlStop("DDL.", hint="cdc resume shop", position=where) for at, where in stops}
    job = setup.job()
    for number, expected in enumerate(({position_at(14): False}, {position_at(17): False}, {position_at(19): False})):
        job.until("PAUSED", resume="manual", resumes=number)
        del setup.source.stops[stops[number][0]]
        job.job.request(Resume(accept_gap=number == 2))
        while setup.acknowledged_ddl != expected:
            time.sleep(0.005)
    job.until_caught_up(setup.source)
    job.stop()


def test_ddl_inside_a_batch_keeps_only_whole_transactions(setup):
    setup.source.write(*[("shop.orders", key) for key in range(20)])
    inside = len(setup.source.transactions) - 1
    setup.source.stops_inside[inside] = DdlStop("DML as a statement.", hint="Set binlog_format=ROW.")
    job = setup.job()
    status = job.until("PAUSED", resume="manual")
    assert status.position["offset"] == inside
    setup.source.stops_inside.clear()
    job.job.request(Resume())
    job.until_caught_up(setup.source)
    job.stop()
    assert setup.rows() == setup.expected()


def test_manual_pause_survives_a_restart(setup):
    job = setup.job()
    job.until_caught_up(setup.source)
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    assert end_by_signal(job) == 143
    again = setup.job()
    status = again.until("PAUSED", resume="manual")
    # the commits are reported without a run, too
    assert sum(channel.upserts + channel.deletes for channel in status.channels) == setup.source.operations
    assert all(channel.last_committed_at for channel in status.channels if channel.upserts)
    time.sleep(0.05)
    assert again.job.status().state == "PAUSED"
    again.stop()


@pytest.mark.parametrize(
    ("wishes", "state", "resume"),
    [
        ((JobRequest.PAUSE, JobRequest.END), JobState.PAUSED, "manual"),
        ((JobRequest.END, JobRequest.PAUSE), JobState.PAUSED, "manual"),
        ((JobRequest.PAUSE, JobRequest.RESUME, JobRequest.END), JobState.PENDING, None),
    ],
)
def test_signal_keeps_a_pending_pause_request(setup, wishes, state, resume):
    hangs, goes_on = threading.Event(), threading.Event()

    class Hangs(Delegating):
        def commit(self, loads, checkpoint):
            hangs.set()
            goes_on.wait()
            return self.inner.commit(loads, checkpoint)

    setup.wrap_sink = Hangs
    job = setup.job()
    assert hangs.wait(240)
    job.job._end.signal = signal.SIGTERM
    for wish in wishes:
        job.job._put_request(wish, Resume() if wish is JobRequest.RESUME else None)
    goes_on.set()
    assert job.ended() == 143
    store = SqliteStore(setup.folder / "home")
    record = store.job("shop")
    store.close()
    assert (record.state, record.resume) == (state, resume)


def test_driver_that_ends_normally_clears_its_processes(setup):
    job = setup.job(supervisor_pid=4711)
    job.until("RUNNING")
    assert job.job._saved.now.supervisor_pid == 4711
    end_by_signal(job)
    store = SqliteStore(setup.folder / "home")
    record = store.job("shop")
    store.close()
    assert (record.driver_pid, record.supervisor_pid, record.status_url) == (None, None, None)


def test_start_with_resume_resumes_a_paused_job(setup):
    job = setup.job()
    job.until("RUNNING")
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    end_by_signal(job)
    again = setup.job(resume=Resume())
    again.until("RUNNING")
    again.until_caught_up(setup.source)
    again.stop()
    assert setup.rows() == setup.expected()


@pytest.mark.parametrize(
    ("change", "reason_text"),
    [({"port": 3307}, "source server"), ({"target": "ods.others"}, "target of shop.orders")],
)
def test_job_file_of_another_job_is_rejected_at_resume_and_start(setup, change, reason_text):
    job = setup.job()
    job.until("RUNNING")
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    setup.write(**change)
    with pytest.raises(ConfigError, match=reason_text):
        job.job.request(Resume())
    end_by_signal(job)
    with pytest.raises(ConfigError, match=reason_text):
        setup.job().ended()
    setup.write(more="  - {source: shop.items, target: ods.items}")
    again = setup.job(resume=Resume())
    again.until("RUNNING")
    again.stop()


def test_repeated_pause_of_the_same_cause_is_distinguished(setup):
    class Refuses(Delegating):
        def commit(self, *_):
            raise LoadRejected("A row does not match.", hint="Widen the column.")

    setup.wrap_sink = Refuses
    job = setup.job()
    for number in range(3):
        paused = job.until("PAUSED", resumes=number)
        assert (paused.reason, paused.resume) == ("A row does not match.", "manual")
        job.job.request(Resume())
    job.stop()


def test_job_file_with_another_name_is_rejected_at_resume(setup):
    job = setup.job()
    job.until("RUNNING")
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    as_it_was = setup.file.read_text()
    setup.file.write_text(as_it_was.replace("name: shop", "name: other"))
    with pytest.raises(ConfigError, match=r"`name: shop` again\..*start a copy"):
        job.job.request(Resume())
    # changed between the request and the run loop
    job.job._put_request(cdc.job.requests.JobRequest.RESUME, Resume())
    reason_text = job.until("PAUSED", reason="The job file of shop has the name other now: that would be another job.")
    assert reason_text.resume == "manual"
    setup.file.write_text(as_it_was)
    job.job.request(Resume())
    job.until("RUNNING")
    job.stop()


def test_new_secret_is_hidden_in_log_and_reason(setup, monkeypatch):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("shop", ("old-secret",)))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    job = setup.job()
    job.until("RUNNING")
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    setup.file.write_text(setup.file.read_text().replace("username: cdc", "username: cdc, password: new-secret"))
    job.job.request(Resume())
    job.until("RUNNING")
    logging.getLogger("cdc").error("it was old-secret, it is new-secret")
    setup.source.warning = SourceUnavailable("It was old-secret.", hint="Wait.", it_is="new-secret")
    job.until("RUNNING", reason="It was [hidden]. (it is [hidden])")
    job.stop()
    assert "it was [hidden], it is [hidden]" in stream.getvalue()


def test_job_runs_once(setup):
    first = setup.job()
    first.until("RUNNING")
    with pytest.raises(LeaseLost, match=str(os.getpid())):
        setup.job().ended()
    first.stop()


def test_rejected_driver_keeps_the_token_of_the_running_one(setup, monkeypatch):
    monkeypatch.setenv("CDC_HOME", str(setup.folder / "home"))
    folder = JobDirectory(setup.folder / "home", "shop")
    folder.set_token("of the one that runs")
    setup.file.write_text(f"{setup.file.read_text()}status: {{port: 0, token: of the one that is refused}}\n")
    first = setup.job()
    first.until("RUNNING")
    with pytest.raises(LeaseLost):
        cdc.job.job.run_job(setup.file)
    assert folder.known_token() == "of the one that runs"
    first.stop()


def test_lost_state_is_rejected_until_adopted(setup):
    job = setup.job()
    job.until_caught_up(setup.source)
    end_by_signal(job)
    refused = setup.job(home="new")
    with pytest.raises(SinkOwnershipError, match="--adopt"):
        refused.ended()
    store = SqliteStore(setup.folder / "new")
    assert store.job("shop").state is JobState.PENDING
    store.close()
    setup.source.write(("shop.orders", 7))
    adopted = setup.job(home="new", adopt=True)
    adopted.until_caught_up(setup.source)
    end_by_signal(adopted)
    assert setup.rows() == setup.expected()
    again = setup.job(home="new")
    setup.source.write(("shop.orders", 8))
    again.until_caught_up(setup.source)
    again.stop()
    assert setup.rows() == setup.expected()
    old = setup.job()
    with pytest.raises(SinkOwnershipError):
        old.ended()


class Died(BaseException):
    """The end of a process that handles no error."""


def test_adoption_that_ends_before_its_checkpoint_is_repeated(setup, monkeypatch):
    """Otherwise the next start begins at `source.start`, after changes that were not loaded."""
    job = setup.job()
    job.until_caught_up(setup.source)
    end_by_signal(job)
    setup.source.write(("shop.orders", 7))

    def die(*_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "_prune", die)  # the last step of a save of a COMMITTED checkpoint
        with pytest.raises(Died):
            setup.job(home="new", adopt=True).ended()
    setup.start = len(setup.source.transactions)  # as `start: latest`
    with pytest.raises(SinkOwnershipError, match="--adopt"):
        setup.job(home="new").ended()
    adopted = setup.job(home="new", adopt=True)
    adopted.until_caught_up(setup.source)
    adopted.stop()
    assert setup.rows() == setup.expected()


def test_stopped_and_forgotten_job_continues_from_its_targets(setup):
    job = setup.job()
    job.until_caught_up(setup.source)
    job.stop()
    with pytest.raises(ConfigError, match=r"--forget.*--adopt.*another `name:`"):
        setup.job().ended()
    store = SqliteStore(setup.folder / "home")
    store.forget("shop")
    store.close()
    with pytest.raises(SinkOwnershipError):
        setup.job().ended()
    setup.source.write(("shop.orders", 7))
    adopted = setup.job(adopt=True)
    adopted.until_caught_up(setup.source)
    adopted.stop()
    assert setup.rows() == setup.expected()


def test_resume_after_another_incarnation_checks_the_sink(setup):
    """The other one may have committed more than this process knows."""

    class Claimed(Delegating):
        def commit(self, loads, mark):
            known = self.inner.last_checkpoint("shop")
            if known is not None and known.incarnation != mark.incarnation:
                raise ownership_error(known)
            self.inner.commit(loads, mark)

    setup.wrap_sink = Claimed
    job = setup.job()
    job.until_caught_up(setup.source)
    setup.wrap_sink = lambda sink: sink
    other = setup.job(home="new", adopt=True)
    other.until_caught_up(setup.source)
    setup.source.write(("shop.orders", 7))
    other.until_caught_up(setup.source)
    setup.source.write(("shop.orders", 8))
    other.until_caught_up(setup.source)
    job.until("PAUSED", resume="manual")
    end_by_signal(other)
    job.job.request(Resume())
    with pytest.raises(SinkOwnershipError, match="--adopt"):
        job.ended()
    assert setup.rows() == setup.expected()


def test_old_copy_of_the_state_is_rejected_until_adopted(setup):
    job = setup.job()
    job.until_caught_up(setup.source)
    end_by_signal(job)
    copy = subprocess.check_call(["cp", "-r", str(setup.folder / "home"), str(setup.folder / "copy")])
    assert copy == 0
    setup.source.write(("shop.orders", 7))
    job = setup.job()
    job.until_caught_up(setup.source)
    end_by_signal(job)
    with pytest.raises(SinkOwnershipError, match="ahead"):
        setup.job(home="copy").ended()
    adopted = setup.job(home="copy", adopt=True)
    setup.source.write(("shop.orders", 8))
    adopted.until_caught_up(setup.source)
    adopted.stop()
    assert setup.rows() == setup.expected()


def test_unwritable_store_pauses_the_job_which_then_continues(setup, monkeypatch):
    left, once = [5], threading.Lock()
    real = SqliteStore.save

    def save(store, checkpoint):
        with once:  # the next cycle is saved while one commits
            is_full = checkpoint.rows and left[0]
            left[0] -= bool(is_full)
        if is_full:
            raise CheckpointError("The disk is full.", hint="Free some space.")
        real(store, checkpoint)

    monkeypatch.setattr(SqliteStore, "save", save)
    job = setup.job()
    job.until_caught_up(setup.source)
    job.stop()
    assert left == [0]
    assert setup.rows() == setup.expected()


class LockedStore:
    """Lets ``save_job`` fail for records in this state, ``left`` times."""

    def __init__(self, monkeypatch, state, left):
        self.left, real = left, SqliteStore.save_job

        def save_job(store, record):
            if record.state is state and self.left:
                self.left -= 1
                raise CheckpointError("The state file is locked.", hint="End the other process.")
            real(store, record)

        monkeypatch.setattr(SqliteStore, "save_job", save_job)
        monkeypatch.setattr(cdc.job.record, "RETRY_S", 0.02)


def saved_state(setup):
    with closing(SqliteStore(setup.folder / "home")) as store:
        return store.job("shop").state


def test_pause_that_cannot_be_saved_is_saved_later(setup, monkeypatch, caplog):
    job = setup.job()
    job.until_caught_up(setup.source)
    locked = LockedStore(monkeypatch, JobState.PAUSED, 5)
    job.job.request(PauseJob())
    deadline = time.monotonic() + 60
    while saved_state(setup) is not JobState.PAUSED:
        assert time.monotonic() < deadline, locked.left
        time.sleep(0.02)
    assert locked.left == 0
    errors = [one for one in caplog.records if "cannot be saved" in one.getMessage() and one.levelname == "ERROR"]
    assert len(errors) == 1
    end_by_signal(job)


@pytest.mark.parametrize("is_resumed", [True, False])
def test_running_that_cannot_be_saved_is_saved_later(setup, monkeypatch, caplog, is_resumed):
    """The source has no changes, so no checkpoint is saved: only a repetition saves that the job runs."""
    setup.source = Source.random(1, transactions=0)
    if is_resumed:
        first = setup.job()
        first.until("RUNNING")
        first.job.request(PauseJob())
        first.saved(JobState.PAUSED)
        end_by_signal(first)
    caplog.clear()
    locked = LockedStore(monkeypatch, JobState.RUNNING, 5)
    job = setup.job(resume=Resume() if is_resumed else None)
    job.until("RUNNING")
    assert job.saved(JobState.RUNNING, HANG_S).reason is None and locked.left == 0
    errors = [one for one in caplog.records if "cannot be saved" in one.getMessage() and one.levelname == "ERROR"]
    assert len(errors) == 1
    end_by_signal(job)


@pytest.mark.parametrize("is_stop", [True, False])
def test_end_that_cannot_be_saved_is_saved_again(setup, monkeypatch, is_stop):
    setup.endless = is_stop
    state = JobState.CANCELLED if is_stop else JobState.DONE
    locked = LockedStore(monkeypatch, state, 5)
    job = setup.job()
    if is_stop:
        job.until_caught_up(setup.source)
        job.job.request(StopJob())
    assert job.ended() == 0
    assert (saved_state(setup), locked.left) == (state, 0)


@pytest.mark.parametrize("is_stop", [True, False])
def test_end_that_is_never_saved_has_an_exit_code(setup, monkeypatch, is_stop):
    setup.endless = is_stop
    LockedStore(monkeypatch, JobState.CANCELLED if is_stop else JobState.DONE, 1 << 30)
    monkeypatch.setattr(cdc.job.record, "RETRY_S", 60.0)  # longer than the time limit
    job = setup.job()
    if is_stop:
        job.until_caught_up(setup.source)
        job.job.request(StopJob())
    assert job.ended() == 1


@contextmanager
def child_process(setup, program, *words):
    with subprocess.Popen(
        [sys.executable, "-c", program, str(setup.folder), *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


CHILD = """
import sys, pathlib
from tests.recovery.test_job import JobSetup
from cdc.state.sqlite import SqliteStore
from cdc.config.models import load_config
from cdc.job import webhook
from cdc.job.job import Job
setup = JobSetup(pathlib.Path(sys.argv[1]))
store = SqliteStore(setup.folder / "home")
job = Job(setup.file, store, load=load_config, build=setup.build)
print("ready", flush=True)
sys.exit(job.run())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_makes_the_job_pending_and_a_start_continues(setup, number, code):
    with child_process(setup, CHILD) as child:
        assert child.stdout.readline() == "ready\n"
        with closing(SqliteStore(setup.folder / "home")) as store:
            deadline = time.monotonic() + 240
            while (record := store.job("shop")) is None or record.state is not JobState.RUNNING:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            child.send_signal(number)
            assert child.wait(240) == code
            assert store.job("shop").state is JobState.PENDING
    job = setup.job()
    job.until_caught_up(setup.source)
    job.stop()
    assert setup.rows() == setup.expected()


HANGING = """
import sys, pathlib, time
import cdc.job.job
import cdc.job.process_end
import cdc.job.requests
from cdc.api.models import PauseJob, StopJob
from tests.recovery.test_job import Delegating, JobSetup
from cdc.state.sqlite import SqliteStore
from cdc.config.models import load_config
cdc.job.process_end.END_GRACE_S, cdc.job.process_end.PAUSE_GRACE_S = 1.5, 60 if "signal" in sys.argv[2] else 1.5
class Hangs(Delegating):
    def commit(self, loads, checkpoint):
        print("hangs", flush=True)
        time.sleep(600)
setup = JobSetup(pathlib.Path(sys.argv[1]))
setup.wrap_sink = Hangs
job = cdc.job.job.Job(
    setup.file, SqliteStore(setup.folder / "home"), load=load_config, build=setup.build
)
import threading
if "pause" in sys.argv[2]:
    noted = lambda: print("noted", flush=True)
    threading.Thread(target=lambda: (sys.stdin.readline(), job.request(PauseJob()), noted()), daemon=True).start()
elif sys.argv[2] == "stop":
    threading.Thread(target=lambda: (sys.stdin.readline(), job.request(StopJob())), daemon=True).start()
sys.exit(job.run())
"""


FAILING = """
import threading
from cdc.errors import CheckpointError
real = SqliteStore.save_job
def save_job(store, record):
    if record.state == "CANCELLED":
        raise CheckpointError("The state file is locked.", hint="End the other process.")
    real(store, record)
SqliteStore.save_job = save_job
"""


def test_hanging_start_ends_after_a_signal(setup):
    program = HANGING.replace(
        "setup.wrap_sink = Hangs", "setup.wrap_sink = lambda sink: Hangs(sink).commit(None, None)"
    )
    with child_process(setup, program, "signal") as child:
        assert child.stdout.readline() == "hangs\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(240) == 143
    job = setup.job()
    job.until_caught_up(setup.source)
    job.stop()


def test_hanging_stop_that_cannot_be_saved_has_an_exit_code(setup):
    program = HANGING.replace("import threading\n", FAILING)
    with child_process(setup, program, "stop") as child:
        assert child.stdout.readline() == "hangs\n"
        child.stdin.write("now\n")
        child.stdin.flush()
        assert child.wait(240) == 1
    assert saved_state(setup) is JobState.RUNNING


@pytest.mark.parametrize(
    ("requested", "code", "state"),
    [
        ("signal", 143, "PENDING"),
        ("pause", 1, "PAUSED"),
        ("pause, then signal", 143, "PAUSED"),
        ("stop", 0, "CANCELLED"),
    ],
)
def test_hanging_commit_ends_and_is_finished_at_the_next_start(setup, requested, code, state):
    with child_process(setup, HANGING, requested) as child:
        assert child.stdout.readline() == "hangs\n"
        began = time.monotonic()
        if requested != "signal":
            child.stdin.write("now\n")
            child.stdin.flush()
        if "signal" in requested:
            assert requested == "signal" or child.stdout.readline() == "noted\n"
            child.send_signal(signal.SIGTERM)
        assert child.wait(240) == code
        assert time.monotonic() - began < 50  # a pause alone has 60 s
    store = SqliteStore(setup.folder / "home")
    record, (prepared,) = store.job("shop"), store_unfinished(store)
    assert (record.state.value, prepared) == (state, "PREPARED")
    assert "did not end within" in record.reason
    store.close()
    if state != "CANCELLED":
        again = setup.job(resume=Resume() if state == "PAUSED" else None)
        again.until_caught_up(setup.source)
        again.stop()
        assert setup.rows() == setup.expected()


def store_unfinished(store):
    rows = store.database.all("SELECT state FROM cdc_checkpoints WHERE state = 'PREPARED'")
    return [state for (state,) in rows]


class Recording(Delegating):
    """A sink that records which targets are acquired and compared."""

    def __init__(self, inner):
        super().__init__(inner)
        self.calls = []

    def acquire_ownership(self, mark, targets):
        self.calls.append("acquire")
        return self.inner.acquire_ownership(mark, targets)

    def ensure_table(self, table):
        self.calls.append(f"ensure {table.name}")
        return self.inner.ensure_table(table)

    def target_states(self, job, incarnation, targets):
        self.calls.extend(f"verify {name}" for name in targets)
        return self.inner.target_states(job, incarnation, targets)


ALL_COMPARED = {
    "acquire",
    *(f"{call} ods.{name}" for call in ("verify", "ensure") for name in ("orders", "items")),
}


@pytest.fixture
def changing(setup):
    """Return the setup and the sinks of a job that ignores schema changes."""
    sinks = []

    def wrap(sink):
        sinks.append(Recording(sink))
        return sinks[-1]

    setup.wrap_sink = wrap
    setup.mappings = [replace(one, changes=ChangePolicy(ChangeMode.IGNORE)) for one in MAPPINGS]
    return setup, sinks


def test_schema_change_acquires_and_compares_no_other_target_again(changing):
    setup, sinks = changing
    job = setup.job()
    job.until_caught_up(setup.source)
    sinks[0].calls.clear()
    setup.source.alter("shop.orders", ["add"], random.Random(1))
    setup.source.write(("shop.orders", 99), ("shop.items", 99))
    job.until_caught_up(setup.source)
    assert {*sinks[0].calls} == {"verify ods.orders", "ensure ods.orders"}
    sinks[0].calls.clear()
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    job.job.request(Resume())
    job.until("RUNNING")
    assert {*sinks[0].calls} == ALL_COMPARED
    assert len(sinks) == 1
    job.stop()


def test_pause_during_a_schema_change_compares_all_targets_again(changing, monkeypatch):
    """A pause can last for weeks, and the resume may have `--reload-missing`."""
    setup, sinks = changing
    prepare = cdc.pipeline.consumer.prepare_change
    job = setup.job()
    job.until_caught_up(setup.source)

    def paused(*arguments):
        monkeypatch.setattr(cdc.pipeline.consumer, "prepare_change", prepare)
        job.job.request(PauseJob())
        return prepare(*arguments)

    monkeypatch.setattr(cdc.pipeline.consumer, "prepare_change", paused)
    setup.source.alter("shop.orders", ["add"], random.Random(1))
    setup.source.write(("shop.orders", 99))
    job.until("PAUSED", resume="manual")
    assert store_unfinished(job.store) == ["PREPARED"]
    sinks[0].calls.clear()
    job.job.request(Resume())
    job.until_caught_up(setup.source)
    assert {*sinks[0].calls} == ALL_COMPARED
    assert job.stop() == 0
    assert len(sinks) == 1
