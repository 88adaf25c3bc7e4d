"""Compare chunks of source tables with their targets, and compare single keys again. Threads of the driver do it.

A chunk is read in parts. Each part is compared with the rows of the target in the same key range. If source and target
order keys differently, it is compared with the rows that have its keys, which does not find keys that only the target
has. The keys of rows that the filter excludes are looked up too: the target must not have them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.row_keys import KeyIndex
from cdc.model.schema import DELETED
from cdc.model.snapshot import Bound, Chunk
from cdc.model.verify import RowDifference
from cdc.mysql.connection import Endpoint
from cdc.mysql.key_lookup import key_lookups
from cdc.mysql.query_stream import ReadCancelled
from channels.chunk_reader import ChunkReader, TableRead, stamped
from channels.partition_read import PART_BYTES, PART_ROWS, SLOW_START_S, ReadBudget
from channels.sinks.row_ranges import RowReader
from channels.table_compare import TableCompare, compare, compare_range, row_details
from spark.frames import mapped_frame, typed_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_KEYS = 100_000  # that differ: a step with more of them ends, because they are in memory until they are confirmed


@dataclass(frozen=True, slots=True)
class KeyDifferences:
    """Keys of one part whose rows differ."""

    part: Chunk | None  # the part of the source; None: keys that only the target has
    keys: pa.Table
    kinds: np.ndarray[tuple[int], np.dtype[np.int8]]  # by key, see ``row_compare``
    details: tuple[RowDifference, ...] = ()  # of the first keys, in order

    @property
    def count(self) -> int:
        """Return the number of keys."""
        return int(self.keys.num_rows)

    def only(self, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> KeyDifferences:
        """Return the keys for which ``mask`` is true."""
        details = tuple(one for one, stays in zip(self.details, mask, strict=False) if stays)
        return KeyDifferences(self.part, self.keys.filter(pa.array(mask)), self.kinds[mask], details)


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """The comparison of one part of a chunk."""

    table: int
    chunk: int  # its number
    above: Bound | None  # everything up to this key is compared
    ended: bool  # the whole chunk is
    rows: int
    differences: KeyDifferences


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """The chunks to compare in one step. See ``ReadRequest``."""

    endpoint: Endpoint
    tables: tuple[TableCompare, ...]
    chunks: tuple[tuple[int, Chunk], ...]  # number of the table, and a chunk of it
    readers: int  # parallel connections
    budget: ReadBudget
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False)

    @property
    def channels(self) -> tuple[str, ...]:
        """See ``ReadRequest``."""
        return tuple(table.read.name.channel for table in self.tables)

    @property
    def work(self) -> str:
        """See ``ReadRequest``."""
        return "verification step"

    @property
    def usual_s(self) -> float:
        """See ``ReadRequest``."""
        return self.budget.seconds + SLOW_START_S

    def run(self, spark_session: SparkSession, core_count: int) -> tuple[PartOutcome, ...]:
        """See ``ReadRequest``. Return the outcome of each part, those of a chunk in order."""
        readers = max(1, min(self.readers, core_count, len(self.chunks)))
        work, lock, found = iter(self.chunks), threading.Lock(), list[PartOutcome]()
        step = _Step(self, self.budget.share(readers), spark_session)

        def compare() -> None:
            opened: dict[int, RowReader] = {}
            while not step.is_over():
                with lock:
                    number, chunk = next(work, (-1, None))
                if chunk is None:
                    return
                table = self.tables[number]
                rows = opened.get(number) or opened.setdefault(number, table.open_rows())
                for outcome in step.parts(number, table, chunk, rows):
                    with lock:
                        found.append(outcome)

        _run_all([compare] * readers, self.cancelled)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class RecheckTable:
    """A table whose keys are compared again."""

    name: str  # source table
    compare: TableCompare
    # returns the keys that the source does not have; raises ReadCancelled after a stop
    orphans: Callable[[pa.Table], pa.Table] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RecheckRequest:
    """Keys to compare again. See ``ReadRequest``."""

    endpoint: Endpoint
    tables: tuple[RecheckTable, ...]
    keys: tuple[tuple[int, KeyDifferences], ...]  # number of the table, and keys of it
    shown: int  # most differences to return with values
    seconds: float
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False)

    @property
    def channels(self) -> tuple[str, ...]:
        """See ``ReadRequest``."""
        return tuple(table.compare.read.name.channel for table in self.tables)

    @property
    def work(self) -> str:
        """See ``ReadRequest``."""
        return "verification step"

    @property
    def usual_s(self) -> float:
        """See ``ReadRequest``."""
        return self.seconds + SLOW_START_S

    def run(self, spark_session: SparkSession, core_count: int) -> tuple[KeyDifferences, ...]:
        """See ``ReadRequest``. Return what still differs, of as many of ``keys`` as the time allows."""
        began, found, opened = time.monotonic(), list[KeyDifferences](), dict[int, RowReader]()
        for number, one in self.keys:
            if self.cancelled.is_set() or (found and time.monotonic() - began >= self.seconds):
                break
            table = self.tables[number]
            rows = opened.get(number) or opened.setdefault(number, table.compare.open_rows())
            try:
                found.append(self._compared(table, one, rows, spark_session))
            except ReadCancelled:
                break
        return tuple(found)

    def _compared(
        self, table: RecheckTable, differences: KeyDifferences, rows: RowReader, spark_session: SparkSession
    ) -> KeyDifferences:
        """Return what still differs. Raises: ReadCancelled; see ``source_rows``."""
        compared, keys, batches = table.compare, differences.keys, list[pa.RecordBatch]()
        if differences.part is None:
            keys = table.orphans(keys)
        else:
            batches = source_rows(self.endpoint, compared, differences, self.cancelled.is_set)
        source = _only_keys(_mapped(compared, batches, spark_session)[0], compared.key, keys)
        target = rows.of_keys(keys)
        differs = compare(compared, source, target, rows)
        details = row_details(table.name, compared, differs, source, target, rows, self.shown)
        return KeyDifferences(differences.part, differs.keys, differs.kinds, details)


def source_rows(
    endpoint: Endpoint, table: TableCompare, differences: KeyDifferences, is_over: Callable[[], bool]
) -> list[pa.RecordBatch]:
    """Return the rows of the source that have one of the keys, and perhaps others, as ``ChunkReader`` returns them.

    Raises: SourceUnavailable, SchemaMismatch, DecodeError; ReadCancelled - ``is_over`` has returned True.
    """
    read = table.read
    lookups = key_lookups(read.order, table.key_columns, differences.keys, read.columns)
    if lookups is not None:
        return [stamped(batch, read) for lookup in lookups for batch in lookup.read(endpoint, is_over)]
    part = differences.part or Chunk(0, None, None)
    index, found = KeyIndex(differences.keys.columns), []
    names = list(table.key) if read.copies is not None else [column.name for column in table.key_columns]
    is_complete = False
    for batch in ChunkReader(endpoint, read, part).batches(is_over):
        is_complete = batch.is_last
        if batch.rows is not None:
            hits = np.flatnonzero(index.find([batch.rows.column(name) for name in names]) >= 0)
            if len(hits):
                found.append(batch.rows.take(pa.array(hits)))
        if is_over():
            break
    if not is_complete:  # a row that was not read would count as deleted
        raise ReadCancelled
    return found


class _Step:
    """One step: its limits, and the comparison of parts. Calls: any thread."""

    def __init__(self, request: CompareRequest, share: ReadBudget, spark_session: SparkSession) -> None:
        self._request = request
        self._share = share  # of each thread
        self._spark = spark_session
        self._began = time.monotonic()
        self._keys = 0  # that differ

    def is_over(self) -> bool:
        return (
            self._request.cancelled.is_set()
            or time.monotonic() - self._began >= self._share.seconds
            or self._keys >= MOST_KEYS
        )

    def parts(self, number: int, table: TableCompare, chunk: Chunk, rows: RowReader) -> Iterator[PartOutcome]:
        """Compare a chunk, part by part, until it or the step ends."""
        above, upto, held, size = chunk.above, chunk.above, list[pa.RecordBatch](), 0
        began, read_rows, read_bytes = time.monotonic(), 0, 0
        for batch in ChunkReader(self._request.endpoint, table.read, chunk).batches(self.is_over):
            if batch.rows is not None:
                held.append(batch.rows)
                size += batch.rows.nbytes
                read_rows, read_bytes = read_rows + batch.rows.num_rows, read_bytes + batch.byte_count
            upto = chunk.upto if batch.is_last else batch.position
            is_full = size >= PART_BYTES or sum(one.num_rows for one in held) >= PART_ROWS
            if batch.is_last or is_full or self.is_over():
                if not batch.is_last and not held:
                    return
                part = Chunk(chunk.number, above, upto)
                yield self._part(number, table, part, held, rows, ended=batch.is_last)
                above, held, size = upto, [], 0
                self._throttle(began, read_rows, read_bytes)
        if held:  # the reader ended early, after its last batch
            yield self._part(number, table, Chunk(chunk.number, above, upto), held, rows, ended=False)

    def _part(
        self,
        number: int,
        table: TableCompare,
        part: Chunk,
        held: Sequence[pa.RecordBatch],
        rows: RowReader,
        *,
        ended: bool,
    ) -> PartOutcome:
        source, keys = _mapped(table, held, self._spark)
        if table.range_columns is not None:
            found = compare_range(table, source, part, rows)
        else:
            found = compare(table, source, rows.of_keys(keys), rows)
        self._keys += found.keys.num_rows
        differences = KeyDifferences(part, found.keys, found.kinds)
        return PartOutcome(number, part.number, part.upto, ended, sum(one.num_rows for one in held), differences)

    def _throttle(self, began: float, rows: int, size: int) -> None:
        share = self._share
        requested = max(
            rows / share.rows_per_s if share.rows_per_s else 0.0, size / share.bytes_per_s if share.bytes_per_s else 0.0
        )
        ahead_s = min(requested - (time.monotonic() - began), self._began + share.seconds - time.monotonic())
        if ahead_s > 0:
            self._request.cancelled.wait(ahead_s)


def _run_all(work: Sequence[Callable[[], None]], cancelled: threading.Event) -> None:
    """Run ``work`` in parallel. After an error, cancel the rest and raise the error."""
    if len(work) == 1:
        work[0]()
        return
    with ThreadPoolExecutor(len(work), "verify") as threads:
        futures = [threads.submit(one) for one in work]
        for future in futures:
            future.add_done_callback(lambda done: cancelled.set() if done.exception() is not None else None)
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        raise error


def _mapped(
    table: TableCompare, batches: Sequence[pa.RecordBatch], spark_session: SparkSession
) -> tuple[pa.Table, pa.Table]:
    """Return the rows that the target must have, with the columns to compare, and the keys of all ``batches``."""
    columns, mapping = list(table.columns), table.read.mapping
    if mapping is None:
        types = {name: column.arrow for column in table.read.columns for name in _targets(table.read, column.name)}
        empty = pa.schema([pa.field(name, types[name]) for name in columns])
        copied = pa.Table.from_batches([batch.select(columns) for batch in batches], empty)
        return copied, copied.select(list(table.key))
    target = pa.schema([mapping.target.field(name) for name in columns])
    if not batches:
        return target.empty_table(), target.empty_table().select(list(table.key))
    frame = typed_frame(spark_session, batches)
    rows = mapped_frame(frame, mapping.expressions, mapping.target, mapping.kept, mapping.row_filter).toArrow()
    # rows that the filter excludes are deletes, which have the columns of the key
    keys = rows.select(list(table.key)).cast(pa.schema([target.field(name) for name in table.key]))
    return rows.filter(pc.invert(rows.column(DELETED))).select(columns).cast(target), keys


def _targets(read: TableRead, source: str) -> list[str]:
    copies = read.copies or {}
    return [target for target, name in copies.items() if name == source]


def _only_keys(rows: pa.Table, key: Sequence[str], keys: pa.Table) -> pa.Table:
    if not rows.num_rows or not keys.num_rows:
        return rows.slice(0, 0)
    found = KeyIndex(keys.columns).find([rows.column(name).cast(keys.schema.field(name).type) for name in key])
    return rows.filter(pa.array(found >= 0))
