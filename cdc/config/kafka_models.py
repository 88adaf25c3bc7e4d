"""The model of a Kafka source in a job file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    field_validator,
    model_validator,
)

from cdc.config.fields import Address, Count, Model, PathText, Text, filled, fixed_offset, setting, zone_us
from cdc.config.loader import CrossFieldError

OWN_PROPERTIES = {  # librdkafka's properties that follow from keys of the job file, or on which exactness depends
    "bootstrap.servers",
    "metadata.broker.list",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "isolation.level",
}
Offset = Annotated[int, Field(ge=0)]


class RowFields(Protocol):
    """The keys of a channel that describe rows in messages."""

    @property
    def source(self) -> str: ...  # noqa: D102
    @property
    def topic(self) -> str | None: ...  # noqa: D102
    @property
    def fields(self) -> dict[str, str] | None: ...  # noqa: D102
    @property
    def paths(self) -> dict[str, str] | None: ...  # noqa: D102
    @property
    def delete_when(self) -> str | None: ...  # noqa: D102


_CHANNEL_KEYS = ("topic", "fields", "paths", "delete_when")
_KEYS_OF_FORMAT = {
    "json": _CHANNEL_KEYS,
    "csv": ("topic", "fields", "delete_when"),
    "debezium-json": ("fields",),
    "maxwell": ("fields",),
}


def check_channels(source_format: str, channels: Sequence[RowFields]) -> None:
    """Refuse keys of channels that the format does not use. ``source_format``: "" for another source than Kafka.

    Raises: CrossFieldError.
    """
    topics = [channel.topic for channel in channels if channel.topic is not None]
    if len({*topics}) < len(topics):
        raise CrossFieldError("channels", f"two channels have the topic {max(topics, key=topics.count)}")
    for channel in channels:
        for name in _CHANNEL_KEYS:
            if getattr(channel, name) is not None and name not in _KEYS_OF_FORMAT.get(source_format, ()):
                users = [f"`{each}`" for each, names in _KEYS_OF_FORMAT.items() if name in names]
                raise CrossFieldError(
                    "channels", f"`{name}` of {channel.source} is used only with `format` {' or '.join(users)} (Kafka)"
                )
        if channel.topic is not None and "*" in channel.source:
            raise CrossFieldError("channels", f"{channel.source} is a pattern, so it cannot have `topic`")
        if source_format in ("json", "csv", "maxwell") and channel.fields is None:
            raise CrossFieldError("channels", f"{channel.source} needs `fields`: the messages have no types")


class KafkaTime(Model):
    """A time in topics."""

    tag: ClassVar = "a time"
    time: AwareDatetime = Field(
        description="A time with its zone, such as `2026-01-01T00:00:00Z`: in each partition the first message at or "
        "after it, or the end if there is none."
    )

    @field_validator("time", mode="before")
    @classmethod
    def _with_zone(cls, value: object) -> object:
        # YAML converts a time with a zone to UTC and drops the zone, and one without a zone looks the same
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError('must be in quotes and have a zone, such as "2026-01-01T00:00:00Z"')
        return value

    @property
    def time_ms(self) -> int:
        """``time`` in milliseconds since 1970, UTC."""
        return round(self.time.astimezone(UTC).timestamp() * 1000)


class KafkaOffsets(Model):
    """Offsets of partitions."""

    tag: ClassVar = "offsets"
    offsets: Annotated[dict[Text, dict[Annotated[int, Field(ge=0)], Offset]], BeforeValidator(filled)] = Field(
        description="The next offset of every partition of every topic: `{shop.orders: {0: 100, 1: 200}}`."
    )


class KafkaGroup(Model):
    """Offsets of a consumer group."""

    tag: ClassVar = "a group"
    group: Text = Field(description="A consumer group. The job starts at the offsets that it has committed.")


def _tag(value: object) -> str:
    if isinstance(value, dict):
        return next((kind.tag for name, kind in _KINDS.items() if name in value), KafkaTime.tag)
    return value.tag if isinstance(value, KafkaTime | KafkaOffsets | KafkaGroup) else "a word"


_KINDS: dict[str, type[Any]] = {"time": KafkaTime, "offsets": KafkaOffsets, "group": KafkaGroup}

KafkaStartAt = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("a word")]
    | Annotated[KafkaTime, Tag(KafkaTime.tag)]
    | Annotated[KafkaOffsets, Tag(KafkaOffsets.tag)]
    | Annotated[KafkaGroup, Tag(KafkaGroup.tag)],
    Discriminator(_tag),
]
KafkaStopAt = Annotated[
    Annotated[Literal["end"], Tag("a word")]
    | Annotated[KafkaTime, Tag(KafkaTime.tag)]
    | Annotated[KafkaOffsets, Tag(KafkaOffsets.tag)],
    Discriminator(_tag),
]


class DebeziumConnector(Model):
    """How Debezium's connector writes values."""

    decimal_handling_mode: Literal["precise", "string"] = Field(
        description="`decimal.handling.mode` of the connector. `double` is not supported, because it changes values."
    )
    time_precision_mode: Literal["adaptive_time_microseconds"] = Field(
        description="`time.precision.mode` of the connector. Other modes are not supported."
    )
    binary_handling_mode: Literal["bytes", "base64"] = Field(
        description="`binary.handling.mode` of the connector. Other modes are not supported."
    )


