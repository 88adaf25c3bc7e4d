"""Read messages of assigned partitions into blocks. No consumer group is joined; no committed offset is read.

The next offset of a partition is that of its end, or the one after the last message: the last offset of a log can be a
control record of a transaction, which is never delivered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from numpy.typing import NDArray

from cdc.errors import CdcError, DecodeError, ErrorAction, action_for
from cdc.model.kafka_position import KafkaPosition, Partition, PartitionOffset
from cdc.sources.kafka.cluster import Cluster, KafkaSettings, refused, text_of
from cdc.sources.kafka.librdkafka import RawConsumer, RawMessages
from cdc.sources.kafka.messages import PADDING, MessageBlock

_log = logging.getLogger(__name__)

QUEUE_BACKOFF_MS = 20
MESSAGES = 20_000  # of one call: large enough for kernels, small enough for the window
_LEAST_QUEUE_KB, _MOST_QUEUE_KB = 1024, 65_536  # what librdkafka may read ahead; 64 MiB is its default
_LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_DAMAGED = (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED)


@dataclass(slots=True)
class ReadMessages:
    """What one call has read."""

    blocks: list[MessageBlock] = field(default_factory=list)  # one per topic
    epochs: dict[Partition, int] = field(default_factory=dict)  # leader epoch of the last message
    firsts: dict[Partition, tuple[int, int]] = field(default_factory=dict)  # if noted: offset, epoch of the first one
    ends: dict[Partition, int] = field(default_factory=dict)  # the offset at which a partition has no more messages now
    lost: list[Partition] = field(default_factory=list)  # its offset is not in the log
    truncated: list[Partition] = field(default_factory=list)  # a new leader does not have the messages that were read
    failed: dict[Partition, CdcError] = field(default_factory=dict)  # transient errors of single partitions
    error: CdcError | None = None  # of those that arrived, one that ends the reading if there is one
    planned: dict[Partition, int] = field(default_factory=dict)  # the end of the next range, instead of its messages
    log_ends: dict[Partition, int] = field(default_factory=dict)  # with ``planned``: the ends now


class MessageReader:
    """Reads the assigned partitions. Calls: one thread."""

    def __init__(
        self, settings: KafkaSettings, cluster: Cluster, window_bytes: int, *, notes_first: bool = False
    ) -> None:
        """Create the consumer; it connects in the background. ``notes_first``: fill ``ReadMessages.firsts``.

        Raises: ConfigError - a property is refused.
        """
        self._notes_first = notes_first
        self.report_error: KafkaError | None = None  # of the last report of offsets
        self._cluster, self._settings = cluster, settings
        self._assigned: set[Partition] = set()
        self._reporter: Consumer | None = None  # created with the first report
        queue_kb = min(max(window_bytes // 4096, _LEAST_QUEUE_KB), _MOST_QUEUE_KB)
        config = settings.config(
            cluster.note_error,
            group_id=settings.group,
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="error",
            enable_partition_eof=True,
            isolation_level=settings.isolation,
            queued_max_messages_kbytes=queue_kb,
            # 1 s is the default: a reader that takes messages as fast as they arrive would wait for it again and again
            fetch_queue_backoff_ms=QUEUE_BACKOFF_MS,
        )
        texts = {name: _text(value) for name, value in config.items() if name not in ("error_cb", "logger")}
        try:
            self._consumer: RawConsumer | None = RawConsumer(texts, cluster.note_error, MESSAGES)
        except KafkaException as error:
            raise refused(error) from error

    def assign(self, offsets: Mapping[Partition, PartitionOffset]) -> None:
        """Read these partitions from their offsets, instead of the ones before."""
        self._handle.assign(offsets)
        self._assigned = {*offsets}

    def add(self, partition: Partition, offset: PartitionOffset) -> None:
        """Read one more partition, or an assigned one from another offset."""
        if partition in self._assigned:
            self._handle.remove([partition])
        self._handle.add({partition: offset})
        self._assigned.add(partition)

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Do not read these partitions any more."""
        if found := [*partitions]:
            self._handle.remove(found)
            self._assigned -= {*found}

    def leave_out(self, partitions: frozenset[Partition]) -> None:
        """Request nothing from ``partitions`` for now. librdkafka knows that itself, so this does nothing."""

    def read(self, timeout_s: float) -> ReadMessages:
        """Return what has arrived. Blocks for ``timeout_s`` at most."""
        if self._reporter is not None:
            self._reporter.poll(0)  # runs its callbacks
        messages = self._handle.read(timeout_s)
        try:
            return self._collected(messages)
        finally:
            messages.free()

    def _collected(self, messages: RawMessages) -> ReadMessages:
        read, last, errors = ReadMessages(), {}, list[CdcError]()
        good = np.flatnonzero(messages.error == 0)
        addresses = messages.topic[good]
        _, firsts = np.unique(addresses, return_index=True)
        for first in np.sort(firsts).tolist():
            topic = messages.topic_name(int(good[first]))
            chosen = good[addresses == addresses[first]]
            read.blocks.append(_block(topic, messages, chosen))
            numbers, at = np.unique(messages.partition[chosen][::-1], return_index=True)
            for number, newest in zip(numbers.tolist(), chosen[len(chosen) - 1 - at].tolist(), strict=True):
                last[topic, number] = newest
                read.epochs[topic, number] = messages.epoch(newest)
            if self._notes_first:
                numbers, at = np.unique(messages.partition[chosen], return_index=True)
                for number, oldest in zip(numbers.tolist(), chosen[at].tolist(), strict=True):
                    first = (int(messages.offset[oldest]), messages.epoch(oldest))
                    read.firsts.setdefault((topic, number), first)
        for event in np.flatnonzero(messages.error).tolist():
            error = messages.reported(event)
            partition = (messages.topic_name(event), int(messages.partition[event]))
            if error.code() == KafkaError._PARTITION_EOF:
                if last.get(partition, -1) < event:  # no message has arrived after it
                    read.ends[partition] = int(messages.offset[event])
            elif error.code() in _LOST:
                read.lost.append(partition)
            elif error.code() == KafkaError._LOG_TRUNCATION:
                read.truncated.append(partition)
            elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:  # reading needs no group
                if self._settings.reports:
                    self._reported(error, ())
            elif error.code() in _DAMAGED:
                errors.append(_damaged(error, partition, int(messages.offset[event])))
            else:
                errors.append(self._cluster.translated(error, partition[0]))
                if partition[0] and action_for(errors[-1]) is ErrorAction.RETRY:
                    read.failed[partition] = errors[-1]
        final = (error for error in errors if action_for(error) is not ErrorAction.RETRY)
        read.error = next(final, errors[-1] if errors else None)
        return read

    def report(self, position: KafkaPosition) -> None:
        """Report the offsets of a committed position to the group, without waiting."""
        offsets = [TopicPartition(*one, offset.next) for one, offset in position.offsets.items()]
        try:
            if self._reporter is None:
                config = self._settings.config(
                    self._cluster.note_error, group_id=self._settings.group, enable_auto_commit=False
                )
                self._reporter = Consumer({**config, "on_commit": self._reported})
            self._reporter.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._reported(error.args[0], offsets)

    def _reported(self, error: KafkaError | None, _: Sequence[TopicPartition]) -> None:
        if error is not None and error.code() == KafkaError._WAIT_COORD and self.report_error is not None:
            return  # the reason is known
        if error is not None and self.report_error is None:
            _log.warning("the offsets cannot be reported to the group: %s", error.str())
        self.report_error = error

    @property
    def _handle(self) -> RawConsumer:
        assert self._consumer is not None
        return self._consumer

    def close(self) -> None:
        """Close the connections. May be repeated."""
        consumer, self._consumer = self._consumer, None
        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            reporter.close()
        if consumer is not None:
            consumer.close()


