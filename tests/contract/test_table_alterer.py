"""The TableAlterer contract, run on every sink that can alter its tables: each step, repeats, refusals, loads after it.

Another sink joins with an entry in ``SUBJECTS``.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc.errors import TargetMismatch
from cdc.model.batch import LoadName
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import AlterAction, AlterStep, SinkCheckpoint, TargetColumn, TargetTable, can_alter
from channels.sinks.delta.sink import DeltaSink, MergeMode
from channels.sinks.memory import MemorySink
from tests.emulators.doris import cases as doris
from tests.emulators.starrocks import cases as starrocks

ID = TargetColumn("id", pa.int64(), False, "bigint")
TEXT = TargetColumn("text", pa.string(), True, "varchar(20)")
COUNT = TargetColumn("count", pa.int32(), False, "int")
TABLE = TargetTable("ods.altered", (ID, TEXT, COUNT), key=("id",))
OLD_ROWS = [{"id": 1, "text": "one", "count": 10}, {"id": 2, "text": None, "count": -20}]


@dataclass
class Subject:
    """A sink under test, and a function that reads the rows of a table as the mapping's values."""

    sink: Any  # a Sink and a TableAlterer
    read: Callable[[str], list[dict[str, Any]]]
    cannot: frozenset[str] = frozenset()  # what the sink refuses: AlterAction, "drop and add", "any name", "any fill"
    sequence: int = 0

    def load(self, table: TargetTable, rows: list[dict[str, Any]], checkpoint: int) -> None:
        """Prepare and commit ``rows`` as a checkpoint of their own."""
        self.sequence += len(rows)
        columns = {column.name: pa.array([row[column.name] for row in rows], column.arrow) for column in table.columns}
        columns[DELETED] = pa.array([False] * len(rows))
        columns[SEQUENCE] = pa.array(range(self.sequence - len(rows), self.sequence), pa.int64())
        name = LoadName("shop", "0badcafe", 1, checkpoint, table.name, 0)
        load = self.sink.part_writer(table)(name, iter([pa.RecordBatch.from_pydict(columns)]))
        self.sink.commit([load], mark(checkpoint))

    def alter(self, steps: Sequence[AlterStep], checkpoint: int = 2, table: TargetTable = TABLE) -> TargetTable:
        """Do ``steps`` in the form that the sink requests, and return the table after them."""
        for group in [steps] if self.sink.alters_in_one_commit else [[step] for step in steps]:
            self.sink.alter(table, group, mark(checkpoint))
            table = after(table, group)
        return table

    def rows(self, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        """Return all rows, ordered by id."""
        return sorted(self.read(table.name), key=lambda row: row["id"])

    def require(self, ability: str) -> None:
        """Skip the test if the sink documents that it refuses ``ability``."""
        if ability in self.cannot:
            pytest.skip(f"the sink refuses: {ability}")


@contextmanager
def _memory(folder: Path) -> Iterator[Subject]:
    sink = MemorySink()
    yield Subject(sink, lambda table: sink.rows(table).to_pylist())


@contextmanager
def _delta(folder: Path, merge: MergeMode = "rewrite") -> Iterator[Subject]:
    def read(table: str) -> list[dict[str, Any]]:
        found = DeltaTable(str(folder / table.replace(".", "/")))
        return pa.table(QueryBuilder().register("t", found).execute("select * from t").read_all()).to_pylist()

    with closing(DeltaSink(folder, merge=merge)) as sink:
        yield Subject(sink, read)


@contextmanager
def _cluster(cases: ModuleType, cannot: frozenset[str], **arguments: Any) -> Iterator[Subject]:
    with cases.emulator() as cluster, closing(cases.sink_on(cluster, **arguments)) as sink:
        sink._alterer.first_pause_s = 0.01  # after a refusal

        def read(table: str) -> list[dict[str, Any]]:
            names, rows = cluster.execute(f"SELECT * FROM {table}")
            return [dict(zip(names, row, strict=True)) for row in rows]

        yield Subject(sink, read, cannot)


def _doris(folder: Path) -> AbstractContextManager[Subject]:
    # its versions read escapes in the literal of a default in different ways
    return _cluster(doris, frozenset({"any name", "any fill"}))


def _starrocks(folder: Path, mode: str) -> AbstractContextManager[Subject]:
    return _cluster(starrocks, frozenset({"any name"}), mode=mode)


TRUNCATE = AlterStep(AlterAction.TRUNCATE, None, None)
SUBJECTS: dict[str, Callable[[Path], AbstractContextManager[Subject]]] = {
    "memory": _memory,
    "delta": _delta,
    "delta vectors": partial(_delta, merge="deletion_vectors"),
    "doris": _doris,
    "starrocks-single": partial(_starrocks, mode="single"),
    "starrocks-multi": partial(_starrocks, mode="multi"),
}


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    with SUBJECTS[request.param](tmp_path) as found:
        found.sink.acquire_ownership(mark(0), [TABLE.name])
        found.sink.ensure_table(TABLE)
        found.load(TABLE, OLD_ROWS, 1)
        yield found


def mark(checkpoint: int) -> SinkCheckpoint:
    first, last = (BinlogPosition("mysql-bin.000001", 100 + n, "server", "") for n in (checkpoint, checkpoint + 1))
    return SinkCheckpoint("shop", "0badcafe", 1, checkpoint, first, last, checkpoint * 1000)


def add(name: str, kind: pa.DataType, fill: Any = None, source_type: str = "") -> AlterStep:
    value = None if fill is None else pa.scalar(fill, kind)
    return AlterStep(AlterAction.ADD, None, TargetColumn(name, kind, True, source_type), value)


def drop(column: TargetColumn) -> AlterStep:
    return AlterStep(AlterAction.DROP, column, None)


def rename(column: TargetColumn, name: str) -> AlterStep:
    return AlterStep(AlterAction.RENAME, column, replace(column, name=name))


def widen(column: TargetColumn, kind: pa.DataType, source_type: str) -> AlterStep:
    return AlterStep(AlterAction.WIDEN, column, replace(column, arrow=kind, source_type=source_type))


def make_nullable(column: TargetColumn) -> AlterStep:
    return AlterStep(AlterAction.MAKE_NULLABLE, column, replace(column, nullable=True))


def after(table: TargetTable, steps: Sequence[AlterStep]) -> TargetTable:
    """Return the mapping's table after ``steps``, computed without the code under test."""
    columns = list(table.columns)
    for step in steps:
        if step.before is None:
            columns.append(step.after)
        else:
            position = [column.name for column in columns].index(step.before.name)
            columns[position : position + 1] = [step.after] if step.after is not None else []
    return replace(table, columns=tuple(columns))


def assert_usable(subject: Subject, table: TargetTable, checkpoint: int = 3, **values: Any) -> None:
    """Load a row with the new columns, and find it next to the old ones."""
    assert not [finding for finding in subject.sink.check([table]) if finding.fatal]
    known = subject.rows(table)
    row = {**{column.name: None for column in table.columns}, "id": 9, **values}
    subject.load(table, [row], checkpoint)
    assert subject.rows(table) == [*known, row]


def test_alterer_is_recognised(subject: Subject) -> None:
    assert can_alter(subject.sink)


def test_add_without_fill_reads_null(subject: Subject) -> None:
    table = subject.alter([add("note", pa.string(), source_type="varchar(10)")])
    assert subject.rows() == [{**row, "note": None} for row in OLD_ROWS]
    assert_usable(subject, table, count=1, note="new")


FILLS = {
    "tinyint": (pa.int8(), -7, "tinyint"),
    "smallint": (pa.int16(), 300, "smallint"),
    "int": (pa.int32(), 5, "int"),
    "bigint": (pa.int64(), -(2**63), "bigint"),
    "bigint unsigned": (pa.decimal128(20, 0), decimal.Decimal(2**64 - 1), "bigint unsigned"),
    "decimal": (pa.decimal128(12, 2), decimal.Decimal("-1.01"), "decimal(12,2)"),
    "float": (pa.float32(), 1.5, "float"),
    "double": (pa.float64(), -0.1, "double"),
    "date": (pa.date32(), datetime.date(1000, 1, 1), "date"),
    "datetime": (pa.timestamp("us"), datetime.datetime(2024, 5, 6, 7, 8, 9, 123456), "datetime(6)"),
    "varchar": (pa.string(), 'it\'s "5" \\ \u00fc', "varchar(40)"),
    "empty text": (pa.string(), "", "varchar(40)"),
}


@pytest.mark.parametrize("case", FILLS)
def test_add_with_fill_changes_existing_rows(subject: Subject, case: str) -> None:
    kind, fill, source_type = FILLS[case]
    if case == "varchar":
        subject.require("any fill")
    table = subject.alter([add("filled", kind, fill, source_type)])
    assert subject.rows() == [{**row, "filled": fill} for row in OLD_ROWS]
    assert_usable(subject, table, count=1)


def test_kept_column_is_null_in_loaded_rows_despite_its_default(subject: Subject) -> None:
    subject.alter([add("more", pa.int32(), 5, "int")])
    kept = replace(TABLE, kept=("more",))
    subject.load(kept, [{"id": 2, "text": "new", "count": 2}, {"id": 3, "text": "\x01", "count": 3}], checkpoint=3)
    assert [row["more"] for row in subject.rows()] == [5, None, None]


def test_rename_keeps_values(subject: Subject) -> None:
    subject.require("RENAME")
    table = subject.alter([rename(TEXT, "label")])
    assert subject.rows() == [{"id": row["id"], "label": row["text"], "count": row["count"]} for row in OLD_ROWS]
    assert_usable(subject, table, count=1, label="new")


def test_rename_swaps_columns_by_a_free_name(subject: Subject) -> None:
    subject.require("RENAME")
    other = TargetColumn("other", pa.string(), True, "varchar(20)")
    table = subject.alter([add("other", pa.string(), "x", "varchar(20)")])
    table = subject.alter(
        [rename(TEXT, "free"), rename(other, "text"), rename(replace(TEXT, name="free"), "other")], 3, table
    )
    assert [(row["text"], row["other"]) for row in subject.rows()] == [("x", "one"), ("x", None)]


def test_widen_keeps_values_and_accepts_larger_ones(subject: Subject) -> None:
    table = subject.alter([widen(COUNT, pa.int64(), "bigint")])
    assert subject.rows() == OLD_ROWS
    assert_usable(subject, table, count=2**40)


def test_drop_removes_column(subject: Subject) -> None:
    subject.require("DROP")
    table = subject.alter([drop(TEXT)])
    assert subject.rows() == [{"id": row["id"], "count": row["count"]} for row in OLD_ROWS]
    assert_usable(subject, table, count=1)


def test_drop_and_add_of_one_name_restores_no_value(subject: Subject) -> None:
    subject.require("drop and add")
    table = subject.alter([drop(TEXT), add("text", pa.int32(), source_type="int")])
    assert [row["text"] for row in subject.rows()] == [None, None]
    assert_usable(subject, table, count=1, text=4)


def test_make_nullable_accepts_null(subject: Subject) -> None:
    table = subject.alter([make_nullable(COUNT)])
    assert subject.rows() == OLD_ROWS
    assert_usable(subject, table, count=None)


def test_truncate_removes_all_rows_and_loads_go_on(subject: Subject) -> None:
    found = subject.sink.check_steps(TABLE, [TRUNCATE])
    assert not found and subject.rows() == OLD_ROWS, "nothing costs anything, and nothing is done yet"
    subject.sink.alter(TABLE, [TRUNCATE], mark(2))
    assert subject.rows() == []
    subject.sink.alter(TABLE, [TRUNCATE], mark(2))
    assert_usable(subject, TABLE, count=1)
    assert subject.sink.keys(TABLE, None, 10).column("id").to_pylist() == [9]
    subject.load(TABLE, OLD_ROWS, 4)
    subject.sink.alter(TABLE, [TRUNCATE], mark(5))
    assert subject.rows() == []


def test_alter_repeated_with_its_mark_changes_nothing(subject: Subject) -> None:
    steps = [add("a", pa.int32(), 5, "int"), widen(COUNT, pa.int64(), "bigint")]
    table = subject.alter(steps)
    subject.alter(steps)
    assert subject.rows() == [{**row, "a": 5} for row in OLD_ROWS]
    assert_usable(subject, table, a=6, count=1)


def test_alter_done_by_hand_is_skipped(subject: Subject) -> None:
    steps = [add("a", pa.int32(), source_type="int"), widen(COUNT, pa.int64(), "bigint")]
    table = subject.alter(steps)
    subject.alter(steps, 3)
    assert subject.rows() == [{**row, "a": None} for row in OLD_ROWS]
    assert_usable(subject, table, 4, a=6, count=1)


def test_add_of_column_with_another_type_is_refused(subject: Subject) -> None:
    step = add("text", pa.int32(), source_type="int")
    assert any(finding.fatal for finding in subject.sink.check_steps(TABLE, [step]))
    with pytest.raises(TargetMismatch):
        subject.alter([step])
    assert_usable(subject, TABLE, count=1)


def test_rename_of_unknown_column_is_refused(subject: Subject) -> None:
    with pytest.raises(TargetMismatch):
        subject.alter([rename(replace(TEXT, name="gone"), "other")])
    assert_usable(subject, TABLE, count=1)


def test_drop_of_key_is_refused(subject: Subject) -> None:
    assert any(finding.fatal for finding in subject.sink.check_steps(TABLE, [drop(ID)]))
    with pytest.raises(TargetMismatch):
        subject.alter([drop(ID)])
    assert_usable(subject, TABLE, count=1)


def test_check_steps_changes_nothing(subject: Subject) -> None:
    found = subject.sink.check_steps(TABLE, [add("a", pa.int32(), 5, "int"), widen(COUNT, pa.int64(), "bigint")])
    assert not [finding for finding in found if finding.fatal]
    assert subject.rows() == OLD_ROWS
    assert_usable(subject, TABLE, count=1)


def test_alter_quotes_names(subject: Subject) -> None:
    subject.require("RENAME")
    subject.require("any name")
    name = "we`ird'"
    subject.alter([add("plain", pa.int32(), 5, "int"), rename(TargetColumn("plain", pa.int32(), True, "int"), name)])
    assert [row[name] for row in subject.rows()] == [5, 5]


def test_fill_that_sink_cannot_write_is_refused_unwritten(subject: Subject) -> None:
    if "any fill" not in subject.cannot:
        pytest.skip("the sink writes any fill")
    kind, fill, source_type = FILLS["varchar"]
    step = add("filled", kind, fill, source_type)
    assert any(finding.fatal for finding in subject.sink.check_steps(TABLE, [step]))
    with pytest.raises(TargetMismatch):
        subject.alter([step])
    assert subject.rows() == OLD_ROWS


def test_load_after_an_exchange_of_names_fills_columns_by_name(subject: Subject) -> None:
    table = subject.alter([add("x", pa.int32(), 1, "int"), add("y", pa.int32(), 2, "int")])
    x, y = table.columns[-2:]
    steps = [rename(x, "x__3"), rename(y, "x"), rename(replace(x, name="x__3"), "y")]
    table = subject.alter(steps, 3, table)
    subject.load(table, [{"id": 1, "text": None, "count": 0, "x": 20, "y": 10}], 4)
    assert [(row["id"], row["x"], row["y"]) for row in subject.rows(table)] == [(1, 20, 10), (2, 2, 1)]
