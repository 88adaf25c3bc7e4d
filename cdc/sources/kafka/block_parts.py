"""Select messages of a block, and find how far its partitions are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cdc.model.kafka_position import Partition, PartitionOffset
from cdc.sources.kafka.formats.base import Decoded, Fault
from cdc.sources.kafka.messages import MessageBlock


def select(block: MessageBlock, chosen: slice | NDArray[np.bool_]) -> MessageBlock:
    """Return the chosen messages. The buffer is shared."""
    return replace(
        block,
        value_at=block.value_at[chosen],
        value_size=block.value_size[chosen],
        key_at=block.key_at[chosen],
        key_size=block.key_size[chosen],
        partition=block.partition[chosen],
        offset=block.offset[chosen],
        timestamp_ms=block.timestamp_ms[chosen],
    )


def before(block: MessageBlock, until: Mapping[Partition, int]) -> tuple[MessageBlock, dict[Partition, int]]:
    """Return the messages before the offsets of ``until``, and the partitions with later messages, which are read."""
    limits = np.full(int(block.partition.max(initial=-1)) + 1, -1, np.int64)
    for (topic, number), offset in until.items():
        if topic == block.topic and number < len(limits):
            limits[number] = offset
    is_before = block.offset < limits[block.partition]
    if is_before.all():
        return block, {}
    ended = {(block.topic, int(number)) for number in np.unique(block.partition[~is_before])}
    return select(block, is_before), {one: until[one] for one in ended if one in until}


def next_offsets(block: MessageBlock, epochs: Mapping[Partition, int]) -> dict[Partition, PartitionOffset]:
    """Return the position in each partition after the messages of ``block``."""
    numbers, last = np.unique(block.partition[::-1], return_index=True)
    at = len(block.partition) - 1 - last
    return {
        (block.topic, number): PartitionOffset(offset + 1, epochs.get((block.topic, number), -1), time_ms)
        for number, offset, time_ms in zip(
            numbers.tolist(), block.offset[at].tolist(), block.timestamp_ms[at].tolist(), strict=True
        )
    }


def without_repeats(decoded: Decoded, block: MessageBlock, read: Mapping[Partition, PartitionOffset]) -> Decoded:
    """Return ``decoded`` without the faults of tombstones whose delete event has been read.

    ``read``: the position in each partition before the block. The event is directly before its tombstone in the log, so
    only a tombstone after a gap of offsets can be without it.
    """
    if not any(fault.is_tombstone for fault in decoded.faults):
        return decoded

    def is_repeat(fault: Fault) -> bool:
        at = read.get((block.topic, int(block.partition[fault.message])))
        return fault.is_tombstone and at is not None and at.next == int(block.offset[fault.message])

    return replace(decoded, faults=tuple(fault for fault in decoded.faults if not is_repeat(fault)))
