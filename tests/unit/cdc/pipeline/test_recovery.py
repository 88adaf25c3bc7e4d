"""Recovery: the comparison of the saved state with the sink before a run, and OPEN checkpoints."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.errors import SinkOwnershipError
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.pipeline.recovery import Recovery, check_sink_state
from cdc.state.base import Checkpoint, CheckpointState
from channels.sinks.base import SinkCheckpoint

HERE = BinlogPosition("mysql-bin.000001", 4)
COMMITTED = Checkpoint(0, 1, CheckpointState.COMMITTED, first=HERE, last=HERE)
PREPARED = replace(COMMITTED, id=1, state=CheckpointState.PREPARED)
RECORD = SimpleNamespace(name="shop", incarnation="0badcafe", fence=2, adopted=None)


@pytest.mark.parametrize(("newest", "is_older"), [(0, False), (1, False), (2, True)])
def test_compare_sink_with_second_prepared_is_refused(newest: int, is_older: bool) -> None:
    """The sink commits one checkpoint after the other: of two PREPARED ones it can have only the first."""
    unfinished = (PREPARED, replace(PREPARED, id=2))
    store = SimpleNamespace(last_committed=lambda _: COMMITTED, unfinished=lambda: unfinished)
    mark = SinkCheckpoint("shop", "0badcafe", 1, newest, HERE, HERE, 9)
    sink = SimpleNamespace(last_checkpoint=lambda _: mark)
    if is_older:
        with pytest.raises(SinkOwnershipError, match="ahead of the state"):
            check_sink_state(RECORD, store, sink)  # type: ignore[arg-type]
    else:
        assert check_sink_state(RECORD, store, sink) == mark  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("incarnation", "checkpoint", "is_taken_over"),
    [("feedbeef", 7, True), ("feedbeef", 6, True), ("feedbeef", 8, False), ("0ddba11", 6, False)],
)
def test_commits_before_an_adoption_are_accepted(incarnation: str, checkpoint: int, is_taken_over: bool) -> None:
    """An older one is the newest if the table that had the adopted one was removed: the run reports the lost table."""
    record = SimpleNamespace(name="shop", incarnation="0badcafe", fence=40, adopted="feedbeef:7")
    store = SimpleNamespace(last_committed=lambda _: COMMITTED, unfinished=lambda: ())
    mark = SinkCheckpoint("shop", incarnation, 1, checkpoint, HERE, HERE, 9)
    sink = SimpleNamespace(last_checkpoint=lambda _: mark)
    if is_taken_over:
        assert check_sink_state(record, store, sink) == mark  # type: ignore[arg-type]
    else:
        with pytest.raises(SinkOwnershipError, match="another incarnation"):
            check_sink_state(record, store, sink)  # type: ignore[arg-type]


def test_open_checkpoint_that_the_sink_has_committed_is_read_again() -> None:
    """Its columns are those at its first position. A statement in its range can have renamed one."""
    columns = (TableSchema("shop", "orders", (Column("id", Kind.INT, "int"),), ("id",)),)
    committed = replace(COMMITTED, schemas=columns)
    unfinished = replace(PREPARED, state=CheckpointState.OPEN, last=None, schemas=columns)
    mark = SinkCheckpoint("shop", "0badcafe", 1, 1, HERE, replace(HERE, offset=900), 77)
    saved, opened = list[Checkpoint](), list[tuple[object, ...]]()
    context = SimpleNamespace(
        run=SimpleNamespace(job="shop", incarnation="0badcafe", fence=2),
        store=SimpleNamespace(
            last_committed=lambda _: committed, unfinished=lambda: (unfinished,), check_fence=lambda: None,
            save=saved.append,
        ),
        sink=SimpleNamespace(last_checkpoint=lambda _: mark),
        routes=SimpleNamespace(use_column_maps=lambda _: None, left_out={}),
        receiver=SimpleNamespace(note_loaded=lambda _: None, open=lambda *arguments: opened.append(arguments)),
        is_continued=True,
    )  # fmt: skip
    recovery = Recovery(cast(Any, context), cast(Any, None), cast(Any, None), 5, threading.Event())
    found = recovery.run(lambda: HERE)
    assert opened == [(HERE, columns, 77)], "the columns are not those at the position"
    assert saved == [found] and (found.id, found.state, found.last) == (1, CheckpointState.COMMITTED, HERE)