class RegistryConfig(Model):
    """A schema registry."""

    url: Annotated[str, Field(pattern=r"^https?://[^/@?#\s]+(/[^?#@\s]*)?$")] = Field(
        description="Base address of a schema registry with Confluent's interface, such as `http://r1:8081`."
    )
    username: Text | None = Field(default=None, description="User name. Default: the registry needs no login.")
    password: SecretStr = Field(default=SecretStr(""), description="Password of `username`.")

    @model_validator(mode="after")
    def _encrypted(self) -> RegistryConfig:
        parts = urlsplit(self.url)
        if self.username and parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise CrossFieldError("url", "must begin with https:// if there is a login, because passwords are secret")
        return self


class BadRows(Model):
    """What happens to messages that cannot be decoded."""

    max_rows: Count = Field(
        description="Number of messages in the window that may be bad. The next one stops the job. A message counts as "
        "one row."
    )
    window_rows: Count = Field(
        default=2_000_000,
        description="Size of the window: the last messages that the job has read. It is part of the checkpoint.",
    )
    max_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0,
        description="Fraction of the messages in the window that may be bad, from 1,000 messages on. If all of them "
        "are bad, the job stops in any case.",
    )
    path: PathText = Field(
        description="Folder. The bad messages of a Batch are a file `JOB/*.jsonl`, one line per message, with the "
        "reason, and the key and the value in base64."
    )


