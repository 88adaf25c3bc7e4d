"""The web page of ``cdc serve`` in a real browser: actions, urgency, keyboard, small screens, no console error."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from math import sin
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cdc.api.models import ChannelStatus, CheckpointStatus, JobStatus, SinkStatus, SnapshotStatus, SourceStatus
from cdc.job.registry import set_offline_state
from cdc.manager.rest import Tokens
from cdc.manager.rest.history import JobHistory
from cdc.model.position import BinlogPosition
from cdc.model.snapshot import SnapshotState
from cdc.state.base import Checkpoint, CheckpointState, CloseReason, JobRecord, JobState, ResumeKind
from cdc.state.deployments import DesiredState
from cdc.state.hosts import Host
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.conftest import unavailable
from tests.support.manager import LIMIT_S, add_job, fake_driver, served, wait_for

playwright_api = pytest.importorskip("playwright.sync_api")

ADMIN, VIEWER = "admin-token-4711", "viewer-token-0815"
ARGUMENTS = [
    "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--no-first-run",
]  # fmt: skip
REASON = "The server no longer has the changes after the position of the job."
HINT = "Run `cdc resume crm --accept-gap` to continue without them."
HOSTILE = '<img src=x onerror=alert(1)> `code` \u202e & "quotes" ' + "x" * 120
SCREENS = os.environ.get("CDC_TEST_SCREENS")  # a folder in which the tests save screenshots
SLOW = """() => {
  const real = window.fetch;
  window.fetch = (path, options) => new Promise((resolve, reject) =>
    setTimeout(() => real(path, options).then(resolve, reject), String(path).includes("/jobs/alpha?") ? 3000 : 0));
}"""
# a refused login is an answer 401, which the browser itself reports
EXPECTED = ("401 (Unauthorized)",)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = os.environ.get("CDC_CHROMIUM") or shutil.which("chromium")
    if path is None:
        unavailable("the browser chromium")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CDC_STORE", raising=False)
    store = SqliteStore(tmp_path / "home")
    yield store
    store.close()


@contextmanager
def opened(browser: Any, url: str, *, width: int = 1280, dark: bool = False, path: str = "") -> Iterator[Any]:
    """Open the page. Fail on every error of the console, every refused resource and every uncaught error."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(LIMIT_S * 1000)
    problems: list[str] = []
    page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{url}/{path}")
    try:
        yield page
    finally:
        context.close()
    assert [one for one in problems if not any(words in one for words in EXPECTED)] == []


def screenshot(page: Any, name: str) -> None:
    if SCREENS:
        page.screenshot(path=f"{SCREENS}/{name}.png", full_page=True)


