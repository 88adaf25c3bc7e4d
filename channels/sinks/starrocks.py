"""StarRocks: Primary-key tables by the transaction interface, each table at once or all of them at one moment.

Single mode: a load is a transaction under a label that its LoadName makes, prepared by an executor and committed here.
Multi mode (4.0 and later, targets in one database): all loads of a checkpoint and the row of ``_cdc_checkpoints`` are
one transaction. There is nothing that a crash leaves prepared in it, so whatever happens to it before its commit, all
of it is loaded again; and whether it was committed stands in the table that it wrote.

Source: StarRocks manual, "Load data using Stream Load transaction interface"; see ``starrocks_load`` and its client.
"""

from __future__ import annotations

import datetime
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdc.batch import LoadName, PreparedLoad
from cdc.errors import LoadLost, SinkError, SinkSetting, TargetMismatch
from channels.label import label_for, label_prefix
from channels.sinks import starrocks_tables
from channels.sinks.base import CheckpointMark, Finding, LoadState, TargetTable, loads_of
from channels.sinks.cluster import (
    CHECKPOINTS,
    FrontendSql,
    SqlError,
    check_claim,
    claim,
    mark_row,
    partition_findings,
    quoted,
    running_findings,
    target,
)
from channels.sinks.starrocks_checks import alive, load_findings
from channels.sinks.starrocks_client import DONE, STARROCKS, Answer, StarrocksHttp, Transaction
from channels.sinks.starrocks_leftovers import Leftovers
from channels.sinks.starrocks_load import (
    LoadSettings,
    StarrocksPartWriter,
    bad_rows,
    raise_refused,
    shared_label,
)
from channels.sinks.starrocks_shared import COMMIT_WAIT_S, SharedCommit
from channels.sinks.stream_load import Access, Unreachable, waits
from spark.writers import write_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

MULTI_FROM = (4, 0)
_TRIES = 5
_STATES = {
    "PREPARE": LoadState.PREPARED,  # in multi mode there is nothing beyond it; alone a load never rests there
    "PREPARED": LoadState.PREPARED,
    "COMMITTED": LoadState.COMMITTED,
    "VISIBLE": LoadState.COMMITTED,
    "ABORTED": LoadState.ABORTED,
}


