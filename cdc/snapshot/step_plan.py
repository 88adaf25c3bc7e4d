"""What a snapshot step does, how the rows of a table are read in it, and a table's progress after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from cdc.model.batch import LoadName
from cdc.model.schema import TableSchema
from cdc.model.snapshot import Chunk, TableSnapshot
from cdc.mysql.key_order import KeyOrder, key_order_of
from cdc.mysql.server import Server
from cdc.run_context import RunContext, SnapshotSettings
from cdc.snapshot.orphan_rows import PAGE_KEYS, OrphanSearch, delete_task, find_orphan_rows, key_columns
from cdc.snapshot.planner import Chunker
from channels.channel import Channel
from channels.chunk_reader import ChunkOutcome, ChunkRead, TableRead
from channels.chunk_task import ChunkReadRequest
from channels.partition_read import ReadBudget
from channels.sinks.base import can_list_keys
from channels.task import Task

STEP_ROWS = 6_000_000  # of all readers together: a size that the sink merges in one commit
STEP_BYTES = 1 << 30
STEP_TABLES = 50
_CHUNKS_A_READER = 16  # more than a reader completes in one step

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotStep:
    """The work of one snapshot step: read chunks, or delete the orphan rows of one table."""

    tables: tuple[str, ...]  # outcomes name a table by its index here
    schemas: tuple[TableSchema, ...]  # at the time of the plan
    read_request: ChunkReadRequest | None  # None: the step deletes orphan rows
    delete_orphans: Callable[[], Task | None] | None = None  # finds orphan rows and returns the Task that deletes them
    search: OrphanSearch | None = None  # the progress of ``delete_orphans``


class PlannedChunks:
    """Collects the tables whose chunks one step reads."""

    def __init__(self) -> None:
        self.tables: list[str] = []
        self._schemas: list[TableSchema] = []
        self._reads: list[TableRead] = []
        self._chunks: list[ChunkRead] = []
        self._rows = 0

    def accepts(self, *, copies_columns: bool) -> bool:
        """Return whether this step can read another table. One with expressions is read in a step of its own."""
        return not self._reads or (copies_columns and self._reads[0].expressions is None)

    def add(self, table: str, schema: TableSchema, read: TableRead, chunks: Sequence[Chunk]) -> None:
        """Add the open ``chunks`` of a table."""
        self._chunks += [ChunkRead(len(self._reads), chunk) for chunk in chunks]
        self._reads.append(read)
        self._schemas.append(schema)
        self.tables.append(table)
        self._rows += sum(chunk.estimated_rows for chunk in chunks)

    @property
    def is_full(self) -> bool:
        """Whether this step can read no other table."""
        has_expressions = any(read.expressions is not None for read in self._reads)
        return has_expressions or self._rows >= STEP_ROWS or len(self._reads) >= STEP_TABLES

    def step(self, settings: SnapshotSettings) -> SnapshotStep:
        """Return the step that reads the chunks."""
        budget = ReadBudget(settings.step_s, STEP_ROWS, STEP_BYTES, settings.rows_per_s, settings.bytes_per_s)
        chunks = tuple(self._chunks[: settings.readers * _CHUNKS_A_READER])
        request = ChunkReadRequest(settings.endpoint, tuple(self._reads), chunks, settings.readers, budget)
        return SnapshotStep(tuple(self.tables), tuple(self._schemas), request)


def table_read(
    context: RunContext,
    channel: Channel,
    schema: TableSchema,
    order: KeyOrder,
    where: str | None,
    sequence: int,
    checkpoint: int,
) -> TableRead:
    """Return how the executors read and write the chunks of a table: its columns, or the channel's expressions."""
    run, mapping, target = context.run, channel.mapping, channel.target
    reads = mapping.reads(schema)
    requested = {name.casefold() for name in reads.columns | reads.key}
    columns = tuple(column for column in schema.columns if column.name.casefold() in requested)
    read = TableRead(
        LoadName(run.job, run.incarnation, run.fence, checkpoint, target.name, task=0),
        order,
        columns,
        frozenset(column.name for column in columns if column.name in reads.key),
        sequence,
        where,
        context.sink.part_writer(target),
    )
    copies = mapping.copied(schema)
    if copies is not None:
        return replace(read, copies=copies)
    return replace(
        read,
        expressions=mapping.expressions(schema),
        target=pa.schema([pa.field(column.name, column.arrow) for column in target.columns]),
        kept=frozenset(column.name for column in target.columns if not column.nullable).union(target.key),
        row_filter=mapping.filter,
    )


def orphan_step(
    context: RunContext,
    settings: SnapshotSettings,
    name: str,
    snapshot: TableSnapshot,
    server: Server,
    schema: TableSchema,
    channel: Channel,
    sequence: int,
    checkpoint: int,
) -> SnapshotStep:
    """Return the step that finds and deletes orphan rows of the table ``name``. They are searched when it runs."""
    run, sink, target, endpoint = context.run, context.sink, channel.target, settings.endpoint
    columns = key_columns(channel, schema)
    load = LoadName(run.job, run.incarnation, run.fence, checkpoint, target.name, task=0)
    search = OrphanSearch(snapshot.compared_key)
    order = key_order_of(server, schema, [column.name for column in columns or ()])

    def delete_orphans() -> Task | None:
        if columns is None or not can_list_keys(sink):
            _log.warning("orphan rows of %s remain: the sink cannot list its keys, or a key column is not a copy", name)
            search.is_done, search.is_possible = True, False
            return None
        orphans = search.run(
            lambda after: sink.keys(target, after, PAGE_KEYS),
            lambda page: find_orphan_rows(endpoint, order, columns, page, lambda: search.is_cancelled),
            settings.step_s,
        )
        _log.info("snapshot of %s: %d orphan rows found in the target", name, orphans.num_rows)
        return delete_task(load, name, target, schema, orphans, sequence) if orphans.num_rows else None

    return SnapshotStep((name,), (schema,), None, delete_orphans, search)


def with_outcomes(
    snapshot: TableSnapshot, outcomes: Sequence[ChunkOutcome], seconds: float, step_s: float
) -> TableSnapshot:
    """Return the state of a table after a step of ``seconds`` that read ``outcomes``: its open chunks and counts.

    ``step_s``: a chunk that was read for so long and gave no row is slow. As it is, each step would begin it again.
    """
    outcome_by_chunk = {one.chunk: one for one in outcomes}
    left: list[Chunk] = []
    for chunk in snapshot.open:
        one = outcome_by_chunk.get(chunk.number)
        if one is None:
            left.append(chunk)
        elif not one.ended:
            estimated_rows, is_slow = max(1, chunk.estimated_rows - one.rows), not one.rows and one.seconds >= step_s
            left.append(replace(chunk, above=one.above, estimated_rows=estimated_rows, is_slow=is_slow))
    return replace(
        snapshot,
        open=tuple(left),
        done=snapshot.done + len(snapshot.open) - len(left),
        rows=snapshot.rows + sum(one.rows for one in outcome_by_chunk.values()),
        bytes=snapshot.bytes + sum(one.bytes for one in outcome_by_chunk.values()),
        seconds=snapshot.seconds + seconds,
    )


def split_slow_chunks(chunker: Chunker, snapshot: TableSnapshot) -> TableSnapshot:
    """Return the state of a table with its slow chunks split. One that cannot be split stays slow."""
    chunks: list[Chunk] = []
    number = snapshot.chunks
    for chunk in snapshot.open:
        parts = chunker.split(chunk, number) if chunk.is_slow else (chunk,)
        number += len(parts) - 1
        chunks += parts
    return replace(snapshot, open=tuple(chunks), chunks=number)
