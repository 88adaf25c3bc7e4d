"""Partitions that a topic got while it was read: they wait for the old ones, since the producer may have moved keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cdc.model.kafka_position import Partition, PartitionOffset
from cdc.sources.kafka.cluster import Cluster, Topics
from cdc.sources.kafka.continuity import Accepted

_log = logging.getLogger(__name__)


class NewPartitions:
    """The new partitions that wait, each with the ends that the old ones of its topic had when it was found.

    They outlast a stream: a busy source can end the stream after each range. A stream can also end after it has joined
    a partition and before that is committed; the partition then waits again, for the same ends.
    """

    def __init__(self) -> None:
        self._waiting: dict[Partition, dict[Partition, int]] = {}
        self._joined: dict[Partition, dict[Partition, int]] = {}  # and not committed yet
        self.accepted: dict[Partition, Accepted] = {}  # what the user accepted when they were found

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def find(
        self,
        cluster: Cluster,
        topics: Topics,
        known: Mapping[Partition, PartitionOffset],
        accepted: Accepted,
        until: Mapping[Partition, int] | None = None,
    ) -> None:
        """Add the partitions that are in ``topics``, but not in ``known``. Raises: SourceUnavailable.

        ``until``: where the job stops reading, and the only partitions that it reads; None: it does not stop.
        """
        for one in self._joined.keys() - known.keys():
            self._waiting[one] = self._joined.pop(one)
        for one in self._waiting.keys() & known.keys():
            del self._waiting[one]
        new = topics.partitions - known.keys() - self._waiting.keys()
        if until is not None:
            new &= until.keys()
        if not new:
            return
        old = [one for one in known if one in topics.partitions]
        # a row of an open transaction is older than those that its producer sends to the new partition
        ends = cluster.written(old) if until is None else {one: until[one] for one in old if one in until}
        for partition in sorted(new):
            _log.info("found a new partition: %s[%d]", *partition)
            self.accepted[partition] = accepted
            self._waiting[partition] = {one: end for one, end in ends.items() if one[0] == partition[0]}

    def ready(self, committed: Mapping[Partition, PartitionOffset]) -> set[Partition]:
        """Return those whose old partitions are committed up to the ends that they had."""
        for one in self._joined.keys() & committed.keys():
            del self._joined[one]
        done = {one: offset.next for one, offset in committed.items()}
        return {
            one for one, ends in self._waiting.items() if all(done.get(old, -1) >= end for old, end in ends.items())
        }

    def clear(self) -> None:
        """Forget them: reading begins at another position."""
        self._waiting.clear()
        self._joined.clear()
        self.accepted.clear()

    def remove(self, partition: Partition) -> None:
        """Remove one that is read from now on."""
        self._joined[partition] = self._waiting.pop(partition)
