"""Positions in Kafka: partial order, JSON, text."""

import json
from dataclasses import replace

import pytest

from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.model.kept_messages import KeptMessages
from cdc.model.position import BinlogPosition, position_from_json
from cdc.state.codec import from_json, to_json


def at(*, cluster="c", ids=None, statement="", **topics):
    """``at(orders=[5, 7])`` is a position in a topic with two partitions; None leaves one out."""
    offsets = {
        (name, number): PartitionOffset(next_, 3, 1000)
        for name, partitions in topics.items()
        for number, next_ in enumerate(partitions)
        if next_ is not None
    }
    return KafkaPosition.of(cluster, ids or dict.fromkeys(topics, "id"), offsets, statement)


def test_position_reaches_another_only_in_every_partition():
    low, left, right, high = at(o=[1, 1]), at(o=[5, 1]), at(o=[1, 5]), at(o=[5, 5])
    assert all(each.reached(low) and high.reached(each) for each in (low, left, right, high))
    assert not left.reached(right) and not right.reached(left)
    assert not low.reached(left)


def test_position_without_a_partition_is_before_one_with_it():
    assert at(o=[1, 0]).reached(at(o=[1])) and not at(o=[1]).reached(at(o=[1, 0]))
    assert at(o=[1], p=[0]).reached(at(o=[1])) and not at(o=[9]).reached(at(o=[1], p=[0]))


def test_position_of_another_source_cannot_be_compared():
    for other in (at(o=[1], cluster="d"), at(o=[1], ids={"o": "new"}), BinlogPosition("a.1", 4)):
        with pytest.raises(ValueError, match=r"different sources|created again"):
            at(o=[1]).reached(other)


def test_position_survives_json():
    position = at(o=[1, None, 3], p=[7], statement="o:2")
    assert position_from_json(json.loads(json.dumps(position.to_json()))) == position
    assert position.to_json()["topics"]["o"] == {"id": "id", "partitions": {"0": [1, 3, 1000], "2": [3, 3, 1000]}}


def test_kept_messages_survive_json_and_a_replay_is_another_position():
    kept = KeptMessages(2, 7, (("", 1), ("shop.orders", 3)), ((100, 4), (7, 0)))
    position = replace(at(o=[1]), kept=kept)
    again = position_from_json(json.loads(json.dumps(position.to_json())))
    assert again.kept.to_json() == kept.to_json() == from_json(KafkaPosition, to_json(position)).kept.to_json()
    assert position == replace(position, kept=KeptMessages(2)) != at(o=[1]) and kept.count == 4
    assert position.reached(at(o=[1])) and not at(o=[1]).reached(position)
    assert "kept" not in at(o=[1]).to_json()


def test_position_equality_ignores_epoch_and_time():
    one = KafkaPosition.of("c", {"o": "id"}, {("o", 0): PartitionOffset(1, 5, 9)})
    assert one == at(o=[1]) and hash(one) == hash(at(o=[1]))
    assert at(o=[1], statement="o:0") != at(o=[1])


def test_position_text_lists_topics_and_partitions():
    assert str(at(orders=[1234, 88], b=[1])) == "b[0:1] orders[0:1234 1:88]"
    assert str(at()) == "no topics"
