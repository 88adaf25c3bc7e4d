"""Messages that cannot be decoded: one file each, counted, bounded, and written again when they are read again."""

import base64
import json
import os

import pytest

from cdc.errors import ConfigError
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.sources.kafka.bad_messages import BadMessages
from cdc.sources.kafka.formats.base import Fault
from tests.support.kafka_receivers import block_of

BLOCK = block_of((0, 5, "bad"), (1, 9, "worse"), (0, 6, "worst"))


def position(**offsets):
    found = {("o", int(name[1:])): PartitionOffset(offset) for name, offset in offsets.items()}
    return KafkaPosition.of("c", {"o": "id"}, found)


def test_message_is_kept_with_its_position_reason_and_bytes(tmp_path):
    bad = BadMessages(tmp_path / "job", 5)
    bad.open(position(p0=0))
    assert bad.keep(BLOCK, Fault(1, "it is not JSON")) and bad.count == 1
    content = json.loads((tmp_path / "job/o/1-9.json").read_text())
    assert base64.b64decode(content.pop("value")) == b"worse"
    assert content == {
        "topic": "o",
        "partition": 1,
        "offset": 9,
        "timestamp_ms": 1000,
        "reason": "it is not JSON",
        "key": None,
    }


def test_limit_counts_files_and_a_repeat_replaces_its_file(tmp_path):
    bad = BadMessages(tmp_path / "job", 2)
    assert bad.keep(BLOCK, Fault(0, "a")) and bad.keep(BLOCK, Fault(1, "b")) and bad.keep(BLOCK, Fault(0, "c"))
    assert not bad.keep(BLOCK, Fault(2, "d")) and bad.count == 2
    assert {path.name for path in (tmp_path / "job/o").iterdir()} == {"0-5.json", "1-9.json"}
    (tmp_path / "job/o/0-5.json").unlink()
    bad.open(position(p0=6, p1=10))
    assert bad.count == 1 and bad.keep(BLOCK, Fault(2, "d"))


def test_open_deletes_files_of_messages_that_are_read_again(tmp_path):
    bad = BadMessages(tmp_path / "job", 5)
    for number in range(3):
        bad.keep(BLOCK, Fault(number, "a"))
    (tmp_path / "job/o/notes.txt").write_text("of a user")
    (tmp_path / "job/o/0-1.json.txt").write_text("of a user")
    again = BadMessages(tmp_path / "job", 5)
    again.open(position(p0=6))
    left = {path.name for path in (tmp_path / "job/o").iterdir()}
    assert left == {"0-5.json", "1-9.json", "notes.txt", "0-1.json.txt"} and again.count == 2


def test_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "job").write_text("a file")
    with pytest.raises(ConfigError, match="folder of bad messages") as caught:
        BadMessages(tmp_path / "job", 5).keep(BLOCK, Fault(0, "a"))
    assert os.fspath(caught.value.context["path"]).endswith("job")
