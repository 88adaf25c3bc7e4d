"""The Job: states, pauses that end by themselves and those that wait, requests, signals, start and adoption."""

import io
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import cdc.commit
import cdc.consumer
import cdc.job
import cdc.wishes
from cdc.assembly import Assembly
from cdc.checkpoint import JobState
from cdc.checkpoint_sqlite import SqliteStore
from cdc.config import load_config
from cdc.errors import (
    ConfigError,
    LeaseLost,
    LoadRejected,
    ReaderConflict,
    SchemaChanged,
    SinkForeign,
    SinkUnavailable,
    SourceUnavailable,
)
from cdc.folder import JobFolder
from cdc.job import Job
from cdc.logs import LineFormatter
from cdc.status import Resume
from cdc.wishes import Wish
from channels.mapping import Routes
from channels.sinks.base import foreign
from tests.flow.harness import MAPPINGS
from tests.flow.runner import ThreadRunner
from tests.flow.sink import FileSink
from tests.flow.source import Source, SourceReceiver, place

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


class Around:
    """A sink that passes on to another one what it does not do itself."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(cdc.commit, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.consumer, "WIND_UP_S", 0.3)


class Bench:
    """A Job over a source in memory, run on a thread."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "shop.yaml"
        self.source = Source.random(1, transactions=20)
        self.endless = True
        self.wrap_sink = lambda sink: sink
        self.agreed, self.passed = [], {}
        self.write()

    def write(self, port=3306, target="ods.orders", more=""):
        self.file.write_text(FILE % {"port": port, "target": target, "more": more})

    def assemble(self, config):
        routes = Routes(MAPPINGS)
        sink = self.wrap_sink(FileSink(self.folder / "sink.db"))

        def receiver(run, resume, passed):
            self.agreed.append(resume)
            self.passed = dict(passed)
            return SourceReceiver(self.source, routes, endless=self.endless)

        return Assembly(routes, sink, ThreadRunner(sink), receiver, lambda run: place(0))

    def job(self, home="home", supervisor_pid=None, **options):
        store = SqliteStore(self.folder / home)
        job = Job(self.file, store, load=load_config, assemble=self.assemble, **options)
        return Running(job, store, supervisor_pid)

    def rows(self):
        sink = FileSink(self.folder / "sink.db")
        try:
            return sink.rows()
        finally:
            sink.close()

    def expected(self):
        return {f"ods.{name.split('.')[1]}": rows for name, rows in self.source.state().items()}


class Running:
    """A Job at work."""

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
        self.job.request_stop()
        return self.ended()


def kill_like(job):
    """End it as a signal does; signals themselves only reach main threads."""
    job.job._signal = signal.SIGTERM
    job.job._note(cdc.wishes.Wish.END)
    return job.ended()


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_job_runs_pauses_resumes_and_is_cancelled_with_everything_in_its_target(bench):
    job = bench.job()
    job.until("RUNNING")
    job.until_caught_up(bench.source)
    job.job.request_pause()
    paused = job.until("PAUSED", resume="manual")
    assert paused.mend == "cdc resume shop"
    bench.source.write(("shop.orders", 99))
    time.sleep(0.05)
    assert bench.rows() != bench.expected()
    job.job.request_resume(Resume())
    job.until("RUNNING")
    status = job.until_caught_up(bench.source)
    assert sum(channel.upserts + channel.deletes for channel in status.channels) == bench.source.operations
    assert job.stop() == 0
    assert bench.rows() == bench.expected()
    with pytest.raises(ConfigError, match="--forget"):
        bench.job().ended()


def test_a_source_that_ends_makes_the_job_done(bench):
    bench.endless = False
    job = bench.job()
    assert job.ended() == 0
    assert job.job.status().state == "DONE"
    assert bench.rows() == bench.expected()


def test_a_source_that_stands_still_is_told_while_the_job_runs(bench):
    job = bench.job()
    assert job.until("RUNNING").reason is None
    bench.source.trouble = SourceUnavailable("Canal stands still.", mend="See its log.", silent_for="30 s")
    job.until("RUNNING", reason="Canal stands still. (silent for 30 s)", mend="See its log.")
    bench.source.trouble = None
    job.until("RUNNING", reason=None)
    job.job.request_stop()
    job.ended()


