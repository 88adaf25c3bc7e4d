"""Create the parts of a Kafka source from its section of the job file. Needs the package confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from cdc.api.models import Resume
from cdc.config.channel_models import ChannelConfig
from cdc.config.kafka_models import KafkaGroup, KafkaOffsets, KafkaSourceConfig, KafkaTime, RegistryConfig
from cdc.model.batch import RequiredColumns
from cdc.model.kafka_position import KafkaPosition
from cdc.model.position import Position
from cdc.model.schema import TableSchema
from cdc.model.table_names import parse_table
from cdc.sources.kafka.bad_messages import BadMessages
from cdc.sources.kafka.bad_window import BadLimits
from cdc.sources.kafka.batches import OrderRules
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.continuity import Accepted
from cdc.sources.kafka.formats.base import Format, topic_table
from cdc.sources.kafka.formats.debezium_types import DebeziumModes
from cdc.sources.kafka.formats.fields import parse_path, schema_of_fields, schema_of_types
from cdc.sources.kafka.formats.registry import create_format
from cdc.sources.kafka.range_planner import ExecutorReads
from cdc.sources.kafka.receiver import KafkaReceiver
from cdc.sources.kafka.schema_registry import SchemaRegistry
from cdc.sources.kafka.start import KafkaStart, resolve
from channels.routes import Routes


class KafkaParts:
    """The parts of a Kafka source. Creating them connects to nothing."""

    def __init__(self, name: str, source: KafkaSourceConfig, channels: Sequence[ChannelConfig], routes: Routes) -> None:
        """``name``: of the job. Raises: ConfigError - a type or a path of a channel is not valid."""
        self._name, self._source = name, source
        self.format_name = source.format
        self._routes = routes
        self._tables = TablesOfJob(source.format, channels, routes)
        self._registry = None if source.registry is None else _registry_of(source.registry)
        self.settings = KafkaSettings(
            source.brokers,
            source.topics,
            source.group_id or f"cdc-{name}",
            source.group_id is not None,
            source.isolation,
            source.properties,
        )

    def receiver(self, resume: Resume, acknowledged: Mapping[Position, bool], window_bytes: int) -> KafkaReceiver:
        """Return the receiver of a run."""
        source = self._source
        accepted = Accepted(
            gap=resume.accept_gap and not resume.replay_bad,
            server=resume.accept_server,
            skips_lost=source.lost_offsets == "earliest",
            kept_gap=resume.accept_gap,
        )
        return KafkaReceiver(
            self.settings,
            self.decoder(),
            self._routes,
            rules=OrderRules(source.one_partition_per_key, source.key_changes == "apply", moves_key_changes=True),
            accepted=accepted,
            bad=self.bad_messages(),
            replays_bad=resume.replay_bad and source.bad_rows is not None,
            format_name=source.format,
            is_described=lambda database, table: self._tables.schema(database, table) is not None,
            acknowledged=acknowledged,
            stop_at=None if source.stop_at is None else self.last_position,
            executors=ExecutorReads(self._create, self._tables) if source.read == "executors" else None,
            window_bytes=window_bytes,
        )

    def bad_messages(self) -> BadMessages | None:
        """Return the keeper of messages that cannot be decoded; None: the first one stops the job."""
        rules, folder = self._source.bad_rows, self._source.bad_folder
        if rules is None or folder is None:
            return None
        return BadMessages(Path(folder) / self._name, BadLimits(rules.max_rows, rules.window_rows, rules.max_ratio))

    def decoder(self) -> Format:
        """Return a decoder of the messages."""
        return self._create(tables=self._tables)

    @property
    def _create(self) -> Callable[..., Format]:
        """Return a picklable function of ``tables``. With a registry, executors get the schemas that are known."""
        source = self._source
        modes = None if source.connector is None else DebeziumModes(source.connector.decimal_handling_mode)
        return partial(
            create_format,
            source.format,
            zone_us=source.zone_us,
            modes=modes,
            separator=source.separator,
            registry=self._registry,
        )

    def schemas(self) -> tuple[TableSchema, ...]:
        """Return the tables that channels without a pattern describe by `fields`."""
        return self._tables.described()

    def reads_topic(self, topic: str) -> bool:
        """Return whether a channel can have rows of a topic. Messages of some formats name their table themselves."""
        return self._source.format not in ("json", "csv") or self._tables.maps(*self._tables.table_of(topic))

    def first_position(self, cluster: Cluster | None = None) -> KafkaPosition:
        """Return `source.start` as offsets. ``cluster``: an open connection. Raises: see ``resolve``."""
        start = self._source.start
        return self._resolved(start) if cluster is None else resolve(cluster, _start_of(start))

    def last_position(self) -> KafkaPosition:
        """Return `source.stop_at` as offsets. Raises: see ``resolve``."""
        stop = self._source.stop_at
        return self._resolved("latest" if stop is None or stop == "end" else stop)

    def _resolved(self, at: str | KafkaTime | KafkaOffsets | KafkaGroup) -> KafkaPosition:
        with Cluster(self.settings) as cluster:
            return resolve(cluster, _start_of(at))


class TablesOfJob:
    """The mapped tables, and what the channels say about rows in messages. Implements ``KafkaTables``."""

    def __init__(self, source_format: str, channels: Sequence[ChannelConfig], routes: Routes) -> None:
        """Check types and paths. Raises: ConfigError."""
        self._format = source_format
        self._routes = routes
        self.maps, self.may_map, self.leave_out = routes.maps, routes.may_map, routes.leave_out
        names = [(parse_table(channel.source), channel) for channel in channels]
        self._channels = sorted(names, key=lambda one: one[0].is_pattern)  # a channel that names a table is first
        self._topics = {
            channel.topic: (name.database, name.table) for name, channel in names if channel.topic is not None
        }
        self._paths = {
            channel.source: {name: parse_path(path) for name, path in (channel.paths or {}).items()}
            for channel in channels
        }
        self._schemas: dict[tuple[str, str], TableSchema | None] = {}
        for name, _ in names:
            self.schema(name.database, name.table)

    def reads(self, schema: TableSchema) -> RequiredColumns:
        """See ``TableFilter``."""
        return self._routes.reads(schema)

    def schema(self, database: str, table: str) -> TableSchema | None:
        """See ``KafkaTables``."""
        name = (database, table)
        if name not in self._schemas:
            channel = self._channel(database, table)
            self._schemas[name] = None if channel is None else _schema_of(self._format, channel, database, table)
        return self._schemas[name]

    def described(self) -> tuple[TableSchema, ...]:
        """Return the tables that channels without a pattern describe."""
        names = [name for name, _ in self._channels if not name.is_pattern]
        return tuple(found for name in names if (found := self.schema(name.database, name.table)) is not None)

    def table_of(self, topic: str) -> tuple[str, str]:
        """See ``KafkaTables``."""
        name = self._topics.get(topic) or topic_table(topic)
        # rows of a channel with `topic` are in that topic only
        return ("", topic) if topic not in self._topics and name in self._topics.values() else name

    def paths(self, database: str, table: str) -> Mapping[str, tuple[str, ...]]:
        """See ``KafkaTables``."""
        channel = self._channel(database, table)
        return self._paths[channel.source] if channel is not None else {}

    def _channel(self, database: str, table: str) -> ChannelConfig | None:
        for name, channel in self._channels:
            is_it = name.middle(database, table) is not None if name.is_pattern else False
            if is_it or (name.database, name.table) == (database, table):
                return channel
        return None


def _schema_of(source_format: str, channel: ChannelConfig, database: str, table: str) -> TableSchema | None:
    if channel.fields is None:
        return None
    key = _source_key(channel, channel.fields)
    if source_format in ("debezium-json", "maxwell"):  # their values depend on the type in MySQL
        return schema_of_types(database, table, channel.fields, key)
    schema = schema_of_fields(database, table, channel.fields, key)
    if channel.delete_when is None:
        return schema
    # a row that `delete_when` deletes may have its key alone
    columns = [replace(one, nullable=one.nullable or one.name not in key) for one in schema.columns]
    return replace(schema, columns=tuple(columns))


def _source_key(channel: ChannelConfig, fields: Mapping[str, str]) -> tuple[str, ...]:
    """Return the fields of `key`, which has target columns; () if one of them is computed."""
    if channel.columns is None:
        return channel.key or ()
    names = [channel.columns.get(name, "").strip("` ") for name in channel.key or ()]
    return tuple(names) if all(name in fields for name in names) else ()


def _registry_of(config: RegistryConfig) -> SchemaRegistry:
    return SchemaRegistry(config.url, config.username or "", config.password.get_secret_value())


def _start_of(at: str | KafkaTime | KafkaOffsets | KafkaGroup) -> KafkaStart:
    if isinstance(at, KafkaTime):
        return KafkaStart(time_ms=at.time_ms)
    if isinstance(at, KafkaOffsets):
        return KafkaStart(offsets=at.offsets)
    if isinstance(at, KafkaGroup):
        return KafkaStart(group=at.group)
    return KafkaStart(at)
