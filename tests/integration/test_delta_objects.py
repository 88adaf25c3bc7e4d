"""Delta tables in an object store: any name, lost answers, refused and repeated requests, and runs that were frozen."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import polars
import psutil
import pyarrow as pa
import pytest

from cdc.errors import ConfigError, SinkError, SinkOwnershipError, SinkUnavailable, TargetMismatch
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import AlterAction, AlterStep, LoadState, SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta import object_path, sink_checkpoint
from channels.sinks.delta.files import STAGING
from channels.sinks.delta.object_path import ObjectPath
from channels.sinks.delta.sink import DeltaSink, MergeMode
from channels.sinks.delta.table_paths import table_folder, target_of
from tests.support.freezing import freeze
from tests.support.hostile_names import HOSTILE
from tests.support.object_stores import (
    SECRET,
    Bucket,
    DrawnFaults,
    Fault,
    FaultProxy,
    Request,
    S3Server,
    fault_proxy,
    retried,
)
from tests.support.receiving import until
from tests.support.seeds import seed_of

COLUMNS = (TargetColumn("id", pa.int64(), False), TargetColumn("n", pa.int32(), True))
ORDERS = TargetTable("ods.orders", COLUMNS, ("id",))
ENTRY = "/_delta_log/"
MODES: tuple[MergeMode, ...] = ("rewrite", "deletion_vectors")


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    return s3_server.bucket()


@pytest.fixture
def proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr(object_path, "_PUT_DELAY_S", 0.001)
    with fault_proxy(bucket) as found:
        yield found


def open_sink(bucket: Bucket, merge: MergeMode = "rewrite", **options: float) -> DeltaSink:
    return DeltaSink(f"{bucket.url}/lake", merge=merge, storage=bucket.options, threads=2, **options)  # type: ignore[arg-type]


def mark(checkpoint: int, fence: int = 1, incarnation: str = "0badcafe") -> SinkCheckpoint:
    first, last = BinlogPosition("b.000001", 4), BinlogPosition("b.000001", 100 + checkpoint)
    return SinkCheckpoint("shop", incarnation, fence, checkpoint, first, last, checkpoint * 1000 + fence)


def stage(sink: DeltaSink, checkpoint: int, rows: dict[int, int | None], fence: int = 1,
          table: TargetTable = ORDERS, incarnation: str = "0badcafe") -> PreparedLoad:  # fmt: skip
    """Prepare ``rows``: key to value; None deletes the row."""
    batch = {
        "id": pa.array(list(rows), pa.int64()),
        "n": pa.array(list(rows.values()), pa.int32()),
        DELETED: pa.array([value is None for value in rows.values()]),
        SEQUENCE: pa.array(range(len(rows)), pa.int64()),
    }
    name = LoadName("shop", incarnation, fence, checkpoint, table.name, 0)
    load = sink.part_writer(table)(name, iter([pa.RecordBatch.from_pydict(batch)]))
    assert load is not None
    return load


def rows_of(bucket: Bucket, table: str = "ods.orders") -> dict[int, int]:
    found = bucket.read(folder_of(table))
    rows = dict(zip(found.column("id").to_pylist(), found.column("n").to_pylist(), strict=True))
    assert len(rows) == found.num_rows, "the table has a key twice"
    return rows


def folder_of(table: str) -> str:
    return table_folder(Bucket("", "any").path("lake"), table).key


def committed(bucket: Bucket, table: str = "ods.orders") -> Counter[tuple[str, int]]:
    """Return how often the log has each application transaction of a checkpoint."""
    found: Counter[tuple[str, int]] = Counter()
    for entry in (bucket.path(folder_of(table)) / "_delta_log").glob("*.json"):
        for line in entry.read_bytes().splitlines():
            transaction = json.loads(line).get("txn")
            if transaction is not None and transaction["appId"].startswith("cdc/"):
                found[transaction["appId"], transaction["version"]] += 1
    return found


def test_delta_folders_in_a_store_differ_and_name_their_table() -> None:
    root = Bucket("", "any").path("lake")
    folders = [table_folder(root, f"ods.{name}") for name in HOSTILE]
    assert len({folder.key for folder in folders}) == len(HOSTILE)
    assert [target_of(folder) for folder in folders] == [f"ods.{name}" for name in HOSTILE]
    assert all(folder.parent.parent == root and folder.key.isascii() for folder in folders)


def test_delta_objects_of_any_name_stay_below_their_prefix(bucket: Bucket) -> None:
    canary = {key: bucket.path(key) for key in ("lake2/a.parquet", "evil/a.parquet", "a.parquet")}
    for path in canary.values():
        path.put(b"mine")
    sink = open_sink(bucket)
    sink.identity(create=True)
    chosen = HOSTILE[seed_of() % 3 :: 3]
    names = [f"ods.{name}" for name in chosen] + [f"{name}.t" for name in chosen[::2] if "." not in name]
    assert len({folder_of(name) for name in names}) == len(names)
    loads = []
    for number, name in enumerate(names):
        target = TargetTable(name, COLUMNS, ("id",))
        sink.ensure_table(target)
        loads.append(stage(sink, 1, {1: number}, table=target))
    sink.commit(loads, mark(1))
    for number, name in enumerate(names):
        assert rows_of(bucket, name) == {1: number}, name
    assert {target_of(folder) for folder in _table_folders(bucket)} == set(names)
    assert sink.target_states("shop", "0badcafe", names).keys() == set(names)
    assert sink.last_checkpoint("shop") == mark(1)
    sink.close()
    assert {key: path.read_bytes() for key, path in canary.items()} == dict.fromkeys(canary, b"mine")
    assert {path.key.partition("/")[0] for path in bucket.path("").glob("*")} == {"lake", "lake2", "evil", "a.parquet"}


def _table_folders(bucket: Bucket) -> Iterator[ObjectPath]:
    for database in bucket.path("lake").glob("*"):
        if database.name != STAGING:
            yield from database.glob("*")


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("fault", "merge"),
    [
        (Fault.LOST_ANSWER, "deletion_vectors"),
        (Fault.CONFLICT, "deletion_vectors"),
        (Fault.REPEATED, "deletion_vectors"),
        (Fault.UNAVAILABLE, "rewrite"),
    ],
)
def test_delta_object_commit_survives_a_fault_of_each_write(
    fault: Fault, merge: MergeMode, bucket: Bucket, proxy: FaultProxy
) -> None:
    """A fault of the n-th write of a run, for every n, until a run ends without one."""
    expected: dict[int, int] = {}
    for number in range(200):
        writes = itertools.count()
        hits: list[Request] = []

        def decide(request: Request, number: int = number, writes: Any = writes, hits: Any = hits) -> Fault | None:
            if request.method != "PUT" or (fault is Fault.CONFLICT and not request.conditional):
                return None
            if next(writes) != number:
                return None
            hits.append(request)
            return fault

        proxy.decide = decide
        change: dict[int, int | None] = {number: number, number // 2: -number, number - 3: None}
        _run_once(proxy.through(bucket), merge, number + 1, change)
        expected |= {key: value for key, value in change.items() if value is not None}
        expected.pop(number - 3, None)
        assert rows_of(bucket) == expected
        if not hits:
            break
    else:
        raise AssertionError("a run always has a fault")
    assert number >= 5, "marker, claim, table, load and commit had a fault each"
    assert set(committed(bucket).values()) == {1}, "no checkpoint is there twice"
    versions = [path.name for path in (bucket.path(folder_of("ods.orders")) / "_delta_log").glob("*.json")]
    assert len(versions) == bucket.open(folder_of("ods.orders")).version() + 1


def _run_once(bucket: Bucket, merge: MergeMode, checkpoint: int, change: dict[int, int | None]) -> None:
    """Start a run, prepare one load and commit it, each step as often as a job does."""
    sink, loads = open_sink(bucket, merge), list[PreparedLoad]()
    retried(lambda: sink.identity(create=True))
    retried(lambda: sink.acquire_ownership(mark(checkpoint - 1, checkpoint), ["ods.orders"]))
    retried(lambda: sink.ensure_table(ORDERS))
    retried(lambda: loads.append(stage(sink, checkpoint, change, checkpoint)))
    retried(lambda: sink.commit(loads, mark(checkpoint, checkpoint)))
    assert sink.state(loads[0]) is LoadState.COMMITTED
    sink.close()


@pytest.mark.parametrize("same_incarnation", [True, False])
@pytest.mark.parametrize("merge", MODES)
def test_delta_object_frozen_run_never_commits(
    merge: MergeMode, same_incarnation: bool, bucket: Bucket, proxy: FaultProxy
) -> None:
    """The old run has passed all checks and is about to put its entry when another run takes the job."""
    frozen, go_on = threading.Event(), threading.Event()
    old = open_sink(proxy.through(bucket), merge)
    old.identity(create=True)
    old.acquire_ownership(mark(0), ["ods.orders"])
    old.ensure_table(ORDERS)
    old.commit([stage(old, 1, {1: 1, 2: 2})], mark(1))
    load = stage(old, 2, {1: -1})

    def freeze(request: Request) -> None:
        if request.method == "PUT" and ENTRY in request.path and request.conditional:
            frozen.set()
            assert go_on.wait(120)

    proxy.decide = freeze
    errors: list[BaseException] = []

    def commit() -> None:
        try:
            old.commit([load], mark(2))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    assert frozen.wait(120)
    incarnation = "0badcafe" if same_incarnation else "deadbeef"
    new = open_sink(bucket, merge)
    new.identity(create=True)
    new.acquire_ownership(mark(1, 2, incarnation), ["ods.orders"])
    go_on.set()
    thread.join(120)
    assert [type(error) for error in errors] == [SinkOwnershipError]
    assert rows_of(bucket) == {1: 1, 2: 2}, "the frozen run has written nothing"
    new.commit([stage(new, 2, {2: 20}, 2, incarnation=incarnation)], mark(2, 2, incarnation))
    proxy.decide = lambda request: None
    for _ in range(2):
        with pytest.raises(SinkOwnershipError):
            old.commit([load], mark(2))
    with pytest.raises(SinkOwnershipError):
        old.acquire_ownership(mark(1), ["ods.orders"])
    assert rows_of(bucket) == {1: 1, 2: 20}
    old.close()
    new.commit([stage(new, 3, {3: 3}, 2, incarnation=incarnation)], mark(3, 2, incarnation))
    new.close()
    assert rows_of(bucket) == {1: 1, 2: 20, 3: 3}


def _commit_and_stop(bucket: Bucket, merge: MergeMode) -> None:
    """Commit checkpoint 1, then stop this process at the put of the entry of checkpoint 2. Exit 7: it was refused."""
    sink, create = open_sink(bucket, merge), ObjectPath.create
    sink.acquire_ownership(mark(0), ["ods.orders"])
    sink.ensure_table(ORDERS)
    sink.commit([stage(sink, 1, {1: 1, 2: 2})], mark(1))

    def stop(path: ObjectPath, content: bytes) -> None:
        if ENTRY in str(path):
            freeze()
        create(path, content)

    ObjectPath.create = stop  # type: ignore[method-assign]
    try:
        sink.commit([stage(sink, 2, {1: -1})], mark(2))
    except SinkOwnershipError:
        sys.exit(7)


def test_delta_object_stopped_process_writes_nothing_after_adoption(bucket: Bucket) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_commit_and_stop, args=(bucket, "deletion_vectors"))
    process.start()
    assert process.pid is not None
    try:
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, 120, "a stopped process")
        new = open_sink(bucket, "deletion_vectors")
        new.acquire_ownership(mark(1, 2, "deadbeef"), ["ods.orders"])
        before = {str(path) for path in (bucket.path(folder_of("ods.orders")) / "_delta_log").glob("*")}
        os.kill(process.pid, signal.SIGCONT)
        process.join(120)
        assert process.exitcode == 7
        assert {str(path) for path in (bucket.path(folder_of("ods.orders")) / "_delta_log").glob("*")} == before
        new.commit([stage(new, 2, {2: 20}, 2, incarnation="deadbeef")], mark(2, 2, "deadbeef"))
        new.close()
    finally:
        process.kill()
        process.join()
    assert rows_of(bucket) == {1: 1, 2: 20}


def test_delta_object_logs_of_tables_of_other_jobs_are_not_read(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry is a request, and a log can have a thousand."""
    sink, read = open_sink(bucket), []
    sink.ensure_table(ORDERS)
    sink.commit([stage(sink, 1, {1: 1})], mark(1))
    history = sink_checkpoint.history
    monkeypatch.setattr(sink_checkpoint, "history", lambda *given: read.append(given) or history(*given))
    assert open_sink(bucket).last_checkpoint("crm") is None and not read
    assert open_sink(bucket).last_checkpoint("shop") == mark(1) and read


