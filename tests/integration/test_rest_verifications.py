"""Verifications in the REST API and on the page: history, the last result of each table, progress, roles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from cdc.manager.rest import Tokens
from cdc.model.position import BinlogPosition
from cdc.model.verify import (
    DifferenceKind,
    RowDifference,
    TableVerification,
    ValueDifference,
    Verification,
    VerifyRequest,
    VerifyState,
)
from cdc.state.base import Checkpoint, CheckpointState
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.integration.test_page import browser, opened  # noqa: F401 (a fixture)
from tests.support.manager import served

ADMIN, VIEWER = "admin-token-4711", "viewer-token-0815"
HERE = BinlogPosition("mysql-bin.000001", 4)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CDC_STORE", raising=False)
    store = SqliteStore(tmp_path / "home")
    yield store
    store.close()


def save(store: SqlStore, found: Verification, **changes: Any) -> None:
    """Save the progress or the result of ``found`` with a checkpoint."""
    verify = replace(found, began_at="2026-01-01T00:00:05Z", position=HERE, **changes)
    store.save(Checkpoint(store.next_id(), 1, CheckpointState.COMMITTED, HERE, HERE, verify=verify))


def verified(store: SqlStore) -> None:
    """Save two verifications that have ended and one that runs: orders was repaired, people was never compared since."""
    store.acquire("shop", "/jobs/shop.yaml")
    for request in (VerifyRequest(repair=True), VerifyRequest(("shop.orders",), sample=0.01), VerifyRequest()):
        store.add_verification("shop", request)
    running, second, first = store.verifications("shop", 3)
    values = (ValueDifference("note", "a", HOSTILE), ValueDifference("total", "1.50", None))
    orders = TableVerification(VerifyState.DONE, rows=1000, missing=2, different=1, repaired=3)
    save(
        store, first, ended_at="2026-01-01T00:00:09Z",
        tables={"shop.orders": orders, "shop.people": TableVerification(VerifyState.SKIPPED, note="no index")},
        differences=(RowDifference("shop.orders", DifferenceKind.DIFFERENT, {"id": "7"}, values),),
    )  # fmt: skip
    done = TableVerification(VerifyState.DONE, rows=10)
    save(store, second, ended_at="2026-01-02T00:00:09Z", tables={"shop.orders": done})
    comparing = TableVerification(VerifyState.COMPARING, chunks=4, done=1, rows=250, estimated_rows=1000)
    save(store, running, tables={"shop.orders": comparing})
    store.release()


def ask(url: str, token: str, path: str) -> requests.Response:
    return requests.get(url + path, headers={"Authorization": f"Bearer {token}"}, timeout=120)


def test_history_has_the_rows_and_the_last_result_of_each_table(store: SqlStore) -> None:
    verified(store)
    with served(store, Tokens(ADMIN, VIEWER)) as url:
        found = ask(url, ADMIN, "/v1/jobs/shop/verifications").json()
        assert [one["state"] for one in found["verifications"]] == ["equal", "different"]
        assert [one["sample"] for one in found["verifications"]] == [0.01, None]
        first = found["verifications"][1]
        assert (first["missing"], first["different"], first["repaired"], first["position"]) == (2, 1, 3, str(HERE))
        assert first["differences"][0]["key"] == {"id": "7"}
        assert first["differences"][0]["values"][1] == {"column": "total", "source": "1.50", "target": None}
        newest = {one["source"]: (one["number"], one["state"], one["rows"]) for one in found["tables"]}
        assert newest == {
            "shop.orders": (found["verifications"][0]["number"], "done", 10),
            "shop.people": (first["number"], "skipped", 0),
        }
        assert len(ask(url, ADMIN, "/v1/jobs/shop/verifications?limit=1").json()["verifications"]) == 1
        assert ask(url, ADMIN, "/v1/jobs/shop/verifications?limit=101").status_code == 400
        assert ask(url, ADMIN, "/v1/jobs/other/verifications").status_code == 404
        assert ask(url, "wrong", "/v1/jobs/shop/verifications").status_code == 401


def test_viewer_sees_keys_but_no_values_of_rows(store: SqlStore) -> None:
    verified(store)
    with served(store, Tokens(ADMIN, VIEWER)) as url:
        answer = ask(url, VIEWER, "/v1/jobs/shop/verifications")
        assert '"id":"7"' in answer.text and "onerror" not in answer.text and "1.50" not in answer.text


def test_page_shows_progress_results_and_rows(browser: Any, store: SqlStore) -> None:  # noqa: F811
    verified(store)
    with served(store, Tokens()) as url, opened(browser, url, path="#/jobs/shop/verifications") as page:
        assert page.wait_for_selector("#verification progress").get_attribute("value") == "25"
        assert "compares shop.orders" in page.inner_text("#verification")
        orders = page.inner_text("#verified-tables tr[data-key='shop.orders']")
        assert "sample of 1 %" in orders and "10" in orders
        assert "no index" in page.inner_text("#verified-tables tr[data-key='shop.people']")
        entries = page.locator("#verifications > li")
        assert entries.count() == 2 and "equal" in entries.nth(0).inner_text()
        assert "1,000 rows compared, 3 differ, 3 repaired" in entries.nth(1).inner_text()
        page.click("#verifications summary")
        assert f"a → {HOSTILE}" in page.inner_text("#verifications details")
        page.wait_for_timeout(2500)  # the page has refreshed itself
        assert page.locator("#verifications details[open]").count() == 1