class StarrocksSink:
    """See ``channels.sinks.base.Sink``."""

    def __init__(
        self,
        fe: Sequence[str],
        *,
        username: str,
        password: str,
        databases: Sequence[str],
        sql_port: int = 9030,
        multi_table: str = "auto",
        create_tables: bool = True,
        tables: Mapping[str, Any] | None = None,
        parts: int = 1,
        commit_threads: int = 8,
        visible_timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        answer_timeout_s: float = 600.0,
        connections: int = 8,
        tries: int = _TRIES,
        pause_s: float = 0.2,
    ) -> None:
        """``databases``: of all targets. ``multi_table``: auto, on or off.

        ``tables``: buckets, replication, partition and properties of tables made here. ``visible_timeout_s``: how long
        a commit waits for the publishing that StarRocks does by itself.
        ``connections``: requests at once to one host.
        """
        access = Access(
            tuple(fe), username, password, connect_timeout_s=connect_timeout_s, answer_timeout_s=answer_timeout_s,
            connections=connections,
        )  # fmt: skip
        self._http, self._sql = StarrocksHttp(access), FrontendSql(access, sql_port, STARROCKS)
        self._settings = LoadSettings(tries=tries, pause_s=pause_s)
        self._databases, self._wanted = sorted(set(databases)), multi_table
        self._create_tables, self._options, self._parts = create_tables, dict(tables or {}), parts
        self._visible_timeout_s = visible_timeout_s
        self._threads = ThreadPoolExecutor(commit_threads, "starrocks-commit")
        self._shared = SharedCommit(self._http, tries, pause_s)
        self._leftovers = Leftovers(self._http, self._sql, self._databases, tries)
        self._multi: bool | None = None  # once the server's version is known
        self._losses: dict[tuple[int, int], int] = {}  # see shared_label
        self._with_checkpoints: set[str] = set()
        self._recorded: dict[tuple[str, str], int] = {}  # database and job: newest sequence written by us
        self._claimed: set[str] = set()  # databases
        self._refused: set[str] = set()  # labels of shared transactions whose refusal was told
        self._is_swept = False

    @property
    def tasks_in_order(self) -> bool:
        """See ``Sink``: within one transaction rows of a key come in the order of its loads."""
        return self._is_multi()

    # ---- multi mode

    def _is_multi(self) -> bool:
        if self._multi is None:
            why = self._why_not_multi()
            if why and self._wanted == "on":
                raise SinkSetting(why, mend="Set sink.multi_table: auto, or off.")
            self._multi = why is None
            logger.info("StarRocks commits %s", "all tables at one moment" if self._multi else f"each table: {why}")
        return self._multi

    def _why_not_multi(self) -> str | None:
        if self._wanted == "off":
            return "sink.multi_table is off."
        if len(self._databases) != 1:
            return f"Targets lie in {len(self._databases)} databases ({', '.join(self._databases)}), not in one."
        version = str(self._sql.ask("SELECT current_version() AS version")[0]["version"])
        found = re.search(r"(\d+)\.(\d+)", version)
        if found is None or (int(found[1]), int(found[2])) < MULTI_FROM:
            return f"StarRocks {version} has no transactions over several tables; 4.0 and later have."
        return None

    # ---- tables

    def ensure_table(self, table: TargetTable) -> None:
        """See ``Sink``."""
        self._is_multi()  # a setting that cannot be kept is refused before anything is made
        if self._create_tables and self._shown(table) is None:
            database = table.name.partition(".")[0]
            options = {"replication": self._replication(), **self._options}
            self._execute(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}", table.name)
            self._execute(starrocks_tables.create_table(table, options), table.name)
        for finding in self.describe(table):
            if finding.fatal:
                raise TargetMismatch(finding.problem, mend=finding.mend, table=table.name)

    def describe(self, table: TargetTable) -> tuple[Finding, ...]:
        """See ``Sink``."""
        shown = self._shown(table)
        if shown is None:
            return (
                Finding(
                    f"There is no table {table.name} in StarRocks.",
                    "Set sink.create_tables: true, or create it: `cdc ddl JOB.yaml` prints the statement.",
                ),
            )
        found = [*starrocks_tables.findings(table, *shown)]
        if "PARTITION BY" in shown[1].upper():
            partitions = self._sql.ask(f"SHOW PARTITIONS FROM {target(table)}")
            today = datetime.datetime.now(datetime.UTC).date()
            found += partition_findings(table, shown[1], partitions, today)
        return tuple(found)

    def ddl(self, table: TargetTable) -> str:
        """See ``Sink``."""
        return starrocks_tables.create_table(table, self._options) + ";"

    def check(self, tables: Iterable[TargetTable]) -> tuple[Finding, ...]:
        """See ``Sink``."""
        try:
            self._sql.ask("SELECT 1")
            self._http.state("information_schema", "cdc-check")
            why = self._why_not_multi()
        except SinkError as error:
            return (Finding(str(error), error.mend),)
        found = []
        if why and self._wanted != "off":
            problem = f"Tables become visible one by one, not all at one moment: {why}"
            found.append(Finding(problem, "Nothing, if that will do: set sink.multi_table: off.", self._wanted == "on"))
        if alive(self._sql) == 0:
            found.append(Finding("StarRocks has no backend alive.", "See SHOW BACKENDS on the FE."))
        tables, asked = list(tables), set()
        if why:
            found += running_findings(self._sql, STARROCKS, tables)
        found += self._leftovers.findings()
        for table in tables:
            is_there, database = self._shown(table) is not None, table.name.partition(".")[0]
            if is_there or not self._create_tables:
                found += self.describe(table)
            if is_there and database not in asked:  # one is enough: each leaves a label, of which few are kept
                asked.add(database)
                found += load_findings(self._http, table)
        return tuple(found)

    def _shown(self, table: TargetTable) -> tuple[list[dict[str, Any]], str] | None:
        """DESC and SHOW CREATE TABLE; None when there is no such table."""
        if not self._sql.has_table(table.name):
            return None
        columns = self._sql.ask(f"DESC {target(table)}")
        return columns, str(self._sql.ask(f"SHOW CREATE TABLE {target(table)}")[0]["Create Table"])

    def _replication(self) -> int:
        return max(1, min(3, alive(self._sql) or 1))  # where it cannot be seen, sink.tables.replication says more

    # ---- loads

    def part_writer(self, table: TargetTable) -> StarrocksPartWriter:
        """See ``Sink``."""
        is_multi = self._is_multi()
        return StarrocksPartWriter(self._http, table, self._settings, is_multi, dict(self._losses))

    def claim(self, mark: CheckpointMark, targets: Sequence[str]) -> None:
        """See ``Sink``: by the rows of ``_cdc_checkpoints``, which are read back, and looked at by each commit."""
        there = {str(next(iter(row.values()))) for row in self._sql.ask("SHOW DATABASES")}
        wanted = {target.partition(".")[0] for target in targets}
        self._claimed = wanted if self._create_tables else wanted & there
        for database in sorted(self._claimed - there):
            self._execute(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}", database)
        claim(self._sql, self._claimed, mark, self._record)

    def prepare(self, frame: DataFrame, name: LoadName, table: TargetTable) -> tuple[PreparedLoad, ...]:
        """See ``Sink``."""
        parts = 1 if self._is_multi() else self._parts  # a transaction takes one load of a table at a time
        return loads_of(write_parts(frame, name, table.key, self.part_writer(table), parts))

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        """See ``Sink``. Loads say themselves whether they share a transaction."""
        check_claim(self._sql, self._claimed, checkpoint)
        if any("transaction" in load.detail for load in loads):
            self._commit_shared(loads, checkpoint)
            return
        by_table: dict[str, list[PreparedLoad]] = {}
        for load in sorted(loads, key=lambda load: load.name):
            by_table.setdefault(load.table, []).append(load)
        jobs = [self._threads.submit(self._commit_table, found) for found in by_table.values()]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        others = [error for error in errors if not isinstance(error, LoadLost)]
        if others:
            raise others[0]
        if errors and not self._is_recorded(checkpoint):
            raise _lost([label for error in errors for label in error.where["labels"]])  # type: ignore[attr-defined]
        for database in sorted({table.partition(".")[0] for table in by_table}):
            self._record(database, checkpoint)
        if not self._is_swept:
            self._is_swept = True
            self._leftovers.sweep(checkpoint)

    def _commit_table(self, loads: Sequence[PreparedLoad]) -> None:
        lost = [label_for(load.name) for load in loads if not self._commit_alone(load)]
        if lost:
            raise _lost(lost)
        self._await_visible(_transaction_of(loads[-1]))

    def _commit_alone(self, load: PreparedLoad) -> bool:
        """Whether the load is committed now; False: StarRocks no longer has it. Raises: SinkUnavailable, SinkBusy."""
        transaction = _transaction_of(load)
        where = {"table": load.table, "label": transaction.label}
        reason: object = "no answer"
        for number, pause in zip(range(self._settings.tries), waits(self._settings.pause_s, 2.0), strict=False):
            if number:
                time.sleep(pause)
            try:
                answer = self._http.ask("commit", transaction, timeout=str(COMMIT_WAIT_S))
            except Unreachable as error:
                reason = error
                continue
            if answer.is_ok:
                return True
            reason = answer.message
            state = self._http.state(transaction.database, transaction.label)
            if state in DONE:
                return True
            if state != "PREPARED":
                return False
            raise_refused(answer.message, dict, self._http.access.username, where)
        raise STARROCKS.unavailable(reason, **where)

    # ---- the one transaction of a checkpoint

    def _commit_shared(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        transactions = {(load.detail["label"], load.detail["transaction"]) for load in loads}
        whole = replace(_transaction_of(loads[0]), table="", multi=True)
        reason = Answer("", "its loads are in different transactions")
        if len(transactions) == 1:
            self._ensure_checkpoints(whole.database)
            reason = self._shared.recorded(whole, checkpoint)
            if reason.is_ok:
                reason = self._shared.committed(whole)
            if reason.is_ok:
                self._await_visible(whole)
                return
        # what is not committed now must never be: then it may be loaded again
        if not self._shared.is_rolled_back(whole) or self._is_recorded(checkpoint):
            return
        if loads[0].name.fence == checkpoint.fence and whole.label not in self._refused:
            # told once; who comes again has been told, and what was refused is gone: it is loaded again
            self._refused.add(whole.label)
            raise_refused(
                reason.message,
                lambda: bad_rows(self._http, None, reason),
                self._http.access.username,
                {"label": whole.label},
            )
        logger.info("%s is loaded again: %s %s", whole.label, reason.status, reason.message)
        of_run = (loads[0].name.fence, checkpoint.checkpoint)
        for key in {of_run, (checkpoint.fence, checkpoint.checkpoint)}:
            self._losses[key] = self._losses.get(key, 0) + 1
        raise _lost([label_for(load.name) for load in loads])

    # ---- both

    def _await_visible(self, transaction: Transaction) -> None:
        """Wait for the newest load of a table; versions follow the order of commits, so the others are visible too."""
        deadline = time.monotonic() + self._visible_timeout_s
        for pause in waits(0.02, 0.5):
            if self._http.state(transaction.database, transaction.label) != "COMMITTED":
                return
            if time.monotonic() > deadline:
                told = "%s is committed and not visible yet; StarRocks publishes it by itself"
                logger.warning(told, transaction.label)
                return
            time.sleep(pause)

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """See ``Sink``."""
        prefix = label_prefix(job, incarnation, fence, checkpoint)
        if self._is_multi():
            for losses in range(1 + self._losses.get((fence, checkpoint), 0)):
                label = shared_label(job, incarnation, fence, checkpoint, {(fence, checkpoint): losses})
                self._shared.is_rolled_back(Transaction(self._databases[0], label, multi=True))
        self._leftovers.roll_back(lambda label: label.startswith(prefix))

    def state(self, load: PreparedLoad) -> LoadState:
        """See ``Sink``."""
        transaction, name = _transaction_of(load), load.name
        found = _STATES.get(self._http.state(transaction.database, transaction.label), LoadState.UNKNOWN)
        if found is not LoadState.UNKNOWN:
            return found
        # a label is cleaned one day, our own record is not
        known = self._sql.is_recorded(name.job, name.incarnation, name.checkpoint)
        return LoadState.COMMITTED if known else LoadState.UNKNOWN

    # ---- checkpoints

    def last_checkpoint(self, job: str) -> CheckpointMark | None:
        """See ``Sink``."""
        return self._sql.last_checkpoint(job)

    def _is_recorded(self, checkpoint: CheckpointMark) -> bool:
        return self._sql.is_recorded(checkpoint.job, checkpoint.incarnation, checkpoint.checkpoint)

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
            statement = starrocks_tables.create_checkpoints(database, self._replication())
            self._execute(statement, f"{database}.{CHECKPOINTS}")
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
        """See ``Sink``: StarRocks compacts by itself."""

    def close(self) -> None:
        """See ``Sink``."""
        self._threads.shutdown(wait=True)
        self._http.close()
        self._sql.close()

    def _execute(self, statement: str, table: str, values: tuple[Any, ...] | None = None) -> None:
        try:
            self._sql.rows(statement, values)
        except SqlError as error:
            raise_refused(str(error), dict, self._http.access.username, {"table": table})
            if statement.startswith("CREATE"):
                raise TargetMismatch(
                    f"StarRocks does not create the table: {error}.",
                    mend="Mend sink.tables, or the channel's, or create it yourself: `cdc ddl` prints the statement.",
                    table=table,
                ) from error
            raise STARROCKS.refused(error, table=table) from error


def _transaction_of(load: PreparedLoad) -> Transaction:
    database, _, table = load.table.partition(".")
    return Transaction(database, str(load.detail.get("label", label_for(load.name))), table)


def _lost(labels: list[str]) -> LoadLost:
    return LoadLost(
        "StarRocks no longer has loads that were to be committed: they expired, were forgotten, or went with a server.",
        mend="They are loaded again by themselves.",
        labels=labels,
    )