def test_delta_object_folders_of_other_programs_are_not_read(bucket: Bucket) -> None:
    """``=de`` looks like an escaped byte, which is no UTF-8."""
    sink = open_sink(bucket)
    sink.ensure_table(ORDERS)
    sink.commit([stage(sink, 1, {1: 1})], mark(1))
    (bucket.path("lake/country=de/orders/_delta_log") / "00000000000000000000.json").create(b"{}")
    assert open_sink(bucket).last_checkpoint("shop") == mark(1)


def test_delta_object_entry_of_another_writer_is_not_replaced(bucket: Bucket, proxy: FaultProxy) -> None:
    sink = open_sink(proxy.through(bucket))
    sink.ensure_table(ORDERS)
    sink.commit([stage(sink, 1, {1: 1})], mark(1))
    done = []

    def optimize(request: Request) -> None:
        if request.method == "PUT" and ENTRY in request.path and not done:
            done.append(bucket.open(folder_of("ods.orders")).delete("id = 1"))

    proxy.decide = optimize
    sink.commit([stage(sink, 2, {2: 2})], mark(2))
    assert done and rows_of(bucket) == {2: 2}
    assert committed(bucket) == {("cdc/shop/0badcafe", 1): 1, ("cdc/shop/0badcafe", 2): 1}
    sink.close()


