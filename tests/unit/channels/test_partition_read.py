"""Rows of a range are read while its previous part is written."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import partial

import pytest

from cdc.errors import SinkUnavailable, SourceUnavailable
from cdc.model.batch import LoadName, PreparedLoad
from channels import partition_read
from channels.partition_read import PartitionLoad, PartitionTarget, ReadBudget, read_partitions
from tests.model.local_spark import LocalSession
from tests.support.limits import HANG_S
from tests.support.partition_readers import NumberReader

NAME = LoadName("shop", "0a1b2c3d", 1, 1, "ods.numbers", task=0)
UNLIMITED = ReadBudget(60.0, 1 << 30, 1 << 40)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(partition_read, "PART_ROWS", 3)


def read(reader, *writers):
    targets = tuple(PartitionTarget(replace(NAME, task=task), writer) for task, writer in enumerate(writers))
    return read_partitions(LocalSession(), [PartitionLoad(reader, targets)], 1, UNLIMITED)


@dataclass(frozen=True)
class Signalling:
    """Sets ``reached`` before the batch with this number, then raises ``error``."""

    reached: threading.Event
    number: int
    error: Exception | None = None
    start: int = 0

    def batches(self, is_over):
        for number, batch in enumerate(NumberReader(0, 12).batches(is_over)):
            if number == self.number:
                self.reached.set()
                if self.error is not None:
                    raise self.error
            yield batch


def load(name, rows):
    count = sum(batch.num_rows for batch in rows)
    return PreparedLoad(name, "ods.numbers", count, count)


def test_reader_continues_while_a_part_is_written():
    reached = threading.Event()

    def write(name, rows):
        assert name.part or reached.wait(HANG_S), "the second batch was not read while the first part was written"
        return load(name, rows)

    result = read(Signalling(reached, 1), write)
    assert [(one.name.part, one.rows) for one in result.loads] == [(part, 3) for part in range(4)]


def test_error_of_the_reader_waits_for_the_part_that_is_written():
    reached, ended = threading.Event(), []

    def write(name, rows):
        assert reached.wait(HANG_S)
        ended.append(name.part)
        return load(name, rows)

    with pytest.raises(SourceUnavailable):
        read(Signalling(reached, 1, SourceUnavailable("gone", hint="Start it.")), write)
    assert ended == [0]


@pytest.mark.parametrize("part", range(4))
def test_error_of_any_part_fails_the_read(part):
    def write(failing, name, rows):
        if name.part == failing:
            raise SinkUnavailable("full", hint="Free space.")
        return load(name, rows)

    with pytest.raises(SinkUnavailable, match="full"):
        read(NumberReader(0, 12), partial(write, part))
