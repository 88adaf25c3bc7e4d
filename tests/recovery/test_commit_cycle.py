"""The commit cycle as a whole: durable order, empty cycles, the window, lag, fences, tables that are created later."""

import logging
import threading
import time
from dataclasses import replace

import pytest

import cdc.pipeline.consumer
import cdc.pipeline.cycles
import cdc.pipeline.dispatcher
import cdc.pipeline.maintenance
import cdc.retry
from cdc.errors import LeaseLost, SchemaMismatch, SinkBusy, SinkUnavailable, TargetMismatch
from cdc.state.base import Checkpoint, CheckpointState, CloseReason
from cdc.state.sqlite import SqliteStore
from channels.mapping import Mapping
from channels.routes import Routes
from tests.model.faults import Fault, Faulty, Script, put_in
from tests.model.harness import JOB, MAPPINGS, SMALL, Harness
from tests.model.source import Source, position_at


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.pipeline.cycles, "SHUTDOWN_S", 0.3)


@pytest.fixture
def make(tmp_path):
    made = []

    def make(source, **options):
        harness = Harness(tmp_path, source, **options)
        made.append(harness)
        return harness

    yield make
    for harness in made:
        harness.close()


def wait_until(true, timeout_s=240):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("seed", range(20))
def test_commit_cycle_random_source_arrives_once_in_order(make, seed):
    harness = make(Source.random(seed))
    assert harness.until_finished() == []
    harness.verify()


def test_debug_log_reports_every_batch(make, caplog):
    harness = make(Source.random(1))
    with caplog.at_level(logging.DEBUG, "cdc"):
        assert harness.until_finished() == []
    events = [record for record in caplog.records if record.message == "batch"]
    assert sum(record.rows for record in events) == sum(map(len, harness.source.transactions))
    assert events[-1].position == str(position_at(len(harness.source.transactions)))


class Recorder(Faulty):
    """Record the calls of store, sink and receiver in order."""

    def __getattr__(self, name):
        inner = getattr(self.inner, name)
        if name not in ("save", "commit", "ack", "part_writer"):
            return inner

        def call(*arguments):
            if name == "save":
                self.script.append((arguments[0].state.value, arguments[0].id))
            elif name == "commit":
                self.script.append(("commit", arguments[1].checkpoint))
            elif name == "ack":
                self.script.append(("ack", arguments[0].offset))
            return inner(*arguments)

        return call


def test_commit_cycle_saves_states_in_durable_order(make):
    harness, calls = make(Source.random(4, transactions=40)), []
    for name in ("wrap_store", "wrap_sink", "wrap_receiver"):
        setattr(harness, name, lambda inner: Recorder(inner, calls))
    harness.until_finished()
    assert calls[0] == ("COMMITTED", 0), "the start is saved before the first read"
    loaded = sorted({number for kind, number in calls if kind == "commit"})
    assert len(loaded) > 3
    for number in loaded:
        mine = [kind for kind, one in calls if one == number and kind != "ack"]
        assert mine == ["OPEN", "PREPARED", "commit", "COMMITTED"]
    steps = [kind for kind, _ in calls if kind in ("commit", "COMMITTED", "ack")][1:]
    assert steps.count("ack") == steps.count("COMMITTED")
    committed = [number for kind, number in calls if kind == "COMMITTED"]
    assert committed == sorted(committed)
    for index, (kind, _) in enumerate(calls):
        if kind == "ack":
            assert "COMMITTED" in [earlier for earlier, _ in calls[:index]][-3:]


def test_commit_cycle_next_one_loads_while_one_commits(make):
    harness = make(Source.random(4, transactions=60))
    overlapped = []

    class Slow(Faulty):
        def commit(self, loads, checkpoint):
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline and not overlapped:
                overlapped.extend(one for one in harness.store.unfinished() if one.state is CheckpointState.OPEN)
                time.sleep(0.002)
            return self.inner.commit(loads, checkpoint)

    harness.wrap_sink = lambda inner: Slow(inner, None)
    harness.until_finished()
    assert overlapped
    harness.verify()


def test_commit_cycle_without_mapped_rows_saves_position_only(make):
    source = Source()
    for _ in range(5):
        source.write(("other.table", 1))
    harness = make(source, per_batch=1)
    harness.until_finished()
    assert harness.sink.commits == 0
    committed = harness.store.last_committed(JOB)
    assert (committed.state, committed.last, committed.rows) == (CheckpointState.COMMITTED, position_at(5), 0)
    assert harness.receiver.acked == position_at(5)


