"""The receiver of Kafka on a real broker: order, transactions, stops, lost and added partitions."""

import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from cdc.errors import DdlStop, DecodeError, PositionLost, ServerMismatch, SourceActionRequired, SourceUnavailable
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.model.schema import DELETED
from cdc.sources.base import RangeReceiver
from cdc.sources.kafka.batches import OrderRules
from cdc.sources.kafka.cluster import Cluster
from cdc.sources.kafka.continuity import Accepted
from cdc.sources.kafka.start import KafkaStart, resolve
from tests.support.kafka_receivers import receiver_of, row, rows, settings, start_at
from tests.support.receiving import Collector, Mapped, until

SHOP = Mapped("shop")


@pytest.fixture
def opened(kafka):
    """Open receivers, and close them afterwards."""
    receivers = []

    def open_(*topics, start=None, schemas=(), sequence=0, **options):
        receiver = receiver_of(kafka, options.pop("table_filter", SHOP), *topics, **options)
        receivers.append(receiver)
        receiver.open(start if start is not None else start_at(kafka, *topics), schemas, sequence)
        return receiver

    yield open_
    for receiver in receivers:
        receiver.close()


def numbers(position):
    return {number: offset.next for (_, number), offset in position.offsets.items()}


def fails(receiver, kind):
    """Collect until the receiver raises. Return the collected rows and the error."""
    collector = Collector(receiver)
    with pytest.raises(kind) as raised:
        collector.collect(lambda _: False)
    return collector, raised.value


def test_receiver_rows_are_in_order_of_offsets_with_rising_sequences(kafka, topic, opened):
    kafka.create(topic, 2)
    kafka.send(topic, *rows(*range(100)), partition=0)
    kafka.send(topic, *rows(*range(100, 200)), row(3, deleted=True), None, partition=1)
    receiver = opened(topic, sequence=500, rules=OrderRules(one_partition_per_key=False))
    assert isinstance(receiver, RangeReceiver)
    collected = Collector(receiver).collect_rows(201).collect_to_end()
    assert [one for one in collected.values() if one < 100 and one != 3] == [*range(3), *range(4, 100)]
    assert collected.sequences == list(range(501, 702))
    assert [one["id"] for one in collected.rows if one[DELETED]] == [3]
    for before, after in zip(collected.batches, collected.batches[1:], strict=False):
        assert after.first == before.last and after.last.reached(after.first) and before.ends_transaction
    assert numbers(collected.batches[-1].last) == {0: 100, 1: 102}
    assert receiver.get(0.1) is None and receiver.status().is_at_end
    kafka.send(topic, *rows(900), partition=1)
    assert Collector(receiver).collect_rows(1).values() == [900]


def test_receiver_rollback_delivers_again_with_larger_sequences(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(*range(10)))
    receiver = opened(topic)
    first = Collector(receiver).collect_rows(10)
    receiver.rollback(first.batches[0].first)
    again = Collector(receiver).collect_rows(10)
    assert again.values() == first.values() and min(again.sequences) > max(first.sequences)


def test_receiver_limit_reads_exactly_a_range_of_every_partition(kafka, topic, opened):
    kafka.create(topic, 3)
    for number in range(3):
        kafka.send(topic, *rows(*range(100 * number, 100 * number + 50)), partition=number)
    first = start_at(kafka, topic)
    offsets = {(topic, 0): PartitionOffset(7), (topic, 1): PartitionOffset(0), (topic, 2): PartitionOffset(50)}
    last = KafkaPosition.of(first.cluster, first.ids, offsets)
    receiver = opened(topic)
    receiver.get(1.0)  # rows are read ahead
    receiver.rollback(first)
    receiver.limit(last)
    part = Collector(receiver).collect(lambda one: one.batches and one.batches[-1].last.reached(last))
    assert sorted(part.values()) == [*range(7), *range(200, 250)] and part.batches[-1].last == last
    receiver.limit(None)
    rest = Collector(receiver).collect_rows(93)
    assert sorted(rest.values()) == [*range(7, 50), *range(100, 150)]
    assert min(rest.sequences) > max(part.sequences)


