"""Complete jobs on a real broker: each format of messages into Delta tables."""

from __future__ import annotations

import pytest

from tests.emulators.schema_registry import RegistryEmulator
from tests.support.kafka_jobs import PARTITIONS, Job, ends_of, is_caught_up
from tests.support.kafka_shop import (
    FIELDS,
    MODES,
    ROWS,
    AvroRows,
    CsvRows,
    DebeziumRows,
    MaxwellRows,
    PlainRows,
    Shop,
)
from tests.support.seeds import seed_of


@pytest.fixture
def start(kafka, topic, tmp_path):
    """Create the topic, and a job that is killed at the end."""
    jobs = []

    def start(source, channel=""):
        kafka.create(topic, PARTITIONS)
        jobs.append(Job(tmp_path, kafka, topic, source, channel))
        return jobs[0]

    yield start
    for job in jobs:
        job.process.__exit__()


def _job_of(kind, start, topic):
    if kind == "rows":
        return start("format: json", ROWS.format(topic=topic)[1:-1].replace("\n", " ")), PlainRows(seed_of())
    if kind == "lines":
        fields = "fields: {id: BIGINT, note: STRING, amount: 'DECIMAL(10,2)', at: TIMESTAMP_NTZ}"
        return start('format: csv\nseparator: ";"', f"topic: {topic}, key: [id], {fields}"), CsvRows()
    if kind == "maxwell":
        return start("format: maxwell", FIELDS), MaxwellRows()
    if kind == "schema":
        return start("format: debezium-json"), DebeziumRows(True)
    return start("format: debezium-json\n" + MODES, FIELDS), DebeziumRows(False)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", ["rows", "lines", "maxwell", "schema", "modes"])
def test_kafka_format_job_equals_the_model_after_a_kill(kafka, topic, start, kind):
    job, form = _job_of(kind, start, topic)
    shop = Shop(kafka, topic, form, seed_of())
    shop.change(500)
    found = job.cdc("check", job.file)
    assert "can start" in found and "of shop.orders for ods.orders:" in found and "\n  id: " in found
    assert ("column note may arrive as the default" in found) is (kind == "schema")
    assert ("A NULL in a column with a default may arrive" in found) is (kind == "modes")
    job.process.start()
    job.process.wait_for("a commit", lambda status: status["checkpoint"] and status["checkpoint"]["rows"], 240)
    shop.change(1000)
    job.process.kill()
    shop.change(300)
    job.process.start()
    job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), 240)
    rows = job.table("note", "amount", "at")
    assert {key: (note, float(amount)) for key, (note, amount, _) in rows.items()} == {
        key: (row["note"], row["amount"]) for key, row in shop.rows.items()
    }
    assert len(rows) > 100 and {f"{at:%F %T.%f}" for _, _, at in rows.values()} == {"2024-02-29 01:02:03.456000"}


def test_registry_that_is_away_delays_an_avro_job_and_an_unknown_schema_pauses_it(kafka, topic, start):
    with RegistryEmulator() as registry:
        form = AvroRows(registry)
        shop = Shop(kafka, topic, form, seed_of())
        job = start(f"format: debezium-avro\nregistry: {{url: '{registry.url}'}}")
        shop.change(200)
        assert "column note may arrive as the default" in job.cdc("check", job.file)
        job.process.start()
        job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), 240)
    assert "registry does not answer" in job.cdc("check", job.file, code=3)
    form.number = 3
    shop.change(200)
    job.process.wait_for("a retry", lambda status: "registry does not answer" in str(status), 240)
    with RegistryEmulator(port=registry.port) as again:
        again.schemas = {**registry.schemas, 3: registry.schemas[1]}
        job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), 240)
        rows = job.table("note", "amount")
        assert {key: (note, float(amount)) for key, (note, amount) in rows.items()} == {
            key: (row["note"], row["amount"]) for key, row in shop.rows.items()
        }
        kafka.send(topic, b"\0\0\0\0\x09\0")
        status = job.process.wait_for("a pause", lambda status: status["state"] == "PAUSED", 240)
        assert "does not have schema 9" in status["reason"]


def test_check_refuses_debezium_messages_without_schema_and_modes(kafka, topic, start):
    job = start("format: debezium-json", FIELDS)
    Shop(kafka, topic, DebeziumRows(False), 1).change(1)
    refused = job.cdc("check", job.file, code=3)
    job.file.write_text(job.file.read_text().replace("debezium-json", "maxwell"))
    assert "look like `format: debezium-json`, but `source.format` is maxwell" in job.cdc("check", job.file, code=3)
    assert "no schema" in refused and "source.connector" in refused and "schemas.enable=true" in refused
