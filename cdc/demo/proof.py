"""Compare all rows of a source table with all rows of its Delta table, value by value.

MySQL writes the rows of the source (SELECT ... INTO OUTFILE), and they are parsed with the types of the target. The
comparison therefore uses no code of the data flow.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
from deltalake import DeltaTable, QueryBuilder

from cdc.demo.local_servers import LocalServer


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of the comparison of one table."""

    table: str
    rows: int  # in the source
    differences: tuple[str, ...]  # the first ten as text; (): source and target are equal


def compare(
    server: LocalServer,
    source: str,
    target: Path | str,
    key: Sequence[str],
    where: str = "TRUE",
    storage: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare the source table ``database.table`` with the Delta table in ``target``, by ``key``.

    All columns of the target are compared; the source must have columns of the same names. Both tables are read into
    memory. ``where``: a condition that limits the rows, in SQL that MySQL and DataFusion accept. ``storage``: options
    of the object store, if ``target`` is a URL.
    """
    found = read_delta(target, where, storage)
    expected = read_mysql(server, source, found.schema, where)
    order = [(name, "ascending") for name in key]
    return Comparison(source, expected.num_rows, _differences(expected.sort_by(order), found.sort_by(order), key))


def read_delta(
    path: Path | str, where: str = "TRUE", storage: Mapping[str, str] | None = None, version: int | None = None
) -> pa.Table:
    """Return the rows of a Delta table, with plain types instead of dictionary and view types.

    ``version``: None is the newest one.
    """
    target = DeltaTable(str(path), version=version, storage_options=dict(storage) if storage else None)
    reader = QueryBuilder().register("target", target).execute(f"SELECT * FROM target WHERE {where}")
    table = pa.table(reader.read_all())
    return table.cast(pa.schema([pa.field(field.name, _plain(field.type)) for field in table.schema]))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def read_mysql(server: LocalServer, source: str, schema: pa.Schema, where: str = "TRUE") -> pa.Table:
    """Return the rows of a source table, printed by MySQL and parsed with the types of ``schema``."""
    database, _, table = source.partition(".")
    columns = ", ".join(f"`{name}`" for name in schema.names)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # the server may run as another user
        file = Path(folder) / "rows.csv"
        connection = server.connect(database)
        with connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00'")
            cursor.execute(
                f"SELECT {columns} FROM `{table}` WHERE {where} INTO OUTFILE %s CHARACTER SET utf8mb4"
                " FIELDS TERMINATED BY ',' ENCLOSED BY '\"' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n'",
                (str(file),),
            )
        if file.stat().st_size == 0:
            return schema.empty_table()
        rows = pyarrow.csv.read_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(column_names=schema.names, block_size=64 << 20),
            parse_options=pyarrow.csv.ParseOptions(escape_char="\\", newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={field.name: _csv_type(field.type) for field in schema},
                # every value except NULL is quoted; NULL is \N, from which the parser removes the escape character
                null_values=["N"],
                quoted_strings_can_be_null=False,
                strings_can_be_null=True,
            ),
        )
    return rows.cast(schema)


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """Return the type for the CSV reader: MySQL prints timestamps in UTC without a time zone."""
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


def _differences(expected: pa.Table, found: pa.Table, key: Sequence[str]) -> tuple[str, ...]:
    if expected.equals(found):
        return ()
    left, right = ({tuple(row[name] for name in key): row for row in table.to_pylist()} for table in (expected, found))
    lines: list[str] = []
    if found.num_rows != len(right):
        lines.append(f"{found.num_rows - len(right)} keys exist twice in the target")
    for row_key in [*left.keys(), *(row_key for row_key in right if row_key not in left)]:
        one, other = left.get(row_key), right.get(row_key)
        if one != other:
            lines.append(f"key {row_key}: " + _difference(one, other))
    return tuple(lines[:10] + ([f"... and {len(lines) - 10} more"] if len(lines) > 10 else []))


def _difference(source: dict[str, Any] | None, target: dict[str, Any] | None) -> str:
    if source is None or target is None:
        return "only in the target" if source is None else "only in the source"
    return ", ".join(
        f"{name}: source {source[name]!r}, target {target[name]!r}" for name in source if source[name] != target[name]
    )