def _damaged(error: KafkaError, partition: Partition, offset: int) -> DecodeError:
    """Return the error for messages that librdkafka cannot read: it continues after them, and they would be missing."""
    return DecodeError(
        f"Messages cannot be read: {text_of(error)}.",
        hint="Check the partition's log and the disk of its leader. If another replica in sync is intact, make it the "
        "leader, then `cdc resume`.",
        topic=partition[0],
        partition=partition[1],
        offset=offset,
    )


def _block(topic: str, messages: RawMessages, chosen: NDArray[np.int64]) -> MessageBlock:
    value_size, key_size = messages.value_size[chosen], messages.key_size[chosen]
    value_at, value_bytes = _starts(value_size, 0)
    key_at, size = _starts(key_size, value_bytes)
    data = np.empty(size + PADDING, np.uint8)
    data[size:] = 0
    messages.copy(chosen, data, value_at, key_at)
    return MessageBlock(
        topic,
        data,
        value_at,
        value_size,
        key_at,
        key_size,
        messages.partition[chosen],
        messages.offset[chosen],
        messages.timestamp_ms[chosen],
    )


def _starts(sizes: NDArray[np.int64], first: int) -> tuple[NDArray[np.int64], int]:
    """Return where each text begins after ``first``, and where the last one ends."""
    ends = first + np.cumsum(np.maximum(sizes, 0))
    return ends - np.maximum(sizes, 0), int(ends[-1]) if len(ends) else first


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
