"""Changes of Delta tables: one commit, every type, readers during a change, crashes, other writers, memory."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction

from cdc.errors import SinkOwnershipError, SinkUnavailable, TargetMismatch
from cdc.model.batch import LoadName
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import AlterAction, AlterStep, SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta import alter
from channels.sinks.delta.alter import DeltaAlterer
from channels.sinks.delta.merge import write_files
from channels.sinks.delta.ownership import FolderOwnership
from channels.sinks.delta.sink import DeltaSink
from channels.sinks.delta.table import differences

ID = TargetColumn("id", pa.int64(), False, comment="the key")
TEXT = TargetColumn("text", pa.string(), True, comment="a text")
COUNT = TargetColumn("count", pa.int32(), False)
TABLE = TargetTable("ods.orders", (ID, TEXT, COUNT), key=("id",), comment="all orders")
ROWS = 30


def mark(checkpoint: int, incarnation: str = "0badcafe") -> SinkCheckpoint:
    position = BinlogPosition("mysql-bin.000001", 100 + checkpoint, "server", "")
    return SinkCheckpoint("shop", incarnation, 1, checkpoint, position, position, checkpoint * 1000)


def load(sink: DeltaSink, table: TargetTable, columns: dict[str, Any], checkpoint: int) -> None:
    count = len(columns["id"])
    arrays = {column.name: pa.array(columns[column.name], column.arrow) for column in table.columns}
    arrays[DELETED] = pa.array([False] * count)
    arrays[SEQUENCE] = pa.array(range(count), pa.int64())
    name = LoadName("shop", "0badcafe", 1, checkpoint, table.name, 0)
    found = sink.part_writer(table)(name, iter([pa.RecordBatch.from_pydict(arrays)]))
    assert found is not None
    sink.commit([found], mark(checkpoint))


def fill_orders(sink: DeltaSink) -> None:
    """Create the table with three data files, as checkpoints 1 to 3."""
    sink.acquire_ownership(mark(0), [TABLE.name])
    sink.ensure_table(TABLE)
    for checkpoint in (1, 2, 3):
        ids = list(range(10 * checkpoint, 10 * checkpoint + 10))
        columns = {"id": ids, "text": [None if n % 3 else f"text {n}" for n in ids], "count": [n * 100 for n in ids]}
        load(sink, TABLE, columns, checkpoint)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[DeltaSink]:
    with closing(DeltaSink(tmp_path)) as found:
        fill_orders(found)
        yield found


def opened(root: Path) -> DeltaTable:
    return DeltaTable(str(root / "ods" / "orders"))


def rows(root: Path) -> pa.Table:
    """Return all rows as QueryBuilder reads them, after a comparison with pyarrow's reader."""
    found = opened(root)
    queried = pa.table(QueryBuilder().register("t", found).execute("select * from t order by id").read_all())
    assert found.to_pyarrow_table().sort_by("id").to_pylist() == queried.to_pylist()
    return queried


def entry(root: Path) -> list[dict[str, Any]]:
    log = root / "ods" / "orders" / "_delta_log" / f"{opened(root).version():020}.json"
    return [json.loads(line) for line in log.read_text().splitlines()]


def add(name: str, kind: pa.DataType, fill: Any = None) -> AlterStep:
    value = None if fill is None else pa.scalar(fill, kind)
    return AlterStep(AlterAction.ADD, None, TargetColumn(name, kind, True), value)


def change(action: AlterAction, before: TargetColumn, **after: Any) -> AlterStep:
    return AlterStep(action, before, replace(before, **after))


DROP_TEXT = AlterStep(AlterAction.DROP, TEXT, None)
NULLABLE = change(AlterAction.MAKE_NULLABLE, COUNT, nullable=True)
WIDER = change(AlterAction.WIDEN, COUNT, arrow=pa.int64())

FILLS = [
    (pa.int8(), -128),
    (pa.int16(), 2155),
    (pa.int32(), 8388607),
    (pa.int64(), -(2**63)),
    (pa.decimal128(20, 0), decimal.Decimal(2**64 - 1)),
    (pa.decimal128(38, 30), decimal.Decimal("-1.000000000000000000000000000001")),
    (pa.float32(), 1.5),
    (pa.float64(), -0.1),
    (pa.bool_(), True),
    (pa.date32(), datetime.date(1, 1, 1)),
    (pa.timestamp("us"), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)),
    (pa.timestamp("us", "UTC"), datetime.datetime(1970, 1, 1, 0, 0, 1, 5, datetime.UTC)),
    (pa.string(), "-838:59:59.000000"),
    (pa.string(), "\U0001f600 '`\"\\"),
    (pa.binary(), b"\x00\xff"),
    (pa.list_(pa.float32()), [1.0, -2.5]),
]


