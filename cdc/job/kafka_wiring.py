"""Create the parts of a Kafka source from its section of the job file. Needs the package confluent-kafka."""

from __future__ import annotations

from collections.abc import Mapping

from cdc.api.models import Resume
from cdc.config.kafka_models import KafkaGroup, KafkaOffsets, KafkaSourceConfig, KafkaTime
from cdc.model.batch import RequiredColumns
from cdc.model.kafka_position import KafkaPosition
from cdc.model.position import Position
from cdc.model.schema import TableSchema
from cdc.sources.kafka.batches import OrderRules
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.continuity import Accepted
from cdc.sources.kafka.formats.base import Format
from cdc.sources.kafka.formats.canal_json import CanalJson
from cdc.sources.kafka.receiver import KafkaReceiver
from cdc.sources.kafka.start import KafkaStart, resolve
from channels.mapping import Routes


class KafkaParts:
    """The parts of a Kafka source. Creating them connects to nothing."""

    def __init__(self, source: KafkaSourceConfig, name: str, routes: Routes) -> None:
        """``name``: of the job."""
        self._source = source
        self._routes = routes
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
        return KafkaReceiver(
            self.settings,
            self.decoder(),
            self._routes,
            rules=OrderRules(source.one_partition_per_key, source.key_changes == "apply", moves_key_changes=True),
            accepted=Accepted(resume.accept_gap, resume.accept_server, source.lost_offsets == "earliest"),
            acknowledged=acknowledged,
            stop_at=None if source.stop_at is None else self.last_position,
            window_bytes=window_bytes,
        )

    def decoder(self) -> Format:
        """Return a decoder of the messages."""
        return CanalJson(TablesOfMessages(self._routes), zone_us=self._source.zone_us)

    def first_position(self) -> KafkaPosition:
        """Return `source.start` as offsets. Raises: see ``resolve``."""
        return self._resolved(self._source.start)

    def last_position(self) -> KafkaPosition:
        """Return `source.stop_at` as offsets. Raises: see ``resolve``."""
        stop = self._source.stop_at
        return self._resolved("latest" if stop is None or stop == "end" else stop)

    def _resolved(self, at: str | KafkaTime | KafkaOffsets | KafkaGroup) -> KafkaPosition:
        with Cluster(self.settings) as cluster:
            return resolve(cluster, _start_of(at))


class TablesOfMessages:
    """The tables of a job whose messages describe their columns. Implements ``KafkaTables``."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self.maps, self.leave_out = routes.maps, routes.leave_out

    def reads(self, schema: TableSchema) -> RequiredColumns:
        """See ``TableFilter``."""
        return self._routes.reads(schema)

    def schema(self, database: str, table: str) -> TableSchema | None:
        """See ``KafkaTables``."""
        return None


def _start_of(at: str | KafkaTime | KafkaOffsets | KafkaGroup) -> KafkaStart:
    if isinstance(at, KafkaTime):
        return KafkaStart(time_ms=at.time_ms)
    if isinstance(at, KafkaOffsets):
        return KafkaStart(offsets=at.offsets)
    if isinstance(at, KafkaGroup):
        return KafkaStart(group=at.group)
    return KafkaStart(at)
