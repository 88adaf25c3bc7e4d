"""The format of messages is recognised by their content."""

from __future__ import annotations

import pytest

from cdc.sources.canal.protocol_pb2 import Messages, Packet
from cdc.sources.kafka.formats.guess import guess_format
from tests.support.kafka_messages import block_of

PACKET = Packet(kind=Packet.MESSAGES, body=Messages(batch_id=1).SerializeToString()).SerializeToString()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"data": [{"id": "1"}], "database": "s", "table": "t", "type": "INSERT", "isDdl": False}, "canal-json"),
        ({"data": None, "database": "s", "table": "t", "type": "ALTER", "isDdl": True}, "canal-json"),
        ({"data": {"id": 1}, "database": "s", "table": "t", "type": "insert", "ts": 1}, "maxwell"),
        ({"before": None, "after": {"id": 1}, "op": "c"}, "debezium-json"),
        ({"schema": {}, "payload": {"after": None, "before": {"id": 1}, "op": "d"}}, "debezium-json"),
        (b"\0\0\0\0\x07\2", "debezium-avro"),
        (PACKET, "canal"),
        ({"id": 1, "schema": 2}, "json"),
        ("1;2;3", "csv"),
        ("5", "csv"),
        (b"\xff\xfe", "csv"),
        ("[" * 100_000, "csv"),
    ],
)
def test_guess_format_by_one_message(value, expected):
    assert guess_format(block_of([None, value, b""])) == expected


def test_guess_format_takes_the_most_frequent_one():
    assert guess_format(block_of(["a", {"id": 1}, {"id": 2}])) == "json"
    assert guess_format(block_of([None, b""])) is None
