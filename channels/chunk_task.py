"""Chunk tasks: the chunks of one turn of a snapshot, read and written by one Spark job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.binlog.connection import Endpoint
from spark.chunks import ChunkRead, Pace, TableRead, TurnOutcome, read_chunks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Reading:
    """What one turn is to read."""

    endpoint: Endpoint
    tables: tuple[TableRead, ...]  # one with expressions comes alone
    chunks: tuple[ChunkRead, ...]
    readers: int  # connections at once
    pace: Pace

    def run(self, spark_session: SparkSession, core_count: int) -> TurnOutcome:
        """Read and write, by no more readers than Spark has cores; blocks until the turn is over."""
        readers = min(self.readers, core_count)
        return read_chunks(spark_session, self.endpoint, self.tables, self.chunks, readers, self.pace)
