"""Parts of blocks: messages before a limit, and the next offsets."""

from cdc.sources.kafka.block_parts import before, next_offsets, select
from tests.support.kafka_receivers import block_of


def test_before_drops_messages_at_or_after_the_limit_of_their_partition():
    block = block_of((0, 1, "a"), (1, 8, "b"), (0, 5, "c"), (2, 0, "d"))
    assert before(block, {("o", 0): 9, ("o", 1): 9, ("o", 2): 9}) == (block, {})
    kept, ended = before(block, {("o", 0): 5, ("o", 1): 9, ("p", 2): 9})
    assert kept.offset.tolist() == [1, 8] and ended == {("o", 0): 5}
    assert bytes(kept.data[kept.value_at[1] :][: kept.value_size[1]]) == b"b"


def test_next_offsets_are_after_the_last_message_of_each_partition():
    block = block_of((0, 1, "a"), (1, 8, "b"), (0, 5, "c"))
    found = next_offsets(block, {("o", 0): 7})
    assert {one: (at.next, at.epoch, at.time_ms) for one, at in found.items()} == {
        ("o", 0): (6, 7, 1000),
        ("o", 1): (9, -1, 1000),
    }
    assert next_offsets(select(block, slice(0, 0)), {}) == {}
