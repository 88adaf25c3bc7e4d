"""The history of schema changes: it is saved with the checkpoint, kept for ever, and shown by commands and metrics."""

from __future__ import annotations

import io
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry
from rich.console import Console

from cdc.api.metrics import JobCollector
from cdc.api.models import JobStatus
from cdc.cli.main import app
from cdc.cli.views import status_view
from cdc.errors import CheckpointError, ConfigError
from cdc.job.registry import offline_status
from cdc.job.status_builder import LiveStatus, build_status
from cdc.model.change_record import STATEMENT_BYTES, ChangeCount, cut_statement
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import (
    ChangeAction,
    ChangeKind,
    ChangePlan,
    ColumnMap,
    DifferenceStart,
    PlannedStep,
    PlannedTable,
)
from cdc.state.base import ChannelCounts, Checkpoint, CheckpointState, CloseReason
from cdc.state.sqlite import SqliteStore

HERE, THERE = BinlogPosition("bin.000001", 4), BinlogPosition("bin.000001", 90)
NOTE = Column("note", Kind.INT, "int")
TABLE = PlannedTable(
    "shop.orders",
    "ods.orders",
    TableSchema("shop", "orders", (Column("id", Kind.INT, "int", nullable=False),), ("id",)),
    steps=(
        PlannedStep("add", new_name="note", new=NOTE, fill=b"secret".hex()),
        PlannedStep("rename", "a", NOTE, "b", NOTE),
    ),
    is_reloaded=True,
    actions=(
        (ChangeKind.ADD_COLUMN, "note", ChangeAction.APPLY),
        (ChangeKind.RENAME_COLUMN, "a -> b", ChangeAction.APPLY),
        (ChangeKind.DROP_COLUMN, "old", ChangeAction.IGNORE),
    ),
)
STATEMENT = "ALTER TABLE shop.orders ADD note INT, RENAME COLUMN a TO b, DROP old"
PLAN = ChangePlan(STATEMENT, (TABLE,))
SINCE = DifferenceStart(THERE, "2026-01-01T00:00:01Z")
MAP = ColumnMap({"left": None, "new": "old"}, {"gone": NOTE}, names_since={"left": SINCE}, kept_since={"gone": SINCE})
SHOWN = {"position": {"file": THERE.file, "offset": THERE.offset, "gtid_set": "", "created": 0}, "time": SINCE.time}


def change(number: int, state: CheckpointState = CheckpointState.COMMITTED, **fields: Any) -> Checkpoint:
    saved = Checkpoint(
        number, 1, state, HERE, THERE,
        closed_by=CloseReason.SCHEMA_CHANGE, committed_at=f"2026-01-01T00:00:{number:02}Z", seconds={"commit": 1.25},
        counts={"shop.orders": ChannelCounts(1)}, column_maps={"shop.orders": MAP}, change=PLAN,
    )  # fmt: skip
    return replace(saved, **fields)


KEPT = 10  # checkpoints in this test


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    store = SqliteStore(tmp_path)
    store.acquire("shop", str(tmp_path / "shop.yaml"))
    yield store
    store.close()


