"""Read a planned range of a source on executors, and write its rows, in one Spark job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc.model.schema import DELETED, SEQUENCE, TableSchema
from cdc.sources.partition_reader import PartitionReader
from channels.channel import Channel
from channels.partition_read import (
    SLOW_START_S,
    PartitionLoad,
    PartitionTarget,
    ReadBudget,
    ReadResult,
    TypedMapping,
    read_partitions,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WHOLE = ReadBudget(float("inf"), sys.maxsize, sys.maxsize)
_SLOW_ROWS_PER_S = 1000.0  # a reader reads hundreds of thousands


@dataclass(frozen=True, slots=True)
class RangeReadRequest:
    """A range of the source to read. See ``ReadRequest``."""

    targets: tuple[PartitionTarget, ...]  # by ``PartitionBatch.table``; with a mapping there is only one
    readers: Callable[[int], Sequence[PartitionReader]]  # number of parallel readers at most -> the readers
    entries: int  # source events in the range at most
    is_repeatable: bool  # whether Spark may repeat a task that failed
    mapping: TypedMapping | None = None  # None: rows already have the columns of the targets

    @property
    def channels(self) -> tuple[str, ...]:
        """See ``ReadRequest``."""
        return tuple(target.name.channel for target in self.targets)

    @property
    def work(self) -> str:
        """See ``ReadRequest``."""
        return "read of a range"

    @property
    def usual_s(self) -> float:
        """See ``ReadRequest``."""
        return SLOW_START_S + self.entries / _SLOW_ROWS_PER_S

    def run(self, spark_session: SparkSession, core_count: int) -> ReadResult:
        """See ``ReadRequest``."""
        loads = [
            PartitionLoad(
                reader,
                tuple(replace(one, name=replace(one.name, task=number)) for one in self.targets),
                self.is_repeatable,
            )
            for number, reader in enumerate(self.readers(core_count))
        ]
        return read_partitions(spark_session, loads, len(loads), _WHOLE, self.mapping)


def needed_columns(channel: Channel) -> dict[str, str]:
    """Return column of the load -> source column: the target's copies, or the columns that its expressions read."""
    copies = channel.mapping.copied(channel.schema)
    if copies is not None:
        return copies
    return {name: name for name in _read_columns(channel)}


def typed_mapping(channel: Channel) -> TypedMapping | None:
    """Return the expressions that compute the target's rows; None if rows are copied."""
    mapping, schema, target = channel.mapping, channel.schema, channel.target
    if mapping.copied(schema) is not None:
        return None
    source = pa.schema([
        *(pa.field(name, schema.column(name).arrow) for name in _read_columns(channel)),
        pa.field(DELETED, pa.bool_()), pa.field(SEQUENCE, pa.int64()),
    ])  # fmt: skip
    return TypedMapping(
        source,
        pa.schema([pa.field(column.name, column.arrow) for column in target.columns]),
        mapping.expressions(schema),
        frozenset(column.name for column in target.columns if not column.nullable).union(target.key),
        mapping.filter,
    )


def _read_columns(channel: Channel) -> list[str]:
    schema: TableSchema = channel.schema
    reads = channel.mapping.reads(schema)
    requested = {name.casefold() for name in reads.columns | reads.key}
    return [column.name for column in schema.columns if column.name.casefold() in requested]