def test_receiver_limit_refuses_a_range_of_a_topic_that_is_not_read(kafka, topic, opened):
    names = [kafka.create(f"{topic}.{name}") for name in ("a", "b")]
    kafka.send(names[0], *rows(1))
    first = start_at(kafka, *names)
    receiver = opened(names[0], start=first)  # the job file no longer has the other topic
    at_end = start_at(kafka, *names, word="latest")
    receiver.limit(at_end)
    part = Collector(receiver).collect(lambda one: one.batches and one.batches[-1].last.reached(at_end))
    assert part.values() == [1]
    kafka.send(names[1], *rows(2))
    receiver.rollback(first)
    with pytest.raises(PositionLost, match=rf"cannot read {names[1]}\[0\]"):
        receiver.limit(start_at(kafka, *names, word="latest"))


def test_receiver_omits_aborted_messages_and_passes_control_records(kafka, topic, opened):
    kafka.create(topic)
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions()
    for first, ends in ((0, producer.commit_transaction), (10, producer.abort_transaction), (20, None)):
        producer.begin_transaction()
        for value in rows(*range(first, first + 3)):
            producer.produce(topic, value)
        producer.flush()
        if ends:
            ends()
    receiver = opened(topic)
    collected = Collector(receiver).collect_to_end()  # the last transaction is open
    assert collected.values() == [0, 1, 2] and numbers(collected.batches[-1].last) == {0: 8}
    producer.commit_transaction()
    rest = Collector(receiver).collect_rows(3).collect_to_end()
    end = rest.batches[-1].last
    assert rest.values() == [20, 21, 22] and numbers(end) == {0: 12}  # after the last control record
    assert [(one.next, one.end) for one in receiver.status().partitions] == [(0, 12)]  # nothing is committed yet
    receiver.ack(end)
    assert [(one.next, one.end, one.seconds) for one in receiver.status().partitions] == [(12, 12, 0.0)]
    # retention up to the end: nothing is lost
    kafka.delete_records(topic, 0, 12)
    again = opened(topic, start=end)
    until(lambda: again.get(0.1) is None and again.status().is_at_end)
    kafka.send(topic, *rows(30))
    assert Collector(again).collect_rows(1).values() == [30]


def test_receiver_stops_at_a_bad_message_after_the_rows_before_it(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1, 2), "{broken \x01" + "x" * 1000, *rows(3))
    collected, error = fails(opened(topic), DecodeError)
    assert collected.values() == [1, 2] and numbers(collected.batches[-1].last) == {0: 2}
    assert (error.context["topic"], error.context["partition"], error.context["offset"]) == (topic, 0, 2)
    assert "it is not JSON" in error.message and "{broken" in str(error) and len(str(error)) < 1000
    kafka.create(f"{topic}_null")
    kafka.send(f"{topic}_null", *rows(1, None))
    _, error = fails(opened(f"{topic}_null"), DecodeError)
    assert "column id of the key is NULL" in error.message and error.context["offset"] == 1


def test_receiver_stops_before_ddl_until_it_is_acknowledged(kafka, topic, opened):
    kafka.create(topic, 2)
    kafka.send(topic, *rows(1), '{"sql": "ALTER TABLE orders ADD extra INT"}', row(2, extra=5), partition=1)
    receiver = opened(topic)
    collected, error = fails(receiver, DdlStop)
    position = error.context["position"]
    assert collected.values() == [1] and numbers(position)[1] == 1 and position.statement == f"{topic}:1"
    saved, schemas = collected.batches[-1].last, receiver.schemas()
    _, repeated = fails(opened(topic, start=saved, schemas=schemas), DdlStop)
    assert repeated.context["position"] == position  # nobody has accepted it
    resumed = opened(topic, start=saved, schemas=schemas, acknowledged={position: False})
    again, second = fails(resumed, DdlStop)  # the first row with the new layout is another message
    assert not again.rows and "extra was missing, is int" in second.message
    assert numbers(second.context["position"])[1] == 2