def test_idle_source_writes_no_checkpoints(make):
    harness = make(Source.random(4, transactions=5), endless=True)
    run = harness.in_background()
    wait_until(lambda: harness.receiver.acked == position_at(5))
    saved = harness.store.next_id()
    time.sleep(0.3)
    assert harness.store.next_id() == saved
    assert harness.consumer.progress().lag_s == 0.0
    harness.consumer.stop()
    run.ended()


def test_lag_is_the_age_of_the_oldest_invisible_transaction(make):
    harness = make(Source.random(4, transactions=5), endless=True)
    script = put_in(harness, Script(Fault("commit", "hang", 1)))
    run = harness.in_background()
    assert script.hanging.wait(240)
    time.sleep(0.25)
    assert harness.consumer.progress().lag_s >= 0.25
    assert harness.consumer.progress().checkpoint.state is CheckpointState.PREPARED
    script.released.set()
    wait_until(lambda: harness.consumer.progress().lag_s == 0.0)
    harness.consumer.stop()
    run.ended()


def test_commit_cycle_never_cuts_a_large_transaction(make):
    source = Source()
    source.write(("shop.orders", 1))
    source.write(*[("shop.orders", key) for key in range(300)])
    source.write(("shop.items", 1))
    harness = make(source, piece_rows=5, window=200)
    harness.until_finished()
    harness.verify()
    with_big = {number for op, number in harness.sink._all("SELECT op, checkpoint_id FROM log") if 1 < op <= 301}
    assert len(with_big) == 1


def test_full_window_starts_tasks(make):
    limits = replace(SMALL, interval_s=60.0, min_rows=10**9, min_bytes=10**9, max_bytes=10**9, max_rows=10**9)
    harness = make(Source.random(2, transactions=60), limits=replace(limits, task_bytes=10**9), window=150)
    harness.until_finished()
    assert harness.store.last_committed(JOB).closed_by is CloseReason.END
    assert len(harness.runner.submitted) > 5
    harness.verify()


def test_full_window_that_needs_an_ack_closes_the_cycle(make):
    limits = replace(SMALL, interval_s=60.0, min_rows=10**9, min_bytes=10**9, max_bytes=10**9, max_rows=10**9)
    harness = make(Source.random(2, transactions=60), limits=limits)
    reasons = []

    class Ring(Faulty):
        def status(self):
            is_full = self.inner._index - self.inner.acked.offset > 10
            return replace(self.inner.status(), needs_ack=is_full)

        def get(self, timeout_s):
            return None if self.status().needs_ack else self.inner.get(timeout_s)

    class Watch(Faulty):
        def save(self, checkpoint):
            reasons.append(checkpoint.closed_by)
            self.inner.save(checkpoint)

    harness.wrap_receiver = lambda inner: Ring(inner, None)
    harness.wrap_store = lambda inner: Watch(inner, None)
    harness.until_finished()
    assert CloseReason.WINDOW in reasons
    harness.verify()


def test_lost_lease_stops_before_the_commit(make, tmp_path):
    harness = make(Source.random(4, transactions=30))
    taken_over = []

    class TakenOver(Faulty):
        def save(self, checkpoint):
            self.inner.save(checkpoint)
            if checkpoint.state is CheckpointState.PREPARED and not taken_over:
                (tmp_path / "home" / "locks" / f"{JOB}.lock").unlink()
                taken_over.append(SqliteStore(tmp_path / "home"))
                taken_over[0].acquire(JOB, "shop.yaml")

    harness.wrap_store = lambda inner: TakenOver(inner, None)
    with pytest.raises(LeaseLost):
        harness.once()
    assert harness.sink.commits == 0
    taken_over[0].close()


