"""A replay of kept messages without a broker: blocks end anywhere between a delete event and its tombstone."""

from __future__ import annotations

import base64
import json
import threading

import pytest

from cdc.errors import DecodeError
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.model.kept_messages import KeptMessages
from cdc.sources.kafka.bad_messages import BadFile
from cdc.sources.kafka.bad_replay import BadReplay
from cdc.sources.kafka.batches import BatchMaker, OrderRules
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.formats.debezium_types import DebeziumModes
from cdc.sources.kafka.formats.fields import schema_of_types
from cdc.sources.kafka.layouts import Layouts
from cdc.sources.schema_history import SchemaHistory
from tests.support.kafka_messages import MappedTables, block_of

TOPIC = "srv.s.t"
SCHEMA = schema_of_types("s", "t", {"id": "bigint not null", "v": "text"}, ("id",))


def event(op, key):
    row = {"id": key, "v": "a"}
    images = {"before": row if op == "d" else None, "after": None if op == "d" else row}
    return json.dumps({**images, "source": {"db": "s", "table": "t", "ts_ms": 1}, "op": op})


class ClusterOfTests:
    def first_offsets(self, partitions):
        return dict.fromkeys(partitions, 0)


class KeptOfTests:
    def load(self, kept):
        message = {
            "topic": TOPIC, "partition": 0, "offset": 100, "timestamp_ms": 1, "table": "s.t", "reason": "", "key": None,
            "value": base64.b64encode(event("c", 1).encode()).decode(),
        }  # fmt: skip
        return [BadFile(TOPIC, "id", {0: 100}, (message,))]


def replay_of(*blocks):
    tables = MappedTables(schemas=(SCHEMA,))
    history = SchemaHistory(tables, None)
    history.begin(())
    maker = BatchMaker(
        DebeziumJson(tables, modes=DebeziumModes()), tables, Layouts(history, tables, {}), OrderRules()
    )  # fmt: skip
    at = KafkaPosition.of(
        "c", {TOPIC: "id"}, {(TOPIC, 0): PartitionOffset(200)}, kept=KeptMessages(tables=(("s.t", 1),))
    )
    maker.begin(at, at)

    class Replay(BadReplay):
        def _read(self, spans):
            assert spans == {(TOPIC, 0): (100, 200)}
            yield from blocks

    return Replay(
        None, ClusterOfTests(), maker, KeptOfTests(), window_bytes=1, accepts_gap=False, stopping=threading.Event()
    )


def block(first_offset, *values):
    return block_of([*values], [b"Struct{id=1}"] * len(values), TOPIC, first_offset)


def test_unusable_tombstone_at_the_start_of_a_block_continues_a_replay():
    found = [*replay_of(block(100, event("c", 1), event("d", 1)), block(102, None)).batches()]
    assert sum(batch.rows for batch in found) == 2 and found[-1].ends_transaction


def test_unusable_tombstone_after_a_gap_stops_a_replay():
    with pytest.raises(DecodeError, match="may have a newer row: it is a tombstone"):
        list(replay_of(block(100, event("c", 1), event("d", 1)), block(105, None)).batches())
