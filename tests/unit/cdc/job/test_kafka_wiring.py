"""The tables of a Kafka job: what its channels say about rows in messages."""

import pytest

from cdc.api.models import Resume
from cdc.checks.kafka import unread_topics
from cdc.config.models import load_config
from cdc.errors import ConfigError, SchemaMismatch, TargetMismatch
from cdc.job.wiring import build, kafka_parts
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.model.schema import TableSchema
from cdc.sources.kafka.batches import BatchMaker, OrderRules
from cdc.sources.kafka.cluster import Topic, Topics
from cdc.sources.kafka.continuity import Accepted
from cdc.sources.kafka.layouts import Layouts
from cdc.sources.schema_history import SchemaHistory
from tests.support.job_files import write_job
from tests.support.kafka_messages import block_of

JOB = """\
name: shop
source: {type: kafka, brokers: ["k1:9092"], topics: ["*"], format: %s}
sink: {type: delta, path: ./warehouse}
channels:
  - {source: shop.orders, target: ods.orders, %s}
  - {source: "crm.*", target: "ods.*", key: [k], fields: {k: INT NOT NULL}}
"""

PATTERN = """\
name: shop
source: {type: kafka, brokers: ["k1:9092"], topics: ["*"], format: %s}
sink: {type: delta, path: ./warehouse}
channels: [{source: "shop.*", target: "ods.*"}]
"""

CANAL = """\
name: shop
source: {type: kafka, brokers: ["k1:9092"], topics: ["*"], format: canal-json}
sink: {type: delta, path: ./warehouse}
channels: [{source: shop.orders, target: ods.orders}]
"""


def parts_of(folder, channel, source_format="json"):
    config = load_config(write_job(folder, JOB % (source_format, channel)))
    components = build(config)
    components.close()
    return kafka_parts(config, config.source, components.routes), components.routes


def test_replay_of_bad_messages_accepts_no_gap_of_the_position(tmp_path):
    parts, _ = parts_of(tmp_path, "topic: o, key: [id], fields: {id: BIGINT}")
    for replay_bad in (False, True):
        receiver = parts.receiver(Resume(accept_gap=True, replay_bad=replay_bad), {}, 1 << 20)
        assert receiver._accepted == Accepted(gap=not replay_bad, kept_gap=True)


@pytest.mark.parametrize(
    ("source", "parses"),
    [
        ("{type: kafka, brokers: ['k1:9092'], topics: ['*'], format: canal-json}", True),
        ("{type: canal, servers: ['c1:11111'], destination: shop}", True),
        ("{type: binlog, host: 127.0.0.1, username: u, start: latest}", False),
    ],
)
def test_starrocks_parses_documents_that_the_source_does_not_guarantee(tmp_path, source, parses):
    sink = "{type: starrocks, fe: ['127.0.0.1:8030'], username: u}"
    channels = "[{source: shop.orders, target: ods.orders}]"
    config = load_config(write_job(tmp_path, f"name: shop\nsource: {source}\nsink: {sink}\nchannels: {channels}\n"))
    components = build(config)
    assert components.sink._parses_documents is parses
    components.close()


def test_fields_describe_named_tables_and_tables_of_a_pattern(tmp_path):
    parts, _ = parts_of(tmp_path, "topic: o, key: [id], fields: {id: BIGINT, n: INT NOT NULL}, paths: {n: $.a.n}")
    (schema,) = parts.schemas()
    assert (schema.name, schema.key, [one.nullable for one in schema.columns]) == (
        "shop.orders",
        ("id",),
        [True, False],
    )
    tables = parts.decoder()._tables
    assert tables.table_of("o") == ("shop", "orders") and tables.table_of("crm.a.b") == ("crm", "a.b")
    assert tables.schema("crm", "a.b").key == ("k",) and tables.schema("other", "t") is None
    assert tables.paths("shop", "orders") == {"n": ("a", "n")} and tables.paths("crm", "x") == {}


