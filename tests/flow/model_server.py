"""What ``cdc.turns`` asks a MySQL server, answered out of a Source: tables, chunks, keys, and what a query sees.

Queries may see less than the binlog has told, until ``settled`` says otherwise, and more: somebody writes all the while.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa

from cdc.errors import SourceUnavailable
from cdc.schema import DELETED, SEQUENCE
from cdc.snapshot.chunker import Plan
from cdc.snapshot.chunks import Chunk
from spark.chunks import ChunkOutcome
from tests.flow.source import place, schema_of

AWAY = SourceUnavailable("The source is away.", mend="It passes.")


class Tables:
    """The server's tables, for all processes. What a query has seen every later one sees."""

    def __init__(self, source, draw):
        self.source, self.draw = source, draw
        self.seen = 0  # transactions

    def names(self):
        return sorted({row.table for transaction in self.source.transactions for row in transaction})

    def rows(self, table):
        """Key -> op, as a query sees them that begins now."""
        self.seen = self.draw.randint(self.seen, len(self.source.transactions))
        return self.source.state(self.seen).get(table, {})

    def settle(self, position):
        is_settled = self.seen >= position.offset or self.draw.random() < 0.8
        if is_settled:
            self.seen = max(self.seen, position.offset)
        return is_settled


class Endpoint:
    """How one process comes to the tables."""

    def __init__(self, tables, steps):
        self.tables, self.steps = tables, steps

    def read(self, table, chunk):
        """A chunk's outcome, and its rows or the first of them."""
        rows = self.steps.step("read", lambda: self.tables.rows(table.order), reject=AWAY)
        low = int(chunk.above[0]) if chunk.above else -1
        high = int(chunk.upto[0]) if chunk.upto else 1 << 30
        found = [(key, op) for key, op in sorted(rows.items()) if low < key <= high]
        ended = self.tables.draw.random() < 0.7
        if not ended:
            found = found[: self.tables.draw.randint(0, len(found))]
        above = (str(found[-1][0]),) if found else chunk.above
        stamp = {DELETED: False, SEQUENCE: table.sequence}
        told = {"above": above, "ended": ended, "rows": len(found), "bytes": 10 * len(found)}
        return told, [{"id": key, "op": op, **stamp} for key, op in found]

    def read_chunks(self, reading):
        """Each chunk's outcome, and the loads that are to be made of its rows, as they are read."""
        for read in reading.chunks[: self.tables.draw.randint(1, 4)]:
            table = reading.tables[read.table]
            told, rows = self.read(table, read.chunk)
            cut = self.tables.draw.randint(0, len(rows))
            parts = [part for part in (rows[:cut], rows[cut:]) if part]
            name = table.name
            names = [
                name.__class__(**{**_fields(name), "task": read.chunk.number, "part": n}) for n in range(len(parts))
            ]
            yield ChunkOutcome(read.table, read.chunk.number, **told), list(zip(names, parts, strict=True))


def _fields(name):
    return {field: getattr(name, field) for field in name.__dataclass_fields__}


class _Server:
    def __init__(self, endpoint):
        self.endpoint, self.connection = endpoint, None

    def __enter__(self):
        self.endpoint.steps.step("connect", lambda: None, reject=AWAY)
        return self

    def __exit__(self, *_):
        pass

    def ask(self, *_):
        return []


class _Chunker:
    def __init__(self, server, table):
        self.tables, self.table = server.endpoint.tables, table

    def plan(self, *, row_bytes=0, whole=False):
        keys = sorted(self.tables.rows(self.table))
        if not keys:
            return Plan((Chunk(0, None, None),) if whole else (), 0)
        ends = [key for key in keys[:-1] if self.tables.draw.random() < 0.4] + [keys[-1]]
        bounds = [None, *((str(end),) for end in ends)]
        chunks = [Chunk(number, *bounds[number : number + 2], 1) for number in range(len(ends))]
        if whole:
            chunks[-1] = Chunk(len(ends) - 1, bounds[-2], None, 1)
        return Plan(tuple(chunks), len(chunks))


class _Order(str):
    """The index of a table, by whose name it goes."""

    columns = ("id",)


def _surplus(endpoint, order, columns, keys):
    there = endpoint.steps.step("compare keys", lambda: endpoint.tables.rows(order), reject=AWAY)
    return keys.filter(pa.array([key not in there for key in keys.column("id").to_pylist()], pa.bool_()))


def now(server):
    """Where the source stands."""
    return place(len(server.endpoint.tables.source.transactions))


@contextmanager
def served():
    """``cdc.turns`` asks these tables."""
    answers = {
        "Server": _Server,
        "mapped_tables": lambda server, _: [tuple(name.split(".")) for name in server.endpoint.tables.names()],
        "table_schemas": lambda _, names, *__: {name: schema_of(".".join(name)) for name in names},
        "settled": lambda server, position: server.endpoint.tables.settle(position),
        "settle_session": lambda _: None,
        "order_of": lambda _, schema, __: _Order(schema.name),
        "Chunker": _Chunker,
        "surplus": _surplus,
        "count_rows": lambda server, order, _: len(server.endpoint.tables.rows(order)),
    }
    with mock.patch.multiple("cdc.turns", **answers):
        yield SimpleNamespace()