def test_receiver_stops_at_rows_with_another_layout(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1), row(2, extra=5), row(3, extra=6))
    receiver = opened(topic)
    collected, error = fails(receiver, DdlStop)
    assert "extra was missing, is int" in error.message and collected.values() == [1]
    saved, schemas = collected.batches[-1].last, receiver.schemas()
    assert [one.name for one in schemas] == ["shop.orders"]
    receiver = opened(topic, start=saved, schemas=schemas, acknowledged={error.context["position"]: False})
    assert [one["extra"] for one in Collector(receiver).collect_rows(2).rows] == [5, 6]
    assert len(receiver.schemas()[0].columns) == 3
    narrow = opened(topic, table_filter=Mapped("shop", columns=["id", "note"]))
    assert Collector(narrow).collect_rows(3).values() == [1, 2, 3]  # no channel reads the new column


def test_receiver_stops_at_a_key_in_two_partitions(kafka, topic, opened):
    kafka.create(topic, 2)
    kafka.send(topic, *rows(*range(50)), partition=0)
    receiver = opened(topic)
    assert Collector(receiver).collect_rows(50).values() == [*range(50)]
    kafka.send(topic, *rows(100, 17), partition=1)
    collected, error = fails(receiver, SourceActionRequired)
    assert collected.values() == [100] and "one key of shop.orders" in error.message
    assert (error.context["partition"], error.context["offset"]) == (1, 1)
    receiver = opened(topic, rules=OrderRules(one_partition_per_key=False))
    assert len(Collector(receiver).collect_rows(52).rows) == 52


def test_receiver_stops_at_a_key_change_in_one_of_several_partitions(kafka, topic, opened):
    kafka.create(topic, 2)
    kafka.send(topic, *rows(1), row(1, deleted=True, moved=True), row(2, moved=True), partition=1)
    collected, error = fails(opened(topic, rules=OrderRules(moves_key_changes=True)), SourceActionRequired)
    assert collected.values() == [1] and "changes the key" in error.message and error.context["offset"] == 1
    applied = opened(topic, rules=OrderRules(moves_key_changes=True, applies_key_changes=True))
    assert Collector(applied).collect_rows(3).values() == [1, 1, 2]
    kafka.create(f"{topic}_one")
    kafka.send(f"{topic}_one", row(1, deleted=True, moved=True), row(2, moved=True))
    one = opened(f"{topic}_one", rules=OrderRules(moves_key_changes=True))
    assert Collector(one).collect_rows(2).values() == [1, 2]


def test_receiver_reads_an_added_partition_after_the_old_ones_are_committed(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1))
    receiver = opened(topic)
    first = Collector(receiver).collect_rows(1)
    kafka.add_partitions(topic, 2)
    kafka.send(topic, row(1, note="moved"), partition=1)
    assert receiver.get(1.5) is None and not receiver.status().is_at_end  # found, but the old rows are not committed
    receiver.ack(first.batches[-1].last)
    second = Collector(receiver, acks=True).collect_rows(1)
    assert second.rows[0]["note"] == "moved" and numbers(second.batches[-1].last) == {0: 1, 1: 1}


@pytest.mark.parametrize("is_committed", [True, False])
def test_receiver_reads_an_added_partition_after_transactions_that_were_open(kafka, topic, opened, is_committed):
    kafka.create(topic)
    kafka.send(topic, *rows(1))
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, row(2, note="old"), partition=0)
    producer.flush()
    receiver = opened(topic)
    first = Collector(receiver).collect_rows(1)
    kafka.add_partitions(topic, 2)
    kafka.send(topic, row(2, note="moved"), partition=1)
    receiver.ack(first.batches[-1].last)
    assert receiver.get(2.5) is None  # the open transaction has an older row
    producer.commit_transaction() if is_committed else producer.abort_transaction()
    rest = Collector(receiver, acks=True).collect_rows(1 + is_committed)
    assert [one["note"] for one in rest.rows] == [*(["old"] if is_committed else []), "moved"]


def test_receiver_reads_new_topics_of_a_pattern_from_their_first_offset(kafka, topic, opened):
    kafka.create(f"{topic}.a")
    receiver = opened(f"{topic}.*")
    kafka.create(f"{topic}.b")
    kafka.send(f"{topic}.b", *rows(1, 2))
    assert Collector(receiver).collect_rows(2).values() == [1, 2]