def test_delta_object_commit_with_slow_answers_succeeds(bucket: Bucket, proxy: FaultProxy) -> None:
    proxy.decide = lambda request: Fault.SLOW
    _run_once(proxy.through(bucket), "deletion_vectors", 1, {1: 1})
    assert rows_of(bucket) == {1: 1}


def test_delta_store_without_conditional_writes_is_refused(bucket: Bucket, proxy: FaultProxy) -> None:
    proxy.decide = lambda request: Fault.UNCONDITIONAL
    sink = open_sink(proxy.through(bucket))
    (finding,) = sink.check([ORDERS])
    assert finding.fatal and "does not support conditional writes" in finding.problem
    with pytest.raises(TargetMismatch, match="conditional writes"):
        sink.acquire_ownership(mark(0), ["ods.orders"])
    sink.close()


def test_delta_store_that_refuses_the_key_is_a_finding_without_secrets(bucket: Bucket, proxy: FaultProxy) -> None:
    proxy.decide = lambda request: Fault.DENIED
    sink = open_sink(proxy.through(bucket))
    (finding,) = sink.check([ORDERS])
    assert finding.fatal and "cannot be written" in finding.problem
    with pytest.raises(SinkUnavailable, match="refuses the access") as refused:
        sink.acquire_ownership(mark(0), ["ods.orders"])
    texts = [finding.problem, finding.hint, str(refused.value), refused.value.hint, repr(refused.value.context)]
    assert not any(SECRET in text for text in texts)
    sink.close()


