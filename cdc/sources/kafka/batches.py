"""Make Batches of blocks. A Batch ends before the first message that stops the job.

A unit is one message with all its rows. Rows are numbered in order of arrival, which within a partition is the order of
offsets. Nothing in a message orders rows: times and binlog positions in messages repeat or step back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cdc.errors import CdcError, DecodeError, SourceActionRequired, SourceUnavailable
from cdc.model.batch import Batch, Changes
from cdc.model.kafka_position import KafkaPosition, Partition, PartitionOffset
from cdc.model.schema import SEQUENCE
from cdc.model.table_filter import TableFilter
from cdc.sources.kafka.bad_messages import BadMessages
from cdc.sources.kafka.block_parts import next_offsets, select
from cdc.sources.kafka.formats.base import Decoded, DecodedRows, Fault, Format
from cdc.sources.kafka.key_partitions import KeyPartitions
from cdc.sources.kafka.layouts import Layouts
from cdc.sources.kafka.messages import MessageBlock
from cdc.sources.kafka.stops import Stop

_SEQUENCE_FIELD = pa.field(SEQUENCE, pa.int64(), nullable=False)
_BAD_HINT = (
    "Check that `source.format` is the format of the messages, and correct the producer. To keep such messages in "
    "files and continue, set `source.bad_rows`, then run `cdc resume NAME`."
)
_LIMIT_HINT = (
    "The limit of {} kept messages (`source.bad_rows.max_messages`) is reached. Load the messages in {} in another way "
    "and remove their files, or raise the limit. Then run `cdc resume NAME`."
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
    ) -> None:
        """``bad``: keeps messages that cannot be decoded; None: the first one stops the job."""
        self.sequence = 0  # of the last row
        self.offsets: dict[Partition, PartitionOffset] = {}
        self.partition_counts: Mapping[str, int] = {}  # by topic
        self._decoder = decoder
        self._filter = table_filter
        self._layouts = layouts
        self._rules = rules
        self._bad = bad
        self._keys: dict[str, KeyPartitions] = {}  # by topic
        self._tables: dict[str, int] = {}
        self.begin(KafkaPosition("", ()), KafkaPosition("", ()))

    def begin(self, saved: KafkaPosition, position: KafkaPosition) -> None:
        """Continue at ``position``. The next Batch begins at ``saved``, where the last checkpoint ended."""
        self._cluster, self._ids = position.cluster, position.ids
        self.offsets = position.offsets
        self._end = saved
        self._keys.clear()

    def join(self, topic: str, id_: str, partition: int, offset: int) -> None:
        """Add a partition to the position. Keys may move to it, so the known partitions of keys are dropped."""
        self._ids.setdefault(topic, id_)
        self.offsets[topic, partition] = PartitionOffset(offset)
        self._keys.pop(topic, None)

    def id_of(self, topic: str) -> str | None:
        """Return the id of a topic of the position."""
        return self._ids.get(topic)

    @property
    def position(self) -> KafkaPosition:
        """The position after everything that was read."""
        return KafkaPosition.of(self._cluster, self._ids, self.offsets)

    def empty(self) -> Batch | None:
        """Return a Batch without rows if the position is after the last Batch: ends of logs and new partitions."""
        position = self.position
        return None if position == self._end else self._batch(position, (), 0, 0, None, None)

    def read(self, block: MessageBlock, epochs: Mapping[Partition, int]) -> Iterator[Batch]:
        """Yield the Batch of a block. Raises: the error that stops the job, after the Batch of the messages before."""
        decoded, block, stop = self._decode(block)
        stop = self._first_stop(block, decoded, stop)
        count = len(block.offset) if stop is None else stop.message
        whole = select(block, slice(0, count))
        before = self.position
        for partition, offset in next_offsets(whole, epochs).items():
            self.offsets[partition] = offset
        if stop is not None:
            self._stop_at(block, stop)
        changes = self._changes(decoded, count, before)
        rows = sum(one.rows.num_rows for one in changes)
        size = int(np.maximum(whole.value_size, 0).sum() + np.maximum(whole.key_size, 0).sum())
        position = self.position
        if position != self._end:
            yield self._batch(position, changes, count, size, *_times(decoded, whole), rows=rows)
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
            return self._decoder.decode(block), block, None
        except SourceUnavailable:  # of the schema registry; every part of the block needs it
            raise
        except CdcError as error:
            first, last, found = 0, len(block.offset), error  # ``first`` messages are readable, ``last`` are not
            while last - first > 1:
                middle = (first + last) // 2
                try:
                    self._decoder.decode(select(block, slice(0, middle)))
                    first = middle
                except CdcError as other:
                    last, found = middle, other
            readable = self._decoder.decode(select(block, slice(0, first)))
            return readable, block, Stop(first, _located(found, block, first))

    def _first_stop(self, block: MessageBlock, decoded: Decoded, stop: Stop | None) -> Stop | None:
        stops = [stop] if stop is not None else []
        stops += self._layouts.stops(block, decoded, self._before)
        for rows in decoded.tables:
            stops += self._key_stops(block, rows)
        first = min(stops, key=lambda one: one.message, default=None)
        for fault in decoded.faults:
            if first is not None and fault.message > first.message:
                break
            if self._bad is None or not self._bad.keep(block, fault):
                return Stop(fault.message, _bad(block, fault, self._bad))
        return first

    def _before(self, block: MessageBlock, message: int) -> KafkaPosition:
        """Return the position directly before a message, which names the message."""
        offsets = {**self.offsets, **next_offsets(select(block, slice(0, message)), {})}
        partition = (block.topic, int(block.partition[message]))
        offsets[partition] = PartitionOffset(int(block.offset[message]))
        return KafkaPosition.of(self._cluster, self._ids, offsets, f"{partition[0]}:{partition[1]}")

    def _stop_at(self, block: MessageBlock, stop: Stop) -> None:
        """Let the position be exactly at the message that stops the job, so that a resume starts there."""
        partition = (block.topic, int(block.partition[stop.message]))
        self.offsets[partition] = replace(self.offsets[partition], next=int(block.offset[stop.message]))

    # --- keys ---

    def _key_stops(self, block: MessageBlock, rows: DecodedRows) -> Iterator[Stop]:
        """Yield a stop for each rule about keys that rows of a table break."""
        key = sorted(self._filter.reads(rows.schema).key)
        columns = [rows.rows.column(rows.rows.schema.get_field_index(name)) for name in key]
        for name, column in zip(key, columns, strict=True):
            if column.null_count:
                row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                message = int(rows.message[row])
                yield Stop(message, _bad(block, Fault(message, f"NULL in the key column {name} of {rows.schema.name}")))
        if self.partition_counts.get(block.topic, 1) < 2:
            return
        if self._rules.moves_key_changes and not self._rules.applies_key_changes and rows.key_change.any():
            message = int(rows.message[int(np.flatnonzero(rows.key_change)[0])])
            yield Stop(message, _key_change(block, message, rows.schema.name))
        if self._rules.one_partition_per_key:
            kept = ~rows.key_change
            plain = [column.filter(pa.array(kept)) for column in columns] if not kept.all() else columns
            messages = rows.message[kept]
            number = self._tables.setdefault(rows.schema.name, len(self._tables) + 1)
            known = self._keys.setdefault(block.topic, KeyPartitions())
            row = known.first_conflict(plain, block.partition[messages], number)
            if row >= 0:
                yield Stop(int(messages[row]), _several(block, int(messages[row]), rows.schema.name))

    # --- rows ---

    def _changes(self, decoded: Decoded, count: int, before: KafkaPosition) -> tuple[Changes, ...]:
        """Return the rows of the first ``count`` messages with their sequences."""
        kept = [(rows, int(np.searchsorted(rows.message, count))) for rows in decoded.tables]
        kept = [(rows, number) for rows, number in kept if number]
        sequences = _in_order([rows.message[:number] for rows, number in kept], self.sequence + 1)
        found = []
        for (rows, number), sequence in zip(kept, sequences, strict=True):
            batch = rows.rows.slice(0, number)
            table = pa.RecordBatch.from_arrays(
                [*batch.columns, pa.array(sequence)], schema=batch.schema.append(_SEQUENCE_FIELD)
            )
            found.append(Changes(self._layouts.current(rows.schema, before), table))
        self.sequence += sum(len(sequence) for sequence in sequences)
        return tuple(found)


def _in_order(messages: list[NDArray[np.int32]], first: int) -> list[NDArray[np.int64]]:
    """Return the sequences of rows of several tables, in order of their messages."""
    if not messages:
        return []
    joined = np.concatenate(messages)
    sequences = np.empty(len(joined), np.int64)
    sequences[np.argsort(joined, kind="stable")] = np.arange(first, first + len(joined))
    return np.split(sequences, np.cumsum([len(one) for one in messages])[:-1])


def _times(decoded: Decoded, block: MessageBlock) -> tuple[int | None, int | None]:
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


def _located(error: CdcError, block: MessageBlock, message: int) -> CdcError:
    error.context.update(_where(block, message))
    return error


def _bad(block: MessageBlock, fault: Fault, kept: BadMessages | None = None) -> DecodeError:
    at, size = int(block.value_at[fault.message]), int(block.value_size[fault.message])
    start = "null" if size < 0 else repr(block.data[at : at + min(size, 300)].tobytes())[2:-1]
    return DecodeError(
        f"A message cannot be loaded: {fault.reason.rstrip('.')}.",
        hint=_BAD_HINT if kept is None else _LIMIT_HINT.format(kept.limit, kept.folder),
        **_where(block, fault.message),
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
        f"Rows of one key of {table} are in several partitions, which have no order between them.",
        hint="Let the producer choose the partition by the key. Set `source.one_partition_per_key: false` only if each "
        "key is written once. Then run `cdc resume NAME`.",
        **_where(block, message),
    )
