"""What the matrix cannot say: several faults in one run, crashes in a row, two checkpoints alive, lost loads."""

import random
import time

import pytest

import cdc.commit
import cdc.consumer
from cdc.errors import CheckpointError, LoadLost, SourceRewound
from cdc.parts import Limits
from tests.flow.faults import CONTRACT_SEAMS, Fault, Script, put_in
from tests.flow.harness import Harness
from tests.flow.process import killed, run_in_process
from tests.flow.source import Source

TASKS_AT_ONCE = Limits(interval_s=0.02, min_rows=1, min_bytes=1, max_bytes=60, max_rows=6, task_bytes=1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(cdc.commit, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.consumer, "WIND_UP_S", 0.3)


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
    """A source that makes its receiver rewind once before these transactions, so that `rollback` is called."""

    class Once(dict):
        def __getitem__(self, index):
            return self.pop(index)

    source.stops = Once({index: SourceRewound("The line was cut.", mend="It is read again.") for index in indexes})
    return source


def test_a_pause_does_not_wait_for_a_prepare_that_hangs(make):
    harness = make(Source.random(3, transactions=20))
    script = put_in(harness, Script(Fault("prepare", "hang", 2)))
    run = harness.in_background()
    assert script.hanging.wait(240)
    harness.consumer.stop()
    began = time.monotonic()
    run.ended()
    assert time.monotonic() - began < 5
    assert harness.store.unfinished() == (), "what was OPEN is aborted, not left"
    script.released.set()
    harness.until_finished()
    harness.verify()


@pytest.mark.parametrize("seed", range(15))
def test_random_faults_one_after_the_other(make, seed):
    draw = random.Random(seed)
    faults = {
        (seam := draw.choice(CONTRACT_SEAMS), number := draw.randrange(1, 12)): Fault(
            seam, draw.choice(["reject", "after", "slow"]), number
        )
        for _ in range(10)
    }
    harness = make(with_rewinds(Source.random(seed, transactions=40), 9, 21, 33), piece_rows=2)
    put_in(harness, Script(*faults.values()))
    harness.until_finished()
    harness.verify()


@pytest.mark.parametrize("number", [1, 2, 4])
def test_sigkill_with_one_checkpoint_prepared_and_the_next_one_open(tmp_path, make, number):
    source = Source.random(number, transactions=60)
    fault = Fault("commit", "kill_with_next_open", number)
    assert killed(run_in_process(tmp_path, source, (fault,), limits=TASKS_AT_ONCE))
    harness = make(source)
    assert [one.state.value for one in harness.store.unfinished()] == ["PREPARED", "OPEN"]
    harness.until_finished()
    harness.verify()


@pytest.mark.parametrize("seed", range(4))
def test_many_sigkills_in_a_row(tmp_path, make, seed):
    draw = random.Random(seed)
    source = Source.random(seed, transactions=120)
    options = {"limits": TASKS_AT_ONCE, "piece_rows": 3}
    kills = 0
    for _ in range(25):
        seam = draw.choice([seam for seam in CONTRACT_SEAMS if seam != "rollback"])
        fault = Fault(seam, draw.choice(["kill", "kill_after"]), draw.randrange(1, 9))
        kills += killed(run_in_process(tmp_path, source, (fault,), **options))
    assert run_in_process(tmp_path, source, **options) == 0
    assert kills > 5
    make(source).verify()


# loads that the sink loses


class Forgetful:
    """A sink that has lost some loads by the time they are to be committed."""

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
def test_a_lost_load_is_made_again_before_anything_newer_commits(make, which, times, per_batch):
    harness = make(Source.random(5, transactions=40), per_batch=per_batch)
    harness.wrap_sink = lambda inner: Forgetful(inner, which, times)
    assert harness.until_finished() == []
    harness.verify()


def test_loads_that_are_lost_every_time_are_told_and_not_hurried(make, caplog):
    told = []

    class Telling(Forgetful):
        def commit(self, loads, checkpoint):
            told.append(harness.consumer.progress().waits_for)
            return super().commit(loads, checkpoint)

    harness = make(Source.random(5, transactions=40))
    harness.wrap_sink = lambda inner: Telling(inner, lambda load: True, 4)
    assert harness.until_finished() == []
    harness.verify()
    assert sum("were lost again" in line for line in caplog.messages) == 3  # each after a pause, longer than the last
    assert sum(isinstance(error, LoadLost) for error in told) == 3  # a single loss is mended without a word
    assert harness.consumer.progress().waits_for is None


def test_a_load_lost_while_the_job_was_away_is_made_again_at_the_start(tmp_path, make):
    source = Source.random(5, transactions=40)
    assert killed(run_in_process(tmp_path, source, (Fault("commit", "kill_with_next_open", 2),), limits=TASKS_AT_ONCE))
    harness = make(source)
    prepared = harness.store.unfinished()[0]
    harness.sink.lose(prepared.loads[0])
    assert harness.until_finished() == []
    harness.verify()
    assert max(name.attempt for name in harness.runner.submitted) == 1


def test_a_kill_while_lost_loads_are_made_again(tmp_path, make):
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


def test_a_lost_load_whose_range_is_gone_pauses_with_table_and_range(make):
    from cdc.errors import PositionLost

    source = Source.random(5, transactions=40)
    harness = make(source)

    class Purged(Forgetful):
        def commit(self, loads, checkpoint):
            had = self.times
            try:
                super().commit(loads, checkpoint)
            except LoadLost:
                if had:
                    source.stops = {
                        index: PositionLost("The binlog is gone.", mend="Keep it longer.") for index in range(40)
                    }
                raise

    harness.wrap_sink = lambda inner: Purged(inner, lambda load: load.table == "ods.orders")
    with pytest.raises(PositionLost, match=r"ods\.orders") as lost:
        harness.once()
    assert {"first", "last", "tables"} <= set(lost.value.where)
    assert [one.state.value for one in harness.store.unfinished()] == ["PREPARED"]


def test_a_load_that_is_made_again_holds_no_row_behind_its_range(tmp_path, make):
    """Batches are packed anew when a range is read again, and the last one may reach beyond it."""
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
    behind = {row.op for transaction in source.transactions[prepared.last.offset :] for row in transaction}
    assert not behind & set(harness.sink.log())
    harness.until_finished()
    harness.verify()
