"""XA transactions that were prepared before the job began to read."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from cdc.errors import SourceActionRequired
from cdc.model.position import BinlogPosition
from cdc.sources.prepared_xa import refuse_unknown

XID = "X'31',X'',1"


def event(at, kind, info):
    return {"Pos": at, "End_log_pos": at + 100, "Event_type": kind, "Info": info}


def server_of(table):
    listed = [
        event(200, "Gtid", "SET @@SESSION.GTID_NEXT= 'a:1'"), event(300, "Query", f"XA START {XID}"),
        event(400, "Table_map", f"table_id: 7 (shop.{table})"), event(500, "XA_prepare", f"XA PREPARE {XID}"),
    ]  # fmt: skip
    return SimpleNamespace(files=lambda: {"r.000007": 9999}, ask=lambda sql: listed)


@pytest.mark.parametrize("began", [BinlogPosition("r.000007", 800, "r"), BinlogPosition("", 0, "r", "a:1-9")])
def test_xa_commit_of_other_tables_is_no_error_also_after_a_failover(began):
    at = BinlogPosition("r.000007", 900, "r", "a:1-9")
    refuse_unknown(XID, began, at, lambda: nullcontext(server_of("log")), lambda _, table: table == "orders")
    with pytest.raises(SourceActionRequired, match=r"shop\.orders"):
        refuse_unknown(XID, began, at, lambda: nullcontext(server_of("orders")), lambda _, table: table == "orders")
