"""Decide when a job sends an alert: it is PAUSED, its lag is high, or another host has taken it over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from cdc.config.alert_models import Alerts
from cdc.job.webhook import Webhook
from cdc.model.alert import Alert, AlertKind
from cdc.model.timing import utc_now
from cdc.state.base import JobRecord, JobState, ResumeKind

CHECK_S = 1.0
PAUSED_S = 60.0  # a shorter automatic pause needs no person
QUIET_S = 300.0  # the same alert is not repeated sooner, for example of a sink that fails again and again

_log = logging.getLogger(__name__)


class AlarmRules:
    """What has to be reported, from the states that it is shown. Calls: one thread at a time."""

    def __init__(self) -> None:
        self._paused_at: float | None = None  # monotonic; None: the job is not PAUSED
        self._reported: ResumeKind | None = None  # of the current pause
        self._is_lag_reported = False
        self._sent_at: dict[tuple[AlertKind, str], float] = {}

    def check(self, now: float, record: JobRecord, lag_s: float | None, threshold_s: float) -> Iterator[Alert]:
        """Yield the alerts that are due at ``now``, a monotonic time in seconds. ``lag_s``: None if it is not known."""
        if record.state is not JobState.PAUSED:
            self._paused_at = self._reported = None
        else:
            if self._paused_at is None:
                self._paused_at = now
            is_due = record.resume is ResumeKind.MANUAL or now - self._paused_at >= PAUSED_S
            if is_due and record.resume is not self._reported:
                self._reported = record.resume
                yield from self._once(now, paused(record))
        if lag_s is None or lag_s <= threshold_s:
            self._is_lag_reported = self._is_lag_reported and lag_s is None
        elif not self._is_lag_reported:
            self._is_lag_reported = True
            yield from self._once(now, lagging(record, lag_s, threshold_s))

    def _once(self, now: float, alert: Alert) -> Iterator[Alert]:
        key = (alert.event, alert.message if alert.event is AlertKind.PAUSED else "")
        self._sent_at = {one: at for one, at in self._sent_at.items() if now - at < QUIET_S}
        if key not in self._sent_at:
            self._sent_at[key] = now
            yield alert


class AlarmWatch:
    """Watches a job whose file has ``alerts``, on a thread. Calls: all methods by the run loop."""

    def __init__(
        self,
        record: Callable[[], JobRecord],
        lag_s: Callable[[], float | None],
        *,
        webhook: Webhook | None = None,
        check_s: float = CHECK_S,
    ) -> None:
        """``record``, ``lag_s``: the record and the lag of the job at this moment; they are called on the thread."""
        self._record = record
        self._lag_s = lag_s
        self._webhook = webhook or Webhook()
        self._check_s = check_s
        self._alerts: Alerts | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def use(self, alerts: Alerts | None) -> None:
        """Send what ``alerts`` names from now on. None: send nothing."""
        self._alerts = alerts
        if alerts is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
            self._thread.start()

    def note_host(self, before: str | None, record: JobRecord) -> None:
        """Report that the host of ``record`` has the job now, if ``before`` was another one."""
        if before is not None and record.host is not None and before != record.host:
            self._send(moved(record, before, record.host))

    def close(self) -> None:
        """Stop. Alerts that wait are delivered within a short time or dropped."""
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self._webhook.close()

    def _run(self) -> None:
        rules = AlarmRules()
        while not self._over.wait(self._check_s):
            alerts = self._alerts
            if alerts is None:
                continue
            try:
                for alert in rules.check(time.monotonic(), self._record(), self._lag_s(), alerts.lag_threshold):
                    self._send(alert)
            except Exception:  # noqa: BLE001 - logged; alerts must never end a job
                _log.exception("alerts cannot be decided")

    def _send(self, alert: Alert) -> None:
        alerts = self._alerts
        if alerts is not None and alert.event in alerts.events:
            self._webhook.send(alerts.webhook.get_secret_value(), alert)


def paused(record: JobRecord) -> Alert:
    """Return the alert of a PAUSED job."""
    return Alert(
        AlertKind.PAUSED,
        record.name,
        utc_now(),
        record.reason or "The job is paused.",
        record.hint,
        record.host,
        {"resume": record.resume},
    )


def lagging(record: JobRecord, lag_s: float, threshold_s: float) -> Alert:
    """Return the alert of a job whose targets are behind."""
    return Alert(
        AlertKind.LAG,
        record.name,
        utc_now(),
        f"The targets are {lag_s:.0f} s behind the source.",
        f"cdc status {record.name}",
        record.host,
        {"lag_seconds": round(lag_s, 1), "threshold_seconds": threshold_s},
    )


def moved(record: JobRecord, before: str, after: str) -> Alert:
    """Return the alert of a job that another host runs now."""
    return Alert(
        AlertKind.MOVED,
        record.name,
        utc_now(),
        f"Host {after} took over from host {before}.",
        f"Find out why host {before} has ended.",
        after,
        {"from": before, "to": after},
    )