def test_lost_lease_aborts_nothing_of_the_new_run(make, tmp_path):
    """Another process acquires the job while this one reads unfinished checkpoints; an abort would hit its labels."""
    harness, aborted = make(Source.random(4, transactions=30)), []

    class TakenOver(Faulty):
        def unfinished(self):
            (tmp_path / "home" / "locks" / f"{JOB}.lock").unlink()
            newer = SqliteStore(tmp_path / "home")
            fence = newer.acquire(JOB, "shop.yaml").fence
            newer.save(Checkpoint(newer.next_id(), fence, CheckpointState.OPEN, position_at(0), None))
            newer.close()
            return self.inner.unfinished()

    class Watch(Faulty):
        def abort(self, *which):
            aborted.append(which)

    harness.wrap_store = lambda inner: TakenOver(inner, None)
    harness.wrap_sink = lambda inner: Watch(inner, None)
    with pytest.raises(LeaseLost):
        harness.once()
    assert not aborted


def test_abort_waits_for_running_tasks(make, monkeypatch):
    for module in (cdc.pipeline.dispatcher, cdc.pipeline.consumer):
        monkeypatch.setattr(module, "CANCEL_S", 240)  # the limit would end the wait for a slow Task
    source, items_started = Source(), threading.Event()
    source.write(("shop.orders", 1), ("shop.items", 1))
    harness, events = make(source), []

    class Uneven(Faulty):
        def part_writer(self, table):
            write = self.inner.part_writer(table)

            def load(name, rows):
                if table.name == "ods.orders":
                    assert items_started.wait(240)
                    time.sleep(0.1)  # the cycle is closed by then
                    raise SinkUnavailable("The sink is unavailable.", hint="Wait.")
                items_started.set()
                time.sleep(0.5)
                events.append("prepared")
                return write(name, rows)

            return load

        def abort(self, *prefix):
            events.append("aborted")
            self.inner.abort(*prefix)

    harness.wrap_sink = lambda inner: Uneven(inner, None)
    with pytest.raises(SinkUnavailable):
        harness.once()
    assert events == ["prepared", "aborted"]


def test_busy_sink_is_retried_after_its_delay(make):
    harness, asked = make(Source.random(4, transactions=30)), []

    class Busy(Faulty):
        def commit(self, loads, checkpoint):
            asked.append(time.monotonic())
            if len(asked) == 1:
                raise SinkBusy("Too many versions.", hint="Wait.", after_s=0.2)
            return self.inner.commit(loads, checkpoint)

    harness.wrap_sink = lambda inner: Busy(inner, None)
    assert harness.until_finished() == []
    assert asked[1] - asked[0] >= 0.2
    harness.verify()


@pytest.mark.parametrize("window", [1 << 30, 2000])
def test_long_transaction_makes_few_loads(make, window):
    source = Source()
    source.write(*[("shop.orders" if key % 50 else "shop.items", key) for key in range(4000)])
    harness = make(source, limits=replace(SMALL, task_bytes=80), window=window)  # one piece of the transaction
    loads = []

    class Counting(Faulty):
        def commit(self, found, checkpoint):
            loads.append(len(found))
            return self.inner.commit(found, checkpoint)

    harness.wrap_sink = lambda inner: Counting(inner, None)
    assert harness.until_finished() == []
    assert 10 < max(loads) < 200
    harness.verify()


def test_gap_request_precedes_the_saved_position_on_stop(make, monkeypatch):
    source = Source()
    source.write(*[("shop.orders", key) for key in range(20)])
    harness = make(source, piece_rows=5)
    asked = []

    def record_gaps(consumer, tables):
        asked.append((tables, harness.store.last_committed(JOB).last))

    class Lacking(Faulty):
        """The first piece arrives with a stop request; the last piece lacks the rows of a table."""

        def get(self, timeout_s):
            batch = self.inner.get(timeout_s)
            if batch is None or not batch.ends_transaction:
                harness.consumer.stop()
                return batch
            return replace(batch, gaps=frozenset({"shop.items"}))

    monkeypatch.setattr(cdc.pipeline.cycles, "SHUTDOWN_S", 60.0)
    monkeypatch.setattr(cdc.pipeline.consumer.Consumer, "_close_gaps", record_gaps)
    harness.wrap_receiver = lambda inner: Lacking(inner, None)
    assert harness.once() is cdc.pipeline.consumer.Ended.STOPPED
    assert asked == [({"shop.items"}, position_at(0))] and harness.store.last_committed(JOB).last == position_at(1)


