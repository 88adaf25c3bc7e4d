"""Cases beyond the matrix: several faults in one run, repeated crashes, two unfinished checkpoints, lost loads."""

import random

import pyarrow as pa
import pytest

import cdc.pipeline.cycles
import cdc.retry
from cdc.errors import CheckpointError, PreparedLoadLost, SinkUnavailable, SourceRewound
from cdc.model.schema import SEQUENCE
from cdc.pipeline.flow_control import CommitLimits
from channels.sinks.base import LoadState
from channels.sinks.labels import label_for
from tests.model.faults import CONTRACT_FAULT_POINTS, Fault, Script, put_in
from tests.model.harness import Harness
from tests.model.process import killed, run_in_process
from tests.model.source import Source
from tests.support.limits import HANG_S
from tests.support.receiving import until

TASKS_AT_ONCE = CommitLimits(interval_s=0.02, min_rows=1, min_bytes=1, max_bytes=60, max_rows=6, task_bytes=1)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.pipeline.cycles, "SHUTDOWN_S", 0.3)


@pytest.fixture
def make(tmp_path):
    made = []

    def make(source, **options):
        harness = Harness(tmp_path, source, **{"limits": TASKS_AT_ONCE, **options})
        made.append(harness)
        return harness

    yield make
    for harness in made:
        harness.close()


def with_rewinds(source, *indexes):
    """Return a source that makes its receiver rewind once before these transactions, so that `rollback` is called."""

    class Once(dict):
        def __getitem__(self, index):
            return self.pop(index)

    source.stops = Once(
        {index: SourceRewound("The connection was cut.", hint="It is read again.") for index in indexes}
    )
    return source


def test_pause_does_not_wait_for_a_hanging_prepare(make):
    harness = make(Source.random(3, transactions=20))
    script = put_in(harness, Script(Fault("prepare", "hang", 2)))
    run = harness.in_background()
    assert script.hanging.wait(240)
    harness.consumer.stop()
    run.ended(120)  # the call hangs for 240 s
    assert harness.store.unfinished() == (), "the OPEN checkpoint is aborted"
    script.released.set()
    harness.until_finished()
    harness.verify()


@pytest.mark.parametrize("seed", range(15))
def test_random_faults_in_one_run_keep_every_row_once(make, seed):
    draw = random.Random(seed)
    faults = {
        (point := draw.choice(CONTRACT_FAULT_POINTS), number := draw.randrange(1, 12)): Fault(
            point, draw.choice(["reject", "after", "slow"]), number
        )
        for _ in range(10)
    }
    harness = make(with_rewinds(Source.random(seed, transactions=40), 9, 21, 33), piece_rows=2)
    put_in(harness, Script(*faults.values()))
    harness.until_finished()
    harness.verify()


@pytest.mark.parametrize("number", [1, 2, 4])
def test_sigkill_with_prepared_and_open_checkpoints_recovers(tmp_path, make, number):
    source = Source.random(number, transactions=60)
    fault = Fault("commit", "kill_with_next_open", number)
    assert killed(run_in_process(tmp_path, source, (fault,), limits=TASKS_AT_ONCE))
    harness = make(source)
    assert [one.state.value for one in harness.store.unfinished()] == ["PREPARED", "OPEN"]
    harness.until_finished()
    harness.verify()


@pytest.mark.parametrize("seed", range(4))
def test_many_sigkills_in_a_row_keep_every_row_once(tmp_path, make, seed):
    draw = random.Random(seed)
    source = Source()
    options = {"limits": TASKS_AT_ONCE, "piece_rows": 3}
    kills = 0
    for _ in range(25):
        source.write_random(draw, 10)  # else a fast run finishes it, and no later fault strikes
        point = draw.choice([point for point in CONTRACT_FAULT_POINTS if point != "rollback"])
        fault = Fault(point, draw.choice(["kill", "kill_after"]), draw.randrange(1, 9))
        kills += killed(run_in_process(tmp_path, source, (fault,), **options))
    assert run_in_process(tmp_path, source, **options) == 0
    assert kills > 5
    make(source).verify()


# loads that the sink loses


class Forgetful:
    """A sink that has lost some loads before their commit."""

    def __init__(self, inner, which, times=1):
        self.inner, self.which, self.times = inner, which, times

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def commit(self, loads, checkpoint):
        if len({load.table for load in loads}) > 1 and self.times:
            self.times -= 1
            for load in loads:
                if self.which(load):
                    self.inner.lose(load)
        return self.inner.commit(loads, checkpoint)


