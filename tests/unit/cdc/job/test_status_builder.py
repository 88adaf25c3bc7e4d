"""Differences in the status: columns and rows of changes that were not applied, until they no longer hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.api.models import ChannelStatus, ColumnDifference
from cdc.job.record import JobState
from cdc.job.status_builder import _with_differences
from cdc.model.position import BinlogPosition
from cdc.model.schema_change import ChangeKind, ColumnMap
from cdc.model.snapshot import SnapshotState, TableSnapshot
from cdc.state.base import Checkpoint, CheckpointState
from cdc.state.codec import from_json, to_json

BEFORE, STATEMENT, AFTER = (BinlogPosition("bin.000001", offset) for offset in (4, 90, 200))
KEPT = ColumnMap(names={"b": None}, kept_rows={"truncate.table": STATEMENT})
COLUMN = ColumnDifference(ChangeKind.ADD_COLUMN, "b", None)
ROWS = ColumnDifference(ChangeKind.TRUNCATE_TABLE, "", None)
DONE = TableSnapshot(SnapshotState.CONSISTENT, deletes_orphans=True, low=AFTER)


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (None, (COLUMN, ROWS)),
        (DONE, (COLUMN,)),
        (replace(DONE, low=STATEMENT), (COLUMN,)),
        (replace(DONE, low=BEFORE), (COLUMN, ROWS)),
        (replace(DONE, deletes_orphans=False), (COLUMN, ROWS)),
        (replace(DONE, state=SnapshotState.CATCHING_UP), (COLUMN, ROWS)),
        (replace(DONE, low=BinlogPosition("other.000001", 400, "other")), (COLUMN, ROWS)),
    ],
)
def test_kept_rows_are_a_difference_until_a_snapshot_deletes_them(
    snapshot: TableSnapshot | None, expected: tuple[ColumnDifference, ...]
) -> None:
    checkpoint = Checkpoint(
        1,
        1,
        CheckpointState.COMMITTED,
        BEFORE,
        AFTER,
        column_maps={"shop.orders": KEPT},
        snapshots={"shop.orders": snapshot} if snapshot else {},
    )
    channels = [ChannelStatus("shop.orders", "ods.orders", JobState.RUNNING)]
    saved = from_json(Checkpoint, to_json(checkpoint))
    (found,) = _with_differences(channels, saved)
    assert found.differences == expected
