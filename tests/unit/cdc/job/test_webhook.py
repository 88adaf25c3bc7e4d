"""The webhook of a job, posted to real HTTP servers: good, failing, silent, dripping and redirecting ones."""

import json
import logging
import socket
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdc.config.alert_models import AlertEvent, Alerts
from cdc.errors import LoadRejected, SinkError
from cdc.job import webhook as module
from cdc.job.record import SavedRecord
from cdc.job.webhook import AlertWatch, Webhook, message_of
from cdc.logging_setup import LineFormatter
from cdc.state.base import JobRecord, JobState, ResumeKind
from tests.support.webhook_receiver import LIMIT_S, TOKEN, WebhookReceiver

PASSWORD = "pa55word-of-the-source"


class WatchedJob:
    def __init__(self, url, **alerts):
        keys = {"webhook": url, **alerts}
        self.config = SimpleNamespace(alerts=Alerts.model_validate({k: v for k, v in keys.items() if v is not None}))
        self.record = JobRecord("shop", "0badcafe", 1, JobState.RUNNING, "/jobs/shop.yaml", host="a1")
        self.lag_s = 0.4

    def set(self, state, resume=None, reason=None, hint=None):
        self.record = JobRecord(
            "shop", "0badcafe", 1, state, "/jobs/shop.yaml", host="a1", resume=resume, reason="not for other programs",
            alert_reason=reason, hint=hint, is_lag_posted=self.record.is_lag_posted,
        )  # fmt: skip

    def watched(self):
        return self.record, self.lag_s

    def save_lag_posted(self, *, is_posted):
        self.record = replace(self.record, is_lag_posted=is_posted)


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    servers, hooks = [], []

    def start(*statuses, watch=None, **alerts):
        servers.append(WebhookReceiver(*statuses))
        job = watch or WatchedJob(servers[-1].url, **alerts)
        hooks.append(Webhook(job))
        hooks[-1].start()
        return servers[-1], job

    yield start
    for server in servers:
        server.released.set()
    for hook in hooks:
        hook.close()
        hook._thread.join(LIMIT_S)
        assert not hook._thread.is_alive()
    for server in servers:
        server.shutdown()
        server.server_close()


def test_webhook_pause_is_posted_with_reason_and_hint_and_its_end(serve):
    server, job = serve()
    job.set(JobState.PAUSED, ResumeKind.AUTOMATIC, "The server does not answer.", "Start it.")
    path, body, headers = server.next()
    message = json.loads(body)
    assert message.pop("at").endswith("Z")
    assert message == {
        "job": "shop",
        "event": "paused",
        "resolved": False,
        "state": "PAUSED",
        "reason": "The server does not answer.",
        "hint": "Start it.",
        "resume": "automatic",
        "lag_seconds": 0.4,
        "host": "a1",
        "moved_from": None,
    }
    assert path == f"/hook/{TOKEN}?k={TOKEN}" and headers["Content-Type"] == "application/json"
    job.set(JobState.PAUSED, ResumeKind.MANUAL, "Its data is lost.")
    message = server.message()
    assert (message["resume"], message["resolved"]) == ("manual", False)
    job.set(JobState.RUNNING)
    assert server.message()["resolved"] is True
    assert server.requests.empty()


def test_webhook_pause_of_an_earlier_process_is_posted_as_over(serve):
    job = WatchedJob(None)
    job.set(JobState.PAUSED, ResumeKind.MANUAL, "x")
    server, job = serve(watch=job)
    job.config.alerts = Alerts.model_validate({"webhook": server.url})  # as after `cdc resume` with a changed job file
    job.set(JobState.RUNNING)
    message = server.message()
    assert (message["event"], message["resolved"]) == ("paused", True)


