"""Messages that cannot be decoded: a file per Batch, bounded by a window, and written again when they are read again."""

import base64
import json
import os

import pytest

from cdc.errors import ConfigError
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.model.kept_messages import NOTHING_KEPT, KeptMessages
from cdc.sources.kafka.bad_messages import BadMessages
from cdc.sources.kafka.bad_window import BadLimits
from cdc.sources.kafka.formats.base import Fault
from tests.support.kafka_receivers import block_of

BLOCK = block_of((0, 5, "bad"), (1, 9, "worse"), (0, 6, "worst"))
LIMITS = BadLimits(5, 100)


def position(*, kept=NOTHING_KEPT, **offsets):
    found = {("o", int(name[1:])): PartitionOffset(offset) for name, offset in offsets.items()}
    return KafkaPosition.of("c", {"o": "id"}, found, kept=kept)


def kept_of(count, replays=0):
    return KeptMessages(replays, tables=(("shop.orders", count),))


def keep(bad, kept, *numbers):
    bad.keep(kept, BLOCK, [Fault(number, "it is not JSON", "shop.orders") for number in numbers], "id", {0: 5, 1: 9})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_messages_of_a_batch_are_one_file_with_positions_reasons_and_bytes(tmp_path):
    bad = BadMessages(tmp_path / "job", LIMITS)
    keep(bad, NOTHING_KEPT, 0, 1)
    keep(bad, kept_of(2), 2)
    keep(bad, kept_of(3))
    assert names(tmp_path / "job") == ["0-0.jsonl", "0-2.jsonl"]
    head, first, second = map(json.loads, (tmp_path / "job/0-0.jsonl").read_text().splitlines())
    assert head == {"topic": "o", "topic_id": "id", "offsets": {"0": 5, "1": 9}}
    assert base64.b64decode(second.pop("value")) == b"worse" and first["offset"] == 5
    assert second == {
        "topic": "o",
        "partition": 1,
        "offset": 9,
        "timestamp_ms": 1000,
        "table": "shop.orders",
        "reason": "it is not JSON",
        "key": None,
    }
    loaded = bad.load(kept_of(3))
    assert [[one["offset"] for one in file.messages] for file in loaded] == [[5, 9], [6]]
    assert loaded[0].offsets == {0: 5, 1: 9}


def test_open_deletes_files_of_messages_that_are_read_again_or_were_replayed(tmp_path):
    bad = BadMessages(tmp_path / "job", LIMITS)
    keep(bad, kept_of(0, replays=1), 0)
    keep(bad, kept_of(0, replays=2), 0, 1)
    keep(bad, kept_of(2, replays=2), 2)
    keep(bad, kept_of(0, replays=3), 0)
    (tmp_path / "job/notes.txt").write_text("of a user")
    bad.open(position(p0=6, kept=kept_of(2, replays=2)))
    assert names(tmp_path / "job") == ["2-0.jsonl", "notes.txt"]
    bad.forget_replayed(kept_of(0, replays=3))
    assert names(tmp_path / "job") == ["notes.txt"]


def test_files_of_an_earlier_job_are_refused_unless_they_are_read_again(tmp_path):
    bad = BadMessages(tmp_path / "job", LIMITS)
    keep(bad, NOTHING_KEPT, 0)
    with pytest.raises(ConfigError, match="earlier job") as caught:
        bad.open(position(p0=6))
    assert os.fspath(caught.value.context["path"]).endswith("0-0.jsonl")
    bad.open(position(p0=5))
    assert names(tmp_path / "job") == []


def test_files_of_unknown_topics_and_partitions_are_moved_away(tmp_path):
    """Its first message can be bad, and the job can end before the first commit that has the new partition."""
    bad = BadMessages(tmp_path / "job", LIMITS)
    for number in range(2):
        keep(bad, NOTHING_KEPT, 0)
        bad.open(position(p1=6))
        assert names(tmp_path / "job") == [f"0-0.jsonl.{one}.old" for one in range(1, number + 2)]
    assert bad.load(NOTHING_KEPT) == []


def test_file_without_a_head_is_refused(tmp_path):
    bad = BadMessages(tmp_path / "job", LIMITS)
    keep(bad, NOTHING_KEPT, 0)
    (tmp_path / "job/0-0.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="cannot be used"):
        bad.open(position(p0=5))


def test_missing_file_is_an_error(tmp_path):
    bad = BadMessages(tmp_path / "job", LIMITS)
    keep(bad, NOTHING_KEPT, 0, 1)
    with pytest.raises(ConfigError, match="has 2 of 3 messages") as caught:
        bad.load(kept_of(3))
    assert "cdc replay-bad" in caught.value.hint


def test_count_stops_at_the_first_message_beyond_the_limit():
    bad, faults = BadMessages("unused", BadLimits(2, 10)), [Fault(number, "r", "t") for number in (0, 3, 5)]
    found = bad.count(NOTHING_KEPT, faults, 9)
    assert found.taken == tuple(faults[:2]) and found.refused == faults[2] and "max_rows" in found.reason
    assert found.kept.tables == (("t", 2),) and sum(messages for messages, _ in found.kept.window) == 5
    whole = bad.count(NOTHING_KEPT, faults[:2], 9)
    assert whole.refused is None and sum(messages for messages, _ in whole.kept.window) == 9


def test_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "job").write_text("a file")
    with pytest.raises(ConfigError, match="folder of bad messages") as caught:
        keep(BadMessages(tmp_path / "job", LIMITS), NOTHING_KEPT, 0)
    assert os.fspath(caught.value.context["path"]).endswith("job")