def test_an_unknown_fault_pauses_and_goes_on_by_itself(bench):
    bench.endless, broken = False, []

    class Once(Exception):
        pass

    class Breaks(Around):
        def commit(self, loads, checkpoint):
            if len(broken) < 3:
                broken.append(1)
                raise Once("nobody knows")
            return self.inner.commit(loads, checkpoint)

    bench.wrap_sink = Breaks
    assert bench.job().ended() == 0
    assert bench.rows() == bench.expected()


def test_reader_conflict_is_retried_and_then_pauses(bench, monkeypatch):
    conflicts, allowed = [], [3]
    get = SourceReceiver.get

    def conflicting(receiver, timeout_s):
        if len(conflicts) < allowed[0]:
            conflicts.append(1)
            raise ReaderConflict("Another reader has taken the stream.", mend="Stop it.")
        return get(receiver, timeout_s)

    monkeypatch.setattr(SourceReceiver, "get", conflicting)
    monkeypatch.setattr(cdc.job, "delays", lambda: itertools.repeat(0.01))
    job = bench.job()
    job.until_caught_up(bench.source)
    job.until("RUNNING")
    allowed[0] = 1000
    paused = job.until("PAUSED", resume="manual")
    assert "taken the stream" in paused.reason
    assert len(conflicts) == cdc.job.CONFLICTS + 1
    job.stop()


def test_reader_conflict_of_a_run_without_fence_ends_it(bench, monkeypatch):
    def conflicting(receiver, timeout_s):
        raise ReaderConflict("Another reader has taken the stream.", mend="Stop it.")

    def lost(store):
        raise LeaseLost("Another process runs the job.", mend="Leave it to that one.")

    job = bench.job()
    job.until_caught_up(bench.source)
    monkeypatch.setattr(SqliteStore, "check_fence", lost)
    monkeypatch.setattr(SourceReceiver, "get", conflicting)
    with pytest.raises(LeaseLost, match="Another process"):
        job.ended()


def test_a_sink_that_is_away_is_shown_while_its_commit_waits_and_a_stop_does_not_wait_for_it(bench):
    away = threading.Event()

    class Away(Around):
        def commit(self, loads, checkpoint):
            if not away.is_set():
                raise SinkUnavailable("The sink is away.", mend="Bring it back.")
            return self.inner.commit(loads, checkpoint)

    bench.wrap_sink = Away
    job = bench.job()
    status = job.until("PAUSED", resume="automatic")
    assert (status.reason, status.mend) == ("The sink is away.", "Bring it back.")
    job.job.request_pause()
    job.until("PAUSED", resume="manual")
    away.set()
    job.job.request_resume(Resume())
    job.until_caught_up(bench.source)
    assert job.stop() == 0
    assert bench.rows() == bench.expected()


def test_ddl_pauses_behind_everything_before_it_and_goes_on_once_a_person_agrees(bench):
    bench.source.stops[12] = SchemaChanged("DDL: DROP COLUMN a.", mend="cdc resume shop", table="shop.orders")
    job = bench.job()
    status = job.until("PAUSED", resume="manual")
    assert status.reason == "DDL: DROP COLUMN a. (table shop.orders)"
    assert status.position["offset"] == 12
    assert status.checkpoint.closed_by in ("ddl", "interval", "idle", "max_bytes")
    bench.source.stops.clear()
    job.job.request_resume(Resume(past_ddl=True))
    job.until_caught_up(bench.source)
    assert job.stop() == 0
    assert bench.agreed == [None, Resume(past_ddl=True)]
    assert bench.rows() == bench.expected()


def test_what_a_resume_agreed_to_is_used_up_once_the_position_moved(bench):
    bench.source.stops[12] = SchemaChanged("DDL.", mend="cdc resume shop")
    job = bench.job()
    job.until("PAUSED", resume="manual")
    bench.source.stops = {15: OSError("something else")}
    job.job.request_resume(Resume(past_ddl=True))
    job.until("PAUSED", resume="automatic")
    while len(bench.agreed) < 4:
        time.sleep(0.005)
    assert bench.agreed[:2] == [None, Resume(past_ddl=True)]
    assert bench.agreed[3] is None
    job.stop()


