"""A DataFrame loaded into a sink by executors, without a channel and a runner."""

from __future__ import annotations

from pyspark.sql import DataFrame

from cdc.errors import CdcError
from cdc.model.batch import LoadName, PreparedLoad
from channels.sinks.base import Sink, TargetTable
from spark.writers import write_frames


def prepare(sink: Sink, frame: DataFrame, name: LoadName, table: TargetTable) -> tuple[PreparedLoad, ...]:
    """Load ``frame`` as one Task and return its loads. Raises: the error of the writer."""
    (outcome,) = write_frames([frame], [(name, table.key, sink.part_writer(table))])
    if isinstance(outcome, CdcError):
        raise outcome
    return () if outcome is None else (outcome,)
