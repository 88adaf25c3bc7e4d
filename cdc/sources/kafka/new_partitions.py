"""Partitions that a topic got while it was read: they wait for the old ones, since the producer may have moved keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cdc.model.kafka_position import Partition, PartitionOffset
from cdc.sources.kafka.cluster import Cluster, Topics

_log = logging.getLogger(__name__)


class NewPartitions:
    """The new partitions that wait, each with the ends that the old ones of its topic had when it was found.

    They outlast a stream: a busy source can end the stream after each range.
    """

    def __init__(self) -> None:
        self._waiting: dict[Partition, dict[Partition, int]] = {}

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def find(self, cluster: Cluster, topics: Topics, known: Mapping[Partition, PartitionOffset]) -> None:
        """Add the partitions that are in ``topics``, but not in ``known``. Raises: SourceUnavailable."""
        for one in self._waiting.keys() & known.keys():
            del self._waiting[one]
        new = topics.partitions - known.keys() - self._waiting.keys()
        if not new:
            return
        ends = cluster.ends([one for one in known if one in topics.partitions])
        for partition in sorted(new):
            _log.info("found a new partition: %s[%d]", *partition)
            self._waiting[partition] = {one: end for one, end in ends.items() if one[0] == partition[0]}

    def ready(self, committed: Mapping[Partition, PartitionOffset]) -> set[Partition]:
        """Return those whose old partitions are committed up to the ends that they had."""
        done = {one: offset.next for one, offset in committed.items()}
        return {
            one for one, ends in self._waiting.items() if all(done.get(old, -1) >= end for old, end in ends.items())
        }

    def clear(self) -> None:
        """Forget them: reading begins at another position."""
        self._waiting.clear()

    def remove(self, partition: Partition) -> None:
        """Remove one that is read from now on."""
        del self._waiting[partition]
