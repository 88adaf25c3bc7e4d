"""Decode the binlog files of a real server and compare the rows with SELECT."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.demo.local_servers import LocalServer
from cdc.model.batch import Batch, RequiredColumns
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, Column, Kind, TableSchema
from cdc.mysql.catalog import table_schemas
from cdc.mysql.connection import Endpoint, Tls
from cdc.mysql.server import Server
from cdc.sources.binlog.decoder.decoder import BinlogDecoder
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.decoder.table_map import TableMap

_SYSTEM = ("mysql", "sys", "information_schema", "performance_schema")


@dataclass(frozen=True)
class Everything:
    """Select every column of every table of one database, or of all."""

    database: str | None = None

    def maps(self, database: str, table: str) -> bool:
        return database == self.database if self.database else database not in _SYSTEM

    def reads(self, schema: TableSchema) -> RequiredColumns:
        names = frozenset(column.name for column in schema.columns)
        return RequiredColumns(names, frozenset(schema.key))


@dataclass(frozen=True)
class NoTables:
    """A table source for binlogs with full row metadata."""

    def schema(self, table_map: TableMap) -> TableSchema | None:
        raise AssertionError(f"{table_map.name} has no schema in the binlog")


@dataclass(frozen=True)
class CatalogTables:
    """Schemas as a running server describes them now."""

    server: LocalServer

    def schema(self, table_map: TableMap) -> TableSchema | None:
        with _questions(self.server) as server:
            return table_schemas(server, [(table_map.database, table_map.table)]).get(
                (table_map.database, table_map.table)
            )


@contextmanager
def _questions(server: LocalServer) -> Iterator[Server]:
    asked = Server(Endpoint("localhost", username="root", tls=Tls("off"), unix_socket=str(server.socket)))
    try:
        yield asked
    finally:
        asked.close()


def schema_now(server: LocalServer, database: str, table: str) -> TableSchema:
    """Return a table as information_schema describes it."""
    with _questions(server) as asked:
        return table_schemas(asked, [(database, table)])[database, table]


@dataclass
class Decoded:
    """The Batches and statements of a part of a binlog."""

    batches: list[Batch] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)

    def rows(self, table: str) -> pa.Table:
        """Return all Changes of a table, in order."""
        found = [c.rows for batch in self.batches for c in batch.changes if c.schema.table == table]
        return pa.Table.from_batches(found) if found else pa.table({})

    def schema(self, table: str) -> TableSchema:
        return next(c.schema for batch in self.batches for c in batch.changes if c.schema.table == table)


def decode_bytes(
    data: bytes,
    *,
    tables: Any,
    table_filter: Any,
    offset: int = 4,
    name: str = "mysql-bin.000001",
    chunk: int = 1 << 20,
    batch_bytes: int = 4 << 20,
) -> Decoded:
    """Decode the bytes of one file from ``offset``, in chunks."""
    found = Decoded()
    decoder = BinlogDecoder(
        table_filter=table_filter,
        tables=tables,
        on_statement=found.statements.append,
        start=BinlogPosition(name, offset),
        sequence=0,
        framed=False,
        batch_bytes=batch_bytes,
    )
    at = 0
    while at < len(data):
        room = decoder.free_space()
        piece = data[at : at + min(chunk, len(room))]
        room[: len(piece)] = piece
        decoder.feed(len(piece))
        at += len(piece)
        while (batch := decoder.next()) is not None:
            found.batches.append(batch)
    return found


def binlog_end(server: LocalServer) -> tuple[str, int]:
    """Return the current binlog file and its size."""
    with server.connect() as connection, connection.cursor() as cursor:
        mariadb = "mariadb" in connection.get_server_info().lower()
        cursor.execute("SHOW MASTER STATUS" if mariadb else "SHOW BINARY LOG STATUS")
        name, offset, *_ = cursor.fetchone()
    return name, offset


def recorded(server: LocalServer, work: Callable[[], None]) -> bytes:
    """Return the bytes of the binlog file to which only ``work`` wrote. ``work`` must not rotate it."""
    server.execute("FLUSH BINARY LOGS")
    name, _ = binlog_end(server)
    work()
    after, size = binlog_end(server)
    assert after == name, "the binlog was rotated"
    return (Path(server.data) / name).read_bytes()[:size]


# -- comparing with SELECT -------------------------------------------------------------------------------------------

_AS_TEXT = {
    Kind.TIME, Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP, Kind.JSON, Kind.DECIMAL, Kind.UUID, Kind.INET4, Kind.INET6,
}  # fmt: skip


def expected(server: LocalServer, schema: TableSchema, order: str = "id") -> list[dict[str, Any]]:
    """Return the rows of SELECT, in the form of ``comparable``."""
    chosen = []
    for column in schema.columns:
        name = f"`{column.name}`"
        if column.kind in _AS_TEXT:
            chosen.append(f"CAST({name} AS CHAR)")
        elif column.kind in (Kind.BIT, Kind.YEAR):
            chosen.append(f"{name}+0")
        elif column.kind in (Kind.GEOMETRY, Kind.VECTOR):
            chosen.append(f"HEX({name})")  # the protocol declares their bytes as text
        elif column.kind is Kind.FLOAT:
            chosen.append(f"{name}+0e0")
        else:
            chosen.append(name)
    with server.connect(schema.database) as connection, connection.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4, time_zone = '+00:00'")
        cursor.execute(f"SELECT {', '.join(chosen)} FROM `{schema.table}` ORDER BY {order}")
        rows = cursor.fetchall()
    return [
        {column.name: _normalized(column, value) for column, value in zip(schema.columns, row, strict=True)}
        for row in rows
    ]


def _normalized(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.kind in _AS_TEXT and isinstance(value, bytes):
        value = value.decode()
    if column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        return _valid_date(value) if column.kind is Kind.DATE else _valid_date(_six_digits(value))
    if column.kind is Kind.VECTOR:
        return np.frombuffer(bytes.fromhex(value), "<f4").tolist()
    if column.kind is Kind.GEOMETRY:
        return bytes.fromhex(value)
    if column.kind is Kind.SET and isinstance(value, set | frozenset):
        return ",".join(label for label in column.labels if label in value)
    return value


def _six_digits(text: str) -> str:
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction:0<6}"


def _valid_date(text: str) -> str | None:
    """Return None for zero, partial and invalid dates, which have no Arrow value."""
    try:
        np.datetime64(text.replace(" ", "T"))
    except ValueError:
        return None
    return text


def comparable(rows: pa.Table, schema: TableSchema) -> list[dict[str, Any]]:
    """Return decoded rows as values that compare with ``expected``."""
    columns = {column.name: _plain(column, rows.column(column.name).combine_chunks()) for column in schema.columns}
    return [{name: values[i] for name, values in columns.items()} for i in range(rows.num_rows)]


def _plain(column: Column, values: pa.Array) -> list[Any]:
    assert values.type == column.arrow, f"{column.name} is {values.type}, not {column.arrow}"
    values.validate(full=True)
    if column.kind is Kind.DATE:
        return _dates(values.cast(pa.int32()), "D")
    if column.kind in (Kind.DATETIME, Kind.TIMESTAMP):
        return _dates(values.cast(pa.int64()), "us")
    plain = values.to_pylist()
    if column.kind is Kind.DECIMAL:
        return [None if value is None else str(value) if isinstance(value, str) else f"{value:f}" for value in plain]
    return plain


def _dates(numbers: pa.Array, unit: str) -> list[str | None]:
    return [
        None if number is None else str(np.datetime64(number, unit)).replace("T", " ") for number in numbers.to_pylist()
    ]


def upserts(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(rows.column(DELETED)))


def deletes(rows: pa.Table) -> pa.Table:
    return rows.filter(rows.column(DELETED))


def differing(found: Iterable[dict[str, Any]], wanted: Iterable[dict[str, Any]]) -> list[str]:
    """Return the differences of two lists of rows, by row and column; NaN equals NaN."""
    lines = []
    found, wanted = list(found), list(wanted)
    if len(found) != len(wanted):
        lines.append(f"{len(found)} rows instead of {len(wanted)}")
    for i, (mine, theirs) in enumerate(zip(found, wanted, strict=False)):
        lines.extend(
            f"row {i}, {name}: decoded {mine[name]!r}, SELECT {value!r}"
            for name, value in theirs.items()
            if repr(mine[name]) != repr(value) and mine[name] != value
        )
    return lines
