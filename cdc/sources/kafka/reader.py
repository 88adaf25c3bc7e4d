"""Read messages of assigned partitions into blocks. No consumer group is joined; no committed offset is read.

The next offset of a partition is that of its end, or the one after the last message: the last offset of a log can be a
control record of a transaction, which is never delivered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.errors import CdcError
from cdc.model.kafka_position import KafkaPosition, Partition, PartitionOffset
from cdc.sources.kafka.cluster import Cluster, KafkaSettings, refused
from cdc.sources.kafka.messages import PADDING, MessageBlock

_log = logging.getLogger(__name__)

MESSAGES = 20_000  # of one call: large enough for kernels, small enough for the window
_LEAST_QUEUE_KB, _MOST_QUEUE_KB = 1024, 65_536  # what librdkafka may read ahead; 64 MiB is its default
_LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)


@dataclass(slots=True)
class Chunk:
    """What one call has read."""

    blocks: list[MessageBlock] = field(default_factory=list)  # one per topic
    epochs: dict[Partition, int] = field(default_factory=dict)  # leader epoch of the last message
    ends: dict[Partition, int] = field(default_factory=dict)  # the offset at which a partition has no more messages now
    lost: list[Partition] = field(default_factory=list)  # its offset is not in the log
    error: CdcError | None = None


class MessageReader:
    """Reads the assigned partitions. Calls: one thread."""

    def __init__(self, settings: KafkaSettings, cluster: Cluster, window_bytes: int) -> None:
        """Create the consumer; it connects in the background. Raises: ConfigError - a property is refused."""
        self.report_error: KafkaError | None = None  # of the last report of offsets
        self._cluster = cluster
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
        )
        try:
            self._consumer: Consumer | None = Consumer({**config, "on_commit": self._reported})
        except KafkaException as error:
            raise refused(error) from error

    def assign(self, offsets: Mapping[Partition, PartitionOffset]) -> None:
        """Read these partitions from their offsets, instead of the ones before."""
        self._handle.assign([_topic_partition(*one, offset) for one, offset in offsets.items()])

    def add(self, partition: Partition, offset: PartitionOffset) -> None:
        """Read one more partition, or an assigned one from another offset."""
        topic_partition = _topic_partition(*partition, offset)
        assigned = {(one.topic, one.partition) for one in self._handle.assignment()}
        if partition in assigned:
            self._handle.incremental_unassign([TopicPartition(*partition)])
        self._handle.incremental_assign([topic_partition])

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Do not read these partitions any more."""
        if found := [TopicPartition(*one) for one in partitions]:
            self._handle.incremental_unassign(found)

    def read(self, timeout_s: float) -> Chunk:
        """Return what has arrived. Blocks for ``timeout_s`` at most."""
        chunk, messages = Chunk(), []
        for message in self._handle.consume(MESSAGES, timeout_s):
            error = message.error()
            partition = (message.topic() or "", _number(message.partition()))
            if error is None:
                messages.append(message)
                chunk.ends.pop(partition, None)
                chunk.epochs[partition] = _number(message.leader_epoch())
            elif error.code() == KafkaError._PARTITION_EOF:
                chunk.ends[partition] = _number(message.offset())
            elif error.code() in _LOST:
                chunk.lost.append(partition)
            else:
                chunk.error = self._cluster.translated(error)
        chunk.blocks = blocks_of(messages)
        return chunk

    def report(self, position: KafkaPosition) -> None:
        """Report the offsets of a committed position to the group, without waiting."""
        offsets = [TopicPartition(*one, offset.next) for one, offset in position.offsets.items()]
        try:
            self._handle.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._reported(error.args[0], offsets)

    def _reported(self, error: KafkaError | None, _: Sequence[TopicPartition]) -> None:
        if error is not None and self.report_error is None:
            _log.warning("the offsets cannot be reported to the group: %s", error.str())
        self.report_error = error

    @property
    def _handle(self) -> Consumer:
        assert self._consumer is not None
        return self._consumer

    def close(self) -> None:
        """Close the connections. May be repeated."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def blocks_of(messages: Sequence[Message]) -> list[MessageBlock]:
    """Return the messages as one block per topic, in order of arrival."""
    topics: dict[str, list[Message]] = {}
    for message in messages:
        topics.setdefault(message.topic() or "", []).append(message)
    return [_block(topic, found) for topic, found in topics.items()]


def _block(topic: str, messages: Sequence[Message]) -> MessageBlock:
    values: list[Any] = [message.value() for message in messages]
    keys: list[Any] = [message.key() for message in messages]
    times = [message.timestamp() for message in messages]
    value_size, key_size = _sizes(values), _sizes(keys)
    data = b"".join([*(one or b"" for one in values), *(one or b"" for one in keys), bytes(PADDING)])
    value_at = _starts(value_size)
    key_at = _starts(key_size) + int(np.maximum(value_size, 0).sum())
    return MessageBlock(
        topic,
        np.frombuffer(data, np.uint8),
        value_at,
        value_size,
        key_at,
        key_size,
        np.fromiter((_number(message.partition()) for message in messages), np.int32, len(messages)),
        np.fromiter((_number(message.offset()) for message in messages), np.int64, len(messages)),
        np.fromiter((-1 if kind == TIMESTAMP_NOT_AVAILABLE else ms for kind, ms in times), np.int64, len(times)),
    )


def _sizes(texts: Sequence[bytes | None]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromiter((-1 if one is None else len(one) for one in texts), np.int64, len(texts))


def _starts(sizes: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromiter(accumulate(np.maximum(sizes, 0).tolist(), initial=0), np.int64, len(sizes) + 1)[:-1]


def _topic_partition(topic: str, number: int, offset: PartitionOffset) -> TopicPartition:
    if offset.epoch < 0:
        return TopicPartition(topic, number, offset.next)
    return TopicPartition(topic, number, offset.next, leader_epoch=offset.epoch)


def _number(value: int | None) -> int:
    return -1 if value is None else value
