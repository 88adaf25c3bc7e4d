"""What the reader makes of the errors that arrive between messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from confluent_kafka import KafkaError

from cdc.errors import DecodeError, SourceUnavailable
from cdc.model.kafka_position import PartitionOffset
from cdc.sources.base import RangeTables
from cdc.sources.kafka.batches import OrderRules
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.formats.plain_json import PlainJson
from cdc.sources.kafka.range_reader import KafkaRangeReader, RangeEnded, ReadTables, _Reading
from cdc.sources.kafka.reader import MessageReader
from tests.support.kafka_messages import MappedTables

SETTINGS = KafkaSettings(("localhost:1",), ("orders",), "test")


@dataclass
class Arrived:
    """Messages and errors of partition 0, as librdkafka delivers them: pairs of error code and offset."""

    pairs: list[tuple[int, int]]

    def __post_init__(self):
        count = len(self.pairs)
        self.error = np.array([code for code, _ in self.pairs], np.int32)
        self.offset = np.array([offset for _, offset in self.pairs], np.int64)
        self.topic, self.partition = np.ones(count, np.int64), np.zeros(count, np.int32)
        self.value_size, self.key_size = np.zeros(count, np.int64), np.full(count, -1, np.int64)
        self.timestamp_ms = np.full(count, -1, np.int64)

    def topic_name(self, number):
        return "orders"

    def epoch(self, number):
        return 0

    def reported(self, number):
        return KafkaError(int(self.error[number]), "failed CRC32C check")

    def copy(self, *_):
        pass

    def free(self):
        pass


class Consumer:
    """A librdkafka that delivers what arrives, once."""

    def __init__(self, *pairs):
        self.arrived = [Arrived(list(pairs))]

    def read(self, timeout_s):
        return self.arrived.pop(0) if self.arrived else Arrived([])

    def assign(self, offsets):
        pass

    def close(self):
        pass


@pytest.fixture
def reader():
    with Cluster(SETTINGS) as cluster:
        found = MessageReader(SETTINGS, cluster, 0)
        found._consumer.close()
        yield found
        found.close()


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED])
def test_messages_that_librdkafka_leaves_out_are_an_error(reader, code):
    reader._consumer = Consumer((0, 4), (code, 5), (0, 9), (KafkaError._TRANSPORT, -1))
    error = reader.read(0).error
    assert isinstance(error, DecodeError)
    assert error.context == {"topic": "orders", "partition": 0, "offset": 5}


def test_lost_connection_is_no_final_error(reader):
    reader._consumer = Consumer((0, 4), (KafkaError._TRANSPORT, -1))
    assert isinstance(reader.read(0).error, SourceUnavailable)


def test_messages_that_librdkafka_leaves_out_end_the_range_of_an_executor(reader):
    reader._consumer = Consumer((KafkaError._BAD_MSG, 5), (0, 9))
    one, tables = ("orders", 0), MappedTables()
    plan = KafkaRangeReader(
        SETTINGS, PlainJson, ReadTables(tables, RangeTables(())), {one: PartitionOffset(5)}, {one: 10}, OrderRules(),
        frozenset(), frozenset(), {}, 0,
    )  # fmt: skip
    with pytest.raises(RangeEnded, match="CRC32C"):
        list(_Reading(plan).batches(reader))


def test_error_of_a_partition_names_the_partition(reader):
    reader._consumer = Consumer((0, 4), (KafkaError.UNKNOWN, -1))
    assert list(reader.read(0).failed) == [("orders", 0)]
