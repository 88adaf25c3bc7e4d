"""Creation and checks of the target tables of a job in Doris or StarRocks."""

from __future__ import annotations

import datetime
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cdc.errors import TargetMismatch
from channels.sinks.base import Finding, TargetTable
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.messages import SqlError
from channels.sinks.stream_load.name_rules import CHECKPOINTS, NameRules, name_findings
from channels.sinks.stream_load.statements import TableRules, create_table, quoted, quoted_table
from channels.sinks.stream_load.table import column_findings, model_findings, partition_findings

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 60.0  # between two checks of the columns of a table that is loaded

_REPLICATION = {"replication_num", "replication_allocation"}  # properties that a user can set instead of the option

DescribedTable = tuple[list[dict[str, Any]], str]  # rows of DESC, and the statement of SHOW CREATE TABLE


@dataclass(frozen=True, slots=True)
class TableHooks:
    """What a product asks or decides when its tables are created."""

    replication: Callable[[], int | None]  # replicas of new tables; None: the default of the cluster
    new_names: Callable[[], NameRules]  # of new tables
    note: Callable[[str, str], None] = lambda table, statement: None  # receives each CREATE TABLE, planned or existing
    before_create: Callable[[], None] = lambda: None  # raises SinkLimitExceeded if the noted table cannot be used
    properties: Callable[[], Mapping[str, str]] = dict  # of new tables, by version
    rename_findings: Callable[[TargetTable, str], Iterable[Finding]] = lambda table, statement: ()  # SHOW CREATE TABLE