@pytest.mark.parametrize(("kind", "fill"), FILLS, ids=[str(kind) for kind, _ in FILLS])
def test_add_with_fill_gives_the_value_in_one_commit(
    sink: DeltaSink, tmp_path: Path, kind: pa.DataType, fill: Any
) -> None:
    old = rows(tmp_path)
    sink.alter(TABLE, [add("filled", kind, fill)], mark(4))
    found = rows(tmp_path)
    assert found.column("filled").to_pylist() == [fill] * ROWS
    assert found.drop_columns("filled").to_pylist() == old.to_pylist()
    after = replace(TABLE, columns=(*TABLE.columns, TargetColumn("filled", kind, True)))
    assert not list(differences(opened(tmp_path), after))
    actions = entry(tmp_path)
    committed = [(one["txn"]["appId"], one["txn"]["version"]) for one in actions if "txn" in one]
    assert ("cdc/shop/0badcafe", 4) in committed
    assert sum("metaData" in action for action in actions) == 1 and sum("remove" in action for action in actions) == 3
    load(sink, after, {"id": [99], "text": ["x"], "count": [1], "filled": [None]}, 5)
    assert rows(tmp_path).num_rows == ROWS + 1


WIDENINGS = [
    (pa.int8(), pa.int16(), [-128, 127, None]),
    (pa.int16(), pa.int32(), [-32768, 32767, None]),
    (pa.int32(), pa.int64(), [-(2**31), 2**31 - 1, None]),
    (pa.int8(), pa.int64(), [-128, 127, None]),
    (pa.int64(), pa.decimal128(20, 0), [-(2**63), 2**63 - 1, None]),
    (pa.decimal128(5, 2), pa.decimal128(12, 4), [decimal.Decimal("-999.99"), decimal.Decimal("0.01"), None]),
    (pa.decimal128(18, 0), pa.decimal128(38, 0), [decimal.Decimal(10**18 - 1), decimal.Decimal(0), None]),
    (pa.float32(), pa.float64(), [0.5, -1.25, None]),
]


@pytest.mark.parametrize(("old", "new", "values"), WIDENINGS, ids=[f"{old}-{new}" for old, new, _ in WIDENINGS])
def test_widen_keeps_each_value(tmp_path: Path, old: pa.DataType, new: pa.DataType, values: list[Any]) -> None:
    column = TargetColumn("value", old, True)
    table = TargetTable("ods.orders", (ID, column), key=("id",))
    with closing(DeltaSink(tmp_path)) as sink:
        sink.acquire_ownership(mark(0), [table.name])
        sink.ensure_table(table)
        load(sink, table, {"id": [1, 2, 3], "value": values}, 1)
        sink.alter(table, [change(AlterAction.WIDEN, column, arrow=new)], mark(2))
        assert rows(tmp_path).column("value").to_pylist() == values
        assert not list(differences(opened(tmp_path), replace(table, columns=(ID, replace(column, arrow=new)))))


def test_widen_of_a_key_keeps_merging(tmp_path: Path) -> None:
    key = TargetColumn("id", pa.int32(), False)
    table = TargetTable("ods.orders", (key, TEXT), key=("id",))
    with closing(DeltaSink(tmp_path)) as sink:
        sink.acquire_ownership(mark(0), [table.name])
        sink.ensure_table(table)
        load(sink, table, {"id": [1, 2], "text": ["a", "b"]}, 1)
        sink.alter(table, [change(AlterAction.WIDEN, key, arrow=pa.int64())], mark(2))
        after = replace(table, columns=(ID, TEXT))
        load(sink, after, {"id": [2, 2**40], "text": ["B", "c"]}, 3)
        assert rows(tmp_path).to_pylist() == [
            {"id": 1, "text": "a"},
            {"id": 2, "text": "B"},
            {"id": 2**40, "text": "c"},
        ]


