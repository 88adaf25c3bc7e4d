"""When a job sends alerts."""

from __future__ import annotations

import queue
from dataclasses import replace

from cdc.config.alert_models import Alerts
from cdc.job.alarms import PAUSED_S, QUIET_S, AlarmRules, AlarmWatch
from cdc.job.webhook import Webhook
from cdc.model.alert import Alert, AlertKind
from cdc.state.base import JobRecord, JobState, ResumeKind

RUNNING = JobRecord("shop", "ab", 1, JobState.RUNNING, "/shop.yaml", host="two")
MANUAL = replace(RUNNING, state=JobState.PAUSED, resume=ResumeKind.MANUAL, reason="DDL", hint="cdc resume shop")
AUTOMATIC = replace(MANUAL, resume=ResumeKind.AUTOMATIC, reason="The sink is away.")


class Timeline:
    """Rules, and the alerts that they have given."""

    def __init__(self) -> None:
        self.rules = AlarmRules()

    def at(self, now: float, record: JobRecord, lag_s: float | None = 0.0) -> list[str]:
        found = list(self.rules.check(now, record, lag_s, 60.0))
        assert all(one.job == "shop" and one.host == "two" for one in found)
        return [one.event for one in found]


def test_alarms_manual_pause_is_reported_once_and_at_once() -> None:
    job = Timeline()
    assert [job.at(0, RUNNING), job.at(1, MANUAL), job.at(2, MANUAL), job.at(900, MANUAL)] == [[], ["paused"], [], []]


def test_alarms_short_automatic_pause_is_not_reported() -> None:
    job = Timeline()
    assert job.at(0, AUTOMATIC) + job.at(PAUSED_S - 1, AUTOMATIC) + job.at(PAUSED_S, RUNNING) == []
    assert job.at(100, AUTOMATIC) == [] and job.at(100 + PAUSED_S, AUTOMATIC) == ["paused"]
    assert job.at(101 + PAUSED_S, AUTOMATIC) == []
    assert job.at(102 + PAUSED_S, MANUAL) == ["paused"]  # now it waits for a person


def test_alarms_same_pause_again_is_quiet_for_minutes() -> None:
    job = Timeline()
    assert job.at(0, MANUAL) == ["paused"]
    assert job.at(1, RUNNING) + job.at(2, MANUAL) == []
    assert job.at(3, RUNNING) + job.at(4, replace(MANUAL, reason="another")) == ["paused"]
    assert job.at(QUIET_S, RUNNING) + job.at(QUIET_S + 1, MANUAL) == ["paused"]


def test_alarms_lag_is_reported_once_above_the_threshold() -> None:
    job = Timeline()
    assert job.at(0, RUNNING, 60.0) == [] and job.at(1, RUNNING, 60.1) == ["lag"]
    assert job.at(2, RUNNING, 500.0) + job.at(3, RUNNING, None) + job.at(4, RUNNING, 500.0) == []
    assert job.at(5, RUNNING, 0.0) + job.at(6, RUNNING, 61.0) == []  # too soon
    assert job.at(7, RUNNING, 0.0) + job.at(QUIET_S + 1, RUNNING, 61.0) == ["lag"]


class Sent(Webhook):
    def __init__(self) -> None:
        super().__init__()
        self.got: queue.Queue[tuple[str, Alert]] = queue.Queue()

    def send(self, url: str, alert: Alert) -> None:
        self.got.put((url, alert))


def test_alarm_watch_sends_what_the_file_names_and_a_resume_changes_it() -> None:
    records, sent = [MANUAL], Sent()
    watch = AlarmWatch(lambda: records[0], lambda: 100.0, webhook=sent, check_s=0.001)
    try:
        watch.note_host("one", RUNNING)  # without `alerts` nothing is sent
        watch.use(Alerts(webhook="http://a/b", events=("paused", "moved")))
        watch.note_host(None, RUNNING)
        watch.note_host("two", RUNNING)
        assert sent.got.get(timeout=120)[1].message == "DDL"
        watch.note_host("one", RUNNING)
        url, alert = sent.got.get(timeout=120)
        assert (url, alert.event, alert.detail) == ("http://a/b", AlertKind.MOVED, {"from": "one", "to": "two"})
        assert sent.got.empty()  # the lag is above its threshold, and the file does not name `lag`
        watch.use(Alerts(webhook="http://c/d", events=("paused",), lag_threshold="5s"))
        records[0] = replace(MANUAL, resume=ResumeKind.AUTOMATIC)
        watch.note_host("one", RUNNING)
        watch.use(None)
        watch.note_host("one", RUNNING)
        assert sent.got.empty()
    finally:
        watch.close()
