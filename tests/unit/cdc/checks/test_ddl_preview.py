"""What a job would do with a DDL statement, without a server."""

from __future__ import annotations

import io
import json
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

import cdc.checks.job
from cdc.checks.ddl_preview import Preview, preview_statement
from cdc.cli.main import app
from cdc.cli.views import preview_view
from cdc.errors import ConfigError
from cdc.model.batch import TargetState
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import (
    ChangeKind,
    ChangeMode,
    ChangePolicy,
    ColumnChange,
    ColumnMap,
    SchemaChange,
    TableChange,
)
from cdc.state.base import Checkpoint, CheckpointState, JobState
from cdc.state.sqlite import SqliteStore
from channels.mapping import Mapping
from channels.routes import Routes
from channels.sinks.base import Finding
from channels.task import RunIdentity

ID, A = Column("id", Kind.INT, "int", nullable=False), Column("a", Kind.INT, "int")
SCHEMAS = {("shop", "orders"): TableSchema("shop", "orders", (ID, A), ("id",))}
HERE = BinlogPosition("bin.000001", 4)
ADD = "ALTER TABLE shop.orders ADD b INT DEFAULT 5, RENAME COLUMN a TO `c\x1b`"


class Sink:
    alters_in_one_commit = True

    def target_states(self, *_: object) -> dict[str, TargetState]:
        return {"ods.orders": TargetState("1")}

    def check_steps(self, *_: object) -> tuple[Finding, ...]:
        return (Finding("The change writes 12 rows again.", "Expect it.", fatal=False),)

    def alter(self, *_: object) -> None:
        raise AssertionError("a preview changes nothing")


def preview(
    statement: str,
    mode: ChangeMode = ChangeMode.LENIENT,
    checkpoint: Checkpoint | None = None,
    ansi_quotes: bool | None = False,
) -> Preview:
    routes = Routes([Mapping("shop.orders", "ods.orders", changes=ChangePolicy(mode))])
    components: Any = SimpleNamespace(routes=routes, sink=Sink(), types=None, snapshot="tables")
    run = RunIdentity("shop", "0badcafe", 0)
    return preview_statement(statement, SCHEMAS, components, run, checkpoint, mariadb=False, ansi_quotes=ansi_quotes)


def test_preview_reads_double_quotes_as_the_job_does() -> None:
    statement = 'ALTER TABLE orders ADD x VARCHAR(9) DEFAULT ("id")'
    assert preview(statement).reason is None
    refused = preview(statement, ansi_quotes=None).reason
    assert refused is not None and "double quotes" in refused


def test_preview_shows_actions_steps_and_costs() -> None:
    found = preview(ADD)
    (table,) = found.tables
    assert found.reason is None and table.costs == ("The change writes 12 rows again.",)
    assert {(one.action, one.old, one.new) for one in table.change.steps} == {
        ("add", None, "b"), ("rename", "a", "c\x1b"),
    }  # fmt: skip
    assert [one.action for one in table.change.actions] == ["apply", "apply"] and not table.change.is_reloaded
    assert [one.source for one in (preview("ALTER TABLE orders ADD b INT").tables[0].change,)] == ["shop.orders"]


@pytest.mark.parametrize(
    ("statement", "mode", "reason"),
    [
        (ADD, ChangeMode.PAUSE, "`schema_changes` has the action pause for"),
        ("TRUNCATE TABLE shop.orders", ChangeMode.LENIENT, "pause for truncate.table"),
        ("DROP TABLE shop.orders", ChangeMode.PAUSE, "pause for drop.table"),
        ("ALTER TABLE shop.orders MODIFY a DATE", ChangeMode.EVOLVE, "cannot convert a from int to date"),
        ("ALTER TABLE shop.orders ADD (", ChangeMode.EVOLVE, "cannot be followed"),
    ],
)
def test_preview_of_pause_shows_the_reason(statement: str, mode: ChangeMode, reason: str) -> None:
    found = preview(statement, mode)
    assert found.reason is not None and reason in found.reason and found.hint and found.tables == ()


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE shop.other ADD b INT",
        "CREATE VIEW shop.v AS SELECT 1",
        "SET @a = 1",
        "ALTER TABLE shop.orders COMMENT 'x'",
    ],
)
def test_preview_of_other_statement_has_no_table(statement: str) -> None:
    found = preview(statement)
    assert (found.reason, found.tables) == (None, ())


def test_preview_says_that_it_does_not_know_the_time_of_the_statement() -> None:
    found = preview("ALTER TABLE shop.orders ADD b DATETIME(3) DEFAULT NOW(3), ADD c INT")
    (table,) = found.tables
    assert not table.change.is_reloaded, "the job fills the value in"
    (note,) = table.notes
    assert "rows of b get the time of the statement in the time zone" in note and f"note: {note}" in shown(found)
    assert preview("ALTER TABLE shop.orders ADD c INT").tables[0].notes == ()


def test_preview_uses_the_differences_of_the_checkpoint() -> None:
    maps = {"shop.orders": ColumnMap({"a": None})}
    checkpoint = Checkpoint(7, 1, CheckpointState.COMMITTED, HERE, HERE, column_maps=maps)
    (table,) = preview("ALTER TABLE shop.orders RENAME COLUMN a TO c", checkpoint=checkpoint).tables
    assert table.change.steps == (), "the target does not have the column"


