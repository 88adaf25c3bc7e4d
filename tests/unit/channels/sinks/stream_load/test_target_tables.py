"""The number of replicas in the CREATE TABLE of a target."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.sink_models import ChannelTable, TargetTablesConfig
from channels.sinks.doris.names import DORIS_NAMES
from channels.sinks.doris.table import DORIS_TABLES
from channels.sinks.stream_load.target_tables import TableHooks, TargetTables
from tests.emulators.cases import TABLE


def tables_of(statements: list[str], counted: int | None, **options: Any) -> TargetTables:
    sql = SimpleNamespace(has_table=lambda table: False, execute=lambda statement, table: statements.append(statement))
    hooks = TableHooks(lambda: counted, lambda: DORIS_NAMES)
    config = TargetTablesConfig(**options).model_dump()
    tables = TargetTables(sql, DORIS_TABLES, hooks, can_create=True, options=config)  # type: ignore[arg-type]
    tables.findings = lambda table: ()  # type: ignore[method-assign]
    return tables


def replicas(statement: str) -> str | None:
    found = re.search(r'"replication_\w+" = "(.*)"', statement)
    return found and found[1]


@pytest.mark.parametrize(
    ("counted", "options", "of_channel", "expected"),
    [
        (3, {}, {}, "3"),
        (None, {}, {}, None),  # the default of the cluster
        (3, {"replication": 2}, {}, "2"),
        (3, {}, {"replication": 1}, "1"),
        (3, {"properties": {"replication_allocation": "tag.location.default: 2"}}, {}, "tag.location.default: 2"),
        (3, {}, {"properties": {"replication_allocation": "tag.location.default: 2"}}, "tag.location.default: 2"),
    ],
)
def test_created_table_has_expected_replicas(
    counted: int | None, options: dict[str, Any], of_channel: dict[str, Any], expected: str | None
) -> None:
    statements: list[str] = []
    table = replace(TABLE, options=ChannelTable(**of_channel).model_dump())
    tables_of(statements, counted, **options).ensure(table)
    assert replicas(statements[-1]) == expected and statements[-1].count("replication_") == (expected is not None)


@pytest.mark.parametrize(
    ("counted", "options", "expected"), [(2, {}, "2"), (2, {"replication": 1}, "1"), (None, {}, "1")]
)
def test_checkpoint_table_has_expected_replicas(counted: int | None, options: dict[str, Any], expected: str) -> None:
    assert (
        f'= "{expected}"'
        in tables_of([], counted, **options).checkpoints_statement("ods").rpartition("replication_")[2]
    )


def test_ddl_without_replication_uses_default_of_cluster() -> None:
    statements: list[str] = []
    assert replicas(tables_of(statements, 3).create_statement(TABLE)) is None
    assert replicas(tables_of(statements, 3, replication=2).create_statement(TABLE)) == "2"
    assert not statements