def test_statements_that_a_resume_went_behind_are_passed_by_the_runs_that_follow(bench):
    """Also where the position stays far before them, and where the pause has outlived its process."""
    bench.source.stops[12] = SchemaChanged("DDL.", mend="cdc resume shop", position=place(14))
    first = bench.job()
    first.until("PAUSED", resume="manual")
    assert kill_like(first) == 143
    again = bench.job()
    again.until("PAUSED", resume="manual")
    bench.source.stops = {13: SchemaChanged("DDL.", mend="cdc resume shop", position=place(16))}
    again.job.request_resume(Resume(past_ddl=True))
    again.until("PAUSED", resume="manual", resumes=1)
    assert bench.passed == {place(14): True}
    bench.source.stops = {15: OSError("something else")}
    again.job.request_resume(Resume())
    again.until("PAUSED", resume="automatic")
    kill_like(again)
    bench.source.stops.clear()
    another = bench.job()
    another.until_caught_up(bench.source)
    assert bench.passed == {place(14): True, place(16): False}
    another.stop()


def test_what_lies_behind_or_in_another_log_is_no_longer_passed(bench):
    stops = [(12, place(14)), (15, place(17)), (18, place(19))]
    bench.source.stops = {at: SchemaChanged("DDL.", mend="cdc resume shop", position=where) for at, where in stops}
    job = bench.job()
    for number, expected in enumerate(({place(14): False}, {place(17): False}, {place(19): False})):
        job.until("PAUSED", resume="manual", resumes=number)
        del bench.source.stops[stops[number][0]]
        job.job.request_resume(Resume(accept_gap=number == 2))
        while bench.passed != expected:
            time.sleep(0.005)
    job.until_caught_up(bench.source)
    job.stop()


def test_ddl_inside_the_last_batch_leaves_a_transaction_that_is_not_whole(bench):
    bench.source.write(*[("shop.orders", key) for key in range(20)])
    inside = len(bench.source.transactions) - 1
    bench.source.stops_inside[inside] = SchemaChanged("DML as a statement.", mend="Set binlog_format=ROW.")
    job = bench.job()
    status = job.until("PAUSED", resume="manual")
    assert status.position["offset"] == inside
    bench.source.stops_inside.clear()
    job.job.request_resume(Resume())
    job.until_caught_up(bench.source)
    job.stop()
    assert bench.rows() == bench.expected()


def test_a_pause_by_hand_outlives_the_process(bench):
    job = bench.job()
    job.until_caught_up(bench.source)
    job.job.request_pause()
    job.until("PAUSED", resume="manual")
    assert kill_like(job) == 143
    again = bench.job()
    status = again.until("PAUSED", resume="manual")
    # what was committed is told without a run, too
    assert sum(channel.upserts + channel.deletes for channel in status.channels) == bench.source.operations
    assert all(channel.last_committed_at for channel in status.channels if channel.upserts)
    time.sleep(0.05)
    assert again.job.status().state == "PAUSED"
    again.stop()


@pytest.mark.parametrize(
    ("wishes", "state", "resume"),
    [
        ((Wish.PAUSE, Wish.END), JobState.PAUSED, "manual"),
        ((Wish.END, Wish.PAUSE), JobState.PAUSED, "manual"),
        ((Wish.PAUSE, Wish.RESUME, Wish.END), JobState.PENDING, None),
    ],
)
def test_a_signal_loses_no_pause_that_is_not_done_yet(bench, wishes, state, resume):
    hangs, goes_on = threading.Event(), threading.Event()

    class Hangs(Around):
        def commit(self, loads, checkpoint):
            hangs.set()
            goes_on.wait()
            return self.inner.commit(loads, checkpoint)

    bench.wrap_sink = Hangs
    job = bench.job()
    assert hangs.wait(240)
    job.job._signal = signal.SIGTERM
    for wish in wishes:
        job.job._note(wish, Resume() if wish is Wish.RESUME else None)
    goes_on.set()
    assert job.ended() == 143
    store = SqliteStore(bench.folder / "home")
    record = store.job("shop")
    store.close()
    assert (record.state, record.resume) == (state, resume)