def test_table_that_matches_a_pattern_joins_with_its_first_rows(make):
    source = Source.random(4, transactions=10, tables=("shop.orders",))
    harness = make(source, endless=True)
    run = harness.in_background()
    wait_until(lambda: harness.receiver.acked == position_at(10))
    assert set(harness.sink.tables) == {"ods.orders"}
    source.write(("shop.later", 1))
    wait_until(lambda: harness.receiver.acked == position_at(11))
    assert set(harness.sink.tables) == {"ods.orders", "ods.later"}
    harness.consumer.stop()
    run.ended()
    harness.verify()


@pytest.mark.parametrize("error", [TargetMismatch, SchemaMismatch])
def test_unmappable_table_is_omitted_permanently(make, error):
    source = Source.random(4, transactions=10, tables=("shop.orders",))
    source.write(("shop.orders", 50), ("shop.zebra", 1))
    source.write(("shop.orders", 51))
    harness = make(source, per_batch=4)

    class Strict(Faulty):
        def ensure_table(self, table):
            if table.name == "ods.zebra":
                raise error("The table does not match.", hint="Correct it.", table=table.name)
            self.inner.ensure_table(table)

    harness.wrap_sink = lambda inner: Strict(inner, None)
    harness.until_finished()
    harness.wrap_sink = lambda inner: inner
    harness.source.write(("shop.zebra", 2), ("shop.orders", 52))
    harness.until_finished()
    committed = harness.store.last_committed(JOB)
    assert committed.last.offset == 13 and set(committed.left_out) == {"shop.zebra"}
    assert set(committed.counts) == set(committed.loaded) == {"shop.orders"}
    assert set(harness.sink.tables) == {"ods.orders"}, "its later rows alone would be an incomplete table"


def test_unmappable_table_of_a_stream_stops_the_run(make):
    source = Source.random(4, transactions=10, tables=("shop.orders",))
    source.write(("shop.zebra", 1))
    harness = make(source, per_batch=4)
    harness.routes = Routes(MAPPINGS, can_load_whole=False)

    class Strict(Faulty):
        def ensure_table(self, table):
            if table.name == "ods.zebra":
                raise TargetMismatch("The table does not match.", hint="Correct it.", table=table.name)
            self.inner.ensure_table(table)

    harness.wrap_sink = lambda inner: Strict(inner, None)
    with pytest.raises(TargetMismatch) as caught:
        harness.once()
    assert caught.value.hint.startswith("Correct it. Or leave it out with `exclude: [zebra]`")
    harness.wrap_sink = lambda inner: inner
    harness.until_finished()
    assert set(harness.sink.tables) == {"ods.orders", "ods.zebra"}
    harness.verify()


def test_explicit_mappings_create_their_table_before_rows(make):
    source = Source()
    source.write(("other.table", 1))
    source.write(("shop.orders", 1))
    harness = make(source, mappings=(Mapping("shop.orders", "ods.orders"),), endless=True)
    run = harness.in_background()
    wait_until(lambda: "ods.orders" in harness.sink.tables)
    harness.consumer.stop()
    run.ended()


def test_maintenance_includes_idle_tables(make, monkeypatch):
    monkeypatch.setattr(cdc.pipeline.maintenance, "MAINTENANCE_INTERVAL_S", 0.02, raising=False)
    harness = make(Source.random(4), endless=True)
    run = harness.in_background()
    wait_until(lambda: harness.receiver.acked == position_at(len(harness.source.transactions)))
    time.sleep(0.1)  # for the maintenance after the last commit
    before = len(harness.sink.maintained)
    wait_until(lambda: set().union(*harness.sink.maintained[before:]) == set(harness.sink.tables))
    harness.consumer.stop()
    run.ended()


def test_maintenance_runs_one_at_a_time_and_may_fail(make):
    harness, at_work = make(Source.random(4, transactions=40), endless=True), []

    class FailingMaintenance(Faulty):
        def maintain(self, tables, is_stopped):
            assert not at_work
            at_work.append(tables)
            time.sleep(0.02)
            at_work.clear()
            self.inner.maintain(tables, is_stopped)
            raise OSError("maintenance failed")

    harness.wrap_sink = lambda inner: FailingMaintenance(inner, None)
    run = harness.in_background()
    wait_until(lambda: harness.receiver.acked == position_at(len(harness.source.transactions)))
    wait_until(lambda: set().union(*harness.sink.maintained) == set(harness.sink.tables))
    harness.consumer.stop()
    run.ended()
    assert all(harness.sink.maintained)
    harness.verify()