def test_webhook_lag_begins_above_the_threshold_and_ends_below_half(serve):
    server, job = serve(lag_threshold="10s")
    job.lag_s = 10.5
    message = server.message()
    assert (message["event"], message["resolved"], message["lag_seconds"]) == ("lag", False, 10.5)
    for lag_s in (9.0, None, 5.5):  # not yet over; unknown
        job.lag_s = lag_s
    job.lag_s = 4.0
    message = server.message()
    assert (message["event"], message["resolved"], message["lag_seconds"]) == ("lag", True, 4.0)


def test_webhook_changes_near_the_threshold_are_not_posted():
    keys = {"lag_threshold": "10s", "webhook": "https://hooks.example"}
    watch, alerts, record = AlertWatch(), Alerts.model_validate(keys), WatchedJob(None).record
    seen = [watch.changes(alerts, record, lag_s) for lag_s in (9.0, 11.0, 9.0, 11.0, None, 5.5, 4.9, 9.0)]
    assert [bool(one) for one in seen] == [False, True, False, False, False, False, True, False]


def test_webhook_next_process_posts_the_end_of_lag_once(serve):
    job = WatchedJob(None)
    job.config.alerts = Alerts.model_validate({"webhook": "https://hooks.example", "lag_threshold": "10s"})
    job.record = replace(job.record, is_lag_posted=True)
    job.lag_s = 20.0
    server, _ = serve(watch=job)
    job.config.alerts = Alerts.model_validate({"webhook": server.url, "lag_threshold": "10s"})
    job.lag_s = 1.0
    message = server.message()
    assert (message["event"], message["resolved"]) == ("lag", True)
    job.lag_s = 20.0
    assert server.message()["resolved"] is False
    job.set(JobState.CANCELLED)  # its lag is not known then
    job.lag_s = None
    assert server.message()["resolved"] is True
    assert server.requests.empty()


def test_webhook_changes_of_unrequested_events_are_not_kept():
    keys = {"webhook": "https://hooks.example", "lag_threshold": "10s"}
    watch, record = AlertWatch(), WatchedJob(None).record
    paused = replace(record, state=JobState.PAUSED, resume=ResumeKind.MANUAL)
    assert watch.changes(Alerts.model_validate({**keys, "events": ["lag"]}), paused, 20.0) == [(AlertEvent.LAG, False)]
    assert watch.changes(Alerts.model_validate({**keys, "events": ["paused"]}), record, 0.1) == []
    assert watch.changes(Alerts.model_validate(keys), record, 0.1) == [(AlertEvent.LAG, True)]


def test_webhook_only_the_requested_events_are_posted(serve):
    server, job = serve(events=["lag"])
    job.set(JobState.PAUSED, ResumeKind.MANUAL, "x")
    job.lag_s = 1000.0
    assert server.message()["event"] == "lag"


def test_webhook_message_has_no_values_of_rows():
    store = SimpleNamespace(job=lambda name: None, save_job=lambda record: None)
    saved = SavedRecord(store, "shop", "/jobs/shop.yaml")
    rejected = LoadRejected(
        "NULL for the row ann@example.org.", hint="Correct it.", table="crm.users", column="a", keys=[{"k": "ann@example.org"}]
    )  # fmt: skip
    for error, reason in (
        (rejected, "LoadRejected: The sink rejected rows (table crm.users, column a)"),
        (SinkError("ann@example.org", hint="", table="t"), "SinkError (table t)"),
        (ValueError("ann@example.org"), "ValueError"),
    ):
        saved.pause(error, ResumeKind.MANUAL)
        message = message_of(AlertEvent.PAUSED, saved.now, None)
        assert "ann@" in saved.now.reason and "ann@" not in json.dumps(message)
        assert message["reason"] == reason
    saved.set_state(JobState.RUNNING)
    assert message_of(AlertEvent.PAUSED, saved.now, None, is_resolved=True)["reason"] is None
    saved.pause_by_hand()
    assert message_of(AlertEvent.PAUSED, saved.now, None)["reason"] == "paused by its user"