def test_a_driver_that_ends_in_order_leaves_no_process_behind_in_its_record(bench):
    job = bench.job(supervisor_pid=4711)
    job.until("RUNNING")
    assert job.job._record.supervisor_pid == 4711
    kill_like(job)
    store = SqliteStore(bench.folder / "home")
    record = store.job("shop")
    store.close()
    assert (record.driver_pid, record.supervisor_pid, record.status_url) == (None, None, None)


def test_a_start_with_resume_takes_a_paused_job_up_again(bench):
    job = bench.job()
    job.until("RUNNING")
    job.job.request_pause()
    job.until("PAUSED", resume="manual")
    kill_like(job)
    again = bench.job(resume=Resume())
    again.until("RUNNING")
    again.until_caught_up(bench.source)
    again.stop()
    assert bench.rows() == bench.expected()


@pytest.mark.parametrize(
    ("change", "told"),
    [({"port": 3307}, "source server"), ({"target": "ods.others"}, "target of shop.orders")],
)
def test_a_job_file_that_makes_another_job_of_it_is_refused_at_resume_and_at_start(bench, change, told):
    job = bench.job()
    job.until("RUNNING")
    job.job.request_pause()
    job.until("PAUSED", resume="manual")
    bench.write(**change)
    with pytest.raises(ConfigError, match=told):
        job.job.request_resume(Resume())
    kill_like(job)
    with pytest.raises(ConfigError, match=told):
        bench.job().ended()
    bench.write(more="  - {source: shop.items, target: ods.items}")
    again = bench.job(resume=Resume())
    again.until("RUNNING")
    again.stop()


def test_a_pause_of_the_same_cause_is_told_from_the_one_that_was_resumed(bench):
    class Refuses(Around):
        def commit(self, *_):
            raise LoadRejected("A row does not fit.", mend="Widen the column.")

    bench.wrap_sink = Refuses
    job = bench.job()
    for number in range(3):
        paused = job.until("PAUSED", resumes=number)
        assert (paused.reason, paused.resume) == ("A row does not fit.", "manual")
        job.job.request_resume(Resume())
    job.stop()


def test_a_job_file_with_another_name_is_refused_at_resume(bench):
    job = bench.job()
    job.until("RUNNING")
    job.job.request_pause()
    job.until("PAUSED", resume="manual")
    as_it_was = bench.file.read_text()
    bench.file.write_text(as_it_was.replace("name: shop", "name: other"))
    with pytest.raises(ConfigError, match=r"`name: shop` back\..*start a copy"):
        job.job.request_resume(Resume())
    # changed between the request and the run loop
    job.job._note(cdc.wishes.Wish.RESUME, Resume())
    told = job.until("PAUSED", reason="The job file of shop has the name other now: that would be another job.")
    assert told.resume == "manual"
    bench.file.write_text(as_it_was)
    job.job.request_resume(Resume())
    job.until("RUNNING")
    job.stop()


def test_a_secret_that_is_new_in_the_job_file_is_hidden_in_log_and_reason_once_it_is_read(bench, monkeypatch):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("shop", ("old-secret",)))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    job = bench.job()
    job.until("RUNNING")
    job.job.request_pause()
    job.until("PAUSED", resume="manual")
    bench.file.write_text(bench.file.read_text().replace("username: cdc", "username: cdc, password: new-secret"))
    job.job.request_resume(Resume())
    job.until("RUNNING")
    logging.getLogger("cdc").error("it was old-secret, it is new-secret")
    bench.source.trouble = SourceUnavailable("It was old-secret.", mend="Wait.", it_is="new-secret")
    job.until("RUNNING", reason="It was [hidden]. (it is [hidden])")
    job.stop()
    assert "it was [hidden], it is [hidden]" in stream.getvalue()


def test_the_same_job_runs_once(bench):
    first = bench.job()
    first.until("RUNNING")
    with pytest.raises(LeaseLost, match=str(os.getpid())):
        bench.job().ended()
    first.stop()


