"""Checksums that Doris and StarRocks compute: equal for equal rows of every type, other for each other value."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import TargetColumn, TargetTable
from channels.sinks.row_ranges import KeyRange
from tests.contract.test_cluster_sinks import KINDS, sink_on
from tests.emulators.cases import mark_of, name_of
from tests.emulators.faults import Fault

MOMENT = datetime.datetime(2024, 2, 29, 13, 5, 59, 987654)
# column, type of the source, Arrow type, values of the rows, another value of the first row
COLUMNS: tuple[tuple[str, str, pa.DataType, tuple[Any, ...], Any], ...] = (
    ("id", "bigint", pa.int64(), (1, 2, -(2**63), 2**63 - 1), None),
    ("tiny", "tinyint", pa.int8(), (-128, 127, None, 0), -127),
    ("flag", "bit(1)", pa.int64(), (0, 1, None, 1), 1),
    ("wide", "bigint unsigned", pa.decimal128(20, 0), (2**64 - 1, 0, None, 7), 2**64 - 2),
    ("price", "decimal(12,2)", pa.decimal128(12, 2), ("-0.01", "9999999999.99", None, "0"), "0.01"),
    ("exact", "decimal(30,10)", pa.decimal128(30, 10), ("0.0000000001", "-1.5", None, "0"), "0.0000000002"),
    ("part", "decimal(9,9)", pa.decimal128(9, 9), ("-0.000000001", "0.999999999", None, "0"), "0.000000001"),
    ("tenth", "datetime(1)", pa.timestamp("us"), (MOMENT.replace(microsecond=900000), MOMENT.replace(year=1000, day=1, microsecond=0), None, MOMENT.replace(microsecond=0)), MOMENT.replace(microsecond=800000)),
    ("day", "date", pa.date32(), (datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None, MOMENT.date()), MOMENT.date()),
    ("at", "datetime(6)", pa.timestamp("us"), (MOMENT, MOMENT.replace(microsecond=0), None, MOMENT), MOMENT.replace(microsecond=987653)),
    ("second", "datetime", pa.timestamp("us"), (MOMENT.replace(microsecond=0), MOMENT.replace(year=4, microsecond=0), None, MOMENT.replace(microsecond=0)), MOMENT.replace(microsecond=0, second=1)),
    ("word", "varchar(20)", pa.string(), ("a,b", "N", None, ""), "a,c"),
    ("more", "text", pa.string(), (" é漢😀 \\ '", "1:a", None, "x" * 5000), "é漢😀 \\ '"),
    ("raw", "varbinary(20)", pa.binary(), (b"\x00\xff", b"", None, b"abc"), b"\x00\xfe"),
    ("clock", "time", pa.string(), ("-838:59:59", "00:00:00", None, "12:00:00"), "-838:59:58"),
)  # fmt: skip
EXCLUDED = (
    ("ratio", "double", pa.float64(), (0.1, None, 1e300, 2.0)),
    ("share", "float", pa.float32(), (0.1, None, 1.0, 2.0)),
    ("doc", "json", pa.string(), ('{"a": 1}', None, "[]", "1")),
)
ALL = KeyRange(("id",), None, None)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(kind: str) -> Iterator[Any]:
    with KINDS[kind][0].emulator() as cluster:
        yield cluster


@pytest.fixture
def sink(kind: str, cluster: Any) -> Iterator[Any]:
    sink = sink_on(kind, cluster)
    yield sink
    sink.close()


def table_of(*columns: tuple[Any, ...]) -> TargetTable:
    found = tuple(TargetColumn(name, arrow, name != "id", source) for name, source, arrow, *_ in columns)
    return TargetTable("ods.every", found, ("id",))


def rows_of(*columns: tuple[Any, ...], count: int = 4) -> pa.Table:
    values = [
        [Decimal(v) if isinstance(v, str) and pa.types.is_decimal(a) else v for v in some]
        for _, _, a, some, *_ in columns
    ]
    return pa.table(
        {name: pa.array(some[:count], arrow) for (name, _, arrow, *_), some in zip(columns, values, strict=True)}
    )


def load(sink: Any, table: TargetTable, rows: pa.Table, checkpoint: int = 1) -> None:
    sink.ensure_table(table)
    count = rows.num_rows
    sequences = pa.array(range(checkpoint * 100, checkpoint * 100 + count), pa.int64())
    stamped = rows.append_column(DELETED, pa.array([False] * count)).append_column(SEQUENCE, sequences)
    loaded = sink.part_writer(table)(name_of(checkpoint), iter(stamped.to_batches()))
    sink.commit([loaded], mark_of(checkpoint))


def test_checksum_of_the_cluster_equals_that_of_the_rows(sink: Any) -> None:
    table, rows = table_of(*COLUMNS), rows_of(*COLUMNS)
    load(sink, table, rows)
    checksums = sink.row_reader(table, rows.column_names).checksums
    assert checksums is not None and set(checksums.columns) == set(rows.column_names)
    assert checksums.of_range(ALL) == checksums.of_rows(rows)
    assert checksums.of_rows(rows).rows == 4
    above, upto = (pa.scalar(one, pa.int64()) for one in (1, 2))
    assert checksums.of_range(KeyRange(("id",), (above,), (upto,))) == checksums.of_rows(rows.slice(1, 1))
    assert checksums.of_range(KeyRange(("id",), (upto,), (upto,))) == checksums.of_rows(rows.slice(0, 0))


def test_each_other_value_is_another_checksum(sink: Any) -> None:
    table, rows = table_of(*COLUMNS), rows_of(*COLUMNS)
    load(sink, table, rows)
    checksums = sink.row_reader(table, rows.column_names).checksums
    known = checksums.of_range(ALL)
    for checkpoint, (name, _, arrow, values, other) in enumerate(COLUMNS[1:], 2):
        number = rows.column_names.index(name)
        for row, value in ((0, other), (0, None), (2, values[0])):
            some = list(rows.column(name).to_pylist())
            some[row] = Decimal(value) if isinstance(value, str) and pa.types.is_decimal(arrow) else value
            changed = rows.set_column(number, rows.schema.field(name), pa.array(some, arrow))
            assert checksums.of_rows(changed) not in (known, None), (name, value)
        load(sink, table, changed, checkpoint * 2)
        assert checksums.of_range(ALL) == checksums.of_rows(changed), name
        load(sink, table, rows, checkpoint * 2 + 1)
    assert checksums.of_range(ALL) == known


def test_types_without_one_text_are_not_part_of_checksums(sink: Any) -> None:
    columns = (*COLUMNS[:2], *EXCLUDED)
    table, rows = table_of(*columns), rows_of(*columns)
    load(sink, table, rows)
    reader = sink.row_reader(table, rows.column_names)
    assert reader.checksums.columns == ("id", "tiny")
    rest = reader.between(ALL, ["id", "ratio"])
    assert rest.column_names == ["id", "ratio"] and rest.num_rows == 4
    assert sink.row_reader(table, ["id", "ratio"]).checksums is None, "a checksum of keys alone is worth nothing"


def test_value_outside_the_type_of_the_target_has_no_checksum(sink: Any) -> None:
    table, rows = table_of(*COLUMNS[:2]), rows_of(*COLUMNS[:2])
    load(sink, table, rows)
    checksums = sink.row_reader(table, ["id", "tiny"]).checksums
    wide = rows.set_column(1, "tiny", pa.array([300, 1, 2, 3], pa.int64()))
    assert checksums.of_rows(wide) is None


def test_functions_with_another_definition_are_not_used(
    sink: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rows = table_of(*COLUMNS), rows_of(*COLUMNS)
    load(sink, table, rows)
    texts = sink._sql.texts

    def answer(statement: str, values: Any = None) -> Any:
        return texts(statement.replace(".%%f", ".000000"), values)  # as if %f was not known

    monkeypatch.setattr(sink._sql, "texts", answer)
    columns = sink.row_reader(table, rows.column_names).checksums.columns
    assert set(rows.column_names) - set(columns) >= {"at"} and {"day", "price"} <= set(columns)


def test_refused_functions_are_not_asked_for_again(sink: Any, cluster: Any) -> None:
    table, rows = table_of(*COLUMNS), rows_of(*COLUMNS)
    load(sink, table, rows)
    cluster.faults.order("sql", Fault.ERROR, match="MD5", times=100)
    for _ in range(3):
        assert sink.row_reader(table, rows.column_names).checksums is None
    assert len(cluster.faults.struck) == 1


def test_refused_checksum_of_a_range_means_rows(sink: Any, cluster: Any) -> None:
    table, rows = table_of(*COLUMNS), rows_of(*COLUMNS)
    load(sink, table, rows)
    reader = sink.row_reader(table, rows.column_names)
    cluster.faults.order("sql", Fault.ERROR, match="MD5", times=100)
    assert [reader.checksums.of_range(ALL) for _ in range(2)] == [None, None]
    assert len(cluster.faults.struck) == 1
    assert reader.between(ALL).num_rows == 4
