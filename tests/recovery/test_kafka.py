"""The complete commit cycle on a real Kafka broker: SIGKILL at every fault point, and a broker that restarts."""

from __future__ import annotations

import random

import pytest

import cdc.pipeline.cycles
import cdc.retry
from cdc.pipeline.flow_control import CommitLimits
from tests.model.faults import CONTRACT_FAULT_POINTS, Fault, Script, put_in
from tests.model.kafka import ExecutorsHarness, KafkaHarness, send, send_more
from tests.model.process import killed, run_in_process
from tests.model.source import Source
from tests.support.seeds import seed_of

SMALL = CommitLimits(interval_s=0.02, min_rows=1, min_bytes=1, max_bytes=600, max_rows=6, task_bytes=1)
KILLED_AT = [point for point in CONTRACT_FAULT_POINTS if point != "rollback"]


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.pipeline.cycles, "SHUTDOWN_S", 0.3)


@pytest.fixture
def harness_of(tmp_path, monkeypatch):
    monkeypatch.setattr("cdc.sources.kafka.reader.MESSAGES", 4)
    for name in ("_FIRST_MESSAGES", "SHARE_MESSAGES"):
        monkeypatch.setattr(f"cdc.sources.kafka.range_planner.{name}", 2)
    made = []

    def make(sent, harness=KafkaHarness, **options):
        made.append(harness(tmp_path, sent, **{"limits": SMALL, **options}))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


def test_sigkill_at_every_fault_point_keeps_every_row_once(kafka, topic, tmp_path, harness_of):
    draw = random.Random(seed_of())
    sent = send(kafka, topic, Source.random(seed_of(), transactions=20))
    kills = 0
    for point in KILLED_AT:
        send_more(kafka, topic, sent, 12, draw)  # else a fast run finishes it, and no later fault strikes
        fault = Fault(point, draw.choice(["kill", "kill_after"]), draw.randrange(1, 4))
        kills += killed(run_in_process(tmp_path, sent, (fault,), harness=KafkaHarness, limits=SMALL))
    assert run_in_process(tmp_path, sent, harness=KafkaHarness, limits=SMALL) == 0
    assert kills > len(KILLED_AT) // 2
    harness_of(sent).verify()


def test_random_faults_in_one_run_keep_every_row_once(kafka, topic, harness_of):
    draw = random.Random(seed_of())
    sent = send(kafka, topic, Source.random(seed_of(), transactions=40))
    faults = {
        (point := draw.choice(CONTRACT_FAULT_POINTS), number := draw.randrange(1, 12)): Fault(
            point, draw.choice(["reject", "after", "slow"]), number
        )
        for _ in range(10)
    }
    harness = harness_of(sent)
    put_in(harness, Script(*faults.values()))
    harness.until_finished()
    harness.verify()


# with `read: executors`


class LosesOnce:
    """A sink that loses the loads of one checkpoint before their commit."""

    def __init__(self, inner):
        self.inner, self.has_lost = inner, False

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def commit(self, loads, checkpoint):
        if not self.has_lost and len(loads) > 1:
            self.has_lost = True
            for load in loads:
                self.inner.lose(load)
        return self.inner.commit(loads, checkpoint)


def test_sigkill_at_fault_points_keeps_every_row_once_on_executors(kafka, topic, tmp_path, harness_of):
    draw = random.Random(seed_of())
    sent = send(kafka, topic, Source.random(seed_of(), transactions=20))
    kills = 0
    for point in KILLED_AT:
        send_more(kafka, topic, sent, 8, draw)  # else a fast run finishes it, and no later fault strikes
        fault = Fault(point, draw.choice(["kill", "kill_after"]), draw.randrange(1, 4))
        kills += killed(run_in_process(tmp_path, sent, (fault,), harness=ExecutorsHarness, limits=SMALL))
    assert run_in_process(tmp_path, sent, harness=ExecutorsHarness, limits=SMALL) == 0
    assert kills > len(KILLED_AT) // 2
    harness_of(sent, ExecutorsHarness).verify()


def test_lost_loads_of_executors_are_replayed_by_the_driver(kafka, topic, harness_of):
    sent = send(kafka, topic, Source.random(seed_of(), transactions=30))
    harness = harness_of(sent, ExecutorsHarness)
    lossy = LosesOnce(harness.sink)
    harness.wrap_sink = lambda inner: lossy
    harness.until_finished()
    assert lossy.has_lost and harness.runner.reads > 3
    harness.verify()


def test_random_faults_in_one_run_keep_every_row_once_on_executors(kafka, topic, harness_of):
    draw = random.Random(seed_of())
    sent = send(kafka, topic, Source.random(seed_of(), transactions=30))
    faults = {
        (point := draw.choice(CONTRACT_FAULT_POINTS), number := draw.randrange(1, 8)): Fault(
            point, draw.choice(["reject", "after", "slow"]), number
        )
        for _ in range(8)
    }
    harness = harness_of(sent, ExecutorsHarness)
    put_in(harness, Script(*faults.values()))
    harness.until_finished()
    harness.verify()
