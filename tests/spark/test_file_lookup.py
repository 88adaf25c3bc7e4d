"""The lookup of a large merge as a Spark job finds the same rows as threads of the driver."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from channels.file_lookup import FileLookup
from channels.sinks.delta import files, vector_merge
from channels.sinks.delta.lookup import MergeKeys
from channels.sinks.delta.table_files import TableFile
from channels.sinks.delta.vectors import Positions
from channels.spark_runner import SparkTaskRunner
from spark.session import SessionHolder
from tests.integration.test_delta_vectors import apply, check, commit, open_sink


def test_lookup_on_executors_finds_the_rows_of_threads(
    sessions: SessionHolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_merge, "LOCAL_BYTES", 0)
    monkeypatch.setattr(files, "_GROUP_ROWS", 100)
    sink, found = open_sink(tmp_path), list[int]()
    runner = SparkTaskRunner(sessions, sink)

    def find(folder: Path, candidates: Sequence[TableFile], lookup: MergeKeys) -> Sequence[Positions]:
        rows = runner.submit_reading(FileLookup(folder, candidates, lookup)).result()
        found.append(sum(map(len, rows)))
        return rows

    sink.use_executors(find)
    expected: dict[int, int] = {}
    draw = random.Random(9)
    for checkpoint in range(1, 6):
        start = checkpoint * 1000
        rows: dict[int, int | None] = dict.fromkeys(range(start, start + 1000), checkpoint)
        rows |= {key: draw.choice((None, -checkpoint)) for key in draw.sample(range(1000, start + 1000), 100)}
        commit(sink, checkpoint, rows)
        apply(expected, rows)
        check(tmp_path, expected)
    assert sum(found) > 100
    sink.use_executors(lambda *_: 1 // 0)  # type: ignore[arg-type,return-value]
    commit(sink, 6, {1000: 6})
    check(tmp_path, expected | {1000: 6})
    sink.close()
