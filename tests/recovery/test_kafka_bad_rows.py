"""Kept messages of Kafka and SIGKILL: each is counted and kept once, and a replay that was killed is repeated whole."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

import cdc.pipeline.cycles
import cdc.retry
import cdc.sources.kafka.stream
from cdc.pipeline.flow_control import CommitLimits
from cdc.sources.kafka.bad_messages import BadMessages
from cdc.sources.kafka.bad_replay import BadReplay
from cdc.sources.kafka.bad_window import BadLimits
from tests.model.faults import Fault
from tests.model.harness import JOB
from tests.model.kafka import Corrected, KafkaHarness, send
from tests.model.process import killed, run_in_process
from tests.model.source import Source
from tests.support.seeds import seed_of

SMALL = CommitLimits(interval_s=0.02, min_rows=1, min_bytes=1, max_bytes=600, max_rows=6, task_bytes=1)
POINTS = ("prepare", "save PREPARED", "commit", "save COMMITTED")


class BadHarness(KafkaHarness):
    """Keeps bad messages in the folder of the job."""

    def __init__(self, folder, sent, *, corrected=False, **options):
        limits = options.pop("limits")
        more = {"form": Corrected} if corrected else {}
        bad = BadMessages(folder / "bad", BadLimits(10**6, 10**6))
        super().__init__(folder, sent, limits=limits, bad=bad, replays_bad=corrected, **more, **options)

    @property
    def kept(self):
        return self.store.last_committed(JOB).last.kept


@pytest.fixture
def given(kafka, topic, tmp_path, monkeypatch):
    """A history of which every fourth operation is sent in a message that cannot be read."""
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.pipeline.cycles, "SHUTDOWN_S", 0.3)
    model = Source.random(seed_of(), transactions=40)
    ops = [row.op for transaction in model.transactions for row in transaction]
    broken = frozenset(random.Random(seed_of()).sample(ops, len(ops) // 4))
    return send(kafka, topic, model, broken), broken


def _harness(folder, sent, **options):
    return BadHarness(folder, sent, limits=SMALL, **options)


def _kept_positions(folder):
    """Return the positions of the kept messages, from the files."""
    lines = [line for path in sorted((folder / "bad").glob("*.jsonl")) for line in path.read_text().splitlines()[1:]]
    return [(one["topic"], one["partition"], one["offset"]) for one in map(json.loads, lines)]


def test_message_is_kept_and_counted_once_after_kills(given, tmp_path):
    sent, broken = given
    kills = 0
    # after the file and before PREPARED, and at every other step
    for point, kind in [("save PREPARED", "kill"), ("prepare", "kill"), *((each, "kill_after") for each in POINTS)]:
        fault = Fault(point, kind, 2)
        kills += killed(run_in_process(tmp_path, sent, (fault,), harness=BadHarness, limits=SMALL))
    assert kills == 6
    assert run_in_process(tmp_path, sent, harness=BadHarness, limits=SMALL) == 0
    harness = _harness(tmp_path, sent)
    kept, files = harness.kept, _kept_positions(tmp_path)
    assert kept.count == len(files) == len({*files}) == len(broken)
    assert sum(bad for _, bad in kept.window) == len(broken)
    assert sum(read for read, _ in kept.window) == sum(map(len, sent.model.transactions))
    log = Counter(harness.sink.log())
    assert {*log} == {row.op for each in sent.model.transactions for row in each} - broken
    assert {*log.values()} == {1}
    harness.close()


@pytest.mark.parametrize("point", POINTS)
def test_replay_that_is_killed_is_repeated_as_a_whole(given, tmp_path, point):
    sent, broken = given
    assert run_in_process(tmp_path, sent, harness=BadHarness, limits=SMALL) == 0
    again = {"harness": BadHarness, "limits": SMALL, "corrected": True}
    assert killed(run_in_process(tmp_path, sent, (Fault(point, "kill"),), **again))
    # the first kill was in the replay; a PREPARED one is committed before the next fault
    killed(run_in_process(tmp_path, sent, (Fault(point, "kill_after"),), **again))
    for _ in range(2):  # the second one has nothing to do
        assert run_in_process(tmp_path, sent, **again) == 0
    harness = _harness(tmp_path, sent)
    kept, log = harness.kept, Counter(harness.sink.log())
    assert (kept.replays, kept.count, kept.loaded) == (1, 0, len(broken)) and not _kept_positions(tmp_path)
    expected = {f"ods.{name.split('.')[1]}": rows for name, rows in sent.model.state().items()}
    assert harness.sink.rows() == expected
    assert {log[op] for op in broken} <= {0, 1}, "a kept message became visible twice"
    assert harness.store.unfinished() == ()
    harness.close()


def test_replay_counts_the_messages_that_it_reads_again(given, tmp_path, monkeypatch):
    sent, broken = given
    assert run_in_process(tmp_path, sent, harness=BadHarness, limits=SMALL) == 0
    replays = []

    def create(*values, **options):
        replays.append(BadReplay(*values, **options))
        return replays[-1]

    monkeypatch.setattr(cdc.sources.kafka.stream, "BadReplay", create)
    harness = _harness(tmp_path, sent, corrected=True)
    harness.until_finished()
    assert harness.kept.loaded == len(broken)
    harness.close()
    (replay,) = replays
    assert replay.progress.read == replay.progress.total >= len(broken)
