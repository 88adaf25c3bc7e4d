"""Partitions that make no progress while others do: their leader does not answer, or a transaction is open.

With ``read_committed`` the brokers send nothing after the last stable offset: the first message of the oldest open
transaction. A producer that ends without a commit can hold it back for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass

from cdc.errors import CdcError, SourceUnavailable
from cdc.model.kafka_position import Partition, PartitionOffset
from cdc.sources.kafka.cluster import Cluster, Topics

OPEN_TRANSACTION_S = 60.0  # Kafka's default of transaction.timeout.ms: the brokers then abort a transaction themselves
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Failure:
    error: CdcError
    seen_at: float


class PartitionHealth:
    """What keeps partitions from progress. Calls: the reading thread, except ``warning``, ``failed`` and ``held_s``."""

    def __init__(self, transaction_s: float = OPEN_TRANSACTION_S) -> None:
        """``transaction_s``: report an open transaction after this time."""
        self.written: dict[Partition, int] = {}  # the newest known end with the messages of open transactions
        self._transaction_s = transaction_s
        self._failures: dict[Partition, _Failure] = {}
        self._held: dict[Partition, tuple[int, float]] = {}  # the offset that is not delivered, and since when
        self._reported: frozenset[Partition] = frozenset()  # in the log
        self._refreshed_at = 0.0

    @property
    def failed(self) -> frozenset[Partition]:
        """The partitions whose leaders do not answer. Calls: any thread."""
        return frozenset(self._failures.copy())

    def note(self, errors: Mapping[Partition, CdcError]) -> None:
        """Note errors that arrived instead of messages."""
        for partition, error in errors.items():
            self._failures[partition] = _Failure(error, time.monotonic())
        self._report()

    def refresh(
        self, cluster: Cluster, topics: Topics, assigned: Set[Partition], offsets: Mapping[Partition, PartitionOffset]
    ) -> dict[Partition, int]:
        """Return the ends of the ``assigned`` partitions whose leaders answer. ``offsets``: what is read.

        Raises: the error of the brokers if no partition answers.
        """
        now = time.monotonic()
        errors: dict[Partition, CdcError] = {one: _no_leader(one) for one in topics.leaderless & assigned}
        ends, more = cluster.answered_ends(assigned - errors.keys())
        errors |= more
        if errors and not ends:
            raise next(iter(errors.values()))
        # an error that arrives instead of messages is repeated with each fetch, many times between two refreshes
        kept = {one: each for one, each in self._failures.items() if each.seen_at > self._refreshed_at}
        kept |= {one: _Failure(error, now) for one, error in errors.items()}
        self._failures = {one: each for one, each in kept.items() if one in assigned}
        self._refreshed_at = now
        self._report()
        self._find_held(cluster, ends, offsets)
        return ends

    def _find_held(
        self, cluster: Cluster, ends: Mapping[Partition, int], offsets: Mapping[Partition, PartitionOffset]
    ) -> None:
        """Find the partitions that are read up to their ends, and have more messages."""
        self.written, _ = cluster.answered_ends(ends, uncommitted=True)
        now, found = time.monotonic(), {}
        for partition, end in ends.items():
            read = offsets[partition].next
            if end <= read < self.written.get(partition, end):
                known = self._held.get(partition, (-1, now))
                found[partition] = known if known[0] == read else (read, now)
        self._held = found

    def held_s(self, offsets: Mapping[Partition, PartitionOffset]) -> float:
        """Return for how long messages wait for an open transaction; 0: none do. Calls: any thread."""
        return max((time.monotonic() - since for since in self._waiting(offsets).values()), default=0.0)

    def warning(self, offsets: Mapping[Partition, PartitionOffset], count: int) -> CdcError | None:
        """Return the warning of the status, or None. ``count``: of all partitions. Calls: any thread."""
        failures = self._failures.copy()
        if failures:
            (topic, number), failure = min(failures.items())
            return SourceUnavailable(
                f"{len(failures)} of {count} partitions cannot be read: {failure.error.message}",
                hint=f"Start the brokers of these partitions: `kafka-topics.sh --describe --topic {topic}` names them. "
                "The other partitions are read meanwhile.",
                topic=topic,
                partition=number,
            )
        for (topic, number), since in sorted(self._waiting(offsets).items()):
            waited_s = time.monotonic() - since
            if waited_s < self._transaction_s:
                continue
            at = offsets[topic, number].next
            return SourceUnavailable(
                f"{topic}[{number}] has messages from offset {at} on that cannot be read: a transaction of a producer "
                "is open.",
                hint="Let the producer commit or abort it. If the producer no longer runs, `kafka-transactions.sh "
                f"find-hanging --topic {topic} --partition {number}` finds the transaction, and `abort` ends it.",
                topic=topic,
                partition=number,
                offset=at,
                messages=self.written.get((topic, number), at) - at,
                open_for=f"{waited_s:.0f} s",
            )
        return None

    def _waiting(self, offsets: Mapping[Partition, PartitionOffset]) -> dict[Partition, float]:
        """Return since when each partition waits. One whose position has moved does not wait any more."""
        held = self._held
        return {one: since for one, (at, since) in held.items() if one in offsets and offsets[one].next == at}

    def _report(self) -> None:
        for partition in sorted(self._failures.keys() - self._reported):
            _log.warning("%s[%d] cannot be read: %s", *partition, self._failures[partition].error.message)
        for topic, number in sorted(self._reported - self._failures.keys()):
            _log.info("%s[%d] can be read again", topic, number)
        self._reported = frozenset(self._failures)


def _no_leader(partition: Partition) -> CdcError:
    topic, number = partition
    return SourceUnavailable(
        f"{topic}[{number}] has no leader.",
        hint=f"Start the brokers of the partition: `kafka-topics.sh --describe --topic {topic}` names them.",
        topic=topic,
        partition=number,
    )
