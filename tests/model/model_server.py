"""Replies to the queries of ``cdc.snapshot.coordinator`` from a Source: tables, chunks, keys, and what a query sees.

Queries may see less than the binlog contains, until ``settled`` is true, and more, because writes continue.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa

from cdc.errors import SchemaMismatch, SourceUnavailable
from cdc.model.schema import DELETED, SEQUENCE
from cdc.model.snapshot import Chunk
from cdc.snapshot.planner import ChunkPlan
from channels.chunk_reader import ChunkOutcome
from tests.model.source import position_at

AWAY = SourceUnavailable("The source is unavailable.", hint="It is retried.")


class Tables:
    """The tables of the server, for all processes. Later queries see everything that an earlier one has seen."""

    def __init__(self, source, draw):
        self.source, self.draw = source, draw
        self.seen = 0  # transactions

    def names(self):
        return sorted({row.table for transaction in self.source.transactions for row in transaction})

    def rows(self, table):
        """Return key -> op, as a query sees them that starts now."""
        self.seen = self.draw.randint(self.seen, len(self.source.transactions))
        return self.source.state(self.seen).get(table, {})

    def schema(self, table):
        """Return the columns of a table as the catalog has them now."""
        self.seen = self.draw.randint(self.seen, len(self.source.transactions))
        return self.source.schema_at(table, self.seen)

    def values(self, table, columns):
        """Return key -> column -> value. Raises: SchemaMismatch - the table has lost one of ``columns``."""
        keys = self.rows(table)
        if not {column.name for column in columns} <= {
            one.name for one in self.source.schema_at(table, self.seen).columns
        }:
            raise SchemaMismatch("The table was changed while its rows were read.", hint="It is read again.")
        return {key: self.source.rows(self.seen)[table][key] for key in keys}

    def is_visible(self, position):
        is_reached = self.seen >= position.offset or self.draw.random() < 0.8
        if is_reached:
            self.seen = max(self.seen, position.offset)
        return is_reached


class Endpoint:
    """The access of one process to the tables."""

    def __init__(self, tables, steps):
        self.tables, self.steps = tables, steps

    def read(self, table, chunk):
        """Return the outcome of a chunk, and its rows or the first of them."""
        rows = self.steps.step("read", lambda: self.tables.values(table.order, table.columns), reject=AWAY)
        low = int(chunk.above[0]) if chunk.above else -1
        high = int(chunk.upto[0]) if chunk.upto else 1 << 30
        found = [(key, values) for key, values in sorted(rows.items()) if low < key <= high]
        ended = self.tables.draw.random() < 0.7
        if not ended:
            found = found[: self.tables.draw.randint(0, len(found))]
        above = (str(found[-1][0]),) if found else chunk.above
        stamp = {DELETED: False, SEQUENCE: table.sequence}
        chunk_result = {"above": above, "ended": ended, "rows": len(found), "bytes": 10 * len(found)}
        rows = [{"id": key, **values} for key, values in found]
        copied = [{target: row[source] for target, source in table.copies.items()} for row in rows]
        return chunk_result, [{**row, **stamp} for row in copied]

    def read_chunks(self, reading):
        """Yield the outcome of each chunk, and the loads of its rows, as they are read."""
        for read in reading.chunks[: self.tables.draw.randint(1, 4)]:
            table = reading.tables[read.table]
            chunk_result, rows = self.read(table, read.chunk)
            cut = self.tables.draw.randint(0, len(rows))
            parts = [part for part in (rows[:cut], rows[cut:]) if part]
            name = table.name
            names = [
                name.__class__(**{**_fields(name), "task": read.chunk.number, "part": n}) for n in range(len(parts))
            ]
            yield ChunkOutcome(read.table, read.chunk.number, **chunk_result), list(zip(names, parts, strict=True))


def _fields(name):
    return {field: getattr(name, field) for field in name.__dataclass_fields__}


class _Server:
    identity = "one"

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
            return ChunkPlan((Chunk(0, None, None),) if whole else (), 0)
        ends = [key for key in keys[:-1] if self.tables.draw.random() < 0.4] + [keys[-1]]
        bounds = [None, *((str(end),) for end in ends)]
        chunks = [Chunk(number, *bounds[number : number + 2], 1) for number in range(len(ends))]
        if whole:
            chunks[-1] = Chunk(len(ends) - 1, bounds[-2], None, 1)
        return ChunkPlan(tuple(chunks), len(chunks))

    def split(self, chunk, number):
        low = int(chunk.above[0]) if chunk.above else -1
        high = int(chunk.upto[0]) if chunk.upto else 1 << 30
        keys = [key for key in sorted(self.tables.rows(self.table)) if low < key <= high]
        if len(keys) < 2:
            return (chunk,)
        middle = (str(self.tables.draw.choice(keys[:-1])),)
        return Chunk(chunk.number, chunk.above, middle, 1), Chunk(number, middle, chunk.upto, 1)


class _Order(str):
    """The index of a table, identified by the table's name."""

    columns = names = ("id",)
    text = "`id`"


def _find_orphan_rows(endpoint, order, columns, keys, is_over):
    existing = endpoint.steps.step("compare keys", lambda: endpoint.tables.rows(order), reject=AWAY)
    return keys.filter(pa.array([key not in existing for key in keys.column("id").to_pylist()], pa.bool_()))


def _count_rows(server, order, snapshot, limit_s):
    last = int(snapshot.last_key[0]) if snapshot.last_key else 1 << 30
    return sum(key <= last for key in server.endpoint.tables.rows(order))


class InlineThread:
    """A thread whose work is done when ``start`` returns, so that a random case can be repeated."""

    def __init__(self, target, args, **_):
        self.start = lambda: target(*args)


def now(server):
    """Return the current position of the source."""
    return position_at(len(server.endpoint.tables.source.transactions))


def _key_order_of(_, schema, __):
    return _Order(schema.name)


@contextmanager
def served():
    """Let ``cdc.snapshot`` query these tables."""
    answers = {
        "Server": _Server,
        "mapped_tables": lambda server, _: [tuple(name.split(".")) for name in server.endpoint.tables.names()],
        "table_schemas": lambda server, names, *_: {
            name: server.endpoint.tables.schema(".".join(name)) for name in names
        },
        "is_visible": lambda server, position: server.endpoint.tables.is_visible(position),
        "configure_session": lambda _: None,
        "lacks_columns": lambda *_: False,
        "key_order_of": _key_order_of,
        "Chunker": _Chunker,
    }
    orphans = {"key_order_of": _key_order_of, "find_orphan_rows": _find_orphan_rows, "PAGE_KEYS": 2}
    shapes = {name: answers[name] for name in ("table_schemas", "key_order_of")}
    counts = {name: answers[name] for name in ("Server", "configure_session")}
    omitted = {name: answers[name] for name in ("Server", "mapped_tables", "table_schemas")}
    counts |= {"count_rows": _count_rows, "threading": SimpleNamespace(Thread=InlineThread)}
    with (
        mock.patch.multiple("cdc.snapshot.coordinator", **answers),
        mock.patch.multiple("cdc.snapshot.step_plan", **orphans),
        mock.patch.multiple("cdc.snapshot.table_shape", **shapes),
        mock.patch.multiple("cdc.snapshot.row_count", **counts),
        mock.patch("cdc.snapshot.step.Server", _Server),
        mock.patch.multiple("cdc.pipeline.omitted_tables", **omitted),
    ):
        yield SimpleNamespace()
