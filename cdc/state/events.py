"""The events of jobs in the store: state changes, schema changes, take-overs, and requests of users with their results.

The table is audit log, inbox of the drivers and history of the web page in one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cdc.state.database import KEY_CHARACTERS, Database, Row, Transaction, delete_once, insert_once

KEPT_EVENTS = 1000  # of one job: so many of kind STATE, and so many of all other kinds
REQUEST_S = 60.0  # a driver that starts later than this does not carry out an old request

_COLUMNS = "id, job, created_at, kind, actor, message, detail, taken_by, result"


class EventKind(StrEnum):
    """The kinds of events."""

    STATE = "state"  # the job has another state or another reason for it; detail: state, hint, resume, fence
    SCHEMA_CHANGE = "schema_change"  # a DDL statement is carried out; detail: checkpoint
    TAKE_OVER = "take_over"  # another host runs the job; detail: from, to, fence, lease_ended_s
    ASSIGNED = "assigned"  # a host is to run the job, or none; detail: host, fence
    REQUEST = "request"  # of a user; detail: verb, body; ``result`` when it was carried out
    SPEC = "spec"  # another specification or desired state; detail: generation, desired_state


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of a job."""

    id: int  # increases with time
    job: str
    created_at: float  # seconds since 1970, by the clock of the store
    kind: EventKind
    message: str
    actor: str | None = None  # the host or the user
    detail: Mapping[str, Any] = field(default_factory=dict)
    taken_by: str | None = None  # of a request: the driver that carries it out
    result: Mapping[str, Any] | None = None  # of a request: {"ok": true, ...} or {"ok": false, "error": {...}}


class Events:
    """The events of a store. Calls: any thread. Raises: CheckpointError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, job: str, kind: EventKind, message: str, *, actor: str | None = None, detail: Mapping[str, Any] = {}
    ) -> int:
        """Save an event and return its id. The oldest events of the job are deleted beyond ``KEPT_EVENTS``."""
        now = self._database.words.now
        return self._database.transact(
            lambda transaction: add_event(transaction, now, job, kind, message, actor, detail)
        )

    def newest(self, job: str | None = None, *, before: int | None = None, limit: int = 100) -> tuple[JobEvent, ...]:
        """Return events, newest first: those of ``job``, or of all jobs; only ids smaller than ``before``."""
        where = "WHERE id < :before" if job is None else "WHERE id < :before AND job = :job"
        values = {"before": before if before is not None else 1 << 62, **({"job": job} if job is not None else {})}
        sql = f"SELECT {_COLUMNS} FROM cdc_events {where} ORDER BY id DESC LIMIT {int(limit)}"
        rows = self._database.all(sql, **values)
        return tuple(_event(row) for row in rows)

    def get(self, number: int) -> JobEvent | None:
        """Return one event; None if it was deleted."""
        rows = self._database.all(f"SELECT {_COLUMNS} FROM cdc_events WHERE id = :id", id=number)
        return _event(rows[0]) if rows else None

    # requests: the inbox of a job's driver

    def request(
        self, job: str, verb: str, body: Mapping[str, Any], *, actor: str | None = None, valid_s: float = REQUEST_S
    ) -> int:
        """Save a request for the driver of ``job`` and return its id. It is not carried out after ``valid_s``."""
        now, detail = self._database.words.now, {"verb": verb, "body": dict(body)}

        def insert(transaction: Transaction) -> int:
            number = add_event(transaction, now, job, EventKind.REQUEST, verb, actor, detail)
            sql = f"UPDATE cdc_events SET expires_at = {now} + :valid_s WHERE id = :id"
            transaction.run(sql, valid_s=valid_s, id=number)
            return number

        found = "SELECT 1 FROM cdc_events WHERE id = :number AND job = :job AND kind = 'request' AND detail = :detail"
        return self._database.transact(insert_once(insert, found, job=job, detail=json.dumps(detail)))

    def open_requests(self, job: str, by: str = "") -> tuple[JobEvent, ...]:
        """Return the requests of ``job`` that no other process than ``by`` has taken, oldest first.

        They have no result and have not expired. One that ``by`` has taken is returned too: the answer of the store to
        ``take`` can be lost.
        """
        now = self._database.words.now
        rows = self._database.all(
            f"SELECT {_COLUMNS} FROM cdc_events WHERE job = :job AND kind = 'request' AND result IS NULL"
            f" AND (taken_by IS NULL OR taken_by = :by) AND expires_at > {now} ORDER BY id",
            job=job,
            by=by[-KEY_CHARACTERS:],
        )
        return tuple(_event(row) for row in rows)

    def take(self, number: int, by: str) -> bool:
        """Take a request, so that it is carried out once. Return False if another process has taken it.

        ``by``: only its last characters are saved if it is longer than the column, as in ``open_requests``.
        """

        def work(transaction: Transaction) -> bool:
            # a repeated transaction finds its own name
            sql = "UPDATE cdc_events SET taken_by = :by WHERE id = :id AND (taken_by IS NULL OR taken_by = :by)"
            return transaction.run(sql, by=by[-KEY_CHARACTERS:], id=number) == 1

        return self._database.transact(work)

    def answer(self, number: int, result: Mapping[str, Any]) -> None:
        """Save the result of a request."""
        text = json.dumps(dict(result))
        self._database.transact(
            lambda transaction: transaction.run(
                "UPDATE cdc_events SET result = :result WHERE id = :id", result=text, id=number
            )
        )

    def withdraw(self, number: int) -> bool:
        """Delete a request that no driver has taken. Return False if a driver has taken it."""
        sql = "DELETE FROM cdc_events WHERE id = :id AND taken_by IS NULL AND result IS NULL"
        return self._database.transact(delete_once(sql, "SELECT id FROM cdc_events WHERE id = :id", id=number))

    def delete(self, number: int) -> None:
        """Delete one event, such as an answered question that changes nothing."""
        sql = "DELETE FROM cdc_events WHERE id = :id"
        self._database.transact(lambda transaction: transaction.run(sql, id=number))


def add_event(
    transaction: Transaction,
    now: str,
    job: str,
    kind: EventKind,
    message: str,
    actor: str | None,
    detail: Mapping[str, Any],
) -> int:
    """Save an event in an open transaction and return its id. ``now``: the clock of the store, as SQL."""
    number = transaction.insert(
        "INSERT INTO cdc_events (job, created_at, kind, actor, message, detail)"
        f" VALUES (:job, {now}, :kind, :actor, :message, :detail)",
        job=job,
        kind=str(kind),
        actor=actor and actor[:KEY_CHARACTERS],
        message=json.dumps(message),
        detail=json.dumps(dict(detail)),
    )
    # a job that does not start adds a state every minute, and must not delete what users and hosts have done
    same = f"job = :job AND kind {'=' if kind is EventKind.STATE else '<>'} '{EventKind.STATE}'"
    oldest = transaction.all(
        f"SELECT id FROM cdc_events WHERE {same} ORDER BY id DESC LIMIT 1 OFFSET {KEPT_EVENTS}", job=job
    )
    if oldest:
        transaction.run(f"DELETE FROM cdc_events WHERE {same} AND id <= :id", job=job, id=oldest[0][0])
    return number


def _event(row: Row) -> JobEvent:
    number, job, created_at, kind, actor, message, detail, taken_by, result = row
    return JobEvent(
        number,
        job,
        created_at,
        EventKind(kind),
        json.loads(message),
        actor,
        json.loads(detail or "{}"),
        taken_by,
        json.loads(result) if result is not None else None,
    )
