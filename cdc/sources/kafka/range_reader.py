"""Read exact ranges of offsets on a Spark executor: messages to the rows of loads.

What needs a decision ends the range: the first rows of a table, other columns, DDL, a message that cannot be read. The
receiver then reads the whole range on the driver, which has the state to decide.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cdc.errors import CdcError, ErrorAction, SourceUnavailable, action_for
from cdc.model.batch import RequiredColumns
from cdc.model.kafka_position import Partition, PartitionOffset
from cdc.model.schema import DELETED, SEQUENCE, TableSchema
from cdc.model.table_names import table_of, table_text
from cdc.sources.base import RangeRows, RangeTable, RangeTables
from cdc.sources.kafka.batches import OrderRules, in_order, times_of
from cdc.sources.kafka.block_parts import before, next_offsets, without_repeats
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.formats.base import Decoded, DecodedRows, Format, KafkaTables, message_position
from cdc.sources.kafka.formats.debezium_rows import DebeziumRows
from cdc.sources.kafka.key_partitions import KeyPartitions, hashes_of
from cdc.sources.kafka.layouts import column_difference
from cdc.sources.kafka.messages import MessageBlock
from cdc.sources.kafka.reader import MessageReader
from cdc.sources.kafka.truncation import truncated_logs
from cdc.sources.partition_reader import PartitionBatch

QUEUE_BYTES = 64 << 20  # what librdkafka may read ahead on an executor is a part of it
TIMEOUT_S = 30.0  # without a message, the brokers count as away
_READ_S = 0.02  # a read waits so long for more messages, also at the end of a range


class RangeEnded(Exception):
    """The driver must decide about a message. The text has the reason."""


@dataclass(frozen=True, slots=True)
class ReadTables:
    """The tables of a range on an executor. Implements ``KafkaTables``."""

    job: KafkaTables
    tables: RangeTables
    names: frozenset[str] = frozenset()  # the tables whose rows the job has read; some may not be in ``tables`` yet

    @property
    def by_name(self) -> dict[str, RangeTable]:
        """The tables to read, by name."""
        return {one.schema.name: one for one in self.tables.read}

    def known(self) -> dict[tuple[str, str], TableSchema | None]:
        """Return the tables of the job with their schemas. None: this read of the range does not have the table."""
        elsewhere = dict.fromkeys(map(table_of, sorted(self.tables.elsewhere | self.names)))
        return {**elsewhere, **{(one.schema.database, one.schema.table): one.schema for one in self.tables.read}}

    def maps(self, database: str, table: str) -> bool:
        """See ``TableFilter``. An unknown table of the job is mapped, so that it ends the range."""
        name = table_text(database, table)
        if any(one.schema.name == name for one in self.tables.read):
            return True
        return not self.tables.is_only and name not in self.tables.elsewhere and self.job.maps(database, table)

    def may_map(self, database: str, table: str) -> bool:
        """See ``TableFilter``."""
        return self.job.may_map(database, table)

    def reads(self, schema: TableSchema) -> RequiredColumns:
        """See ``TableFilter``."""
        return self.job.reads(schema)

    def leave_out(self, database: str, table: str, error: CdcError) -> bool:
        """Return False: only the driver leaves tables out."""
        return False

    def schema(self, database: str, table: str) -> TableSchema | None:
        """See ``KafkaTables``."""
        return self.job.schema(database, table)

    def table_of(self, topic: str) -> tuple[str, str]:
        """See ``KafkaTables``."""
        return self.job.table_of(topic)

    def paths(self, database: str, table: str) -> Mapping[str, tuple[str, ...]]:
        """See ``KafkaTables``."""
        return self.job.paths(database, table)


@dataclass(frozen=True, slots=True)
class KafkaRangeReader:
    """See ``PartitionReader``. The range is read as a whole, and each time with the same rows.

    The last position is the JSON form of ``RangeCounts``, or ``{"ended": reason}`` if the driver must read the range.
    """

    settings: KafkaSettings
    create: Callable[..., Format]  # ``tables``: those of the range
    tables: ReadTables
    first: Mapping[Partition, PartitionOffset]
    last: Mapping[Partition, int]  # the offset after the range, for the same partitions
    rules: OrderRules
    several: frozenset[str]  # topics whose keys can be in more than one partition
    multiple: frozenset[str]  # those that have more than one partition
    numbers: Mapping[str, int]  # of tables, for the hashes of keys
    sequence: int  # that of the row before the first one

    @property
    def start(self) -> None:
        """Return None: the range can be read again only as a whole."""
        return None

    def batches(self, is_over: Callable[[], bool]) -> Iterator[PartitionBatch]:
        """See ``PartitionReader``. Raises: SourceUnavailable - brokers or the schema registry do not answer."""
        reading = _Reading(self)
        with Cluster(self.settings) as cluster, closing(MessageReader(self.settings, cluster, QUEUE_BYTES)) as reader:
            try:
                self._refuse_truncated(cluster)
                yield from reading.batches(reader)
            except RangeEnded as ended:
                yield PartitionBatch(None, {"ended": str(ended)})
                return
        yield PartitionBatch(None, reading.counts(), is_last=True)

    def _refuse_truncated(self, cluster: Cluster) -> None:
        """Raise RangeEnded if the log has other messages before the range than those that the job read.

        librdkafka notices that only while it reads on, but each range has a client of its own.
        """
        truncated = truncated_logs(self.settings, cluster, self.first)
        for (topic, number), offset in sorted(truncated.items()):
            raise RangeEnded(f"{topic}[{number}] has other messages before offset {offset.next}")


class _Reading:
    """One read of a range."""

    def __init__(self, plan: KafkaRangeReader) -> None:
        self._plan = plan
        self._decoder = plan.create(tables=plan.tables)
        self._by_name = plan.tables.by_name
        if isinstance(self._decoder, DebeziumRows):
            self._decoder.key_deletes.known = plan.tables.known
            self._decoder.key_deletes.refuses_unknown = True
        self._next = dict(plan.first)
        self._left = {one for one, last in plan.last.items() if plan.first[one].next < last}
        self._beyond: set[Partition] = set()  # a message after the range has arrived
        self._rows: dict[str, RangeRows] = {}
        self._messages = self._bytes = self._sequences = 0
        self._times: list[int] = []
        self._known: dict[str, KeyPartitions] = {}  # by topic
        self._keys: dict[str, list[tuple[NDArray[np.uint64], NDArray[np.int32]]]] = {}
        self._topics: dict[str, set[str]] = {}  # by table

    def batches(self, reader: MessageReader) -> Iterator[PartitionBatch]:
        """Yield the rows of the range. Raises: RangeEnded; SourceUnavailable."""
        plan = self._plan
        reader.assign({one: plan.first[one] for one in self._left})
        deadline = time.monotonic() + TIMEOUT_S
        while self._left:
            chunk = reader.read(_READ_S)
            if chunk.lost or chunk.truncated:
                raise RangeEnded(f"offsets of {(chunk.lost or chunk.truncated)[0]} are not in the log")
            if chunk.error is not None and action_for(chunk.error) is not ErrorAction.RETRY:
                raise RangeEnded(chunk.error.message)  # messages can be missing after it
            for block in chunk.blocks:
                within, beyond = before(block, plan.last)
                self._beyond |= beyond.keys()
                yield from self._decode(within, chunk.epochs)
            if chunk.blocks or chunk.ends:
                deadline = time.monotonic() + TIMEOUT_S
            self._remove_read(reader, chunk.ends)
            if time.monotonic() > deadline:
                raise chunk.error or SourceUnavailable(
                    "Kafka sends no messages to an executor.",
                    hint="Check that executors reach the brokers.",
                    partitions=", ".join(f"{topic}[{number}]" for topic, number in sorted(self._left)[:3]),
                )

    def _remove_read(self, reader: MessageReader, ends: Mapping[Partition, int]) -> None:
        """Stop reading partitions that are read. The last offset of the range can be one without a message."""
        last = self._plan.last
        done = {
            one for one in self._left if one in self._beyond or max(self._next[one].next, ends.get(one, 0)) >= last[one]
        }
        reader.remove(done)
        self._left -= done

    def _decode(self, block: MessageBlock, epochs: Mapping[Partition, int]) -> Iterator[PartitionBatch]:
        """Yield the rows of messages. Raises: RangeEnded."""
        if not len(block.offset):
            return
        try:
            decoded = self._decoder.decode(block)
        except SourceUnavailable:
            raise
        except CdcError as error:
            raise RangeEnded(error.message) from error
        decoded = without_repeats(decoded, block, self._next)
        self._check(block, decoded)
        found = decoded.tables
        sequences = in_order([one.message for one in found], self._plan.sequence + self._sequences + 1)
        for rows, sequence in zip(found, sequences, strict=True):
            yield self._batch(rows, sequence)
        self._sequences += sum(map(len, sequences))
        self._messages += len(block.offset)
        self._bytes += int(np.maximum(block.value_size, 0).sum() + np.maximum(block.key_size, 0).sum())
        self._times += [one for one in times_of(decoded, block) if one is not None]
        self._next |= next_offsets(block, epochs)

    def _batch(self, rows: DecodedRows, sequence: NDArray[np.int64]) -> PartitionBatch:
        table, batch = self._by_name[rows.schema.name], rows.rows
        deleted = batch.column(DELETED)
        names = [*table.columns, DELETED, SEQUENCE]
        arrays = [*(batch.column(source) for source in table.columns.values()), deleted, pa.array(sequence)]
        load = pa.RecordBatch.from_arrays(arrays, names)
        deletes = pc.sum(deleted).as_py() or 0
        old = self._rows.get(rows.schema.name, RangeRows())
        self._rows[rows.schema.name] = RangeRows(
            old.upserts + len(sequence) - deletes, old.deletes + deletes, old.bytes + load.nbytes
        )
        return PartitionBatch(load, None, load.nbytes, table=table.number)

    # --- what only the driver decides ---

    def _check(self, block: MessageBlock, decoded: Decoded) -> None:
        """Raise RangeEnded if the driver must read these messages."""
        # also with ``is_only``: the first reader skips tables that are elsewhere, with what their messages have
        for fault in decoded.faults[:1]:
            raise RangeEnded(f"{message_position(block, fault.message)}: {fault.reason}")
        for statement in decoded.statements[:1]:
            raise RangeEnded(f"{message_position(block, statement.message)}: a DDL statement")
        for rows in decoded.tables:
            at = f"{message_position(block, int(rows.message[0]))}: {rows.schema.name}"
            known = self._by_name.get(rows.schema.name)
            if known is None:
                raise RangeEnded(f"{at} is not loaded yet")
            if difference := column_difference(self._plan.tables, known.schema, rows.schema):
                raise RangeEnded(f"{at} has other columns: {difference}")
            self._check_keys(block, rows, at)

    def _check_keys(self, block: MessageBlock, rows: DecodedRows, at: str) -> None:
        plan = self._plan
        key = sorted(plan.tables.reads(rows.schema).key)
        columns = [rows.rows.column(name) for name in key]
        if any(column.null_count for column in columns):
            raise RangeEnded(f"{at} has NULL in a key")
        # even if the user accepts them: within a range the partitions have no order, and the driver reads messages
        # about as they arrive
        if block.topic in plan.multiple and plan.rules.moves_key_changes and rows.key_change.any():
            raise RangeEnded(f"{at} has an update of a key")
        self._topics.setdefault(rows.schema.name, set()).add(block.topic)
        if block.topic not in plan.several or not plan.rules.one_partition_per_key:
            return
        kept = ~rows.key_change
        if not kept.all():
            columns = [column.filter(pa.array(kept)) for column in columns]
        partitions = block.partition[rows.message[kept]]
        hashes = hashes_of(columns, plan.numbers[rows.schema.name])
        if self._known.setdefault(block.topic, KeyPartitions()).insert(hashes, partitions) >= 0:
            raise RangeEnded(f"{at} has a key in several partitions")
        self._keys.setdefault(block.topic, []).append((hashes, partitions))

    def counts(self) -> dict[str, Any]:
        """Return the last position of the range."""
        return RangeCounts(
            self._plan.tables.tables.is_only, self._messages, self._bytes, self._sequences, self._next, self._rows,
            {f"{table}\0{column}": count for (table, column), count in self._decoder.invalid_dates.items()},
            {topic: _distinct(pairs) for topic, pairs in self._keys.items()},
            {table: sorted(topics) for table, topics in self._topics.items()}, self._times,
        ).to_json()  # fmt: skip


def _distinct(
    pairs: list[tuple[NDArray[np.uint64], NDArray[np.int32]]],
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return each hash once, with its partition."""
    hashes, first = np.unique(np.concatenate([one for one, _ in pairs]), return_index=True)
    return hashes, np.concatenate([one for _, one in pairs])[first]


