"""Apache Doris: Stream Load into Unique-key tables, prepared by executors and committed here in two phases.

A load is a Doris transaction under a label that its LoadName makes. What was committed is kept twice: by Doris under
the label, for hours, and for good in a small table ``_cdc_checkpoints`` in each target database.

Source: Doris manual, "Stream Load" and "Transaction"; ``stream_load_2pc.cpp``, ``DatabaseTransactionMgr.java``.
"""

from __future__ import annotations

import datetime
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from cdc.batch import LoadName, PreparedLoad
from cdc.errors import LoadLost, SinkError, TargetMismatch
from channels.label import label_for, label_prefix
from channels.sinks import doris_tables
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
from channels.sinks.doris_client import DORIS, DorisHttp
from channels.sinks.doris_load import DorisPartWriter, LoadSettings, raise_refused
from channels.sinks.stream_load import Access, Unreachable, waits
from spark.writers import write_parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_TRIES = 5
_SYSTEM = {"information_schema", "mysql", "__internal_schema"}
_FINISHED = re.compile(r"is already \b(committed|visible)\b, not pre-committed", re.IGNORECASE)
_STATES = {
    "PRECOMMITTED": LoadState.PREPARED,
    "COMMITTED": LoadState.COMMITTED,
    "VISIBLE": LoadState.COMMITTED,
    "ABORTED": LoadState.ABORTED,
}


