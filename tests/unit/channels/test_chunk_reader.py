"""Limits of the parallel readers of a snapshot step."""

from __future__ import annotations

from typing import Any

import pytest

import channels.chunk_task
from channels.chunk_task import ChunkReadRequest
from channels.partition_read import ReadBudget


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
