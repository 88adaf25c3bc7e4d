"""A shop of keyed rows whose changes are messages, in each format that a Kafka source reads."""

from __future__ import annotations

import base64
import json
import random
import zlib

from cdc.sources.canal.protocol_pb2 import Column, Entry, EventKind, Header, Messages, Packet, RowChange, RowData
from tests.support.avro_messages import avro_message, avro_schema, avro_value
from tests.support.kafka_jobs import PARTITIONS

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
KEY_NAME = "srv.shop.orders.Key"
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
            {"schema": {"type": "struct", "fields": SCHEMA[:1], "name": KEY_NAME}, "payload": payload}
            if self._with_schema
            else payload
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
        self._avro_key = avro_schema(self._key, "Key", "srv.shop.orders")
        registry.schemas |= {1: avro_schema(self._schema), 2: self._avro_key}

    def key(self, key):
        return avro_message(2, self._avro_key, {"id": key})

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
