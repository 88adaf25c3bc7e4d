"""Which readers read Delta tables of this program, with and without deletion vectors: docs/how-to/read-delta.md lists it.

Readers whose packages do not fit the environment of the tests run with a Python of their own (`make test-readers`).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from channels.sinks.delta import maintenance
from channels.sinks.delta.sink import MergeMode
from tests.conftest import unavailable
from tests.emulators.maven import obtain_jars
from tests.integration.test_delta_vectors import TABLE, commit, folder_of, open_sink, vectors

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/read-delta.md"
PROGRAM = ROOT / "tests/integration/readers/read.py"
PYTHON = "CDC_TEST_READERS"  # variable with the interpreter that has the other readers
REFUSED = "refused with an error"
Rows = dict[int, int]
WRITTEN: Rows = {key: 1 for key in range(1000) if key != 6} | {5: 2, 2000: 2, 8: 3}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[MergeMode, Path]:
    """Return the folder of a table of each way: with a checkpoint of the log, and with changes after it."""
    modes: tuple[MergeMode, ...] = ("rewrite", "deletion_vectors")
    return {mode: folder_of(_write(tmp_path_factory.mktemp(mode), mode)) for mode in modes}


def _write(root: Path, mode: MergeMode) -> Path:
    sink = open_sink(root, mode)
    commit(sink, 1, dict.fromkeys(range(1000), 1))
    commit(sink, 2, {5: 2, 6: None, 2000: 2})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance.delta_tables, "CHECKPOINT_EVERY", 1)
        sink.maintain([TABLE])
    assert list((folder_of(root) / "_delta_log").glob("*.checkpoint.parquet"))
    commit(sink, 3, {8: 3})
    assert bool(vectors(root)) is (mode == "deletion_vectors")
    sink.close()
    return root


def _of_arrow(table: pa.Table) -> Rows:
    return dict(zip(table.column("id").to_pylist(), table.column("n").to_pylist(), strict=True))


def _by_query_builder(path: Path) -> Rows:
    found = QueryBuilder().register("t", DeltaTable(str(path))).execute("select id, n from t").read_all()
    return _of_arrow(pa.table(found))


READERS: dict[str, Callable[[Path], Rows]] = {
    "deltalake `QueryBuilder`": _by_query_builder,
    "deltalake `to_pyarrow_table`": lambda path: _of_arrow(DeltaTable(str(path)).to_pyarrow_table()),
    "deltalake `to_pyarrow_dataset`": lambda path: _of_arrow(DeltaTable(str(path)).to_pyarrow_dataset().to_table()),
    "deltalake `to_pandas`": lambda path: _of_arrow(pa.Table.from_pandas(DeltaTable(str(path)).to_pandas())),
    "polars `scan_delta`": lambda path: _of_arrow(polars.scan_delta(str(path)).collect().to_arrow()),
}
OTHERS = {"DuckDB `delta_scan`": "duckdb", "Spark with the Delta package": "spark"}


def _listed() -> dict[str, tuple[str, str]]:
    """Return what the page says of each reader: tables of `rewrite`, and tables with deletion vectors."""
    lines = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cells[0]: (cells[1], cells[2]) for cells in lines if len(cells) == 3}


@pytest.mark.parametrize("reader", READERS)
def test_page_says_what_a_reader_reads(reader: str, written: dict[MergeMode, Path]) -> None:
    said = []
    for path in written.values():
        try:
            found = READERS[reader](path)
        except DeltaError:
            said.append(REFUSED)
        else:
            said.append("yes" if found == WRITTEN else "**wrong**")
    assert _listed()[reader] == tuple(said)


@pytest.mark.readers
@pytest.mark.parametrize("reader", OTHERS)
def test_page_says_what_another_reader_reads(reader: str, written: dict[MergeMode, Path]) -> None:
    if not (python := os.environ.get(PYTHON)):
        unavailable(f"{PYTHON} is not set: make test-readers")
    environment = {**os.environ, "CDC_TEST_DELTA_JARS": str(obtain_jars("delta-spark", PROGRAM.parent / "pom.xml"))}
    said = []
    for path in written.values():
        command = [python, str(PROGRAM), OTHERS[reader], str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        rows = json.loads(done.stdout.splitlines()[-1])
        said.append("yes" if len(rows) == len(WRITTEN) and dict(map(tuple, rows)) == WRITTEN else "**wrong**")
    assert _listed()[reader] == tuple(said)


def test_page_lists_every_reader_of_the_tests() -> None:
    assert _listed().keys() >= READERS.keys() | OTHERS.keys()
