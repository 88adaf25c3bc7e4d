"""Positions in topics of Kafka: the next offset of every partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cdc.model.kept_messages import NOTHING_KEPT, KeptMessages

Partition = tuple[str, int]  # topic and number


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """The position in one partition. Epoch and time describe the last message; they are not compared."""

    next: int  # offset of the next message to read
    epoch: int = field(default=-1, compare=False)  # leader epoch of the last message; -1: unknown
    time_ms: int = field(default=-1, compare=False)  # its timestamp, since 1970, UTC, for people; -1: unknown


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The positions in the partitions of one topic."""

    name: str
    id: str  # a topic that is created again under its name has another one; "" if the brokers do not report it
    partitions: tuple[tuple[int, PartitionOffset], ...]  # by number


@dataclass(frozen=True, slots=True)
class KafkaPosition:
    """A position in topics. The order is partial: a position reaches another one if it does so in every partition,
    and in the number of replays of kept messages.

    A partition that a position does not have was not read yet.
    """

    cluster: str  # id of the cluster
    topics: tuple[TopicOffsets, ...]  # by name
    statement: str = ""  # "topic:partition" of the DDL message that is next, if the position names that message
    kept: KeptMessages = NOTHING_KEPT  # messages up to here that are kept as files
    kind: Literal["kafka"] = "kafka"

    @classmethod
    def of(
        cls,
        cluster: str,
        ids: Mapping[str, str],
        offsets: Mapping[Partition, PartitionOffset],
        statement: str = "",
        kept: KeptMessages = NOTHING_KEPT,
    ) -> KafkaPosition:
        """Return the position of ``offsets``. ``ids``: of every topic, by name."""
        found: dict[str, list[tuple[int, PartitionOffset]]] = {}
        for (topic, number), offset in offsets.items():
            found.setdefault(topic, []).append((number, offset))
        topics = tuple(TopicOffsets(name, ids[name], tuple(sorted(found[name], key=_number))) for name in sorted(found))
        return cls(cluster, topics, statement, kept)

    @property
    def offsets(self) -> dict[Partition, PartitionOffset]:
        """The position of every partition."""
        return {(topic.name, number): offset for topic in self.topics for number, offset in topic.partitions}

    @property
    def ids(self) -> dict[str, str]:
        """The id of every topic, by name."""
        return {topic.name: topic.id for topic in self.topics}

    def reached(self, other: object) -> bool:
        """Return whether this position is at ``other`` or after it in every partition.

        Raises: ValueError - the positions cannot be compared: another source, another cluster, a topic created again.
        """
        if not isinstance(other, KafkaPosition) or self.cluster != other.cluster:
            raise ValueError(f"{self} and {other} are of different sources")
        mine, ids = self.offsets, self.ids
        for name, id_ in other.ids.items():
            if ids.get(name, id_) != id_:
                raise ValueError(f"topic {name} was created again between {self} and {other}")
        return self.kept.replays >= other.kept.replays and all(
            (here := mine.get(partition)) is not None and here.next >= there.next
            for partition, there in other.offsets.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values. A partition is a list: next offset, leader epoch, time in ms."""
        topics = {
            topic.name: {
                "id": topic.id,
                "partitions": {str(number): [one.next, one.epoch, one.time_ms] for number, one in topic.partitions},
            }
            for topic in self.topics
        }
        found: dict[str, Any] = {
            "cluster": self.cluster,
            "topics": topics,
            "statement": self.statement,
            "kind": self.kind,
        }
        if self.kept.replays or self.kept.tables or self.kept.window:
            found["kept"] = self.kept.to_json()
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KafkaPosition:
        """Return the position of ``to_json``."""
        topics: Mapping[str, Any] = data["topics"]
        ids = {name: str(topic["id"]) for name, topic in topics.items()}
        offsets = {
            (name, int(number)): PartitionOffset(*values)
            for name, topic in topics.items()
            for number, values in topic["partitions"].items()
        }
        kept = KeptMessages.from_json(data.get("kept"))
        return cls.of(str(data["cluster"]), ids, offsets, str(data.get("statement", "")), kept)

    def __str__(self) -> str:
        return " ".join(f"{topic.name}[{_text(topic.partitions)}]" for topic in self.topics) or "no topics"


def _number(one: tuple[int, PartitionOffset]) -> int:
    return one[0]


def _text(partitions: Iterable[tuple[int, PartitionOffset]]) -> str:
    return " ".join(f"{number}:{offset.next}" for number, offset in partitions)
