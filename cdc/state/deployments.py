"""What users want of each job (specification, desired state) and which host runs it, in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from cdc.errors import ConfigError
from cdc.state.base import JobRecord, forgetting
from cdc.state.codec import from_json, to_json
from cdc.state.database import Database, Row, Transaction
from cdc.state.events import EventKind, add_event

_COLUMNS = (
    "name, fence, host, desired_state, spec, generation, holder, lease_until, record, summary, summary_at, alerts"
)


class DesiredState(StrEnum):
    """What a user wants of a job."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A job as the hosts see it. ``cdc serve`` manages the jobs that have a ``spec``."""

    job: str
    fence: int  # of the newest run or assignment
    host: str | None  # the host to which the job is assigned
    desired: DesiredState | None  # None: no user has asked for a state yet
    spec: str | None  # YAML text of the job file, ``${...}`` unresolved; None: started from a file, without `cdc serve`
    generation: int  # number of changes of ``spec`` and ``desired``
    holder: str | None  # name of the host whose run has, or had, the lease
    lease_left_s: float  # of the run; 0 or less: no run is alive
    record: JobRecord
    summary: Mapping[str, Any] = field(default_factory=dict)  # lag_s, rows_per_s and so on, from the run
    summary_age_s: float | None = None  # None: no run has saved a summary
    alerts: Mapping[str, Any] = field(default_factory=dict)  # what was posted: paused, lags, and the host that posted

    @property
    def is_held(self) -> bool:
        """Whether a run has a lease that has not expired. Always False with a store in a file: it has no leases."""
        return self.lease_left_s > 0


class Deployments:
    """The specifications and assignments of a store. Calls: any thread. Raises: CheckpointError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> tuple[Deployment, ...]:
        """Return all jobs, ordered by name."""
        rows = self._database.all(f"SELECT {_COLUMNS}, {self._database.words.now} FROM cdc_jobs ORDER BY name")
        return tuple(_deployment(row) for row in rows)

    def get(self, job: str) -> Deployment | None:
        """Return one job, if it exists."""
        sql = f"SELECT {_COLUMNS}, {self._database.words.now} FROM cdc_jobs WHERE name = :name"
        rows = self._database.all(sql, name=job)
        return _deployment(rows[0]) if rows else None

    def declare(
        self,
        job: str,
        *,
        spec: str | None = None,
        desired: DesiredState | None = None,
        generation: int | None = None,
        actor: str | None = None,
        new: JobRecord | None = None,
        keeps_pause: bool = False,
    ) -> int:
        """Save a specification, a desired state or both, and return the new generation. Equal values change nothing.

        ``generation``: only if it is the current one. ``new``: the record of a job that does not exist yet.
        ``keeps_pause``: a job that its user has paused stays PAUSED.
        Raises: ConfigError - there is no such job, it was stopped, or it has another generation.
        """

        saved: list[tuple[int, str | None, str | None]] = []  # by earlier attempts, whose COMMIT may have been lost

        def work(transaction: Transaction) -> int:
            sql = "SELECT generation, spec, desired_state FROM cdc_jobs WHERE name = :name"
            rows = transaction.all(sql, name=job)
            if not rows and new is not None:
                insert_job(transaction, new)
                rows = [(0, None, None)]
            if not rows:
                raise ConfigError(f"There is no job {job}.", hint="`cdc list` shows the jobs.", job=job)
            found, old_spec, old_desired = rows[0]
            if (found, old_spec, old_desired) in saved:
                return int(found)
            stays = desired is None or (keeps_pause and old_desired == DesiredState.PAUSED)
            wanted = (spec if spec is not None else old_spec, old_desired if stays else desired)
            if generation is not None and generation != found:
                raise ConfigError(
                    f"The job {job} was changed by another user.",
                    hint="Read it again and repeat the change.",
                    generation=found,
                    expected=generation,
                )
            # before its hosts have ended the job, its record is not CANCELLED
            if old_desired == DesiredState.CANCELLED and wanted[1] != old_desired:
                raise ConfigError(f"The job {job} was stopped.", hint=forgetting(job), job=job)
            if wanted == (old_spec, old_desired):
                return int(found)
            values = {"name": job, "spec": wanted[0], "desired": wanted[1] and str(wanted[1]), "found": found}
            done = transaction.run(
                "UPDATE cdc_jobs SET spec = :spec, desired_state = :desired, generation = generation + 1"
                " WHERE name = :name AND generation = :found",
                **values,
            )
            if not done:
                raise ConfigError(f"The job {job} was changed by another user.", hint="Repeat the change.", job=job)
            saved.append((found + 1, values["spec"], values["desired"]))
            detail = {
                "generation": found + 1,
                "desired_state": values["desired"],
                "spec_changed": wanted[0] != old_spec,
            }
            what = f"desired state {values['desired']}" if wanted[1] != old_desired else "new specification"
            add_event(transaction, self._database.words.now, job, EventKind.SPEC, what, actor, detail)
            return int(found) + 1

        return self._database.transact(work)

    def assign(
        self, job: str, host: str | None, fence: int, *, actor: str | None = None, reason: str | None = None
    ) -> bool:
        """Assign the job to ``host``, or to none, if ``fence`` is still its fence. Return whether it was.

        ``reason``: for the event.

        The fence becomes ``fence + 1`` and the lease ends, so an older run saves nothing from here on. Only
        ``host`` may start a run then.
        """
        now = self._database.words.now

        def work(transaction: Transaction) -> bool:
            rows = transaction.all("SELECT fence, host FROM cdc_jobs WHERE name = :name", name=job)
            if not rows:
                return False
            before = rows[0][1]
            if (rows[0][0], before) == (fence + 1, host):
                return True  # a repeated transaction finds its own result
            done = transaction.run(
                "UPDATE cdc_jobs SET host = :host, fence = fence + 1, token = '', lease_until = 0"
                " WHERE name = :name AND fence = :fence",
                host=host,
                name=job,
                fence=fence,
            )
            if not done:
                return False
            write_record(transaction, replace(locked_record(transaction, job), fence=fence + 1))
            text = f"assigned to host {host}" if host else "assigned to no host"
            text += f": {reason}" if reason else ""
            detail = {"host": host, "fence": fence + 1, "before": before}
            add_event(transaction, now, job, EventKind.ASSIGNED, text, actor, detail)
            return True

        return self._database.transact(work)

    def save_alerts(self, job: str, alerts: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Save what was posted about a job, for the host that posts next.

        ``before``: what was saved when the message was made. If it has changed, the job has moved and its new host has
        posted; save nothing then.
        """
        sql = "UPDATE cdc_jobs SET alerts = :alerts WHERE name = :name AND COALESCE(alerts, '{}') = :before"
        values = {"alerts": json.dumps(dict(alerts)), "name": job, "before": json.dumps(dict(before))}
        self._database.transact(lambda transaction: transaction.run(sql, **values))


