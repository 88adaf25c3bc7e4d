"""The actions: DataFrame partitions handed to a sink's writers on the executors, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from cdc import errors
from cdc.batch import LoadName, PreparedLoad
from cdc.errors import CdcError
from spark.frames import LOAD, packed_frame, shared_frame, unpacked
from spark.newest import newest_rows
from spark.shared import SharedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from channels.sinks.base import PartWriter

_OUTCOMES = f"{LOAD} int, outcome string"


@dataclass(frozen=True, slots=True)
class PackedLoad:
    """Rows that have the target's columns already, and the writer that takes them."""

    name: LoadName
    key: tuple[str, ...]
    writer: PartWriter
    rows: Sequence[pa.RecordBatch]
    byte_count: int


Outcome = PreparedLoad | CdcError | None  # None: there was no row


def write_packed(
    spark_session: SparkSession, loads: Sequence[PackedLoad], partition_count: int, *, shared: bool
) -> list[Outcome]:
    """Write ``loads`` in one Spark job, each by one executor, spread over ``partition_count`` partitions by size.

    ``shared``: the executors can read this process's shared memory.
    """
    partitions: list[list[tuple[int, Sequence[pa.RecordBatch]]]]
    partitions = [[] for _ in range(min(partition_count, len(loads)))]
    filled = [0] * len(partitions)
    for number in sorted(range(len(loads)), key=lambda number: -loads[number].byte_count):
        place = filled.index(min(filled))
        filled[place] += loads[number].byte_count + 1
        partitions[place].append((number, loads[number].rows))
    write = _packed_writer([(load.name, load.key, load.writer) for load in loads])
    outcomes: list[Outcome] = [None] * len(loads)
    with ExitStack() as stack:
        if shared:
            frame = shared_frame(spark_session, partitions, stack.enter_context(SharedRows()))
        else:
            frame = packed_frame(spark_session, partitions)
        for row in frame.mapInArrow(write, _OUTCOMES).collect():
            outcomes[row[LOAD]] = _outcome_from_json(row["outcome"])
    return outcomes


def write_frames(
    frames: Sequence[DataFrame], loads: Sequence[tuple[LoadName, tuple[str, ...], PartWriter]]
) -> list[Outcome]:
    """Write each DataFrame as one part, all in one Spark job.

    Rows of one key may come several times: the newest by ``__sequence`` is written.
    """
    written = None
    for number, (frame, (name, key, writer)) in enumerate(zip(frames, loads, strict=True)):
        # a second partition, which a million rows make, would overwrite what the first has written under this name
        part = frame.coalesce(1).mapInArrow(_frame_writer(number, name, key, writer), _OUTCOMES)
        written = part if written is None else written.unionAll(part)
    outcomes: list[Outcome] = [None] * len(loads)
    for row in written.collect() if written is not None else ():
        outcomes[row[LOAD]] = _outcome_from_json(row["outcome"])
    return outcomes


def write_parts(frame: DataFrame, name: LoadName, key: Sequence[str], writer: PartWriter, parts: int) -> list[Outcome]:
    """Write a DataFrame as ``parts`` parts, split by hash of key: a part that is written again is the same part."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        yield from _frame_writer(part, replace(name, part=part), tuple(key), writer)(batches)

    frame = frame.repartition(parts, *key) if parts > 1 else frame.coalesce(1)
    rows = sorted(frame.mapInArrow(write, _OUTCOMES).collect(), key=lambda row: row[LOAD])
    return [_outcome_from_json(row["outcome"]) for row in rows]


Batches = Iterator[pa.RecordBatch]


def _packed_writer(loads: Sequence[tuple[LoadName, tuple[str, ...], PartWriter]]) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        for batch in batches:
            for number, rows in unpacked(batch):
                yield _written(number, *loads[number], rows)

    return write


def _frame_writer(
    number: int, name: LoadName, key: tuple[str, ...], writer: PartWriter
) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        pieces = [batch for batch in batches if batch.num_rows]
        if pieces:
            yield _written(number, name, key, writer, pa.Table.from_batches(pieces))

    return write


def _written(number: int, name: LoadName, key: tuple[str, ...], writer: PartWriter, rows: pa.Table) -> pa.RecordBatch:
    try:
        load = writer(name, iter(newest_rows(rows, key).to_batches()))
        outcome: dict[str, Any] = {"load": load.to_json() if load else None}
    except CdcError as error:
        outcome = {"error": _error_to_json(error)}
    text = json.dumps(outcome, default=str)
    return pa.RecordBatch.from_arrays([pa.array([number], pa.int32()), pa.array([text])], [LOAD, "outcome"])


def _error_to_json(error: CdcError) -> dict[str, Any]:
    extra = {"after_s": error.after_s} if isinstance(error, errors.SinkBusy) else {}
    return {
        "class": type(error).__name__,
        "message": error.message,
        "mend": error.mend,
        "where": error.where,
        "extra": extra,
    }


def _outcome_from_json(text: str) -> Outcome:
    data = json.loads(text)
    if "error" in data:
        error = data["error"]
        kind: type[CdcError] = getattr(errors, error["class"])
        return kind(error["message"], mend=error["mend"], **error["extra"], **error["where"])
    return PreparedLoad.from_json(data["load"]) if data["load"] else None
