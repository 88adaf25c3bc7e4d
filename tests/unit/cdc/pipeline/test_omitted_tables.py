"""Omitted tables: what a run restores of them at its start."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.errors import ConfigError
from cdc.model.left_out import LeftOut
from cdc.model.position import BinlogPosition
from cdc.model.schema import TableSchema
from cdc.model.snapshot import TableSnapshot
from cdc.pipeline import omitted_tables
from cdc.pipeline.omitted_tables import restore_tables
from cdc.state.base import Checkpoint, CheckpointState
from channels.mapping import Mapping
from channels.routes import Routes
from tests.model.source import schema_of

HERE = BinlogPosition("mysql-bin.000001", 4)
ORDERS = cast(TableSchema, cast(Any, schema_of)("b.orders"))


@pytest.mark.parametrize("is_snapshot_pending", [False, True])
def test_table_without_rows_keeps_its_target_at_the_next_start(
    monkeypatch: pytest.MonkeyPatch, is_snapshot_pending: bool
) -> None:
    """The first table of two with one target is read. The other one must not replace it after a restart."""
    there = {("a", "orders"): replace(ORDERS, database="a")}
    monkeypatch.setattr(omitted_tables, "Server", lambda _: nullcontext())
    monkeypatch.setattr(omitted_tables, "mapped_tables", lambda *_: [*there])
    monkeypatch.setattr(omitted_tables, "table_schemas", lambda *_: there)
    committed = Checkpoint(
        0,
        1,
        CheckpointState.COMMITTED,
        HERE,
        HERE,
        schemas=() if is_snapshot_pending else (ORDERS,),
        snapshots={"b.orders": TableSnapshot()} if is_snapshot_pending else {},
        left_out={"a.orders": LeftOut("Target table ods.orders is used twice.", "Leave it out.")},
    )
    routes = Routes([Mapping("a.*", "ods.*"), Mapping("b.*", "ods.*")])
    context = SimpleNamespace(
        store=SimpleNamespace(last_committed=lambda _: committed, unfinished=lambda: ()),
        run=SimpleNamespace(job="shop"),
        routes=routes,
        snapshot=SimpleNamespace(endpoint=None),
    )
    assert restore_tables(cast(Any, context)) == frozenset()
    assert routes.maps("b", "orders") and set(routes.left_out) == {"a.orders"}


def _without_tables(*mappings: Mapping) -> Any:
    left_out = {"a.orders": LeftOut("It has no key.", "The next start loads the whole table.")}
    committed = Checkpoint(0, 1, CheckpointState.COMMITTED, HERE, HERE, left_out=left_out)
    return SimpleNamespace(
        store=SimpleNamespace(last_committed=lambda _: committed, unfinished=lambda: ()),
        run=SimpleNamespace(job="shop"),
        routes=Routes(mappings, can_load_whole=False),
        snapshot=None,
    )


def test_restore_tables_named_table_of_a_stream_raises() -> None:
    context = _without_tables(Mapping("a.*", "ods.*"), Mapping("a.orders", "ods.orders"))
    with pytest.raises(ConfigError, match=r"changes of a\.orders") as caught:
        restore_tables(context)
    assert "job of another name" in caught.value.hint


def test_restore_tables_pattern_of_a_stream_corrects_the_hint() -> None:
    context = _without_tables(Mapping("a.*", "ods.*"))
    assert restore_tables(context) == frozenset()
    assert "job of another name" in context.routes.left_out["a.orders"].hint
    excluded = _without_tables(Mapping("a.*", "ods.*", exclude=("orders",)))
    restore_tables(excluded)
    assert not excluded.routes.left_out
