"""Snapshot steps in the durable order: recovery of a checkpoint in which the stream did not advance."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

import cdc.pipeline.consumer
from cdc.errors import ErrorAction, SinkUnavailable, SnapshotIncomplete, SourceUnavailable, action_for
from cdc.model.batch import LoadName
from cdc.model.schema import DELETED, SEQUENCE
from cdc.model.snapshot import Chunk, SnapshotRequest, SnapshotState, TableSnapshot
from cdc.pipeline.consumer import Consumer, Ended
from cdc.run_context import RunContext, SnapshotSettings
from cdc.snapshot.coordinator import SnapshotCoordinator
from cdc.snapshot.planner import ChunkPlan
from cdc.snapshot.requests import LoadRequests
from cdc.snapshot.step import StepRunner
from cdc.snapshot.step_plan import SnapshotStep
from cdc.state.base import CheckpointState, CloseReason
from cdc.state.codec import from_json, to_json
from cdc.state.sqlite import SqliteStore
from channels.chunk_reader import ChunkOutcome, SnapshotResult
from tests.model.harness import JOB, Background, Harness
from tests.model.model_server import InlineThread, _Order
from tests.model.source import Source, position_at, schema_of

BEFORE = {
    "shop.orders": TableSnapshot(SnapshotState.READING, open=(Chunk(0, None, ("9",)),), chunks=1, low=position_at(0))
}
AFTER = {
    "shop.orders": replace(BEFORE["shop.orders"], state=SnapshotState.CATCHING_UP, open=(), done=1, high=position_at(3))
}


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
    """Prepare a chunk of one row in the sink."""
    name = LoadName(JOB, harness.run.incarnation, harness.run.fence, number, "ods.orders", task=0)
    rows = pa.record_batch(
        {
            "id": pa.array([77], pa.int32()),
            "op": pa.array([1000], pa.int64()),
            DELETED: [False],
            SEQUENCE: [sequence],
        }
    )
    harness.sink.ensure_table(SimpleNamespace(name="ods.orders"))  # as planning a step does
    return harness.sink.part_writer(None)(name, iter([rows]))


def _save_prepared_step(harness):
    """Save the state of a run that died between PREPARED and its commit. Return the load."""
    before = replace(harness.store.last_committed(JOB), snapshots=BEFORE)
    harness.store.save(before)
    number = harness.store.next_id()
    load = _loaded(harness, number, before.sequence)
    turn = replace(
        before, id=number, state=CheckpointState.PREPARED, first=before.last, loads=(load,), snapshots=AFTER,
        committed_at=None, closed_by=CloseReason.SNAPSHOT,
    )  # fmt: skip
    harness.store.save(turn)
    return load


def test_prepared_snapshot_step_is_committed_by_recovery(harness):
    _save_prepared_step(harness)
    assert harness.once() is Ended.FINISHED
    assert harness.sink.rows()["ods.orders"][77] == 1000
    assert harness.store.last_committed(JOB).snapshots == AFTER
    assert harness.store.unfinished() == ()


def test_snapshot_step_with_lost_loads_is_committed_without_chunks(harness):
    load = _save_prepared_step(harness)
    harness.sink.lose(load)
    harness.source.write(("shop.orders", 3))
    assert harness.until_finished() == []
    assert 77 not in harness.sink.rows()["ods.orders"]
    assert harness.store.last_committed(JOB).snapshots == BEFORE, "the chunk is not marked as read"
    assert harness.store.unfinished() == () and harness.sink.prepared() == []


def test_snapshot_step_that_lost_an_executor_is_repeated(harness, monkeypatch):
    tried = []

    class OneTurn:
        is_due, tables = True, BEFORE
        requests = SimpleNamespace(note_committed=lambda snapshots: None)

        def __init__(self, *_):
            pass

        def begin(self, *_):
            pass

        def advance(self, position, joined, *, at_end):
            return BEFORE

        def plan(self, position, sequence, checkpoint):
            tried.append(checkpoint)
            return SnapshotStep(("shop.orders",), (), read_request=checkpoint)

    def submit_reading(checkpoint):
        name = LoadName(JOB, harness.run.incarnation, harness.run.fence, checkpoint, "ods.orders", task=0)
        rows = pa.record_batch({"id": [77], "op": [1000], DELETED: [False], SEQUENCE: [1]})
        harness.sink.part_writer(None)(name, iter([rows]))  # loaded by the executor
        assert harness.sink.prepared()
        lost = Future()
        lost.set_exception(SinkUnavailable("An executor was lost.", hint=""))
        return lost

    monkeypatch.setattr(cdc.pipeline.consumer, "SnapshotCoordinator", OneTurn)
    monkeypatch.setattr(harness.runner, "submit_reading", submit_reading, raising=False)
    for _ in range(2):
        consumer = harness.start()
        consumer._context = replace(consumer._context, snapshot=SnapshotSettings(None, None))
        with pytest.raises(SinkUnavailable) as caught:
            consumer.run(harness.first_position)
        assert action_for(caught.value) is ErrorAction.RETRY
        assert harness.store.unfinished() == () and harness.sink.prepared() == []
    assert tried[0] < tried[1], "labels of the first attempt may appear later"


def test_snapshot_state_is_kept_by_stream_checkpoints(harness):
    harness.store.save(replace(harness.store.last_committed(JOB), snapshots=BEFORE))
    harness.source.write(("shop.orders", 1))
    harness.until_finished()
    assert harness.store.last_committed(JOB).snapshots == BEFORE


def test_table_is_consistent_after_its_high_watermark():
    waiting = AFTER["shop.orders"]
    assert waiting.advance(position_at(2), "now", caught_up=False) == waiting
    for found in (
        waiting.advance(position_at(3), "now", caught_up=False),
        waiting.advance(position_at(2), "now", caught_up=True),
    ):
        assert found.state is SnapshotState.CONSISTENT and found.consistent_since == "now"
    assert from_json(TableSnapshot, to_json(BEFORE["shop.orders"])) == BEFORE["shop.orders"]


class _OneTable(SnapshotCoordinator):
    """Snapshot steps for one table with one chunk, without a server."""

    def begin(self, saved, *_):
        self.tables = {"shop.orders": TableSnapshot(), **saved}

    def plan(self, position, sequence, checkpoint):
        self.tables = self.requests.apply(self.tables)
        if not self.tables["shop.orders"].is_due:
            return None
        self._context.sink.ensure_table(SimpleNamespace(name="ods.orders"))  # its channel is created
        planned = replace(BEFORE["shop.orders"], open=(Chunk(0, None, ("9",)),))
        self.tables = {"shop.orders": planned}
        return SnapshotStep(("shop.orders",), (None,), (checkpoint, sequence))

    def complete(self, step, outcome, seconds):
        self.tables = AFTER
        return self.tables


def _until(is_so):
    deadline = time.monotonic() + 240
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def _coordinator(tmp_path, monkeypatch, submit_reading, kind=_OneTable):
    """Run the snapshot of a table until the block ends."""
    monkeypatch.setattr("cdc.pipeline.consumer.SnapshotCoordinator", kind)
    harness = Harness(tmp_path, Source(), endless=True)
    harness.runner.submit_reading = lambda reading: submit_reading(harness, *reading)
    harness.receiver = harness.new_receiver()
    settings = SnapshotSettings(None, lambda server: position_at(0), step_s=0.05)
    parts = RunContext(harness.run, harness.receiver, harness.routes, harness.runner, harness.sink, harness.store, None, settings)  # fmt: skip
    consumer = Consumer(parts, harness.limits, sequence=harness.sequence)
    run = Background(lambda: consumer.run(harness.first_position))

    harness.run_begins = run.start
    harness.until_visible = lambda key: _until(lambda: key in harness.sink.rows().get("ods.orders", {}))
    yield harness
    consumer.stop()
    assert run.ended() is Ended.STOPPED
    assert harness.sink.rows()["ods.orders"][77] == 1000
    harness.close()


def _read(load):
    answer = Future()
    answer.set_result(SnapshotResult((load,), (ChunkOutcome(0, 0, ("9",), True, 1, 10),)))
    return answer


def test_snapshot_first_step_with_lost_loads_is_read_again(tmp_path, monkeypatch):
    coordinator = []

    def submit_reading(harness, number, sequence):
        load = _loaded(harness, number, sequence)
        coordinator.append(number)
        if len(coordinator) == 1:
            harness.sink.lose(load)
        return _read(load)

    with _coordinator(tmp_path, monkeypatch, submit_reading) as harness:
        harness.source.write(("shop.orders", 1))
        harness.run_begins()
        harness.until_visible(77)
    assert len(coordinator) == 2, "read again after the loss"


def _begin_without_spark(harness):
    """Let Spark start, and let the stream have further changes meanwhile."""
    harness.runner.is_warming, status = True, harness.receiver.status
    harness.receiver.status = lambda: replace(status(), is_at_end=not harness.runner.is_warming and status().is_at_end)


class _TwoChunks(_OneTable):
    """Snapshot steps that read one of two chunks each."""

    def begin(self, saved, *_):
        chunks = (Chunk(0, None, ("5",)), Chunk(1, ("5",), ("9",)))
        self.tables = {"shop.orders": replace(BEFORE["shop.orders"], open=chunks, chunks=2), **saved}

    def plan(self, position, sequence, checkpoint):
        self._context.sink.ensure_table(SimpleNamespace(name="ods.orders"))
        return SnapshotStep(("shop.orders",), (None,), (checkpoint, sequence, self.tables["shop.orders"].open[0]))

    def complete(self, step, outcome, seconds):
        table = self.tables["shop.orders"]
        assert table.open[0] == step.read_request[2], "the chunk that was read follows the one that was read before"
        left = replace(table, open=table.open[1:], done=table.done + 1)
        self.tables = {"shop.orders": left} if left.open else AFTER
        return self.tables


@pytest.mark.parametrize("is_lost", [False, True])
def test_snapshot_step_reads_while_the_previous_one_is_committed(tmp_path, monkeypatch, is_lost):
    """A step whose predecessor lost its loads is discarded: its plan counts the lost chunk as read."""
    read, first, second_is_read = [], [], threading.Event()

    def submit_reading(harness, number, sequence, chunk):
        load = _loaded(harness, number, sequence)
        read.append(chunk.number)
        if len(read) == 1:
            first.append(load)
        else:
            second_is_read.set()
        return _read(load)

    with _coordinator(tmp_path, monkeypatch, submit_reading, _TwoChunks) as harness:
        commit = harness.sink.commit

        def commit_later(loads, mark):
            if list(loads) == first:
                assert second_is_read.wait(240), "the second step waits for the commit of the first one"
                if is_lost:
                    harness.sink.lose(first.pop())
            return commit(loads, mark)

        monkeypatch.setattr(harness.sink, "commit", commit_later)
        harness.run_begins()
        _until(
            lambda: (
                (last := harness.store.last_committed(JOB))
                and last.snapshots
                and not last.snapshots["shop.orders"].open
            )
        )
        assert harness.store.unfinished() == () and harness.sink.prepared() == []
    assert read == ([0, 1, 0, 1] if is_lost else [0, 1])


def test_snapshot_status_shows_tables_before_the_first_row(tmp_path, monkeypatch):
    seen = []
    with _coordinator(tmp_path, monkeypatch, lambda harness, *reading: _read(_loaded(harness, *reading))) as harness:
        get = harness.receiver.get

        def watched(timeout_s):
            seen.append(harness.store.last_committed(JOB).snapshots)
            harness.runner.is_warming = False
            return get(timeout_s)

        harness.receiver.get = watched
        _begin_without_spark(harness)
        harness.run_begins()
        harness.until_visible(77)
        counts = harness.store.last_committed  # a snapshot step sets it, too
        _until(lambda: "shop.orders" in (found := counts(JOB).counts) and found["shop.orders"].last_committed_at)
    assert seen[0]["shop.orders"].state is SnapshotState.WAITING


def test_stream_does_not_wait_for_a_step_without_spark(tmp_path, monkeypatch):
    coordinator = []

    def submit_reading(harness, number, sequence):
        coordinator.append(set(harness.sink.rows()["ods.orders"]))
        return _read(_loaded(harness, number, sequence))

    with _coordinator(tmp_path, monkeypatch, submit_reading) as harness:
        _begin_without_spark(harness)
        harness.source.write(("shop.orders", 1))
        harness.run_begins()
        harness.until_visible(1)
        harness.source.write(("shop.orders", 2))
        harness.until_visible(2)
        assert not coordinator
        harness.runner.is_warming = False
        harness.until_visible(77)
    assert coordinator == [{1, 2}]


@pytest.mark.parametrize(
    ("is_at_end", "is_warming", "is_due"), [(True, True, True), (False, True, False), (False, False, True)]
)
def test_step_is_planned_while_spark_starts_only_at_the_end_of_the_stream(is_at_end, is_warming, is_due):
    receiver = SimpleNamespace(status=lambda: SimpleNamespace(is_at_end=is_at_end))
    context = SimpleNamespace(receiver=receiver, runner=SimpleNamespace(is_warming=is_warming))
    settings = SnapshotSettings(None, lambda server: position_at(0))
    steps = StepRunner(
        context, settings, SimpleNamespace(is_due=True), None, threading.Event(), on_poll=lambda: None, now=lambda: 1.0
    )
    assert steps.is_due is is_due


def test_stop_during_an_orphan_search_keeps_its_result():
    class EndsDuringStop(Future):
        calls = 0

        def done(self):
            self.calls += 1
            if self.calls == 2:
                self.set_result("deletes")
            return super().done()

    swept, submitted = EndsDuringStop(), []
    stopping = threading.Event()
    stopping.set()
    parts = SimpleNamespace(runner=SimpleNamespace(submit=lambda tasks: submitted.append(tasks) or [Future()]))
    steps = StepRunner(parts, SnapshotSettings(None, None), None, lambda work: swept, stopping, on_poll=lambda: None)
    assert steps._read(SimpleNamespace(read_request=None, delete_orphans=lambda: None)) is None
    assert submitted == [["deletes"]], "the result is not treated as empty"


@pytest.mark.parametrize(
    ("old", "where", "now"),
    [
        (BEFORE["shop.orders"], "id > 5", (None, False)),  # the initial load, then a request for some of its rows
        (TableSnapshot(where="id > 5"), "id < 3", (None, False)),
        (TableSnapshot(deletes_orphans=True), "id < 3", (None, True)),
        (TableSnapshot(where="id > 5"), None, (None, True)),
        (TableSnapshot(where="id > 5"), "id > 5", ("id > 5", False)),
        (TableSnapshot(SnapshotState.CONSISTENT), "id > 5", ("id > 5", False)),
    ],
)
def test_snapshot_request_keeps_what_is_due(old, where, now):
    store = SimpleNamespace(requests=lambda job: ())
    requests = LoadRequests(SimpleNamespace(store=store, run=SimpleNamespace(job=JOB)))
    requests.add(SnapshotRequest("shop.orders", where))
    found = requests.apply({"shop.orders": old})["shop.orders"]
    assert (found.state, found.where, found.deletes_orphans) == (SnapshotState.WAITING, *now)


def test_saved_request_is_deleted_after_its_checkpoint(tmp_path):
    store = SqliteStore(tmp_path)
    store.acquire(JOB, "shop.yaml")
    store.add_request(JOB, SnapshotRequest("shop.orders"))
    store.add_request(JOB, SnapshotRequest("shop.gone"))
    routes = SimpleNamespace(maps=lambda database, table: table != "gone")
    parts = SimpleNamespace(store=store, run=SimpleNamespace(job=JOB), routes=routes)

    def new_run(saved):
        coordinator = SnapshotCoordinator(parts, None, None)
        coordinator.tables = saved
        coordinator.tables = coordinator.requests.apply(coordinator.tables)
        return coordinator

    done = {"shop.orders": TableSnapshot(SnapshotState.CONSISTENT)}
    for _ in range(2):  # a crash before the checkpoint is saved: the next run repeats it
        coordinator = new_run(done)
        assert coordinator.tables == {"shop.orders": TableSnapshot(deletes_orphans=True, request=1)}
        coordinator.requests.note_committed(done)
        assert [one.table for one in store.requests(JOB)] == ["shop.orders"], "the other table is not mapped"
    # the sink lost the loads of a step, so its checkpoint does not count as read
    coordinator.tables = done
    coordinator.tables = coordinator.requests.apply(coordinator.tables)
    assert coordinator.tables["shop.orders"].request == 1
    # after a crash the request is not executed a second time if its checkpoint was saved
    finished = {"shop.orders": replace(coordinator.tables["shop.orders"], state=SnapshotState.CONSISTENT)}
    coordinator = new_run(finished)
    assert coordinator.tables == finished
    coordinator.requests.note_committed(finished)
    assert store.requests(JOB) == ()
    store.add_request(JOB, SnapshotRequest("shop.orders"))
    assert store.requests(JOB)[0].number > 2, "numbers are never used again"
    store.close()


class _Counting(SnapshotCoordinator):
    """Snapshot steps for large tables, where each count takes all the time that a step has for counts.

    ``counted``: the result of each count; None: it took too long.
    """

    def __init__(self, names, monkeypatch, counted=None):
        self.now, self.counts, self._counted = 0.0, [], counted
        self.server = SimpleNamespace(connection=None, ask=lambda *_: [], identity="one", endpoint="db.example")
        run, routes = SimpleNamespace(job=JOB), SimpleNamespace(maps=lambda *_: True)
        receiver = SimpleNamespace(note_loaded=lambda names: None)
        store = SimpleNamespace(requests=lambda job: ())
        parts = SimpleNamespace(run=run, routes=routes, receiver=receiver, store=store, sink=None)
        settings = SnapshotSettings(SimpleNamespace(), lambda server: position_at(0))
        super().__init__(parts, settings, None)
        self.tables = dict.fromkeys(names, TableSnapshot())
        plan = ChunkPlan((Chunk(0, None, ("9",), 1000),), 1000)
        fakes = {
            "Server": lambda endpoint: nullcontext(self.server),
            "is_visible": lambda *_: True,
            "configure_session": lambda _: None,
            "Chunker": lambda *_: SimpleNamespace(plan=lambda **_: plan),
            "key_order_of": lambda _, schema, *__: _Order(schema.name),
            "table_read": lambda context, channel, schema, order, *_: SimpleNamespace(order=order, expressions=None),
            "table_schemas": lambda _, names, *__: {name: schema_of(".".join(name)) for name in names},
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(f"cdc.snapshot.coordinator.{name}", fake)
        for name in ("Server", "configure_session"):
            monkeypatch.setattr(f"cdc.snapshot.row_count.{name}", fakes[name])
        monkeypatch.setattr("cdc.snapshot.row_count.threading", SimpleNamespace(Thread=InlineThread))
        monkeypatch.setattr("cdc.snapshot.row_count.count_rows", self._count_rows)
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for name in ("coordinator", "row_count"):
            monkeypatch.setattr(f"cdc.snapshot.{name}.time", clock)
        for name in ("key_order_of", "table_schemas"):
            monkeypatch.setattr(f"cdc.snapshot.table_shape.{name}", fakes[name])

    def _count_rows(self, server, order, snapshot, limit_s):
        self.counts.append(order)
        self.now += limit_s
        return self._counted

    def _prepare_table(self, server, name, position):
        if self.tables[name].state is SnapshotState.WAITING:
            self._plan_chunks(server, name, schema_of(name), _Order(name), position)
        channel = SimpleNamespace(mapping=SimpleNamespace(copied=lambda _: {}))
        return schema_of(name), channel, _Order(name), self.tables[name]


def test_counts_of_a_snapshot_step_share_one_limit(monkeypatch):
    coordinator = _Counting([f"shop.t{number}" for number in range(3)], monkeypatch)
    step = coordinator.plan(position_at(0), 0, 1)
    assert coordinator.counts == ["shop.t0"] and coordinator.now == 15.0, "ten seconds of the step, and five more"
    chunks = [ChunkOutcome(one.table, 0, ("9",), True, 1000, 10) for one in step.read_request.chunks]
    coordinator.complete(step, SnapshotResult((), tuple(chunks)), 1.0)
    assert {one.state for one in coordinator.tables.values()} == {SnapshotState.CATCHING_UP}


def test_small_tables_are_counted_first(monkeypatch):
    coordinator = _Counting(["shop.t"], monkeypatch, 7)
    tables = {name: (_Order(name), TableSnapshot(estimated_rows=rows)) for name, rows in (("a", 9), ("b", 1), ("c", 5))}
    monkeypatch.setattr("cdc.snapshot.row_count.time", SimpleNamespace(monotonic=lambda: 0.0))
    coordinator._counts.begin(None, tables, 1.0)
    assert coordinator.counts == ["b", "c", "a"] and coordinator._counts.ended_counts() == dict.fromkeys(tables, 7)


def test_step_that_another_server_may_have_answered_is_discarded(monkeypatch):
    """After a failover, the new server can lack transactions that the stream has delivered from the earlier one."""
    coordinator = _Counting(["shop.t"], monkeypatch)
    turn, before = coordinator.plan(position_at(0), 0, 1), coordinator.tables
    coordinator.server.identity = "two"
    with pytest.raises(SourceUnavailable, match="Another server"):
        coordinator.complete(turn, SnapshotResult((), (ChunkOutcome(0, 0, ("9",), True, 1000, 10),)), 1.0)
    assert coordinator.tables == before


@pytest.mark.parametrize(("counted", "rows", "is_complete"), [(1000, 1000, True), (1000, 1, False), (None, 1, False)])
def test_snapshot_that_omits_most_rows_pauses(monkeypatch, counted, rows, is_complete):
    """A reader that misses rows without an error: the count, or the estimate without a count, stops the job."""
    coordinator = _Counting(["shop.t"], monkeypatch, counted)

    def read_to_end():
        for _ in range(9):
            turn = coordinator.plan(position_at(0), 0, 1)
            chunks = [ChunkOutcome(0, 0, ("9",), True, rows, 10)] if turn and turn.read_request else []
            if turn is not None:
                coordinator.complete(turn, SnapshotResult((), tuple(chunks)), 1.0)
            if coordinator.tables["shop.t"].state is SnapshotState.CATCHING_UP:
                return

    with nullcontext() if is_complete else pytest.raises(SnapshotIncomplete, match=f"has read {rows} rows") as caught:
        read_to_end()
    assert (coordinator.tables["shop.t"].state is SnapshotState.CATCHING_UP) is is_complete
    assert is_complete or action_for(caught.value) is ErrorAction.PAUSE


def test_snapshot_whose_first_reading_omits_most_rows_reads_again(monkeypatch):
    """All rows may have been deleted and inserted again while they were read: one more reading decides."""
    coordinator, readings = _Counting(["shop.t"], monkeypatch, 1000), [1, 1000]
    while coordinator.tables["shop.t"].state is not SnapshotState.CATCHING_UP:
        turn = coordinator.plan(position_at(0), 0, 1)
        if turn is not None:
            chunks = [ChunkOutcome(0, 0, ("9",), True, readings.pop(0), 10)]
            coordinator.complete(turn, SnapshotResult((), tuple(chunks)), 1.0)
    assert readings == [] and coordinator.tables["shop.t"].rows == 1000
    assert coordinator.tables["shop.t"].is_second_reading


def test_table_becomes_consistent_while_further_steps_follow_each_other(monkeypatch):
    coordinator = _Counting(["shop.t"], monkeypatch)
    coordinator.tables = {**AFTER, **coordinator.tables}
    coordinator.note_committed(position_at(2))
    assert coordinator.tables["shop.orders"] == AFTER["shop.orders"]
    coordinator.note_committed(position_at(3))
    assert coordinator.tables["shop.orders"].state is SnapshotState.CONSISTENT
    assert coordinator.tables["shop.t"] == TableSnapshot()


def _all_rows(step):
    return SnapshotResult((), (ChunkOutcome(0, 0, ("9",), True, 1000, 10),)) if step else None


def test_rows_are_counted_while_they_are_read(monkeypatch):
    """The step begins before the count has ended, and its state has the count."""
    coordinator, is_counted = _Counting(["shop.t"], monkeypatch), threading.Event()
    monkeypatch.setattr("cdc.snapshot.row_count.threading", threading)

    def count_rows(*_):
        assert is_counted.wait(120)
        return 1000

    monkeypatch.setattr("cdc.snapshot.row_count.count_rows", count_rows)
    step = coordinator.plan(position_at(0), 0, 1)
    assert step is not None and coordinator.tables["shop.t"].counted_rows is None
    threading.Timer(0.1, is_counted.set).start()
    coordinator.complete(step, _all_rows(step), 1.0)
    assert coordinator.tables["shop.t"].counted_rows == 1000
    assert coordinator.tables["shop.t"].state is SnapshotState.CATCHING_UP


@pytest.mark.parametrize(("rows", "is_complete"), [(200, True), (1, False)])
def test_table_whose_count_fails_is_compared_with_the_estimate(monkeypatch, rows, is_complete):
    """For example if the server accepts no further connection of the user."""
    coordinator = _Counting(["shop.t"], monkeypatch)

    def count_rows(*_):
        raise SourceUnavailable("too many connections", hint="")

    monkeypatch.setattr("cdc.snapshot.row_count.count_rows", count_rows)
    step = coordinator.plan(position_at(0), 0, 1)
    coordinator.complete(step, SnapshotResult((), (ChunkOutcome(0, 0, ("9",), True, rows, 10),)), 1.0)
    assert coordinator.tables["shop.t"].counted_rows is None
    assert (coordinator.tables["shop.t"].state is SnapshotState.CATCHING_UP) is is_complete
    assert coordinator.tables["shop.t"].is_second_reading is not is_complete


def test_table_is_counted_in_its_first_step_only(monkeypatch):
    """Later, it can have rows in the chunks that were read before."""
    coordinator = _Counting(["shop.t"], monkeypatch, 9000)
    chunk = Chunk(1, ("5",), ("9",), 500)
    coordinator.tables = {
        "shop.t": TableSnapshot(SnapshotState.READING, open=(chunk,), chunks=2, done=1, rows=2000, last_key=("9",))
    }
    step = coordinator.plan(position_at(0), 0, 1)
    coordinator.complete(step, SnapshotResult((), (ChunkOutcome(0, 1, ("9",), True, 1000, 10),)), 1.0)
    assert coordinator.tables["shop.t"].state is SnapshotState.CATCHING_UP and coordinator.counts == []


def test_step_waits_five_seconds_for_its_counts(monkeypatch):
    """The count of a large table may take as long as the step reads rows, and five seconds more."""
    coordinator, is_over, waited = _Counting(["shop.t"], monkeypatch), threading.Event(), []
    monkeypatch.setattr("cdc.snapshot.row_count.threading", threading)
    monkeypatch.setattr("cdc.snapshot.row_count.count_rows", lambda *_: is_over.wait(120) and 9000)
    monkeypatch.setattr("cdc.snapshot.row_count.wait", lambda futures, timeout_s: waited.append(timeout_s))
    step = coordinator.plan(position_at(0), 0, 1)
    coordinator.complete(step, _all_rows(step), 1.0)
    is_over.set()
    assert waited == [5.0]
    assert coordinator.tables["shop.t"].state is SnapshotState.CATCHING_UP, "compared with the estimate"


def test_rows_inserted_into_an_empty_table_are_not_missing(monkeypatch):
    coordinator = _Counting(["shop.t"], monkeypatch)
    empty = TableSnapshot(SnapshotState.READING)  # planned without a chunk; rows are inserted later
    coordinator.tables = {"shop.t": empty}
    assert coordinator.plan(position_at(0), 0, 1) is None
    assert coordinator.tables["shop.t"].state is SnapshotState.CATCHING_UP and coordinator.counts == []
