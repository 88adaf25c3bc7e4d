"""Reads in which messages and lost offsets of a partition arrive together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cdc.errors import PositionLost
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.sources.kafka.batches import BatchMaker, OrderRules
from cdc.sources.kafka.cluster import KafkaSettings
from cdc.sources.kafka.continuity import Accepted
from cdc.sources.kafka.layouts import Layouts
from cdc.sources.kafka.reader import ReadMessages
from cdc.sources.kafka.stream import KafkaStream, StreamStart
from cdc.sources.schema_history import SchemaHistory
from cdc.sources.window import Window
from tests.support.kafka_receivers import RowsOfTests, block_of, row
from tests.support.receiving import Mapped

PARTITION = ("o", 0)
START = KafkaPosition.of("c", {"o": "id"}, {PARTITION: PartitionOffset(0)})


class Reader:
    """Delivers one read: the messages 0 and 1, and then the report that offset 2 is not in the log."""

    def __init__(self) -> None:
        self.added: list[tuple[object, PartitionOffset]] = []

    def read(self, _: float) -> ReadMessages:
        return ReadMessages(blocks=[block_of((0, 0, row(1)), (0, 1, row(2)))], lost=[PARTITION])

    def add(self, partition: object, offset: PartitionOffset) -> None:
        self.added.append((partition, offset))


def stream_of(accepted: Accepted) -> tuple[KafkaStream, Reader]:
    mapped: Any = Mapped("shop")
    decoder: Any = RowsOfTests()
    maker = BatchMaker(decoder, mapped, Layouts(SchemaHistory(mapped, None), mapped, {}), OrderRules())
    maker.begin(START, START)
    settings = KafkaSettings(("localhost:1",), ("o",), "test")
    stream = KafkaStream(settings, StreamStart(START), maker, Window(1 << 20), accepted=accepted, window_bytes=1)
    logs: Any = SimpleNamespace(first_offsets=lambda _: {PARTITION: 9}, written=lambda _: {PARTITION: 20})
    reader: Any = Reader()
    stream._cluster, stream._reader, stream._assigned = logs, reader, {PARTITION}
    return stream, reader


def ends(stream: KafkaStream) -> list[tuple[int, int]]:
    """Return rows and next offset of each waiting Batch."""
    found = []
    while (batch := stream.window.get(0)) is not None:
        assert isinstance(batch.last, KafkaPosition)
        found.append((batch.rows, batch.last.offsets[PARTITION].next))
    return found


def test_lost_offset_after_messages_moves_the_position_after_them() -> None:
    stream, reader = stream_of(Accepted(gap=True))
    stream._deliver(stream._read())
    assert ends(stream) == [(2, 2), (0, 9)]
    assert stream.offsets[PARTITION].next == 9 and reader.added == [(PARTITION, PartitionOffset(9))]


def test_lost_offset_that_is_not_accepted_delivers_the_messages_before() -> None:
    stream, _ = stream_of(Accepted())
    with pytest.raises(PositionLost, match="offset 2 is gone"):
        stream._deliver(stream._read())
    assert ends(stream) == [(2, 2)] and stream.offsets[PARTITION].next == 2
