"""Plan exact ranges of offsets on the driver, which executors then read.

::

    Consumer: plan --PlanRequest--> stream with PlanReader: ends of partitions --planned Batch--> Window --> get
    Consumer: readers, complete     RangePlans: a planned Batch to KafkaRangeReaders, their counts to a ReadRange
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdc.errors import CdcError
from cdc.model.batch import Batch
from cdc.model.kafka_position import KafkaPosition, Partition, PartitionOffset
from cdc.sources.base import RangeRows, RangeTables, ReadRange
from cdc.sources.kafka.batches import BatchMaker, OrderRules
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.formats.base import Format, KafkaTables
from cdc.sources.kafka.range_reader import KafkaRangeReader, RangeCounts, ReadTables
from cdc.sources.kafka.reader import MessageReader, ReadMessages

SHARE_MESSAGES = 20_000  # a smaller range has fewer readers, because each one connects and writes files of its own
TEXT_FACTOR = 8  # a range has at most this many times `max_bytes` as messages: their rows can be much smaller
_FIRST_MESSAGES = 1_000  # of the first range: its messages' size is not known, and the driver reads new tables
_ASK_AGAIN_S = 0.2  # while there are no new messages


class PlanRequest:
    """The request for the next range: from the Consumer's thread to the reading thread."""

    def __init__(self) -> None:
        self.messages = 0  # of the range at most; 0: none is requested; any thread may read and set it


