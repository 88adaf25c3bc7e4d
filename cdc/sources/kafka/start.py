"""The first position of a job: an offset for every partition, as a number, before the first message is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc.errors import ConfigError
from cdc.model.kafka_position import KafkaPosition, Partition, PartitionOffset
from cdc.sources.kafka.cluster import Cluster, Topics


@dataclass(frozen=True, slots=True)
class KafkaStart:
    """Where a job starts or stops. Exactly one of the fields is set."""

    word: str = ""  # earliest, latest
    time_ms: int | None = None  # since 1970, UTC
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # of every partition, by topic
    group: str = ""


def existing(cluster: Cluster) -> Topics:
    """Return the topics of the job. Raises: ConfigError - a named topic does not exist; see ``Cluster.topics``."""
    topics = cluster.topics()
    if topics.missing:
        raise ConfigError(
            f"Kafka has no topic {', '.join(topics.missing)}.",
            hint="Correct `source.topics`, or create the topic.",
            cluster=topics.cluster,
        )
    return topics


def resolve(cluster: Cluster, start: KafkaStart) -> KafkaPosition:
    """Return the position of ``start``, with the offset of every partition.

    Raises: ConfigError - an unknown topic or partition, an offset outside the log, a group without offsets;
    SourceUnavailable; SourceActionRequired.
    """
    topics = existing(cluster)
    partitions = sorted(topics.partitions)
    if start.group:
        found = _of_group(cluster, start.group, partitions)
    elif start.offsets:
        found = _named(start.offsets, topics)
    elif start.time_ms is not None:
        found = cluster.offsets_at(partitions, start.time_ms)
    else:
        found = cluster.first_offsets(partitions) if start.word == "earliest" else cluster.ends(partitions)
    if start.group or start.offsets:
        _check_range(found, cluster)
    offsets = {partition: PartitionOffset(offset) for partition, offset in found.items()}
    return KafkaPosition.of(topics.cluster, topics.ids, offsets)


def _of_group(cluster: Cluster, group: str, partitions: list[Partition]) -> dict[Partition, int]:
    found = cluster.group_offsets(group, partitions)
    missing = [f"{topic}[{number}]" for topic, number in partitions if (topic, number) not in found]
    if missing:
        raise ConfigError(
            f"Group {group} has no committed offset in {', '.join(missing[:5])}.",
            hint="Set `source.start` to offsets for every partition, to `earliest` or to a time.",
        )
    return found


def _named(offsets: Mapping[str, Mapping[int, int]], topics: Topics) -> dict[Partition, int]:
    found = {(topic, number): offset for topic, each in offsets.items() for number, offset in each.items()}
    wrong = [
        *(f"{topic}[{number}] does not exist" for topic, number in sorted(found.keys() - topics.partitions)),
        *(f"{topic}[{number}] has none" for topic, number in sorted(topics.partitions - found.keys())),
    ]
    if wrong:
        raise ConfigError(
            f"The offsets do not match the partitions: {'; '.join(wrong[:5])}.",
            hint="Set an offset for each partition of each topic.",
        )
    return found


def _check_range(found: Mapping[Partition, int], cluster: Cluster) -> None:
    low, high = cluster.first_offsets(found), cluster.ends(found)
    for (topic, number), offset in sorted(found.items()):
        first, end = low[topic, number], high[topic, number]
        if not first <= offset <= end:
            raise ConfigError(
                f"Offset {offset} is outside the log of {topic}[{number}], which has {first} to {end}.",
                hint="Set an offset inside the log, or `earliest`.",
            )