@pytest.mark.parametrize("per_batch", [1, 5])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "which", [lambda load: load.table == "ods.orders", lambda load: load.name.task == 0, lambda load: True]
)
def test_lost_load_is_replayed_before_newer_commits(make, which, times, per_batch):
    harness = make(Source.random(5, transactions=40), per_batch=per_batch)
    harness.wrap_sink = lambda inner: Forgetful(inner, which, times)
    assert harness.until_finished() == []
    harness.verify()


def test_loads_lost_repeatedly_are_replayed_after_delays(make, caplog):
    warnings = []

    class RecordingSink(Forgetful):
        def commit(self, loads, checkpoint):
            warnings.append(harness.waits[-1] if harness.waits else None)
            return super().commit(loads, checkpoint)

    harness = make(Source.random(5, transactions=40))
    harness.wrap_sink = lambda inner: RecordingSink(inner, lambda load: True, 4)
    assert harness.until_finished() == []
    harness.verify()
    # each after a delay that is longer than the last
    assert sum("were lost again" in line for line in caplog.messages) == 3
    assert (
        sum(isinstance(error, PreparedLoadLost) for error in warnings) == 3
    )  # a single loss is replayed without a warning
    assert harness.waits[-1] is None


def test_load_lost_while_the_job_was_stopped_is_replayed(tmp_path, make):
    source = Source.random(5, transactions=40)
    assert killed(run_in_process(tmp_path, source, (Fault("commit", "kill_with_next_open", 2),), limits=TASKS_AT_ONCE))
    harness = make(source)
    prepared = harness.store.unfinished()[0]
    harness.sink.lose(prepared.loads[0])
    assert harness.until_finished() == []
    harness.verify()
    assert max(name.attempt for name in harness.runner.submitted) == 1


def test_kill_during_replay_recovers(tmp_path, make):
    source = Source.random(5, transactions=40)
    assert killed(run_in_process(tmp_path, source, (Fault("commit", "kill", 2),), limits=TASKS_AT_ONCE))
    for fault in (Fault("prepare", "kill_after", 1), Fault("save PREPARED", "kill", 1), Fault("commit", "kill", 2)):
        harness = Harness(tmp_path, source)
        harness.sink.lose(harness.store.unfinished()[0].loads[0])
        harness.close()
        assert killed(run_in_process(tmp_path, source, (fault,), limits=TASKS_AT_ONCE))
    harness = make(source)
    harness.until_finished()
    harness.verify()


def test_lost_load_with_purged_binlog_raises_table_and_range(make):
    from cdc.errors import PositionLost

    source = Source.random(5, transactions=40)
    harness = make(source)

    class Purged(Forgetful):
        def commit(self, loads, checkpoint):
            had = self.times
            try:
                super().commit(loads, checkpoint)
            except PreparedLoadLost:
                if had:
                    source.stops = {
                        index: PositionLost("The binlog was purged.", hint="Keep it longer.") for index in range(40)
                    }
                raise

    harness.wrap_sink = lambda inner: Purged(inner, lambda load: load.table == "ods.orders")
    with pytest.raises(PositionLost, match=r"ods\.orders") as lost:
        harness.once()
    assert {"first", "last", "tables"} <= set(lost.value.context)
    assert [one.state.value for one in harness.store.unfinished()] == ["PREPARED"]


def test_replayed_load_has_no_row_after_its_range(tmp_path, make):
    """Batches are divided differently when a range is read again, and the last one may extend beyond it."""
    source = Source.random(5, transactions=40)
    fault = Fault("commit", "kill_with_next_open", 2)
    assert killed(run_in_process(tmp_path, source, (fault,), limits=TASKS_AT_ONCE, per_batch=1))
    harness = make(source, per_batch=7)
    (prepared, _) = harness.store.unfinished()
    harness.sink.lose(prepared.loads[0])
    script = put_in(harness, Script(Fault("save COMMITTED", "reject", 1)))
    with pytest.raises(CheckpointError):
        harness.once()
    assert script.done
    later = {row.op for transaction in source.transactions[prepared.last.offset :] for row in transaction}
    assert not later & set(harness.sink.log())
    harness.until_finished()
    harness.verify()


