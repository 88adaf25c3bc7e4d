"""The proof: every row of a source table beside every row of its target, value by value.

The source's side is written by MySQL itself (SELECT ... INTO OUTFILE) and parsed with the target's types, so that no
code of the flow takes part in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
from deltalake import DeltaTable, QueryBuilder

from cdc.local_servers import LocalServer


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the comparison of one table found."""

    table: str
    rows: int  # in the source
    differences: tuple[str, ...]  # the first few, for people; empty: both sides are equal


def compare(server: LocalServer, source: str, target: Path, key: Sequence[str], where: str = "TRUE") -> Comparison:
    """Compare the source table ``database.table`` with the Delta table in ``target``, by ``key``.

    The target's columns decide what is compared; each must have a column of its name in the source. Both sides are in
    memory: ``where`` (SQL that both understand) takes a part of them.
    Never: loads a value through the job's own decoder.
    """
    found = read_delta(target, where)
    expected = read_mysql(server, source, found.schema, where)
    order = [(name, "ascending") for name in key]
    return Comparison(source, expected.num_rows, _differences(expected.sort_by(order), found.sort_by(order), key))


def read_delta(path: Path, where: str = "TRUE") -> pa.Table:
    """The rows of a Delta table, dictionary and view types unfolded."""
    reader = QueryBuilder().register("target", DeltaTable(str(path))).execute(f"SELECT * FROM target WHERE {where}")
    table = pa.table(reader.read_all())
    return table.cast(pa.schema([pa.field(field.name, _plain(field.type)) for field in table.schema]))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def read_mysql(server: LocalServer, source: str, schema: pa.Schema, where: str = "TRUE") -> pa.Table:
    """The rows of a source table, as MySQL prints them, parsed to the types of ``schema``."""
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
                # every value is quoted but NULL, which is \N, and loses its backslash as an escape
                null_values=["N"],
                quoted_strings_can_be_null=False,
                strings_can_be_null=True,
            ),
        )
    return rows.cast(schema)


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """What the CSV reader takes: instants are printed without a zone, in UTC."""
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


def _differences(expected: pa.Table, found: pa.Table, key: Sequence[str]) -> tuple[str, ...]:
    if expected.equals(found):
        return ()
    left, right = ({tuple(row[name] for name in key): row for row in table.to_pylist()} for table in (expected, found))
    said: list[str] = []
    if found.num_rows != len(right):
        said.append(f"{found.num_rows - len(right)} keys stand twice in the target")
    for place in [*left.keys(), *(place for place in right if place not in left)]:
        one, other = left.get(place), right.get(place)
        if one != other:
            said.append(f"key {place}: " + _difference(one, other))
    return tuple(said[:10] + ([f"... and {len(said) - 10} more"] if len(said) > 10 else []))


def _difference(source: dict[str, Any] | None, target: dict[str, Any] | None) -> str:
    if source is None or target is None:
        return "only in the target" if source is None else "only in the source"
    return ", ".join(
        f"{name}: source {source[name]!r}, target {target[name]!r}" for name in source if source[name] != target[name]
    )
