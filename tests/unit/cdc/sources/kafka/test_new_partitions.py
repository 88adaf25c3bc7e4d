"""New partitions of a topic: what they wait for, when streams end meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from cdc.errors import PositionLost
from cdc.model.kafka_position import KafkaPosition, Partition, PartitionOffset
from cdc.sources.kafka.cluster import KafkaSettings, Topic, Topics
from cdc.sources.kafka.continuity import Accepted
from cdc.sources.kafka.new_partitions import NewPartitions
from cdc.sources.kafka.stream import KafkaStream, StreamStart
from cdc.sources.window import Window

OLD, NEW = ("orders", 0), ("orders", 1)


class GrowingCluster:
    """A cluster whose old partition grows with each question."""

    def __init__(self) -> None:
        self.end = 0

    def written(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        self.end += 10
        return dict.fromkeys(partitions, self.end)


def at(**numbers: int) -> dict[Partition, PartitionOffset]:
    return {("orders", int(name[1:])): PartitionOffset(number) for name, number in numbers.items()}


def test_partition_that_joined_a_stream_which_ended_keeps_its_ends() -> None:
    """The stream of a range that the driver reads has no further Batch, so the position never got the partition."""
    cluster, new = GrowingCluster(), NewPartitions()
    topics = Topics("cluster", {"orders": Topic("id", (0, 1))})
    new.find(cluster, topics, at(p0=0), Accepted())  # type: ignore[arg-type]
    assert new.ready(at(p0=9)) == set()
    assert new.ready(at(p0=10)) == {NEW}
    new.remove(NEW)
    assert not new
    new.find(cluster, topics, at(p0=10, p1=0), Accepted())  # type: ignore[arg-type] # in the same stream
    assert not new
    new.find(cluster, topics, at(p0=10), Accepted())  # type: ignore[arg-type] # in the next one
    assert new.ready(at(p0=10)) == {NEW}
    new.remove(NEW)
    assert new.ready(at(p0=10, p1=0)) == set()  # it is committed
    new.find(cluster, topics, at(p0=10, p1=0), Accepted())  # type: ignore[arg-type]
    assert not new


def test_partition_whose_first_messages_were_deleted_while_it_waited_does_not_join() -> None:
    joined = []
    maker = SimpleNamespace(id_of={"orders": "id"}.get, join=lambda *one: joined.append(one))
    stream = KafkaStream(
        KafkaSettings(("localhost:1",), ("*",), "test"), StreamStart(KafkaPosition("", ())), maker,  # type: ignore[arg-type]
        Window(1), accepted=Accepted(), window_bytes=1,
    )  # fmt: skip
    stream._cluster = SimpleNamespace(first_offsets=lambda found: dict.fromkeys(found, 8))  # type: ignore[assignment]
    stream._ids = {"orders": "id", "new": "other"}
    with pytest.raises(PositionLost, match="offset 0 is gone"):
        stream._join_now({NEW}, Accepted())
    stream._join_now({("new", 0)}, Accepted())  # of a topic that the job has not read before
    assert joined == [("new", "other", 0, 8)]
