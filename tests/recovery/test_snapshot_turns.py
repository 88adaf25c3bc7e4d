"""Turns of a snapshot in the durable order: what recovery makes of a checkpoint in which the stream did not move."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pyarrow as pa
import pytest

import cdc.consumer
from cdc.batch import LoadName
from cdc.checkpoint import CheckpointState
from cdc.consumer import Ended
from cdc.errors import Answer, SinkUnavailable, decide
from cdc.parts import SnapshotSettings
from cdc.schema import DELETED, SEQUENCE
from cdc.snapshot.chunks import Chunk, SnapshotState, TableSnapshot
from cdc.turns import Turn
from tests.flow.harness import JOB, Harness
from tests.flow.source import Source, place

BEFORE = {"shop.orders": TableSnapshot(SnapshotState.READING, open=(Chunk(0, None, ("9",)),), chunks=1, low=place(0))}
AFTER = {"shop.orders": replace(BEFORE["shop.orders"], state=SnapshotState.CATCHING_UP, open=(), done=1, high=place(3))}


@pytest.fixture
def harness(tmp_path):
    source = Source()
    for key in range(6):
        source.write(("shop.orders", key))
    harness = Harness(tmp_path, source)
    harness.until_finished()
    yield harness
    harness.close()


def _prepared_turn(harness):
    """A run that died between PREPARED and its commit."""
    before = replace(harness.store.last_committed(JOB), snapshots=BEFORE)
    harness.store.save(before)
    number = harness.store.next_id()
    name = LoadName(JOB, harness.run.incarnation, harness.run.fence, number, "ods.orders", task=0)
    rows = pa.record_batch(
        {
            "id": pa.array([77], pa.int32()),
            "op": pa.array([1000], pa.int64()),
            DELETED: [False],
            SEQUENCE: [before.sequence],
        }
    )
    load = harness.sink.part_writer(None)(name, iter([rows]))
    turn = replace(
        before, id=number, state=CheckpointState.PREPARED, first=before.last, loads=(load,), snapshots=AFTER,
        committed_at=None, closed_by="snapshot",
    )  # fmt: skip
    harness.store.save(turn)
    return load


def test_a_prepared_turn_rolls_forward_with_its_chunks(harness):
    _prepared_turn(harness)
    assert harness.once() is Ended.FINISHED
    assert harness.sink.rows()["ods.orders"][77] == 1000
    assert harness.store.last_committed(JOB).snapshots == AFTER
    assert harness.store.unfinished() == ()


def test_a_turn_whose_loads_are_lost_is_committed_without_its_chunks(harness):
    load = _prepared_turn(harness)
    harness.sink.lose(load)
    harness.source.write(("shop.orders", 3))
    assert harness.until_finished() == []
    assert 77 not in harness.sink.rows()["ods.orders"]
    assert harness.store.last_committed(JOB).snapshots == BEFORE, "the chunk counts as not read"
    assert harness.store.unfinished() == () and harness.sink.prepared() == []


def test_a_turn_that_lost_an_executor_is_aborted_and_read_again(harness, monkeypatch):
    tried = []

    class OneTurn:
        is_due, tables = True, BEFORE

        def __init__(self, *_):
            pass

        def begin(self, _):
            pass

        def next(self, position, sequence, checkpoint):
            tried.append(checkpoint)
            return Turn(("shop.orders",), (), reading=checkpoint)

    def submit_reading(checkpoint):
        name = LoadName(JOB, harness.run.incarnation, harness.run.fence, checkpoint, "ods.orders", task=0)
        rows = pa.record_batch({"id": [77], "op": [1000], DELETED: [False], SEQUENCE: [1]})
        harness.sink.part_writer(None)(name, iter([rows]))  # what the executor had loaded
        assert harness.sink.prepared()
        lost = Future()
        lost.set_exception(SinkUnavailable("An executor was lost.", mend=""))
        return lost

    monkeypatch.setattr(cdc.consumer, "Turns", OneTurn)
    monkeypatch.setattr(harness.runner, "submit_reading", submit_reading, raising=False)
    for _ in range(2):
        consumer = harness.start()
        consumer._parts = replace(consumer._parts, snapshot=SnapshotSettings(None, None))
        with pytest.raises(SinkUnavailable) as caught:
            consumer.run(harness.first_place)
        assert decide(caught.value) is Answer.RETRY
        assert harness.store.unfinished() == () and harness.sink.prepared() == []
    assert tried[0] < tried[1], "labels of the first try may come late"


def test_chunks_are_carried_on_by_every_checkpoint_of_the_stream(harness):
    harness.store.save(replace(harness.store.last_committed(JOB), snapshots=BEFORE))
    harness.source.write(("shop.orders", 1))
    harness.until_finished()
    assert harness.store.last_committed(JOB).snapshots == BEFORE


def test_a_table_is_consistent_once_the_stream_has_passed_its_high_watermark():
    waiting = AFTER["shop.orders"]
    assert waiting.passed(place(2), "now", caught_up=False) == waiting
    for found in (waiting.passed(place(3), "now", caught_up=False), waiting.passed(place(2), "now", caught_up=True)):
        assert found.state is SnapshotState.CONSISTENT and found.consistent_since == "now"
    assert TableSnapshot.from_json(BEFORE["shop.orders"].to_json()) == BEFORE["shop.orders"]
