"""The formats by their names in the job file."""

from __future__ import annotations

from cdc.errors import ConfigError
from cdc.sources.kafka.formats.base import Format, KafkaTables
from cdc.sources.kafka.formats.canal_json import CanalJson
from cdc.sources.kafka.formats.canal_protobuf import CanalProtobuf
from cdc.sources.kafka.formats.csv import Csv
from cdc.sources.kafka.formats.debezium_avro import DebeziumAvro
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.formats.debezium_types import DebeziumModes
from cdc.sources.kafka.formats.maxwell import Maxwell
from cdc.sources.kafka.formats.plain_json import PlainJson
from cdc.sources.kafka.schema_registry import SchemaRegistry

FORMATS = ("canal-json", "canal", "debezium-json", "debezium-avro", "maxwell", "json", "csv")


def create_format(
    name: str,
    *,
    tables: KafkaTables,
    zone_us: int = 0,
    modes: DebeziumModes | None = None,
    separator: str = ",",
    registry: SchemaRegistry | None = None,
) -> Format:
    """Return a format by its name in the job file.

    ``zone_us``: microseconds by which moments without a zone are ahead of UTC: of the JVM of Canal or
    Maxwell, or of plain rows. ``modes``: of Debezium's connector, for messages without a schema. ``separator``: of CSV.
    ``registry``: required for Avro.
    Raises: ConfigError - there is no such format.
    """
    if name == "canal-json":
        return CanalJson(tables, zone_us=zone_us)
    if name == "canal":
        return CanalProtobuf(tables, zone_us=zone_us)
    if name == "maxwell":
        return Maxwell(tables, zone_us=zone_us)
    if name == "debezium-json":
        return DebeziumJson(tables, modes=modes)
    if name == "debezium-avro" and registry is not None:
        return DebeziumAvro(tables, registry)
    if name == "json":
        return PlainJson(tables, zone_us=zone_us)
    if name == "csv":
        return Csv(tables, separator=separator, zone_us=zone_us)
    raise ConfigError(f"The format {name!r} is not known.", hint=f"Use one of: {', '.join(FORMATS)}.", format=name)
