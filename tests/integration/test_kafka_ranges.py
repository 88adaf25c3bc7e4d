"""Ranges of offsets on a real broker: what the driver plans, what executors read, and where the driver must decide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.errors import DdlStop, DecodeError, PositionLost, SourceActionRequired
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.model.schema import DELETED, SEQUENCE
from cdc.sources.base import RangePlanner, RangeRows, RangeTable, RangeTables
from cdc.sources.kafka.bad_messages import BadMessages
from cdc.sources.kafka.bad_window import BadLimits
from cdc.sources.kafka.batches import OrderRules
from cdc.sources.kafka.cluster import Cluster
from cdc.sources.kafka.continuity import Accepted
from cdc.sources.kafka.range_planner import ExecutorReads
from cdc.sources.kafka.range_reader import ReadTables
from tests.support.kafka_ranges import ORDERS, Tables, ended, next_range, offsets, read
from tests.support.kafka_receivers import RowsOfTests, receiver_of, row, rows, start_at
from tests.support.receiving import Collector, Mapped, until


@pytest.fixture
def opened(kafka):
    """Open receivers that plan ranges, and close them afterwards."""
    receivers = []

    def open_(*topics, sequence=0, start=None, **options):
        executors = ExecutorReads(RowsOfTests, Tables("shop"))
        receivers.append(receiver_of(kafka, Mapped("shop"), *topics, executors=executors, **options))
        receivers[-1].open(start if start is not None else start_at(kafka, *topics), (), sequence)
        assert isinstance(receivers[-1], RangePlanner) and receivers[-1].plans
        return receivers[-1]

    yield open_
    for receiver in receivers:
        receiver.close()


def test_range_is_read_exactly_and_a_second_read_is_the_same(kafka, topic, opened, monkeypatch):
    monkeypatch.setattr("cdc.sources.kafka.range_planner.SHARE_MESSAGES", 10)
    kafka.create(topic, 3)
    for number in range(3):
        kafka.send(topic, *rows(*range(100 * number, 100 * number + 40)), partition=number)
    kafka.send(topic, row(7, deleted=True), row(7, note="again"), None, partition=0)
    receiver = opened(topic)
    planned = next_range(receiver)
    kafka.send(topic, *rows(999), partition=1)  # after the range
    assert offsets(planned.last) == {0: 43, 1: 40, 2: 40} and planned.entries == 123
    first, again = (read(receiver, planned, sequence=500) for _ in range(2))
    by_key = [sorted(found, key=lambda one: (one["key"], one[SEQUENCE])) for found, _ in (first, again)]
    assert next([{**one, SEQUENCE: 0} for one in found] for found in by_key) == [
        {**one, SEQUENCE: 0} for one in by_key[1]
    ]
    assert [one["key"] for one in by_key[0]] == sorted([*range(40), 7, 7, *range(100, 140), *range(200, 240)])
    assert [(one["note"], one[DELETED]) for one in by_key[0] if one["key"] == 7] == [
        ("n7", False), ("n7", True), ("again", False),
    ]  # fmt: skip
    done = receiver.complete(planned, first[1])
    assert done.rows == {"shop.orders": RangeRows(121, 1, done.rows["shop.orders"].bytes)}
    assert done.batch.entries == 123 and done.batch.rows == 122 and done.batch.last == planned.last
    assert done.sequence == max(one[SEQUENCE] for one in first[0]) and min(one[SEQUENCE] for one in first[0]) == 501
    assert {one.epoch for one in done.batch.last.offsets.values()} == {0}
    receiver.ack(done.batch.last)
    following = next_range(receiver)
    assert following.first == planned.last and offsets(following.last) == {0: 43, 1: 41, 2: 40}
    assert [one["key"] for one in read(receiver, following)[0]] == [999]


def test_range_ends_after_control_records_and_omits_aborted_messages(kafka, topic, opened):
    kafka.create(topic)
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions()
    for first, end in ((0, producer.commit_transaction), (10, producer.abort_transaction), (20, None)):
        producer.begin_transaction()
        for value in rows(*range(first, first + 3)):
            producer.produce(topic, value)
        producer.flush()
        if end:
            end()
    receiver = opened(topic)
    planned = next_range(receiver)
    found, positions = read(receiver, planned)
    assert [one["key"] for one in found] == [0, 1, 2] and offsets(planned.last) == {0: 8}
    receiver.complete(planned, positions)
    until(lambda: receiver.status().is_at_end)
    producer.commit_transaction()
    planned = next_range(receiver)
    assert [one["key"] for one in read(receiver, planned)[0]] == [20, 21, 22] and offsets(planned.last) == {0: 12}


def test_range_is_limited_and_every_partition_gets_a_share(kafka, topic, opened):
    kafka.create(topic, 2)
    kafka.send(topic, *rows(*range(90)), partition=0)
    kafka.send(topic, row(1000), partition=1)
    receiver = opened(topic)
    planned = next_range(receiver, 10)
    assert offsets(planned.last) == {0: 9, 1: 1} and not receiver.status().is_at_end
    seen = 9
    while seen < 90:
        planned = next_range(receiver, 30)
        seen = offsets(planned.last)[0]
    until(lambda: receiver.status().is_at_end)


@pytest.mark.parametrize(
    ("messages", "reason", "error", "what"),
    [
        (("not json",), "it is not JSON", DecodeError, "cannot be loaded"),
        ((row(2, extra=5),), "has other columns: extra was missing", DdlStop, "columns of shop.orders changed"),
        (('{"sql": "ALTER TABLE orders ADD extra INT"}',), "a DDL statement", DdlStop, "ALTER"),
        (('{"id": null}',), "has NULL in a key", DecodeError, "of the key is NULL"),
        ((row(5, moved=True),), "has an update of a key", SourceActionRequired, "changes the key"),
    ],
)
def test_driver_decides_where_executors_end_a_range(kafka, topic, opened, messages, reason, error, what):
    kafka.create(topic, 2)
    kafka.send(topic, *rows(0))
    receiver = opened(topic, rules=OrderRules(moves_key_changes=True))
    planned = next_range(receiver)
    assert ended(read(receiver, planned, RangeTables(()))[1]) == f"{topic}[0]:0: shop.orders is not loaded yet"
    receiver.deliver(planned)  # now the columns are known
    known = Collector(receiver, acks=True).collect_rows(1).batches[-1].changes[0].schema
    tables = RangeTables((RangeTable(known, 0, {"id": "id"}),))
    kafka.send(topic, *rows(1), *messages, *rows(3))
    planned = next_range(receiver)
    for is_only in (False, True):  # the message may be of a table that only a further reader decodes
        assert reason in ended(read(receiver, planned, replace(tables, is_only=is_only))[1])
    receiver.deliver(planned)
    collector = Collector(receiver)
    with pytest.raises(error, match=what):
        collector.collect(lambda _: False)
    assert collector.values() == [1] and offsets(collector.batches[-1].last) == {0: 2, 1: 0}


def test_key_in_partitions_of_two_readers_is_found_by_the_driver(kafka, topic, opened, monkeypatch):
    monkeypatch.setattr("cdc.sources.kafka.range_planner.SHARE_MESSAGES", 1)
    kafka.create(topic, 2)
    kafka.send(topic, *rows(0, 1, 2), partition=0)
    receiver = opened(topic)
    planned = next_range(receiver)
    done = receiver.complete(planned, read(receiver, planned)[1])
    receiver.ack(done.batch.last)
    kafka.send(topic, *rows(10, 11), partition=0)
    kafka.send(topic, *rows(20, 2), partition=1)  # 2 was in partition 0
    planned = next_range(receiver)
    found, positions = read(receiver, planned)
    assert len(found) == 4 and len(positions) == 2
    assert receiver.complete(planned, positions) is None
    receiver.deliver(planned)
    with pytest.raises(SourceActionRequired, match="several partitions") as raised:
        Collector(receiver).collect(lambda _: False)
    assert (raised.value.context["partition"], raised.value.context["offset"]) == (1, 1)


def test_bad_message_is_kept_by_the_driver_and_ranges_count_in_its_window(kafka, topic, opened, tmp_path):
    kafka.create(topic)
    kafka.send(topic, *rows(0), "not json", *rows(1))
    bad = BadMessages(tmp_path / "bad/job", BadLimits(1, 1000, 1.0))
    receiver = opened(topic, bad=bad)
    planned = next_range(receiver)
    assert "it is not JSON" in ended(read(receiver, planned)[1])
    receiver.deliver(planned)
    collector = Collector(receiver, acks=True).collect_rows(2)
    kept = collector.batches[-1].last.kept
    assert collector.values() == [0, 1] and (kept.count, kept.window) == (1, ((3, 1),))
    kafka.send(topic, *rows(*range(10, 60)))
    planned = next_range(receiver, 10_000)
    done = receiver.complete(planned, read(receiver, planned)[1])
    kept = done.batch.last.kept
    assert (kept.count, sum(messages for messages, _ in kept.window)) == (1, 53)
    receiver.ack(done.batch.last)
    kafka.send(topic, "again")
    receiver.deliver(next_range(receiver))
    with pytest.raises(DecodeError, match="cannot be loaded") as raised:
        Collector(receiver).collect(lambda _: False)
    assert raised.value.context["offset"] == 53


def test_table_in_a_second_topic_is_read_by_the_driver_once(kafka, topic, opened):
    names = [f"{topic}_{number}" for number in range(2)]
    for name in names:
        kafka.create(name)
    kafka.send(names[0], *rows(0, 1))
    receiver = opened(*names)
    planned = next_range(receiver)
    receiver.ack(receiver.complete(planned, read(receiver, planned)[1]).batch.last)
    kafka.send(names[1], *rows(5))
    planned = next_range(receiver)
    positions = read(receiver, planned)[1]
    assert receiver.complete(planned, positions) is None
    receiver.deliver(planned)
    Collector(receiver, acks=True).collect_rows(1)
    kafka.send(names[0], *rows(5))  # the key was in the other topic
    planned = next_range(receiver)
    assert receiver.complete(planned, read(receiver, planned)[1]) is None
    receiver.deliver(planned)
    with pytest.raises(SourceActionRequired, match="several partitions"):
        Collector(receiver).collect(lambda _: False)


def test_new_partition_is_no_part_of_a_range_until_it_joins(kafka, topic, opened):
    kafka.create(topic, 1)
    kafka.send(topic, *rows(0, 1))
    receiver = opened(topic)
    planned = next_range(receiver)
    receiver.ack(receiver.complete(planned, read(receiver, planned)[1]).batch.last)
    kafka.add_partitions(topic, 2)
    kafka.send(topic, *rows(7), partition=1)
    batches = []
    until(lambda: (batch := receiver.get(0.1)) is not None and (batches.append(batch) or True))
    assert not batches[0].is_planned and offsets(batches[0].last) == {0: 2, 1: 0}
    receiver.ack(batches[0].last)
    assert [one["key"] for one in read(receiver, next_range(receiver))[0]] == [7]


def test_new_partition_joins_although_the_driver_reads_each_range(kafka, topic, opened):
    """Each such range ends a stream, and messages have arrived before the next stream finds the new partition."""
    kafka.create(topic, 1)
    kafka.send(topic, *rows(0))
    receiver = opened(topic)
    kafka.add_partitions(topic, 2)
    kafka.send(topic, *rows(1000), partition=1)
    for number in range(10):
        planned = None
        while planned is None:
            receiver.plan(9, 9)
            planned = receiver.get(0.1)
        if not planned.is_planned:
            assert offsets(planned.last)[1] == 0
            return
        kafka.send(topic, *rows(2 * number + 1), partition=0)
        receiver.deliver(planned)
        Collector(receiver).collect(lambda one: one.batches and one.batches[-1].last.reached(planned.last))  # noqa: B023
        kafka.send(topic, *rows(2 * number + 2), partition=0)
        receiver.get(0)  # the next stream begins
        receiver.ack(planned.last)
    raise AssertionError("the new partition has not joined")


def test_plan_of_a_stop_ends_exactly_there(kafka, topic, opened):
    kafka.create(topic, 2)
    kafka.send(topic, *rows(*range(5)))
    first = start_at(kafka, topic)
    stop = type(first).of(first.cluster, first.ids, {(topic, 0): PartitionOffset(3), (topic, 1): PartitionOffset(0)})
    receiver = opened(topic, stop_at=lambda: stop)
    planned = next_range(receiver)
    found, positions = read(receiver, planned)
    assert [one["key"] for one in found] == [0, 1, 2] and planned.last == stop
    receiver.complete(planned, positions)

    def is_finished():
        receiver.plan(100, 100)
        assert receiver.get(0.05) is None
        return receiver.status().is_finished

    until(is_finished)


def test_plan_of_a_stop_has_an_added_partition_after_the_old_ones(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1))
    start = start_at(kafka, topic)
    kafka.add_partitions(topic, 2)
    kafka.send(topic, row(1, note="moved"), partition=1)
    receiver = opened(topic, start=start, stop_at=lambda: start_at(kafka, topic, word="latest"))
    planned = next_range(receiver)
    assert offsets(planned.last) == {0: 1}
    receiver.plan(9, 9)
    assert receiver.get(1.0) is None and not receiver.status().is_finished
    receiver.ack(planned.last)
    found = []

    def is_finished():
        receiver.plan(9, 9)
        found.append(receiver.get(0.05))
        return receiver.status().is_finished

    until(is_finished)
    last = [batch for batch in found if batch is not None][-1]
    assert last.is_planned and offsets(last.last) == {0: 1, 1: 1}


def test_columns_that_no_channel_reads_do_not_end_a_range(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1), row(2, extra=4), row(1, note="last"))
    receiver = opened(topic)
    planned = next_range(receiver)
    only = Tables("shop", columns=("id", "note"))
    reader = replace(receiver.readers(planned, ORDERS, 0, 1)[0], tables=ReadTables(only, ORDERS))
    found = [one for batch in reader.batches(lambda: True) if batch.rows is not None for one in batch.rows.to_pylist()]
    found.sort(key=lambda one: one[SEQUENCE])
    assert [(one["key"], one["note"]) for one in found] == [(1, "n1"), (2, "n2"), (1, "last")]


def test_accepted_key_change_ends_a_range_of_several_partitions(kafka, topic, opened):
    kafka.create(topic, 2)
    kafka.send(topic, *rows(0), row(5, moved=True))
    receiver = opened(topic, rules=OrderRules(moves_key_changes=True, applies_key_changes=True))
    planned = next_range(receiver)
    assert "has an update of a key" in ended(read(receiver, planned)[1])
    receiver.deliver(planned)
    assert Collector(receiver).collect_rows(2).values() == [0, 5]


def test_partition_whose_log_became_shorter_is_read_from_its_first_message(kafka, topic, opened, monkeypatch):
    kafka.create(topic)
    kafka.send(topic, *rows(*range(10)))
    receiver = opened(topic, accepted=Accepted(server=True))
    planned = next_range(receiver)
    saved = receiver.complete(planned, read(receiver, planned)[1]).batch.last
    receiver.ack(saved)
    for name in ("ends", "written"):
        asked = getattr(Cluster, name)
        shorter = lambda *of, asked=asked: {one: min(end, 5) for one, end in asked(*of).items()}  # noqa: E731
        monkeypatch.setattr(Cluster, name, shorter)
    read_again = []

    def is_planned():
        receiver.plan(1000, 1000)
        if (batch := receiver.get(0.1)) is not None:
            read_again.append(batch)
        return bool(read_again) and read_again[-1].is_planned

    with pytest.raises(PositionLost, match="ends at 5"):  # what was accepted is before the first commit
        until(is_planned)
    receiver = opened(topic, start=saved, accepted=Accepted(server=True))
    until(is_planned)
    assert offsets(read_again[-1].first) == {0: 0} and offsets(read_again[-1].last) == {0: 5}


def test_range_after_an_unclean_election_is_not_read(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(0, 1, 2))
    receiver = opened(topic)
    planned = next_range(receiver)
    done = receiver.complete(planned, read(receiver, planned)[1])
    receiver.ack(done.batch.last)
    kafka.stop()
    kafka.launch()
    until(lambda: kafka.partitions(topic) == [0])
    kafka.send(topic, *rows(*range(3, 10)))
    planned = next_range(receiver)
    assert [one["key"] for one in read(receiver, planned)[0]] == [*range(3, 10)]
    # as if executors had read five messages of the first leader, which had three when it ended
    at = PartitionOffset(5, 0)
    receiver._plans.ends[topic, 0] = at
    later = replace(planned, first=KafkaPosition.of(done.batch.last.cluster, done.batch.last.ids, {(topic, 0): at}))
    assert f"{topic}[0] has other messages before offset 5" in ended(read(receiver, later)[1])
    at_planning = {(topic, 0): PartitionOffset(5)}  # the driver does not know the epochs of planned ranges
    later = replace(planned, first=KafkaPosition.of(done.batch.last.cluster, done.batch.last.ids, at_planning))
    with pytest.raises(PositionLost, match=r"before offset 5: .* unclean leader election"):
        receiver.deliver(later)
