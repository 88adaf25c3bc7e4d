"""Read ranges of a source on executors and write them into a sink, without the driver in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from cdc.errors import CdcError, SinkUnavailable, error_from_json, error_to_json
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.row_keys import newest_rows
from cdc.sources.partition_reader import PartitionReader
from spark.frames import mapped_frame
from spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from channels.sinks.base import PartWriter

PART_BYTES = 32 << 20  # each reader holds one part in memory while it is written
PART_ROWS = 200_000  # a data file of a Delta table
SLOW_START_S = 20.0  # time for kernels, connections and index searches before the first row
_PROGRESS = "__progress"
_OUTCOME = "outcome string"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class ReadBudget:
    """Limits of one step: time, amount and rate of reading."""

    seconds: float
    rows: int
    bytes: int
    rows_per_s: float | None = None
    bytes_per_s: float | None = None

    def share(self, readers: int) -> ReadBudget:
        """Return the limits of each of ``readers`` parallel readers."""
        return ReadBudget(
            self.seconds,
            max(1, self.rows // readers),
            max(1, self.bytes // readers),
            self.rows_per_s and self.rows_per_s / readers,
            self.bytes_per_s and self.bytes_per_s / readers,
        )


@dataclass(frozen=True, slots=True)
class PartitionTarget:
    """The name and writer of the load of one table in a range."""

    name: LoadName  # of its first part
    writer: PartWriter = field(repr=False)
    key: tuple[str, ...] = ()  # the newest row of each key is written; (): every key is in one row of the range


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """A range to read, and the targets of its rows, by ``PartitionBatch.table``."""

    reader: PartitionReader
    targets: tuple[PartitionTarget, ...]
    is_repeatable: bool = False  # Spark may repeat a task that failed: the reader gives the same rows again


@dataclass(frozen=True, slots=True)
class TypedMapping:
    """Expressions between the rows that readers yield and those of the target."""

    source: pa.Schema  # of the readers' batches
    target: pa.Schema
    expressions: Mapping[str, str]  # target column -> Spark SQL
    kept: frozenset[str]  # target columns that are never NULL
    row_filter: str | None


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """Progress of one range."""

    number: int  # among the ranges of the read
    position: Any  # as ``PartitionBatch.position``, after JSON
    is_complete: bool
    rows: int
    bytes: int
    seconds: float = 0.0  # of reading it


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of one read."""

    loads: tuple[PreparedLoad, ...]
    partitions: tuple[PartitionOutcome, ...]  # the ranges that were started


def read_partitions(
    spark_session: SparkSession,
    partitions: Sequence[PartitionLoad],
    readers: int,
    budget: ReadBudget,
    mapping: TypedMapping | None = None,
) -> ReadResult:
    """Read ``partitions`` within ``budget`` with ``readers`` parallel Spark tasks, and write the rows.

    ``readers``: at most the number of Spark cores, because a task that waits for a core would start too late.
    ``mapping``: None if rows already have the columns of the target. With a mapping, all ranges have one target.
    A task of repeatable ranges that Spark repeats has labels of its own: ``LoadName.attempt`` is above 0.
    Raises: the error of a reader or a writer.
    """
    shares = [tuple(enumerate(partitions))[number::readers] for number in range(min(readers, len(partitions)))]
    budget = budget.share(len(shares))
    frame = spark_session.range(len(shares), numPartitions=len(shares))
    if mapping is None:
        outcomes = frame.mapInArrow(_plain_reader(shares, budget), _OUTCOME)
    else:
        source, target = (one.append(pa.field(_PROGRESS, pa.string())) for one in (mapping.source, mapping.target))
        read = frame.mapInArrow(_typed_reader(shares, budget, source), spark_schema(source))
        expressions = {**mapping.expressions, _PROGRESS: f"`{_PROGRESS}`"}
        mapped = mapped_frame(read, expressions, target, mapping.kept | {_PROGRESS}, mapping.row_filter)
        outcomes = mapped.mapInArrow(_typed_writer(partitions[0].targets[0]), _OUTCOME)
    loads: list[PreparedLoad] = []
    progress: list[PartitionOutcome] = []
    for row in outcomes.collect():
        data = json.loads(row["outcome"])
        if "error" in data:
            raise error_from_json(data["error"])
        loads += [PreparedLoad.from_json(load) for load in data["loads"]]
        progress += [PartitionOutcome(**one) for one in data["partitions"]]
    return ReadResult(tuple(loads), tuple(progress))


# on executors

_Share = Sequence[tuple[int, PartitionLoad]]  # of one Spark task: its ranges with their numbers