def end_pause(transaction: Transaction, now: str, job: str, actor: str) -> None:
    """Change the desired state PAUSED of a job to RUNNING, because a resume is carried out.

    A command sends its resume to the driver, and does not save a desired state.
    """
    done = transaction.run(
        "UPDATE cdc_jobs SET desired_state = :running, generation = generation + 1"
        " WHERE name = :name AND desired_state = :paused",
        running=str(DesiredState.RUNNING),
        name=job,
        paused=str(DesiredState.PAUSED),
    )
    if done:
        detail = {"desired_state": str(DesiredState.RUNNING), "spec_changed": False}
        add_event(transaction, now, job, EventKind.SPEC, f"desired state {DesiredState.RUNNING}", actor, detail)


def insert_job(transaction: Transaction, record: JobRecord) -> None:
    """Create the row of a job."""
    transaction.run(
        "INSERT INTO cdc_jobs (name, fence, token, saves, highest_id, record, lease_until, generation)"
        " VALUES (:name, :fence, '', 0, -1, :record, 0, 0)",
        name=record.name,
        fence=record.fence,
        record=to_json(record),
    )


def locked_record(transaction: Transaction, job: str) -> JobRecord:
    """Return the record of a job whose row this transaction has updated already.

    The update has locked the row. A record that was read before it may be older than one that a run saves meanwhile.
    """
    rows = transaction.all("SELECT record FROM cdc_jobs WHERE name = :name", name=job)
    return from_json(JobRecord, rows[0][0])


def write_record(transaction: Transaction, record: JobRecord) -> None:
    """Write the record of a job."""
    sql = "UPDATE cdc_jobs SET record = :record WHERE name = :name"
    transaction.run(sql, record=to_json(record), name=record.name)


def _deployment(row: Row) -> Deployment:
    name, fence, host, desired, spec, generation, holder, lease_until, record, summary, summary_at, alerts, now = row
    return Deployment(
        name,
        fence,
        host,
        DesiredState(desired) if desired else None,
        spec,
        generation,
        holder,
        float(lease_until) - float(now),
        from_json(JobRecord, record),
        json.loads(summary or "{}"),
        float(now) - float(summary_at) if summary_at is not None else None,
        json.loads(alerts or "{}"),
    )
