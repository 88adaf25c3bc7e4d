"""Batches of blocks without a broker: sequences, positions, and where they stop."""

import json

import pytest

from cdc.errors import CdcError, DdlStop, DecodeError, SourceActionRequired, UnsupportedRowFormat
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.model.schema import SEQUENCE
from cdc.sources.kafka.bad_messages import BadMessages
from cdc.sources.kafka.bad_window import BadLimits
from cdc.sources.kafka.batches import BatchMaker, OrderRules
from cdc.sources.kafka.layouts import Layouts
from cdc.sources.schema_history import SchemaHistory
from tests.support.kafka_receivers import RowsOfTests, block_of, row
from tests.support.receiving import Mapped


def start(*partitions, topic="o"):
    offsets = {(topic, number): PartitionOffset(0) for number in partitions}
    return KafkaPosition.of("c", {topic: "id"}, offsets)


def maker_of(*, rules=OrderRules(), acknowledged=None, decoder=None, partitions=(0, 1), **options):  # noqa: B008
    history = SchemaHistory(Mapped("shop"), None)
    history.begin(())
    maker = BatchMaker(
        decoder or RowsOfTests(),
        Mapped("shop"),
        Layouts(history, Mapped("shop"), acknowledged or {}),
        rules,
        **options,
    )
    maker.begin(start(*partitions), start(*partitions))
    maker.partition_counts = {"o": len(partitions)}
    return maker


def read(maker, block, epochs=None):
    """Return the batches of a block, and the error after them."""
    batches = []
    try:
        for batch in maker.read(block, epochs or {}):
            batches.append(batch)
    except CdcError as error:
        return batches, error
    return batches, None


def ids(batches):
    found = [one for batch in batches for changes in batch.changes for one in changes.rows.to_pylist()]
    return [one["id"] for one in sorted(found, key=lambda one: one[SEQUENCE])]


def nexts(position):
    return {number: offset.next for (_, number), offset in position.offsets.items()}


def test_batch_has_positions_times_and_rising_sequences():
    maker = maker_of()
    maker.sequence = 100
    block = block_of((0, 5, row(1)), (1, 9, row(2)), (0, 7, row(3)))
    (batch,), error = read(maker, block, {("o", 0): 4})
    assert error is None and ids([batch]) == [1, 2, 3] and maker.sequence == 103
    assert nexts(batch.first) == {0: 0, 1: 0} and nexts(batch.last) == {0: 8, 1: 10}
    assert batch.last.offsets["o", 0].epoch == 4 and batch.last.offsets["o", 0].time_ms == 1000
    assert (batch.rows, batch.entries, batch.oldest_commit_us, batch.newest_commit_us) == (3, 3, 1_000_000, 1_000_000)
    (second,), _ = read(maker, block_of((0, 8, row(4))))
    assert second.first == batch.last and second.changes[0].rows.column(SEQUENCE).to_pylist() == [104]


def test_batch_without_rows_moves_the_position_once():
    maker = maker_of()
    assert maker.empty() is None
    maker.offsets["o", 0] = PartitionOffset(3)  # a control record
    batch = maker.empty()
    assert batch is not None and nexts(batch.last) == {0: 3, 1: 0} and maker.empty() is None


def test_layouts_in_one_block_keep_the_order_of_messages():
    maker = maker_of(acknowledged={position_at(0, 1): False})
    batches, error = read(maker, block_of((0, 0, row(1)), (0, 1, row(2, extra=1)), (0, 2, row(3, extra=2))))
    assert error is None and ids(batches) == [1, 2, 3]
    assert [len(changes.schema.columns) for changes in batches[0].changes] == [2, 3]


def position_at(partition, offset):
    offsets = {("o", partition): PartitionOffset(offset)}
    return KafkaPosition.of("c", {"o": "id"}, offsets, f"o:{partition}")


@pytest.mark.parametrize(
    ("bad", "kind", "rules"),
    [
        ("{", DecodeError, OrderRules()),
        (json.dumps({"note": "no id"}), DecodeError, OrderRules()),
        (json.dumps({"sql": "TRUNCATE TABLE orders"}), DdlStop, OrderRules()),
        (json.dumps({"sql": 'TRUNCATE TABLE "orders"'}), DdlStop, OrderRules()),
        (row(8, extra=1), DdlStop, OrderRules()),
        (row(1), SourceActionRequired, OrderRules()),
        (row(8, moved=True), SourceActionRequired, OrderRules(moves_key_changes=True)),
    ],
)
def test_batch_ends_exactly_before_the_message_that_stops(bad, kind, rules):
    maker = maker_of(rules=rules)
    block = block_of((0, 3, row(1)), (1, 0, row(2)), (1, 4, bad), (0, 9, row(4)), (1, 5, row(5)))
    batches, error = read(maker, block)
    assert type(error) is kind and ids(batches) == [1, 2]
    assert nexts(batches[-1].last) == {0: 4, 1: 4}
    if kind is DdlStop:
        assert error.context["position"].statement == "o:1" and nexts(error.context["position"]) == {0: 4, 1: 4}
    else:
        assert (error.context["topic"], error.context["partition"], error.context["offset"]) == ("o", 1, 4)


def test_stop_at_the_first_message_has_no_rows_and_keeps_its_offset():
    maker = maker_of()
    batches, error = read(maker, block_of((0, 6, "{")))
    assert isinstance(error, DecodeError) and ids(batches) == [] and nexts(maker.position) == {0: 6, 1: 0}


