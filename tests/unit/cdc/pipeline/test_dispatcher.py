"""Dispatcher: when the target of a table without rows is created."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from cdc.model.schema import TableSchema
from cdc.pipeline.dispatcher import Dispatcher
from channels.mapping import Mapping
from channels.routes import Routes
from tests.model.source import position_at, schema_of

ORDERS = cast(TableSchema, cast(Any, schema_of)("shop.orders"))


def test_close_reads_new_columns_and_creates_no_target() -> None:
    """A target whose columns are not saved would not fit if the table were changed during a stop."""
    created: list[str] = []
    schemas: tuple[TableSchema, ...] = ()
    context = SimpleNamespace(
        channels={},
        receiver=SimpleNamespace(schemas=lambda: schemas),
        routes=Routes([Mapping("shop.*", "ods.*")]),
        sink=SimpleNamespace(ensure_table=lambda target: created.append(target.name)),
        types=None,
    )
    dispatcher = Dispatcher(cast(Any, context), cast(Any, position_at)(0), 0)
    dispatcher.join_all()
    schemas = (ORDERS,)
    assert dispatcher.close() is None
    assert dispatcher.schemas == (ORDERS,) and not created
    dispatcher.join_new(dispatcher.schemas)
    assert created == ["ods.orders"] and set(dispatcher.channels) == {"shop.orders"}