def test_changes_of_committed_checkpoints_are_newest_first(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.state.sql.KEPT_COMMITTED", KEPT)
    for number in range(1, KEPT + 5):
        store.save(change(number))
        store.save(change(number))  # a repeated save adds nothing
    store.save(Checkpoint(50, 1, CheckpointState.COMMITTED, THERE, THERE))
    found = store.changes("shop", 100)
    assert [one.checkpoint for one in found] == list(range(KEPT + 4, 0, -1)), "older than checkpoints"
    assert store.changes("shop", 2) == found[:2] and store.changes("other", 2) == ()
    newest = found[0]
    assert (newest.position, newest.statement, newest.seconds) == (THERE, STATEMENT, 1.25)
    (table,) = newest.tables
    assert (table.source, table.target, table.is_reloaded) == ("shop.orders", "ods.orders", True)
    assert [(one.action, one.old, one.new) for one in table.steps] == [("add", None, "note"), ("rename", "a", "b")]
    assert [(one.kind.value, one.column, one.action.value) for one in table.actions] == [
        ("add.column", "note", "apply"), ("rename.column", "a -> b", "apply"), ("drop.column", "old", "ignore"),
    ]  # fmt: skip


def test_changes_of_prepared_checkpoint_are_current_only(store: SqliteStore) -> None:
    store.save(change(1, CheckpointState.PREPARED, change=replace(PLAN, done=1)))
    summary = store.change_summary("shop")
    assert store.changes("shop", 9) == () and (summary.applied, summary.last) == (0, None)
    assert summary.current is not None and summary.current.done == 1
    store.save(change(1))
    summary = store.change_summary("shop")
    assert summary.current is None and summary.applied == 1 and summary.last == store.changes("shop", 1)[0]


def test_changes_have_no_values_of_rows(store: SqliteStore) -> None:
    store.save(change(1))
    with sqlite3.connect(store.path) as file:
        (body,) = file.execute("SELECT body FROM cdc_changes").fetchone()
    assert b"secret".hex() not in body and "secret" not in body


def test_changes_failed_save_adds_neither_checkpoint_nor_change(store: SqliteStore) -> None:
    store.file.connection.execute("DROP TABLE cdc_changes")
    with pytest.raises(CheckpointError):
        store.save(change(1))
    assert store.last_committed("shop") is None, "one transaction"


def test_changes_of_forgotten_job_are_deleted(store: SqliteStore) -> None:
    store.save(change(1))
    store.release()
    store.forget("shop")
    assert store.changes("shop", 9) == () and store.change_summary("shop").applied == 0


def test_change_summary_counts_kinds_and_actions(store: SqliteStore) -> None:
    store.save(change(1))
    store.save(change(2))
    only_added = replace(TABLE, actions=TABLE.actions[:1])
    store.save(change(3, change=ChangePlan("ALTER", (only_added, only_added))))
    assert store.change_summary("shop").counts == (
        ChangeCount(ChangeKind.ADD_COLUMN, ChangeAction.APPLY, 4),
        ChangeCount(ChangeKind.DROP_COLUMN, ChangeAction.IGNORE, 2),
        ChangeCount(ChangeKind.RENAME_COLUMN, ChangeAction.APPLY, 2),
    )


def test_cut_statement_keeps_whole_characters() -> None:
    assert cut_statement("ALTER") == "ALTER"
    assert cut_statement("x" + "ü" * STATEMENT_BYTES) == "x" + "ü" * (STATEMENT_BYTES // 2 - 1)
    assert cut_statement("a\udcffb") == "a?b", "a byte that is not UTF-8"


def status_of(store: SqliteStore) -> JobStatus:
    record = store.job("shop")
    assert record is not None
    return offline_status(store, record)


def test_status_shows_changes_and_differences(store: SqliteStore) -> None:
    assert status_of(store).to_json()["schema_changes"] == {"applied": 0, "last": None, "current": None, "counts": []}
    store.save(change(1))
    store.save(change(2, CheckpointState.PREPARED, change=replace(PLAN, done=1)))
    status = status_of(store)
    body = status.to_json()
    assert body["schema_changes"]["applied"] == 1
    assert body["schema_changes"]["last"] == {
        "checkpoint": 1, "committed_at": "2026-01-01T00:00:01Z", "statement": STATEMENT, "tables": ["shop.orders"],
        "seconds": 1.25,
    }  # fmt: skip
    assert body["schema_changes"]["current"] == {
        "statement": STATEMENT, "step": 1, "steps": 2, "progress": None,
    }  # fmt: skip
    assert {"kind": "add.column", "action": "apply", "number": 1} in body["schema_changes"]["counts"]
    assert body["checkpoint"]["closed_by"] == "schema_change"
    assert body["channels"][0]["differences"] == [
        {"kind": "add.column", "column": "left", "target": None, "since": SHOWN},
        {"kind": "rename.column", "column": "new", "target": "old", "since": None},
        {"kind": "drop.column", "column": "gone", "target": "gone", "since": SHOWN},
    ]
    assert JobStatus.from_json(body) == status
    saved = store.last_committed("shop")
    assert saved is not None and saved.column_maps["shop.orders"].kept_since == {"gone": SINCE}


def test_status_of_a_running_change_shows_the_progress_of_its_step(store: SqliteStore) -> None:
    store.save(change(2, CheckpointState.PREPARED, change=replace(PLAN, done=1)))
    record = store.job("shop")
    assert record is not None
    live = LiveStatus(alter_progress=0.4)
    status = build_status(record, None, (), store.change_summary("shop"), live)
    assert status.schema_changes.current is not None and status.schema_changes.current.progress == 0.4
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(status_view(status))
    assert "1 of 2 steps done, 40% of the next one: ALTER" in console.file.getvalue()  # type: ignore[attr-defined]


def test_metrics_count_changes_by_kind_and_action(store: SqliteStore) -> None:
    store.save(change(1))

    class Controls:
        def status(self) -> JobStatus:
            return status_of(store)

        def request(self, request: object) -> None:
            raise ConfigError("No.", hint="No.")

    registry = CollectorRegistry()
    registry.register(JobCollector(Controls()))
    text = generate_latest(registry).decode()
    assert 'cdc_schema_changes_total{action="apply",job_name="shop",kind="add.column"} 1.0' in text
    assert 'cdc_schema_change_seconds{job_name="shop"} 1.25' in text
    assert 'cdc_schema_changes_total{action="ignore",job_name="shop",kind="drop.column"} 1.0' in text


def run(*words: str) -> str:
    found = CliRunner().invoke(app, words, catch_exceptions=False)
    assert found.exit_code == 0
    return found.output


def test_changes_command_prints_table_and_json(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert "The job shop has followed no schema change." in run("changes", "shop")
    assert json.loads(run("changes", "shop", "--output", "json")) == []
    store.save(change(1, change=replace(PLAN, statement="ALTER\x1b[31m [red]TABLE")))
    store.save(change(2))
    text = run("changes", "shop")
    for part in ("CHECKPOINT", "add.column note: apply", "drop.column old: ignore", "loaded again", "ALTER?[31m [red]"):
        assert part in text
    assert "\x1b[31m" not in text
    bodies = json.loads(run("changes", "shop", "-o", "json", "--limit", "1"))
    assert [one["checkpoint"] for one in bodies] == [2]
    assert bodies[0]["position"]["offset"] == 90
    assert bodies[0]["tables"][0]["steps"][1] == {"action": "rename", "old": "a", "new": "b"}


def test_changes_command_without_job_is_refused(store: SqliteStore) -> None:
    with pytest.raises(ConfigError, match="There is no job crm"):
        CliRunner().invoke(app, ("changes", "crm"), catch_exceptions=False)


def test_status_command_shows_changes_and_differences(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    store.save(change(1))
    text = run("status", "shop")
    assert "1 change, last " in text and "NOT APPLIED" in text and "rename.column" in text
    assert SINCE.time in text
    store.save(change(2, CheckpointState.PREPARED, change=replace(PLAN, done=1)))
    assert "1 of 2 steps done: ALTER TABLE shop.orders ADD" in run("status", "shop")
