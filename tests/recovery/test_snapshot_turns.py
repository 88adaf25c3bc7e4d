"""Turns of a snapshot in the durable order: what recovery makes of a checkpoint in which the stream did not move."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from cdc.batch import LoadName
from cdc.checkpoint import CheckpointState
from cdc.consumer import Ended
from cdc.schema import DELETED, SEQUENCE
from cdc.snapshot.chunks import Chunk, SnapshotState, TableSnapshot
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
