"""Plan a verification: how each table is compared, and which of its chunks."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from cdc.errors import SchemaMismatch
from cdc.model.schema import TableSchema
from cdc.model.snapshot import Chunk
from cdc.model.table_names import table_of
from cdc.model.verify import TableVerification, Verification, VerifyRequest, VerifyState
from cdc.mysql.catalog import table_schemas
from cdc.mysql.key_order import KeyOrder, key_order_of
from cdc.mysql.server import Server
from cdc.run_context import RunContext
from cdc.snapshot.orphan_rows import key_columns
from cdc.snapshot.planner import CHUNK_ROWS, Chunker
from cdc.snapshot.step_plan import table_read
from cdc.snapshot.table_shape import is_unchanged, order_columns, same_columns
from channels.channel import Channel
from channels.sinks.row_ranges import can_read_rows
from channels.table_compare import TableCompare, range_columns

_SAMPLED_CHUNKS = 4  # of a sample: few enough to read little, enough to meet different ranges
_LEAST_ROWS = 1000  # of a chunk of a sample


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """One table at the position of a step."""

    name: str
    schema: TableSchema
    channel: Channel
    order: KeyOrder
    compare: TableCompare


class CannotCompare(Exception):
    """A table cannot be compared; the text says why."""


def refuse_changed(server: Server, planned: Sequence[ComparedTable]) -> None:
    """Raise SchemaMismatch if a table has other columns or another order of its keys now than when it was planned.

    Raises: SourceUnavailable.
    """
    for one in planned:
        if not is_unchanged(server, one.schema, one.order):
            raise SchemaMismatch(
                "The table was changed while it was compared.",
                hint="The job compares the rows again after the stream has passed the DDL statement.",
                table=one.name,
            )


class VerifyPlanner:
    """Plans tables. Calls: the Consumer's thread."""

    def __init__(
        self, context: RunContext, channel: Callable[[TableSchema], Channel | None], hidden: Collection[str]
    ) -> None:
        """``channel``: see ``SnapshotCoordinator``. ``hidden``: target columns whose values are not shown."""
        self._context = context
        self._channel = channel
        self._hidden = frozenset(name.casefold() for name in hidden)

    def table(self, server: Server, name: str, request: VerifyRequest, sequence: int) -> ComparedTable:
        """Return how ``name`` is compared now.

        Raises: CannotCompare; SchemaMismatch - the stream has not reached the columns of the table; SourceUnavailable.
        """
        context, (database, table) = self._context, table_of(name)
        if not context.routes.may_map(database, table):  # the source need not have it
            left_out = context.routes.left_out.get(name)
            reason = f"leaves this table out: {left_out.reason}" if left_out else "does not read this table"
            raise CannotCompare(f"the job {reason}")
        today = table_schemas(server, [(database, table)], context.routes.leave_out).get((database, table))
        if today is None:
            raise CannotCompare("the source does not have this table")
        known = context.receiver.schema(database, table)
        if not same_columns(today, known):
            raise SchemaMismatch(
                "The table's columns or its key differ from those at the position of the stream.",
                hint="The job verifies the table after the stream has passed the DDL statement, or pauses there.",
                table=name,
            )
        channel = self._channel(known)
        if channel is None:
            raise CannotCompare("the job does not load this table")
        return ComparedTable(name, today, channel, *self._compare(server, today, channel, request, sequence))

    def _compare(
        self, server: Server, schema: TableSchema, channel: Channel, request: VerifyRequest, sequence: int
    ) -> tuple[KeyOrder, TableCompare]:
        context, target, sink = self._context, channel.target, self._context.sink
        if not can_read_rows(sink):
            raise CannotCompare("the rows of this sink cannot be read")
        order = key_order_of(server, schema, order_columns(channel, schema))
        if not order.columns:
            raise CannotCompare("no index orders the rows of the source, so a step could not end early")
        key = key_columns(channel, schema)
        if key is None:
            raise CannotCompare("a key column of the target is not a copy of a source column")
        columns = tuple(column.name for column in target.columns)
        if request.columns:
            requested = {name.casefold() for name in request.columns}
            missing = requested - {name.casefold() for name in columns}
            if missing:
                raise CannotCompare(f"the target has no column {', '.join(sorted(missing))}")
            columns = tuple(name for name in columns if name.casefold() in requested or name in target.key)
        sources = {column.name: column.source_type.lower() for column in target.columns}
        read = table_read(context, channel, schema, order, None, sequence, 0)
        compare = TableCompare(
            read,
            target.key,
            key,
            columns,
            frozenset(name for name in columns if name.casefold() in self._hidden),
            frozenset(name for name in columns if sources[name].startswith("json")),
            range_columns(order, channel.mapping.copies(schema)),
            lambda: sink.row_reader(target, columns),
        )
        if compare.range_columns is not None and not compare.open_rows().has_order_of(compare.range_columns):
            compare = replace(compare, range_columns=None)
        return order, compare

    def chunks(self, server: Server, planned: ComparedTable, run: Verification) -> TableVerification:
        """Return the chunks of a table to compare. A sample has chunks that are drawn at random."""
        request = run.request
        sizes = server.ask(
            "SELECT AVG_ROW_LENGTH AS row_bytes, TABLE_ROWS AS table_rows FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (planned.schema.database, planned.schema.table),
        )
        row_bytes, rows = (int(sizes[0][name] or 0) if sizes else 0 for name in ("row_bytes", "table_rows"))
        chunk_rows = CHUNK_ROWS
        if request.sample is not None:
            chunk_rows = min(chunk_rows, max(_LEAST_ROWS, round(rows * request.sample / _SAMPLED_CHUNKS)))
        plan = Chunker(server, planned.order, chunk_rows=chunk_rows).plan(row_bytes=row_bytes, whole=True)
        chunks: Sequence[Chunk] = plan.chunks
        if request.sample is not None:
            count = max(1, round(len(chunks) * request.sample))
            drawn = random.Random(f"{run.number} {planned.name}")  # noqa: S311 - a sample, not a secret
            chunks = sorted(drawn.sample(chunks, count), key=lambda chunk: chunk.number)
        # the first chunk has no lower end, so that rows before the first key of the source are found in the target
        return TableVerification(
            VerifyState.COMPARING,
            open=tuple(chunks),
            chunks=len(chunks),
            estimated_rows=sum(chunk.estimated_rows for chunk in chunks),
            order=planned.order.text,
            note=self.note(planned, request),
        )

    def note(self, planned: ComparedTable, request: VerifyRequest) -> str:
        """Return what is not compared."""
        if planned.compare.range_columns is None and request.sample is not None:
            return (
                "source and target order the keys differently, so a sample does not find rows that only the target has"
            )
        return ""
