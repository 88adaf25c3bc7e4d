"""Changes of a job file that are refused or allowed when a loaded table moves to another channel."""

from __future__ import annotations

import pytest

from cdc.config.models import Config
from cdc.errors import ConfigError
from cdc.job.compatibility import build_identity, check_identity, check_loaded
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.state.base import ChannelCounts, Checkpoint, CheckpointState, JobRecord, JobState

START = BinlogPosition("b.000001", 4)
SCHEMA = TableSchema("crm", "notes", (Column("id", Kind.INT, "int", nullable=False),), ("id",))
COMMITTED = Checkpoint(
    1, 1, CheckpointState.COMMITTED, START, START, schemas=(SCHEMA,), counts={"crm.notes": ChannelCounts(upserts=1)}
)
PATTERN = {"source": "crm.*", "target": "ods.*"}


def config(*channels):
    source = {"type": "binlog", "host": "h", "username": "u"}
    return Config.model_validate(
        {"name": "shop", "source": source, "sink": {"type": "delta", "path": "/w"}, "channels": channels}
    )


def record(*channels):
    return JobRecord("shop", "a", 1, JobState.PAUSED, "/shop.yaml", identity=build_identity(config(*channels)))


@pytest.mark.parametrize("own", [{"target": "ods.other"}, {"key": ["text"]}, {"target": "ods.`no tes`"}])
def test_check_loaded_other_target_or_key_is_refused(own):
    later = config(PATTERN, {"source": "crm.notes", "target": "ods.notes", **own})
    check_identity(record(PATTERN), later)
    with pytest.raises(ConfigError, match=r"crm\.notes was ods\.notes by id"):
        check_loaded(record(PATTERN), later, COMMITTED)


@pytest.mark.parametrize("own", [{}, {"key": ["id"]}, {"filter": "id > 1"}])
def test_check_loaded_move_to_own_channel_is_allowed(own):
    channel = {"source": "crm.notes", "target": "ods.notes", **own}
    check_loaded(record(PATTERN), config(PATTERN, channel), COMMITTED)
    check_loaded(record(PATTERN, channel), config(PATTERN), COMMITTED)


def test_check_loaded_without_committed_rows_allows_target():
    later = config(PATTERN, {"source": "crm.notes", "target": "ods.other", "key": ["text"]})
    check_loaded(record(PATTERN), later, Checkpoint(1, 1, CheckpointState.COMMITTED, START, START))