def test_a_driver_that_is_refused_leaves_the_token_of_the_one_that_runs(bench, monkeypatch):
    monkeypatch.setenv("CDC_HOME", str(bench.folder / "home"))
    folder = JobFolder(bench.folder / "home", "shop")
    folder.set_token("of the one that runs")
    bench.file.write_text(f"{bench.file.read_text()}status: {{port: 0, token: of the one that is refused}}\n")
    first = bench.job()
    first.until("RUNNING")
    with pytest.raises(LeaseLost):
        cdc.job.run_job(bench.file)
    assert folder.known_token() == "of the one that runs"
    first.stop()


def test_a_lost_state_is_refused_and_adopted(bench):
    job = bench.job()
    job.until_caught_up(bench.source)
    kill_like(job)
    refused = bench.job(home="new")
    with pytest.raises(SinkForeign, match="--adopt"):
        refused.ended()
    store = SqliteStore(bench.folder / "new")
    assert store.job("shop").state is JobState.PENDING
    store.close()
    bench.source.write(("shop.orders", 7))
    adopted = bench.job(home="new", adopt=True)
    adopted.until_caught_up(bench.source)
    kill_like(adopted)
    assert bench.rows() == bench.expected()
    again = bench.job(home="new")
    bench.source.write(("shop.orders", 8))
    again.until_caught_up(bench.source)
    again.stop()
    assert bench.rows() == bench.expected()
    old = bench.job()
    with pytest.raises(SinkForeign):
        old.ended()


def test_a_job_that_was_stopped_and_forgotten_goes_on_from_its_targets(bench):
    job = bench.job()
    job.until_caught_up(bench.source)
    job.stop()
    with pytest.raises(ConfigError, match=r"--forget.*--adopt.*another `name:`"):
        bench.job().ended()
    store = SqliteStore(bench.folder / "home")
    store.forget("shop")
    store.close()
    with pytest.raises(SinkForeign):
        bench.job().ended()
    bench.source.write(("shop.orders", 7))
    adopted = bench.job(adopt=True)
    adopted.until_caught_up(bench.source)
    adopted.stop()
    assert bench.rows() == bench.expected()


def test_a_resume_behind_another_life_of_the_job_compares_with_the_sink_again(bench):
    """What was there meanwhile may have committed more than this process knows."""

    class Claimed(Around):
        def commit(self, loads, mark):
            known = self.inner.last_checkpoint("shop")
            if known is not None and known.incarnation != mark.incarnation:
                raise foreign(known)
            self.inner.commit(loads, mark)

    bench.wrap_sink = Claimed
    job = bench.job()
    job.until_caught_up(bench.source)
    bench.wrap_sink = lambda sink: sink
    other = bench.job(home="new", adopt=True)
    other.until_caught_up(bench.source)
    bench.source.write(("shop.orders", 7))
    other.until_caught_up(bench.source)
    bench.source.write(("shop.orders", 8))
    other.until_caught_up(bench.source)
    job.until("PAUSED", resume="manual")
    kill_like(other)
    job.job.request_resume(Resume())
    with pytest.raises(SinkForeign, match="--adopt"):
        job.ended()
    assert bench.rows() == bench.expected()


def test_an_old_copy_of_the_state_is_refused_and_adopted(bench):
    job = bench.job()
    job.until_caught_up(bench.source)
    kill_like(job)
    copy = subprocess.check_call(["cp", "-r", str(bench.folder / "home"), str(bench.folder / "copy")])
    assert copy == 0
    bench.source.write(("shop.orders", 7))
    job = bench.job()
    job.until_caught_up(bench.source)
    kill_like(job)
    with pytest.raises(SinkForeign, match="ahead"):
        bench.job(home="copy").ended()
    adopted = bench.job(home="copy", adopt=True)
    bench.source.write(("shop.orders", 8))
    adopted.until_caught_up(bench.source)
    adopted.stop()
    assert bench.rows() == bench.expected()


def test_a_store_that_cannot_be_written_pauses_the_job_which_then_goes_on(bench, monkeypatch):
    from cdc.errors import CheckpointError

    left, once = [5], threading.Lock()
    real = SqliteStore.save

    def save(store, checkpoint):
        with once:  # the next cycle is saved while one commits
            is_full = checkpoint.rows and left[0]
            left[0] -= bool(is_full)
        if is_full:
            raise CheckpointError("The disk is full.", mend="Free some space.")
        real(store, checkpoint)

    monkeypatch.setattr(SqliteStore, "save", save)
    job = bench.job()
    job.until_caught_up(bench.source)
    job.stop()
    assert left == [0]
    assert bench.rows() == bench.expected()


