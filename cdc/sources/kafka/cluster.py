"""The brokers of a cluster: topics with their ids, offsets, errors. Messages are read by ``reader``.

librdkafka reports why a connection fails only to its error callback, so the last such error is kept for the message.
"""

from __future__ import annotations

import fnmatch
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from cdc.errors import CdcError, ConfigError, SourceActionRequired, SourceUnavailable
from cdc.model.kafka_position import Partition

TIMEOUT_S = 30.0
_RETRY_S = 0.3
_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID)
_LOGIN = (
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
)
_ACCESS = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_TRANSIENT = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,  # the broker that answered for metadata does not know the newest leader yet
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError._NOENT,
    KafkaError._TRANSPORT,
)
_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How to reach the brokers, and what to read."""

    brokers: tuple[str, ...]
    topics: tuple[str, ...]  # names, or patterns with one *
    group: str  # named to the brokers; offsets are reported to it only with ``reports``
    reports: bool = False
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)  # of librdkafka; may have secrets

    def config(self, on_error: Callable[[KafkaError], None], **own: Any) -> dict[str, Any]:
        """Return librdkafka's configuration. ``own`` has precedence over the properties of the user."""
        return {
            "client.id": "spark-binlog-load",
            **self.properties,
            "bootstrap.servers": ",".join(self.brokers),
            "error_cb": on_error,
            "log_level": 0,
            "logger": _quiet,
            **{name.replace("_", "."): value for name, value in own.items()},
        }


_quiet = logging.getLogger("cdc.sources.kafka.librdkafka")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False  # refused connections once a second; the receiver reports errors once


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the brokers describe it now."""

    id: str
    partitions: tuple[int, ...]
    leaderless: frozenset[int] = frozenset()  # the partitions that have no leader now


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the brokers keep messages of a topic, in milliseconds. None: for ever, not known, or not applicable."""

    messages_ms: int | None
    tombstones_ms: int | None  # of a compacted topic


@dataclass(frozen=True, slots=True)
class Topics:
    """The selected topics of a cluster."""

    cluster: str
    topics: Mapping[str, Topic]
    missing: tuple[str, ...] = ()  # names of the job file that do not exist
    patterns: tuple[re.Pattern[str], ...] = ()  # of the job file

    def deleted(self, known: Iterable[str]) -> list[str]:
        """Return the topics of ``known`` that a pattern selects and that no longer exist."""
        gone = {*known} - self.topics.keys()
        return sorted(name for name in gone if any(pattern.match(name) for pattern in self.patterns))

    @property
    def ids(self) -> dict[str, str]:
        """The id of every topic."""
        return {name: topic.id for name, topic in self.topics.items()}

    @property
    def partitions(self) -> frozenset[Partition]:
        """All partitions of the topics."""
        return frozenset((name, number) for name, topic in self.topics.items() for number in topic.partitions)

    @property
    def leaderless(self) -> frozenset[Partition]:
        """The partitions that have no leader now: librdkafka waits for one, and reports no error."""
        return frozenset((name, number) for name, topic in self.topics.items() for number in topic.leaderless)


