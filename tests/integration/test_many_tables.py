"""A job with 1,000 tables and a host with 100 jobs: REST API, client and page answer in bounded size and CPU time."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from cdc.api.models import ChannelStatus, JobStatus, LeftOutStatus, SinkStatus, SnapshotStatus, SourceStatus
from cdc.cli.remote import status_over_rest
from cdc.client import Jobs
from cdc.manager.rest import Tokens
from cdc.manager.rest import recent_status as module
from cdc.manager.rest.recent_status import RecentStatus
from cdc.model.snapshot import SnapshotState
from cdc.state.base import JobRecord, JobState, ResumeKind
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.integration.test_page import browser, has_no_horizontal_scroll, opened  # noqa: F401 - a fixture
from tests.support.manager import LIMIT_S, add_job, served, wait_for

TABLES = 1000
READING = SnapshotStatus(
    400, 124, 1_240_000, 4_000_000, False, None, 310 << 20, 51_000.0, 54.0, state=SnapshotState.READING
)
LOADED = SnapshotStatus(12, 12, 118_000, 120_000, True, "2026-01-01T00:00:00Z", 9 << 20, state=SnapshotState.CONSISTENT)


def status_of(job: str, tables: int) -> JobStatus:
    channels = tuple(
        ChannelStatus(
            f"shop.orders_of_region_{number:04}", f"ods.orders_of_region_{number:04}", JobState.RUNNING,
            upserts=number, bytes=number << 10, last_committed_at="2026-01-01T00:00:05Z",
            snapshot=READING if number in (3, 7) else LOADED,
        )
        for number in range(tables)
    )  # fmt: skip
    return JobStatus(
        job=job, state=JobState.RUNNING, source=SourceStatus("binlog", "db1.example:3306"),
        sink=SinkStatus("delta", "/warehouse"), position={"file": "mysql-bin.000042", "offset": 4}, lag_seconds=0.8,
        channels=channels,
        left_out=tuple(LeftOutStatus(f"shop.log_{number}", "has no key", "Add one.") for number in range(tables)),
    )  # fmt: skip


class LargeDriver:
    def __init__(self, record: JobRecord) -> None:
        self._status = status_of(record.name, TABLES if record.name == "shop" else 3)

    def status(self) -> JobStatus:
        return self._status


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CDC_STORE", raising=False)
    monkeypatch.setattr("cdc.manager.rest.history.Driver", LargeDriver)
    monkeypatch.setattr("cdc.job.registry.Driver", LargeDriver)
    store = SqliteStore(tmp_path / "home")
    record = store.acquire("shop", "/jobs/shop.yaml")
    store.save_job(replace(record, driver_pid=1))
    store.release()
    yield store
    store.close()


def test_answers_about_many_tables_are_pages(store: SqlStore) -> None:
    with served(store, Tokens()) as url:

        def get(query: str = "") -> Any:
            answer = requests.get(f"{url}/v1/jobs/shop{query}", timeout=LIMIT_S)
            assert answer.status_code == 200, answer.text
            return answer.json()

        first = get()
        assert len(json.dumps(first)) < 100_000
        shown = [one["source"] for one in first["status"]["channels"]]
        assert shown[:3] == [f"shop.orders_of_region_{number:04}" for number in (7, 3, 999)], "what loads is first"
        assert (len(shown), first["tables"], first["tables_matching"]) == (100, TABLES, TABLES)
        assert (len(first["status"]["left_out"]), first["left_out"]) == (100, TABLES)
        total = first["status"]["snapshot"]
        assert (total["tables"], total["tables_done"]) == (TABLES, TABLES - 2)
        pages = [get(f"?tables=300&offset={offset}")["status"]["channels"] for offset in range(0, 1200, 300)]
        assert len({one["source"] for page in pages for one in page}) == TABLES == sum(map(len, pages))
        found = get("?match=REGION_099")
        assert found["tables_matching"] == 10 == len(found["status"]["channels"])
        assert get("?match=nothing&tables=0")["tables_matching"] == 0
        for query in ("?tables=1001", "?tables=-1", "?offset=-1", f"?match={'x' * 201}", "?offset=1e9"):
            assert requests.get(f"{url}/v1/jobs/shop{query}", timeout=LIMIT_S).status_code == 400, query
        with Jobs(url) as jobs:
            tables = jobs.tables("shop")
            assert len(tables) == TABLES and tables["upserts"].sum() == sum(range(TABLES))
            assert list(jobs.tables("shop", "region_0990")["target"]) == ["ods.orders_of_region_0990"]
            assert len(jobs.tables("shop", "nothing")) == 0


class BusyDriver:
    """A driver of 2,500 tables. Between two answers, the tables with the fewest changes get the most."""

    answers = 0

    def __init__(self, _: JobRecord) -> None:
        pass

    def status(self) -> JobStatus:
        status = status_of("shop", 2500)
        BusyDriver.answers += 1
        moved = 700 * BusyDriver.answers
        changed = (replace(one, upserts=(one.upserts + moved) % 2500, snapshot=LOADED) for one in status.channels)
        return replace(status, channels=tuple(changed))


def test_pages_of_changing_tables_have_each_table_once(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.job.registry.Driver", BusyDriver)
    names = [f"shop.orders_of_region_{number:04}" for number in range(2500)]
    with served(store, Tokens()) as url, Jobs(url) as jobs:
        assert sorted(jobs.tables("shop")["source"]) == names
        assert [one.source for one in status_over_rest(jobs, "shop")[0].channels] == names
        page = jobs.status("shop", tables=3, after=names[41], match="_of_")
        assert [one["source"] for one in page["status"]["channels"]] == names[42:45]
        assert page["tables_matching"] == 2500
        assert jobs.status("shop", after=names[-1])["status"]["channels"] == []
        assert jobs.status("shop", tables=1, after="shop.orders_of_region_0041x")["status"]["channels"] != []


def test_status_over_rest_has_all_left_out_tables(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.job.registry.Driver", BusyDriver)
    names = sorted(f"shop.log_{number}" for number in range(2500))
    with served(store, Tokens()) as url, Jobs(url) as jobs:
        found = status_over_rest(jobs, "shop")[0]
        assert [one.table for one in found.left_out] == names and len(found.channels) == 2500
        alone = jobs.whole_status("shop", match="nothing")["status"]
        assert (len(alone["left_out"]), alone["channels"]) == (2500, [])
        page = jobs.status("shop", tables=3, left_out_after=names[41])["status"]
        assert [one["table"] for one in page["left_out"]] == names[42:45]
        assert jobs.status("shop", left_out_after=names[-1])["status"]["left_out"] == []


def test_whole_status_of_an_older_host_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out = [{"table": f"shop.log_{number:04}"} for number in range(1000)]

    def ask(*_: object, **__: object) -> Any:
        return {"status": {"channels": [], "left_out": left_out}}  # an older host ignores the parameter

    with Jobs("http://127.0.0.1:1") as jobs:
        monkeypatch.setattr(jobs, "_ask", ask)
        assert jobs.whole_status("shop")["status"]["left_out"] == left_out


def test_other_hosts_are_asked_as_seldom_as_the_size_demands(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked, tables = [1000.0], [0], [TABLES]

    def ask(_: SqlStore, record: JobRecord) -> JobStatus:
        asked[0] += 1
        return status_of(record.name, tables[0])

    monkeypatch.setattr(module, "status_of", ask)
    monkeypatch.setattr(module, "is_here", lambda *_: False)
    recent, record = RecentStatus(store, lambda: now[0]), store.job("shop")
    assert record is not None
    for _ in range(100):  # 20 s, as a page reads it
        recent.live(record)
        now[0] += 0.2
    assert asked[0] == 2
    recent.live(replace(record, state=JobState.PAUSED))
    assert asked[0] == 3, "a job with another state has another status"
    now[0], tables[0] = now[0] + 60, 3
    for _ in range(100):
        recent.live(record)
        now[0] += 0.2
    assert 20 <= asked[0] - 3 <= 21


def test_page_shows_many_tables_in_pages(browser: Any, store: SqlStore) -> None:  # noqa: F811
    with served(store, Tokens()) as url, opened(browser, url, path="#/jobs/shop") as page:

        def first() -> str:
            return str(page.inner_text("table.data tbody tr:first-child th b"))

        page.wait_for_selector("table.data tbody tr:nth-child(100)")
        assert page.locator("table.data tbody tr").count() == 100
        assert page.inner_text("#tables-page") == "1 to 100 of 1,000"
        assert page.evaluate("document.querySelectorAll('*').length") < 3500
        page.focus("button:text-is('Next')")
        page.keyboard.press("Enter")
        wait_for(lambda: page.inner_text("#tables-page") == "101 to 200 of 1,000", "the second page")
        assert first() == "shop.orders_of_region_0901"
        page.fill("#tables-search", "region_0123")
        wait_for(lambda: page.inner_text("#tables-page") == "1 to 1 of 1", "one table matches")
        wait_for(lambda: first() == "shop.orders_of_region_0123", "the table is shown")
        with page.expect_response("**/v1/jobs/shop?*"):  # a refresh keeps the filter
            pass
        assert page.input_value("#tables-search") == "region_0123" and page.locator("table.data tbody tr").count() == 1
        page.fill("#tables-search", "nothing")
        page.wait_for_selector(".empty >> text=No table matches.")
    with served(store, Tokens()) as url, opened(browser, url, path="#/jobs/shop", width=360) as page:
        page.wait_for_selector("table.data tbody tr:nth-child(100)")
        assert has_no_horizontal_scroll(page)


def test_hundred_jobs_load_with_little_cpu(
    browser: Any,  # noqa: F811
    store: SqlStore,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(99):
        add_job(store, f"orders_of_region_{number:02}", JobState.PAUSED, "paused by its user", "x", ResumeKind.MANUAL)
    with served(store, Tokens()) as url:

        def cpu_s() -> tuple[float, float]:
            used = resource.getrusage(resource.RUSAGE_SELF)
            family = psutil.Process().children(recursive=True)
            times = [one.cpu_times() for one in family if "chrom" in one.name()]
            return used.ru_utime + used.ru_stime, sum(one.user + one.system for one in times)

        requests.get(f"{url}/v1/jobs", timeout=LIMIT_S)  # imports and the first reading of the store
        before = cpu_s()
        requests.get(f"{url}/v1/jobs", timeout=LIMIT_S)
        answered = cpu_s()
        with opened(browser, url) as page:
            page.wait_for_selector("table.jobs tbody tr:nth-child(100)")
            shown = cpu_s()
            size = page.evaluate(
                "performance.getEntriesByType('resource').reduce((sum, one) => sum + one.transferSize, 0)"
            )
    with capsys.disabled():
        print(
            f"\n100 jobs: {answered[0] - before[0]:.2f} CPU s for the list, {shown[1] - answered[1]:.2f} CPU s of the"
            f" browser to show the page, {size >> 10} KiB"
        )
    assert answered[0] - before[0] < 1.0
    assert size < 300 << 10
