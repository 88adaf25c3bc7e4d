"""Comparison of chunks for every type that a key can have: exactly the rows that differ are found."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.model.batch import LoadName
from cdc.model.schema import TableSchema
from cdc.model.snapshot import Chunk
from cdc.mysql import query_stream
from cdc.mysql.catalog import table_schemas
from cdc.mysql.key_order import KeyOrder, key_order_of
from cdc.mysql.query_stream import configure_session
from cdc.mysql.server import Server
from cdc.snapshot.orphan_rows import find_orphan_rows
from cdc.snapshot.planner import Chunker
from channels import chunk_compare
from channels.chunk_compare import CompareRequest, KeyDifferences, RecheckRequest, RecheckTable
from channels.chunk_reader import ChunkReader, TableRead
from channels.partition_read import ReadBudget
from channels.sinks.base import TargetColumn, TargetTable
from channels.sinks.delta.sink import DeltaSink
from channels.table_compare import TableCompare, range_columns
from tests.emulators.cases import mark_of
from tests.integration.test_snapshot_bounds import KEYS, MARIADB, _endpoint, _tables

SPARK: Any = None  # rows are only copied
BUDGET = ReadBudget(600, 1 << 40, 1 << 40)
KINDS = {0: "missing", 1: "extra", 2: "different"}


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(query_stream, "_ROWS", 3)  # of one batch, so that a chunk has several parts
    monkeypatch.setattr(chunk_compare, "PART_ROWS", 4)
    sink = DeltaSink(tmp_path / "lake")
    sink.identity(create=True)
    sink.acquire_ownership(mark_of(), [])
    yield sink
    sink.close()


@pytest.mark.parametrize(("kind", "keys"), [("mysql", KEYS), ("mariadb", MARIADB)])
def test_compare_finds_exactly_the_rows_that_differ(kind: str, keys: Any, sink: Any, request: Any) -> None:
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    draw, by_range = random.Random(7), set()
    with Server(_endpoint(server)) as asked:
        tables = _tables(server, database, keys, draw)
        for name in tables:
            server.execute(
                f"ALTER TABLE `{database}`.{name} ADD v INT DEFAULT 7, ADD r INT NOT NULL AUTO_INCREMENT UNIQUE"
            )
        configure_session(asked)
        schemas = table_schemas(asked, [(database, name) for name in tables])
        for number, (name, type_) in enumerate(tables.items(), 1):
            schema = schemas[database, name]
            order = key_order_of(asked, schema, schema.key)
            if not order.columns:
                continue  # labels that Python cannot compare: such a table is skipped
            compare = _compare(sink, server, schema, order)
            if compare.range_columns is not None:
                by_range.add(type_.partition(" ")[0])
            _check(asked, server, sink, schema, compare, draw, number, type_)
    if kind == "mysql":
        assert {"BIGINT", "decimal", "date", "datetime(6)", "timestamp(3)", "bit(64)", "varbinary"} <= by_range
        assert not {"utf8mb4", "general_ci", "enum", "set", "time", "float"} & by_range


def _compare(sink: DeltaSink, server: Any, schema: TableSchema, order: KeyOrder) -> TableCompare:
    columns = tuple(
        TargetColumn(column.name, column.arrow, column.name not in schema.key, column.type) for column in schema.columns
    )
    target = TargetTable(f"ods.{schema.table}", columns, schema.key)
    sink.ensure_table(target)
    name = LoadName("shop", "0a1b2c3d", 1, 1, target.name, task=0)
    copies = {column.name: column.name for column in schema.columns}
    read = TableRead(name, order, schema.columns, frozenset(schema.key), 1, None, sink.part_writer(target), copies)
    names = tuple(copies)
    return TableCompare(
        read, schema.key, tuple(schema.column(one) for one in schema.key), names, frozenset(), frozenset(),
        range_columns(order, {column.name: column for column in schema.columns}),
        lambda: sink.row_reader(target, names),
    )  # fmt: skip


def _check(
    asked: Server, server: Any, sink: DeltaSink, schema: TableSchema, compare: TableCompare, draw: random.Random,
    number: int, type_: str,
) -> None:  # fmt: skip
    endpoint, key = _endpoint(server), list(compare.key)
    chunk = Chunk(0, None, None)
    batches = [one.rows for one in ChunkReader(endpoint, compare.read, chunk).batches(lambda: False) if one.rows]
    rows = pa.Table.from_batches(batches).combine_chunks()
    missing, extra, different = draw.sample(range(rows.num_rows), 3)
    loaded = rows.take([row for row in range(rows.num_rows) if row != missing])
    load = compare.read.writer(compare.read.name, iter(loaded.to_batches()))
    assert load is not None
    sink.commit([load], mark_of(checkpoint=number))

    chunks = Chunker(asked, compare.read.order, chunk_rows=5).plan(whole=True).chunks
    assert _found(endpoint, compare, chunks) == {_key(rows, key, missing): "missing"}, type_

    with server.connect(schema.database) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"UPDATE {schema.table} SET v = 8 WHERE r = {rows.column('r')[different]}")
        cursor.execute(f"DELETE FROM {schema.table} WHERE r = {rows.column('r')[extra]}")
        connection.commit()
    expected = {_key(rows, key, missing): "missing", _key(rows, key, different): "different"}
    if compare.range_columns is not None:
        expected[_key(rows, key, extra)] = "extra"
    assert _found(endpoint, compare, chunks) == expected, type_

    differences = _differences(endpoint, compare, chunks)
    recheck = RecheckTable(
        "t", compare, lambda keys: find_orphan_rows(endpoint, compare.read.order, compare.key_columns, keys)
    )
    again = RecheckRequest(endpoint, (recheck,), tuple((0, one) for one in differences), 100, 600).run(SPARK, 2)
    assert _kinds(again, key) == expected, type_
    assert sum(len(one.details) for one in again) == len(expected)
    values = [value for one in again for detail in one.details for value in detail.values]
    assert {(value.column, value.source, value.target) for value in values} <= {("v", "8", "7")}


def _differences(endpoint: Any, compare: TableCompare, chunks: Any) -> list[KeyDifferences]:
    request = CompareRequest(endpoint, (compare,), tuple((0, chunk) for chunk in chunks), 2, BUDGET)
    parts = request.run(SPARK, 2)
    assert sorted(part.chunk for part in parts if part.ended) == [chunk.number for chunk in chunks]
    return [part.differences for part in parts if part.differences.count]


def _found(endpoint: Any, compare: TableCompare, chunks: Any) -> dict[tuple[Any, ...], str]:
    return _kinds(_differences(endpoint, compare, chunks), list(compare.key))


def _kinds(differences: Any, key: list[str]) -> dict[tuple[Any, ...], str]:
    listed = [
        (tuple(row[name] for name in key), KINDS[kind])
        for one in differences
        for row, kind in zip(one.keys.to_pylist(), one.kinds.tolist(), strict=True)
    ]
    assert len(dict(listed)) == len(listed), "a row was found twice"
    return dict(listed)


def _key(rows: pa.Table, key: list[str], row: int) -> tuple[Any, ...]:
    return tuple(rows.column(name)[row].as_py() for name in key)
