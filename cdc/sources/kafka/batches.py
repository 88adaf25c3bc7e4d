"""Make Batches of blocks. A Batch ends before the first message that stops the job.

A unit is one message with all its rows. Rows are numbered in order of arrival, which within a partition is the order of
offsets. Nothing in a message orders rows: times and binlog positions in messages repeat or step back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cdc.errors import CdcError, DecodeError, SourceActionRequired, SourceUnavailable
from cdc.model.batch import Batch, Changes
from cdc.model.kafka_position import KafkaPosition, Partition, PartitionOffset
from cdc.model.kept_messages import NOTHING_KEPT, KeptMessages
from cdc.model.schema import SEQUENCE, TableSchema
from cdc.model.table_filter import TableFilter
from cdc.sources.kafka.bad_messages import BadMessages
from cdc.sources.kafka.block_parts import next_offsets, select, without_repeats
from cdc.sources.kafka.formats.base import Decoded, DecodedRows, Fault, Format
from cdc.sources.kafka.formats.guess import guess_format
from cdc.sources.kafka.key_partitions import KeyPartitions
from cdc.sources.kafka.layouts import Layouts
from cdc.sources.kafka.messages import MessageBlock
from cdc.sources.kafka.stops import Stop

_SEQUENCE_FIELD = pa.field(SEQUENCE, pa.int64())
_PARTITIONS = 1 << 15  # more than a topic has
_LINES = 3  # messages without any form, from which on they are more likely lines than broken
_BAD_HINT = (
    "Check that `source.format` is the format of the messages, and correct the producer. To keep such messages in "
    "files and continue, set `source.bad_rows`, then run `cdc resume NAME`."
)
_LIMIT_HINT = (
    "Correct the cause, then run `cdc replay-bad NAME`, which also loads the messages in {}. Or raise the limit, then "
    "run `cdc resume NAME`."
)


@dataclass(frozen=True, slots=True)
class OrderRules:
    """What the job accepts about the order of rows in several partitions."""

    one_partition_per_key: bool = True  # False: the same key may be in several partitions, without order
    applies_key_changes: bool = False  # the delete of an old key may be in the partition of the new one
    moves_key_changes: bool = False  # the format sends a key change to the partition of the new key


class BatchMaker:
    """Makes Batches, and knows the position after the last one. Calls: the reading thread."""

    def __init__(
        self,
        decoder: Format,
        table_filter: TableFilter,
        layouts: Layouts,
        rules: OrderRules,
        bad: BadMessages | None = None,
        format_name: str = "",
    ) -> None:
        """``bad``: keeps messages that cannot be decoded; None: the first one stops the job. ``format_name``: to
        compare with the format that messages seem to have.
        """
        self.sequence = 0  # of the last row
        self.offsets: dict[Partition, PartitionOffset] = {}
        self.partition_counts: Mapping[str, int] = {}  # by topic
        self._decoder = decoder
        self._filter = table_filter
        self.layouts = layouts
        self._rules = rules
        self.bad = bad
        self._format_name = format_name
        self.kept = NOTHING_KEPT
        self._keys = KeyPartitions()
        self._tables: dict[str, int] = {}  # the numbers of tables, and of topics
        self._table_numbers = itertools.count(1)
        self._topics: dict[str, int] = {}
        self._topics_of: dict[str, set[str]] = {}  # in which rows of a table have arrived
        self.begin(KafkaPosition("", ()), KafkaPosition("", ()))

    def begin(self, saved: KafkaPosition, position: KafkaPosition) -> None:
        """Continue at ``position``. The next Batch begins at ``saved``, where the last checkpoint ended."""
        self._cluster, self._ids = position.cluster, position.ids
        self.offsets, self.kept = position.offsets, position.kept
        self._end = saved

    def join(self, topic: str, id_: str, partition: int, offset: int) -> None:
        """Add a partition to the position. Keys may move to it, so the known partitions of keys are dropped."""
        self._ids.setdefault(topic, id_)
        self.offsets[topic, partition] = PartitionOffset(offset)
        self._keys = KeyPartitions()

    def id_of(self, topic: str) -> str | None:
        """Return the id of a topic of the position."""
        return self._ids.get(topic)

    def table_number(self, name: str) -> int:
        """Return the number that distinguishes a table in hashes of keys. Calls: any thread."""
        known = self._tables.get(name)
        return self._tables.setdefault(name, next(self._table_numbers)) if known is None else known

    def _topic_number(self, name: str) -> int:
        return self._topics.setdefault(name, len(self._topics))

    def has_several(self, topic: str) -> bool:
        """Return whether keys of a topic can be in other partitions too: of it, or of another topic of its tables."""
        tables = (topics for topics in self._topics_of.values() if topic in topics)
        return self.partition_counts.get(topic, 1) > 1 or any(len(topics) > 1 for topics in tables)

    def note_keys(self, topic: str, hashes: NDArray[np.uint64], partitions: NDArray[np.int32]) -> bool:
        """Add keys that executors have read. Return whether each is only in a partition where it was before."""
        first = np.int32(self._topic_number(topic) * _PARTITIONS)
        return self._keys.insert(hashes, partitions + first) < 0

    def note_topic(self, table: str, topic: str) -> bool:
        """Add a topic in which executors have read rows of a table. Return whether it is known, or the only one."""
        topics = self._topics_of.setdefault(table, set())
        if topics and topic not in topics:
            return False
        topics.add(topic)
        return True

    def note_read(self, messages: int) -> KeptMessages:
        """Count messages that executors have read, all of which are good. Return what is known after them."""
        if self.bad is not None:
            self.kept = self.bad.count(self.kept, (), messages).kept
        return self.kept

    @property
    def position(self) -> KafkaPosition:
        """The position after everything that was read."""
        return KafkaPosition.of(self._cluster, self._ids, self.offsets, kept=self.kept)

    def empty(self) -> Batch | None:
        """Return a Batch without rows if the position is after the last Batch: ends of logs and new partitions."""
        position = self.position
        return None if position == self._end else self._batch(position, (), 0, 0, None, None)

    def read(self, block: MessageBlock, epochs: Mapping[Partition, int]) -> Iterator[Batch]:
        """Yield the Batch of a block. Raises: the error that stops the job, after the Batch of the messages before."""
        decoded, block, stop = self._decode(block)
        decoded = without_repeats(decoded, block, self.offsets)
        stop = self._first_stop(block, decoded, stop)
        stop, faults, kept = self._first_fault(block, decoded, stop)
        count = len(block.offset) if stop is None else stop.message
        whole = select(block, slice(0, count))
        before = self.position
        if faults and self.bad is not None:
            starts = {number: one.next for (topic, number), one in self.offsets.items() if topic == block.topic}
            self.bad.keep(self.kept, block, faults, self._ids[block.topic], starts)
        self.kept = kept
        for partition, offset in next_offsets(whole, epochs).items():
            self.offsets[partition] = offset
        if stop is not None:
            self._stop_at(block, stop)
        changes = self._changes(decoded, count, before)
        rows = sum(one.rows.num_rows for one in changes)
        size = int(np.maximum(whole.value_size, 0).sum() + np.maximum(whole.key_size, 0).sum())
        position = self.position
        if position != self._end:
            yield self._batch(position, changes, count, size, *times_of(decoded, whole), rows=rows)
        if stop is not None:
            raise stop.error

    def _batch(
        self,
        last: KafkaPosition,
        changes: tuple[Changes, ...],
        entries: int,
        size: int,
        oldest_us: int | None,
        newest_us: int | None,
        rows: int = 0,
    ) -> Batch:
        first, self._end = self._end, last
        return Batch(changes, first, last, True, entries, rows, size, oldest_us, newest_us)

    # --- decoding ---

    def _decode(self, block: MessageBlock) -> tuple[Decoded, MessageBlock, Stop | None]:
        """Decode a block. If the format refuses it, decode the messages before the first one that it refuses."""
        try:
            return self.decode(block), block, None
        except SourceUnavailable:  # of the schema registry; every part of the block needs it
            raise
        except CdcError as error:
            first, last, found = 0, len(block.offset), error  # ``first`` messages are readable, ``last`` are not
            while last - first > 1:
                middle = (first + last) // 2
                try:
                    self.decode(select(block, slice(0, middle)))
                    first = middle
                except CdcError as other:
                    last, found = middle, other
            readable = self.decode(select(block, slice(0, first)))
            found.context.update({**_where(block, first), **self._guess(block, readable)})
            return readable, block, Stop(first, found)

    def decode(self, block: MessageBlock) -> Decoded:
        """Return the rows of a block. A message with NULL in a key is a fault."""
        decoded = self._decoder.decode(block)
        faults: dict[int, Fault] = {}
        for rows in decoded.tables:
            for name, column in self.key_columns(rows):
                if column.null_count:
                    for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                        message, table = int(rows.message[row]), rows.schema.name
                        faults.setdefault(message, Fault(message, f"column {name} of the key is NULL", table))
        return decoded if not faults else _without(decoded, faults)

    def key_columns(self, rows: DecodedRows) -> list[tuple[str, pa.Array]]:
        """Return the columns from which the key of the channel is computed, by name."""
        names = sorted(self._filter.reads(rows.schema).key)
        return [(name, rows.rows.column(rows.rows.schema.get_field_index(name))) for name in names]

    def copies_key(self, schema: TableSchema) -> bool:
        """Return whether equal keys of the target have equal source columns."""
        return self._filter.reads(schema).copies_key

    def _guess(self, block: MessageBlock, decoded: Decoded) -> dict[str, object]:
        """Return the format that the messages seem to have, if no message of the block has a row."""
        found = None if decoded.tables or not self._format_name else guess_format(block)
        is_known = found == self._format_name or (found == "csv" and len(block.offset) < _LINES)
        return {} if found is None or is_known else {"looks_like": f"format: {found}"}

    def _first_stop(self, block: MessageBlock, decoded: Decoded, stop: Stop | None) -> Stop | None:
        stops = [stop] if stop is not None else []
        stops += self.layouts.stops(block, decoded, self._before)
        for rows in decoded.tables:
            stops += self._key_stops(block, rows)
        return min(stops, key=lambda one: one.message, default=None)

    def _first_fault(
        self, block: MessageBlock, decoded: Decoded, stop: Stop | None
    ) -> tuple[Stop | None, tuple[Fault, ...], KeptMessages]:
        """Return the first stop, the bad messages before it, and what is known about kept messages there."""
        count = len(block.offset) if stop is None else stop.message
        faults = [fault for fault in decoded.faults if fault.message < count]
        guess = self._guess(block, decoded) if faults else {}
        if self.bad is None:
            return (
                (Stop(faults[0].message, _bad(block, faults[0], _BAD_HINT, guess)) if faults else stop),
                (),
                self.kept,
            )
        found = self.bad.count(self.kept, faults, count)
        if found.refused is not None:
            hint = f"{found.reason}. {_LIMIT_HINT.format(self.bad.folder)}"
            stop = Stop(found.refused.message, _bad(block, found.refused, hint[0].upper() + hint[1:], guess))
        return stop, found.taken, found.kept

    def _before(self, block: MessageBlock, message: int) -> KafkaPosition:
        """Return the position directly before a message, which names the message."""
        offsets = {**self.offsets, **next_offsets(select(block, slice(0, message)), {})}
        partition = (block.topic, int(block.partition[message]))
        offsets[partition] = PartitionOffset(int(block.offset[message]))
        return KafkaPosition.of(self._cluster, self._ids, offsets, f"{partition[0]}:{partition[1]}", self.kept)

    def _stop_at(self, block: MessageBlock, stop: Stop) -> None:
        """Let the position be exactly at the message that stops the job, so that a resume starts there."""
        partition = (block.topic, int(block.partition[stop.message]))
        self.offsets[partition] = replace(self.offsets[partition], next=int(block.offset[stop.message]))

    # --- keys ---

    def _key_stops(self, block: MessageBlock, rows: DecodedRows) -> Iterator[Stop]:
        """Yield a stop for each rule about keys in several partitions that rows of a table break."""
        # keys in topics with one partition are not remembered before the table is in two: hashing all of them only for
        # this would slow down every job, so a key that moves to the second topic is found at its next change
        topics = self._topics_of.setdefault(rows.schema.name, set())
        topics.add(block.topic)
        if self.partition_counts.get(block.topic, 1) < 2 and len(topics) < 2:
            return
        if (stop := self.key_change_stop(block, rows)) is not None:
            yield stop
        if self._rules.one_partition_per_key:
            columns = [column for _, column in self.key_columns(rows)]
            kept = ~rows.key_change
            plain = [column.filter(pa.array(kept)) for column in columns] if not kept.all() else columns
            messages = rows.message[kept]
            first = self._topic_number(block.topic) * _PARTITIONS
            number = self.table_number(rows.schema.name)
            row = self._keys.first_conflict(plain, block.partition[messages] + np.int32(first), number)
            if row >= 0:
                yield Stop(int(messages[row]), _several(block, int(messages[row]), rows.schema.name))

    def key_change_stop(self, block: MessageBlock, rows: DecodedRows) -> Stop | None:
        """Return the first update that changes a key, if its place among the changes of the old key is not known."""
        accepts = self._rules.applies_key_changes or not self._rules.moves_key_changes
        if accepts or self.partition_counts.get(block.topic, 1) < 2 or not rows.key_change.any():
            return None
        message = int(rows.message[int(np.flatnonzero(rows.key_change)[0])])
        return Stop(message, _key_change(block, message, rows.schema.name))

    # --- a replay of kept messages ---

    def part(self, decoded: Decoded, count: int) -> Batch:
        """Return the rows of ``count`` messages as a part of a transaction, which ends with ``replayed``."""
        changes = self._changes(decoded, count, self.position)
        rows, size = sum(one.rows.num_rows for one in changes), sum(one.bytes for one in changes)
        return Batch(changes, self._end, self._end, False, count, rows, size, None, None)

    def replayed(self, kept: KeptMessages) -> Batch:
        """Return the end of a replay. ``kept``: what is known after it."""
        self.kept = kept
        return self._batch(self.position, (), 0, 0, None, None)

    # --- rows ---

    def _changes(self, decoded: Decoded, count: int, before: KafkaPosition) -> tuple[Changes, ...]:
        """Return the rows of the first ``count`` messages with their sequences."""
        kept = [(rows, int(np.searchsorted(rows.message, count))) for rows in decoded.tables]
        kept = [(rows, number) for rows, number in kept if number]
        sequences = in_order([rows.message[:number] for rows, number in kept], self.sequence + 1)
        found = []
        for (rows, number), sequence in zip(kept, sequences, strict=True):
            batch = rows.rows.slice(0, number)
            table = pa.RecordBatch.from_arrays(
                [*batch.columns, pa.array(sequence)], schema=batch.schema.append(_SEQUENCE_FIELD)
            )
            found.append(Changes(self.layouts.current(rows.schema, before), table))
        self.sequence += sum(len(sequence) for sequence in sequences)
        return tuple(found)


def _without(decoded: Decoded, faults: Mapping[int, Fault]) -> Decoded:
    """Return ``decoded`` with more faults, and without the rows of their messages."""
    bad = np.fromiter(faults, np.int64, len(faults))
    tables = (chosen_rows(rows, ~np.isin(rows.message, bad)) for rows in decoded.tables)
    both = sorted((*decoded.faults, *faults.values()), key=lambda fault: fault.message)
    return replace(decoded, tables=tuple(rows for rows in tables if len(rows.message)), faults=tuple(both))


def chosen_rows(rows: DecodedRows, chosen: NDArray[np.bool_]) -> DecodedRows:
    """Return some rows of a table."""
    return DecodedRows(rows.schema, rows.rows.filter(pa.array(chosen)), rows.message[chosen], rows.key_change[chosen])


def in_order(messages: list[NDArray[np.int32]], first: int) -> list[NDArray[np.int64]]:
    """Return the sequences of rows of several tables, in order of their messages."""
    if not messages:
        return []
    joined = np.concatenate(messages)
    sequences = np.empty(len(joined), np.int64)
    sequences[np.argsort(joined, kind="stable")] = np.arange(first, first + len(joined))
    return np.split(sequences, np.cumsum([len(one) for one in messages])[:-1])


def times_of(decoded: Decoded, block: MessageBlock) -> tuple[int | None, int | None]:
    """Return the oldest and the newest commit time of the messages."""
    source = decoded.source_time_us[: len(block.offset)]
    times = np.where(source >= 0, source, np.where(block.timestamp_ms >= 0, block.timestamp_ms * 1000, -1))
    times = times[times >= 0]
    return (int(times.min()), int(times.max())) if len(times) else (None, None)


# --- errors ---


def _where(block: MessageBlock, message: int) -> dict[str, object]:
    return {
        "topic": block.topic,
        "partition": int(block.partition[message]),
        "offset": int(block.offset[message]),
    }


def _bad(block: MessageBlock, fault: Fault, hint: str, guess: Mapping[str, object]) -> DecodeError:
    at, size = int(block.value_at[fault.message]), int(block.value_size[fault.message])
    start = "null" if size < 0 else repr(block.data[at : at + min(size, 300)].tobytes())[2:-1]
    return DecodeError(
        f"A message cannot be loaded: {fault.reason.rstrip('.')}.",
        hint=hint,
        **_where(block, fault.message),
        **guess,
        begins=start,
    )


def _key_change(block: MessageBlock, message: int, table: str) -> SourceActionRequired:
    return SourceActionRequired(
        f"An update changes the key of a row of {table}. It is in the partition of the new key, so its order among the "
        "changes of the old key is not known.",
        hint="Set `source.key_changes: apply` if no other row takes over an old key, or let the producer use one "
        "partition per table. Then run `cdc resume NAME`.",
        **_where(block, message),
    )


def _several(block: MessageBlock, message: int, table: str) -> SourceActionRequired:
    return SourceActionRequired(
        f"Rows of one key of {table} are in several partitions or topics, which have no order between them.",
        hint="Let the producer choose the partition by the key. Set `source.one_partition_per_key: false` only if each "
        "key is written once. Then run `cdc resume NAME`.",
        **_where(block, message),
    )
