"""The REST API of ``cdc serve``: roles, requests to drivers, specifications, hostile requests."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests
from openapi_spec_validator import validate

from cdc.api.models import JobStatus, PauseJob, RequestBody, SinkStatus, SourceStatus
from cdc.demo.local_servers import LocalServer
from cdc.job.registry import set_offline_state, stopped_by_user
from cdc.job.remote_calls import RemoteCalls
from cdc.manager.rest import Tokens
from cdc.manager.rest.documents import shown_spec
from cdc.manager.rest.guard import BODY_BYTES_MOST, COOKIE
from cdc.manager.rest.history import KEPT, SERIES, JobHistory
from cdc.model.position import BinlogPosition
from cdc.state.base import Checkpoint, CheckpointState, CloseReason, JobState, ResumeKind
from cdc.state.deployments import DesiredState
from cdc.state.hosts import Host
from cdc.state.job_directory import JobDirectory
from cdc.state.opening import open_store
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.support.manager import IDENTITY, SPEC, add_job, fake_driver, served, wait_for
from tests.support.store_servers import create_database

ADMIN, VIEWER = "admin-token-4711", "viewer-token-0815"
PASSWORD = "v3ry-s3cret-value"
ERROR_KEYS = {"error", "where", "hint", "exit_code", "class"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CDC_STORE", raising=False)
    monkeypatch.setenv("CDC_TEST_PASSWORD", PASSWORD)
    store = SqliteStore(tmp_path / "home")
    yield store
    store.close()


@pytest.fixture
def url(store: SqlStore) -> Iterator[str]:
    with served(store, Tokens(ADMIN, VIEWER)) as address:
        yield address


def ask(url: str, method: str, path: str, token: str | None = ADMIN, **options: object) -> requests.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= options.pop("headers", {})  # type: ignore[arg-type]
    return requests.request(method, url + path, headers=headers, timeout=120, **options)  # type: ignore[arg-type]


def test_openapi_document_is_valid_and_complete(url: str) -> None:
    document = ask(url, "GET", "/openapi.json").json()
    validate(document)
    routes = "pause resume stop snapshot verify move checkpoints changes events history logs"
    assert set(routes.split()) <= {path.removeprefix("/v1/jobs/{name}/") for path in document["paths"]}
    assert ask(url, "GET", "/docs").status_code == 404


def test_answers_without_a_token_are_refused_except_the_page(url: str, store: SqlStore) -> None:
    add_job(store, "shop")
    paths = ("/v1/jobs", "/v1/jobs/shop", "/v1/jobs/shop/logs", "/v1/hosts", "/metrics", "/openapi.json")
    for number, path in enumerate(paths):
        for token in (None, "", "wrong", VIEWER[:-1], f"{ADMIN}x"):
            # too many from one address would be refused for that reason
            answer = ask(url, "GET", path, token, headers={"X-Forwarded-For": f"203.0.113.{number}"})
            assert answer.status_code == 401 and set(answer.json()) == ERROR_KEYS, path
    for path in ("/", "/live", "/ready"):
        assert ask(url, "GET", path, None).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "error", "hint"),
    [
        ("GET", "jobs/shop", "There is no job shop.", "`cdc list` shows the jobs."),
        ("POST", "jobs/shop/pause", "There is no job shop.", "`cdc list` shows the jobs."),
        ("GET", "jobs/shop/verifications", "There is no job shop.", "`cdc list` shows the jobs."),
        ("GET", "jobs/Shop", "There is no job Shop.", "`cdc list` shows the jobs."),
        ("GET", "jobs/crm/events/17", "The job crm has no event 17.", "GET /v1/jobs/crm/events lists the events."),
        ("POST", "hosts/a1/drain", "There is no host a1.", "`cdc hosts` shows the hosts."),
        ("POST", "hosts/a%20b/drain", "There is no host a b.", "`cdc hosts` shows the hosts."),
        ("GET", "nothing", "Not Found", "GET /openapi.json lists the addresses."),
    ],
)
def test_answer_about_an_unknown_name_has_a_hint_for_it(
    url: str, store: SqlStore, method: str, path: str, error: str, hint: str
) -> None:
    add_job(store, "crm")
    answer = ask(url, method, f"/v1/{path}")
    assert answer.status_code == 404
    assert answer.json() == {"error": error, "where": "", "hint": hint, "exit_code": 2, "class": "ConfigError"}


def test_viewer_reads_everything_and_changes_nothing(url: str, store: SqlStore) -> None:
    add_job(store, "shop", JobState.PAUSED, "paused by its user", "Run `cdc resume shop`.", ResumeKind.MANUAL)
    for path in ("/v1/jobs", "/v1/jobs/shop", "/v1/jobs/shop/events", "/v1/jobs/shop/checkpoints", "/v1/hosts"):
        assert ask(url, "GET", path, VIEWER).status_code == 200, path
    for method, path in (
        *(("POST", f"/v1/jobs/shop/{verb}") for verb in ("pause", "resume", "stop", "snapshot", "verify", "move")),
        ("PUT", "/v1/jobs/crm"), ("DELETE", "/v1/jobs/shop"), ("POST", "/v1/hosts/a/drain"), ("POST", "/v1/check"),
    ):  # fmt: skip
        assert ask(url, method, path, VIEWER, data=b"{}").status_code == 403, path
    assert store.deployments.get("shop").desired is None  # type: ignore[union-attr]
    assert all(event.kind != "request" for event in store.events.newest("shop"))


def test_pause_and_resume_reach_the_driver(url: str, store: SqlStore, tmp_path: Path) -> None:
    with fake_driver(store, tmp_path, tmp_path / "home"):
        found = ask(url, "GET", "/v1/jobs/shop", VIEWER).json()
        assert (found["state"], found["status"]["channels"][0]["upserts"]) == ("RUNNING", 1000)
        answer = ask(url, "POST", "/v1/jobs/shop/pause")
        assert answer.status_code == 202
        wait_for(lambda: store.job("shop").state is JobState.PAUSED, "the job is paused")  # type: ignore[union-attr]
        path = f"/v1/jobs/shop/events/{answer.json()['event']}"
        wait_for(lambda: ask(url, "GET", path).json()["result"], "the event has a result")
        assert ask(url, "GET", path).json()["result"] == {"ok": True}
        assert store.deployments.get("shop").desired is DesiredState.PAUSED  # type: ignore[union-attr]
        assert ask(url, "POST", "/v1/jobs/shop/resume", json={}).status_code == 202
        wait_for(lambda: store.job("shop").state is JobState.RUNNING, "the job runs")  # type: ignore[union-attr]
        assert store.deployments.get("shop").desired is DesiredState.RUNNING  # type: ignore[union-attr]
        wait_for(lambda: any(ask(url, "GET", "/v1/jobs/shop/history").json()["times"]), "a sample is taken")
        wait_for(lambda: 'cdc_lag_seconds{job_name="shop"} 0.4' in ask(url, "GET", "/metrics").text, "metrics")
        assert ask(url, "GET", "/v1/jobs/shop/history?minutes=1").json()["series"]["lag_seconds"][-1] == 0.4


def test_any_host_answers_for_a_job_of_another_host(
    mysql: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "a"))
    environment = {**create_database(mysql, "rest_store"), "CDC_LEASE": "600"}  # no thread renews it
    stores: list[SqlStore] = []
    for name in "ab":
        monkeypatch.setenv("CDC_HOST", name)
        stores.append(open_store(environment=environment, folder=tmp_path / name))
    here, there = stores
    folder = JobDirectory(tmp_path / "b", "shop")
    with folder.open_log() as log:
        log.write(b"a line of host b\n")
    running = replace(there.acquire("shop", "/jobs/shop.yaml"), state=JobState.RUNNING, identity=IDENTITY, driver_pid=1)
    there.save_job(running)
    summary = {"state": "RUNNING", "lag_s": 1.5, "rows_per_s": 40.0, "last_committed_at": "2026-01-01T00:00:05Z"}
    there.renew({**summary, "bytes_per_s": 8000.0, "window_bytes": 70, "seconds": {"commit": 0.2, "save": 0.1}})
    controls = RemoteControls()
    calls = RemoteCalls(there, "shop", controls, folder)
    calls.start()
    try:
        with served(here, Tokens(ADMIN, VIEWER)) as url:
            (listed,) = ask(url, "GET", "/v1/jobs").json()
            assert (listed["host"], listed["lag_seconds"], listed["rows_per_second"]) == ("b", 1.5, 40.0)
            assert listed["state"] == "RUNNING" and listed["last_committed_at"] == "2026-01-01T00:00:05Z"
            assert ask(url, "GET", "/v1/jobs/shop").json()["status"]["lag_seconds"] == 0.3
            log = ask(url, "GET", "/v1/jobs/shop/logs").json()
            assert (log["lines"], log["host"], log["log_id"]) == (["a line of host b"], "b", there.host.home)
            number = ask(url, "POST", "/v1/jobs/shop/pause").json()["event"]
            wait_for(lambda: here.events.get(number).result == {"ok": True}, "it is carried out")  # type: ignore[union-attr]
            assert controls.requests == [PauseJob()]
            verbs = [
                event["message"]
                for event in ask(url, "GET", "/v1/jobs/shop/events").json()
                if event["kind"] == "request"
            ]
            assert verbs == ["pause"]  # the questions for status and log are no events of the job
            wait_for(lambda: ask(url, "GET", "/v1/jobs/shop/history").json()["times"], "a sample is taken")
            series = ask(url, "GET", "/v1/jobs/shop/history").json()["series"]
            assert {name: values[0] for name, values in series.items()} == {
                "lag_seconds": 1.5, "rows_per_second": 40.0, "bytes_per_second": 8000.0, "window_bytes": 70.0,
                "buffer": None, "prepare": None, "commit": 0.2, "save": 0.1,
            }  # fmt: skip
    finally:
        calls.close()
        for store in stores:
            store.close()


@pytest.fixture
def two_hosts(mysql: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SqlStore, ...]]:
    """A store as two hosts open it. The job shop is offline, and its last run was on the second one."""
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "a"))
    environment = {**create_database(mysql, "rest_store"), "CDC_LEASE": "600"}
    stores: list[SqlStore] = []
    for name in "ab":
        monkeypatch.setenv("CDC_HOST", name)
        stores.append(open_store(environment=environment, folder=tmp_path / name))
    add_job(stores[1], "shop", JobState.RUNNING)
    yield tuple(stores)
    for store in stores:
        store.close()


def test_offline_change_that_fails_assigns_the_job_back(
    two_hosts: tuple[SqlStore, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = two_hosts
    known = here.deployments.get("shop")
    assert known is not None and there.deployments.assign("shop", "b", known.fence)
    with monkeypatch.context() as patch:
        patch.setattr(here, "acquire", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            set_offline_state(here, known.record, JobState.CANCELLED, *stopped_by_user("shop"))
    assert here.deployments.get("shop").host == "b"  # type: ignore[union-attr]
    set_offline_state(here, known.record, JobState.CANCELLED, *stopped_by_user("shop"))
    found = here.deployments.get("shop")
    assert found is not None and (found.host, found.record.state) == ("b", JobState.CANCELLED)


def test_offline_job_of_another_host_is_paused_and_stopped(two_hosts: tuple[SqlStore, ...]) -> None:
    """No driver of it reads the events: the job would stay RUNNING in the store."""
    here, _ = two_hosts
    with served(here, Tokens(ADMIN, VIEWER)) as url:
        for verb, state in (("pause", JobState.PAUSED), ("stop", JobState.CANCELLED)):
            number = ask(url, "POST", f"/v1/jobs/shop/{verb}").json()["event"]
            wait_for(lambda number=number: here.events.get(number).result == {"ok": True}, verb)  # type: ignore[misc,union-attr]
            found = here.job("shop")
            assert found is not None and (found.state, found.host) == (state, "b")


class RemoteControls:
    def __init__(self) -> None:
        self.requests: list[object] = []

    def status(self) -> JobStatus:
        source, sink = SourceStatus("binlog", "127.0.0.1:3306"), SinkStatus("delta", "/warehouse")
        return JobStatus(job="shop", state=JobState.RUNNING, source=source, sink=sink, lag_seconds=0.3)

    def request(self, request: RequestBody) -> None:
        self.requests.append(request)


def test_refusal_of_the_driver_is_the_result_of_the_event(url: str, store: SqlStore, tmp_path: Path) -> None:
    (tmp_path / "ddl").write_text("")
    with fake_driver(store, tmp_path, tmp_path / "home"):
        number = ask(url, "POST", "/v1/jobs/shop/resume").json()["event"]
        wait_for(lambda: store.events.get(number).result, "the event has a result")  # type: ignore[union-attr]
        result = ask(url, "GET", f"/v1/jobs/shop/events/{number}").json()["result"]
        assert not result["ok"] and result["error"]["error"] == "A TRUNCATE follows."
        refusal = ask(url, "POST", "/v1/jobs/shop/resume", json={"apply_ddl": True})
        assert refusal.status_code == 409 and "not paused at a DDL statement" in refusal.json()["error"]


def test_resume_of_an_earlier_pause_is_refused(url: str, store: SqlStore, tmp_path: Path) -> None:
    with fake_driver(store, tmp_path, tmp_path / "home"):
        ask(url, "POST", "/v1/jobs/shop/pause")
        wait_for(lambda: ask(url, "GET", "/v1/jobs/shop").json()["pause"], "shop is paused")
        seen = ask(url, "GET", "/v1/jobs/shop").json()
        assert seen["pause"] == seen["status"]["pause"]
        late = ask(url, "POST", "/v1/jobs/shop/resume", json={"past_ddl": True, "pause": "00000000"})
        assert late.status_code == 409 and "paused for another reason now: paused by its user" in late.json()["error"]
        assert ask(url, "POST", "/v1/jobs/shop/resume", json={"pause": seen["pause"]}).status_code == 202
        wait_for(lambda: store.job("shop").state is JobState.RUNNING, "shop runs")  # type: ignore[union-attr]
        assert ask(url, "GET", "/v1/jobs/shop").json()["pause"] is None


def test_job_without_driver_is_paused_and_stopped_in_the_store(url: str, store: SqlStore) -> None:
    add_job(store, "shop", JobState.PENDING)
    ask(url, "POST", "/v1/jobs/shop/pause")
    wait_for(lambda: store.job("shop").state is JobState.PAUSED, "the job is paused")  # type: ignore[union-attr]
    assert ask(url, "DELETE", "/v1/jobs/shop?forget=true").status_code == 409
    assert ask(url, "DELETE", "/v1/jobs/shop").status_code == 202
    wait_for(lambda: store.job("shop").state is JobState.CANCELLED, "it is cancelled")  # type: ignore[union-attr]
    refused = ask(url, "POST", "/v1/jobs/shop/resume")
    assert refused.status_code == 409 and "--forget" in refused.json()["hint"]
    assert ask(url, "DELETE", "/v1/jobs/shop?forget=true").json() == {"job": "shop", "is_forgotten": True}
    assert store.job("shop") is None


def test_specification_is_saved_with_its_generation(url: str, store: SqlStore) -> None:
    answer = ask(url, "PUT", "/v1/jobs/crm", data=SPEC)
    assert (answer.status_code, answer.json(), answer.headers["ETag"]) == (200, {"job": "crm", "generation": 1}, '"1"')
    assert ask(url, "PUT", "/v1/jobs/crm", data=SPEC).json()["generation"] == 1  # equal: nothing changes
    found = store.deployments.get("crm")
    assert found is not None and (found.spec, found.desired) == (SPEC, DesiredState.RUNNING)
    changed = SPEC + "commit: {interval: 3s}\n"
    listed = ask(url, "GET", "/v1/jobs").json()[0]
    assert (listed["reason"], listed["hint"]) == ("waits for a host", "See `cdc hosts`.")
    stale = ask(url, "PUT", "/v1/jobs/crm", data=changed, headers={"If-Match": '"7"'})
    assert stale.status_code == 409 and stale.json()["hint"] and "generation 1" in stale.json()["where"]
    assert ask(url, "PUT", "/v1/jobs/crm", data=changed, headers={"If-Match": '"1"'}).json()["generation"] == 2
    assert ask(url, "GET", "/v1/jobs/crm", VIEWER).json()["spec"] == changed
    assert ask(url, "DELETE", "/v1/jobs/crm?forget=true").json()["is_forgotten"]  # it has never run


def test_specification_with_an_object_store_is_saved(url: str, store: SqlStore) -> None:
    spec = SPEC.replace("/warehouse", "'s3://lake/cdc'")
    assert ask(url, "PUT", "/v1/jobs/crm", data=spec).json() == {"job": "crm", "generation": 1}
    found = store.deployments.get("crm")
    assert found is not None and found.spec == spec


def test_managed_job_without_driver_is_paused_and_stopped(url: str, store: SqlStore) -> None:
    ask(url, "PUT", "/v1/jobs/crm", data=SPEC)

    def result_of(verb: str, **body: str) -> dict[str, Any]:
        number = ask(url, "POST", f"/v1/jobs/crm/{verb}", json=body).json()["event"]
        wait_for(lambda: store.events.get(number).result, "the event has a result")  # type: ignore[union-attr]
        return dict(store.events.get(number).result)  # type: ignore[union-attr,arg-type]

    refused = result_of("snapshot", table="crm.people")["error"]
    assert (refused["error"], refused["hint"]) == (
        "The job crm has not run yet: it waits for a host.", "See `cdc hosts`."
    )  # fmt: skip
    for verb, state, desired in (
        ("resume", JobState.PENDING, "RUNNING"), ("pause", JobState.PAUSED, "PAUSED"),
        ("resume", JobState.PENDING, "RUNNING"), ("stop", JobState.CANCELLED, "CANCELLED"),
    ):  # fmt: skip
        assert result_of(verb) == {"ok": True}
        assert store.job("crm").state is state  # type: ignore[union-attr]
        assert store.deployments.get("crm").desired == desired  # type: ignore[union-attr]
    log = ask(url, "GET", "/v1/jobs/crm/logs")
    assert log.status_code == 409 and "has not run yet" in log.json()["error"]


def test_resume_of_a_managed_job_ends_the_pause_of_its_user(url: str, store: SqlStore) -> None:
    """The host that starts its driver would keep the pause."""
    for name, reason, is_user in (("shop", "paused by its user", True), ("crm", "a DDL follows", False)):
        record = add_job(store, name, JobState.PAUSED, reason, "x", ResumeKind.MANUAL)
        held = store.acquire(name, record.job_file)
        store.save_job(replace(held, is_paused_by_user=is_user))
        store.release()
        store.deployments.declare(name, spec=SPEC, desired=DesiredState.PAUSED)
        number = ask(url, "POST", f"/v1/jobs/{name}/resume", json={}).json()["event"]
        wait_for(lambda number=number: store.events.get(number).result, "it has a result")  # type: ignore[misc,union-attr]
        result = dict(store.events.get(number).result)  # type: ignore[union-attr,arg-type]
        assert result["ok"] is is_user, result
        assert store.job(name).state is (JobState.PENDING if is_user else JobState.PAUSED)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SPEC.replace("name: crm", "name: erp"), "has the name erp"),
        (SPEC.replace("/warehouse", "./warehouse"), "relative path"),
        (SPEC.replace("${CDC_TEST_PASSWORD}", PASSWORD), "must not contain secrets"),
        (SPEC.replace("sink:", "snik:"), "snik"),
        (SPEC.replace("start:", f"tls: {{mode: verify_ca, ca: /{'x' * 300}}}, start:"), "File name too long"),
        ("[" * 5000, "nested too deeply"),
        ("", "is empty"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_specification_that_is_not_valid_is_refused(url: str, store: SqlStore, spec: str, message: str) -> None:
    answer = ask(url, "PUT", "/v1/jobs/crm", data=spec)
    assert answer.status_code == 400 and message in answer.json()["error"], answer.text
    assert PASSWORD not in answer.text and "cdc-spec" not in answer.text
    assert store.deployments.get("crm") is None


def test_check_returns_findings_without_secrets(url: str, store: SqlStore) -> None:
    answer = ask(url, "POST", "/v1/check", data=SPEC.replace("127.0.0.1", "127.0.0.1, port: 1"))
    found = answer.json()
    assert answer.status_code == 200 and not found["can_start"] and found["findings"][0]["hint"]
    assert PASSWORD not in answer.text
    assert ask(url, "POST", "/v1/check", data="name: x").status_code == 400
    unset = SPEC.replace("CDC_TEST_PASSWORD", "CDC_NO_SUCH")  # another host may have it
    assert "CDC_NO_SUCH is not set" in ask(url, "POST", "/v1/check", data=unset).json()["error"]
    assert ask(url, "PUT", "/v1/jobs/crm", data=unset).status_code == 200


def test_no_answer_contains_a_secret(url: str, store: SqlStore, tmp_path: Path) -> None:
    literal = SPEC.replace("${CDC_TEST_PASSWORD}", PASSWORD)  # a folder of job files may have such a one
    store.deployments.declare("old", spec=literal, new=add_job(store, "old"))
    with fake_driver(store, tmp_path, tmp_path / "home"):
        token = (tmp_path / "home/jobs/shop/token").read_text().strip()
        secrets = (PASSWORD, "s3cret", ADMIN, VIEWER, token)
        paths = ["/v1/jobs", "/v1/hosts", "/metrics", "/openapi.json", "/v1/session", "/v1/jobs/shop/logs"]
        paths += [f"/v1/jobs/{name}{what}" for name in ("old", "shop") for what in ("", "/events", "/history")]
        for path in paths:
            text = ask(url, "GET", path).text
            assert not [one for one in secrets if one in text], path


def test_specification_is_shown_without_secret_values() -> None:
    text = (
        'a: {password: ${A}, token: x9, port: 1}\nssl.key.pem: "y8" # note\nuser: cdc\nkey: ${B}\n'
        "remote: sc://spark:15002/;token=z7;user_id=me\nlist:\n- Password: >\n    w6\n    w5\n- token: [v4]\nend: 1\n"
        '#  password: "u3"\nport: 2 # was token: t2\n'
    )
    shown = shown_spec(text) or ""
    for kept in (
        "${A}",
        "${B}",
        "user: cdc",
        "port: 1",
        "# note",
        "sc://spark:15002/;token=",
        "user_id=me",
        "end: 1",
        "port: 2 #",
    ):
        assert kept in shown
    assert not [one for one in ("x9", "y8", "z7", "w6", "w5", "v4", "u3", "t2") if one in shown]
    for written in (
        """'-Da.password="u 3"'""",
        r'"-Da.password=\"u 3\""',
        "'-Da.password=''u 3'''",
        "-Da.password='u 3'",
    ):
        assert "u 3" not in (shown_spec(f"options: {written}\n") or ""), written
    assert shown_spec("a: [token: x9") == "[hidden]"  # it cannot be read, so nothing is known about it
    assert shown_spec(None) is None


def test_specification_with_aliases_is_shown_undamaged() -> None:
    text = 'a: &x {password: "abcdef${PW}ghijklmnop"}\nb: *x\nc: *x\nnext: visible\n'
    assert shown_spec(text) == "a: &x {password: [hidden]}\nb: *x\nc: *x\nnext: visible\n"
    nested = "token: [&x {password: abcdefghijklmnop}, other]\nb: *x\nnext: visible\n"
    assert shown_spec(nested) == "token: [hidden]\nb: *x\nnext: visible\n"


def test_checkpoints_and_events_are_paged(url: str, store: SqlStore) -> None:
    record = store.acquire("shop", "/jobs/shop.yaml")
    for number in range(130):
        position = BinlogPosition("mysql-bin.000001", 4 + number)
        store.save(
            Checkpoint(number, record.fence, CheckpointState.COMMITTED, position, position, rows=number,
                       closed_by=CloseReason.INTERVAL, committed_at="2026-01-01T00:00:05Z", seconds={"commit": 0.5})
        )  # fmt: skip
        store.events.add("shop", "state", f"event {number}")  # type: ignore[arg-type]
    store.release()
    first = ask(url, "GET", "/v1/jobs/shop/events").json()
    assert len(first) == 100 and first[0]["id"] > first[-1]["id"]
    rest = ask(url, "GET", f"/v1/jobs/shop/events?before={first[-1]['id']}").json()
    assert rest and rest[0]["id"] < first[-1]["id"]
    checkpoints = ask(url, "GET", "/v1/jobs/shop/checkpoints").json()
    assert [one["id"] for one in checkpoints] == list(range(129, 29, -1))
    assert checkpoints[0]["seconds"] == {"commit": 0.5}
    older = ask(url, "GET", "/v1/jobs/shop/checkpoints?before=40").json()
    assert [one["id"] for one in older] == list(range(39, 29, -1))


def test_job_is_moved_to_another_host(url: str, store: SqlStore) -> None:
    add_job(store, "shop")
    ask(url, "PUT", "/v1/jobs/crm", data=SPEC)
    alone = ask(url, "POST", "/v1/jobs/crm/move")
    assert alone.status_code == 503 and "no host accepts jobs" in alone.json()["error"]
    for name in ("a1", "b2"):
        store.hosts.heartbeat(Host(name, f"run-{name}", None, 8 << 30))
    assert store.deployments.assign("crm", "a1", 0)
    assert ask(url, "GET", "/v1/jobs/crm").json()["reason"] == "starts on host a1"
    moved = ask(url, "POST", "/v1/jobs/crm/move")
    assert (moved.status_code, moved.json()) == (202, {"job": "crm", "host": "b2"})
    assert ask(url, "POST", "/v1/jobs/crm/move", data='{"host": "a1"}').json()["host"] == "a1"
    for job, body, code, message in (
        ("crm", {"host": "a1"}, 409, "is on host a1 already"),
        ("crm", {"host": "c3"}, 409, "There is no host c3"),
        ("crm", {"hst": "b2"}, 400, "body is refused"),
        ("crm", {"host": ""}, 400, "body is refused"),
        ("shop", {}, 409, "does not run on the hosts"),
        ("nosuch", {}, 404, "There is no job nosuch"),
    ):
        answer = ask(url, "POST", f"/v1/jobs/{job}/move", json=body)
        assert answer.status_code == code and message in answer.json()["error"], answer.text
    store.hosts.heartbeat(Host("tiny", "run-tiny", None, 1 << 20))
    for host, message in (("b2", "with the labels {zone: eu}"), ("tiny", "no other host accepts jobs with the labels")):
        ask(url, "PUT", "/v1/jobs/crm", data=SPEC + "host_selector: {zone: eu}\n")
        answer = ask(url, "POST", "/v1/jobs/crm/move", json={"host": host})
        assert answer.status_code == 503 and message in answer.json()["error"], answer.text
    ask(url, "PUT", "/v1/jobs/crm", data=SPEC)
    answer = ask(url, "POST", "/v1/jobs/crm/move", json={"host": "tiny"})
    assert answer.status_code == 503 and "no host has 1024 MiB free" in answer.json()["error"], answer.text
    newest = next(one for one in ask(url, "GET", "/v1/jobs/crm/events").json() if one["kind"] == "assigned")
    assert (newest["kind"], newest["actor"]) == ("assigned", "admin@127.0.0.1")
    assert store.deployments.get("crm").fence == 3  # type: ignore[union-attr]


def test_hosts_are_listed_and_drained(url: str, store: SqlStore) -> None:
    store.hosts.heartbeat(Host("a1", "run1", "https://a1:8480", 20 << 30, {"zone": "eu"}))
    (found,) = ask(url, "GET", "/v1/hosts", VIEWER).json()
    assert (found["name"], found["is_alive"], found["is_drained"], found["jobs"]) == ("a1", True, False, [])
    assert ask(url, "POST", "/v1/hosts/a1/drain").status_code == 202
    assert ask(url, "GET", "/v1/hosts").json()[0]["is_drained"]
    assert ask(url, "POST", "/v1/hosts/a1/undrain").status_code == 202
    assert ask(url, "POST", "/v1/hosts/b2/drain").status_code == 404
    assert not ask(url, "GET", "/v1/hosts").json()[0]["is_drained"]


def test_ready_follows_the_host(store: SqlStore) -> None:
    with served(store, Tokens(ADMIN), ready=lambda: False) as url:
        assert ask(url, "GET", "/ready", None).status_code == 503
        assert ask(url, "GET", "/live", None).status_code == 200


def test_cookie_of_a_login_needs_the_origin_to_change(url: str, store: SqlStore) -> None:
    add_job(store, "shop")
    assert ask(url, "POST", "/v1/login", None, json={"token": "wrong"}).status_code == 401
    session = requests.Session()
    answer = session.post(f"{url}/v1/login", json={"token": ADMIN}, timeout=120)
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and ADMIN not in cookie
    assert session.get(f"{url}/v1/session", timeout=120).json()["role"] == "admin"
    pause = f"{url}/v1/jobs/shop/pause"
    assert session.post(pause, timeout=120).status_code == 403  # no Origin
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://["):
        assert session.post(pause, headers={"Origin": origin}, timeout=120).status_code == 403, origin
    assert session.post(pause, headers={"Origin": url}, timeout=120).status_code == 202
    out = session.post(f"{url}/v1/logout", headers={"Origin": url}, timeout=120)
    assert out.status_code == 200 and COOKIE not in session.cookies
    assert session.get(f"{url}/v1/jobs", timeout=120).status_code == 401


def test_login_of_another_page_is_refused(url: str) -> None:
    answer = ask(url, "POST", "/v1/login", None, json={"token": ADMIN}, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403 and "Set-Cookie" not in answer.headers


def test_without_tokens_only_loopback_names_are_answered(store: SqlStore) -> None:
    with served(store, Tokens()) as url:
        assert ask(url, "GET", "/v1/session", None).json()["role"] == "admin"
        for host in ("evil.example", "169.254.1.1", "", "127.0.0.1.evil.example", "["):
            assert ask(url, "GET", "/v1/jobs", None, headers={"Host": host}).status_code in (400, 403), host
        answer = ask(url, "POST", "/v1/check", None, headers={"Origin": "https://evil.example"})
        assert answer.status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/..%2F..%2Fetc", "/v1/jobs/Shop", "/v1/jobs/" + "a" * 41, "/v1/jobs/-a", "/v1/jobs/a%00b", "/v1/jobs/a'b",
        "/static/..%2Frest%2Fguard.py", "/static/app.py", "/static/%2e%2e", "/v1/jobs/shop/events?before=x",
        "/v1/jobs/shop/events/9999999999999999999999", "/v1/jobs/shop/logs?lines=1e9", "/v1/jobs/nosuch",
        "/v1/jobs/shop/history?minutes=nan", "/v1/none", "/v1/jobs/shop/events/1",
    ],
)  # fmt: skip
def test_hostile_path_is_refused_as_json(url: str, store: SqlStore, path: str) -> None:
    add_job(store, "shop")
    store.events.add("other", "state", "of another job")  # type: ignore[arg-type]
    answer = ask(url, "GET", path)
    assert answer.status_code in (400, 404), answer.text
    assert set(answer.json()) >= ERROR_KEYS and "Traceback" not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"[",
        b"[]",
        b"1",
        b'{"past_ddl": 1}',
        b'{"other": true}',
        b"\xff",
        b'{"past_ddl": true, ' + b" " * 9000 + b'"x": 1}',
    ],
)
def test_hostile_body_is_refused_as_json(url: str, store: SqlStore, body: bytes) -> None:
    add_job(store, "shop")
    answer = ask(url, "POST", "/v1/jobs/shop/resume", data=body)
    assert answer.status_code == 400 and answer.json()["hint"]
    assert all(event.kind != "request" for event in store.events.newest("shop"))


def test_random_requests_to_every_route_never_fail_the_server(url: str, store: SqlStore) -> None:
    add_job(store, "shop")
    random = Random(4711)
    texts = [
        "",
        "shop",
        "x",
        "1",
        "-1",
        "9" * 30,
        "\x00",
        "\ud800",
        "é" * 50,
        "../..",
        "%",
        "null",
        "true",
        "'; DROP TABLE cdc_jobs; --",
    ]

    def value(depth: int = 0) -> object:
        kinds = [lambda: random.choice(texts), lambda: random.randint(-(1 << 70), 1 << 70), lambda: None, lambda: True]
        if depth < 3:
            kinds += [
                lambda: [value(depth + 1) for _ in range(3)],
                lambda: {
                    random.choice(
                        ["table", "where", "tables", "sample", "token", "repair", "past_ddl", "name", "x"]
                    ): value(depth + 1)
                    for _ in range(3)
                },
            ]
        return random.choice(kinds)()

    for path, operations in ask(url, "GET", "/openapi.json").json()["paths"].items():
        for method in operations:
            for _ in range(6):
                filled = re.sub(r"{\w+}", lambda _: quote(random.choice(texts), safe="", errors="ignore") or "a", path)
                body = json.dumps(value()).encode() if random.random() < 0.8 else random.randbytes(40)
                query = {
                    name: random.choice(texts).encode("utf-8", "replace")
                    for name in ("before", "limit", "minutes", "lines", "forget")
                }
                query = {name: text for name, text in query.items() if random.random() < 0.3}
                answer = ask(url, method.upper(), filled, data=body, params=query, allow_redirects=False)
                assert answer.status_code < 500, (method, filled, body, query, answer.text)
    assert ask(url, "GET", "/v1/jobs").status_code == 200


def test_body_above_the_limit_is_refused(url: str) -> None:
    assert ask(url, "PUT", "/v1/jobs/crm", data=b"#" * (BODY_BYTES_MOST + 1)).status_code == 413
    chunks = (b"#" * (1 << 16) for _ in range((BODY_BYTES_MOST >> 16) + 1))
    assert ask(url, "PUT", "/v1/jobs/crm", data=chunks).status_code == 413


def test_length_that_is_not_a_number_is_refused(url: str) -> None:
    address = urlsplit(url)
    for length in ("-1", "x", "1" * 5000):
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
        connection.putrequest("POST", "/v1/check")
        connection.putheader("Authorization", f"Bearer {ADMIN}")
        connection.putheader("Content-Length", length)
        connection.endheaders()
        assert connection.getresponse().status in (400, 413), length
        connection.close()


def test_unexpected_error_is_answered_without_details(
    url: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("internal detail")

    monkeypatch.setattr(store.hosts, "all", broken)
    answer = ask(url, "GET", "/v1/hosts")
    assert answer.status_code == 500 and "internal detail" not in answer.text and answer.json()["hint"]
    wait_for(lambda: "internal detail" in caplog.text, "the cause is logged")


def test_closed_store_is_reported_as_unavailable(url: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from cdc.errors import CheckpointError

    def unavailable(*_: object, **__: object) -> None:
        raise CheckpointError("The store does not answer.", hint="Start it.", store="db")

    monkeypatch.setattr(store.deployments, "all", unavailable)
    answer = ask(url, "GET", "/v1/jobs")
    assert answer.status_code == 503
    assert answer.json()["error"] == "The store does not answer." and answer.json()["where"] == "store db"


def test_every_answer_has_security_headers(url: str) -> None:
    for path, token in (("/", None), ("/v1/jobs", None), ("/v1/jobs", ADMIN), ("/v1/none", ADMIN)):
        headers = ask(url, "GET", path, token).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_history_is_a_ring_of_fixed_size() -> None:
    history = JobHistory()
    assert history.since(0) == ([], {name: [] for name in SERIES}) and history.newest("lag_seconds") is None
    for number in range(KEPT + 5):
        history.add(float(number), {"lag_seconds": float(number)})
    times, series = history.since(0)
    assert (times[0], times[-1], len(times)) == (5.0, KEPT + 4.0, KEPT)
    assert series["lag_seconds"][-1] == KEPT + 4.0 and series["rows_per_second"] == [None] * KEPT
    assert history.recent("lag_seconds", 2) == [KEPT + 3.0, KEPT + 4.0]
    assert json.dumps(series)  # no NaN
