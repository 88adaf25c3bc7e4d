"""How the readers of a snapshot's turn share what it may read."""

from __future__ import annotations

from typing import Any

import pytest

import channels.chunk_task
from channels.chunk_task import Reading
from spark.chunks import Pace


def test_each_reader_has_its_share_and_all_of_the_time() -> None:
    assert Pace(5.0, 1000, 400, 100.0, None).share(4) == Pace(5.0, 250, 100, 25.0, None)
    assert Pace(5.0, 1, 1).share(4) == Pace(5.0, 1, 1)


@pytest.mark.parametrize(("readers", "cores", "wanted"), [(4, 2, 2), (4, 8, 4), (1, 2, 1)])
def test_no_more_read_side_by_side_than_spark_has_cores(
    monkeypatch: pytest.MonkeyPatch, readers: int, cores: int, wanted: int
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(channels.chunk_task, "read_chunks", lambda *arguments: given.extend(arguments))
    Reading(None, (), (), readers, Pace(5.0, 1, 1)).run(None, cores)  # type: ignore[arg-type]
    assert given[4] == wanted