def has_no_horizontal_scroll(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def paused(store: SqlStore, name: str = "crm", reason: str = REASON, hint: str = HINT) -> None:
    add_job(store, name, JobState.PAUSED, reason, hint, ResumeKind.MANUAL)


def test_pause_and_resume_by_clicks(browser: Any, store: SqlStore, tmp_path: Path) -> None:
    with fake_driver(store, tmp_path, tmp_path / "home"), served(store, Tokens()) as url, opened(browser, url) as page:
        page.click("a:text-is('shop')")
        page.wait_for_selector("h1 .pill:text-is('running')")
        page.wait_for_selector(".plot[data-key=lag] .legend b:text-is('0.4 s')")
        screenshot(page, "job")
        page.click("button:text-is('Pause')")
        page.wait_for_selector("dialog h2:text-is('Pause shop?')")
        page.click("dialog button:text-is('Cancel')")
        assert store.job("shop").state is JobState.RUNNING  # type: ignore[union-attr]
        page.click("button:text-is('Pause')")
        screenshot(page, "confirm")
        page.click("dialog button:text-is('Pause')")
        page.wait_for_selector("#messages >> text=Pause shop: done.")
        page.wait_for_selector("h1 .pill:text-is('paused')")
        assert page.inner_text(".why .reason") == "paused by its user"
        page.click("button:text-is('Resume')")
        page.click("dialog button:text-is('Resume')")
        page.wait_for_selector("h1 .pill:text-is('running')")
        resumes = [one.detail["body"] for one in store.events.newest("shop") if one.message == "resume"]
        assert resumes[0]["pause"], "the pause that the dialog has shown"
        page.click("nav.sections a:text-is('Time line')")
        page.wait_for_selector(".timeline .request >> text=pause")
        screenshot(page, "timeline")


def test_refused_resume_shows_error_and_hint(browser: Any, store: SqlStore, tmp_path: Path) -> None:
    (tmp_path / "ddl").write_text("")
    with (
        fake_driver(store, tmp_path, tmp_path / "home"),
        served(store, Tokens()) as url,
        opened(browser, url, path="#/jobs/shop") as page,
    ):
        page.click("button:text-is('Pause')")
        page.click("dialog button:text-is('Pause')")
        page.click("button:text-is('Resume')")
        page.click("dialog button:text-is('Resume')")
        page.wait_for_selector(".message.bad >> text=A TRUNCATE follows.")
        assert "--past-ddl" in page.inner_text(".message.bad")
        page.click("button:text-is('Resume')")
        page.click("dialog summary")
        page.check("dialog input[name=past_ddl]")
        page.click("dialog button:text-is('Resume')")
        page.wait_for_selector("h1 .pill:text-is('running')")


def test_paused_job_is_first_with_reason_and_hint(browser: Any, store: SqlStore) -> None:
    for name in ("alpha", "zeta"):
        add_job(store, name, JobState.DONE)
    paused(store)
    store.hosts.heartbeat(Host("a1", "run1", "https://a1:8480", 20 << 30, {"zone": "eu"}))
    with served(store, Tokens()) as url, opened(browser, url) as page:
        first = page.wait_for_selector("table.jobs tbody tr")
        assert "crm" in first.inner_text() and REASON in first.inner_text()
        assert page.inner_text("table.jobs tbody tr:first-child .hint code") == "cdc resume crm --accept-gap"
        assert page.title() == "1 paused – cdc" and "1 job needs an action." in page.inner_text("#summary")
        assert "alive" in page.inner_text(".host")
        screenshot(page, "jobs-few")
        page.click("table.jobs tbody tr:first-child .reason")  # the whole row opens the job
        page.click("button:text-is('Resume')")
        box = page.wait_for_selector("dialog form > label.box input")  # the option that the hint names
        assert box.get_attribute("name") == "accept_gap"
        screenshot(page, "resume")


def test_pause_of_a_command_needs_no_action(browser: Any, store: SqlStore) -> None:
    set_offline_state(store, add_job(store, "crm", JobState.RUNNING), JobState.PAUSED, "paused by its user", "")
    with served(store, Tokens()) as url, opened(browser, url) as page:
        page.wait_for_selector("table.jobs tbody tr.urgency1 .pill:text-is('paused')")
        assert "No job needs an action." in page.inner_text("#summary")


def test_filter_is_shown_after_a_job_was_opened(browser: Any, store: SqlStore) -> None:
    """Otherwise the list lacks jobs, and nothing says why."""
    for name in ("alpha", "zeta"):
        add_job(store, name)
    with served(store, Tokens()) as url, opened(browser, url) as page:
        page.fill("#search", "zeta")
        page.click("a:text-is('zeta')")
        page.click("a:text-is('← All jobs')")
        page.wait_for_selector("table.jobs")
        assert page.locator("table.jobs tbody tr").count() == 1 and page.input_value("#search") == "zeta"
        page.fill("#search", "")
        assert page.locator("table.jobs tbody tr").count() == 2


def test_address_that_is_not_valid_shows_the_list(browser: Any, store: SqlStore) -> None:
    add_job(store, "alpha")
    with served(store, Tokens()) as url, opened(browser, url, path="#/jobs/%zz") as page:
        page.wait_for_selector("a:text-is('alpha')")


def test_slow_answers_are_shown(browser: Any, store: SqlStore) -> None:
    """A driver on another host that does not answer delays each answer by more than the time between two of them."""
    add_job(store, "alpha")
    with served(store, Tokens()) as url, opened(browser, url) as page:
        page.wait_for_selector("a:text-is('alpha')")
        page.evaluate(SLOW)
        page.click("a:text-is('alpha')")
        page.wait_for_selector("h1:has-text('alpha')", timeout=20_000)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_hundred_jobs_fit_the_screen(browser: Any, store: SqlStore, width: int, dark: bool) -> None:
    for number in range(96):
        state = JobState.DONE if number % 3 else JobState.CANCELLED
        add_job(store, f"orders_of_region_{number:02}", state)
    for name in ("crm", "a_very_long_name_of_a_job_with_40_charact"[:40]):
        paused(store, name)
    paused(store, "hostile", HOSTILE, HOSTILE)
    add_job(store, "away", JobState.PAUSED, "The server is unavailable.", "It retries.", ResumeKind.AUTOMATIC)
    with served(store, Tokens()) as url, opened(browser, url, width=width, dark=dark) as page:
        page.wait_for_selector("table.jobs tbody tr:nth-child(100)")
        assert has_no_horizontal_scroll(page)
        assert page.locator("table.jobs img").count() == 0 and HOSTILE[:20] in page.inner_text("table.jobs")
        page.click("button:has-text('Need attention')")
        wait_for(lambda: page.locator("table.jobs tbody tr").count() == 4, "4 jobs are shown")
        screenshot(page, f"jobs-{width}-{'dark' if dark else 'light'}")
        assert has_no_horizontal_scroll(page)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(16, 20, 27)") is dark


def test_job_page_fits_a_small_screen(browser: Any, store: SqlStore, tmp_path: Path) -> None:
    log = tmp_path / "home/jobs/shop"
    with fake_driver(store, tmp_path, tmp_path / "home"), served(store, Tokens()) as url:
        (log / "driver.log").write_text(
            "2026-01-01T00:00:00.000Z INFO shop Committed. rows=1\n" + f"WARNING {'y' * 300}\n"
        )
        for section, selector in (
            ("", ".plot"), ("/timeline", ".timeline"), ("/checkpoints", ".empty"), ("/log", ".log >> text=Committed"),
            ("/specification", ".empty"),
        ):  # fmt: skip
            with opened(browser, url, width=360, dark=section == "", path=f"#/jobs/shop{section}") as page:
                page.wait_for_selector(selector)
                assert has_no_horizontal_scroll(page), section
                screenshot(page, f"job-360{section.replace('/', '-')}")


def test_plots_and_snapshot_bars_show_the_status(
    browser: Any, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    ago = datetime.fromtimestamp(now - 3, UTC).isoformat()
    reading = SnapshotStatus(
        400, 124, 1_240_000, 4_000_000, False, None, 310 << 20, 51_000.0, 54.0, state=SnapshotState.READING
    )
    loaded = SnapshotStatus(12, 12, 118_000, 120_000, True, ago, 9 << 20, state=SnapshotState.CONSISTENT)
    status = JobStatus(
        job="shop", state=JobState.RUNNING, source=SourceStatus("binlog", "db1.example:3306"),
        sink=SinkStatus("delta", "/warehouse"), position={"file": "mysql-bin.000042", "offset": 73_128_004},
        lag_seconds=0.8, window_bytes=18 << 20, window_limit_bytes=256 << 20,
        checkpoint=CheckpointStatus(4711, CheckpointState.COMMITTED, ago, CloseReason.INTERVAL, 5210, 1 << 20, {"commit": 0.4}),
        channels=(
            ChannelStatus("shop.customers", "ods.customers", JobState.RUNNING, 20_451, 12, 4 << 20, 0, ago, loaded),
            ChannelStatus("shop.orders", "ods.orders", JobState.RUNNING, 1_204_330, 4210, 1 << 29, 310, ago, reading),
        ),
    )  # fmt: skip

    class RunningDriver:
        def __init__(self, record: JobRecord) -> None:
            self.job = record.name

        def status(self) -> JobStatus:
            return replace(status, job=self.job)

    history, random = JobHistory(), Random(4)
    for number in range(300):
        if not 120 < number < 135:  # the driver was restarted
            wave = 1 + sin(number / 25)
            parts = {"buffer": 0.9, "prepare": 0.3 + 0.2 * wave, "commit": 0.2 + random.random() / 5, "save": 0.02}
            values = {
                "lag_seconds": 0.6 + 0.3 * wave + random.random() / 4,
                "rows_per_second": 900 * wave + 300 * random.random(),
            }
            history.add(now - 600 + 2 * number, {**values, **parts, "bytes_per_second": 220_000 * wave + 40_000})
    monkeypatch.setattr("cdc.manager.rest.history.Driver", RunningDriver)
    monkeypatch.setattr("cdc.job.registry.Driver", RunningDriver)
    monkeypatch.setattr("cdc.manager.rest.history.Sampler.history", lambda *_: history)
    for name in ("shop", "billing", "warehouse_eu"):
        record = store.acquire(name, f"/jobs/{name}.yaml")
        store.save_job(replace(record, driver_pid=1))
        store.release()
    for name in ("a1", "a2"):
        store.hosts.heartbeat(Host(name, f"run-{name}", f"https://{name}:8480", 20 << 30, {"zone": "eu"}))
    paused(store)
    for dark in (False, True):
        with served(store, Tokens()) as url, opened(browser, url, dark=dark) as page:
            page.wait_for_selector("tr[data-key=shop] .spark")
            screenshot(page, f"page-jobs-{'dark' if dark else 'light'}")
            page.click("a:text-is('shop')")
            page.wait_for_selector(".plot")
            # the gap divides each line in two, and the four parts are stacked
            path = page.get_attribute(".plot[data-key=lag] path.line", "d")
            assert path.count("M") == 2 and "NaN" not in path
            assert page.locator(".plot[data-key=parts] path.line").count() == 4
            first = page.locator("table.data tbody tr").first
            assert "shop.orders" in first.inner_text() and first.locator("progress").get_attribute("value") == "31"
            assert "54 s left" in first.inner_text()
            before = page.inner_text(".plot[data-key=rows] .legend")
            page.hover(".plot[data-key=rows] svg", position={"x": 200, "y": 60})
            wait_for(
                lambda before=before: page.inner_text(".plot[data-key=rows] .legend") != before, "the value is shown"
            )
            page.hover("h1")
            screenshot(page, f"page-job-{'dark' if dark else 'light'}")
            page.click("button:text-is('1 hour')")
            page.wait_for_selector("svg[aria-label^='Lag, last 60 minutes']")


def test_checkpoints_show_their_parts(browser: Any, store: SqlStore) -> None:
    record = store.acquire("shop", "/jobs/shop.yaml")
    for number in range(20):
        position = BinlogPosition("mysql-bin.000001", 4 + number)
        store.save(
            Checkpoint(number, record.fence, CheckpointState.COMMITTED, position, position, rows=number * 1000,
                       bytes=number << 16, closed_by=CloseReason.MAX_ROWS, committed_at="2026-01-01T00:00:05Z",
                       seconds={"buffer": 1.0, "prepare": 0.1 * number, "commit": 0.5, "save": 0.01})
        )  # fmt: skip
    store.release()
    with served(store, Tokens()) as url, opened(browser, url, path="#/jobs/shop/checkpoints") as page:
        first = page.wait_for_selector("table.data tbody tr")
        assert first.inner_text().split()[0] == "19" and "max rows" in first.inner_text()
        assert page.locator("table.data tbody tr").count() == 20
        screenshot(page, "checkpoints")


def test_host_is_drained_by_clicks(browser: Any, store: SqlStore) -> None:
    store.hosts.heartbeat(Host("a1", "run1", "https://a1:8480", 20 << 30, {"zone": "eu"}))
    store.hosts.heartbeat(Host("b2", "run2", None, 8 << 30))
    store.hosts.leave("b2", "run2")
    paused(store)
    store.deployments.assign("crm", "a1", store.deployments.get("crm").fence)  # type: ignore[union-attr]
    with served(store, Tokens()) as url, opened(browser, url, path="#/hosts") as page:
        page.wait_for_selector(".host[data-key=b2] .pill:text-is('gone')")
        assert page.inner_text(".host[data-key=a1] .links") == "crm"
        screenshot(page, "hosts")
        page.click(".host[data-key=a1] button:text-is('Drain')")
        page.click("dialog button:text-is('Drain')")
        page.wait_for_selector(".host[data-key=a1] .pill:text-is('drained')")
        assert store.hosts.all()[0].drained
        page.click("button:text-is('Accept jobs again')")
        page.click("dialog button:text-is('Accept jobs')")
        page.wait_for_selector(".host[data-key=a1] .pill:text-is('alive')")


def test_page_works_with_the_keyboard(browser: Any, store: SqlStore) -> None:
    for name in ("alpha", "beta"):
        add_job(store, name, JobState.DONE)
    paused(store)
    with served(store, Tokens()) as url, opened(browser, url) as page:
        page.wait_for_selector("table.jobs")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("/")
        page.keyboard.type("beta")
        wait_for(lambda: page.locator("table.jobs tbody tr").count() == 1, "1 jobs are shown")
        for _ in "beta":
            page.keyboard.press("Backspace")
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        assert page.evaluate("document.activeElement.textContent") == "crm"
        # the focus is visible, and a refresh keeps it
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        with page.expect_response("**/v1/jobs"):
            pass
        assert page.evaluate("document.activeElement.textContent") == "crm"
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:has-text('crm')")
        page.focus("button:text-is('Resume')")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="detached")
        assert page.evaluate("document.activeElement.textContent") == "Resume"
        page.keyboard.press("Escape")
        page.wait_for_selector("table.jobs")
        page.keyboard.press("?")
        page.wait_for_selector("dialog h2:text-is('Keyboard')")


def press_until(page: Any, key: str, text: str) -> None:
    """Press a key until the element with the focus has this text or name."""
    for _ in range(40):
        found = page.evaluate("document.activeElement.name || document.activeElement.textContent.trim()")
        if found == text:
            return
        page.keyboard.press(key)
    raise AssertionError(f"{text} cannot be reached with {key}")


def test_actions_work_with_the_keyboard(browser: Any, store: SqlStore, tmp_path: Path) -> None:
    with (
        fake_driver(store, tmp_path, tmp_path / "home"),
        served(store, Tokens()) as url,
        opened(browser, url, path="#/jobs/shop", dark=True) as page,
    ):
        page.wait_for_selector("h1 .pill:text-is('running')")
        for verb, state in (("Pause", "paused"), ("Resume", "running")):
            press_until(page, "Tab", verb)
            page.keyboard.press("Enter")
            page.wait_for_selector("dialog[open]")
            press_until(page, "Tab", verb)
            page.keyboard.press("Enter")
            page.wait_for_selector(f"h1 .pill:text-is('{state}')")


def test_job_is_moved_with_the_keyboard(browser: Any, store: SqlStore) -> None:
    for name in ("a1", "b2", "c3"):
        store.hosts.heartbeat(Host(name, f"run-{name}", None, 8 << 30))
    new = JobRecord("crm", "0badcafe", 0, JobState.PENDING, "")
    store.deployments.declare("crm", spec="name: crm\n", desired=DesiredState.RUNNING, new=new)
    assert store.deployments.assign("crm", "a1", 0)
    with served(store, Tokens()) as url, opened(browser, url, path="#/jobs/crm") as page:
        page.wait_for_selector("h1")
        press_until(page, "Tab", "Move")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog[open]")
        assert page.locator("dialog option").all_inner_texts() == ["the best other host", "b2", "c3"]
        press_until(page, "Tab", "host")
        page.keyboard.press("c")
        press_until(page, "Tab", "Move")
        screenshot(page, "move")
        page.keyboard.press("Enter")
        page.wait_for_selector("#messages >> text=Move crm: done.")
        assert store.deployments.get("crm").host == "c3"  # type: ignore[union-attr]


def test_every_control_has_a_name_for_screen_readers(browser: Any, store: SqlStore) -> None:
    paused(store)
    with served(store, Tokens()) as url, opened(browser, url) as page:
        page.wait_for_selector("table.jobs")
        for path in ("#/", "#/hosts", "#/jobs/crm"):
            page.goto(f"{url}/{path}")
            page.wait_for_selector("h1")
            unnamed = page.evaluate(
                """[...document.querySelectorAll('button, a, input, select, svg[role=img], progress')].filter((one) =>
                !(one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length)).map((one) => one.outerHTML)"""
            )
            assert unnamed == [], path
        assert page.locator("main").count() == 1 and page.locator("h1").count() == 1
        assert page.get_attribute("html", "lang") == "en"


def test_viewer_signs_in_and_sees_no_actions(browser: Any, store: SqlStore) -> None:
    paused(store)
    with served(store, Tokens(ADMIN, VIEWER)) as url, opened(browser, url) as page:
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#login [role=alert] >> text=The token is not valid.")
        screenshot(page, "login")
        page.fill("#token", VIEWER)
        page.click("button:text-is('Sign in')")
        page.click("a:text-is('crm')")
        page.wait_for_selector(".why")
        assert page.locator("[aria-label=Actions]").count() == 0
        assert "viewer" in page.inner_text("#session")
        assert page.evaluate("document.cookie") == ""  # scripts cannot read it
        page.click("button:text-is('Sign out')")
        page.wait_for_selector("#token")


def test_host_that_does_not_answer_is_reported_until_it_does(browser: Any, store: SqlStore) -> None:
    paused(store)
    with served(store, Tokens()) as url, opened(browser, url) as page:
        page.wait_for_selector("table.jobs")
        page.evaluate(
            "() => { window.real = window.fetch; window.fetch = () => Promise.reject(new TypeError('cut')); }"
        )
        page.wait_for_selector("#banner >> text=The host does not answer.")
        page.evaluate("() => { window.fetch = window.real; }")
        wait_for(lambda: not page.is_visible("#banner"), "the banner is hidden")
