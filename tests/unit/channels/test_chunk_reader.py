"""Limits of the parallel readers of a snapshot step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import channels.chunk_task
from cdc.errors import DecodeError
from cdc.model.schema import Column, Kind
from cdc.model.snapshot import Chunk, SnapshotState, TableSnapshot
from cdc.mysql.key_order import KeyColumn, KeyOrder
from cdc.snapshot.planner import Chunker
from cdc.snapshot.step_plan import split_slow_chunks, with_outcomes
from channels import chunk_reader, partition_read
from channels.chunk_reader import ChunkRead, ChunkReader, _outcome
from channels.chunk_task import ChunkReadRequest
from channels.partition_read import PartitionLoad, ReadBudget, _ShareReader


def test_pace_share_divides_amounts_but_not_time() -> None:
    assert ReadBudget(5.0, 1000, 400, 100.0, None).share(4) == ReadBudget(5.0, 250, 100, 25.0, None)
    assert ReadBudget(5.0, 1, 1).share(4) == ReadBudget(5.0, 1, 1)


@pytest.mark.parametrize(("readers", "cores", "wanted"), [(4, 2, 2), (4, 8, 4), (1, 2, 1)])
def test_reading_uses_at_most_one_reader_per_core(
    monkeypatch: pytest.MonkeyPatch, readers: int, cores: int, wanted: int
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(channels.chunk_task, "read_chunks", lambda *arguments: given.extend(arguments))
    ChunkReadRequest(None, (), (), readers, ReadBudget(5.0, 1, 1)).run(None, cores)  # type: ignore[arg-type]
    assert given[4] == wanted


STEP_S = 5.0


def step(monkeypatch: pytest.MonkeyPatch, chunk: Chunk, searches_s: float) -> TableSnapshot:
    """Return the state after a step whose only chunk has no row, as the server finds after ``searches_s``."""
    clock = [0.0]

    class Select:
        ended = False

        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> Select:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def rows(self, is_over: Callable[[], bool], *, needs_row: bool) -> Iterator[Any]:
            while clock[0] < searches_s:
                clock[0] += 1.0
                if is_over() and not needs_row:
                    return
            self.ended = True
            yield from ()

    monkeypatch.setattr(chunk_reader, "Select", Select)
    monkeypatch.setattr(partition_read, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    order = SimpleNamespace(columns=("id",), tail=lambda *_: (" FROM t", []))
    table = cast(Any, SimpleNamespace(order=order, where="x = 1", columns=()))
    reader = _ShareReader(ReadBudget(STEP_S, 10**6, 10**9), opened=0.0)
    share = [(0, PartitionLoad(ChunkReader(cast(Any, None), table, chunk), ()))]
    assert [rows for _, batches in reader.partitions(share) for rows in batches] == []
    outcomes = [_outcome(ChunkRead(0, chunk), one) for one in reader.progress]
    return with_outcomes(TableSnapshot(SnapshotState.READING, open=(chunk,), chunks=9), outcomes, clock[0], STEP_S)


def test_chunk_without_a_row_in_a_whole_step_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with --where and few matches in a large table: each step would begin it again at the same key."""
    chunk = Chunk(3, ("5",), ("9",), 1000)
    (left,) = step(monkeypatch, chunk, 40.0).open
    assert left.is_slow and (left.above, left.upto) == (("5",), ("9",))
    assert not step(monkeypatch, chunk, 20.0).open
    # a chunk that cannot be split is read without a limit
    assert not step(monkeypatch, left, 400.0).open


def test_chunk_that_was_read_for_a_moment_is_not_slow() -> None:
    chunk = Chunk(3, ("5",), ("9",), 1000)
    reading = TableSnapshot(SnapshotState.READING, open=(chunk,), chunks=9)
    for seconds, rows, is_slow in ((0.1, 0, False), (STEP_S, 0, True), (STEP_S, 1, False)):
        outcome = chunk_reader.ChunkOutcome(0, 3, ("5",), False, rows, 9, seconds)
        assert [one.is_slow for one in with_outcomes(reading, [outcome], 6.0, STEP_S).open] == [is_slow]


def test_slow_chunks_are_split_and_get_new_numbers() -> None:
    slow, other = Chunk(3, ("5",), ("9",), 1000, is_slow=True), Chunk(4, ("9",), None, 7)
    parts = (Chunk(3, ("5",), ("6",), 500), Chunk(9, ("6",), ("9",), 500))
    chunker = SimpleNamespace(split=lambda chunk, number: parts if (chunk, number) == (slow, 9) else ())
    found = split_slow_chunks(cast(Chunker, chunker), TableSnapshot(open=(slow, other), chunks=9))
    assert found == TableSnapshot(open=(*parts, other), chunks=10)
    stays = SimpleNamespace(split=lambda chunk, number: (chunk,))
    assert split_slow_chunks(cast(Chunker, stays), TableSnapshot(open=(slow,), chunks=9)).open == (slow,)


def test_null_as_the_last_key_of_a_batch_is_refused() -> None:
    """A zero date of the source's key, while the target has another key: a bound of it would exclude all other rows."""
    column = Column("at", Kind.DATETIME, "datetime", nullable=False)
    table = cast(Any, SimpleNamespace(order=KeyOrder("t", "p", (KeyColumn(column),)), columns=(column,)))
    batch = pa.record_batch({"at": pa.array([1, None], pa.timestamp("us"))})
    with pytest.raises(DecodeError, match="invalid date"):
        chunk_reader._last_key(table, cast(Any, SimpleNamespace(batch=batch, raw=lambda *_: b"")))
