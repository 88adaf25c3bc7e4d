"""Messages of a real broker in one buffer: exact bytes, nulls, ends, lost offsets, refused properties, a lost broker."""

import time

import pytest

from cdc.errors import ConfigError
from cdc.model.kafka_position import PartitionOffset
from cdc.sources.kafka.cluster import Cluster
from cdc.sources.kafka.reader import MessageReader
from tests.support.kafka_receivers import settings
from tests.support.receiving import until


@pytest.fixture
def reader_of(kafka):
    """Create a reader of topics, which is closed at the end."""
    opened = []

    def create(*topics, **options):
        cluster = Cluster(settings(kafka, *topics, **options))
        reader = MessageReader(settings(kafka, *topics, **options), cluster, 0)
        opened.extend((reader, cluster))
        return reader

    yield create
    for each in opened:
        each.close()


def texts(block):
    """Return partition, offset, value and key of each message."""
    data = block.data.tobytes()

    def text(at, size):
        return None if size < 0 else data[at : at + size]

    return [
        (int(block.partition[n]), int(block.offset[n]), text(block.value_at[n], block.value_size[n]),
         text(block.key_at[n], block.key_size[n]))
        for n in range(len(block.offset))
    ]  # fmt: skip


def read_to(reader, ends):
    """Read until the ends of all partitions; return the messages by topic, the leader epochs, and what was lost."""
    found, epochs, seen, lost = {}, {}, {}, []
    deadline = time.monotonic() + 60
    while seen != ends and time.monotonic() < deadline:
        chunk = reader.read(0.1)
        for block in chunk.blocks:
            assert not block.data[int(block.value_size.clip(0).sum() + block.key_size.clip(0).sum()) :].any()
            found.setdefault(block.topic, []).extend(texts(block))
        epochs |= chunk.epochs
        seen |= chunk.ends
        lost += chunk.lost
    assert seen == ends
    return found, epochs, lost


def test_reader_copies_exact_bytes_of_several_topics(kafka, topic, reader_of):
    one, other = kafka.create(f"{topic}_1", 2), kafka.create(f"{topic}_2")
    large = bytes(range(256)) * 3000
    kafka.send(one, b"a", None, b"", large, key=b"k\0")
    kafka.send(one, "ü", partition=1)
    kafka.send(other, b"x", key=b"")
    began = time.time() * 1000
    reader = reader_of(one, other)
    reader.assign({(one, 0): PartitionOffset(1, 0), (one, 1): PartitionOffset(0), (other, 0): PartitionOffset(0)})
    found, epochs, _ = read_to(reader, {(one, 0): 4, (one, 1): 1, (other, 0): 1})
    assert sorted(found[one]) == [
        (0, 1, None, b"k\0"), (0, 2, b"", b"k\0"), (0, 3, large, b"k\0"), (1, 0, "ü".encode(), None),
    ]  # fmt: skip
    assert found[other] == [(0, 0, b"x", b"")] and epochs == {(one, 0): 0, (one, 1): 0, (other, 0): 0}
    kafka.send(one, b"later")
    blocks = []
    until(lambda: blocks.extend(reader.read(0.1).blocks) or blocks)
    assert texts(blocks[0]) == [(0, 4, b"later", None)] and abs(int(blocks[0].timestamp_ms[0]) - began) < 600_000


def test_reader_adds_and_removes_partitions_and_reports_lost_offsets(kafka, topic, reader_of):
    kafka.create(topic, 2)
    kafka.send(topic, b"a", b"b")
    kafka.send(topic, b"c", partition=1)
    reader = reader_of(topic)
    reader.assign({(topic, 0): PartitionOffset(0)})
    assert read_to(reader, {(topic, 0): 2})[0] == {topic: [(0, 0, b"a", None), (0, 1, b"b", None)]}
    reader.add((topic, 1), PartitionOffset(0))
    assert read_to(reader, {(topic, 1): 1})[0] == {topic: [(1, 0, b"c", None)]}
    lost = []
    reader.add((topic, 0), PartitionOffset(99))
    until(lambda: lost.extend(reader.read(0.1).lost) or lost)
    assert lost == [(topic, 0)]
    reader.add((topic, 0), PartitionOffset(1))
    reader.remove([(topic, 1)])
    kafka.send(topic, b"d", partition=1)
    assert read_to(reader, {(topic, 0): 2})[0] == {topic: [(0, 1, b"b", None)]}
    assert not any(reader.read(0.1).blocks for _ in range(5))


def test_reader_refuses_an_unknown_property(reader_of):
    with pytest.raises(ConfigError, match=r"no\.such") as caught:
        reader_of("t", properties={"no.such": "1"})
    assert "source.properties" in caught.value.hint