@dataclass(frozen=True, slots=True)
class RangeCounts:
    """What a reader reports about its range. No row or value is in it, but the hashes of keys are."""

    is_only: bool  # see ``RangeTables``
    messages: int
    bytes: int  # of values and keys
    sequences: int
    next: Mapping[Partition, PartitionOffset]
    rows: Mapping[str, RangeRows]  # by source table
    invalid_dates: Mapping[str, int]  # by table and column, with a NUL between
    keys: Mapping[str, tuple[NDArray[np.uint64], NDArray[np.int32]]]  # by topic: hashes and their partitions
    topics: Mapping[str, list[str]]  # by source table
    times_us: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "is_only": self.is_only,
            "messages": self.messages,
            "bytes": self.bytes,
            "sequences": self.sequences,
            "next": [[*one, at.next, at.epoch, at.time_ms] for one, at in self.next.items()],
            "rows": {name: [one.upserts, one.deletes, one.bytes] for name, one in self.rows.items()},
            "invalid_dates": dict(self.invalid_dates),
            "keys": {topic: [_text(hashes), _text(numbers)] for topic, (hashes, numbers) in self.keys.items()},
            "topics": dict(self.topics),
            "times_us": [min(self.times_us), max(self.times_us)] if self.times_us else [],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RangeCounts:
        """Return the counts of ``to_json``."""
        return cls(
            data["is_only"],
            data["messages"],
            data["bytes"],
            data["sequences"],
            {(topic, number): PartitionOffset(*at) for topic, number, *at in data["next"]},
            {name: RangeRows(*one) for name, one in data["rows"].items()},
            data["invalid_dates"],
            {topic: (_array(one, np.uint64), _array(other, np.int32)) for topic, (one, other) in data["keys"].items()},
            data["topics"],
            data["times_us"],
        )


def _text(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _array(text: str, kind: type[np.generic]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), kind)
