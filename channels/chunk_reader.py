"""Read chunks of tables on executors, directly from the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc.errors import DecodeError
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.schema import DELETED, SEQUENCE, Column
from cdc.model.snapshot import Bound, Chunk
from cdc.mysql.connection import Endpoint
from cdc.mysql.key_order import KeyOrder
from cdc.mysql.query_stream import ResultRows, Select
from cdc.mysql.result_rows import selected
from cdc.sources.partition_reader import PartitionBatch
from channels.partition_read import (
    PartitionLoad,
    PartitionOutcome,
    PartitionTarget,
    ReadBudget,
    TypedMapping,
    read_partitions,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from channels.sinks.base import PartWriter


@dataclass(frozen=True, slots=True)
class TableRead:
    """One table of a snapshot step."""

    name: LoadName  # of its first part
    order: KeyOrder
    columns: tuple[Column, ...]  # columns to read, in table order
    key: frozenset[str]  # those of ``columns`` that form the target's key: never NULL
    sequence: int  # of every row: above all rows in the sink, below all later rows of the stream
    where: str | None
    writer: PartWriter = field(repr=False)
    copies: Mapping[str, str] | None = None  # target column -> source column; None: with expressions
    expressions: Mapping[str, str] | None = None  # target column -> Spark SQL; None: rows are copied and renamed
    target: pa.Schema | None = None
    kept: frozenset[str] = frozenset()
    row_filter: str | None = None

    @property
    def mapping(self) -> TypedMapping | None:
        """Return the expressions that compute the target's rows; None if rows are copied."""
        if self.expressions is None:
            return None
        assert self.target is not None
        source = pa.schema([
            *(pa.field(column.name, column.arrow) for column in self.columns),
            pa.field(DELETED, pa.bool_()), pa.field(SEQUENCE, pa.int64()),
        ])  # fmt: skip
        return TypedMapping(source, self.target, self.expressions, self.kept, self.row_filter)


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """One chunk of a snapshot step."""

    table: int  # number of its TableRead
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class ChunkOutcome:
    """Progress of one chunk."""

    table: int
    chunk: int  # its number
    above: Bound | None  # all rows up to this key are read
    ended: bool
    rows: int
    bytes: int
    seconds: float = 0.0  # of reading it


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """The result of a snapshot step."""

    loads: tuple[PreparedLoad, ...]
    chunks: tuple[ChunkOutcome, ...]  # those that were started


def read_chunks(
    spark_session: SparkSession,
    endpoint: Endpoint,
    tables: Sequence[TableRead],
    chunks: Sequence[ChunkRead],
    readers: int,
    budget: ReadBudget,
) -> SnapshotResult:
    """Read and write ``chunks``; see ``read_partitions``. A table with expressions must be the only one."""
    partitions = [_load(endpoint, tables[read.table], read.chunk) for read in chunks]
    result = read_partitions(spark_session, partitions, readers, budget, tables[0].mapping)
    return SnapshotResult(result.loads, tuple(_outcome(chunks[one.number], one) for one in result.partitions))


def _load(endpoint: Endpoint, table: TableRead, chunk: Chunk) -> PartitionLoad:
    target = PartitionTarget(replace(table.name, task=chunk.number), table.writer)
    return PartitionLoad(ChunkReader(endpoint, table, chunk), (target,))


def _outcome(read: ChunkRead, one: PartitionOutcome) -> ChunkOutcome:
    above = None if one.position is None else tuple(one.position)
    return ChunkOutcome(read.table, read.chunk.number, above, one.is_complete, one.rows, one.bytes, one.seconds)


@dataclass(frozen=True, slots=True)
class ChunkReader:
    """See ``PartitionReader``. A position is the key of the last row read."""

    endpoint: Endpoint
    table: TableRead
    chunk: Chunk

    @property
    def start(self) -> Bound | None:
        """See ``PartitionReader``."""
        return self.chunk.above

    def batches(self, is_over: Callable[[], bool]) -> Iterator[PartitionBatch]:
        """See ``PartitionReader``. Raises: DecodeError - a key column has a value that the target cannot hold."""
        table, position = self.table, self.chunk.above
        tail, bounds = table.order.tail(self.chunk, table.where)
        sql = "SELECT " + ", ".join(selected(column) for column in table.columns) + tail
        # a table without an index has no order in which a later step could continue, so read it to its end
        may_stop = is_over if table.order.columns else _never
        with Select(self.endpoint, sql, bounds, table.columns) as select:
            for rows in select.rows(may_stop, needs_row=self.chunk.is_slow):
                _refuse_null_keys(table, rows.batch)
                position = _last_key(table, rows)
                yield PartitionBatch(stamped(rows.batch, table), position, rows.size)
            if select.ended:
                yield PartitionBatch(None, position, is_last=True)


def _never() -> bool:
    return False


def _last_key(table: TableRead, rows: ResultRows) -> Bound | None:
    if not table.order.columns:
        return None
    last = rows.batch.num_rows - 1
    names = [column.name.casefold() for column in table.columns]
    bound = []
    for column in table.order.columns:
        number = names.index(column.column.name.casefold())
        value = rows.batch.column(number)[last]
        if not value.is_valid:  # a bound of NULL would exclude all other rows of the chunk
            raise _invalid_key(table, column.column.name)
        bound.append(column.text_of(value, rows.raw(number, last)))
    return tuple(bound)


def _refuse_null_keys(table: TableRead, batch: pa.RecordBatch) -> None:
    for column in table.columns:
        if column.name in table.key and batch.column(column.name).null_count:
            raise _invalid_key(table, column.name)


def _invalid_key(table: TableRead, column: str) -> DecodeError:
    return DecodeError(
        "A zero or invalid date in a key column cannot be stored in the target.",
        hint="Correct these rows in the source, or choose a key without this column.",
        table=table.order.table,
        column=column,
    )


def stamped(batch: pa.RecordBatch, table: TableRead) -> pa.RecordBatch:
    """Return rows of ``table.columns`` as a load gets them: copies are renamed, then ``__deleted``, ``__sequence``."""
    rows = batch.num_rows
    copies = table.copies or {name: name for name in batch.schema.names}
    arrays = [batch.column(source) for source in copies.values()]
    added = [pa.repeat(pa.scalar(False), rows), pa.repeat(pa.scalar(table.sequence, pa.int64()), rows)]
    return pa.RecordBatch.from_arrays([*arrays, *added], [*copies, DELETED, SEQUENCE])
