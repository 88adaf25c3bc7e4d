"""Changes of the columns of a table, one statement at a time, and the wait for the job that the cluster runs for it.

``ALTER TABLE`` of Doris and StarRocks is asynchronous, and a table has at most one job at a time. The columns decide
what is done, so a repeat after a crash, a lost answer or a change by hand does no harm.

Source: the manuals of both, "ALTER TABLE" and "SHOW ALTER TABLE"; ``AlterJobV2.java``.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cdc.errors import SinkUnavailable, TargetMismatch
from cdc.mysql.client import shown
from cdc.retry import Backoff
from channels.sinks.base import AlterAction, AlterStep, Finding, TargetTable
from channels.sinks.stream_load.alter_steps import (
    Columns,
    Image,
    by_name,
    default_problem_of,
    image_of,
    mismatch,
    statement_of,
    step_findings,
)
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.messages import SqlError
from channels.sinks.stream_load.statements import TableRules, quoted, quoted_table, string_literal
from channels.sinks.stream_load.table import RECREATE, model_of
from channels.sinks.stream_load.target_tables import TableHooks, TargetTables

logger = logging.getLogger(__name__)

ALTER_TIMEOUT_S = 1800.0
_CREATE = "Create it: `cdc ddl JOB.yaml` prints the statement."
_TRIES = 5  # of a statement that the cluster refuses, or whose job it cancels
_POLL_S, _LONGEST_POLL_S = 0.05, 2.0
_PROGRESS = re.compile(r"(\d+(?:\.\d+)?)(?:%|/(\d+))")
_RECENT_JOBS = 20  # a job has a row for each index of the table, and jobs of one second are in any order


@dataclass(frozen=True, slots=True)
class AlterJob:
    """A row of SHOW ALTER TABLE COLUMN."""

    number: int
    state: str  # PENDING, WAITING_TXN, RUNNING, FINISHED, CANCELLED
    message: str = ""
    progress: float | None = None  # from 0 to 1

    @property
    def has_ended(self) -> bool:
        """Return True if the cluster does no more work for the job."""
        return self.state in ("FINISHED", "CANCELLED")


NO_JOB = AlterJob(-1, "FINISHED")


class ColumnAlterer:
    """Changes columns of the target tables. Calls: one thread; ``stop``: any thread."""

    first_pause_s: ClassVar[float] = 0.2  # after a refusal or a cancelled job

    def __init__(
        self, sql: FrontendSql, tables: TargetTables, rules: TableRules, hooks: TableHooks, timeout_s: float
    ) -> None:
        """``timeout_s``: for all waits of one call of ``alter``."""
        self._sql, self._tables, self._rules, self._hooks = sql, tables, rules, hooks
        self._timeout_s, self._stopped = timeout_s, threading.Event()
        self.progress: float | None = None  # of the job that is waited for, from 0 to 1

    # ---- checks

    def findings(self, table: TargetTable, steps: Sequence[AlterStep]) -> tuple[Finding, ...]:
        """See ``TableAlterer.check_steps``."""
        described = self._tables.describe(table.name)
        if described is None:
            return (Finding(self._missing(table), _CREATE),)
        columns, statement = by_name(described[0]), described[1]
        found = [*step_findings(table, steps, columns, statement, self._rules, self._hooks.new_names)]
        if any(step.action is AlterAction.RENAME for step in steps):
            found += self._hooks.rename_findings(table, statement)
        return tuple(found) or tuple(self._costs(table, steps, columns))

    def _missing(self, table: TargetTable) -> str:
        return f"There is no table {table.name} in {self._sql.messages.name}."

    def _costs(self, table: TargetTable, steps: Sequence[AlterStep], columns: Columns) -> Iterator[Finding]:
        if rewritten := [step for step in steps if self._rewrites(table, step, columns)]:
            names = ", ".join(step.after.name for step in rewritten if step.after)
            yield Finding(
                f"{table.name}: the change of {names} rewrites all rows of the table{self._size(table)}.",
                "The stream waits meanwhile; SHOW ALTER TABLE COLUMN shows the progress.",
                fatal=False,
            )

    def _rewrites(self, table: TargetTable, step: AlterStep, columns: Columns) -> bool:
        """Return True for a MODIFY COLUMN that is not done yet."""
        is_modify = step.action in (AlterAction.WIDEN, AlterAction.MAKE_NULLABLE)
        return is_modify and image_of(table, step, columns, self._rules) is not Image.AFTER

    def _size(self, table: TargetTable) -> str:
        """Return rows and bytes of ``table`` as the catalog estimates them; "" if it does not know them."""
        database, _, name = table.name.partition(".")
        try:
            rows = self._sql.rows(
                "SELECT TABLE_ROWS, DATA_LENGTH FROM information_schema.tables "
                "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
                (database, name),
            )
        except SqlError:
            return ""
        values = [*rows[0].values()] if rows else []
        return f", about {values[0]} rows and {values[1]} bytes" if values and values[0] is not None else ""

    # ---- changes

    def alter(
        self, table: TargetTable, steps: Sequence[AlterStep], check_owner: Callable[[], object] = lambda: None
    ) -> None:
        """See ``TableAlterer.alter``. ``check_owner``: raises if another run owns the table; called by each statement.

        A wait for a job of the cluster can take ``timeout_s``, in which another run can take ownership and load rows.
        """
        try:
            deadline = time.monotonic() + self._timeout_s
            for step in steps:
                self._do(table, step, deadline, check_owner)
        finally:
            self.progress = None
            self._tables.forget(table.name)

    def stop(self) -> None:
        """See ``TableAlterer.stop_altering``. Without a running ``alter`` it ends the next wait or TRUNCATE."""
        self._stopped.set()

    def _do(self, table: TargetTable, step: AlterStep, deadline: float, check_owner: Callable[[], object]) -> None:
        pauses = Backoff(self.first_pause_s, 4.0)
        begun, reason, statement = NO_JOB, "", ""
        lost: SinkUnavailable | None = None  # the answer to the last statement
        for number in range(_TRIES + 1):
            job = self._await_job(table, deadline)
            columns = self._columns(table)
            if self._image(table, step, columns) is Image.AFTER:
                return
            if number and job.number != begun.number and job.state == "CANCELLED":
                reason, lost = f"its job was cancelled: {shown(job.message)}", None
            if number == _TRIES:
                break
            if number:
                logger.warning("%s is tried again for %s: %s", step.action.value, table.name, reason)
                self._pause(table, next(pauses), deadline, "the statement is tried again")
            begun = job
            if problem := default_problem_of(table, step, columns, self._rules):
                raise TargetMismatch(f"{table.name}: {problem[0]}.", hint=problem[1], table=table.name)
            statement = statement_of(table, step, columns, self._comment(table, step), self._rules)
            check_owner()
            if step.action is AlterAction.TRUNCATE and self._is_stopped():
                raise SinkUnavailable(
                    f"The run was stopped before TRUNCATE TABLE of {table.name} was sent.",
                    hint="The next start sends the statement.",
                    table=table.name,
                )
            lost = None
            try:
                reason = self._run(table, statement)
            except SinkUnavailable as error:
                if step.action is AlterAction.TRUNCATE:
                    raise
                reason, lost = f"its answer was lost: {shown(error.message)}", error
            if step.action is AlterAction.TRUNCATE and not reason:
                return  # it has ended when it is answered
        if lost is not None:
            raise lost
        raise TargetMismatch(
            f"{self._sql.messages.name} does not change {table.name}: {reason or 'its columns stay as they are'}.",
            hint=f"Run the statement by hand, then `cdc resume`: {statement}; or: {RECREATE}",
            table=table.name,
        )

    def _run(self, table: TargetTable, statement: str) -> str:
        """Send a statement once. Return why it was refused; "" if it was not.

        A second TRUNCATE, or one that a first FE executes late, would remove the rows of later loads. A second DROP or
        RENAME could change the column of a later step that has the same name.
        Raises: SinkUnavailable - also if the answer was lost; TargetMismatch.
        """
        try:
            self._sql.run_once(statement)
        except SqlError as error:
            return f"it refuses the statement: {shown(str(error))}"
        except TargetMismatch as error:
            database = table.name.partition(".")[0]
            hint = error.hint.replace("<database>", database)
            raise TargetMismatch(error.message, hint=hint, table=table.name, **error.context) from error
        return ""

    def _image(self, table: TargetTable, step: AlterStep, columns: Columns) -> Image:
        """Return what ``columns`` say. Raises: TargetMismatch - the column is neither as before nor as after."""
        try:
            found = image_of(table, step, columns, self._rules)
        except TypeError as error:
            raise TargetMismatch(
                f"{table.name}: {error}.", hint="Map the column to another type under columns: of the channel."
            ) from error
        if found is Image.OTHER:
            raise TargetMismatch(
                f"{mismatch(table, step, columns, self._rules)}.",
                hint="Change the column by hand to one of the two, then `cdc resume`.",
                table=table.name,
            )
        return found

    def _columns(self, table: TargetTable) -> Columns:
        try:
            return by_name(self._sql.columns(table.name))
        except SqlError as error:
            if not self._sql.has_table(table.name):
                raise TargetMismatch(self._missing(table), hint=_CREATE, table=table.name) from error
            self._sql.raise_refused(error, table.name)
            raise self._sql.messages.refused(error, table=table.name) from error

    def _comment(self, table: TargetTable, step: AlterStep) -> str:
        """Return the comment of the column that a MODIFY must keep."""
        if step.action not in (AlterAction.WIDEN, AlterAction.MAKE_NULLABLE) or step.before is None:
            return ""
        rows = self._sql.ask(f"SHOW FULL COLUMNS FROM {quoted_table(table.name)}")
        return next((str(row.get("Comment") or "") for row in rows if row["Field"] == step.before.name), "")

    # ---- jobs of the cluster

    def _await_job(self, table: TargetTable, deadline: float) -> AlterJob:
        """Return the newest job of the table when no job runs, also one of an earlier run or of a person.

        Raises: SinkUnavailable - the time is over, or ``stop`` was called.
        """
        for pause in Backoff(_POLL_S, _LONGEST_POLL_S):
            job = self._newest_job(table)
            self.progress = None if job.has_ended else job.progress
            if job.has_ended:
                return job
            self._pause(table, pause, deadline, f"its job is {job.state}")
        raise AssertionError("unreachable")

    def _newest_job(self, table: TargetTable) -> AlterJob:
        """Return the job of the table that has not ended, else the newest one."""
        database, _, name = table.name.partition(".")
        rows = self._sql.ask_synced(
            f"SHOW ALTER TABLE COLUMN FROM {quoted(database)} WHERE TableName = {string_literal(name)} "
            f"ORDER BY CreateTime DESC LIMIT {_RECENT_JOBS}"
        )
        jobs = [_job_of(row) for row in rows]
        running = [job for job in jobs if not job.has_ended]
        return max(running or jobs, key=lambda job: job.number, default=NO_JOB)

    def _pause(self, table: TargetTable, pause_s: float, deadline: float, state: str) -> None:
        product, waited = self._sql.messages.name, f"ALTER TABLE of {table.name} has not ended: {state}"
        if time.monotonic() + pause_s > deadline:
            raise SinkUnavailable(
                f"{waited} after {self._timeout_s:g} s.",
                hint=f"The wait is repeated; SHOW ALTER TABLE COLUMN in {product} shows the progress. A job in "
                "WAITING_TXN waits for running loads; CANCEL ALTER TABLE COLUMN ends it.",
                table=table.name,
            )
        self._stopped.wait(pause_s)
        if self._is_stopped():
            hint = f"{product} continues its job; the next start waits for it again."
            raise SinkUnavailable(f"The wait was stopped. {waited}.", hint=hint, table=table.name)

    def _is_stopped(self) -> bool:
        """Return True if ``stop`` was called since the last time."""
        is_stopped = self._stopped.is_set()
        self._stopped.clear()
        return is_stopped


class AlteringSink:
    """The calls of ``TableAlterer`` that need nothing but the alterer."""

    _alterer: ColumnAlterer
    alters_in_one_commit = False

    def check_steps(self, table: TargetTable, steps: Sequence[AlterStep]) -> tuple[Finding, ...]:
        """See ``TableAlterer``."""
        return self._alterer.findings(table, steps)

    @property
    def alter_progress(self) -> float | None:
        """See ``TableAlterer``."""
        return self._alterer.progress

    def stop_altering(self) -> None:
        """See ``TableAlterer``."""
        self._alterer.stop()


def _job_of(row: dict[str, Any]) -> AlterJob:
    return AlterJob(
        int(row["JobId"]), str(row["State"]).upper(), str(row.get("Msg") or ""), _progress_of(row.get("Progress"))
    )


def _progress_of(text: object) -> float | None:
    """Return the progress from 0 to 1: "40%", or "2/5" tablets. It is N/A unless the job writes rows."""
    found = _PROGRESS.fullmatch(str(text or ""))
    if found is None:
        return None
    done, total = float(found[1]), float(found[2] or 100)
    return min(1.0, done / total) if total else None


def light_findings(table: TargetTable, statement: str, rules: TableRules) -> Iterator[Finding]:
    """Find a table whose rows are rewritten when a column is added or dropped. ``statement``: SHOW CREATE TABLE."""
    if model_of(statement)[0] != rules.model or f'"{rules.alters.light_property}" = "true"' in statement:
        return
    yield Finding(
        f"{table.name}: {rules.alters.light_property} is off, so ADD and DROP COLUMN rewrite all rows",
        rules.alters.light_hint.format(table=quoted_table(table.name)),
        fatal=False,
    )