class DorisSink:
    """See ``channels.sinks.base.Sink``."""

    tasks_in_order = False  # the sequence decides, and loads commit in order

    def __init__(
        self,
        fe: Sequence[str],
        *,
        username: str,
        password: str,
        sql_port: int = 9030,
        two_phase_commit: bool = True,
        create_tables: bool = True,
        tables: Mapping[str, Any] | None = None,
        backends: Sequence[str] = (),
        compression: str | None = None,
        parts: int = 1,
        commit_threads: int = 8,
        visible_timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        answer_timeout_s: float = 600.0,
        connections: int = 8,
        tries: int = _TRIES,
        pause_s: float = 0.2,
    ) -> None:
        """``tables``: buckets, replication, partition and properties of tables made here.

        ``backends``: where BEs can be reached, if not where the FE says. ``compression``: "lz4" for slow networks.
        ``visible_timeout_s``: how long a commit waits for the publishing that Doris does by itself.
        ``connections``: requests at once to one host.
        """
        access = Access(
            tuple(fe), username, password, tuple(backends), connect_timeout_s, answer_timeout_s, connections
        )
        self._http, self._sql = DorisHttp(access), FrontendSql(access, sql_port, DORIS)
        self._settings = LoadSettings(two_phase_commit, compression, tries=tries, pause_s=pause_s)
        self._create_tables, self._options, self._parts = create_tables, dict(tables or {}), parts
        self._visible_timeout_s = visible_timeout_s
        self._threads = ThreadPoolExecutor(commit_threads, "doris-commit")
        self._with_checkpoints: set[str] = set()
        self._claimed: set[str] = set()  # databases

    # ---- tables

    def ensure_table(self, table: TargetTable) -> None:
        """See ``Sink``."""
        if self._create_tables and self._shown(table) is None:
            options = {"replication": self._replication(), **self._options}
            self._execute(f"CREATE DATABASE IF NOT EXISTS {quoted(table.name.partition('.')[0])}", table.name)
            self._execute(doris_tables.create_table(table, options), table.name)
        for finding in self.describe(table):
            if finding.fatal:
                raise TargetMismatch(finding.problem, mend=finding.mend, table=table.name)

    def describe(self, table: TargetTable) -> tuple[Finding, ...]:
        """See ``Sink``."""
        shown = self._shown(table)
        if shown is None:
            return (
                Finding(
                    f"There is no table {table.name} in Doris.",
                    "Set sink.create_tables: true, or create it: `cdc ddl JOB.yaml` prints the statement.",
                ),
            )
        found = [*doris_tables.findings(table, *shown)]
        if "PARTITION BY" in shown[1].upper():
            partitions = self._sql.ask(f"SHOW PARTITIONS FROM {target(table)}")
            today = datetime.datetime.now(datetime.UTC).date()
            found += partition_findings(table, shown[1], partitions, today)
        return tuple(found)

    def ddl(self, table: TargetTable) -> str:
        """See ``Sink``."""
        return doris_tables.create_table(table, self._options) + ";"

    def check(self, tables: Iterable[TargetTable]) -> tuple[Finding, ...]:
        """See ``Sink``."""
        try:
            self._sql.rows("SELECT 1")
            self._http.ask_backends()
        except SinkError as error:
            return (Finding(str(error), error.mend),)
        tables = list(tables)
        found = [*running_findings(self._sql, DORIS, tables)] if self._settings.two_phase else []
        for table in tables:
            is_there = self._shown(table) is not None
            if is_there or not self._create_tables:
                found += self.describe(table)
            if is_there:
                found += self._may_load(table)
        return tuple(found)

    def _may_load(self, table: TargetTable) -> Iterator[Finding]:
        try:
            self._http.ask_to_load(table)
        except SinkError as error:
            mend = error.mend.replace("<database>", table.name.partition(".")[0])
            yield Finding(f"{table.name}: {error.message}", mend)

    def _shown(self, table: TargetTable) -> tuple[list[dict[str, Any]], str] | None:
        """DESC, hidden columns too, and SHOW CREATE TABLE; None when there is no such table."""
        if not self._sql.has_table(table.name):
            return None
        self._sql.ask("SET show_hidden_columns = true")
        try:
            columns = self._sql.ask(f"DESC {target(table)}")
        finally:
            self._sql.ask("SET show_hidden_columns = false")
        return columns, str(self._sql.ask(f"SHOW CREATE TABLE {target(table)}")[0]["Create Table"])

    def _replication(self) -> int:
        return min(3, self._http.ask_backends())

    # ---- loads

    def part_writer(self, table: TargetTable) -> DorisPartWriter:
        """See ``Sink``."""
        self._http.backends()  # executors get the list, and need not ask the FE for every part
        return DorisPartWriter(self._http, table, self._settings)

    def claim(self, mark: CheckpointMark, targets: Sequence[str]) -> None:
        """See ``Sink``: by the row of ``_cdc_checkpoints``, which is read back, and looked at by each commit."""
        there = set(self._databases())
        wanted = {target.partition(".")[0] for target in targets}
        self._claimed = wanted if self._create_tables else wanted & there
        for database in sorted(self._claimed - there):
            self._execute(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}", database)
        claim(self._sql, self._claimed, mark, self._record)

    def prepare(self, frame: DataFrame, name: LoadName, table: TargetTable) -> tuple[PreparedLoad, ...]:
        """See ``Sink``."""
        return loads_of(write_parts(frame, name, table.key, self.part_writer(table), self._parts))

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        """See ``Sink``. Channels commit side by side; within one, Tasks and parts commit in order."""
        check_claim(self._sql, self._claimed, checkpoint)
        by_table: dict[str, list[PreparedLoad]] = {}
        for load in sorted(loads, key=lambda load: load.name):
            by_table.setdefault(load.table, []).append(load)
        if self._settings.two_phase:
            jobs = [self._threads.submit(self._commit_table, found) for found in by_table.values()]
            errors = [error for job in jobs if (error := job.exception()) is not None]
            others = [error for error in errors if not isinstance(error, LoadLost)]
            if others:
                raise others[0]
            if errors and not self._is_recorded(checkpoint):
                labels = [label for error in errors for label in error.where["labels"]]  # type: ignore[attr-defined]
                raise _lost(labels)
        for database in sorted({table.partition(".")[0] for table in by_table}):
            self._record(database, checkpoint)

    def _commit_table(self, loads: Sequence[PreparedLoad]) -> None:
        lost = [label_for(load.name) for load in loads if not self._commit_load(load)]
        if lost:
            raise _lost(lost)
        self._await_visible(loads[-1])

    def _commit_load(self, load: PreparedLoad) -> bool:
        """Whether the load is committed now; False: Doris no longer has it. Raises: SinkUnavailable, SinkBusy, ..."""
        database, label = load.table.partition(".")[0], label_for(load.name)
        where = {"table": load.table, "label": label}
        reason: object = "no answer"
        for number, pause in zip(range(self._settings.tries), waits(self._settings.pause_s, 2.0), strict=False):
            if number:
                time.sleep(pause)
                self._http.backends(fresh=True)
            try:
                answer = self._http.finish("commit", database, load.detail["transaction"])
            except Unreachable as error:
                reason = error
                continue
            if answer.status == "Success" or _FINISHED.search(answer.message):
                return True
            reason = answer.message
            self._http.refuse_denied(answer.message)
            state = self._http.state(database, label)
            if state in ("COMMITTED", "VISIBLE"):
                return True
            if state != "PRECOMMITTED":
                return False
            raise_refused(answer.message, dict, self._http.access.username, where)
        raise DORIS.unavailable(reason, **where)

    def _await_visible(self, load: PreparedLoad) -> None:
        """Wait for the newest load of a table; versions follow the order of commits, so the others are visible too."""
        deadline = time.monotonic() + self._visible_timeout_s
        for pause in waits(0.02, 0.5):
            if self._label_state(load) != "COMMITTED":
                return
            if time.monotonic() > deadline:
                logger.warning(
                    "%s is committed and not visible yet; Doris publishes it by itself", label_for(load.name)
                )
                return
            time.sleep(pause)

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """See ``Sink``. Without two-phase commit nothing is ever merely prepared."""
        if not self._settings.two_phase:
            return
        prefix = label_prefix(job, incarnation, fence, checkpoint)
        for database in self._databases():
            for _ in range(self._settings.tries):
                found = list(self._unfinished(database, prefix))
                if not found:
                    break
                for number, label in found:
                    self._abort_load(database, number, label)
            else:
                raise DORIS.unavailable("prepared loads do not go away", database=database, labels=prefix)

    def _unfinished(self, database: str, prefix: str) -> Iterator[tuple[int, str]]:
        for status in ("PREPARE", "PRECOMMITTED"):
            try:
                rows = self._sql.rows(f"SHOW TRANSACTION FROM {quoted(database)} WHERE status = '{status}'")
            except (SqlError, TargetMismatch) as error:
                # not ours to see, so not ours to abort: what we loaded there we would be allowed to see
                logger.debug("no transactions of %s can be seen: %s", database, error)
                return
            for row in rows:
                if row["Label"].startswith(prefix):
                    yield int(row["TransactionId"]), row["Label"]

    def _abort_load(self, database: str, number: int, label: str) -> None:
        try:
            answer = self._http.finish("abort", database, number)
        except Unreachable as error:
            logger.info("abort of %s has no answer (%s); it is looked for again", label, error)
            return
        if answer.status != "Success":
            logger.info("abort of %s: %s", label, answer.message)

    def state(self, load: PreparedLoad) -> LoadState:
        """See ``Sink``."""
        found = _STATES.get(self._label_state(load), LoadState.UNKNOWN)
        if found is not LoadState.UNKNOWN:
            return found
        # a label is cleaned one day, our own record is not
        name = load.name
        known = self._sql.is_recorded(name.job, name.incarnation, name.checkpoint)
        return LoadState.COMMITTED if known else LoadState.UNKNOWN

    def _label_state(self, load: PreparedLoad) -> str:
        return self._http.state(load.table.partition(".")[0], label_for(load.name))

    # ---- checkpoints

    def last_checkpoint(self, job: str) -> CheckpointMark | None:
        """See ``Sink``."""
        return self._sql.last_checkpoint(job)

    def _is_recorded(self, checkpoint: CheckpointMark) -> bool:
        return self._sql.is_recorded(checkpoint.job, checkpoint.incarnation, checkpoint.checkpoint)

    def _record(self, database: str, mark: CheckpointMark) -> None:
        if database not in self._with_checkpoints:
            self._execute(doris_tables.create_checkpoints(database, self._replication()), f"{database}.{CHECKPOINTS}")
            self._with_checkpoints.add(database)
        row = mark_row(mark)
        self._execute(
            f"INSERT INTO {quoted(database)}.{quoted(CHECKPOINTS)} ({', '.join(map(quoted, row))}) "
            f"VALUES ({', '.join(['%s'] * len(row))})",
            f"{database}.{CHECKPOINTS}",
            tuple(row.values()),
        )

    # ---- the rest

    @property
    def tells_keys(self) -> bool:
        """See ``Sink``."""
        return False

    def keys(self, table: TargetTable) -> pa.Table | None:
        """See ``Sink``: not asked for."""
        return None

    def maintain(self, tables: Iterable[TargetTable]) -> None:
        """See ``Sink``: Doris compacts by itself."""

    def close(self) -> None:
        """See ``Sink``."""
        self._threads.shutdown(wait=True)
        self._http.close()
        self._sql.close()

    def _databases(self) -> list[str]:
        names = (str(next(iter(row.values()))) for row in self._sql.ask("SHOW DATABASES"))
        return [name for name in names if name not in _SYSTEM]

    def _execute(self, statement: str, table: str, values: tuple[Any, ...] | None = None) -> None:
        try:
            self._sql.rows(statement, values)
        except SqlError as error:
            raise_refused(str(error), dict, self._http.access.username, {"table": table})
            if statement.startswith("CREATE"):
                raise TargetMismatch(
                    f"Doris does not create the table: {error}.",
                    mend="Mend sink.tables, or the channel's, or create it yourself: `cdc ddl` prints the statement.",
                    table=table,
                ) from error
            raise DORIS.refused(error, table=table) from error


def _lost(labels: list[str]) -> LoadLost:
    return LoadLost(
        "Doris no longer has prepared loads: they expired or were forgotten.",
        mend="They are loaded again by themselves; raise stream_load_default_precommit_timeout_second on the FE "
        "if commits wait for longer than an hour.",
        labels=labels,
    )