def test_widen_of_an_unsigned_key_keeps_merging_and_listing_keys(tmp_path: Path) -> None:
    """INT UNSIGNED is int64, BIGINT UNSIGNED is DECIMAL(20, 0)."""
    key, wide = replace(ID, comment=""), replace(ID, arrow=pa.decimal128(20, 0), comment="")
    table, after = (TargetTable("ods.orders", (one, TEXT), key=("id",)) for one in (key, wide))
    with closing(DeltaSink(tmp_path)) as sink:
        sink.acquire_ownership(mark(0), [table.name])
        sink.ensure_table(table)
        load(sink, table, {"id": [1, 2], "text": ["a", "b"]}, 1)
        load(sink, table, {"id": [10, 20], "text": ["c", "d"]}, 2)
        sink.alter(table, [AlterStep(AlterAction.WIDEN, key, wide)], mark(3))
        assert not [one for one in sink.describe(after) if one.fatal]
        load(sink, after, {"id": [2, 20, 2**64 - 1], "text": ["B", "D", "e"]}, 4)
        found = {int(row["id"]): row["text"] for row in rows(tmp_path).to_pylist()}
        assert found == {1: "a", 2: "B", 10: "c", 20: "D", 2**64 - 1: "e"}
        assert [int(one) for one in sink.keys(after, None, 9).column(0).to_pylist()] == sorted(found)


NARROWED = [
    (pa.int64(), pa.int16(), [-32768, 32767, None]),
    (pa.decimal128(12, 4), pa.decimal128(6, 2), [decimal.Decimal("-9999.99"), decimal.Decimal("0.01"), None]),
    (pa.decimal128(20, 0), pa.int64(), [-(2**63), 2**63 - 1, None]),
    (pa.float64(), pa.float32(), [0.5, 3.4028234663852886e38, None]),
]


@pytest.mark.parametrize(("wide", "narrow", "values"), NARROWED, ids=[f"{one}-{two}" for one, two, _ in NARROWED])
def test_wider_column_takes_rows_of_a_narrower_source(
    tmp_path: Path, wide: pa.DataType, narrow: pa.DataType, values: list[Any]
) -> None:
    column = TargetColumn("value", wide, True)
    table = TargetTable("ods.orders", (ID, column), key=("id",))
    narrower = replace(table, columns=(ID, replace(column, arrow=narrow)))
    with closing(DeltaSink(tmp_path)) as sink:
        sink.acquire_ownership(mark(0), [table.name])
        sink.ensure_table(table)
        load(sink, table, {"id": [1], "value": [None]}, 1)
        load(sink, narrower, {"id": [2, 3, 4], "value": values}, 2)  # new keys: the staged file becomes a data file
        load(sink, narrower, {"id": [1, 3], "value": values[:2]}, 3)  # existing keys: files are written again
    with closing(DeltaSink(tmp_path)) as sink:  # after a restart
        sink.acquire_ownership(mark(3), [table.name])
        sink.ensure_table(narrower)
        load(sink, narrower, {"id": [5], "value": values[:1]}, 4)
        renamed = change(AlterAction.RENAME, narrower.columns[1], name="price")
        sink.alter(narrower, [renamed, change(AlterAction.WIDEN, renamed.after, arrow=wide)], mark(5))
    found = {row["id"]: row["price"] for row in rows(tmp_path).to_pylist()}
    assert found == {1: values[0], 2: values[0], 3: values[1], 4: None, 5: values[0]}
    assert rows(tmp_path).schema.field("price").type == wide
    kinds = {pq.read_schema(path).field("price").type for path in opened(tmp_path).file_uris()}
    assert kinds == {wide}, "each data file has the type of the table"


def test_column_that_is_not_wider_or_is_the_key_does_not_match(tmp_path: Path) -> None:
    with closing(DeltaSink(tmp_path)) as sink:
        sink.acquire_ownership(mark(0), [TABLE.name])
        sink.ensure_table(TABLE)
        for name, kind in (("count", pa.int64()), ("count", pa.float64()), ("text", pa.int32()), ("id", pa.int32())):
            columns = tuple(replace(one, arrow=kind) if one.name == name else one for one in TABLE.columns)
            (finding,) = (one for one in sink.describe(replace(TABLE, columns=columns)) if one.fatal)
            assert f"Column {name} is" in finding.problem