def test_webhook_failing_server_gets_three_tries(serve, caplog):
    server, job = serve(500, 503, 500)
    job.set(JobState.PAUSED, ResumeKind.MANUAL, "x")
    first = [server.message() for _ in range(3)]
    assert first[0] == first[1] == first[2]
    job.set(JobState.RUNNING)
    assert server.message()["resolved"] is True  # no fourth try
    assert [record.attempt for record in caplog.records if "webhook" in record.message] == [1, 2, 3]


@pytest.mark.parametrize("status", [301, 302, 307, 308, 404])
def test_webhook_redirect_and_refusal_are_neither_followed_nor_repeated(serve, status):
    server, job = serve(status)
    job.set(JobState.PAUSED, ResumeKind.MANUAL, "x")
    assert server.next()[0].startswith("/hook/")
    job.set(JobState.RUNNING)
    path, body, _ = server.next()
    assert path.startswith("/hook/") and json.loads(body)["resolved"] is True


def test_webhook_silent_server_is_given_up_and_the_newest_state_follows(serve, monkeypatch):
    monkeypatch.setattr(module, "TRY_S", 0.2)
    server, job = serve(None, None, None)
    job.set(JobState.PAUSED, ResumeKind.AUTOMATIC, "first")
    assert [server.message()["reason"] for _ in range(3)] == ["first"] * 3
    job.set(JobState.PAUSED, ResumeKind.MANUAL, "second")
    assert server.message()["reason"] == "second"


def test_webhook_server_that_drips_bytes_is_cut(monkeypatch):
    monkeypatch.setattr(module, "TRY_S", 0.2)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip():
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 ")
                try:
                    while not over.wait(0.02):
                        connection.sendall(b"x")
                except OSError:
                    pass

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with pytest.raises((OSError, module.http.client.HTTPException)):
            module._send(f"http://127.0.0.1:{listening.getsockname()[1]}/", b"{}")
        over.set()
        thread.join(LIMIT_S)


def test_webhook_without_server_logs_and_continues(serve, caplog):
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # it does not listen
        server, job = serve(watch=WatchedJob(f"http://127.0.0.1:{refusing.getsockname()[1]}/{TOKEN}"))
        job.set(JobState.PAUSED, ResumeKind.MANUAL, "x")
        for _ in range(int(LIMIT_S * 100)):
            if len([one for one in caplog.records if "webhook" in one.message]) == module.TRIES:
                break
            threading.Event().wait(0.01)
    job.config.alerts = Alerts.model_validate({"webhook": server.url})
    job.set(JobState.RUNNING)
    assert server.message()["resolved"] is True


def test_webhook_posts_and_logs_no_secret(serve, caplog):
    formatter = LineFormatter("shop", [PASSWORD])
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.getLogger().addHandler(handler)
    try:
        server, job = serve(500, 301)
        job.set(JobState.PAUSED, ResumeKind.MANUAL, f"refused {PASSWORD}", f"try {PASSWORD}")
        for _ in range(2):
            _, body, headers = server.next()
            assert PASSWORD not in body.decode() and TOKEN not in body.decode()
            assert PASSWORD not in str(headers)
        job.set(JobState.RUNNING)
        server.next()
    finally:
        logging.getLogger().removeHandler(handler)
    lines = [logging.Formatter.format(LineFormatter("shop"), one) + str(vars(one)) for one in caplog.records]
    assert len(lines) >= 2 and TOKEN not in "".join(lines)
    assert TOKEN not in repr(job.config.alerts)


@pytest.mark.parametrize(
    "url",
    ["ftp://h/x", "file:///etc/passwd", "h/x", "http://", "http://u:p@h/", "http://h:99999/", "http://h/a b", "http://h/\r\nX: y", "http://[::1/"],
)  # fmt: skip
def test_webhook_url_that_cannot_be_posted_is_refused(url):
    with pytest.raises(ValueError, match="must be a URL"):
        Alerts.model_validate({"webhook": url})
