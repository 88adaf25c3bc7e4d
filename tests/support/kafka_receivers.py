"""A message format for tests of the Kafka source: one JSON row per message, in table ``shop.orders``."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa

from cdc.model.schema import DELETED, Column, Kind, TableSchema
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.formats.base import DdlMessage, Decoded, DecodedRows, Fault
from cdc.sources.kafka.messages import PADDING, MessageBlock
from cdc.sources.kafka.receiver import KafkaReceiver
from cdc.sources.kafka.start import KafkaStart, resolve

ID = Column("id", Kind.BIGINT, "bigint", nullable=False)
NOTE = Column("note", Kind.VARCHAR, "varchar(100)", length=100, charset="utf8mb4")
EXTRA = Column("extra", Kind.INT, "int")


def schema_of(*columns):
    return TableSchema("shop", "orders", columns, ("id",))


PLAIN, WIDE = schema_of(ID, NOTE), schema_of(ID, NOTE, EXTRA)


class RowsOfTests:
    """``{"id": 1, "note": "a"}`` is a row; with ``extra`` it has another layout, with ``deleted`` it is a delete,
    with ``moved`` half of a changed key, ``{"sql": ...}`` is a statement; other text is a fault.
    """

    def __init__(self, tables=None):
        self.invalid_dates = Counter()

    def decode(self, block):
        rows, faults, statements = {}, [], []
        for number, (at, size) in enumerate(zip(block.value_at, block.value_size, strict=True)):
            if size < 0:
                continue
            text = block.data[at : at + size].tobytes()
            try:
                row = json.loads(text)
            except ValueError:
                faults.append(Fault(number, "it is not JSON"))
                continue
            if "sql" in row:
                statements.append(DdlMessage(number, "shop", "orders", row["sql"]))
            else:
                rows.setdefault("extra" in row, []).append((number, row))
        tables = tuple(self._table(WIDE if wide else PLAIN, found) for wide, found in rows.items())
        return Decoded(tables, tuple(faults), tuple(statements), np.full(len(block.offset), -1, np.int64))

    def _table(self, schema, rows):
        columns = [pa.array([row.get(one.name) for _, row in rows], one.arrow) for one in schema.columns]
        fields = [pa.field(one.name, one.arrow) for one in schema.columns]
        batch = pa.RecordBatch.from_arrays(
            [*columns, pa.array([bool(row.get("deleted")) for _, row in rows])],
            schema=pa.schema([*fields, pa.field(DELETED, pa.bool_(), nullable=False)]),
        )
        numbers = np.array([number for number, _ in rows], np.int32)
        return DecodedRows(schema, batch, numbers, np.array([bool(row.get("moved")) for _, row in rows]))


def row(id_, **values):
    return json.dumps({"id": id_, "note": f"n{id_}", **values})


def rows(*ids):
    return [row(id_) for id_ in ids]


def settings(broker, *topics, **options):
    return KafkaSettings((broker.address,), topics, options.pop("group", "test"), **options)


def start_at(broker, *topics, word="earliest"):
    with Cluster(settings(broker, *topics)) as cluster:
        return resolve(cluster, KafkaStart(word))


def receiver_of(broker, table_filter, *topics, settings_of=None, **options):
    options.setdefault("refresh_s", 0.3)
    return KafkaReceiver(settings(broker, *topics, **(settings_of or {})), RowsOfTests(), table_filter, **options)


def block_of(*messages, topic="o", times=1000):
    """Messages as (partition, offset, text)."""
    texts = [text.encode() for _, _, text in messages]
    sizes = np.array([len(one) for one in texts], np.int64)
    at = np.cumsum(sizes) - sizes
    count = len(messages)
    return MessageBlock(
        topic,
        np.frombuffer(b"".join(texts) + bytes(PADDING), np.uint8),
        at,
        sizes,
        at,
        np.full(count, -1, np.int64),
        np.array([one for one, _, _ in messages], np.int32),
        np.array([one for _, one, _ in messages], np.int64),
        np.full(count, times, np.int64),
    )
