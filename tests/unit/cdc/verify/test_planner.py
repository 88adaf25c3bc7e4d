"""Names of tables that a user types for a verification."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.verify import VerifyRequest
from cdc.mysql.server import Server
from cdc.verify import planner as module
from cdc.verify.planner import CannotCompare, VerifyPlanner
from channels.mapping import Mapping
from channels.routes import Routes


def test_name_that_the_source_does_not_have_takes_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is shop.orders, which has no rows yet."""
    monkeypatch.setattr(module, "table_schemas", lambda *_: {})
    routes = Routes([Mapping("shop.*", "ods.*")])
    planner = VerifyPlanner(cast(Any, SimpleNamespace(routes=routes)), lambda schema: None, ())
    with pytest.raises(CannotCompare, match="the source does not have this table"):
        planner.table(cast(Server, None), "shop.Orders", VerifyRequest(("shop.Orders",)), 1)
    assert routes.maps("shop", "orders") and not routes.left_out