def test_delta_store_secrets_are_in_no_text_and_reach_executors(bucket: Bucket) -> None:
    sink = open_sink(bucket)
    sink.ensure_table(ORDERS)
    writer = sink.part_writer(ORDERS)
    assert SECRET not in repr(writer) + str(writer) + repr(sink.root) + str(sink.root)
    assert pickle.loads(pickle.dumps(writer)) == writer
    with pytest.raises(SinkError) as refused:
        DeltaSink("s3://no-such-bucket-here/lake", storage=bucket.options).ensure_table(ORDERS)
    assert SECRET not in str(refused.value) + repr(refused.value.context) + repr(refused.value.__cause__)
    sink.close()


def test_delta_vacuum_deletes_only_unused_objects(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.sinks.delta.maintenance._EVERY_S", 0.0)
    monkeypatch.setattr("channels.sinks.delta.maintenance._VACUUM_EVERY_S", 0.0)
    sink = open_sink(bucket, "deletion_vectors", retention_s=0.001)
    sink.ensure_table(ORDERS)
    folder = bucket.path(folder_of("ods.orders"))
    (folder / "part-of-another-writer.parquet").put(b"keep")
    expected: dict[int, int] = {}
    for checkpoint in range(1, 14):
        change: dict[int, int | None] = dict.fromkeys(range(checkpoint, 40, checkpoint), checkpoint)
        sink.commit([stage(sink, checkpoint, change)], mark(checkpoint))
        expected |= dict.fromkeys(change, checkpoint)
        sink.maintain([ORDERS])
        assert rows_of(bucket) == expected
    sink.maintain([ORDERS])
    sink.close()
    live = set(bucket.open(folder_of("ods.orders")).file_uris())
    there = [path.name for path in folder.glob("part-*.parquet")]
    assert "part-of-another-writer.parquet" in there and len(there) < 13 and len(there) >= len(live) + 1
    assert not list((bucket.path("lake") / STAGING).glob("cdc-*"))
    table = bucket.path(folder_of("ods.orders")).as_uri()
    rows = polars.scan_delta(table, storage_options=bucket.options).collect()
    assert dict(zip(rows["id"], rows["n"], strict=True)) == expected, "a second reader of Delta"


@pytest.mark.parametrize("path", ["s3://lake/a//b", "s3://lake/../b", "s3://lake/a#b", "s3://lake/a%41"])
def test_delta_root_that_the_library_does_not_support_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"sink\.path"):
        DeltaSink(path)


