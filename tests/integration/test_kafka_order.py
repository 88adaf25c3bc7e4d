"""The rules of order on a real broker: each breach pauses by name, and what is in order is not stopped."""

import json

import pytest

from cdc.errors import SourceActionRequired
from cdc.sources.kafka.batches import OrderRules
from cdc.sources.kafka.formats.canal_json import CanalJson
from cdc.sources.kafka.receiver import KafkaReceiver
from tests.model.kafka import DescribedTables
from tests.support.kafka_receivers import receiver_of, row, rows, settings, start_at
from tests.support.receiving import Collector, Mapped

SHOP = Mapped("shop")
CANAL = OrderRules(moves_key_changes=True)


@pytest.fixture
def opened(kafka):
    """Open receivers, and close them afterwards. ``form``: of the messages; default: the one of tests."""
    receivers = []

    def open_(*topics, form=None, **options):
        if form is None:
            receiver = receiver_of(kafka, SHOP, *topics, **options)
        else:
            receiver = KafkaReceiver(settings(kafka, *topics), form, SHOP, refresh_s=0.3, **options)
        receivers.append(receiver)
        receiver.open(start_at(kafka, *topics), (), 0)
        return receiver

    yield open_
    for receiver in receivers:
        receiver.close()


def fails(receiver):
    collector = Collector(receiver)
    with pytest.raises(SourceActionRequired) as raised:
        collector.collect(lambda _: False)
    return collector.values(), raised.value


def test_key_in_two_topics_of_one_partition_pauses(kafka, topic, opened):
    for name in (f"{topic}_a", f"{topic}_b"):
        kafka.create(name)
    kafka.send(f"{topic}_a", *rows(1, 2))
    receiver = opened(f"{topic}_a", f"{topic}_b")
    assert Collector(receiver).collect_rows(2).values() == [1, 2]
    kafka.send(f"{topic}_b", *rows(3))
    assert Collector(receiver).collect_rows(1).values() == [3]
    kafka.send(f"{topic}_a", *rows(3))
    found, error = fails(receiver)
    assert found == [] and "one key of shop.orders" in error.message and "topics" in error.message
    assert (error.context["topic"], error.context["offset"]) == (f"{topic}_a", 2)
    assert "one_partition_per_key" in error.hint


def test_repeated_messages_are_applied_again_in_order(kafka, topic, opened):
    kafka.create(topic, 2)
    sent = [row(1, note="a"), row(2, note="b"), row(1, note="c"), row(2, deleted=True)]
    kafka.send(topic, *sent, *sent[1:], row(1, note="d"), partition=1)  # the producer was killed, and repeats
    collected = Collector(opened(topic, rules=CANAL)).collect_rows(8)
    assert [one["note"] for one in collected.rows if one["id"] == 1] == ["a", "c", "c", "d"]
    assert collected.sequences == sorted({*collected.sequences})


def update(old, new):
    """A message of Canal whose update changes the key."""
    return json.dumps({
        "data": [{"id": str(new), "note": "n"}], "old": [{"id": str(old)}], "type": "UPDATE", "database": "shop",
        "table": "orders", "isDdl": False, "mysqlType": {"id": "bigint", "note": "varchar(100)"}, "pkNames": ["id"],
    })  # fmt: skip


def test_key_change_of_canal_pauses_with_several_partitions_only(kafka, topic, opened):
    kafka.create(topic, 2)
    kafka.send(topic, update(1, 1), update(1, 2), partition=1)
    form = CanalJson(DescribedTables(SHOP))
    found, error = fails(opened(topic, form=form, rules=CANAL))
    assert found == [1] and "changes the key of a row of shop.orders" in error.message
    assert (error.context["partition"], error.context["offset"]) == (1, 1) and "key_changes: apply" in error.hint
    applied = OrderRules(moves_key_changes=True, applies_key_changes=True)
    assert Collector(opened(topic, form=form, rules=applied)).collect_rows(3).values() == [1, 1, 2]
    kafka.create(f"{topic}_one")
    kafka.send(f"{topic}_one", update(1, 2))
    assert Collector(opened(f"{topic}_one", form=form, rules=CANAL)).collect_rows(2).values() == [1, 2]


def test_added_partition_is_read_after_the_old_end_while_messages_arrive(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(*range(20)))
    receiver = opened(topic, rules=CANAL)
    first = Collector(receiver).collect_rows(20)
    kafka.add_partitions(topic, 2)
    kafka.send(topic, *[row(one, note="moved") for one in range(0, 20, 2)], partition=1)
    kafka.send(topic, *[row(one, note="stayed") for one in range(1, 20, 2)], partition=0)
    rest = Collector(receiver)
    rest.collect(lambda one: len([row for row in one.rows if row["note"] == "stayed"]) == 10)
    assert {one["note"] for one in rest.rows} == {"stayed"}  # the first rows are not committed yet
    receiver.ack(first.batches[-1].last)
    receiver.ack(rest.batches[-1].last)
    rest.collect_rows(20)
    assert {key: one["note"] for key, one in rest.table().items()} == {
        key: "stayed" if key % 2 else "moved" for key in range(20)
    }


def test_old_producer_that_uses_a_key_after_it_moved_pauses(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1, 2))
    receiver = opened(topic, rules=CANAL)
    Collector(receiver, acks=True).collect_rows(2)
    kafka.add_partitions(topic, 2)
    kafka.send(topic, row(1, note="moved"), partition=1)
    assert [one["note"] for one in Collector(receiver, acks=True).collect_rows(1).rows] == ["moved"]
    kafka.send(topic, row(2, note="here"), row(1, note="old"), partition=0)
    found, error = fails(receiver)
    assert found == [2] and (error.context["partition"], error.context["offset"]) == (0, 3)
