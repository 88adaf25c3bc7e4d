"""Tables that are full, and written to all the while, under a job that is killed: source equals target, no chunk twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.local_servers import Kind
from tests.recovery.snapshot_kills import run
from tests.seeds import seed_of


@pytest.mark.parametrize(
    ("source", "target", "kind", "kills"),
    [("binlog", "delta", "mysql", 1), ("binlog", "delta", "mariadb", 1)],
)
def test_full_tables_are_loaded_whole_under_writes_and_kills(
    tmp_path: Path, source: str, target: str, kind: Kind, kills: int
) -> None:
    assert run(tmp_path, source, target, kills=kills, seed=seed_of(), kind=kind) > 60_000