def test_alter_of_metadata_alone_writes_no_file(sink: DeltaSink, tmp_path: Path) -> None:
    version, files = opened(tmp_path).version(), opened(tmp_path).file_uris()
    sink.alter(TABLE, [add("a", pa.string()), NULLABLE, add("b", pa.int32())], mark(4))
    assert opened(tmp_path).version() == version + 1 and opened(tmp_path).file_uris() == files
    assert [field.nullable for field in opened(tmp_path).schema().fields] == [False, True, True, True, True]
    assert sink.last_checkpoint("shop") == mark(4)
    assert rows(tmp_path).column("a").null_count == ROWS


def test_add_of_datetime_keeps_not_null_readable(sink: DeltaSink, tmp_path: Path) -> None:
    sink.alter(TABLE, [add("at", pa.timestamp("us"))], mark(4))
    assert set(opened(tmp_path).protocol().writer_features or ()) >= {"timestampNtz", "invariants"}


def test_alter_with_all_actions_is_one_commit(sink: DeltaSink, tmp_path: Path) -> None:
    old, before = rows(tmp_path), opened(tmp_path)
    steps = [
        change(AlterAction.RENAME, TEXT, name="label"),
        add("text", pa.int32(), 7),
        WIDER,
        add("extra", pa.string()),
        AlterStep(AlterAction.DROP, TargetColumn("extra", pa.string(), True), None),
    ]
    sink.alter(TABLE, steps, mark(4))
    found, now = opened(tmp_path), rows(tmp_path)
    assert found.version() == before.version() + 1
    assert now.column_names == ["id", "label", "count", "text"]
    assert now.column("label").to_pylist() == old.column("text").to_pylist()
    assert now.column("count").to_pylist() == old.column("count").to_pylist()
    assert now.column("text").to_pylist() == [7] * ROWS
    assert found.metadata().configuration == before.metadata().configuration
    assert (found.metadata().name, found.metadata().description) == ("ods.orders", "all orders")
    assert found.metadata().id == before.metadata().id
    assert [field.nullable for field in found.schema().fields] == [False, True, False, True]
    assert found.schema().fields[1].metadata == {"comment": "a text"}
    added = [json.loads(one["add"]["stats"]) for one in entry(tmp_path) if "add" in one]
    assert sorted(one["minValues"]["id"] for one in added) == [10, 20, 30]
    assert sink.target_states("shop", "0badcafe", [TABLE.name])[TABLE.name].checkpoint == 4


def test_alter_repeated_commits_nothing(sink: DeltaSink, tmp_path: Path) -> None:
    steps = [DROP_TEXT, add("text", pa.string(), "x")]
    sink.alter(TABLE, steps, mark(4))
    version = opened(tmp_path).version()
    sink.alter(TABLE, steps, mark(4))
    assert opened(tmp_path).version() == version


def test_alter_of_another_incarnation_is_refused(sink: DeltaSink, tmp_path: Path) -> None:
    with pytest.raises(SinkOwnershipError):
        sink.alter(TABLE, [DROP_TEXT], mark(3, "deadbeef"))
    assert "text" in rows(tmp_path).column_names


@pytest.mark.parametrize(
    "step",
    [
        add("TEXT", pa.string()),
        add("text", pa.int32()),
        change(AlterAction.RENAME, ID, name="key"),
        AlterStep(AlterAction.DROP, ID, None),
        change(AlterAction.RENAME, TEXT, name="count"),
        change(AlterAction.WIDEN, TEXT, arrow=pa.int32()),
        change(AlterAction.WIDEN, COUNT, arrow=pa.int16()),
    ],
    ids=["spelling", "type", "rename key", "drop key", "occupied", "no widening", "narrower"],
)
def test_alter_that_cannot_be_done_is_refused(sink: DeltaSink, tmp_path: Path, step: AlterStep) -> None:
    version = opened(tmp_path).version()
    assert any(finding.fatal for finding in sink.check_steps(TABLE, [step]))
    with pytest.raises(TargetMismatch):
        sink.alter(TABLE, [add("fine", pa.int32(), 1), step], mark(4))
    assert opened(tmp_path).version() == version


def test_filled_column_made_by_hand_is_compared(sink: DeltaSink, tmp_path: Path) -> None:
    opened(tmp_path).alter.add_columns([Field("a", PrimitiveType("integer"))])
    with pytest.raises(TargetMismatch, match="not all of its rows"):
        sink.alter(TABLE, [add("a", pa.int32(), 5)], mark(4))
    opened(tmp_path).update({"a": "5"})
    version = opened(tmp_path).version()
    sink.alter(TABLE, [add("a", pa.int32(), 5)], mark(4))
    assert opened(tmp_path).version() == version + 1  # only the checkpoint
    assert sink.last_checkpoint("shop") == mark(4)