class TargetTables:
    """The target tables of a job.

    Calls: on the driver. Threads of Tasks call ``check_columns`` while the sink's commit threads call ``has_columns``:
    they share only single entries of ``_checked_at``. One thread calls the other methods.
    """

    def __init__(
        self,
        sql: FrontendSql,
        rules: TableRules,
        hooks: TableHooks,
        *,
        can_create: bool,
        options: Mapping[str, Any] | None,
    ) -> None:
        """``options``: buckets, replication, partition and properties of new tables."""
        self._sql, self._rules, self._hooks = sql, rules, hooks
        self.can_create, self._options = can_create, dict(options or {})
        self._checked_at: dict[str, float] = {}  # the last check of a table's columns

    def ensure(self, table: TargetTable) -> None:
        """See ``Sink.ensure_table``."""
        refuse(table, self._basic_findings(table))
        if self.can_create and self.describe(table.name) is None:
            refuse(table, self._hooks.new_names().refused(table))
            self._hooks.before_create()
            properties = {**self._hooks.properties(), **(self._options.get("properties") or {})}
            options = {**self._options, "properties": properties}
            named = {*properties, *(table.options.get("properties") or {})}
            if options.get("replication") is None and not named & _REPLICATION:
                options["replication"] = self._hooks.replication()
            self.create_database(table.name.partition(".")[0], table.name)
            self._sql.execute(self._create_statement(table, options), table.name)
        refuse(table, self.findings(table))

    def create_database(self, database: str, table: str) -> None:
        """Create ``database`` if it is missing. ``table``: for the error."""
        self._sql.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}", table)

    def create_statement(self, table: TargetTable) -> str:
        """See ``Sink.ddl``. Raises: TargetMismatch - the product has no type for a column."""
        refuse(table, self._basic_findings(table))
        return self._create_statement(table, self._options) + ";"

    def checkpoints_statement(self, database: str) -> str:
        """Return CREATE TABLE for ``cdc_checkpoints`` in ``database``."""
        table = f"{quoted(database)}.{quoted(CHECKPOINTS)}"
        replication = self._options.get("replication") or self._hooks.replication() or 1
        return self._rules.checkpoints.format(table=table, replication=replication)

    def _create_statement(self, table: TargetTable, options: Mapping[str, Any]) -> str:
        statement = create_table(table, options, self._rules)
        self._hooks.note(table.name, statement)  # the statement of an existing table is noted afterwards
        return statement

    # ---- findings

    def findings(self, table: TargetTable) -> tuple[Finding, ...]:
        """Find everything that keeps the job from loading into the existing table."""
        described, basic = self.describe(table.name), self._basic_findings(table)
        if described is None:
            missing = Finding(
                f"There is no table {table.name} in {self._sql.messages.name}.",
                "Set sink.create_tables: true, or create it: `cdc ddl JOB.yaml` prints the statement.",
            )
            return (*(basic or self._hooks.new_names().refused(table)), missing)
        statement = described[1]
        if re.match(r"CREATE\s+(MATERIALIZED\s+)?VIEW\b", statement, re.IGNORECASE):
            problem = f"{table.name} is a view, and rows can be loaded into tables only"
            return (Finding(problem, "Set target: of the channel to a table."),)
        self._hooks.note(table.name, statement)
        found = [*(basic or self._differences(table, *described))]
        self._checked_at[table.name] = time.monotonic()
        if "PARTITION BY" in statement.upper():
            partitions = self._sql.ask(f"SHOW PARTITIONS FROM {quoted_table(table.name)}")
            found += partition_findings(table, statement, partitions, datetime.datetime.now(datetime.UTC).date())
        return tuple(found)

    def _differences(self, table: TargetTable, columns: list[dict[str, Any]], statement: str) -> Iterator[Finding]:
        yield from model_findings(table, statement, self._rules)
        yield from self._rules.mapping_findings(table)
        yield from self._rules.findings(table, {str(row["Field"]): row for row in columns}, statement)
        yield from column_findings(table, columns, self._rules)

    def creation_findings(self, table: TargetTable) -> tuple[Finding, ...]:
        """Find what prevents the creation of a table that does not exist."""
        return self._basic_findings(table) or tuple(self._hooks.new_names().refused(table))

    def _basic_findings(self, table: TargetTable) -> tuple[Finding, ...]:
        """Find names that no request can have, else the first column without a type in the product."""
        if names := tuple(name_findings(table, self._rules.names)):
            return names
        try:
            self._create_statement(table, self._options)
        except TypeError as error:
            hint = (
                "Set another type under columns:, such as cast(... as string); or set another key: if the column is "
                "part of it."
            )
            return (Finding(f"{table.name}: {error}", hint),)
        return ()

    # ---- the tables of the cluster

    def describe(self, table: str) -> DescribedTable | None:
        """Return columns and statement of a table; None if it does not exist."""
        statement = self.statement(table)
        return None if statement is None else (self._columns(table), statement)

    def statement(self, table: str) -> str | None:
        """Return the statement of SHOW CREATE TABLE; None if the table does not exist."""
        if not self._sql.has_table(table):
            return None
        row = self._sql.one(f"SHOW CREATE TABLE {quoted_table(table)}")
        return str([*row.values()][1])  # for a view the column has another name

    def _columns(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of DESC, with hidden columns if the product has any."""
        try:
            return self._sql.columns(table, with_hidden=self._rules.hidden is not None)
        except SqlError as error:
            raise self._sql.messages.refused(error) from error

    def check_columns(self, table: TargetTable) -> None:
        """Check the columns before a load, at most every 60 s: a load reports a mismatch later and without a hint.

        Raises: TargetMismatch.
        """
        if time.monotonic() - self._checked_at.get(table.name, -CHECK_INTERVAL_S) < CHECK_INTERVAL_S:
            return
        refuse(table, self._rules.mapping_findings(table))
        try:
            columns = self._sql.columns(table.name)
        except SqlError as error:
            self._sql.raise_refused(error, table.name)
            return  # the load itself reports more
        refuse(table, column_findings(table, columns, self._rules))
        self._checked_at[table.name] = time.monotonic()

    def forget(self, table: str) -> None:
        """Check the columns of ``table`` again at its next load."""
        self._checked_at.pop(table, None)

    def has_columns(self, table: str, names: Iterable[str]) -> bool:
        """Return True if ``table`` has all columns ``names``, which its loads were written with.

        The cluster accepts a load with other columns and drops their values without an error. A column can be dropped
        at any time, so this is called before each commit. Also True if the table does not exist: the cluster accepts
        the commit, and the job compares the identities of its tables.
        Raises: SinkUnavailable - the cluster does not show the columns; TargetMismatch.
        """
        required = {name.lower() for name in names}
        if not required:
            return True
        try:
            columns = self._sql.columns(table)
        except SqlError as error:
            # a table whose privilege was revoked is not listed either
            if "denied" not in str(error).lower() and not self._sql.has_table(table):
                return True
            raise self._sql.messages.refused(error, table=table) from error
        missing = sorted(required - {str(row["Field"]).lower() for row in columns})
        if missing:
            logger.warning("%s no longer has the columns %s; its loads are aborted", table, ", ".join(missing))
            self.forget(table)
        return not missing


def refuse(table: TargetTable, findings: Iterable[Finding]) -> None:
    """Raise TargetMismatch for the first of ``findings`` that is fatal."""
    for finding in findings:
        if finding.fatal:
            raise TargetMismatch(finding.problem, hint=finding.hint, table=table.name)