def test_delete_when_becomes_a_filter_and_allows_rows_with_only_the_key(tmp_path):
    channel = 'key: [id], fields: {id: BIGINT NOT NULL, n: INT NOT NULL}, delete_when: "n < 0", filter: id > 1'
    parts, routes = parts_of(tmp_path, channel)
    assert routes.mapping_for("shop", "orders").filter == "(id > 1) AND NOT coalesce((n < 0), false)"
    assert [one.nullable for one in parts.schemas()[0].columns] == [False, True]


def test_key_of_renamed_fields_is_their_source_columns(tmp_path):
    channel = "key: [a], columns: {a: id, b: n + 1}, fields: {id: BIGINT, n: INT}"
    parts, routes = parts_of(tmp_path, channel)
    (schema,) = parts.schemas()
    assert isinstance(schema, TableSchema) and schema.key == ("id",) and routes.reads(schema).key == {"id"}
    parts, _ = parts_of(tmp_path, "key: [b], columns: {a: id, b: n + 1}, fields: {id: BIGINT, n: INT}")
    assert parts.schemas()[0].key == ()


def test_check_names_topics_that_no_channel_reads(tmp_path):
    names = ("o", "shop.orders", "shop.items", "crm.x", "crm")
    topics = Topics("c", {name: Topic("id", (0,)) for name in names})
    parts, _ = parts_of(tmp_path, "topic: o, key: [id], fields: {id: BIGINT}")
    found = [finding.problem for finding in unread_topics(parts, topics)]
    assert [text.split()[4].rstrip(",") for text in found] == ["crm", "shop.items", "shop.orders"]
    (tmp_path / "canal").mkdir()
    config = load_config(write_job(tmp_path / "canal", CANAL))
    assert not list(unread_topics(kafka_parts(config, config.source, build(config).routes), topics))


@pytest.mark.parametrize(
    ("source_format", "channel"),
    [
        ("json", "key: [id], fields: {id: NUMBER}"),
        ("json", "key: [x], fields: {id: INT}"),
        ("json", "key: [id], fields: {id: INT}, paths: {id: a.b}"),
        ("debezium-json", "key: [id], fields: {id: TIMESTAMP_NTZ}"),
    ],
)
def test_bad_types_and_paths_are_refused_before_the_start(tmp_path, source_format, channel):
    with pytest.raises(ConfigError):
        parts_of(tmp_path, channel, source_format)


ROW = {
    "data": [{"id": "1"}],
    "database": "shop",
    "isDdl": False,
    "old": None,
    "type": "INSERT",
    "mysqlType": {"id": "int"},
}
DEBEZIUM = {"op": "c", "before": None, "after": {"id": 1}, "source": {"db": "shop", "table": "bad"}}


@pytest.mark.parametrize(
    ("source_format", "bad", "kind", "own"),
    [
        ("canal-json", {**ROW, "table": "bad", "mysqlType": None}, SchemaMismatch, "`mysqlType` in every message"),
        ("canal-json", {**ROW, "table": "bad"}, TargetMismatch, "set `key` of the channel"),
        ("debezium-json", DEBEZIUM, SchemaMismatch, "schemas.enable=true"),
    ],
)
def test_unreadable_table_of_a_pattern_stops_before_its_message(tmp_path, source_format, bad, kind, own):
    """Kafka has no tables from which a snapshot could load it later, so no message of it may be skipped."""
    config = load_config(write_job(tmp_path, PATTERN % source_format))
    components = build(config)
    components.close()
    routes, decoder = components.routes, kafka_parts(config, config.source, components.routes).decoder()
    maker = BatchMaker(decoder, routes, Layouts(SchemaHistory(routes, None), routes, {}), OrderRules())
    start = KafkaPosition.of("c", {"t": "id"}, {("t", 0): PartitionOffset(100)})
    maker.begin(start, start)
    good = {**ROW, "table": "good", "pkNames": ["id"]} if source_format == "canal-json" else None
    batches = maker.read(block_of([good, bad, good], topic="t"), {})
    assert next(batches).last.offsets["t", 0].next == 101
    with pytest.raises(kind) as caught:
        next(batches)
    assert own in caught.value.hint and "`exclude: [bad]` in the channel shop.*" in caught.value.hint
    assert caught.value.context["offset"] == 101 and routes.maps("shop", "bad") and not routes.left_out
