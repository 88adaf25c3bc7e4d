"""The Kafka source in a job file."""

import pytest

from cdc.config.kafka_models import KafkaOffsets, KafkaSourceConfig, KafkaTime
from cdc.config.models import load_config
from tests.support.job_files import issues_of, write_job

SOURCE = 'type: kafka, brokers: ["k1:9092", "k2:9092"], topics: ["shop.orders", "crm.*"], format: canal-json'
JOB = """\
name: shop
source: {%s}
sink: {type: delta, path: ./warehouse}
channels:
  - {source: shop.orders, target: ods.orders}
"""


def source_of(folder, more=""):
    config = load_config(write_job(folder, JOB % (SOURCE + more)))
    assert isinstance(config.source, KafkaSourceConfig)
    return config


def test_kafka_source_has_safe_defaults(tmp_path):
    source = source_of(tmp_path).source
    assert (source.start, source.stop_at, source.isolation, source.group_id) == (
        "earliest",
        None,
        "read_committed",
        None,
    )
    assert source.one_partition_per_key and source.key_changes == "pause" and source.lost_offsets == "pause"


def test_kafka_start_takes_a_word_a_time_offsets_or_a_group(tmp_path):
    assert source_of(tmp_path, ", start: latest").source.start == "latest"
    time = source_of(tmp_path, ', start: {time: "2026-01-01T02:00:00+02:00"}').source.start
    assert isinstance(time, KafkaTime) and time.time_ms == 1_767_225_600_000
    offsets = source_of(tmp_path, ", start: {offsets: {shop.orders: {0: 5, 1: 7}}}").source.start
    assert isinstance(offsets, KafkaOffsets) and offsets.offsets == {"shop.orders": {0: 5, 1: 7}}
    assert source_of(tmp_path, ", start: {group: old}").source.start.group == "old"
    assert source_of(tmp_path, ", stop_at: end").source.stop_at == "end"


@pytest.mark.parametrize(
    ("more", "path"),
    [
        (", start: tomorrow", "source.start"),
        (', start: {time: "2026-01-01T00:00:00"}', "source.start.time"),
        (", start: {offsets: {shop.orders: {0: -1}}}", "source.start.offsets"),
        (", stop_at: {group: old}", "source.stop_at"),
        (", properties: {enable.auto.commit: true}", "source.properties"),
        (', time_zone: "Europe/Berlin"', "source.time_zone"),
        (", read: everywhere", "source.read"),
    ],
)
def test_kafka_source_refuses_values_with_their_path(tmp_path, more, path):
    assert any(path in issue for issue in issues_of(tmp_path, JOB % (SOURCE + more)))


def test_kafka_topics_need_names_with_one_star(tmp_path):
    for topics in ("[]", '["a*b*"]', '["a", "a"]'):
        text = JOB % SOURCE.replace('["shop.orders", "crm.*"]', topics)
        assert any("source.topics" in issue for issue in issues_of(tmp_path, text))
    text = JOB % (SOURCE.replace(', "crm.*"', "") + ", start: {offsets: {other: {0: 1}}}")
    assert any("other" in issue for issue in issues_of(tmp_path, text))


def test_kafka_secrets_of_properties_are_masked(tmp_path):
    more = ", properties: {sasl.username: cdc, sasl.password: s3cret, ssl.key.pem: keytext, ssl.ca.location: /ca.pem}"
    assert {*source_of(tmp_path, more).secrets()} == {"s3cret", "keytext"}


MODES = (
    ", connector: {decimal_handling_mode: precise, time_precision_mode: adaptive_time_microseconds, "
    "binary_handling_mode: bytes}"
)


def job_of(source_format, channel, more=""):
    source = SOURCE.replace("canal-json", source_format)
    return (JOB % (source + more)).replace("ods.orders}", f"ods.orders, {channel}}}")


def test_kafka_formats_take_their_keys(tmp_path):
    rows = 'topic: o, fields: {id: BIGINT}, paths: {id: $.a.id}, delete_when: "id < 0", key: [id]'
    channel = load_config(write_job(tmp_path, job_of("json", rows))).channels[0]
    assert (channel.topic, channel.fields, channel.paths) == ("o", {"id": "BIGINT"}, {"id": "$.a.id"})
    text = job_of("debezium-json", "fields: {id: BIGINT}", MODES)
    source = load_config(write_job(tmp_path, text)).source
    assert source.connector.decimal_handling_mode == "precise"
    login = ", registry: {url: 'https://r:8081/base', username: u, password: s3cret}"
    config = load_config(write_job(tmp_path, job_of("debezium-avro", "key: [id]", login)))
    assert config.source.registry.url == "https://r:8081/base" and "s3cret" in config.secrets()


@pytest.mark.parametrize(
    ("source_format", "channel", "more", "expected"),
    [
        ("canal-json", "fields: {id: BIGINT}", "", "`fields` of shop.orders is used only with"),
        ("debezium-json", "topic: o", "", "`topic` of shop.orders is used only with"),
        ("debezium-json", "delete_when: x", "", "`delete_when` of shop.orders is used only with"),
        ("canal", "fields: {id: BIGINT}", "", "`fields` of shop.orders is used only with"),
        ("maxwell", "key: [id]", "", "shop.orders needs `fields`"),
        ("maxwell", "fields: {id: BIGINT}, topic: o", "", "`topic` of shop.orders is used only with"),
        ("debezium-avro", "key: [id]", "", "source.registry"),
        ("canal", "key: [id]", ", registry: {url: 'http://r:8081'}", "source.registry"),
        ("debezium-avro", "key: [id]", ", registry: {url: 'http://u:p@r:8081'}", "source.registry.url"),
        ("debezium-avro", "key: [id]", ", registry: {url: 'http://r', username: u, password: p}", "source.registry"),
        ("json", "key: [id]", "", "shop.orders needs `fields`"),
        (
            "json",
            "fields: {id: INT}, topic: o}\n  - {source: s.o, target: o.o, fields: {i: INT}, topic: o",
            "",
            "two channels",
        ),
        ("json", "fields: {i: INT}}\n  - {source: 's.*', target: 'o.*', fields: {i: INT}, topic: o", "", "a pattern"),
        ("csv", "key: [id]", "", "shop.orders needs `fields`"),
        ("csv", "fields: {id: INT}, paths: {id: $.x}", "", "`paths` of shop.orders"),
        ("csv", "fields: {id: INT}", ", separator: '\"'", "source.separator"),
        ("csv", "fields: {id: INT}", ', separator: ";;"', "source.separator"),
        ("json", "fields: {id: INT}", MODES, "source.connector"),
        ("debezium-json", "key: [id]", ", connector: {}", "source.connector.decimal_handling_mode"),
        ("debezium-json", "key: [id]", MODES.replace("precise", "double"), "source.connector"),
        ("debezium-json", "key: [id]", MODES.replace("_microseconds", ""), "source.connector"),
        ("debezium-json", "key: [id]", MODES.replace("bytes", "hex"), "source.connector"),
    ],
)
def test_kafka_formats_refuse_other_keys(tmp_path, source_format, channel, more, expected):
    assert any(expected in issue for issue in issues_of(tmp_path, job_of(source_format, channel, more)))


def test_other_sources_refuse_the_keys_of_rows(tmp_path):
    text = JOB % "type: binlog, host: h, username: u, password: p"
    found = issues_of(tmp_path, text.replace("ods.orders}", "ods.orders, fields: {id: INT}}"))
    assert any("`fields` of shop.orders" in issue for issue in found)
