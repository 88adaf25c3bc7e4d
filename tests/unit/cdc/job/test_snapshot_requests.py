"""Requests to load and to verify tables that are refused before they are saved."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.errors import ConfigError
from cdc.job.snapshot_requests import check_request, check_verify
from cdc.model.snapshot import SnapshotRequest
from cdc.model.table_names import table_of, table_text
from cdc.model.verify import VerifyRequest
from cdc.mysql.connection import Endpoint
from cdc.run_context import SnapshotSettings
from cdc.state.events import REQUEST_S


class Routes:
    """Maps one table."""

    def may_map(self, database: str, table: str) -> bool:
        return (database, table) == ("shop", "orders")


class Sink:
    """A sink whose rows can be read."""

    def row_reader(self, *_: object) -> None: ...


def check(request: VerifyRequest, *, settings: object = object(), sink: object = None) -> None:
    check_verify(request, cast(SnapshotSettings, settings), cast(Any, Routes()), cast(Any, sink or Sink()))


def test_verify_of_a_source_without_tables_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="no tables, only a stream") as caught:
        check(VerifyRequest(), settings=None)
    assert "`source.mysql`" in caught.value.hint and "`binlog` source" in caught.value.hint


def test_verify_of_tables_and_samples_that_are_not_valid_is_refused() -> None:
    check(VerifyRequest(("shop.orders",), sample=0.5))
    with pytest.raises(ConfigError, match=r"reads no table shop\.people"):
        check(VerifyRequest(("shop.people",)))
    with pytest.raises(ConfigError, match=r"reads no table orders\. "):
        check(VerifyRequest((table_text(*table_of("orders")),)))
    with pytest.raises(ConfigError, match="between 0 and 1"):
        check(VerifyRequest(sample=1.5))
    with pytest.raises(ConfigError, match="cannot be read"):
        check(VerifyRequest(), sink=object())


@pytest.mark.parametrize("where", [None, "id > 5"])
def test_snapshot_of_a_table_that_the_source_does_not_show_is_refused(
    monkeypatch: pytest.MonkeyPatch, where: str | None
) -> None:
    """As `cdc snapshot shop shop.typo` with a channel for shop.*: the job would pause at this request."""
    found, conditions = [("shop", "other")], list[str]()
    endpoints = list[Endpoint]()
    monkeypatch.setattr("cdc.job.snapshot_requests.Server", lambda one: endpoints.append(one) or nullcontext())
    monkeypatch.setattr(
        "cdc.job.snapshot_requests.mapped_tables", lambda _, maps: [name for name in found if maps(*name)]
    )
    monkeypatch.setattr("cdc.job.snapshot_requests.check_condition", lambda *given: conditions.append(given[-1]))
    request, sink = SnapshotRequest("shop.orders", where), SimpleNamespace(keys=lambda *_: None)
    settings = SnapshotSettings(Endpoint("127.0.0.1"), cast(Any, None))
    with pytest.raises(ConfigError, match=r"shop\.orders does not exist in the source, or this account cannot see it"):
        check_request(request, settings, cast(Any, Routes()), cast(Any, sink))
    found.append(("shop", "orders"))
    check_request(request, settings, cast(Any, Routes()), cast(Any, sink))
    assert conditions == ([] if where is None else [where])
    # the error of a server that does not answer reaches the sender
    assert all(one.until is not None and one.until < time.monotonic() + REQUEST_S - 10 for one in endpoints)
