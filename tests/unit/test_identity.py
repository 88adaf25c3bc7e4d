"""What a job file may not change while its job lives, where a table moves from one channel to another."""

from __future__ import annotations

import pytest

from cdc.checkpoint import ChannelCounts, Checkpoint, CheckpointState, JobRecord, JobState
from cdc.config import Config
from cdc.errors import ConfigError
from cdc.identity import check_identity, check_loaded, identity_of
from cdc.position import BinlogPosition
from cdc.schema import Column, Kind, TableSchema

PLACE = BinlogPosition("b.000001", 4)
SCHEMA = TableSchema("crm", "notes", (Column("id", Kind.INT, "int", nullable=False),), ("id",))
COMMITTED = Checkpoint(
    1, 1, CheckpointState.COMMITTED, PLACE, PLACE, schemas=(SCHEMA,), counts={"crm.notes": ChannelCounts(upserts=1)}
)
PATTERN = {"source": "crm.*", "target": "ods.*"}


def config(*channels):
    source = {"type": "binlog", "host": "h", "username": "u"}
    return Config.model_validate(
        {"name": "shop", "source": source, "sink": {"type": "delta", "path": "/w"}, "channels": channels}
    )


def record(*channels):
    return JobRecord("shop", "a", 1, JobState.PAUSED, "/shop.yaml", identity=identity_of(config(*channels)))


@pytest.mark.parametrize("own", [{"target": "ods.other"}, {"key": ["text"]}, {"target": "ods.`no tes`"}])
def test_a_loaded_table_keeps_its_target_and_key(own):
    later = config(PATTERN, {"source": "crm.notes", "target": "ods.notes", **own})
    check_identity(record(PATTERN), later)
    with pytest.raises(ConfigError, match=r"crm\.notes was ods\.notes by id"):
        check_loaded(record(PATTERN), later, COMMITTED)


@pytest.mark.parametrize("own", [{}, {"key": ["id"]}, {"filter": "id > 1"}])
def test_a_loaded_table_may_move_to_a_channel_of_its_own(own):
    channel = {"source": "crm.notes", "target": "ods.notes", **own}
    check_loaded(record(PATTERN), config(PATTERN, channel), COMMITTED)
    check_loaded(record(PATTERN, channel), config(PATTERN), COMMITTED)


def test_a_table_without_committed_rows_may_get_another_target():
    later = config(PATTERN, {"source": "crm.notes", "target": "ods.other", "key": ["text"]})
    check_loaded(record(PATTERN), later, Checkpoint(1, 1, CheckpointState.COMMITTED, PLACE, PLACE))
