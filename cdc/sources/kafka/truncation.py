"""Find partitions whose log was truncated by an unclean leader election while the job did not read.

librdkafka compares leader epochs only while it reads. It does not validate the offset at which reading starts (2.16).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from cdc.model.kafka_position import Partition, PartitionOffset
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.reader import MessageReader

_LIMIT_S = 10.0
_log = logging.getLogger(__name__)


def truncated_logs(
    settings: KafkaSettings, cluster: Cluster, offsets: Mapping[Partition, PartitionOffset]
) -> dict[Partition, PartitionOffset]:
    """Return the positions before which the log has other messages than those that the job read.

    The last message that the job read is read again. If a leader with a newer epoch wrote it, it is another message.
    A partition without that message, or whose leader does not answer in 10 s, is not returned. The message is missing
    after compaction. After a producer with transactions, the last offset is mostly a control record, which is never
    delivered.
    """
    known = {one: offset for one, offset in offsets.items() if offset.epoch >= 0}
    first = cluster.first_offsets(known) if known else {}
    asked = {one: offset for one, offset in known.items() if first.get(one, offset.next) < offset.next}
    if not asked:
        return {}
    found: dict[Partition, PartitionOffset] = {}
    reader = MessageReader(settings, cluster, 0, notes_first=True)
    waiting, deadline = {*asked}, time.monotonic() + _LIMIT_S
    try:
        reader.assign({one: PartitionOffset(offset.next - 1) for one, offset in asked.items()})
        while waiting and time.monotonic() < deadline:
            read = reader.read(0.1)
            for one, (at, epoch) in read.firsts.items():
                if one in waiting and at == asked[one].next - 1 and epoch > asked[one].epoch:
                    found[one] = asked[one]
            done = {*read.firsts, *read.ends, *read.lost}
            reader.remove(waiting & done)
            waiting -= done
    finally:
        reader.close()
    if waiting:
        _log.warning("the leader epochs of %d partitions could not be compared in %.0f s", len(waiting), _LIMIT_S)
    return found