class Sequenced:
    """A sink that keeps the row with the highest sequence of each key, as Doris does."""

    def __init__(self, inner, times):
        self.inner, self.times = inner, times
        self.written = {}  # by label: the sequences of its rows, by table and key
        self.shown = {}  # the sequence of each visible row
        self.ignored = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def part_writer(self, table):
        write = self.inner.part_writer(table)

        def recorded(name, rows):
            batches = list(rows)
            columns = pa.Table.from_batches(batches).select(["id", SEQUENCE]).to_pydict()
            keys = [(table.name, key) for key in columns["id"]]
            self.written[label_for(name)] = list(zip(keys, columns[SEQUENCE], strict=True))
            return write(name, iter(batches))

        return recorded

    def lose(self, loads, receiver):
        """Lose ``loads`` while the next cycle buffers rows, which have higher sequences than all that were written."""
        newest = max(sequence for rows in self.written.values() for _, sequence in rows)
        until(lambda: receiver._sequence >= newest + 50, HANG_S, "reading ahead")
        for load in loads:
            self.inner.lose(load)

    def commit(self, loads, checkpoint):
        shown = [load for load in loads if self.inner.state(load) is LoadState.PREPARED]
        self.inner.commit(loads, checkpoint)
        for load in shown:
            for key, sequence in self.written[label_for(load.name)]:
                if sequence < self.shown.get(key, 0):
                    self.ignored.append(key)
                self.shown[key] = max(sequence, self.shown.get(key, 0))


LARGE_CYCLES = CommitLimits(
    interval_s=0.02, min_rows=1, min_bytes=1, max_bytes=1 << 20, max_rows=100, task_bytes=1 << 20
)


def long_source():
    """300 updates of a row in each of two tables."""
    source = Source()
    for _ in range(300):
        source.write(("shop.orders", 1), ("shop.items", 1))
    return source


def test_loads_lost_in_two_runs_get_no_lower_sequences(make):
    """The rows of the first replay are above those that were read ahead. One of its tables is committed."""
    harness = make(long_source(), limits=LARGE_CYCLES)

    class Sink(Sequenced):
        def commit(self, loads, checkpoint):
            orders = [load for load in loads if load.table == "ods.orders"]
            items = [load for load in loads if load.table == "ods.items"]
            if orders and items and self.times:
                self.times -= 1
                if self.times:
                    self.lose(loads, harness.receiver)
                else:  # it commits one table, then neither it nor the state store answers
                    super().commit(orders, checkpoint)
                    self.inner.lose(items[0])
                    raise CheckpointError("The store does not answer.", hint="It is retried automatically.")
            super().commit(loads, checkpoint)

    sink = Sink(harness.sink, 2)
    harness.wrap_sink = lambda inner: sink
    assert len(harness.until_finished()) == 1
    harness.verify()
    assert not sink.times and not sink.ignored


def test_failed_replay_gives_its_rows_no_lower_sequences_again(make):
    """Without prepared loads, as with `two_phase_commit: false`, rows of a replay are visible although it failed."""
    harness = make(long_source(), limits=LARGE_CYCLES)
    ignored, shown, replays = [], {}, []

    class Plain(Sequenced):
        def part_writer(self, table):
            write = super().part_writer(table)

            def shows(name, rows):
                if name.attempt and not replays:
                    replays.append(name)
                elif len(replays) == 1:
                    replays.append(name)
                    raise SinkUnavailable("The sink does not answer.", hint="It is retried automatically.")
                batches = list(rows)
                found = pa.Table.from_batches(batches).select(["id", "op", SEQUENCE]).to_pylist()
                for row in found:
                    op, sequence = shown.get((table.name, row["id"]), (0, 0))
                    if row["op"] > op and row[SEQUENCE] < sequence:
                        ignored.append((table.name, row["op"]))
                    shown[table.name, row["id"]] = max((op, sequence), (row["op"], row[SEQUENCE]))
                return write(name, iter(batches))

            return shows

        def commit(self, loads, checkpoint):
            if len({load.table for load in loads}) > 1 and self.times:
                self.times -= 1
                self.lose(loads, harness.receiver)
            super().commit(loads, checkpoint)

    sink = Plain(harness.sink, 1)
    harness.wrap_sink = lambda inner: sink
    assert len(harness.until_finished()) == 1
    harness.verify()
    assert len(replays) == 2 and not ignored