class Cluster(AbstractContextManager["Cluster"]):
    """Ask the brokers. Calls: one thread. Use as a context manager, or call ``close``."""

    def __init__(self, settings: KafkaSettings, timeout_s: float = TIMEOUT_S) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._last_error: KafkaError | None = None
        self.is_alarmed = False  # librdkafka has reported an error since the last successful call
        self._admin: AdminClient | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. May be repeated."""
        self._admin = None

    def note_error(self, error: KafkaError) -> None:
        """Keep an error of librdkafka's callback, unless it only repeats that no broker is connected, or is about the
        group, which only reports of offsets need.
        """
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last_error is None:
            self._last_error = error
        self.is_alarmed = True

    @property
    def admin(self) -> AdminClient:
        """The client of the brokers. Raises: ConfigError - librdkafka refuses a property."""
        if self._admin is None:
            # an AdminClient is a producer, for which librdkafka lets brokers create topics that metadata requests name
            config = self._settings.config(self.note_error, allow_auto_create_topics="false")
            try:
                self._admin = AdminClient({name: config[name] for name in config if name != "logger"}, logger=_quiet)
            except KafkaException as error:
                raise refused(error) from error
        return self._admin

    def topics(self) -> Topics:
        """Return the topics of the job file, and those that its patterns match now. Raises: SourceUnavailable;
        SourceActionRequired - login or access is refused.
        """
        names = [one for one in self._settings.topics if "*" not in one]
        patterns = [one for one in self._settings.topics if "*" in one]
        metadata = self._ask(lambda: self.admin.list_topics(*(names[:1] if not patterns else ()), timeout=5))
        rules = tuple(re.compile(fnmatch.translate(re.sub(r"([\[\]?])", r"[\1]", one))) for one in patterns)
        if rules:
            found = [one for one in metadata.topics if not one.startswith("__")]
            names += [one for one in found if one not in names and any(rule.match(one) for rule in rules)]
        described = self._each(lambda: self.admin.describe_topics(TopicCollection(sorted(names)))) if names else {}
        topics = {
            name: Topic(
                str(one.topic_id),
                tuple(sorted(each.id for each in one.partitions)),
                frozenset(each.id for each in one.partitions if each.leader is None or each.leader.id < 0),
            )
            for name, one in described.items()
        }
        self._last_error, self.is_alarmed = None, False
        cluster = metadata.cluster_id or ""
        missing = tuple(name for name in names if name not in topics and "*" not in name)
        return Topics(cluster, topics, missing, rules)

    def first_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first available offset of each partition. A partition that does not exist is missing."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the end of each partition: where a reader with this isolation stops now."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def written(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the end of each partition with the messages of transactions that are still open."""
        return self._offsets(partitions, OffsetSpec.latest(), uncommitted=True)  # type: ignore[no-untyped-call]

    def answered_ends(
        self, partitions: Iterable[Partition], *, uncommitted: bool = False
    ) -> tuple[dict[Partition, int], dict[Partition, CdcError]]:
        """Return the ends of the partitions that answer now, and the errors of the others. ``uncommitted``: see
        ``written``. Does not retry. Raises: SourceActionRequired - login or access is refused.
        """
        ends, errors = dict[Partition, int](), dict[Partition, CdcError]()
        asked = {TopicPartition(*one): OffsetSpec.latest() for one in partitions}  # type: ignore[no-untyped-call]
        level = self._level(uncommitted)
        for item, future in self.admin.list_offsets(asked, isolation_level=level).items() if asked else ():
            try:
                ends[item.topic, item.partition] = future.result(self._timeout_s).offset
            except (KafkaException, TimeoutError) as error:
                code = KafkaError(KafkaError._TIMED_OUT) if isinstance(error, TimeoutError) else error.args[0]
                found = self.translated(code, item.topic)
                if isinstance(found, SourceActionRequired):
                    raise found from error
                errors[item.topic, item.partition] = found
        return ends, errors

    def offsets_at(self, partitions: Iterable[Partition], time_ms: int) -> dict[Partition, int]:
        """Return the offset of the first message at or after a time; the end if there is none."""
        partitions = tuple(partitions)
        ends = self.ends(partitions)  # first: a message that is written between the two requests would be skipped
        found = self._offsets(partitions, OffsetSpec.for_timestamp(time_ms))
        return {one: offset if offset >= 0 else ends[one] for one, offset in found.items()}

    def group_offsets(self, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the committed offsets of another group. A partition without one is missing."""
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*one) for one in partitions])
        found = self._ask(lambda: self.admin.list_consumer_group_offsets([asked])[group].result(self._timeout_s))
        return {(one.topic, one.partition): one.offset for one in found.topic_partitions if one.offset >= 0}

    def retention(self, topic: str) -> Retention:
        """Return how long the brokers keep messages of a topic."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self._ask(lambda: self.admin.describe_configs([resource])[resource].result(self._timeout_s))
        policy = "" if (entry := found.get("cleanup.policy")) is None else str(entry.value)

        def milliseconds(name: str) -> int | None:
            entry = found.get(name)
            return int(entry.value) if entry is not None and int(entry.value) >= 0 else None

        return Retention(
            milliseconds("retention.ms") if "delete" in policy else None,
            milliseconds("delete.retention.ms") if "compact" in policy else None,
        )

    def _offsets(
        self, partitions: Iterable[Partition], spec: OffsetSpec, *, uncommitted: bool = False
    ) -> dict[Partition, int]:
        asked = {TopicPartition(*one): spec for one in partitions}
        if not asked:
            return {}
        level = self._level(uncommitted)
        found = self._each(lambda: self.admin.list_offsets(asked, isolation_level=level))
        return {(one.topic, one.partition): result.offset for one, result in found.items()}

    def _level(self, uncommitted: bool) -> IsolationLevel:
        is_uncommitted = uncommitted or self._settings.isolation == "read_uncommitted"
        return IsolationLevel.READ_UNCOMMITTED if is_uncommitted else IsolationLevel.READ_COMMITTED

    def _each(self, ask: Callable[[], Mapping[Any, Future[Any]]]) -> dict[Any, Any]:
        """Return the results of a call with one future per item, without items that do not exist."""

        def results() -> dict[Any, Any]:
            found = {}
            for item, future in ask().items():
                try:
                    found[item] = future.result(self._timeout_s)
                except KafkaException as error:
                    if error.args[0].code() in _ACCESS:
                        raise self.translated(error.args[0], getattr(item, "topic", str(item))) from error
                    if error.args[0].code() not in _UNKNOWN:
                        raise
            return found

        return self._ask(results)

    def _ask(self, call: Callable[[], _Result]) -> _Result:
        """Return the result of ``call``. Transient errors are retried until the time limit.

        Raises: SourceUnavailable, also if a broker does not answer in time; SourceActionRequired.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return call()
            except KafkaException as error:
                self.admin.poll(0)  # runs the error callback
                found = self.translated(error.args[0])
                is_late = time.monotonic() > deadline
                if is_late or isinstance(found, SourceActionRequired) or error.args[0].code() not in _TRANSIENT:
                    raise found from error
                time.sleep(_RETRY_S)
            except TimeoutError as error:  # of a future: librdkafka waits longer for a broker that has just died
                raise SourceUnavailable(
                    f"Kafka does not answer within {self._timeout_s:.0f} s.",
                    hint="Start the brokers, or correct `source.brokers`.",
                    brokers=",".join(self._settings.brokers),
                ) from error

    def translated(self, error: KafkaError, topic: str = "") -> CdcError:
        """Return the error of the job for an error of librdkafka. ``topic``: that it is about."""
        cause = self._last_error if self._last_error is not None and not _is_final(error) else error
        servers = ",".join(self._settings.brokers)
        if cause.code() in _LOGIN:
            return SourceActionRequired(
                f"Kafka refused the connection: {text_of(cause)}.",
                hint="Correct `source.properties` (security.protocol, sasl.*, ssl.*), then run `cdc resume NAME`.",
                brokers=servers,
            )
        if cause.code() in _ACCESS:
            return SourceActionRequired(
                f"Kafka refused access: {text_of(cause)}.",
                hint="Allow the user to Describe and Read the topics, and to Read the group `source.group_id`. Then "
                "run `cdc resume NAME`.",
                **({"topic": topic} if topic else {}),
                brokers=servers,
            )
        return SourceUnavailable(
            f"Kafka does not answer: {text_of(cause)}.", hint="Start the brokers, or correct `source.brokers`.",
            brokers=servers,
        )  # fmt: skip


def _is_final(error: KafkaError) -> bool:
    return error.code() in (*_LOGIN, *_ACCESS)


def text_of(error: KafkaError) -> str:
    """Return the text of an error, on one line."""
    return " ".join(error.str().split())[:300].rstrip(".")


def refused(error: KafkaException) -> ConfigError:
    """Return the error for a configuration that librdkafka refuses."""
    return ConfigError(f"librdkafka refuses a property: {text_of(error.args[0])}.", hint="Correct `source.properties`.")
