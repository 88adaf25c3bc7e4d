"""Apache Doris: Stream Load into Unique-key tables, prepared by executors and committed here in two phases.

A load is a Doris transaction under a label that its LoadName makes.

Source: Doris manual, "Stream Load" and "Transaction"; ``stream_load_2pc.cpp``, ``DatabaseTransactionMgr.java``.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdc.batch import LoadName, PreparedLoad
from cdc.errors import LoadLost, SinkError, TargetMismatch
from channels.label import label_for, label_prefix
from channels.sinks import doris_tables
from channels.sinks.base import CheckpointMark, Finding, LoadState, TargetTable, loads_of
from channels.sinks.cluster import FrontendSql, SqlError, quoted, running_findings, text
from channels.sinks.cluster_sink import ClusterSink, Shown, by_table
from channels.sinks.doris_client import DORIS, DorisHttp
from channels.sinks.doris_load import DorisPartWriter, LoadSettings, raise_refused
from channels.sinks.stream_load import Access, Unreachable, waits
from spark.writers import write_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_TRIES = 5
_SYSTEM = {"information_schema", "mysql", "__internal_schema"}
_UNFINISHED = ("PREPARE", "PRECOMMITTED")
_DOUBLED_BEFORE = {(2, 0): 15, (2, 1): 6, (3, 0): 2}  # of each line the first release that keeps rows of a key apart
_FINISHED = re.compile(r"is already \b(committed|visible)\b, not pre-committed", re.IGNORECASE)
_RAISE_QUOTA = "ALTER DATABASE {database} SET TRANSACTION QUOTA {limit}"
_STATES = {
    "PRECOMMITTED": LoadState.PREPARED,
    "COMMITTED": LoadState.COMMITTED,
    "VISIBLE": LoadState.COMMITTED,
    "ABORTED": LoadState.ABORTED,
}


class DorisSink(ClusterSink):
    """See ``channels.sinks.base.Sink``."""

    product = DORIS
    states = _STATES
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
        self._http = DorisHttp(access)
        super().__init__(
            self._http,
            FrontendSql(access, sql_port, DORIS),
            create_tables=create_tables,
            tables=tables,
            commit_threads=commit_threads,
            visible_timeout_s=visible_timeout_s,
        )
        self._settings = LoadSettings(two_phase_commit, compression, tries=tries, pause_s=pause_s)
        self._parts = parts

    # ---- tables

    def _create_table(self, table: TargetTable, options: Mapping[str, Any]) -> str:
        return doris_tables.create_table(table, options)

    def _create_checkpoints(self, database: str, replication: int) -> str:
        return doris_tables.create_checkpoints(database, replication)

    def _differences(self, table: TargetTable, shown: Shown) -> Iterable[Finding]:
        return doris_tables.findings(table, *shown)

    def _column_differences(self, table: TargetTable, columns: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
        return doris_tables.column_differences(table, columns)

    def check(self, tables: Iterable[TargetTable]) -> tuple[Finding, ...]:
        """See ``Sink``."""
        try:
            self._sql.ask("SELECT 1")
            self._http.ask_backends()
        except SinkError as error:
            return (Finding(str(error), error.mend),)
        tables = list(tables)
        found = [*self._version_findings()]
        if self._settings.two_phase:
            found += running_findings(self._sql, DORIS, tables, self._quotas(), _RAISE_QUOTA)
            found += self._blind_findings(tables)
        for table in tables:
            is_there = self._shown(table) is not None
            found += self.describe(table) if is_there or not self._create_tables else self._untyped(table)
            if is_there:
                found += self._may_load(table)
        return tuple(found)

    def _version_findings(self) -> Iterator[Finding]:
        (row, *_) = self._sql.ask("SELECT @@version_comment")
        told = str(next(iter(row.values())))
        found = re.search(r"(\d+)\.(\d+)\.(\d+)", told)
        if found is None:
            return
        line, patch = (int(found[1]), int(found[2])), int(found[3])
        if line < min(_DOUBLED_BEFORE) or patch < _DOUBLED_BEFORE.get(line, 0):
            yield Finding(
                f"{told} may show two rows of one key where a load is large or a table got its sequence later.",
                "Upgrade to 2.0.15, 2.1.6, 3.0.2 or later.",
                fatal=False,
            )

    def _quotas(self) -> dict[str, int]:
        """Running transactions that each database takes; none where that is an administrator's to see."""
        try:
            rows = self._sql.rows("SHOW PROC '/dbs'")
        except (SqlError, TargetMismatch):
            return {}
        return {row["DbName"].rpartition(":")[2]: int(row["TransactionQuota"]) for row in rows}

    def _blind_findings(self, tables: Sequence[TargetTable]) -> Iterator[Finding]:
        for database in sorted({table.name.partition(".")[0] for table in tables} & self._all_databases()):
            try:
                self._transactions(database, "cdc-check-")
            except (SqlError, TargetMismatch) as error:
                yield Finding(
                    f"The user may not see the transactions of {database} ({error}): what a killed run has prepared "
                    "rests there for an hour, counts as running and holds back ALTER TABLE.",
                    "From 4.0 on Doris shows them to users with ADMIN_PRIV; without it nothing is lost.",
                    fatal=False,
                )

    def _may_load(self, table: TargetTable) -> Iterator[Finding]:
        try:
            self._http.ask_to_load(table)
        except SinkError as error:
            mend = error.mend.replace("<database>", table.name.partition(".")[0])
            yield Finding(f"{table.name}: {error.message}", mend)

    def _columns(self, table: TargetTable) -> list[dict[str, Any]]:
        """Hidden columns too."""
        self._sql.ask("SET show_hidden_columns = true")
        try:
            return super()._columns(table)
        finally:
            self._sql.ask("SET show_hidden_columns = false")

    def _replication(self) -> int:
        return min(3, self._http.ask_backends())

    # ---- loads

    def part_writer(self, table: TargetTable) -> DorisPartWriter:
        """See ``Sink``. Raises: TargetMismatch - the table has changed; SinkUnavailable."""
        self._look_again(table)
        self._http.backends()  # executors get the list, and need not ask the FE for every part
        return DorisPartWriter(self._http, table, self._settings)

    def prepare(self, frame: DataFrame, name: LoadName, table: TargetTable) -> tuple[PreparedLoad, ...]:
        """See ``Sink``."""
        return loads_of(write_parts(frame, name, table.key, self.part_writer(table), self._parts))

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        """See ``Sink``. Loads say themselves whether they wait for it: the setting may be another one by now."""
        self._check_claim(checkpoint)
        waiting: dict[bool, list[PreparedLoad]] = {True: [], False: []}
        for load in loads:
            waiting[self._is_two_phase(load)].append(load)
        for plain in by_table(waiting[False]).values():
            self._give_up_unfit(plain)  # they are visible; but no later cycle follows them before somebody looks
        self._commit_each(waiting[True], checkpoint)
        self._record_all(loads, checkpoint)

    def _is_two_phase(self, load: PreparedLoad) -> bool:
        if "two_phase" in load.detail:
            return bool(load.detail["two_phase"])
        # saved by an older version; a plain one is committed as soon as it is there
        return self._settings.two_phase or self.state(load) is not LoadState.COMMITTED

    def _commit_load(self, load: PreparedLoad) -> bool:
        """See ClusterSink."""
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

    def _discard(self, load: PreparedLoad) -> None:
        database, label = load.table.partition(".")[0], label_for(load.name)
        try:
            answer = self._http.finish("abort", database, load.detail["transaction"])
        except Unreachable as error:
            raise DORIS.unavailable(error, table=load.table, label=label) from error
        if answer.status != "Success" and self.state(load) is LoadState.PREPARED:
            raise DORIS.unavailable(answer.message, table=load.table, label=label)

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """See ``Sink``."""
        self._abort_others(label_prefix(job, incarnation, fence, checkpoint), ())

    def _abort_others(self, prefix: str, kept: Collection[str]) -> None:
        """See ClusterSink."""
        for database in self._databases():
            for _ in range(self._settings.tries):
                found = [each for each in self._unfinished(database, prefix) if each[1] not in kept]
                if not found:
                    break
                for number, label in found:
                    self._abort_load(database, number, label)
            else:
                raise DORIS.unavailable("prepared loads do not go away", database=database, labels=prefix)

    def _unfinished(self, database: str, prefix: str) -> Iterator[tuple[int, str]]:
        try:
            rows = self._transactions(database, prefix)
        except (SqlError, TargetMismatch) as error:
            # where others load, we may not look; where we do, `check` has said what it means
            level = logging.WARNING if database in self._claimed else logging.DEBUG
            logger.log(level, "prepared loads of %s cannot be looked for, and end by themselves: %s", database, error)
            return
        # a plain load is not aborted while it runs, it becomes visible; what rests prepared is of another setting
        wanted = _UNFINISHED if self._settings.two_phase else _UNFINISHED[1:]
        for row in rows:
            if row["Label"].startswith(prefix) and row["TransactionStatus"] in wanted:
                yield int(row["TransactionId"]), row["Label"]

    def _transactions(self, database: str, prefix: str) -> list[dict[str, Any]]:
        """Those with a label that begins with ``prefix``, among others. Raises: SqlError, TargetMismatch."""
        show = f"SHOW TRANSACTION FROM {quoted(database)} WHERE"
        try:
            return self._sql.rows(f"{show} label LIKE {text(prefix + '%')}")
        except SqlError:
            # 1.2 wants a whole label; 4.0 and later do not know a status in their turn
            return [row for status in _UNFINISHED for row in self._sql.rows(f"{show} status = '{status}'")]

    def _abort_load(self, database: str, number: int, label: str) -> None:
        try:
            answer = self._http.finish("abort", database, number)
        except Unreachable as error:
            logger.info("abort of %s has no answer (%s); it is looked for again", label, error)
            return
        if answer.status != "Success":
            logger.info("abort of %s: %s", label, answer.message)

    # ---- the rest

    def _databases(self) -> list[str]:
        return sorted(self._all_databases() - _SYSTEM)

    def _raise_refused(self, error: SqlError, table: str) -> None:
        raise_refused(str(error), dict, self._http.access.username, {"table": table})

    def _lost(self, labels: list[str]) -> LoadLost:
        return LoadLost(
            "Doris no longer has prepared loads: they expired or were forgotten.",
            mend="They are loaded again by themselves; raise stream_load_default_precommit_timeout_second on the FE "
            "if commits wait for longer than an hour.",
            labels=labels,
        )
