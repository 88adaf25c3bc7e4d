"""Check that topics still have the messages after a position: cluster, topic ids, first and last offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from cdc.errors import PositionLost, ServerMismatch, SourceActionRequired
from cdc.model.kafka_position import KafkaPosition, Partition, PartitionOffset
from cdc.sources.kafka.cluster import Cluster, Topics

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the user accepts: in the job file, or with the options of ``cdc resume``."""

    gap: bool = False  # messages that retention has deleted, and deleted topics
    server: bool = False  # another cluster, or a topic that was created again
    skips_lost: bool = False  # ``lost_offsets: earliest``: as ``gap``, but only for deleted messages
    kept_gap: bool = False  # deleted messages after kept ones that are loaded again; not those of the position
    missing: frozenset[str] = frozenset()  # topics and partitions that did not exist at the start of the run

    def later(self, topics: Topics, saved: KafkaPosition) -> Accepted:
        """Return what is accepted after the start at ``saved``: the user has accepted what was lost before it."""
        return Accepted(skips_lost=self.skips_lost, missing=frozenset(_missing(topics, saved)))


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that are missing in a partition."""

    partition: Partition
    next: int  # the offset of the position
    first: int  # the first available one

    def __str__(self) -> str:
        topic, number = self.partition
        return (
            f"{topic}[{number}]: offset {self.next} is gone, the log begins at {self.first} "
            f"({self.first - self.next:,} offsets)"
        )


def continue_at(cluster: Cluster, topics: Topics, saved: KafkaPosition, accepted: Accepted) -> KafkaPosition:
    """Return the position at which to continue: ``saved``, except for what the user accepts.

    Partitions of topics that the job file no longer selects stay as they are.
    Raises: ServerMismatch - another cluster or topic; PositionLost - messages or partitions are gone;
    SourceActionRequired - a topic that the job file names does not exist; SourceUnavailable.
    """
    ids, offsets = saved.ids, saved.offsets
    if unknown := [name for name in topics.missing if name not in ids]:
        raise SourceActionRequired(
            f"Kafka has no topic {', '.join(unknown)}.",
            hint="Correct `source.topics`, or create the topic. Then run `cdc resume NAME`.",
        )
    restarted = _other_topics(topics, saved, accepted)
    ids |= {name: topics.topics[name].id for name in restarted}
    selected = topics.partitions
    missing = [one for one in _missing(topics, saved) if one not in accepted.missing]
    if missing and not accepted.gap:
        raise PositionLost(
            f"Kafka no longer has {', '.join(missing[:5])}.",
            hint="Create the topic again and load its rows again, or run `cdc resume NAME --accept-gap` to continue "
            "without its remaining messages.",
        )
    read = {one: offset for one, offset in offsets.items() if one in selected}
    again = {one for one in read if one[0] in restarted}
    first = cluster.first_offsets(read)
    continued = {one: PartitionOffset(first[one]) for one in again}
    continued |= skip_lost(cluster, {one: offset for one, offset in read.items() if one not in again}, accepted)
    # a partition that a topic had before it was created again has no offset: a new one with its number begins at 0
    left = {one: offset for one, offset in offsets.items() if one in selected or one[0] not in restarted}
    return KafkaPosition.of(topics.cluster, ids, left | continued, kept=saved.kept)


def _missing(topics: Topics, saved: KafkaPosition) -> list[str]:
    """Return the selected topics of ``saved`` that do not exist, and the partitions that its topics do not have."""
    ids, selected = saved.ids, topics.partitions
    same = {name for name, id_ in topics.ids.items() if (topics.cluster, id_) == (saved.cluster, ids.get(name))}
    return sorted({*topics.missing, *topics.deleted(ids)} & ids.keys()) + sorted(
        f"{topic}[{number}]" for topic, number in saved.offsets if topic in same and (topic, number) not in selected
    )


def without(position: KafkaPosition, deleted: Container[str]) -> KafkaPosition:
    """Return ``position`` without topics that were deleted: they are new topics if they are created again."""
    left = {one: offset for one, offset in position.offsets.items() if one[0] not in deleted}
    return KafkaPosition.of(position.cluster, position.ids, left, kept=position.kept)


def refuse_lost_range(topics: Topics, here: Mapping[Partition, PartitionOffset], until: KafkaPosition) -> None:
    """Raise PositionLost if a partition that must be read up to ``until`` is not selected or does not exist."""
    gone = [
        f"{topic}[{number}]"
        for (topic, number), end in until.offsets.items()
        if (topic, number) not in topics.partitions
        and ((topic, number) not in here or here[topic, number].next < end.next)
    ]
    if gone:
        raise PositionLost(
            f"A range must be read again, and the job cannot read {', '.join(gone[:5])}.",
            hint="If `source.topics` no longer has the topic, add it again and run `cdc resume NAME`.",
        )


def refuse_other_topics(topics: Topics, id_of: Callable[[str], str | None], read: Set[Partition]) -> None:
    """Raise ServerMismatch or PositionLost if a topic that is read is another one now, or lacks partitions.

    ``id_of``: returns the id of a topic of the position. ``read``: the partitions that are read.
    """
    changed = [name for name, id_ in topics.ids.items() if id_of(name) not in (None, id_)]
    gone = sorted({topic for topic, _ in read - topics.partitions})
    if changed or gone:
        kind = ServerMismatch if changed else PositionLost
        raise kind(
            f"Topic {', '.join(changed or gone)} was deleted" + (" and created again." if changed else "."),
            hint="`cdc resume NAME --accept-server` reads the new topic from its first offsets."
            if changed
            else "`cdc resume NAME --accept-gap` continues without the topic.",
        )


def skip_lost(
    cluster: Cluster, offsets: Mapping[Partition, PartitionOffset], accepted: Accepted
) -> dict[Partition, PartitionOffset]:
    """Return ``offsets``, moved to the first available message where the user accepts the gap.

    Raises: PositionLost - messages are gone, or an offset is beyond the end of its log.
    """
    # a job that has read uncommitted messages can be after the last stable offset
    first, ends = cluster.first_offsets(offsets), cluster.written(offsets)
    beyond = sorted(one for one, offset in offsets.items() if one in ends and offset.next > ends[one])
    if beyond and not accepted.server:
        (topic, number), end = beyond[0], ends[beyond[0]]
        raise PositionLost(
            f"{topic}[{number}] ends at {end}, before the offset {offsets[beyond[0]].next} of the job: its log was "
            "truncated or replaced.",
            hint="Find out why messages were lost. `cdc resume NAME --accept-server` continues at the first message of "
            "the partition.",
        )
    gaps = [Gap(one, offset.next, first[one]) for one, offset in offsets.items() if first.get(one, 0) > offset.next]
    _accept(gaps, accepted)
    moved = {gap.partition: PartitionOffset(gap.first) for gap in gaps}
    moved |= {one: PartitionOffset(first[one]) for one in beyond}
    return {**offsets, **moved}


def first_of_new(
    cluster: Cluster, partitions: Iterable[Partition], known: Container[str], accepted: Accepted
) -> dict[Partition, int]:
    """Return the first offsets of new partitions. ``known``: the topics of the position.

    A partition that was added to such a topic has no message before the position, so all of its messages are needed.
    Raises: PositionLost - the first ones were deleted while it waited, or before it was found.
    """
    first = cluster.first_offsets(partitions)
    if not accepted.server:  # else the topic can have been created again
        _accept([Gap(one, 0, offset) for one, offset in first.items() if one[0] in known and offset > 0], accepted)
    return first


def _accept(gaps: Sequence[Gap], accepted: Accepted) -> None:
    """Log the gaps. Raises: PositionLost - the user does not accept them."""
    if gaps and not (accepted.gap or accepted.skips_lost):
        raise PositionLost(
            f"Messages were deleted before the job read them: {_text(gaps)}.",
            hint="`cdc resume NAME --accept-gap` continues at the first available message; `source.lost_offsets: "
            "earliest` does so always. Keep messages longer (retention.ms).",
        )
    for gap in gaps:
        _log.warning("continuing after missing messages: %s", gap)


def skip_truncated(
    cluster: Cluster, offsets: Mapping[Partition, PartitionOffset], accepted: Accepted
) -> dict[Partition, PartitionOffset]:
    """Return the first messages of partitions whose leader does not have the messages before ``offsets``.

    The offsets can be in the log of the new leader, with other messages.
    Raises: PositionLost - the user has not accepted that.
    """
    if offsets and not accepted.server:
        (topic, number), offset = min(offsets.items())
        raise PositionLost(
            f"The leader of {topic}[{number}] does not have the messages that the job read before offset "
            f"{offset.next}: the log was truncated by an unclean leader election.",
            hint="Rows of the lost messages stay in the target. `cdc resume NAME --accept-server` reads the partition "
            "from its first message. Set unclean.leader.election.enable=false.",
        )
    return {one: PartitionOffset(first) for one, first in cluster.first_offsets(offsets).items()}


def _other_topics(topics: Topics, saved: KafkaPosition, accepted: Accepted) -> frozenset[str]:
    """Return the topics that were created again, if the user accepts that. They are read from their first offsets."""
    ids = saved.ids
    is_other_cluster = topics.cluster != saved.cluster
    changed = frozenset(
        name for name, topic in topics.topics.items() if name in ids and (ids[name] != topic.id or is_other_cluster)
    )
    if is_other_cluster and not accepted.server:
        raise ServerMismatch(
            f"The brokers belong to cluster {topics.cluster}, the job has read cluster {saved.cluster}.",
            hint="Correct `source.brokers`. `cdc resume NAME --accept-server` continues with this cluster, from the "
            "first offsets of its topics.",
        )
    if changed and not accepted.server:
        raise ServerMismatch(
            f"Topic {', '.join(sorted(changed))} was deleted and created again.",
            hint="`cdc resume NAME --accept-server` continues with the new topic, from its first offsets. What the old "
            "topic had after the job's position is lost.",
        )
    return changed


def _text(gaps: Iterable[Gap]) -> str:
    found = list(gaps)
    more = f" and {len(found) - 3} more partitions" if len(found) > 3 else ""
    return "; ".join(map(str, found[:3])) + more
