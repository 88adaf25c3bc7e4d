"""No hint of a Kafka source names what only a source with tables has."""

from __future__ import annotations

from pathlib import Path

import pytest

import cdc.sources.kafka

MODULES = sorted(Path(str(cdc.sources.kafka.__file__)).parent.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_kafka_hints_need_no_tables(module: Path) -> None:
    text = module.read_text()
    found = [
        one for one in ("GAP_HINT", "RESYNC_HINT", "GAP_SNAPSHOT_HINT", "cdc snapshot", "table again") if one in text
    ]
    assert not found
