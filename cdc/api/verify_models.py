"""Verifications in the status of a job, and the request for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from cdc.api.differences import shown_position
from cdc.model.verify import TableVerification, Verification, VerifyRequest, VerifyState


class VerifyOutcome(StrEnum):
    """The state of a verification."""

    WAITING = "waiting"
    RUNNING = "running"
    EQUAL = "equal"
    DIFFERENT = "different"  # rows differ, or a table could not be compared
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StartVerify:
    """Save a request to compare source and target. It is carried out while the job runs."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    tables: tuple[str, ...] = ()  # source tables; (): all
    sample: float | None = None  # fraction of the rows, from 0 to 1; None: all
    columns: tuple[str, ...] = ()  # target columns to compare besides the key; (): all
    repair: bool = False
    token: str = ""  # random, to find the verification in the status

    def as_request(self) -> VerifyRequest:
        """Return the request to save."""
        return VerifyRequest(self.tables, self.sample, self.columns, self.repair, self.token)


@dataclass(frozen=True, slots=True)
class VerifyTableStatus:
    """The verification of one table."""

    source: str
    state: VerifyState
    rows: int = 0  # compared rows of the source
    estimated_rows: int = 0
    chunks: int = 0
    done: int = 0
    missing: int = 0  # rows that the target does not have
    extra: int = 0  # rows that only the target has
    different: int = 0  # rows with other values
    changing: int = 0  # rows that changed at each comparison, so that nothing is known about them
    repaired: int = 0
    note: str = ""  # why it is skipped, or what is not compared

    @classmethod
    def of(cls, name: str, table: TableVerification) -> VerifyTableStatus:
        """Return the status of ``table``."""
        return cls(
            name, table.state, table.rows, table.estimated_rows, table.chunks, table.done, table.missing, table.extra,
            table.different, table.changing, table.repaired, table.note,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class VerifyStatus:
    """One verification. `cdc verify NAME --history` shows the rows that differ."""

    number: int
    state: VerifyOutcome
    requested_at: str
    began_at: str | None = None
    ended_at: str | None = None
    token: str = ""  # that its client chose
    sample: float | None = None  # fraction of the rows that is compared; null: all
    repair: bool = False
    scheduled: bool = False  # by `verify.every`
    rows: int = 0  # compared rows of the source
    estimated_rows: int = 0  # to compare
    missing: int = 0
    extra: int = 0
    different: int = 0
    changing: int = 0
    repaired: int = 0
    seconds: float = 0.0  # duration of its steps, in which the stream waits
    position: Mapping[str, Any] | None = None  # of the stream at the last comparison
    error: str | None = None  # why it ended early
    tables: tuple[VerifyTableStatus, ...] = ()

    @classmethod
    def of(cls, found: Verification, position: Mapping[str, Any] | None = None) -> VerifyStatus:
        """Return the status of ``found``, with its ``position`` as the status shows it."""
        request = found.request
        tables = tuple(VerifyTableStatus.of(name, table) for name, table in sorted(found.tables.items()))
        return cls(
            found.number,
            _outcome(found),
            found.requested_at,
            found.began_at,
            found.ended_at,
            request.token,
            request.sample,
            request.repair,
            request.scheduled,
            found.rows,
            sum(max(one.estimated_rows, one.rows) for one in tables),
            sum(one.missing for one in tables),
            sum(one.extra for one in tables),
            sum(one.different for one in tables),
            sum(one.changing for one in tables),
            sum(one.repaired for one in tables),
            round(found.seconds, 3),
            position,
            found.error,
            tables,
        )

    @property
    def differs(self) -> int:
        """The number of rows that differ."""
        return self.missing + self.extra + self.different


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """The verifications of a job."""

    current: VerifyStatus | None = None  # waiting or running
    last: VerifyStatus | None = None  # the newest one that has ended

    @classmethod
    def of(cls, known: Iterable[Verification], running: Verification | None) -> VerifySummary:
        """Return the status of ``known``, newest first. ``running``: the one of the checkpoint, with its progress."""

        def status(found: Verification) -> VerifyStatus:
            return VerifyStatus.of(found, shown_position(found.position) if found.position else None)

        known = list(known)
        last = next((one for one in known if one.ended_at is not None), None)
        waiting = [one for one in known if one.ended_at is None]
        if running is not None and running.ended_at is not None:
            waiting = [one for one in waiting if one.number != running.number]
            running = None
        current = running or (waiting[-1] if waiting else None)
        return cls(status(current) if current else None, status(last) if last else None)


def _outcome(found: Verification) -> VerifyOutcome:
    if found.error is not None:
        return VerifyOutcome.FAILED
    if found.ended_at is not None:
        return VerifyOutcome.EQUAL if found.is_equal else VerifyOutcome.DIFFERENT
    return VerifyOutcome.RUNNING if found.began_at is not None else VerifyOutcome.WAITING
