"""What the sinks for Doris and StarRocks share: tables, claims, commits of each table by itself, and their record.

What was committed is kept twice: by the cluster under a load's label, for hours, and for good in a small table
``_cdc_checkpoints`` in each target database.
"""

from __future__ import annotations

import datetime
import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from cdc.batch import PreparedLoad, TargetState
from cdc.errors import LoadLost, TargetMismatch
from channels.label import label_for, label_prefix
from channels.sinks.base import CheckpointMark, Finding, LoadState, TargetTable
from channels.sinks.cluster import (
    CHECKPOINTS,
    FrontendSql,
    Product,
    SqlError,
    check_commit,
    claim,
    mark_row,
    partition_findings,
    quoted,
    target,
)
from channels.sinks.stream_load import Access, waits

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_LOOK_S = 60.0  # between two looks at the columns of a table that is loaded

Shown = tuple[list[dict[str, Any]], str]  # a table's columns, and its SHOW CREATE TABLE


class ClusterHttp(Protocol):
    """What is asked of a cluster here."""

    access: Access

    def state(self, database: str, label: str) -> str:
        """The state of a label, in the cluster's own word. Raises: SinkUnavailable, TargetMismatch."""

    def close(self) -> None:
        """Close idle connections."""


class ClusterSink(ABC):
    """See ``channels.sinks.base.Sink``; a cluster adds how it loads and commits."""

    product: ClassVar[Product]
    states: ClassVar[Mapping[str, LoadState]]  # of the cluster's words for them

    def __init__(
        self,
        http: ClusterHttp,
        sql: FrontendSql,
        *,
        create_tables: bool,
        tables: Mapping[str, Any] | None,
        commit_threads: int,
        visible_timeout_s: float,
    ) -> None:
        self._cluster, self._sql = http, sql
        self._create_tables, self._options = create_tables, dict(tables or {})
        self._visible_timeout_s = visible_timeout_s
        self._threads = ThreadPoolExecutor(commit_threads, f"{self.product.name.lower()}-commit")
        self._with_checkpoints: set[str] = set()  # databases
        self._recorded: dict[tuple[str, str], int] = {}  # database and job: newest sequence written by us
        self._claimed: set[str] = set()  # databases
        self._looked: dict[str, float] = {}  # when a table's columns were looked at last

    # ---- what each cluster has its own way for

    @abstractmethod
    def _create_table(self, table: TargetTable, options: Mapping[str, Any]) -> str:
        """The statement. Raises: TypeError - a column has no type there."""

    @abstractmethod
    def _create_checkpoints(self, database: str, replication: int) -> str: ...

    @abstractmethod
    def _differences(self, table: TargetTable, shown: Shown) -> Iterable[Finding]: ...

    @abstractmethod
    def _column_differences(self, table: TargetTable, columns: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
        """``columns``: DESC."""

    @abstractmethod
    def _replication(self) -> int: ...

    @abstractmethod
    def _commit_load(self, load: PreparedLoad) -> bool:
        """Whether the load is committed now; False: the cluster no longer has it. Raises: SinkUnavailable, SinkBusy."""

    @abstractmethod
    def _discard(self, load: PreparedLoad) -> None:
        """End a load that is not committed; one that is stays. Raises: SinkUnavailable - it cannot be told."""

    @abstractmethod
    def _abort_others(self, prefix: str, kept: Collection[str]) -> None:
        """Abort unfinished loads whose label begins with ``prefix``, without those ``kept``.

        Loads that the user may not see stay until they expire. Raises: SinkUnavailable - a load cannot be aborted.
        """

    @abstractmethod
    def _lost(self, labels: list[str]) -> LoadLost: ...

    @abstractmethod
    def _raise_refused(self, error: SqlError, table: str) -> None:
        """Raise what a refused statement means, where it has a mend of its own."""

    # ---- tables

    def ensure_table(self, table: TargetTable) -> None:
        """See ``Sink``."""
        refuse(table, self._untyped(table))
        if self._create_tables and self._shown(table) is None:
            options = {"replication": self._replication(), **self._options}
            self._execute(f"CREATE DATABASE IF NOT EXISTS {quoted(table.name.partition('.')[0])}", table.name)
            self._execute(self._create_table(table, options), table.name)
        refuse(table, self.describe(table))

    def describe(self, table: TargetTable) -> tuple[Finding, ...]:
        """See ``Sink``."""
        shown, untyped = self._shown(table), self._untyped(table)
        if shown is None:
            return (
                *untyped,
                Finding(
                    f"There is no table {table.name} in {self.product.name}.",
                    "Set sink.create_tables: true, or create it: `cdc ddl JOB.yaml` prints the statement.",
                ),
            )
        if re.match(r"CREATE\s+(MATERIALIZED\s+)?VIEW\b", shown[1], re.IGNORECASE):
            return (
                Finding(
                    f"{table.name} is a view, and rows go into tables alone", "Name a table as target: of the channel."
                ),
            )
        found = [*(untyped or self._differences(table, shown))]
        self._looked[table.name] = time.monotonic()
        if "PARTITION BY" in shown[1].upper():
            partitions = self._sql.ask(f"SHOW PARTITIONS FROM {target(table.name)}")
            today = datetime.datetime.now(datetime.UTC).date()
            found += partition_findings(table, shown[1], partitions, today)
        return tuple(found)

    def ddl(self, table: TargetTable) -> str:
        """See ``Sink``. Raises: TargetMismatch - a column has no type there."""
        refuse(table, self._untyped(table))
        return self._create_table(table, self._options) + ";"

    def _untyped(self, table: TargetTable) -> tuple[Finding, ...]:
        """The first column that has no type there, whether or not the table is."""
        try:
            self._create_table(table, self._options)
        except TypeError as error:
            return (
                Finding(
                    f"{table.name}: {error}",
                    "Make another type of it by columns:, such as cast(... as string); "
                    "or set another key: if it is part of it.",
                ),
            )
        return ()

    def _shown(self, table: TargetTable) -> Shown | None:
        """What the table is like; None when there is no such table."""
        statement = self._statement(table.name)
        return None if statement is None else (self._columns(table), statement)

    def _statement(self, table: str) -> str | None:
        """The statement that would make the table again; None when there is no such table."""
        if not self._sql.has_table(table):
            return None
        (row, *_) = self._sql.ask(f"SHOW CREATE TABLE {target(table)}")
        return str([*row.values()][1])  # of a view the column has another name

    def _columns(self, table: TargetTable) -> list[dict[str, Any]]:
        return self._sql.ask(f"DESC {target(table.name)}")

    # ---- loads

    def _look_again(self, table: TargetTable) -> None:
        """Whether rows still fit: told sooner than by a load, and with the mend. Raises: TargetMismatch."""
        if time.monotonic() - self._looked.get(table.name, -_LOOK_S) < _LOOK_S:
            return
        try:
            columns = self._sql.rows(f"DESC {target(table.name)}")
        except SqlError as error:
            self._raise_refused(error, table.name)
            return  # the load itself will say more
        refuse(table, self._column_differences(table, columns))
        self._looked[table.name] = time.monotonic()

    def _has_columns(self, loads: Sequence[PreparedLoad]) -> bool:
        """Whether a table has all columns that its ``loads`` name.

        It takes those that name others too, and what such a column held is dropped without a word. Asked before each
        commit, since a column may have gone at any time before.
        """
        table, named = loads[0].table, {str(name) for load in loads for name in load.detail.get("columns", ())}
        if not named:
            return True
        try:
            columns = self._sql.rows(f"DESC {target(table)}")
        except SqlError:
            return True  # the commit itself will say more
        gone = sorted({name.lower() for name in named} - {str(row["Field"]).lower() for row in columns})
        if gone:
            logger.warning("%s has no column %s any more; its loads are given up", table, ", ".join(gone))
            self._looked.pop(table, None)
        return not gone

    def _give_up_unfit(self, loads: Sequence[PreparedLoad]) -> None:
        """Raises: LoadLost - a table no longer has all columns that its ``loads`` name; SinkUnavailable."""
        if not self._has_columns(loads):
            for load in loads:
                self._discard(load)
            raise self._lost([label_for(load.name) for load in loads])

    def claim(self, mark: CheckpointMark, targets: Sequence[str]) -> None:
        """See ``Sink``: by the row of ``_cdc_checkpoints``, which is read back, and looked at by each commit."""
        there = self._all_databases()
        wanted = {target.partition(".")[0] for target in targets}
        self._claimed = wanted if self._create_tables else wanted & there
        for database in sorted(self._claimed - there):
            self._execute(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}", database)
        claim(self._sql, self._claimed, mark, self._record, self._visible_timeout_s)

    def _check_claim(self, checkpoint: CheckpointMark) -> None:
        check_commit(self._sql, self._claimed, checkpoint)

    def _commit_each(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        """Tables commit side by side; within one, Tasks and parts commit in order."""
        if any(load.name.attempt for load in loads):
            kept = {_label(load) for load in loads}
            for fence in sorted({*range(min(load.name.fence for load in loads), checkpoint.fence + 1)}):
                self._abort_others(
                    label_prefix(checkpoint.job, checkpoint.incarnation, fence, checkpoint.checkpoint), kept
                )
        jobs = [self._threads.submit(self._commit_table, found) for found in by_table(loads).values()]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        others = [error for error in errors if not isinstance(error, LoadLost)]
        if others:
            raise others[0]
        if errors and not self._is_recorded(checkpoint):
            raise self._lost([label for error in errors for label in error.where["labels"]])  # type: ignore[attr-defined]

    def _commit_table(self, loads: Sequence[PreparedLoad]) -> None:
        self._give_up_unfit(loads)
        for number, load in enumerate(loads):
            if not self._commit_load(load):
                # the whole table is loaded again: a frozen process must not commit the rest of this attempt later
                for other in loads[number + 1 :]:
                    self._discard(other)
                raise self._lost([label_for(load.name)])
        self._await_visible(loads[-1].table.partition(".")[0], _label(loads[-1]))

    def _await_visible(self, database: str, label: str) -> None:
        """Wait for the newest load of a table; versions follow the order of commits, so the others are visible too."""
        deadline = time.monotonic() + self._visible_timeout_s
        for pause in waits(0.02, 0.5):
            if self._cluster.state(database, label) != "COMMITTED":
                return
            if time.monotonic() > deadline:
                told = "%s is committed and not visible yet; %s publishes it by itself"
                logger.warning(told, label, self.product.name)
                return
            time.sleep(pause)

    def state(self, load: PreparedLoad) -> LoadState:
        """See ``Sink``."""
        word = self._cluster.state(load.table.partition(".")[0], _label(load))
        found = self.states.get(word, LoadState.UNKNOWN)
        if found is not LoadState.UNKNOWN:
            return found
        # a label is cleaned one day, our own record is not
        name = load.name
        known = self._sql.is_recorded(name.job, name.incarnation, name.checkpoint)
        return LoadState.COMMITTED if known else LoadState.UNKNOWN

    # ---- checkpoints

    def last_checkpoint(self, job: str) -> CheckpointMark | None:
        """See ``Sink``."""
        return self._sql.last_checkpoint(job)

    def identity(self, *, create: bool) -> str | None:
        """See ``Sink``: tables of a cluster prove their identity one by one."""
        return "cluster"

    def repair(self, target: str) -> None:
        """See ``Sink``: the cluster repairs its replicas."""
        return

    def target_states(self, job: str, incarnation: str, targets: Sequence[str]) -> Mapping[str, TargetState]:
        """See ``Sink``: the creation time of a table, and the checkpoint of its database in ``_cdc_checkpoints``.

        A table alone that was restored from a backup with its creation time, or was truncated, is not noticed.
        """
        created = self._sql.creation_times(targets)
        recorded = set(self._sql.databases_with(CHECKPOINTS))
        checkpoints = {
            database: next(
                (mark.checkpoint for mark in self._sql.marks([database], job) if mark.incarnation == incarnation), -1
            )
            for database in recorded & {name.partition(".")[0] for name in created}
        }
        return {
            name: TargetState(identity, checkpoints.get(name.partition(".")[0], -1))
            for name, identity in created.items()
        }

    def _is_recorded(self, checkpoint: CheckpointMark) -> bool:
        return self._sql.is_recorded(checkpoint.job, checkpoint.incarnation, checkpoint.checkpoint)

    def _record_all(self, loads: Sequence[PreparedLoad], mark: CheckpointMark) -> None:
        for database in sorted({load.table.partition(".")[0] for load in loads}):
            self._record(database, mark)

    def _record(self, database: str, mark: CheckpointMark) -> None:
        self._ensure_checkpoints(database)
        if self._recorded.get((database, mark.job), -1) > mark.sequence:
            return  # a repeat of an older checkpoint
        row = mark_row(mark)
        self._execute(
            f"INSERT INTO {quoted(database)}.{quoted(CHECKPOINTS)} ({', '.join(map(quoted, row))}) "
            f"VALUES ({', '.join(['%s'] * len(row))})",
            f"{database}.{CHECKPOINTS}",
            tuple(row.values()),
        )
        self._recorded[database, mark.job] = mark.sequence

    def _ensure_checkpoints(self, database: str) -> None:
        if database not in self._with_checkpoints:
            self._execute(self._create_checkpoints(database, self._replication()), f"{database}.{CHECKPOINTS}")
            self._with_checkpoints.add(database)

    # ---- the rest

    @property
    def tells_keys(self) -> bool:
        """See ``Sink``."""
        return False

    def keys(self, table: TargetTable) -> pa.Table | None:
        """See ``Sink``: not asked for."""
        return None

    def maintain(self, tables: Iterable[TargetTable]) -> None:
        """See ``Sink``: the cluster compacts by itself."""
        return

    def close(self) -> None:
        """See ``Sink``."""
        self._threads.shutdown(wait=True)
        self._cluster.close()
        self._sql.close()

    def _all_databases(self) -> set[str]:
        return {str(next(iter(row.values()))) for row in self._sql.ask("SHOW DATABASES")}

    def _execute(self, statement: str, table: str, values: tuple[Any, ...] | None = None) -> None:
        try:
            self._sql.rows(statement, values)
        except SqlError as error:
            self._raise_refused(error, table)
            if statement.startswith("CREATE"):
                raise TargetMismatch(
                    f"{self.product.name} does not create the table: {error}.",
                    mend="Mend sink.tables, or the channel's, or create it yourself: `cdc ddl` prints the statement.",
                    table=table,
                ) from error
            raise self.product.refused(error, table=table) from error


def refuse(table: TargetTable, findings: Iterable[Finding]) -> None:
    """Raises: TargetMismatch - the first of ``findings`` that is fatal."""
    for finding in findings:
        if finding.fatal:
            raise TargetMismatch(finding.problem, mend=finding.mend, table=table.name)


def by_table(loads: Sequence[PreparedLoad]) -> dict[str, list[PreparedLoad]]:
    """Those of each target, in order of Tasks and parts."""
    found: dict[str, list[PreparedLoad]] = {}
    for load in sorted(loads, key=lambda load: load.name):
        found.setdefault(load.table, []).append(load)
    return found


def _label(load: PreparedLoad) -> str:
    return str(load.detail.get("label", label_for(load.name)))
