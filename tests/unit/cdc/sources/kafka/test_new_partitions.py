"""New partitions of a topic: what they wait for, when streams end meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from cdc.model.kafka_position import Partition, PartitionOffset
from cdc.sources.kafka.cluster import Topic, Topics
from cdc.sources.kafka.new_partitions import NewPartitions

OLD, NEW = ("orders", 0), ("orders", 1)


class GrowingCluster:
    """A cluster whose old partition grows with each question."""

    def __init__(self) -> None:
        self.end = 0

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        self.end += 10
        return dict.fromkeys(partitions, self.end)


def at(**numbers: int) -> dict[Partition, PartitionOffset]:
    return {("orders", int(name[1:])): PartitionOffset(number) for name, number in numbers.items()}


def test_partition_that_joined_a_stream_which_ended_keeps_its_ends() -> None:
    """The stream of a range that the driver reads has no further Batch, so the position never got the partition."""
    cluster, new = GrowingCluster(), NewPartitions()
    topics = Topics("cluster", {"orders": Topic("id", (0, 1))})
    new.find(cluster, topics, at(p0=0))  # type: ignore[arg-type]
    assert new.ready(at(p0=9)) == set()
    assert new.ready(at(p0=10)) == {NEW}
    new.remove(NEW)
    assert not new
    new.find(cluster, topics, at(p0=10, p1=0))  # type: ignore[arg-type] # in the same stream
    assert not new
    new.find(cluster, topics, at(p0=10))  # type: ignore[arg-type] # in the next one
    assert new.ready(at(p0=10)) == {NEW}
    new.remove(NEW)
    assert new.ready(at(p0=10, p1=0)) == set()  # it is committed
    new.find(cluster, topics, at(p0=10, p1=0))  # type: ignore[arg-type]
    assert not new