def test_receiver_pauses_at_a_deleted_topic_of_a_pattern(kafka, topic, opened):
    for name in ("a", "b"):
        kafka.send(kafka.create(f"{topic}.{name}"), *rows(1))
    start = start_at(kafka, f"{topic}.*")
    kafka.delete(f"{topic}.b")
    with pytest.raises(PositionLost, match=rf"no longer has {topic}\.b"):
        opened(f"{topic}.*", start=start)
    collected = Collector(opened(f"{topic}.*", start=start, accepted=Accepted(gap=True))).collect_rows(1)
    saved = collected.batches[-1].last
    assert saved.ids.keys() == {f"{topic}.a"}
    kafka.send(kafka.create(f"{topic}.b"), *rows(2))
    assert Collector(opened(f"{topic}.*", start=saved)).collect_rows(1).values() == [2]


def test_receiver_pauses_at_a_topic_that_was_created_again(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1, 2))
    receiver = opened(topic)
    saved = Collector(receiver).collect_rows(2).batches[-1].last
    kafka.delete(topic)
    kafka.create(topic)
    kafka.send(topic, *rows(7, 8, 9))
    with pytest.raises(ServerMismatch, match="created again"):
        opened(topic, start=saved)
    again = opened(topic, start=saved, accepted=Accepted(server=True))
    assert Collector(again).collect_rows(3).values() == [7, 8, 9]
    with pytest.raises((ServerMismatch, PositionLost), match="deleted"):  # the receiver that was open all the time
        Collector(receiver).collect(lambda _: False)
    other = KafkaPosition.of("another", saved.ids, saved.offsets)
    with pytest.raises(ServerMismatch, match="belong to cluster"):
        opened(topic, start=other)


def test_receiver_pauses_at_lost_offsets_or_skips_them(kafka, topic, opened):
    kafka.create(topic, 2)
    kafka.send(topic, *rows(*range(10)))
    start = start_at(kafka, topic)
    kafka.delete_records(topic, 0, 4)
    with pytest.raises(PositionLost, match=r"\[0\]: offset 0 is gone, the log begins at 4 \(4 offsets\)"):
        opened(topic, start=start)
    for accepted in (Accepted(gap=True), Accepted(skips_lost=True)):
        collected = Collector(opened(topic, start=start, accepted=accepted)).collect_rows(6)
        assert collected.values() == [*range(4, 10)] and collected.batches[0].first == start
    beyond = KafkaPosition.of(start.cluster, start.ids, {(topic, 0): PartitionOffset(11)})
    with pytest.raises(PositionLost, match="ends at 10"):
        opened(topic, start=beyond, accepted=Accepted(gap=True, skips_lost=True))


def test_receiver_accepts_only_a_gap_before_its_first_commit(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(*range(10)))
    start = start_at(kafka, topic)
    kafka.delete_records(topic, 0, 4)
    receiver = opened(topic, start=start, accepted=Accepted(gap=True, server=True))
    receiver.rollback(start)  # nothing is committed yet
    position = Collector(receiver).collect_rows(6).collect_to_end().batches[-1].last
    receiver.ack(position)
    receiver.close()
    kafka.send(topic, *rows(10, 11))
    kafka.delete_records(topic, 0, 11)
    with pytest.raises(PositionLost, match="offset 10 is gone"):
        receiver.rollback(position)
    kafka.delete(topic)
    kafka.create(topic)
    with pytest.raises(ServerMismatch, match="created again"):
        receiver.rollback(position)


def test_receiver_keeps_a_missing_topic_accepted_during_a_run(kafka, topic, opened):
    for name in ("a", "b"):
        kafka.send(kafka.create(f"{topic}.{name}"), *rows(1))
    names = (f"{topic}.a", f"{topic}.b")
    start = start_at(kafka, *names)
    kafka.delete(names[1])
    receiver = opened(*names, start=start, accepted=Accepted(gap=True))
    position = Collector(receiver).collect_rows(1).batches[-1].last
    receiver.ack(position)
    receiver.rollback(position)
    kafka.send(names[0], *rows(2))
    assert Collector(receiver).collect_rows(1).values() == [2]