CHILD = """
import sys, pathlib
from tests.recovery.test_job import Bench
from cdc.checkpoint_sqlite import SqliteStore
from cdc.config import load_config
from cdc.job import Job
bench = Bench(pathlib.Path(sys.argv[1]))
store = SqliteStore(bench.folder / "home")
job = Job(bench.file, store, load=load_config, assemble=bench.assemble)
print("ready", flush=True)
sys.exit(job.run())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_makes_it_pending_and_the_next_start_goes_on(bench, number, code):
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(bench.folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        store = SqliteStore(bench.folder / "home")
        deadline = time.monotonic() + 240
        while (record := store.job("shop")) is None or record.state is not JobState.RUNNING:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(number)
        assert child.wait(240) == code
        assert store.job("shop").state is JobState.PENDING
        store.close()
    job = bench.job()
    job.until_caught_up(bench.source)
    job.stop()
    assert bench.rows() == bench.expected()


HANGING = """
import sys, pathlib, time
import cdc.job
import cdc.wishes
from tests.recovery.test_job import Around, Bench
from cdc.checkpoint_sqlite import SqliteStore
from cdc.config import load_config
cdc.job.END_GRACE_S, cdc.job.PAUSE_GRACE_S = 1.5, 60 if "signal" in sys.argv[2] else 1.5
class Hangs(Around):
    def commit(self, loads, checkpoint):
        print("hangs", flush=True)
        time.sleep(600)
bench = Bench(pathlib.Path(sys.argv[1]))
bench.wrap_sink = Hangs
job = cdc.job.Job(
    bench.file, SqliteStore(bench.folder / "home"), load=load_config, assemble=bench.assemble
)
import threading
if "pause" in sys.argv[2]:
    noted = lambda: print("noted", flush=True)
    threading.Thread(target=lambda: (sys.stdin.readline(), job.request_pause(), noted()), daemon=True).start()
elif sys.argv[2] == "stop":
    threading.Thread(target=lambda: (sys.stdin.readline(), job.request_stop()), daemon=True).start()
sys.exit(job.run())
"""


def test_a_start_that_hangs_keeps_nobody_waiting(bench):
    program = HANGING.replace(
        "bench.wrap_sink = Hangs", "bench.wrap_sink = lambda sink: Hangs(sink).commit(None, None)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(bench.folder), "signal"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "hangs\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(240) == 143
    job = bench.job()
    job.until_caught_up(bench.source)
    job.stop()


@pytest.mark.parametrize(
    ("asked", "code", "state"),
    [
        ("signal", 143, "PENDING"),
        ("pause", 1, "PAUSED"),
        ("pause, then signal", 143, "PAUSED"),
        ("stop", 0, "CANCELLED"),
    ],
)
def test_a_commit_that_hangs_keeps_nobody_waiting_and_is_finished_at_the_next_start(bench, asked, code, state):
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, str(bench.folder), asked],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "hangs\n"
        began = time.monotonic()
        if asked != "signal":
            child.stdin.write("now\n")
            child.stdin.flush()
        if "signal" in asked:
            assert asked == "signal" or child.stdout.readline() == "noted\n"
            child.send_signal(signal.SIGTERM)
        assert child.wait(240) == code
        assert time.monotonic() - began < 15
    store = SqliteStore(bench.folder / "home")
    record, (prepared,) = store.job("shop"), store_unfinished(store)
    assert (record.state.value, prepared) == (state, "PREPARED")
    assert "did not end within" in record.reason
    store.close()
    if state != "CANCELLED":
        again = bench.job(resume=Resume() if state == "PAUSED" else None)
        again.until_caught_up(bench.source)
        again.stop()
        assert bench.rows() == bench.expected()


def store_unfinished(store):
    rows = store._all("SELECT state FROM checkpoints WHERE state = 'PREPARED'")
    return [state for (state,) in rows]