class KafkaSourceConfig(Model):
    """Topics of a Kafka cluster."""

    tag: ClassVar = "kafka"
    type: Literal["kafka"] = Field(description="Read change events from topics of a Kafka cluster.")
    brokers: Annotated[tuple[Address, ...], BeforeValidator(filled)] = Field(
        description="Addresses of some brokers, as `host:port`. The others are found through them."
    )
    topics: Annotated[tuple[Text, ...], BeforeValidator(filled)] = Field(
        description="Names of topics. One `*` in a name matches any text; topics that match later join, from their "
        "first offset."
    )
    format: Literal["canal-json", "canal", "debezium-json", "debezium-avro", "maxwell", "json", "csv"] = Field(
        description="Format of the messages: `canal-json` (flat messages of Canal, `canal.mq.flatMessage = true`), "
        "`canal` (protobuf messages of Canal, `canal.mq.flatMessage = false`), `debezium-json` and `debezium-avro` "
        "(change events of Debezium), `maxwell` (messages of Maxwell, with types of MySQL in `fields` of the channel), "
        "or one row per message, with `fields` in the channel: `json` (an object) or `csv` (a line)."
    )
    separator: Annotated[str, Field(pattern=r"^[\x01-\x09\x0b\x0c\x0e-!#-\[\]-~]$")] = Field(
        default=",", description="Character between the values of a line (`csv`). Not a double quote or a backslash."
    )
    connector: DebeziumConnector | None = Field(
        default=None,
        description="Modes of Debezium's connector (`debezium-json`). Required if the messages have no schema, because "
        "the form of their values depends on them.",
    )
    registry: RegistryConfig | None = Field(
        default=None, description="Schema registry with the schemas of the messages (`debezium-avro`)."
    )
    start: KafkaStartAt = Field(
        default="earliest",
        description="Where a new job starts: `earliest`, `latest`, a time, offsets, or the offsets of a group.",
    )
    stop_at: KafkaStopAt | None = Field(
        default=None,
        description="Where the job ends, with the state DONE: `end` (the end of each partition when the job starts), a "
        "time or offsets. Default: it does not end.",
    )
    read: Literal["driver", "executors"] = Field(
        default="driver",
        description="Where messages are read and decoded: on the `driver`, or on Spark's `executors`, which reach the "
        "brokers themselves. Tables and guarantees are the same.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="Whether messages of aborted transactions are omitted (`read_committed`).",
    )
    group_id: Text | None = Field(
        default=None,
        description="Consumer group to which committed offsets are reported, for monitors of lag. The job never reads "
        "them and does not join the group. Default: nothing is reported.",
    )
    one_partition_per_key: bool = Field(
        default=True,
        description="Pause if rows of one key are in several partitions. `false`: accept it; the order between the "
        "partitions is not kept.",
    )
    key_changes: Literal["pause", "apply"] = Field(
        default="pause",
        description="An update that changes the key, in a topic with several partitions: `pause`, or `apply` if no "
        "other row takes over an old key.",
    )
    lost_offsets: Literal["pause", "earliest"] = Field(
        default="pause",
        description="Messages that were deleted before the job read them: `pause`, or continue at the `earliest` "
        "available one.",
    )
    bad_rows: BadRows | None = Field(
        default=None,
        description="Keep messages that cannot be decoded as files, and continue without their rows. `cdc replay-bad` "
        "loads them after a correction. Default: the first one stops the job.",
    )
    time_zone: str = Field(
        default="+00:00",
        description="UTC offset of times without a zone in TIMESTAMP columns: of the JVM of Canal or Maxwell "
        "(`canal-json`, `canal`, `maxwell`), or of the rows (`json`, `csv`). The offset must be fixed: a zone "
        "with summer time is ambiguous.",
    )
    properties: dict[Text, Annotated[str, BeforeValidator(setting)]] = Field(
        default_factory=dict,
        description="Further properties of librdkafka, such as `security.protocol`, `sasl.mechanism`, `sasl.username`, "
        "`sasl.password` and `ssl.ca.location`.",
    )

    @field_validator("topics")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name.count("*") > 1:
                raise ValueError(f"{name} has more than one *")
        if len(set(value)) < len(value):
            raise ValueError("names a topic twice")
        return value

    @field_validator("properties")
    @classmethod
    def _not_own(cls, value: dict[str, str]) -> dict[str, str]:
        if own := sorted(OWN_PROPERTIES & {*value}):
            raise ValueError(f"{own[0]} is set by the job")
        return value

    @field_validator("time_zone")
    @classmethod
    def _fixed_offset(cls, value: str) -> str:
        return fixed_offset(value)

    @model_validator(mode="after")
    def _of_debezium(self) -> KafkaSourceConfig:
        if self.connector is not None and self.format != "debezium-json":
            raise CrossFieldError("connector", "is used only with `format: debezium-json`")
        if (self.registry is not None) != (self.format == "debezium-avro"):
            raise CrossFieldError("registry", "is used with `format: debezium-avro`, and with no other format")
        return self

    @model_validator(mode="after")
    def _whole_offsets(self) -> KafkaSourceConfig:
        for name, one in (("start", self.start), ("stop_at", self.stop_at)):
            if not isinstance(one, KafkaOffsets) or any("*" in topic for topic in self.topics):
                continue
            if unknown := {*one.offsets} - {*self.topics}:
                raise CrossFieldError(name, f"names {min(unknown)}, which is not in `topics`")
        return self

    @property
    def bad_folder(self) -> str | None:
        """Absolute path of ``bad_rows.path``; None: not set."""
        return None if self.bad_rows is None else self.located(self.bad_rows.path)

    @property
    def zone_us(self) -> int:
        """``time_zone`` in microseconds ahead of UTC."""
        return zone_us(self.time_zone)
