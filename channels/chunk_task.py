"""Read and write the chunks of one snapshot step in one Spark job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.mysql.connection import Endpoint
from channels.chunk_reader import ChunkRead, SnapshotResult, TableRead, read_chunks
from channels.partition_read import SLOW_START_S, ReadBudget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLOW_ROWS_PER_S = 1000.0  # a reader reads hundreds of thousands, but the estimated row count may be ten times too low


@dataclass(frozen=True, slots=True)
class ChunkReadRequest:
    """The chunks to read in one step. See ``ReadRequest``."""

    endpoint: Endpoint
    tables: tuple[TableRead, ...]  # a table with expressions is the only one
    chunks: tuple[ChunkRead, ...]
    readers: int  # parallel connections
    budget: ReadBudget

    @property
    def channels(self) -> tuple[str, ...]:
        """See ``ReadRequest``."""
        return tuple(table.name.channel for table in self.tables)

    @property
    def work(self) -> str:
        """See ``ReadRequest``."""
        return "snapshot step"

    @property
    def usual_s(self) -> float:
        """See ``ReadRequest``. A table without an index is read to its end, even if that exceeds ``budget``."""
        rows = sum(read.chunk.estimated_rows for read in self.chunks if not self.tables[read.table].order.columns)
        slowest = min([_SLOW_ROWS_PER_S, *filter(None, (self.budget.rows_per_s, self.budget.bytes_per_s))])
        return self.budget.seconds + SLOW_START_S + rows / slowest

    def run(self, spark_session: SparkSession, core_count: int) -> SnapshotResult:
        """See ``ReadRequest``."""
        readers = min(self.readers, core_count)
        return read_chunks(spark_session, self.endpoint, self.tables, self.chunks, readers, self.budget)