class PlanReader(MessageReader):
    """Reads the ends of the assigned partitions instead of their messages. Calls: one thread."""

    def __init__(
        self,
        settings: KafkaSettings,
        cluster: Cluster,
        window_bytes: int,
        request: PlanRequest,
        until: Mapping[Partition, int] | None,
    ) -> None:
        """``until``: no range is planned beyond it."""
        super().__init__(settings, cluster, window_bytes)
        self._request, self._until = request, until or {}
        self._next: dict[Partition, int] = {}
        self._next_ask = 0.0
        self._left_out: frozenset[Partition] = frozenset()

    def assign(self, offsets: Mapping[Partition, PartitionOffset]) -> None:
        """See ``MessageReader``."""
        self._next = {one: offset.next for one, offset in offsets.items()}

    def add(self, partition: Partition, offset: PartitionOffset) -> None:
        """See ``MessageReader``."""
        self._next[partition] = offset.next

    def remove(self, partitions: Iterable[Partition]) -> None:
        """See ``MessageReader``."""
        for partition in partitions:
            self._next.pop(partition, None)

    def leave_out(self, partitions: frozenset[Partition]) -> None:
        """See ``MessageReader``. One partition without a leader would let the request for all of them fail."""
        self._left_out = partitions

    def read(self, timeout_s: float) -> ReadMessages:
        """Return the next range if one is requested and there are messages; else errors of connections."""
        is_due = self._request.messages and time.monotonic() >= self._next_ask
        chunk = super().read(0 if is_due else timeout_s)
        if not is_due:
            return chunk
        self._next_ask = time.monotonic() + _ASK_AGAIN_S
        try:
            ends = self._cluster.ends(self._next.keys() - self._left_out)
        except CdcError as error:
            chunk.error = error
            return chunk
        lost = [one for one, end in ends.items() if end < self._next[one]]
        chunk.lost += lost
        ends = {one: end for one, end in ends.items() if one not in lost}  # these are read again, or not at all
        last = {one: min(end, self._until.get(one, end)) for one, end in ends.items()}
        new = {one: end - self._next[one] for one, end in last.items() if end > self._next[one]}
        total, most = sum(new.values()), self._request.messages
        for one, count in new.items():
            # each partition gets its share, and at least one message, so that none waits for the others
            limit = self._next[one] + (count if total <= most else max(1, count * most // total))
            chunk.planned[one] = self._next[one] = limit
        chunk.ends |= {one: end for one, end in ends.items() if self._next[one] >= last[one]}
        chunk.log_ends |= ends
        return chunk


@dataclass(frozen=True, slots=True)
class ExecutorReads:
    """What executors need to read ranges."""

    create: Callable[..., Format]  # picklable; ``tables``: those of a range
    tables: KafkaTables  # picklable


@dataclass(slots=True)
class RangePlans:
    """Creates the readers of planned ranges, and adds up what they have read. Calls: the Consumer's thread."""

    settings: KafkaSettings
    reads: ExecutorReads
    rules: OrderRules
    maker: BatchMaker
    invalid_dates: Counter[tuple[str, str]]  # of the driver's decoder: those of executors are added
    request: PlanRequest = field(default_factory=PlanRequest)
    message_bytes: float = 0.0  # per message, as ``note_size`` counts them; 0: not known
    sequence: int = 0  # before the range that is read
    ends: dict[Partition, PartitionOffset] = field(default_factory=dict)  # of ranges that are read, with leader epochs

    def plan(self, max_bytes: int, max_rows: int) -> None:
        """See ``RangePlanner``."""
        messages = max_bytes / self.message_bytes if self.message_bytes else _FIRST_MESSAGES
        self.request.messages = max(1, min(int(messages), max_rows))

    def note_size(self, size: int, messages: int, loaded: int | None = None) -> None:
        """Note the size of messages, for the size of the next range. ``loaded``: bytes of their rows; None: not known.

        The rows count, as in a cycle that the driver reads: messages as text are several times as large.
        """
        if messages:
            counted = size if loaded is None else max(loaded, size // TEXT_FACTOR)
            self.message_bytes = max(1.0, counted / messages)

    def readers(self, planned: Batch, tables: RangeTables, sequence: int, count: int) -> list[KafkaRangeReader]:
        """See ``RangePlanner``. The largest partitions are distributed first, each to the emptiest reader."""
        parts = self._parts_of(planned)
        self.sequence = max(sequence, self.maker.sequence)  # the driver may have read the range before this one
        sizes = {one: last - first.next for one, (first, last) in parts.items()}
        shares: list[list[Partition]] = [
            [] for _ in range(min(count, len(parts), max(1, sum(sizes.values()) // SHARE_MESSAGES)))
        ]
        filled = [0] * len(shares)
        for one in sorted(parts, key=lambda one: (-sizes[one], one)):
            emptiest = filled.index(min(filled))
            shares[emptiest].append(one)
            filled[emptiest] += sizes[one]
        counts = self.maker.partition_counts
        topics = {topic for topic, _ in parts}
        several = frozenset(one for one in topics if self.maker.has_several(one))
        multiple = frozenset(one for one in topics if counts.get(one, 1) > 1)
        return [
            KafkaRangeReader(
                self.settings,
                self.reads.create,
                ReadTables(self.reads.tables, tables, self.maker.layouts.names()),
                {one: parts[one][0] for one in share},
                {one: parts[one][1] for one in share},
                self.rules,
                several,
                multiple,
                {one.schema.name: self.maker.table_number(one.schema.name) for one in tables.read},
                self.sequence,
            )
            for share in shares
        ]

    def complete(self, planned: Batch, positions: Sequence[Any]) -> ReadRange | None:
        """See ``RangePlanner``."""
        assert isinstance(planned.last, KafkaPosition)
        found = [RangeCounts.from_json(one) for one in positions]
        if not all(self.maker.note_keys(topic, *keys) for one in found for topic, keys in one.keys.items()):
            return None  # the driver finds that key again, and names its message
        topics = [(table, topic) for one in found for table, names in one.topics.items() for topic in names]
        if not all(self.maker.note_topic(table, topic) for table, topic in topics):
            return None  # a table is in one more topic: from now on its keys are compared
        for one in found:
            for name, count in one.invalid_dates.items():
                table, _, column = name.partition("\0")
                self.invalid_dates[table, column] += count
        whole = [one for one in found if not one.is_only]  # the other reads have the same messages
        times = [time_us for one in whole for time_us in one.times_us]
        messages, size = sum(one.messages for one in whole), sum(one.bytes for one in whole)
        rows = _added(found)
        self.note_size(size, messages, sum(one.bytes for one in rows.values()))
        at = {partition: offset for one in whole for partition, offset in one.next.items()}
        ends = planned.last.offsets
        self.ends |= {one: replace(offset, next=ends[one].next) for one, offset in at.items()}
        batch = replace(
            planned,
            last=KafkaPosition.of(
                planned.last.cluster, planned.last.ids, self.with_epochs(ends), kept=self.maker.note_read(messages)
            ),
            entries=messages,
            rows=sum(one.upserts + one.deletes for one in rows.values()),
            bytes=size,
            oldest_commit_us=min(times, default=None),
            newest_commit_us=max(times, default=None),
        )
        self.maker.sequence = self.sequence + max((one.sequences for one in found), default=0)
        return ReadRange(batch, rows, self.maker.sequence)

    def _parts_of(self, planned: Batch) -> dict[Partition, tuple[PartitionOffset, int]]:
        """Return the first offset of each partition with messages, and the offset after the last one."""
        assert isinstance(planned.first, KafkaPosition) and isinstance(planned.last, KafkaPosition)
        first = self.with_epochs(planned.first.offsets)
        return {
            one: (first[one], end.next)
            for one, end in planned.last.offsets.items()
            if one in first and first[one].next < end.next
        }

    def with_epochs(self, offsets: Mapping[Partition, PartitionOffset]) -> dict[Partition, PartitionOffset]:
        """Return ``offsets`` with the leader epoch and time of the message before, if executors have read it."""
        return {one: self.ends[one] if self.ends.get(one) == offset else offset for one, offset in offsets.items()}


def _added(counts: Sequence[RangeCounts]) -> dict[str, RangeRows]:
    rows: dict[str, RangeRows] = {}
    for name, one in ((name, one) for each in counts for name, one in each.rows.items()):
        old = rows.get(name, RangeRows())
        rows[name] = RangeRows(old.upserts + one.upserts, old.deletes + one.deletes, old.bytes + one.bytes)
    return rows
