"""StarRocks: Primary-key tables by the transaction interface, each table at once or all of them at one moment.

Single mode: a load is a transaction under a label that its LoadName makes, prepared by an executor and committed here.
Multi mode (4.0.7 and later, targets in one database; ``starrocks_mode`` has all that it wants): all loads of a
checkpoint and the row of ``_cdc_checkpoints`` are one transaction. There is nothing that a crash leaves prepared in
it, so whatever happens to it before its commit, all of it is loaded again; and whether it was committed stands in the
table that it wrote.

Source: StarRocks manual, "Load data using Stream Load transaction interface"; see ``starrocks_load`` and its client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdc.batch import LoadName, PreparedLoad
from cdc.errors import LoadLost, SinkError
from channels.label import label_for, label_prefix
from channels.sinks import starrocks_tables
from channels.sinks.base import CheckpointMark, Finding, LoadState, TargetTable, loads_of
from channels.sinks.cluster import FrontendSql, SqlError, running_findings
from channels.sinks.cluster_sink import ClusterSink, Shown, by_table
from channels.sinks.starrocks_checks import alive, load_findings
from channels.sinks.starrocks_client import DONE, STARROCKS, Answer, StarrocksHttp, Transaction
from channels.sinks.starrocks_leftovers import Leftovers, is_shared
from channels.sinks.starrocks_load import LoadSettings, StarrocksPartWriter, shared_label
from channels.sinks.starrocks_mode import Mode
from channels.sinks.starrocks_refusals import bad_rows, raise_refused
from channels.sinks.starrocks_shared import COMMIT_WAIT_S, SharedCommit
from channels.sinks.stream_load import Access, Unreachable, waits
from spark.writers import write_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_TRIES = 5
_STATES = {
    "PREPARE": LoadState.PREPARED,  # in multi mode there is nothing beyond it; alone a load never rests there
    "PREPARED": LoadState.PREPARED,
    "COMMITTED": LoadState.COMMITTED,
    "VISIBLE": LoadState.COMMITTED,
    "ABORTED": LoadState.ABORTED,
}


class StarrocksSink(ClusterSink):
    """See ``channels.sinks.base.Sink``."""

    product = STARROCKS
    states = _STATES

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
        self._http = StarrocksHttp(access)
        super().__init__(
            self._http,
            FrontendSql(access, sql_port, STARROCKS),
            create_tables=create_tables,
            tables=tables,
            commit_threads=commit_threads,
            visible_timeout_s=visible_timeout_s,
        )
        self._settings, self._parts = LoadSettings(tries=tries, pause_s=pause_s), parts
        self._databases, self._wanted = sorted(set(databases)), multi_table
        self._mode = Mode(self._sql, self._databases, multi_table)
        self._shared = SharedCommit(self._http, tries, pause_s)
        self._leftovers = Leftovers(self._http, self._sql, self._databases, tries)
        self._losses: dict[tuple[int, int], int] = {}  # see shared_label
        self._refused: set[str] = set()  # labels of shared transactions whose refusal was told
        self._is_swept = False

    @property
    def tasks_in_order(self) -> bool:
        """See ``Sink``: within one transaction rows of a key come in the order of its loads."""
        return self._mode.is_multi()

    # ---- tables

    def ensure_table(self, table: TargetTable) -> None:
        """See ``Sink``."""
        self._mode.refuse()  # a setting that cannot be kept is refused before anything is made
        super().ensure_table(table)
        self._mode.refuse()

    def _create_table(self, table: TargetTable, options: Mapping[str, Any]) -> str:
        statement = starrocks_tables.create_table(table, options)
        self._mode.look(table.name, statement)  # of one that is there, what it is like is looked at next
        return statement

    def _create_checkpoints(self, database: str, replication: int) -> str:
        return starrocks_tables.create_checkpoints(database, replication)

    def _differences(self, table: TargetTable, shown: Shown) -> Iterable[Finding]:
        self._mode.look(table.name, shown[1])
        return starrocks_tables.findings(table, *shown)

    def _column_differences(self, table: TargetTable, columns: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
        return starrocks_tables.column_findings(table, columns)

    def check(self, tables: Iterable[TargetTable]) -> tuple[Finding, ...]:
        """See ``Sink``."""
        try:
            self._sql.ask("SELECT 1")
            self._http.state(self._databases[0], "cdc-check")  # some clusters want INSERT on the database for it
            self._mode.why_not()
        except SinkError as error:
            return (Finding(str(error), error.mend),)
        tables = list(tables)
        of_tables = list(self._of_tables(tables))
        found, why = [], self._mode.why_not()
        if why and self._wanted != "off":
            problem = f"Tables become visible one by one, not all at one moment: {why}"
            found.append(Finding(problem, "Nothing, if that will do: set sink.multi_table: off.", self._wanted == "on"))
        if alive(self._sql) == 0:
            found.append(Finding("StarRocks has no backend alive.", "See SHOW BACKENDS on the FE."))
        if why:
            found += running_findings(self._sql, STARROCKS, tables)
        found += self._leftovers.findings()
        return (*found, *of_tables)

    def _of_tables(self, tables: Iterable[TargetTable]) -> Iterator[Finding]:
        asked = set()
        for table in tables:
            is_there, database = self._shown(table) is not None, table.name.partition(".")[0]
            yield from self.describe(table) if is_there or not self._create_tables else self._untyped(table)
            if is_there and database not in asked:  # one is enough: each leaves a label, of which few are kept
                asked.add(database)
                yield from load_findings(self._http, table)

    def _replication(self) -> int:
        return max(1, min(3, alive(self._sql) or 1))  # where it cannot be seen, sink.tables.replication says more

    # ---- loads

    def claim(self, mark: CheckpointMark, targets: Sequence[str]) -> None:
        """See ``Sink``. What was lost is loaded again before its tables are met, so they are looked at here."""
        super().claim(mark, targets)
        if self._mode.why_not() is None:
            for name in targets:
                if "*" not in name and (statement := self._statement(name)) is not None:
                    self._mode.look(name, statement)

    def part_writer(self, table: TargetTable) -> StarrocksPartWriter:
        """See ``Sink``. Raises: TargetMismatch - the table has changed; SinkSetting, SinkUnavailable."""
        is_multi = self._mode.is_multi()
        self._look_again(table)
        return StarrocksPartWriter(self._http, table, self._settings, is_multi, dict(self._losses))

    def prepare(self, frame: DataFrame, name: LoadName, table: TargetTable) -> tuple[PreparedLoad, ...]:
        """See ``Sink``."""
        parts = 1 if self._mode.is_multi() else self._parts  # a transaction takes one load of a table at a time
        return loads_of(write_parts(frame, name, table.key, self.part_writer(table), parts))

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        """See ``Sink``. Loads say themselves whether they share a transaction."""
        self._check_claim(checkpoint)
        shared = [load for load in loads if "transaction" in load.detail]
        # beside them those of a run in the other mode, of which a part was lost and loaded again
        self._commit_each([load for load in loads if "transaction" not in load.detail], checkpoint)
        if shared:
            self._commit_shared(shared, checkpoint)
            return
        self._record_all(loads, checkpoint)
        if not self._is_swept:
            self._is_swept = True
            self._leftovers.sweep(checkpoint)

    def _commit_load(self, load: PreparedLoad) -> bool:
        """See ClusterSink."""
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

    def _discard(self, load: PreparedLoad) -> None:
        self._shared.is_rolled_back(_transaction_of(load))

    # ---- the one transaction of a checkpoint

    def _commit_shared(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        transactions = {(load.detail["label"], load.detail["transaction"]) for load in loads}
        whole = replace(_transaction_of(loads[0]), table="", multi=True)
        reason = Answer("", "its loads are in different transactions")
        if not all(map(self._has_columns, by_table(loads).values())):
            reason = Answer("", "a table no longer has all columns")
        elif len(transactions) == 1:
            self._ensure_checkpoints(whole.database)
            reason = self._shared.committed(whole, loads[0].detail["transaction"], checkpoint)
            if reason.is_ok:
                self._await_visible(whole.database, whole.label)
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
                multi=True,
            )
        logger.info("%s is loaded again: %s %s", whole.label, reason.status, reason.message)
        of_run = (loads[0].name.fence, checkpoint.checkpoint)
        for key in {of_run, (checkpoint.fence, checkpoint.checkpoint)}:
            self._losses[key] = self._losses.get(key, 0) + 1
        raise self._lost([label_for(load.name) for load in loads])

    # ---- the rest

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """See ``Sink``."""
        prefix = label_prefix(job, incarnation, fence, checkpoint)
        if self._mode.may_have_been():
            for losses in range(1 + self._losses.get((fence, checkpoint), 0)):
                label = shared_label(job, incarnation, fence, checkpoint, {(fence, checkpoint): losses})
                self._shared.is_rolled_back(Transaction(self._databases[0], label, multi=True))
        self._leftovers.roll_back(lambda label: label.startswith(prefix))

    def _abort_others(self, prefix: str, kept: Collection[str]) -> None:
        """See ClusterSink."""
        self._leftovers.roll_back(lambda label: label.startswith(prefix) and label not in kept and not is_shared(label))

    def _raise_refused(self, error: SqlError, table: str) -> None:
        raise_refused(str(error), dict, self._http.access.username, {"table": table})

    def _lost(self, labels: list[str]) -> LoadLost:
        return LoadLost(
            "StarRocks no longer has loads that were to be committed: "
            "they expired, were forgotten, or went with a server.",
            mend="They are loaded again by themselves.",
            labels=labels,
        )


def _transaction_of(load: PreparedLoad) -> Transaction:
    database, _, table = load.table.partition(".")
    return Transaction(database, str(load.detail.get("label", label_for(load.name))), table)