@pytest.mark.parametrize("merge", MODES)
def test_delta_object_columns_change_in_one_commit(merge: MergeMode, bucket: Bucket) -> None:
    sink = open_sink(bucket, merge)
    sink.ensure_table(ORDERS)
    sink.commit([stage(sink, 1, {1: 1, 2: 2})], mark(1))
    sink.commit([stage(sink, 2, {2: 20})], mark(2))
    text, wide = TargetColumn("text", pa.string(), True), TargetColumn("n", pa.int64(), True)
    steps = [
        AlterStep(AlterAction.ADD, None, text, pa.scalar("filled")),
        AlterStep(AlterAction.WIDEN, COLUMNS[1], wide),
    ]
    assert not [finding for finding in sink.check_steps(ORDERS, steps) if finding.fatal]
    before = bucket.open(folder_of("ods.orders")).version()
    for _ in range(2):
        sink.alter(ORDERS, steps, mark(3))
    found = bucket.open(folder_of("ods.orders"))
    assert found.version() == before + 1, "a repeat changes nothing"
    rows = sorted(bucket.read(folder_of("ods.orders")).to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": 1, "n": 1, "text": "filled"}, {"id": 2, "n": 20, "text": "filled"}]
    sink.close()


def test_drawn_faults_of_a_store_are_of_each_kind_and_end() -> None:
    write, read = Request("PUT", "/lake/a.json", True), Request("GET", "/lake/a", False)
    faults = DrawnFaults(1, 0.1, 20)
    assert [faults(write) for _ in range(500)].count(None) == 480
    assert faults.drawn == dict.fromkeys(set(Fault) - {Fault.DENIED, Fault.UNCONDITIONAL}, 4)
    faults = DrawnFaults(1, 1.0)
    assert {faults(read) for _ in range(100)} == {Fault.LOST_ANSWER, Fault.UNAVAILABLE, Fault.SLOW, None}
