"""Whether topics still have the messages after a position, and what a user can accept."""

import re

import pytest

from cdc.errors import PositionLost, ServerMismatch, SourceActionRequired
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.sources.kafka.cluster import Topic, Topics
from cdc.sources.kafka.continuity import Accepted, continue_at, first_of_new, skip_truncated


class Logs:
    """First and last offsets of partitions, as ``Cluster`` reports them."""

    def __init__(self, **logs):
        self.logs = {(topic, number): one for topic, each in logs.items() for number, one in enumerate(each)}

    def first_offsets(self, partitions):
        return {one: self.logs[one][0] for one in partitions}

    def written(self, partitions):
        return {one: self.logs[one][1] for one in partitions}


def topics(cluster="c", missing=(), **found):
    return Topics(cluster, {name: Topic(id_, tuple(range(count))) for name, (id_, count) in found.items()}, missing)


def position(cluster="c", id_="id", **offsets):
    found = {(name, number): PartitionOffset(at) for name, each in offsets.items() for number, at in enumerate(each)}
    return KafkaPosition.of(cluster, dict.fromkeys(offsets, id_), found)


def test_position_inside_the_logs_continues_unchanged():
    saved = position(o=[5, 9], old=[7])  # the job file no longer selects ``old``
    assert continue_at(Logs(o=[(5, 6), (0, 9)]), topics(o=("id", 2)), saved, Accepted()) == saved


def test_deleted_messages_pause_unless_the_gap_is_accepted():
    logs, found, saved = Logs(o=[(8, 20), (0, 9)]), topics(o=("id", 2)), position(o=[5, 9])
    with pytest.raises(PositionLost, match=r"o\[0\]: offset 5 is gone, the log begins at 8 \(3 offsets\)") as raised:
        continue_at(logs, found, saved, Accepted(server=True))
    assert "--accept-gap" in raised.value.hint
    for accepted in (Accepted(gap=True), Accepted(skips_lost=True)):
        assert continue_at(logs, found, saved, accepted) == position(o=[8, 9])


def test_offset_beyond_the_end_pauses_even_if_gaps_are_skipped():
    logs, found, saved = Logs(o=[(2, 4)]), topics(o=("id", 1)), position(o=[5])
    with pytest.raises(PositionLost, match="ends at 4, before the offset 5"):
        continue_at(logs, found, saved, Accepted(gap=True, skips_lost=True))
    assert continue_at(logs, found, saved, Accepted(server=True)) == position(o=[2])


def test_topic_created_again_pauses_and_is_read_from_its_first_offset():
    logs, found, saved = Logs(o=[(3, 90)]), topics(o=("new", 1)), position(o=[5])
    with pytest.raises(ServerMismatch, match="Topic o was deleted and created again"):
        continue_at(logs, found, saved, Accepted(gap=True, skips_lost=True))
    assert continue_at(logs, found, saved, Accepted(server=True)) == position(id_="new", o=[3])


def test_topic_created_again_with_fewer_partitions_reads_added_ones_from_the_first_offset():
    saved, again = position(o=[5, 70]), Accepted(server=True)
    smaller = continue_at(Logs(o=[(0, 90)]), topics(o=("new", 1)), saved, again)
    assert smaller == position(id_="new", o=[0])
    added = continue_at(Logs(o=[(0, 90), (0, 90)]), topics(o=("new", 2)), smaller, Accepted())
    assert ("o", 1) not in added.offsets  # so it is found as a new partition


def test_another_cluster_pauses_and_is_read_from_its_first_offsets():
    logs, found, saved = Logs(o=[(3, 90)]), topics("d", o=("id", 1)), position(o=[5])
    with pytest.raises(ServerMismatch, match="belong to cluster d"):
        continue_at(logs, found, saved, Accepted(gap=True))
    assert continue_at(logs, found, saved, Accepted(server=True)) == position("d", o=[3])


def test_missing_topic_or_partition_pauses_unless_the_gap_is_accepted():
    logs, saved = Logs(o=[(0, 9)]), position(o=[5, 5])
    with pytest.raises(PositionLost, match=r"no longer has o\[1\]"):
        continue_at(logs, topics(o=("id", 1)), saved, Accepted())
    assert continue_at(logs, topics(o=("id", 1)), saved, Accepted(gap=True)) == saved
    with pytest.raises(PositionLost, match="no longer has o"):
        continue_at(Logs(), topics(missing=("o",)), saved, Accepted())
    with pytest.raises(SourceActionRequired, match="no topic new"):
        continue_at(logs, topics(missing=("new",), o=("id", 2)), saved, Accepted(gap=True, server=True))


def test_deleted_topic_of_a_pattern_pauses_unless_the_gap_is_accepted():
    saved, found = position(old=[7], **{"crm.a": [5], "crm.b": [5]}), topics(**{"crm.a": ("id", 1)})
    found = Topics("c", found.topics, patterns=(re.compile(r"crm\..*"),))
    logs = Logs(**{"crm.a": [(0, 9)]})
    with pytest.raises(PositionLost, match=r"no longer has crm\.b\."):
        continue_at(logs, found, saved, Accepted(server=True, skips_lost=True))
    assert continue_at(logs, found, saved, Accepted(gap=True)) == saved


def test_topic_created_again_does_not_hide_a_missing_one():
    saved = KafkaPosition.of("c", {"o": "id", "p": "id"}, {("o", 0): PartitionOffset(5), ("p", 0): PartitionOffset(5)})
    found = topics(missing=("p",), o=("new", 1))
    with pytest.raises(PositionLost, match="no longer has p"):
        continue_at(Logs(o=[(0, 9)]), found, saved, Accepted(server=True))
    both = continue_at(Logs(o=[(0, 9)]), found, saved, Accepted(gap=True, server=True))
    assert both.offsets[("o", 0)].next == 0


def test_truncated_log_pauses_and_is_read_from_its_first_offset():
    logs, offsets = Logs(o=[(3, 90)]), {("o", 0): PartitionOffset(50, 7)}
    with pytest.raises(PositionLost, match=r"leader of o\[0\] .* offset 50: .* unclean leader election"):
        skip_truncated(logs, offsets, Accepted(gap=True, skips_lost=True))
    assert skip_truncated(logs, offsets, Accepted(server=True)) == {("o", 0): PartitionOffset(3)}


def test_deleted_messages_of_a_partition_that_was_added_pause_unless_the_gap_is_accepted():
    logs, added = Logs(o=[(0, 20), (8, 20)]), [("o", 1)]
    with pytest.raises(PositionLost, match=r"o\[1\]: offset 0 is gone, the log begins at 8 \(8 offsets\)"):
        first_of_new(logs, added, {"o"}, Accepted())
    for accepted in (Accepted(gap=True), Accepted(skips_lost=True), Accepted(server=True)):
        assert first_of_new(logs, added, {"o"}, accepted) == {("o", 1): 8}
    assert first_of_new(Logs(o=[(5, 9), (0, 20)]), added, {"o"}, Accepted()) == {("o", 1): 0}


def test_topic_that_is_new_is_read_from_its_first_offset():
    assert first_of_new(Logs(o=[(8, 20)]), [("o", 0)], set(), Accepted()) == {("o", 0): 8}