def test_check_steps_reports_rows_and_bytes(sink: DeltaSink) -> None:
    assert sink.check_steps(TABLE, [add("a", pa.int32()), NULLABLE]) == ()
    found = sink.check_steps(TABLE, [add("a", pa.int32(), 5)])
    assert [finding.fatal for finding in found] == [False]
    assert f"{ROWS} rows" in found[0].problem and "bytes" in found[0].problem


def test_alter_of_a_table_without_rows_keeps_it_empty(tmp_path: Path) -> None:
    with closing(DeltaSink(tmp_path)) as sink:
        sink.acquire_ownership(mark(0), [TABLE.name])
        sink.ensure_table(TABLE)
        sink.alter(TABLE, [add("a", pa.int32(), 5), WIDER], mark(1))
        assert rows(tmp_path).num_rows == 0
        assert sink.last_checkpoint("shop") == mark(1)


def test_alter_of_a_missing_table_does_nothing(tmp_path: Path) -> None:
    with closing(DeltaSink(tmp_path)) as sink:
        sink.acquire_ownership(mark(0), [TABLE.name])
        sink.alter(TABLE, [DROP_TEXT], mark(1))
        assert not (tmp_path / "ods").exists()


def test_readers_see_one_side_or_the_other(sink: DeltaSink, tmp_path: Path) -> None:
    stop, problems = threading.Event(), []

    def poll() -> None:
        while not stop.is_set():
            found = pa.table(QueryBuilder().register("t", opened(tmp_path)).execute("select * from t").read_all())
            filled = [name for name in found.column_names if name.startswith("filled")]
            if found.num_rows != ROWS or any(found.column(name).null_count for name in filled):
                problems.append(found)
            if ("text" in found.column_names) == bool(filled):
                problems.append(found)

    reader = threading.Thread(target=poll)
    reader.start()
    table, last = TABLE, TEXT
    try:
        for number in range(8):
            new = TargetColumn(f"filled{number}", pa.string(), True)
            steps = [AlterStep(AlterAction.DROP, last, None), add(new.name, pa.string(), "x")]
            sink.alter(table, steps, mark(4 + number))
            table, last = replace(table, columns=(*[c for c in table.columns if c != last], new)), new
    finally:
        stop.set()
        reader.join()
    assert not problems