def test_receiver_names_an_unclean_election(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(0, 1, 2))
    start = start_at(kafka, topic)
    kafka.stop()
    kafka.launch()
    until(lambda: kafka.partitions(topic) == [0])
    kafka.send(topic, *rows(*range(3, 10)))
    # the job has read five messages of the first leader, which had three when it ended
    saved = KafkaPosition.of(start.cluster, start.ids, {(topic, 0): PartitionOffset(5, 0)})
    with pytest.raises(PositionLost, match=r"before offset 5: .* unclean leader election"):
        opened(topic, start=saved, accepted=Accepted(gap=True, skips_lost=True))
    same = KafkaPosition.of(start.cluster, start.ids, {(topic, 0): PartitionOffset(3, 0)})
    assert Collector(opened(topic, start=same)).collect_rows(7).values() == [*range(3, 10)]
    again = opened(topic, start=saved, accepted=Accepted(server=True))
    assert Collector(again).collect_rows(10).values() == [*range(10)]


def test_receiver_finishes_at_stop_at(kafka, topic, opened):
    kafka.create(topic, 2)
    kafka.send(topic, *rows(1, 2))

    def end():
        with Cluster(settings(kafka, topic)) as cluster:
            return resolve(cluster, KafkaStart("latest"))

    receiver = opened(topic, stop_at=end)
    kafka.send(topic, *rows(3), partition=1)
    collected = Collector(receiver).collect(lambda one: one.receiver.status().is_finished)
    assert collected.values() == [1, 2] and numbers(collected.batches[-1].last) == {0: 2, 1: 0}


def test_receiver_with_stop_at_reads_an_added_partition_after_the_old_ones(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1))
    start = start_at(kafka, topic)
    kafka.add_partitions(topic, 3)
    kafka.send(topic, row(1, note="moved"), partition=1)
    receiver = opened(topic, start=start, stop_at=lambda: start_at(kafka, topic, word="latest"))
    first = Collector(receiver).collect_rows(1)
    assert first.rows[0]["note"] == "n1" and receiver.get(1.5) is None and not receiver.status().is_finished
    receiver.ack(first.batches[-1].last)
    second = Collector(receiver, acks=True).collect(lambda one: one.receiver.status().is_finished)
    assert [one["note"] for one in second.rows] == ["moved"]
    assert numbers(second.batches[-1].last) == {0: 1, 1: 1, 2: 0}


def test_receiver_reports_committed_offsets_to_the_group(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1, 2, 3))
    receiver = opened(topic, settings_of={"group": topic, "reports": True})
    position = Collector(receiver).collect_rows(3).batches[-1].last
    receiver.ack(position)
    group = Consumer({"bootstrap.servers": kafka.address, "group.id": topic})
    until(lambda: group.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 3)
    group.close()
    until(lambda: [(one.next, one.end) for one in receiver.status().partitions] == [(3, 3)])
    assert receiver.status().warning is None


def test_receiver_respects_its_window(kafka, topic, opened):
    kafka.create(topic)
    for _ in range(5):
        kafka.send(topic, *[row(one, note="x" * 500) for one in range(2000)])
    receiver = opened(topic, window_bytes=1 << 20)
    until(lambda: receiver.status().window_bytes >= 1 << 20)
    time.sleep(0.5)
    held = receiver.status().window_bytes
    assert held < 16 << 20
    collected = Collector(receiver).collect_rows(10_000)
    assert collected.values() == [*range(2000)] * 5


def test_receiver_waits_for_brokers_that_are_away(kafka_jars, tmp_path, topic):
    from tests.emulators.kafka import KafkaBroker

    with KafkaBroker(kafka_jars, tmp_path / "kafka") as broker:
        broker.create(topic)
        broker.send(topic, *rows(1))
        receiver = receiver_of(broker, SHOP, topic, timeout_s=1.0)
        try:
            receiver.open(start_at(broker, topic), (), 0)
            Collector(receiver).collect_rows(1)
            broker.kill()
            with pytest.raises(SourceUnavailable):
                Collector(receiver).collect(lambda _: False)
            assert receiver.status().warning is not None and not receiver.status().is_at_end
            broker.launch()
            broker.send(topic, *rows(2))
            found = Collector(receiver)

            def arrived():
                try:
                    batch = receiver.get(0.1)
                except SourceUnavailable:
                    return False
                if batch is not None:
                    found.add(batch)
                return found.values() == [2]

            until(arrived)
            until(lambda: receiver.status().warning is None)
        finally:
            receiver.close()
