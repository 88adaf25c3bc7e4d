"""Turns of a snapshot in the durable order: what recovery makes of a checkpoint in which the stream did not move."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

import cdc.consumer
from cdc.batch import LoadName
from cdc.checkpoint import CheckpointState
from cdc.consumer import Consumer, Ended
from cdc.errors import Answer, SinkUnavailable, decide
from cdc.parts import Parts, SnapshotSettings
from cdc.schema import DELETED, SEQUENCE
from cdc.snapshot.chunks import Chunk, SnapshotState, TableSnapshot
from cdc.turns import Request, Turn, Turns
from spark.chunks import ChunkOutcome, TurnOutcome
from tests.flow.harness import JOB, Background, Harness
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


def _loaded(harness, number, sequence):
    """A chunk of one row, prepared at the sink."""
    name = LoadName(JOB, harness.run.incarnation, harness.run.fence, number, "ods.orders", task=0)
    rows = pa.record_batch(
        {
            "id": pa.array([77], pa.int32()),
            "op": pa.array([1000], pa.int64()),
            DELETED: [False],
            SEQUENCE: [sequence],
        }
    )
    return harness.sink.part_writer(None)(name, iter([rows]))


def _prepared_turn(harness):
    """A run that died between PREPARED and its commit."""
    before = replace(harness.store.last_committed(JOB), snapshots=BEFORE)
    harness.store.save(before)
    number = harness.store.next_id()
    load = _loaded(harness, number, before.sequence)
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

        def begin(self, *_):
            pass

        def at(self, position, joined, *, at_end):
            return BEFORE

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


class _OneTable(Turns):
    """Turns over one table of one chunk, without a server."""

    def begin(self, saved, whole):
        self.tables = {"shop.orders": TableSnapshot(), **saved}

    def next(self, position, sequence, checkpoint):
        self._take_requests()
        if not self.tables["shop.orders"].is_due:
            return None
        planned = replace(BEFORE["shop.orders"], open=(Chunk(0, None, ("9",)),))
        self.tables = {"shop.orders": planned}
        return Turn(("shop.orders",), (None,), (checkpoint, sequence))

    def after(self, turn, outcome, seconds):
        self.tables = AFTER
        return self.tables


def _until(is_so):
    deadline = time.monotonic() + 240
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def _turns(tmp_path, monkeypatch, submit_reading):
    """A run over a table of one chunk, which ends when the block does."""
    monkeypatch.setattr("cdc.consumer.Turns", _OneTable)
    harness = Harness(tmp_path, Source(), endless=True)
    harness.runner.submit_reading = lambda reading: submit_reading(harness, *reading)
    harness.receiver = harness.new_receiver()
    settings = SnapshotSettings(None, lambda server: place(0), turn_s=0.05)
    parts = Parts(harness.run, harness.receiver, harness.routes, harness.runner, harness.sink, harness.store, None, settings)  # fmt: skip
    consumer = Consumer(parts, harness.limits, sequence=harness.sequence)
    run = Background(lambda: consumer.run(harness.first_place))

    harness.run_begins = run.start
    harness.until_visible = lambda key: _until(lambda: key in harness.sink.rows().get("ods.orders", {}))
    yield harness
    consumer.stop()
    assert run.ended() is Ended.STOPPED
    assert harness.sink.rows()["ods.orders"][77] == 1000
    harness.close()


def _read(load):
    answer = Future()
    answer.set_result(TurnOutcome((load,), (ChunkOutcome(0, 0, ("9",), True, 1, 10),)))
    return answer


def test_a_first_turn_whose_loads_are_lost_is_read_again(tmp_path, monkeypatch):
    turns = []

    def submit_reading(harness, number, sequence):
        load = _loaded(harness, number, sequence)
        turns.append(number)
        if len(turns) == 1:
            harness.sink.lose(load)
        return _read(load)

    with _turns(tmp_path, monkeypatch, submit_reading) as harness:
        harness.source.write(("shop.orders", 1))
        harness.run_begins()
        harness.until_visible(77)
    assert len(turns) == 2, "lost once, then read again"


def test_people_see_what_is_to_be_loaded_before_the_first_row_comes(tmp_path, monkeypatch):
    seen = []
    with _turns(tmp_path, monkeypatch, lambda harness, *reading: _read(_loaded(harness, *reading))) as harness:
        get = harness.receiver.get

        def watched(timeout_s):
            seen.append(harness.store.last_committed(JOB).snapshots)
            harness.runner.is_warming = False
            return get(timeout_s)

        harness.receiver.get = watched
        harness.runner.is_warming = True
        harness.run_begins()
        harness.until_visible(77)
    assert seen[0]["shop.orders"].state is SnapshotState.WAITING


def test_the_stream_does_not_wait_for_a_turn_that_waits_for_spark(tmp_path, monkeypatch):
    turns = []

    def submit_reading(harness, number, sequence):
        turns.append(set(harness.sink.rows()["ods.orders"]))
        return _read(_loaded(harness, number, sequence))

    with _turns(tmp_path, monkeypatch, submit_reading) as harness:
        harness.runner.is_warming = True
        harness.source.write(("shop.orders", 1))
        harness.run_begins()
        harness.until_visible(1)
        harness.source.write(("shop.orders", 2))
        harness.until_visible(2)
        assert not turns
        harness.runner.is_warming = False
        harness.until_visible(77)
    assert turns == [{1, 2}]


def test_a_stop_while_a_sweep_ends_takes_its_answer_or_nothing():
    class EndsMeanwhile(Future):
        looks = 0

        def done(self):
            self.looks += 1
            if self.looks == 2:
                self.set_result("deletes")
            return super().done()

    swept, submitted = EndsMeanwhile(), []
    consumer = Consumer.__new__(Consumer)
    consumer._stopping = threading.Event()
    consumer._stopping.set()
    consumer._threads = SimpleNamespace(submit=lambda work: swept)
    consumer._parts = SimpleNamespace(
        runner=SimpleNamespace(submit=lambda tasks: submitted.append(tasks) or [Future()])
    )
    assert consumer._read(SimpleNamespace(reading=None, sweep=lambda: None)) is None
    assert submitted == [["deletes"]], "not taken for a sweep that found nothing"


@pytest.mark.parametrize(
    ("old", "where", "now"),
    [
        (BEFORE["shop.orders"], "id > 5", (None, False)),  # the initial load, and some of its rows again
        (TableSnapshot(where="id > 5"), "id < 3", (None, False)),
        (TableSnapshot(sweeps=True), "id < 3", (None, True)),
        (TableSnapshot(where="id > 5"), None, (None, True)),
        (TableSnapshot(where="id > 5"), "id > 5", ("id > 5", False)),
        (TableSnapshot(SnapshotState.CONSISTENT), "id > 5", ("id > 5", False)),
    ],
)
def test_a_request_does_not_make_what_is_due_forgotten(old, where, now):
    turns = Turns(None, None, None)
    turns.tables = {"shop.orders": old}
    turns.request(Request("shop.orders", where))
    turns._take_requests()
    found = turns.tables["shop.orders"]
    assert (found.state, found.where, found.sweeps) == (SnapshotState.WAITING, *now)
