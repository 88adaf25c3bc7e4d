"""Kafka messages: from a broker to one buffer, from messages in memory to Arrow batches, and complete jobs.

For comparison, confluent-kafka's ``consume`` reads the same messages as one object each, and Python's ``json``,
protobuf or fastavro parse them without a conversion of values.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
from confluent_kafka import Consumer, TopicPartition
from numpy.typing import NDArray

from benchmarks.rig.kafka_jobs import TYPES as _TYPES
from benchmarks.rig.kafka_jobs import catch_up, freshness, many_topics
from benchmarks.rig.measure import report
from benchmarks.rig.suite import Case, Options
from cdc.errors import CdcError
from cdc.model.batch import RequiredColumns
from cdc.model.kafka_position import PartitionOffset
from cdc.model.schema import TableSchema
from cdc.sources.canal.layout import LayoutColumn, schema_of
from cdc.sources.canal.protocol_pb2 import Column, Entry, EventKind, Header, Messages, Packet, RowChange, RowData
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.formats.base import Format
from cdc.sources.kafka.formats.canal_json import CanalJson
from cdc.sources.kafka.formats.canal_protobuf import CanalProtobuf
from cdc.sources.kafka.formats.debezium_avro import DebeziumAvro
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.formats.debezium_types import DebeziumModes
from cdc.sources.kafka.formats.maxwell import Maxwell
from cdc.sources.kafka.messages import PADDING, MessageBlock
from cdc.sources.kafka.reader import MESSAGES, MessageReader
from cdc.sources.kafka.schema_registry import SchemaRegistry
from tests.emulators.kafka import KafkaBroker, obtain_kafka
from tests.emulators.schema_registry import RegistryEmulator
from tests.support.avro_messages import avro_message, avro_schema, avro_value

_BLOCK_MESSAGES, _ROUNDS, _REPEATS, _LIBRARY_MESSAGES = 10_000, 30, 9, 10_000
_GOAL = "400,000 rows/s, target 1,000,000"
_GOALS = {"kafka.decode.debezium_avro": "500,000 rows/s, target 2,000,000"}
_SCHEMA = schema_of(
    "shop", "orders", tuple(LayoutColumn(at, name, kind, at == 0) for at, (name, kind) in enumerate(_TYPES.items()))
)


class _Orders:
    """Selects the one table with all of its columns."""

    def maps(self, database: str, table: str) -> bool:
        """Return True."""
        return True

    may_map = maps

    def leave_out(self, database: str, table: str, error: CdcError) -> bool:
        """Return False."""
        return False

    def reads(self, schema: TableSchema) -> RequiredColumns:
        """Return all columns."""
        return RequiredColumns(frozenset(_TYPES), frozenset(("id",)))

    def schema(self, database: str, table: str) -> TableSchema | None:
        """Return the table as MySQL describes it."""
        return _SCHEMA

    def table_of(self, topic: str) -> tuple[str, str]:
        """Return the one table."""
        return _SCHEMA.database, _SCHEMA.table

    def paths(self, database: str, table: str) -> dict[str, tuple[str, ...]]:
        """Return no path."""
        return {}


def _canal(number: int) -> dict[str, Any]:
    row = {
        "id": str(number), "customer_id": str(471_100 + number % 977), "status": "waiting for payment",
        "priority": str(number % 9), "amount": f"{number % 100_000}.50",
        "note": "please ring twice, the dog is friendly",
        "day": f"2024-01-{1 + number % 28:02}", "ordered_at": f"2024-01-02 03:04:{number % 60:02}",
        "changed_at": f"2024-01-02 03:04:05.{number % 1000:03}", "weight": str(number % 999 + 0.375),
    }  # fmt: skip
    return {
        "data": [row], "database": "shop", "es": 1_700_000_000_000, "gtid": "", "id": number, "isDdl": False,
        "mysqlType": _TYPES, "old": None, "pkNames": ["id"], "sql": "", "sqlType": dict.fromkeys(_TYPES, 12),
        "table": "orders", "ts": 1_700_000_000_123, "type": "INSERT",
    }  # fmt: skip


def _debezium(number: int) -> dict[str, Any]:
    row = {
        "id": number, "customer_id": 471_100 + number % 977, "status": "waiting for payment", "priority": number % 9,
        "amount": "AeJA", "note": "please ring twice, the dog is friendly", "day": 19_700 + number % 28,
        "ordered_at": 1_704_164_645_000 + number, "changed_at": f"2024-01-02T03:04:05.{number % 1000:03}Z",
        "weight": number % 999 + 0.375,
    }  # fmt: skip
    source = {
        "version": "3.6.1.Final", "connector": "mysql", "name": "srv", "ts_ms": 1_700_000_000_000, "snapshot": "false",
        "db": "shop", "sequence": None, "ts_us": 1_700_000_000_000_000, "ts_ns": 1_700_000_000_000_000_000,
        "table": "orders", "server_id": 1, "gtid": None, "file": "mysql-bin.000001", "pos": 4000 + number, "row": 0,
        "thread": 22, "query": None,
    }  # fmt: skip
    return {"before": None, "after": row, "source": source, "transaction": None, "op": "c", "ts_ms": 1_700_000_000_500}


def _block(texts: list[bytes]) -> MessageBlock:
    count = len(texts)
    sizes = np.array([len(text) for text in texts], np.int64)
    return MessageBlock(
        "shop.orders", np.frombuffer(b"".join(texts) + bytes(PADDING), np.uint8), np.cumsum(sizes) - sizes, sizes,
        np.zeros(count, np.int64), np.full(count, -1, np.int64), np.zeros(count, np.int32), np.arange(count),
        np.full(count, 1_700_000_000_000, np.int64),
    )  # fmt: skip


def _text(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def _maxwell(number: int) -> dict[str, Any]:
    data = {
        "id": number, "customer_id": 471_100 + number % 977, "status": "waiting for payment", "priority": number % 9,
        "amount": number % 100_000 + 0.5, "note": "please ring twice, the dog is friendly",
        "day": f"2024-01-{1 + number % 28:02}", "ordered_at": f"2024-01-02 03:04:{number % 60:02}",
        "changed_at": f"2024-01-02 03:04:05.{number % 1000:03}", "weight": number % 999 + 0.375,
    }  # fmt: skip
    return {"database": "shop", "table": "orders", "type": "insert", "ts": 1_700_000_000, "xid": number, "commit": True,
            "data": data}  # fmt: skip


def _packet(number: int) -> bytes:
    row = _canal(number)["data"][0]
    columns = [
        Column(index=at, name=name, mysql_type=kind, is_key=at == 0, value=row[name])
        for at, (name, kind) in enumerate(_TYPES.items())
    ]
    change = RowChange(event_kind=EventKind.INSERT, rows=[RowData(after_columns=columns)])
    header = Header(file="mysql-bin.000001", database="shop", table="orders", execute_time_ms=1_700_000_000_000)
    entry = Entry(header=header, kind=Entry.ROW_DATA, store_value=change.SerializeToString())
    body = Messages(batch_id=number, messages=[entry.SerializeToString()]).SerializeToString()
    return Packet(kind=Packet.MESSAGES, body=body).SerializeToString()


def _rows_of_packet(text: bytes) -> list[RowChange]:
    entries = map(Entry.FromString, Messages.FromString(Packet.FromString(text).body).messages)
    return [RowChange.FromString(entry.store_value) for entry in entries]


_CONNECT = {  # of the columns, as Debezium's connector describes them
    "id": ("int64", None, {}), "customer_id": ("int32", None, {}), "status": ("string", None, {}),
    "priority": ("int16", None, {}),
    "amount": ("bytes", "org.apache.kafka.connect.data.Decimal", {"scale": "2", "connect.decimal.precision": "12"}),
    "note": ("string", None, {}), "day": ("int32", "io.debezium.time.Date", {}),
    "ordered_at": ("int64", "io.debezium.time.Timestamp", {}),
    "changed_at": ("string", "io.debezium.time.ZonedTimestamp", {}), "weight": ("double", None, {}),
}  # fmt: skip


class _AvroWriter:
    """Writes the change events as Avro."""

    def __init__(self) -> None:
        fields = [
            {"field": name, "type": kind, "name": logical, "parameters": given, "optional": name != "id"}
            for name, (kind, logical, given) in _CONNECT.items()
        ]
        images = [{"type": "struct", "fields": fields, "optional": True, "field": name} for name in ("before", "after")]
        kinds = {int: "int64", str: "string", type(None): "string"}
        source = [
            {"field": name, "type": kinds[type(value)], "optional": value is None}
            for name, value in _debezium(0)["source"].items()
        ]
        names = {"op": "string", "ts_ms": "int64"}
        rest = [{"field": name, "type": kind} for name, kind in names.items()]
        self._connect = {
            "type": "struct", "fields": [*images, {"field": "source", "type": "struct", "fields": source}, *rest]
        }  # fmt: skip
        self.schema = avro_schema(self._connect)

    def __call__(self, number: int) -> bytes:
        return avro_message(1, self.schema, avro_value(self._connect, _debezium(number)))


def _measure(
    name: str, decoder: Format, message: Callable[[int], bytes], library: Callable[[bytes], object] | None = None
) -> None:
    """``library``: decodes a message to objects, for comparison."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the figures are those of one core
    texts = [message(number) for number in range(_BLOCK_MESSAGES)]
    block = _block(texts)
    found = decoder.decode(block)  # compiles
    if found.faults or [table.rows.num_rows for table in found.tables] != [_BLOCK_MESSAGES]:
        raise SystemExit(f"{name}: the messages were not decoded: {found.faults[:1]}")
    ids = found.tables[0].rows["id"].to_pylist()
    if ids != list(range(_BLOCK_MESSAGES)) or any(column.null_count for column in found.tables[0].rows.columns):
        raise SystemExit(f"{name}: the decoded rows are not those of the messages.")
    cpu = []
    for _ in range(_REPEATS):
        began = time.process_time()
        for _ in range(_ROUNDS):
            decoder.decode(block)
        cpu.append((time.process_time() - began) / (_ROUNDS * _BLOCK_MESSAGES))
    parse = library or json.loads
    began = time.process_time()
    for text in texts[:_LIBRARY_MESSAGES]:
        parse(text)
    rate = round(_LIBRARY_MESSAGES / (time.process_time() - began))
    report(
        name, 1 / statistics.median(cpu), "rows/s", goal=_GOALS.get(name, _GOAL), checked="count of rows, keys",
        data={"rows": _ROUNDS * _BLOCK_MESSAGES, "columns": len(_TYPES),
              "bytes_per_message": sum(map(len, texts)) // len(texts)},
        values=[round(1 / each, 1) for each in cpu], cpu_s_per_million=round(statistics.median(cpu) * 1e6, 3),
        baselines={"one object per message, parsing alone": rate},
    )  # fmt: skip


def decode(_: Options) -> None:
    """Measure each format. The rates are rows per second of CPU time."""
    tables = _Orders()
    _measure("kafka.decode.canal_json", CanalJson(tables), lambda number: _text(_canal(number)))
    _measure("kafka.decode.canal", CanalProtobuf(tables), _packet, _rows_of_packet)
    modes = DebeziumModes()
    _measure("kafka.decode.debezium_json", DebeziumJson(tables, modes=modes), lambda number: _text(_debezium(number)))
    _measure("kafka.decode.maxwell", Maxwell(tables), lambda number: _text(_maxwell(number)))
    writer = _AvroWriter()
    with RegistryEmulator() as registry:
        registry.schemas[1] = writer.schema
        parsed = fastavro.parse_schema(writer.schema)
        _measure(
            "kafka.decode.debezium_avro", DebeziumAvro(tables, SchemaRegistry(registry.url)), writer,
            lambda text: fastavro.schemaless_reader(io.BytesIO(text[5:]), parsed, None),
        )  # fmt: skip


class _Sums:
    """What a reader has read: numbers, bytes and the sum of offsets."""

    def __init__(self) -> None:
        self.messages = self.bytes = self.offsets = 0

    def add(self, sizes: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        """Add the messages of a block."""
        self.messages += len(sizes)
        self.bytes += int(sizes.sum())
        self.offsets += int(offsets.sum())


def _by_buffer(settings: KafkaSettings, count: int) -> _Sums:
    sums = _Sums()
    with Cluster(settings) as cluster:
        reader = MessageReader(settings, cluster, 256 << 20)
        reader.assign({(settings.topics[0], 0): PartitionOffset(0)})
        while sums.messages < count:
            for block in reader.read(0.1).blocks:
                sums.add(block.value_size, block.offset)
        reader.close()
    return sums


def _by_objects(settings: KafkaSettings, count: int) -> _Sums:
    sums = _Sums()
    consumer = Consumer({"bootstrap.servers": settings.brokers[0], "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(settings.topics[0], 0, 0)])
    while sums.messages < count:
        messages = consumer.consume(MESSAGES, 0.1)
        values = [message.value() or b"" for message in messages]
        joined = np.frombuffer(b"".join(values) + bytes(PADDING), np.uint8)
        assert len(joined)
        offsets = np.fromiter((message.offset() or 0 for message in messages), np.int64, len(messages))
        sums.add(np.fromiter(map(len, values), np.int64, len(values)), offsets)
    consumer.close()
    return sums


def read(options: Options) -> None:
    """Measure reading from a broker on this machine. The rates are messages per second of this process's CPU time."""
    count = options.rows
    text = json.dumps(_canal(1), separators=(",", ":")).encode()
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(obtain_kafka(), Path(folder) / "kafka") as broker:
        topic = broker.create("messages")
        producer = broker.producer(linger_ms=50, compression_type="lz4", queue_buffering_max_messages=10**6)
        for _ in range(count):
            producer.produce(topic, text, partition=0)
            producer.poll(0)
        if producer.flush(120):
            raise SystemExit("kafka.read: the messages could not be sent.")
        settings = KafkaSettings((broker.address,), (topic,), "g")
        spent: dict[str, list[float]] = {"buffer": [], "objects": []}
        _by_buffer(settings, 1)  # compiles
        for _ in range(3):
            for name, way in (("buffer", _by_buffer), ("objects", _by_objects)):
                began = time.process_time()
                sums = way(settings, count)
                spent[name].append((time.process_time() - began) / count)
                if (sums.messages, sums.bytes, sums.offsets) != (count, count * len(text), count * (count - 1) // 2):
                    raise SystemExit(f"kafka.read: {name} has read other messages.")
    median = {name: statistics.median(each) for name, each in spent.items()}
    report(
        "kafka.read", 1 / median["buffer"], "messages/s", goal="1,000,000 messages/s, target 1,700,000",
        checked="count, bytes, offsets", data={"messages": count, "bytes_per_message": len(text), "compression": "lz4"},
        values=[round(1 / each, 1) for each in spent["buffer"]],
        cpu_s_per_million=round(median["buffer"] * 1e6, 3),
        baselines={"one object per message (confluent-kafka's consume)": round(1 / median["objects"])},
    )  # fmt: skip


CASES = (
    Case("kafka.decode", decode, runs=1),  # each figure is the median of nine
    Case("kafka.read", read, Options(rows=600_000), quick_rows=100_000, runs=1),  # the median of three
    Case("kafka.catch_up", catch_up, Options(rows=5_000_000), 200_000),
    Case("kafka.catch_up_executors", partial(catch_up, read="executors"), Options(rows=5_000_000), 200_000),
    Case("kafka.freshness", freshness, Options(rows=1_000_000), 20_000, runs=1),
    Case("kafka.freshness_executors", partial(freshness, read="executors"), Options(rows=1_000_000), 20_000, runs=1),
    Case("kafka.many_topics", many_topics, runs=1),
    Case("kafka.many_topics_executors", partial(many_topics, read="executors"), runs=1),
)
