"""A job that is killed while it loads full tables during writes: source equals target, and no chunk is read twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.demo.local_servers import Kind
from tests.recovery.snapshot_crash import run
from tests.support.seeds import seed_of


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("source", "target", "kind", "kills"),
    [("binlog", "delta", "mysql", 1), ("binlog", "delta", "mariadb", 1)],
)
def test_snapshot_with_writes_and_kills_equals_source(
    tmp_path: Path, source: str, target: str, kind: Kind, kills: int
) -> None:
    assert run(tmp_path, source, target, kills=kills, seed=seed_of(), kind=kind) > 60_000