def shown(found: Preview) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    preview_view(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_preview_view_prints_steps_reason_or_nothing() -> None:
    text = shown(preview(ADD))
    for part in (
        "shop.orders -> ods.orders",
        "add.column b: apply",
        "rename a -> c?",
        "cost: The change writes 12 rows",
    ):
        assert part in text
    assert "The job would pause. TRUNCATE" not in text
    assert shown(preview("TRUNCATE TABLE shop.orders")).startswith("The job would pause. ")
    assert "The job would continue." in shown(preview("SET @a = 1"))


def test_ddl_command_with_statement_prints_the_preview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    file = tmp_path / "shop.yaml"
    file.write_text(
        "name: shop\nsource: {type: binlog, host: db, username: u}\nsink: {type: delta, path: ./w}\n"
        "channels: [{source: shop.orders, target: ods.orders}]\n"
    )
    given: list[Any] = []

    def preview_of_job(config: Any, statement: str, incarnation: str, checkpoint: Checkpoint | None) -> Preview:
        given.append((incarnation, checkpoint.id if checkpoint else None))
        return preview(statement)

    monkeypatch.setattr(cdc.checks.job, "preview_of_job", preview_of_job)
    words = ("ddl", str(file), "--statement", "TRUNCATE TABLE shop.orders")
    assert "run `cdc resume shop`" in CliRunner().invoke(app, words, catch_exceptions=False).output
    with closing(SqliteStore(tmp_path)) as store:
        record = store.acquire("shop", str(file))
        store.save(Checkpoint(3, 1, CheckpointState.COMMITTED, HERE, HERE))
    words = ("ddl", str(file), "--output", "json", "--statement", "ALTER TABLE shop.orders ADD b INT")
    body = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).output)
    assert given == [("", None), (record.incarnation, 3)]
    assert body["tables"][0]["change"]["steps"] == [{"action": "add", "old": None, "new": "b"}]


def test_ddl_command_for_canal_without_a_server_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    file = tmp_path / "shop.yaml"
    file.write_text(
        "name: shop\nsource: {type: canal, servers: ['c:11111'], destination: d}\nsink: {type: delta, path: ./w}\n"
        "channels: [{source: shop.orders, target: ods.orders}]\n"
    )
    with pytest.raises(ConfigError) as refused:
        CliRunner().invoke(app, ("ddl", str(file), "--statement", ADD), catch_exceptions=False)
    assert "has no MySQL server" in refused.value.message


def test_preview_of_tables_shows_each_name() -> None:
    def actions(statement: str) -> dict[str, list[tuple[str, str]]]:
        found = preview(statement, ChangeMode.LENIENT)
        assert found.reason is None, found.reason
        return {
            one.change.target: [(each.kind.value, each.action) for each in one.change.actions] for one in found.tables
        }

    assert actions("DROP TABLE shop.orders") == {"ods.orders": [("drop.table", "ignore")]}
    assert actions("RENAME TABLE shop.orders TO crm.orders") == {"ods.orders": [("rename.table", "ignore")]}
    assert actions("CREATE TABLE shop.other (id INT PRIMARY KEY)") == {}


def test_ddl_command_pending_previews_the_statement_of_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    file = tmp_path / "shop.yaml"
    file.write_text(
        "name: shop\nsource: {type: binlog, host: db, username: u}\nsink: {type: delta, path: ./w}\n"
        "channels: [{source: shop.orders, target: ods.orders, schema_changes: pause}]\n"
    )
    before = SCHEMAS["shop", "orders"]
    after = replace(before, columns=(ID,))
    dropped = TableChange(before, after, (ColumnChange(ChangeKind.DROP_COLUMN, A),))
    change = SchemaChange("ALTER TABLE shop.orders\nDROP COLUMN a", HERE, HERE, (dropped,))
    routes = Routes([Mapping("shop.orders", "ods.orders", changes=ChangePolicy(ChangeMode.PAUSE))])
    components = SimpleNamespace(routes=routes, sink=Sink(), types=None, snapshot="tables")
    monkeypatch.setattr(cdc.checks.job, "_built", lambda config: nullcontext(components))

    def printed(*words: str) -> str:
        return CliRunner().invoke(app, ("ddl", "shop", "--pending", *words), catch_exceptions=False).output

    with closing(SqliteStore(tmp_path)) as store:
        record = replace(store.acquire("shop", str(file)), state=JobState.PAUSED, reason="Unreadable.", hint="Do it.")
        store.save_job(record)
        with pytest.raises(ConfigError, match="not paused at a DDL statement"):
            printed()
        store.save_job(replace(record, stopped_at_ddl=HERE))
        assert "The job would pause. Unreadable." in printed()
        store.save_job(replace(record, stopped_at_ddl=HERE, pending_change=change))
    text = printed()
    assert "shop is paused at: ALTER TABLE shop.orders DROP COLUMN a" in text
    assert "drop.column a: apply" in text and "step 1: drop a" in text
    assert json.loads(printed("--output", "json"))["statement"] == change.statement
