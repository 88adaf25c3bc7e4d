"""Spark actions: pass DataFrame partitions to the writers of a sink on executors, and return the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdc.errors import CdcError, error_from_json, error_to_json
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.row_keys import newest_rows
from spark.frames import LOAD, packed_frame, unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from channels.sinks.base import PartWriter

OUTCOMES = f"{LOAD} int, outcome string"


@dataclass(frozen=True, slots=True)
class PackedLoad:
    """Rows that already have the columns of the target, and their writer."""

    name: LoadName
    key: tuple[str, ...]
    writer: PartWriter
    rows: Sequence[pa.RecordBatch]
    byte_count: int


Outcome = PreparedLoad | CdcError | None  # None: no rows


def write_packed(spark_session: SparkSession, loads: Sequence[PackedLoad], partition_count: int) -> list[Outcome]:
    """Write ``loads`` in one Spark job, each on one executor, distributed to ``partition_count`` partitions by size."""
    partitions = distributed(loads, partition_count)
    frame = packed_frame(spark_session, [[(number, loads[number].rows) for number in part] for part in partitions])
    write = _packed_writer([(load.name, load.key, load.writer) for load in loads])
    return outcomes_of(frame.mapInArrow(write, OUTCOMES), len(loads))


def distributed(loads: Sequence[PackedLoad], partition_count: int) -> list[list[int]]:
    """Return the numbers of the loads of each partition: the largest first, each into the emptiest partition."""
    partitions: list[list[int]] = [[] for _ in range(min(partition_count, len(loads)))]
    filled = [0] * len(partitions)
    for number in sorted(range(len(loads)), key=lambda number: -loads[number].byte_count):
        index = filled.index(min(filled))
        filled[index] += loads[number].byte_count + 1
        partitions[index].append(number)
    return partitions


def outcomes_of(written: DataFrame, count: int) -> list[Outcome]:
    """Run the Spark job of ``written``, and return the outcomes of ``count`` loads."""
    outcomes: list[Outcome] = [None] * count
    for row in written.collect():
        outcomes[row[LOAD]] = _outcome_from_json(row["outcome"])
    return outcomes


def write_frames(
    frames: Sequence[DataFrame], loads: Sequence[tuple[LoadName, tuple[str, ...], PartWriter]]
) -> list[Outcome]:
    """Write each DataFrame as one part, all in one Spark job.

    If there are several rows of a key, the newest by ``__sequence`` is written.
    """
    result = None
    for number, (frame, (name, key, writer)) in enumerate(zip(frames, loads, strict=True)):
        # from a million rows on there is a second partition, which would overwrite the part of the first one
        part = frame.coalesce(1).mapInArrow(_frame_writer(number, name, key, writer), OUTCOMES)
        result = part if result is None else result.unionAll(part)
    return [] if result is None else outcomes_of(result, len(loads))


Batches = Iterator[pa.RecordBatch]


def _packed_writer(loads: Sequence[tuple[LoadName, tuple[str, ...], PartWriter]]) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        for batch in batches:
            for number, rows in unpacked(batch):
                yield written(number, *loads[number], rows)

    return write


def _frame_writer(
    number: int, name: LoadName, key: tuple[str, ...], writer: PartWriter
) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        pieces = [batch for batch in batches if batch.num_rows]
        if pieces:
            yield written(number, name, key, writer, pa.Table.from_batches(pieces))

    return write


def written(number: int, name: LoadName, key: tuple[str, ...], writer: PartWriter, rows: pa.Table) -> pa.RecordBatch:
    """Write the newest row of each key, on an executor. Return the outcome as a row of ``OUTCOMES``."""
    try:
        load = writer(name, iter(newest_rows(rows, key).to_batches()))
        outcome: dict[str, Any] = {"load": load.to_json() if load else None}
    except CdcError as error:
        outcome = {"error": error_to_json(error)}
    text = json.dumps(outcome)
    return pa.RecordBatch.from_arrays([pa.array([number], pa.int32()), pa.array([text])], [LOAD, "outcome"])


def _outcome_from_json(text: str) -> Outcome:
    data = json.loads(text)
    if "error" in data:
        return error_from_json(data["error"])
    return PreparedLoad.from_json(data["load"]) if data["load"] else None