def test_ddl_that_changes_rows_needs_past_ddl():
    block = block_of((1, 4, json.dumps({"sql": "TRUNCATE TABLE orders"})), (1, 5, row(1)))
    _, error = read(maker_of(acknowledged={position_at(1, 4): False}), block)
    assert isinstance(error, DdlStop) and "--past-ddl" in error.hint and "cdc snapshot" not in error.hint
    batches, error = read(maker_of(acknowledged={position_at(1, 4): True}), block)
    assert error is None and ids(batches) == [1]
    _, error = read(maker_of(acknowledged={position_at(0, 4): True}), block)  # another message was accepted
    assert isinstance(error, DdlStop)


class Refuses(RowsOfTests):
    """Refuses messages with a certain text, and Debezium's."""

    def decode(self, block):
        texts = bytes(block.data)
        found = [texts[at : at + size] for at, size in zip(block.value_at, block.value_size, strict=True)]
        if any(b"refused" in text or b'"op"' in text for text in found):
            raise UnsupportedRowFormat("a column is missing.", hint="h", table="shop.orders")
        return super().decode(block)


def test_format_that_refuses_a_block_delivers_the_messages_before():
    for bad in range(6):
        messages = [(0, number, row(number, note="refused" if number >= bad else "")) for number in range(6)]
        batches, error = read(maker_of(decoder=Refuses()), block_of(*messages))
        assert isinstance(error, UnsupportedRowFormat) and error.context["offset"] == bad
        assert ids(batches) == [*range(bad)]


def test_key_in_a_second_topic_is_found_at_its_next_change():
    maker = maker_of(partitions=(0,))
    maker.join("p", "id", 0, 0)
    for number, topic in enumerate(("o", "p")):  # documented: the first change in the second topic is not found
        _, error = read(maker, block_of((0, number, row(1)), topic=topic))
        assert error is None
    _, error = read(maker, block_of((0, 5, row(1)), topic="o"))
    assert isinstance(error, SourceActionRequired) and "several partitions or topics" in error.message


def test_joined_partition_forgets_the_partitions_of_keys():
    maker = maker_of()
    read(maker, block_of((0, 0, row(1))))
    maker.join("o", "id", 2, 0)
    batches, error = read(maker, block_of((2, 0, row(1))))
    assert error is None and ids(batches) == [1] and nexts(batches[0].last) == {0: 1, 1: 0, 2: 1}


def kept_offsets(folder):
    """Return the offsets of the kept messages, by file."""
    lines = {path.name: path.read_text().splitlines()[1:] for path in sorted(folder.iterdir())}
    return {name: [json.loads(line)["offset"] for line in each] for name, each in lines.items()}


def test_bad_messages_are_kept_up_to_the_limit_and_the_others_continue(tmp_path):
    maker = maker_of(bad=BadMessages(tmp_path, BadLimits(2, 100)))
    block = block_of(
        (0, 0, row(1)), (0, 1, "{"), (1, 0, row(2)), (1, 1, row(None)), (0, 2, row(3)), (0, 3, "{"), (0, 4, row(4))
    )
    batches, error = read(maker, block)
    assert ids(batches) == [1, 2, 3] and nexts(maker.position) == {0: 3, 1: 2}
    assert maker.position.kept.tables == (("", 1), ("shop.orders", 1)) and kept_offsets(tmp_path) == {
        "0-0.jsonl": [1, 1]
    }
    assert isinstance(error, DecodeError) and error.context["offset"] == 3 and "max_rows" in error.hint


def test_bad_messages_read_again_count_once(tmp_path):
    bad = BadMessages(tmp_path, BadLimits(9, 100))
    maker = maker_of(bad=bad)
    (first,), _ = read(maker, block_of((0, 0, "{"), (0, 1, row(1))))
    (second,), _ = read(maker, block_of((0, 2, "{"), (0, 3, "{")))
    again = maker_of(bad=bad)
    bad.open(first.last)
    again.begin(first.last, first.last)
    assert kept_offsets(tmp_path) == {"0-0.jsonl": [0]}
    batches = [batch for each in (2, 3) for batch in read(again, block_of((0, each, "{")))[0]]
    assert batches[-1].last.kept.count == second.last.kept.count == 3
    assert batches[-1].last.kept.window == second.last.kept.window
    assert kept_offsets(tmp_path) == {"0-0.jsonl": [0], "0-1.jsonl": [2], "0-2.jsonl": [3]}


def test_bad_message_after_a_stop_is_not_kept(tmp_path):
    maker = maker_of(bad=BadMessages(tmp_path, BadLimits(9, 100)))
    block = block_of((0, 0, "{"), (0, 1, json.dumps({"sql": "DROP TABLE orders"})), (0, 2, "{"))
    _, error = read(maker, block)
    assert isinstance(error, DdlStop) and kept_offsets(tmp_path) == {"0-0.jsonl": [0]}
    assert nexts(maker.position) == {0: 1, 1: 0}


def test_pause_names_the_format_that_messages_seem_to_have():
    envelope = json.dumps({"before": None, "after": {"id": 1}, "op": "c"})
    refuses = maker_of(decoder=Refuses(), format_name="canal-json")
    _, error = read(refuses, block_of((0, 0, envelope)))
    assert error.context["looks_like"] == "format: debezium-json"
    _, error = read(maker_of(format_name="canal-json"), block_of((0, 0, "a,b"), (0, 1, "c,d"), (0, 2, "e,f")))
    assert error.context["looks_like"] == "format: csv"
    _, error = read(maker_of(format_name="json"), block_of((0, 0, row(1)), (0, 1, "{")))
    assert isinstance(error, DecodeError) and "looks_like" not in error.context