@dataclass(slots=True)
class _ShareReader:
    """Reads the ranges of one share one after the other, until the limits of the step."""

    budget: ReadBudget
    began: float | None = None  # when the first row arrived: a slow start does not count
    opened: float = field(default_factory=time.monotonic)
    rows: int = 0
    bytes: int = 0
    progress: list[PartitionOutcome] = field(default_factory=list)

    def partitions(self, share: _Share) -> Iterator[tuple[PartitionLoad, Iterator[tuple[int, pa.RecordBatch]]]]:
        """Yield ranges with the tables and rows of their batches until the step is over."""
        if not all(partition.is_repeatable for _, partition in share):
            _refuse_second_try()
        for number, partition in share:
            if self.is_over():
                return
            yield partition, self._batches(number, partition.reader)

    def is_over(self) -> bool:
        budget, now = self.budget, time.monotonic()
        if self.began is None:
            return now - self.opened >= budget.seconds + SLOW_START_S
        return now - self.began >= budget.seconds or self.rows >= budget.rows or self.bytes >= budget.bytes

    def _batches(self, number: int, reader: PartitionReader) -> Iterator[tuple[int, pa.RecordBatch]]:
        outcome, began = PartitionOutcome(number, reader.start, False, 0, 0), time.monotonic()
        self.progress.append(outcome)
        for batch in reader.batches(self.is_over):
            row_count = batch.rows.num_rows if batch.rows is not None else 0
            outcome = PartitionOutcome(
                number, batch.position, batch.is_last, outcome.rows + row_count, outcome.bytes + batch.byte_count
            )
            self.progress[-1] = outcome
            self.rows += row_count
            self.bytes += batch.byte_count
            if batch.rows is not None and row_count:
                self.began = self.began or time.monotonic()
                yield batch.table, batch.rows
                self._throttle()
        self.progress[-1] = replace(outcome, seconds=time.monotonic() - began)

    def _throttle(self) -> None:
        budget = self.budget
        requested = max(
            self.rows / budget.rows_per_s if budget.rows_per_s else 0.0,
            self.bytes / budget.bytes_per_s if budget.bytes_per_s else 0.0,
        )
        if self.began is not None and (ahead_s := requested - (time.monotonic() - self.began)) > 0:
            time.sleep(min(ahead_s, max(0.0, self.began + budget.seconds - time.monotonic())))


def _refuse_second_try() -> None:
    # a second try would divide the rows differently, under labels that the sink already has from the first try
    if _attempt():
        raise SinkUnavailable(
            "An executor was lost while it read chunks; which rows it wrote is unknown.",
            hint="The job reads the chunks again; check the memory and disk of Spark's executors.",
        )


def _attempt() -> int:
    """Return how often Spark has started this task before."""
    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


class PartBuffer:
    """Collects batches of one load into parts."""

    def __init__(self, target: PartitionTarget) -> None:
        self._name = replace(target.name, attempt=target.name.attempt + _attempt())
        self._writer, self._key = target.writer, target.key
        self._held: list[pa.RecordBatch] = []
        self._rows = self._next = 0
        self.bytes = 0  # of the buffered rows
        self.loads: list[PreparedLoad] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. A part is written when it is large enough."""
        self._held.append(batch)
        self._rows += batch.num_rows
        self.bytes += batch.nbytes
        if self._rows >= PART_ROWS or self.bytes >= PART_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows as the last part."""
        if self._held:
            held, self._held = self._held, []
            if self._key:
                held = newest_rows(pa.Table.from_batches(held), self._key).to_batches()
            load = self._writer(replace(self._name, part=self._next), iter(held))
            self._rows = self.bytes = 0
            self._next += 1
            if load is not None:
                self.loads.append(load)


class _PartBuffers:
    """Collects batches of the loads of one range into parts, with the memory of one part for all of them."""

    def __init__(self, targets: Sequence[PartitionTarget]) -> None:
        self._buffers = [PartBuffer(target) for target in targets]

    def add(self, table: int, batch: pa.RecordBatch) -> None:
        """Add rows of a table."""
        self._buffers[table].add(batch)
        if sum(one.bytes for one in self._buffers) >= PART_BYTES:
            max(self._buffers, key=attrgetter("bytes")).flush()

    def loads(self) -> list[PreparedLoad]:
        """Write the last parts. Return all loads of the range."""
        for one in self._buffers:
            one.flush()
        return [load for one in self._buffers for load in one.loads]


def _plain_reader(shares: Sequence[_Share], budget: ReadBudget) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for number in _numbers(batches):
            yield _outcome_batch(_read_plain(_ShareReader(budget), shares[number]))

    return read


def _read_plain(reader: _ShareReader, share: _Share) -> dict[str, Any]:
    loads: list[PreparedLoad] = []
    try:
        for partition, batches in reader.partitions(share):
            parts = _PartBuffers(partition.targets)
            for table, batch in batches:
                parts.add(table, batch)
            loads += parts.loads()
    except CdcError as error:
        return {"error": error_to_json(error)}
    return {"loads": [load.to_json() for load in loads], "partitions": [asdict(one) for one in reader.progress]}


def _typed_reader(shares: Sequence[_Share], budget: ReadBudget, schema: pa.Schema) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for number in _numbers(batches):
            reader = _ShareReader(budget)
            progress: dict[str, Any] = {}
            try:
                for _, rows in reader.partitions(shares[number]):
                    for _, batch in rows:
                        nothing = pa.nulls(batch.num_rows, pa.string())
                        yield pa.RecordBatch.from_arrays([*batch.columns, nothing], schema=schema)
                progress["partitions"] = [asdict(one) for one in reader.progress]
            except CdcError as error:
                progress["error"] = error_to_json(error)
            # the last row holds only the progress
            empty = [pa.nulls(1, one.type) for one in schema][:-1]
            yield pa.RecordBatch.from_arrays([*empty, pa.array([json.dumps(progress, default=str)])], schema=schema)

    return read


def _typed_writer(target: PartitionTarget) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        parts = PartBuffer(replace(target, name=replace(target.name, task=_share_of_task())))
        for batch in batches:
            progress = next(iter(batch.column(_PROGRESS).drop_null().to_pylist()), None)
            rows = batch.drop_columns([_PROGRESS]).slice(0, batch.num_rows - (progress is not None))
            try:
                if rows.num_rows:
                    parts.add(rows)
                if progress is not None:
                    parts.flush()
                    data = json.loads(progress)
                    yield _outcome_batch(
                        data if "error" in data else {**data, "loads": [one.to_json() for one in parts.loads]}
                    )
            except CdcError as error:
                yield _outcome_batch({"error": error_to_json(error)})
                return

    return write


def _share_of_task() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _outcome_batch(data: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([json.dumps(data, default=str)])], ["outcome"])
