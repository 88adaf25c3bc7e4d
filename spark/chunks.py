"""Chunks read on executors: rows off the source's socket, through a mapping if there is one, into a sink's writer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from cdc import errors
from cdc.batch import LoadName, PreparedLoad
from cdc.binlog.connection import Endpoint
from cdc.binlog.result_rows import selected
from cdc.errors import CdcError, DecodeError, SinkUnavailable
from cdc.schema import DELETED, SEQUENCE, Column
from cdc.snapshot.chunks import Bound, Chunk
from cdc.snapshot.keys import Order
from cdc.snapshot.select import Rows, Select
from spark.frames import mapped_frame
from spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from channels.sinks.base import PartWriter

PART_BYTES = 32 << 20  # in memory while it is written, once for each reader
PART_ROWS = 200_000  # a leaf of a Delta table
_SLOW_START_S = 20.0  # of kernels, connections and searches for the first row
_PROGRESS = "__progress"
_OUTCOME = "outcome string"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Pace:
    """How much is read in a turn, and how fast."""

    seconds: float
    rows: int
    bytes: int
    rows_per_s: float | None = None
    bytes_per_s: float | None = None

    def share(self, readers: int) -> Pace:
        """That of each of ``readers`` side by side."""
        return Pace(
            self.seconds,
            max(1, self.rows // readers),
            max(1, self.bytes // readers),
            self.rows_per_s and self.rows_per_s / readers,
            self.bytes_per_s and self.bytes_per_s / readers,
        )


@dataclass(frozen=True, slots=True)
class TableRead:
    """One table of a turn."""

    name: LoadName  # of its first part
    order: Order
    columns: tuple[Column, ...]  # what is read, in table order
    key: frozenset[str]  # those of ``columns`` that the target's key is made of: never NULL
    sequence: int  # of every row: above all that the sink holds, below all that the stream will bring
    where: str | None
    writer: PartWriter = field(repr=False)
    copies: Mapping[str, str] | None = None  # target column -> source column; None: there are expressions
    expressions: Mapping[str, str] | None = (
        None  # target column -> Spark SQL; None: rows go as they are, under their new names
    )
    target: pa.Schema | None = None
    kept: frozenset[str] = frozenset()
    row_filter: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """One chunk of a turn."""

    table: int  # number of its TableRead
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class ChunkOutcome:
    """What came of a chunk, or of the part of it that was read."""

    table: int
    chunk: int  # its number
    above: Bound | None  # everything up to here is read
    ended: bool
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """What came of a turn."""

    loads: tuple[PreparedLoad, ...]
    chunks: tuple[ChunkOutcome, ...]  # those that were begun


def read_chunks(
    spark_session: SparkSession,
    endpoint: Endpoint,
    tables: Sequence[TableRead],
    chunks: Sequence[ChunkRead],
    readers: int,
    pace: Pace,
) -> TurnOutcome:
    """Read ``chunks`` by ``readers`` partitions side by side, and write what was read in time.

    ``readers``: at most what Spark runs at once; whoever waited for another would begin when the turn should be over.
    Tables with expressions come alone. Raises: what a reader or a writer raised.
    """
    shares = [tuple(chunks[number::readers]) for number in range(min(readers, len(chunks)))]
    pace = pace.share(len(shares))
    frame = spark_session.range(len(shares), numPartitions=len(shares))
    if tables[0].expressions is None:
        outcomes = frame.mapInArrow(_plain_reader(endpoint, tuple(tables), shares, pace), _OUTCOME)
    else:
        (table,) = tables
        source = pa.schema([
            *(pa.field(column.name, column.arrow) for column in table.columns),
            pa.field(DELETED, pa.bool_()), pa.field(SEQUENCE, pa.int64()), pa.field(_PROGRESS, pa.string()),
        ])  # fmt: skip
        read = frame.mapInArrow(_typed_reader(endpoint, table, shares, pace, source), spark_schema(source))
        assert table.target is not None and table.expressions is not None
        target = table.target.append(pa.field(_PROGRESS, pa.string()))
        expressions = {**table.expressions, _PROGRESS: f"`{_PROGRESS}`"}
        mapped = mapped_frame(read, expressions, target, table.kept | {_PROGRESS}, table.row_filter)
        outcomes = mapped.mapInArrow(_typed_writer(table), _OUTCOME)
    loads: list[PreparedLoad] = []
    progress: list[ChunkOutcome] = []
    for row in outcomes.collect():
        data = json.loads(row["outcome"])
        if "error" in data:
            raise _error_from_json(data["error"])
        loads += [PreparedLoad.from_json(load) for load in data["loads"]]
        progress += [_outcome(one) for one in data["chunks"]]
    return TurnOutcome(tuple(loads), tuple(progress))


# on executors


@dataclass(slots=True)
class _Reader:
    """Reads one share of chunks, one after the other, until the turn is over."""

    endpoint: Endpoint
    tables: tuple[TableRead, ...]
    pace: Pace
    began: float | None = None  # when the first row came: what starts slowly is no part of the turn
    opened: float = field(default_factory=time.monotonic)
    rows: int = 0
    bytes: int = 0
    progress: list[ChunkOutcome] = field(default_factory=list)

    def batches(self, share: Sequence[ChunkRead]) -> Iterator[tuple[TableRead, Chunk, pa.RecordBatch]]:
        _refuse_second_try()
        for read in share:
            if self.is_over():
                return
            table = self.tables[read.table]
            for batch in self._chunk(table, read):
                yield table, read.chunk, batch

    def is_over(self) -> bool:
        pace, now = self.pace, time.monotonic()
        if self.began is None:
            return now - self.opened >= pace.seconds + _SLOW_START_S
        return now - self.began >= pace.seconds or self.rows >= pace.rows or self.bytes >= pace.bytes

    def _chunk(self, table: TableRead, read: ChunkRead) -> Batches:
        tail, bounds = table.order.tail(read.chunk, table.where)
        sql = "SELECT " + ", ".join(selected(column) for column in table.columns) + tail
        # what no index orders cannot be gone on with later: it is read to its end
        is_over = self.is_over if table.order.columns else lambda: False
        outcome = ChunkOutcome(read.table, read.chunk.number, read.chunk.above, False, 0, 0)
        self.progress.append(outcome)
        with Select(self.endpoint, sql, bounds, table.columns) as select:
            for rows in select.rows(is_over):
                self.began = self.began or time.monotonic()
                _refuse_null_keys(table, rows.batch)
                outcome = replace(
                    outcome,
                    above=_last_key(table, rows),
                    rows=outcome.rows + rows.batch.num_rows,
                    bytes=outcome.bytes + rows.size,
                )
                self.progress[-1] = outcome
                self.rows += rows.batch.num_rows
                self.bytes += rows.size
                yield _stamped(rows.batch, table)
                self._throttle()
            self.progress[-1] = replace(outcome, ended=select.ended)

    def _throttle(self) -> None:
        pace = self.pace
        wanted = max(
            self.rows / pace.rows_per_s if pace.rows_per_s else 0.0,
            self.bytes / pace.bytes_per_s if pace.bytes_per_s else 0.0,
        )
        if self.began is not None and (ahead_s := wanted - (time.monotonic() - self.began)) > 0:
            time.sleep(min(ahead_s, max(0.0, self.began + pace.seconds - time.monotonic())))


def _refuse_second_try() -> None:
    # it would cut its parts elsewhere, and a sink knows their labels already, with the bodies of the first try
    if (context := TaskContext.get()) is not None and context.attemptNumber():
        raise SinkUnavailable(
            "An executor was lost while it read chunks, and what arrived of them is unknown.",
            mend="They are read again by themselves; look after Spark's executors (memory, disk).",
        )


def _last_key(table: TableRead, rows: Rows) -> Bound | None:
    if not table.order.columns:
        return None
    last = rows.batch.num_rows - 1
    names = [column.name.casefold() for column in table.columns]
    bound = []
    for column in table.order.columns:
        place = names.index(column.column.name.casefold())
        bound.append(column.text_of(rows.batch.column(place)[last], rows.raw(place, last)))
    return tuple(bound)


def _refuse_null_keys(table: TableRead, batch: pa.RecordBatch) -> None:
    for column in table.columns:
        if column.name in table.key and batch.column(column.name).null_count:
            raise DecodeError(
                "A zero or impossible date in a key column has no value in the target.",
                mend="Mend these rows in the source, or choose a key without this column.",
                table=table.order.table,
                column=column.name,
            )


def _stamped(batch: pa.RecordBatch, table: TableRead) -> pa.RecordBatch:
    rows = batch.num_rows
    copies = table.copies or {name: name for name in batch.schema.names}
    arrays = [batch.column(source) for source in copies.values()]
    ours = [pa.repeat(pa.scalar(False), rows), pa.repeat(pa.scalar(table.sequence, pa.int64()), rows)]
    return pa.RecordBatch.from_arrays([*arrays, *ours], [*copies, DELETED, SEQUENCE])


class _Parts:
    """Gathers batches of one load until they make a part."""

    def __init__(self, name: LoadName, writer: PartWriter) -> None:
        self._name = name
        self._writer = writer
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._next = 0
        self.loads: list[PreparedLoad] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= PART_ROWS or self._bytes >= PART_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._held:
            held, self._held = self._held, []
            load = self._writer(replace(self._name, part=self._next), iter(held))
            self._rows = self._bytes = 0
            self._next += 1
            if load is not None:
                self.loads.append(load)


def _plain_reader(
    endpoint: Endpoint, tables: tuple[TableRead, ...], shares: Sequence[tuple[ChunkRead, ...]], pace: Pace
) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for share in _shares(batches):
            yield _told(_read_plain(_Reader(endpoint, tables, pace), shares[share]))

    return read


def _read_plain(reader: _Reader, share: Sequence[ChunkRead]) -> dict[str, Any]:
    parts: _Parts | None = None
    of: tuple[str, int] | None = None
    loads: list[PreparedLoad] = []
    try:
        for table, chunk, batch in reader.batches(share):
            if parts is None or of != (table.name.channel, chunk.number):
                if parts is not None:
                    parts.flush()
                    loads += parts.loads
                of = (table.name.channel, chunk.number)
                parts = _Parts(replace(table.name, task=chunk.number), table.writer)
            parts.add(batch)
        if parts is not None:
            parts.flush()
            loads += parts.loads
    except CdcError as error:
        return {"error": _error_to_json(error)}
    return {"loads": [load.to_json() for load in loads], "chunks": [asdict(one) for one in reader.progress]}


def _typed_reader(
    endpoint: Endpoint, table: TableRead, shares: Sequence[tuple[ChunkRead, ...]], pace: Pace, schema: pa.Schema
) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for share in _shares(batches):
            reader = _Reader(endpoint, (table,), pace)
            told: dict[str, Any] = {}
            try:
                for _, _, batch in reader.batches(shares[share]):
                    nothing = pa.nulls(batch.num_rows, pa.string())
                    yield pa.RecordBatch.from_arrays([*batch.columns, nothing], schema=schema)
                told["chunks"] = [asdict(one) for one in reader.progress]
            except CdcError as error:
                told["error"] = _error_to_json(error)
            # a last row, of nothing else, says how far reading came
            empty = [pa.nulls(1, one.type) for one in schema][:-1]
            yield pa.RecordBatch.from_arrays([*empty, pa.array([json.dumps(told, default=str)])], schema=schema)

    return read


def _typed_writer(table: TableRead) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        parts = _Parts(replace(table.name, task=_share_of_task()), table.writer)
        for batch in batches:
            told = next(iter(batch.column(_PROGRESS).drop_null().to_pylist()), None)
            rows = batch.drop_columns([_PROGRESS]).slice(0, batch.num_rows - (told is not None))
            try:
                if rows.num_rows:
                    parts.add(rows)
                if told is not None:
                    parts.flush()
                    data = json.loads(told)
                    yield _told(data if "error" in data else {**data, "loads": [one.to_json() for one in parts.loads]})
            except CdcError as error:
                yield _told({"error": _error_to_json(error)})
                return

    return write


def _share_of_task() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _shares(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _told(data: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([json.dumps(data, default=str)])], ["outcome"])


def _outcome(data: Mapping[str, Any]) -> ChunkOutcome:
    return ChunkOutcome(**{**data, "above": None if data["above"] is None else tuple(data["above"])})


def _error_to_json(error: CdcError) -> dict[str, Any]:
    extra = {"after_s": error.after_s} if isinstance(error, errors.SinkBusy) else {}
    return {"class": type(error).__name__, "message": error.message, "mend": error.mend, "where": error.where,
            "extra": extra}  # fmt: skip


def _error_from_json(data: Mapping[str, Any]) -> CdcError:
    kind: type[CdcError] = getattr(errors, data["class"])
    return kind(data["message"], mend=data["mend"], **data["extra"], **data["where"])