def test_alter_repeats_after_another_writer(sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, calls = FolderOwnership.check, []

    def compete(self: FolderOwnership, found: SinkCheckpoint) -> None:
        check(self, found)
        calls.append(found)
        if len(calls) == 2:  # after the files are written, before the commit
            opened(tmp_path).optimize.compact()

    monkeypatch.setattr(FolderOwnership, "check", compete)
    sink.alter(TABLE, [add("a", pa.int32(), 5)], mark(4))
    assert len(calls) == 3
    assert rows(tmp_path).column("a").to_pylist() == [5] * ROWS


@pytest.mark.parametrize("step", [DROP_TEXT, add("at", pa.timestamp("us"), datetime.datetime(2026, 1, 1))])
def test_alter_repeats_if_a_reading_thread_sees_another_writer(
    step: AlterStep, sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = FolderOwnership.check, 0

    def compete(self: FolderOwnership, mark: SinkCheckpoint) -> None:
        nonlocal calls
        original(self, mark)
        calls += 1
        if calls == 2:  # the files are written, and the log has no entry for them yet
            opened(tmp_path).delete("id = 15")
            sink.keys(TABLE, None, 1)  # updates the handle of the table

    monkeypatch.setattr(FolderOwnership, "check", compete)
    sink.alter(TABLE, [step], mark(4))
    assert 15 not in rows(tmp_path)["id"].to_pylist(), "the rows of the other writer's version are written again"


def test_alter_progress_rises_with_the_bytes_of_the_files(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float | None] = []
    check = FolderOwnership.check

    def observe(self: FolderOwnership, found: SinkCheckpoint) -> None:
        seen.append(sink.alter_progress)
        check(self, found)

    class Observed(DeltaAlterer):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "progress":
                seen.append(value)  # type: ignore[arg-type]
            super().__setattr__(name, value)

    sink._alterer.__class__ = Observed
    monkeypatch.setattr(FolderOwnership, "check", observe)
    sink.alter(TABLE, [DROP_TEXT], mark(4))
    rising = [each for each in seen if each is not None]
    assert rising[0] == 0.0 and rising[-1] == 1.0 and rising == sorted(rising) and len(set(rising)) > 2
    assert sink.alter_progress is None


def test_stop_altering_ends_a_rewrite(sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = opened(tmp_path).version()

    def stopped(*arguments: Any) -> list[AddAction]:
        sink.stop_altering()
        return write_files(*arguments)

    monkeypatch.setattr(alter, "write_files", stopped)
    with ThreadPoolExecutor(1) as threads, pytest.raises(SinkUnavailable, match="stopped"):
        monkeypatch.setattr(sink._alterer, "_threads", threads)
        sink.alter(TABLE, [DROP_TEXT], mark(4))
    assert opened(tmp_path).version() == version


@pytest.mark.parametrize("step", [DROP_TEXT, NULLABLE], ids=["rewrite", "metadata"])
def test_stop_altering_before_alter_ends_it(sink: DeltaSink, tmp_path: Path, step: AlterStep) -> None:
    version = opened(tmp_path).version()
    sink.stop_altering()
    for _ in range(2):  # the run can have several tables to change
        with pytest.raises(SinkUnavailable, match="stopped"):
            sink.alter(TABLE, [step], mark(4))
    assert opened(tmp_path).version() == version
    sink.acquire_ownership(mark(3), [TABLE.name])  # of the next run
    sink.alter(TABLE, [step], mark(4))
    assert opened(tmp_path).version() == version + 1


CHILD = """
import os, signal, sys
from channels.sinks.delta import log
from channels.sinks.delta.sink import DeltaSink
from tests.unit.channels.sinks.delta.test_alter import TABLE, WIDER, add, mark
import pyarrow as pa

commit = log.DurableLogs.commit

def dying(self, found, folder, write, *others):
    def kill(properties):
        if sys.argv[2] == "after":
            write(properties)
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self, found, folder, kill, *others)

log.DurableLogs.commit = dying
sink = DeltaSink(sys.argv[1])
sink.acquire_ownership(mark(3), [TABLE.name])
sink.alter(TABLE, [add("a", pa.int32(), 5), WIDER], mark(4))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_alter_killed_at_its_commit_is_repeated(tmp_path: Path, moment: str) -> None:
    with closing(DeltaSink(tmp_path)) as sink:
        fill_orders(sink)
    version, old = opened(tmp_path).version(), rows(tmp_path)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), moment], check=False, env={**os.environ, "PYTHONPATH": "."}
    )
    assert child.returncode == -signal.SIGKILL
    assert opened(tmp_path).version() == version + (moment == "after")
    with closing(DeltaSink(tmp_path)) as sink:
        sink.acquire_ownership(mark(3), [TABLE.name])
        sink.alter(TABLE, [add("a", pa.int32(), 5), WIDER], mark(4))
        assert opened(tmp_path).version() == version + 1
        found = rows(tmp_path)
        assert found.column("a").to_pylist() == [5] * ROWS
        assert found.drop_columns("a").to_pylist() == old.to_pylist()


MEASURE = """
import resource, sys
import numpy as np, pyarrow as pa
from channels.sinks.delta.sink import DeltaSink
from tests.unit.channels.sinks.delta.test_alter import TABLE, add, load, mark

count, folder = int(sys.argv[1]), sys.argv[2]
sink = DeltaSink(folder, threads=1)
sink.acquire_ownership(mark(0), [TABLE.name])
sink.ensure_table(TABLE)
for step in range(count):
    ids = np.arange(step * 100_000, (step + 1) * 100_000)
    load(sink, TABLE, {"id": ids, "text": pa.array(ids).cast(pa.string()), "count": ids.astype("int32")}, step + 1)
pool = pa.default_memory_pool()
before = pool.bytes_allocated()
sink.alter(TABLE, [add("a", pa.int32(), 5)], mark(count + 1))
print(pool.max_memory() - before)
"""


def test_alter_of_more_files_needs_no_more_memory(tmp_path: Path) -> None:
    peaks = []
    for count in (2, 8):
        command = [sys.executable, "-c", MEASURE, str(count), str(tmp_path / str(count))]
        (tmp_path / str(count)).mkdir()
        child = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."}
        )
        peaks.append(int(child.stdout))
    assert peaks[1] < 1.5 * peaks[0] + (8 << 20)
