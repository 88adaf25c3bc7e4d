"""Apache Doris: Stream Load into Unique-key tables. Executors prepare the loads, the driver commits them.

A load is a Doris transaction under the label of its LoadName.

Source: Doris manual, "Stream Load" and "Transaction"; ``stream_load_2pc.cpp``, ``DatabaseTransactionMgr.java``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from cdc.errors import SinkError, SinkUnavailable, TargetMismatch
from cdc.model.batch import PreparedLoad
from channels.sinks.base import Finding, LoadState, SinkCheckpoint, TargetTable
from channels.sinks.doris.client import DorisHttp
from channels.sinks.doris.errors import DORIS
from channels.sinks.doris.loader import DorisPartWriter
from channels.sinks.doris.names import DORIS_NAMES, DORIS_UNICODE_NAMES, in_lower_case
from channels.sinks.doris.orphans import DorisTransactions
from channels.sinks.doris.table import DORIS_TABLES, rename_findings
from channels.sinks.labels import job_prefix, label_prefix
from channels.sinks.stream_load.alter import ALTER_TIMEOUT_S
from channels.sinks.stream_load.http import ClusterAddress, Unreachable
from channels.sinks.stream_load.messages import SqlError
from channels.sinks.stream_load.name_rules import NameRules
from channels.sinks.stream_load.sink import ClusterSink, database_of, label_of
from channels.sinks.stream_load.statements import string_literal
from channels.sinks.stream_load.table import transaction_findings
from channels.sinks.stream_load.target_tables import TableHooks

# the first release of each line that does not show two rows of one key
_FIXED_RELEASES = {(2, 0): 15, (2, 1): 6, (3, 0): 2}
_COMMITTED = re.compile(r"is already \b(committed|visible)\b, not pre-committed", re.IGNORECASE)
_RAISE_QUOTA = "ALTER DATABASE {database} SET TRANSACTION QUOTA {limit}"


class DorisSink(ClusterSink):
    """See ``channels.sinks.base.Sink``."""

    messages, rules = DORIS, DORIS_TABLES
    datetime_digits = 0
    prepared_word = "PRECOMMITTED"
    states: ClassVar = {
        "PRECOMMITTED": LoadState.PREPARED,
        "COMMITTED": LoadState.COMMITTED,
        "VISIBLE": LoadState.COMMITTED,
        "ABORTED": LoadState.ABORTED,
    }
    tasks_in_order = False  # the sequence decides, and loads are committed in order

    def __init__(
        self,
        address: ClusterAddress,
        *,
        two_phase_commit: bool = True,
        compression: str | None = None,
        create_tables: bool = True,
        tables: Mapping[str, Any] | None = None,
        tries: int = 5,
        pause_s: float = 0.2,
        alter_timeout_s: float = ALTER_TIMEOUT_S,
    ) -> None:
        """``compression``: "lz4" for slow networks. The others: see ``ClusterSinkConfig``."""
        super().__init__(
            address,
            create_tables=create_tables,
            tables=tables,
            tries=tries,
            pause_s=pause_s,
            alter_timeout_s=alter_timeout_s,
        )
        self._client = DorisHttp(self._http)
        self._two_phase, self._compression = two_phase_commit, compression
        self._transactions = DorisTransactions(
            self._client, self._sql, self._settings.tries, two_phase=two_phase_commit
        )

    def _hooks(self) -> TableHooks:
        return TableHooks(self._replication, self._new_names, rename_findings=rename_findings)

    def _replication(self) -> int:
        try:
            return min(3, self._client.ask_backends())
        except (SinkUnavailable, TargetMismatch):
            if not self._address.backends:
                raise
            return min(3, len(self._address.backends))  # the user may not list them

    def _new_names(self) -> NameRules:
        rules = DORIS_NAMES if self._variable("enable_unicode_name_support") == "false" else DORIS_UNICODE_NAMES
        return in_lower_case(rules) if self._variable("lower_case_table_names") == "1" else rules

    def _variable(self, name: str) -> str:
        """Return a variable's value in lower case; "" if this version does not have it."""
        try:
            rows = self._sql.rows(f"SHOW VARIABLES LIKE {string_literal(name)}")
        except SqlError:
            return ""
        return next((str(row["Value"]).lower() for row in rows), "")

    def _label_state(self, database: str, label: str) -> str:
        return self._client.state(database, label)

    # ---- checks

    def _check_access(self) -> None:
        self._client.ask_backends()

    def _cluster_findings(self, tables: Sequence[TargetTable]) -> Iterator[Finding]:
        yield from self._version_findings()
        if self._two_phase:
            yield from transaction_findings(self._sql, DORIS.name, tables, self._quotas(), _RAISE_QUOTA)
            databases = {table.name.partition(".")[0] for table in tables} & self._sql.databases()
            yield from self._transactions.findings(sorted(databases))

    def _version_findings(self) -> Iterator[Finding]:
        version = str(next(iter(self._sql.one("SELECT @@version_comment").values())))
        found = re.search(r"(\d+)\.(\d+)\.(\d+)", version)
        if found is None:
            return
        line, patch = (int(found[1]), int(found[2])), int(found[3])
        if line < min(_FIXED_RELEASES) or patch < _FIXED_RELEASES.get(line, 0):
            yield Finding(
                f"{version} can show two rows of one key after a large load, or if the sequence of a table "
                "was enabled after its creation.",
                "Upgrade to 2.0.15, 2.1.6, 3.0.2 or later.",
                fatal=False,
            )

    def _quotas(self) -> dict[str, int]:
        """Return the limit of running transactions of each database; nothing if only administrators may see it."""
        try:
            rows = self._sql.rows("SHOW PROC '/dbs'")
        except (SqlError, TargetMismatch):
            return {}
        return {row["DbName"].rpartition(":")[2]: int(row["TransactionQuota"]) for row in rows}

    def _load_findings(self, table: TargetTable, checked: set[str]) -> Iterator[Finding]:
        try:
            self._client.ask_to_load(table)
        except SinkError as error:
            hint = error.hint.replace("<database>", table.name.partition(".")[0])
            yield Finding(f"{table.name}: {error.message}", hint)

    # ---- loads

    def part_writer(self, table: TargetTable) -> DorisPartWriter:
        """See ``Sink``. Raises: TargetMismatch - the table has changed; SinkUnavailable."""
        self._tables.check_columns(table)
        self._client.backends()  # executors get the lists of hosts, and need not query the FE for every part
        self._http.hosts.refresh()
        return DorisPartWriter(self._client, table, self._settings, self._two_phase, self._compression)

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: SinkCheckpoint) -> None:
        """See ``Sink``."""
        self._checkpoints.check_commit(checkpoint)
        self._commit_each(loads, checkpoint)
        self._record(loads, checkpoint)

    def _is_two_phase(self, load: PreparedLoad) -> bool:
        """Return whether ``load`` waits for the commit. Each load saves it: the setting can change between runs."""
        if "two_phase" in load.detail:
            return bool(load.detail["two_phase"])
        # saved by an older version; a plain load is committed at once
        return self._two_phase or self.state(load) is not LoadState.COMMITTED

    def _send_commit(self, load: PreparedLoad, *, is_retry: bool) -> str | None:
        if not self._is_two_phase(load):
            return None  # the cluster committed it when it was loaded
        if is_retry:
            self._client.backends(fresh=True)
        reply = self._client.finish("commit", database_of(load), load.detail["transaction"])
        if reply.is_ok or _COMMITTED.search(reply.message):
            return None
        self._client.refuse_denied(reply.message)
        return reply.message

    def _discard(self, load: PreparedLoad) -> None:
        context = {"table": load.table, "label": label_of(load)}
        try:
            reply = self._client.finish("abort", database_of(load), load.detail["transaction"])
        except Unreachable as error:
            raise DORIS.unavailable(error, **context) from error
        if not reply.is_ok and self.state(load) is LoadState.PREPARED:
            raise DORIS.unavailable(reply.message, **context)

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """See ``Sink``."""
        self._abort_others(label_prefix(job, incarnation, fence, checkpoint), ())

    def _abort_others(self, prefix: str, kept: Collection[str]) -> None:
        self._transactions.abort(prefix, kept, self._checkpoints.owned)

    def _discard_unfinished(self, mark: SinkCheckpoint) -> None:
        self._abort_others(job_prefix(mark.job, mark.incarnation), ())
