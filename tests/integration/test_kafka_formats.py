"""Complete jobs on a real broker: each format of messages into Delta tables."""

from __future__ import annotations

import base64
import json
import random
import zlib

import pytest

from cdc.sources.canal.protocol_pb2 import Column, Entry, EventKind, Header, Messages, Packet, RowChange, RowData
from tests.emulators.schema_registry import RegistryEmulator
from tests.support.avro_messages import avro_message, avro_schema, avro_value
from tests.support.kafka_jobs import PARTITIONS, Job, ends_of, is_caught_up
from tests.support.seeds import seed_of

ROWS = """{{topic: {topic}, key: [id], delete_when: "op = 'D'", columns: {{id: id, note: note, amount: amount, at: at}},
  fields: {{id: BIGINT, note: STRING, amount: "DECIMAL(10,2) NOT NULL", at: TIMESTAMP_NTZ, op: STRING}},
  paths: {{note: $.more.note, op: $.more.op}}}}"""
FIELDS = "fields: {id: BIGINT NOT NULL, note: VARCHAR(100), amount: 'DECIMAL(10,2)', at: DATETIME(3)}, key: [id]"
MODES = """connector:
  decimal_handling_mode: precise
  time_precision_mode: adaptive_time_microseconds
  binary_handling_mode: bytes
"""
SCHEMA = [
    {"type": "int64", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "note", "default": "none"},
    {"type": "bytes", "optional": True, "name": "org.apache.kafka.connect.data.Decimal", "field": "amount",
     "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
    {"type": "int64", "optional": True, "name": "io.debezium.time.Timestamp", "field": "at"},
]  # fmt: skip
AT_MS = 1_709_168_523_456  # 2024-02-29 01:02:03.456


class PlainRows:
    """A change as one JSON object. Half of the deletes are tombstones."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def key(self, key):
        return {"id": key}

    def upsert(self, key, before, row):
        body = {"id": key, "amount": str(row["amount"]), "at": "2024-02-29T01:02:03.456", "more": {"note": row["note"]}}
        yield key, body

    def delete(self, key, row):
        yield key, None if self._random.random() < 0.5 else {"id": key, "more": {"op": "D"}}


class CsvRows:
    """A change as one line of CSV, and a delete as a tombstone."""

    def key(self, key):
        return {"id": key}

    def upsert(self, key, before, row):
        note = "\\N" if row["note"] is None else f'"{row["note"]}"'
        yield key, f"{key};{note};{row['amount']};2024-02-29 01:02:03.456"

    def delete(self, key, row):
        yield key, None


class DebeziumRows:
    """A change as Debezium sends it: a delete is followed by a tombstone."""

    def __init__(self, with_schema):
        self._with_schema = with_schema

    def key(self, key):
        payload = {"id": key}
        return (
            {"schema": {"type": "struct", "fields": SCHEMA[:1]}, "payload": payload} if self._with_schema else payload
        )

    def upsert(self, key, before, row):
        yield key, self._change("c" if before is None else "u", key, before, row)

    def delete(self, key, row):
        yield key, self._change("d", key, row, None)
        yield key, None

    def _change(self, op, key, before, after):
        source = {"db": "shop", "table": "orders", "ts_ms": 1_700_000_000_123}
        images = {"before": self._image(key, before), "after": self._image(key, after)}
        payload = {**images, "source": source, "op": op, "ts_ms": 5}
        if not self._with_schema:
            return payload
        both = [{"type": "struct", "fields": SCHEMA, "optional": True, "field": name} for name in ("before", "after")]
        return {"schema": {"type": "struct", "fields": both}, "payload": payload}

    def _image(self, key, row):
        if row is None:
            return None
        cents = round(row["amount"] * 100)
        amount = base64.b64encode(cents.to_bytes(5, "big", signed=True)).decode()
        return {"id": key, "note": row["note"], "amount": amount, "at": AT_MS}


class AvroRows:
    """A change as Debezium sends it with the AvroConverter."""

    def __init__(self, registry):
        self.number = 1  # of the schema
        self._json = DebeziumRows(True)
        both = [{"type": "struct", "fields": SCHEMA, "optional": True, "field": name} for name in ("before", "after")]
        names = {"db": "string", "table": "string", "ts_ms": "int64"}
        source = {"type": "struct", "field": "source", "fields": [{"field": n, "type": k} for n, k in names.items()]}
        operation = [{"field": "op", "type": "string"}, {"field": "ts_ms", "type": "int64"}]
        self._schema = {"type": "struct", "fields": [*both, source, *operation]}
        self._key = {"type": "struct", "fields": SCHEMA[:1]}
        registry.schemas |= {1: avro_schema(self._schema), 2: avro_schema(self._key, "Key")}

    def key(self, key):
        return avro_message(2, avro_schema(self._key, "Key"), {"id": key})

    def upsert(self, key, before, row):
        return self._avro(self._json.upsert(key, before, row))

    def delete(self, key, row):
        return self._avro(self._json.delete(key, row))

    def _avro(self, messages):
        for key, value in messages:
            if value is not None:
                value = avro_message(self.number, avro_schema(self._schema), avro_value(self._schema, value["payload"]))
            yield key, value


class MaxwellRows:
    """A change as Maxwell sends it."""

    def key(self, key):
        return {"database": "shop", "table": "orders", "pk.id": key}

    def upsert(self, key, before, row):
        if before is None:
            yield key, self._change("insert", self._row(key, row))
        else:
            old = {name: value for name, value in before.items() if value != row[name]}
            yield key, self._change("update", self._row(key, row), old=old)

    def delete(self, key, row):
        yield key, self._change("delete", self._row(key, row))

    def _change(self, kind, data, **fields):
        return {"database": "shop", "table": "orders", "type": kind, "ts": 1_700_000_000, "data": data, **fields}

    def _row(self, key, row):
        return {"id": key, **row, "at": "2024-02-29 01:02:03.456"}


class CanalPackets:
    """A change as a protobuf message of Canal."""

    def key(self, key):
        return {"id": key}

    def upsert(self, key, before, row):
        yield key, packet(EventKind.INSERT if before is None else EventKind.UPDATE, key, before, row)

    def delete(self, key, row):
        yield key, packet(EventKind.DELETE, key, row, None)


def packet(kind, key, before, after):
    types = {"id": "bigint", "note": "varchar(100)", "amount": "decimal(10,2)", "at": "datetime(3)"}

    def columns(row):
        values = {} if row is None else {"id": key, **row, "at": "2024-02-29 01:02:03.456"}
        return [
            Column(index=list(types).index(name), name=name, mysql_type=types[name], is_key=name == "id",
                   value="" if value is None else str(value), is_null=value is None)
            for name, value in values.items()
        ]  # fmt: skip

    rows = [RowData(before_columns=columns(before), after_columns=columns(after))]
    change = RowChange(event_kind=kind, rows=rows).SerializeToString()
    header = Header(database="shop", table="orders", execute_time_ms=1_700_000_000_000)
    body = Messages(batch_id=1, messages=[Entry(header=header, kind=2, store_value=change).SerializeToString()])
    return Packet(kind=Packet.MESSAGES, body=body.SerializeToString()).SerializeToString()


class Shop:
    """Keyed rows, and their changes in a topic: each key in one partition."""

    def __init__(self, broker, topic, form, seed):
        self.rows = {}
        self._topic, self._form = topic, form
        self._producer, self._random = broker.producer(linger_ms=20), random.Random(seed)

    def change(self, count):
        for _ in range(count):
            key, choice = self._random.randrange(400), self._random.random()
            before = self.rows.get(key)
            if before is not None and choice < 0.2:
                self._send(self._form.delete(key, self.rows.pop(key)))
            elif before is not None and choice < 0.3:  # another key: a delete, and a row in another partition
                self._send(self._form.delete(key, before))
                moved = key + 1000 + self._random.randrange(10**6)
                self.rows[moved] = self.rows.pop(key)
                self._send(self._form.upsert(moved, None, before))
            else:
                note = None if choice > 0.9 else f"nöte {choice}"
                self.rows[key] = {"note": note, "amount": self._random.randrange(-9999, 9999) / 100}
                self._send(self._form.upsert(key, before, self.rows[key]))
        assert self._producer.flush(60) == 0

    def _send(self, messages):
        for key, value in messages:
            partition = zlib.crc32(str(key).encode()) % PARTITIONS
            text = value if value is None or isinstance(value, str | bytes) else json.dumps(value)
            own = self._form.key(key)
            own = own if isinstance(own, bytes) else json.dumps(own)
            self._producer.produce(self._topic, text, own, partition)


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
    if kind == "canal":
        return start("format: canal"), CanalPackets()
    if kind == "schema":
        return start("format: debezium-json"), DebeziumRows(True)
    return start("format: debezium-json\n" + MODES, FIELDS), DebeziumRows(False)


@pytest.mark.parametrize("kind", ["rows", "lines", "maxwell", "canal", "schema", "modes"])
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


def test_bad_messages_are_kept_and_counted_after_a_kill_and_stop_at_the_limit(kafka, topic, start):
    rows = f"{{topic: {topic}, key: [id], fields: {{id: BIGINT, note: STRING}}}}"[1:-1]
    job = start("format: json\nbad_rows: {max_messages: 2, path: ./bad}", rows)
    kafka.send(topic, '{"id": 1, "note": "a"}', "not json", '{"id": "x"}', '{"id": 2, "note": "b"}')
    (sample,) = json.loads(job.cdc("check", job.file, "--output", "json"))["samples"]
    assert (sample["target"], sample["partition"], sample["offset"], sample["deleted"]) == ("ods.orders", 0, 3, False)
    assert [(one["name"], one["value"]) for one in sample["columns"]] == [("id", "2"), ("note", "b")]
    job.process.start()
    status = job.process.wait_for("the end", is_caught_up({0: 4, 1: 0, 2: 0}), 240)
    assert status["bad_messages"] == 2 and job.table("note") == {1: ("a",), 2: ("b",)}
    kept = job.folder / "bad/by-kafka" / topic
    assert sorted(path.name for path in kept.iterdir()) == ["0-1.json", "0-2.json"]
    job.process.kill()
    kafka.send(topic, '{"id": 3, "note": "c"}', '{"id": null}', '{"id": 4, "note": "d"}')
    job.process.start()
    status = job.process.wait_for("a pause", lambda status: status["state"] == "PAUSED", 240)
    assert "key is NULL" in status["reason"] and "max_messages" in status["hint"]
    (kept / "0-1.json").unlink()
    job.cdc("resume", "by-kafka")
    status = job.process.wait_for("the end", is_caught_up({0: 7, 1: 0, 2: 0}), 240)
    assert status["bad_messages"] == 2 and sorted(job.table("note")) == [1, 2, 3, 4]
    assert sorted(path.name for path in kept.iterdir()) == ["0-2.json", "0-5.json"]
