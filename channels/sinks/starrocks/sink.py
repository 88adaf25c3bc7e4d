"""StarRocks: loads into Primary-key tables by the transaction interface, in one of two modes.

Single mode: a load is a transaction under the label of its LoadName. An executor prepares it, the driver commits it.
Multi mode (4.0.7 and later, targets in one database, see ``transaction_mode``): all loads of a checkpoint and the row
of ``cdc_checkpoints`` are one shared transaction. Nothing is prepared after a crash, so if anything fails before
the commit, all loads are replayed; and ``cdc_checkpoints`` proves if it was committed.

Source: StarRocks manual, "Load data using Stream Load transaction interface"; see ``loader`` and ``client``.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from cdc.errors import CdcError, TargetMismatch
from cdc.model.batch import PreparedLoad
from channels.sinks.base import Finding, LoadState, SinkCheckpoint, TargetTable
from channels.sinks.labels import job_prefix, label_for, label_prefix
from channels.sinks.starrocks.client import LoadTransaction, StarrocksHttp, StarrocksReply
from channels.sinks.starrocks.errors import STARROCKS
from channels.sinks.starrocks.loader import StarrocksPartWriter, roll_back, shared_label
from channels.sinks.starrocks.names import STARROCKS_NAMES
from channels.sinks.starrocks.orphans import OrphanTransactions, is_shared
from channels.sinks.starrocks.shared_transaction import COMMIT_WAIT_S, RolledBack, SharedTransaction
from channels.sinks.starrocks.table import STARROCKS_TABLES
from channels.sinks.starrocks.transaction_mode import TransactionMode
from channels.sinks.stream_load.alter import ALTER_TIMEOUT_S
from channels.sinks.stream_load.http import ClusterAddress, Unreachable
from channels.sinks.stream_load.messages import SqlError
from channels.sinks.stream_load.sink import ClusterSink, by_table, label_of
from channels.sinks.stream_load.table import transaction_findings
from channels.sinks.stream_load.target_tables import TableHooks

logger = logging.getLogger(__name__)

_RENAME_FROM = (3, 3, 2)
_LIGHT_FROM = (3, 3, 0)  # in shared storage too; older tables have the setting of the cluster
_LIGHT = {"fast_schema_evolution": "true"}


class StarrocksSink(ClusterSink):
    """See ``channels.sinks.base.Sink``."""

    messages, rules = STARROCKS, STARROCKS_TABLES
    datetime_digits = 6
    prepared_word = "PREPARED"
    states: ClassVar = {
        "PREPARE": LoadState.PREPARED,  # the last state before a commit in multi mode; in single mode it is short
        "PREPARED": LoadState.PREPARED,
        "COMMITTED": LoadState.COMMITTED,
        "VISIBLE": LoadState.COMMITTED,
        "ABORTED": LoadState.ABORTED,
    }

    def __init__(
        self,
        address: ClusterAddress,
        *,
        databases: Sequence[str],
        multi_table: str = "auto",
        parses_documents: bool = False,
        create_tables: bool = True,
        tables: Mapping[str, Any] | None = None,
        tries: int = 5,
        pause_s: float = 0.2,
        alter_timeout_s: float = ALTER_TIMEOUT_S,
    ) -> None:
        """``databases``: of all targets. ``multi_table``: auto, on or off. The others: see ``ClusterSinkConfig``.

        ``parses_documents``: the source does not guarantee that the values of JSON columns are JSON.
        """
        super().__init__(
            address,
            create_tables=create_tables,
            tables=tables,
            tries=tries,
            pause_s=pause_s,
            alter_timeout_s=alter_timeout_s,
        )
        self._databases, self._multi_table = sorted(set(databases)), multi_table
        self._parses_documents = parses_documents
        self._client = StarrocksHttp(self._http)
        self._mode = TransactionMode(self._sql, self._databases, multi_table)
        self._shared = SharedTransaction(self._client, tries, pause_s)
        self._orphans = OrphanTransactions(self._client, self._sql, self._databases, tries)
        self._losses: dict[tuple[int, int], int] = {}  # see shared_label
        self._reported: set[str] = set()  # labels of shared transactions whose rejection was reported
        self._has_cleaned_up = False

    def _hooks(self) -> TableHooks:
        return TableHooks(
            self._replication,
            lambda: STARROCKS_NAMES,
            note=lambda table, statement: self._mode.note_table(table, statement),
            before_create=lambda: self._mode.refuse(),
            properties=lambda: _LIGHT if self._mode.is_from(_LIGHT_FROM) else {},
            rename_findings=lambda table, statement: self._rename_findings(),
        )

    def _rename_findings(self, *, fatal: bool = True) -> Iterator[Finding]:
        if not self._mode.is_from(_RENAME_FROM):
            problem = "StarRocks renames columns from 3.3.2 on, and this cluster is older."
            yield Finding(problem, "Upgrade StarRocks.", fatal)

    def _replication(self) -> int | None:
        """Return the number of running backends, at most 3; None if it is unknown. Shared storage needs one replica."""
        running = self._running_backends()
        if running is None:
            return min(3, len(self._address.backends)) or None
        return max(1, min(3, sum(running)))

    def _running_backends(self) -> list[bool] | None:
        """Return which backends run; [] if the cluster has only compute nodes; None if the user may not see them."""
        try:
            return [str(row["Alive"]).lower() == "true" for row in self._sql.rows("SHOW BACKENDS")]
        except (SqlError, TargetMismatch):
            return None

    def _label_state(self, database: str, label: str) -> str:
        return self._client.state(database, label)

    @property
    def tasks_in_order(self) -> bool:
        """See ``Sink``: within one transaction the rows of a key are in the order of its loads."""
        return self._mode.is_multi()

    # ---- tables

    def ensure_table(self, table: TargetTable) -> None:
        """See ``Sink``."""
        self._mode.refuse()  # an impossible setting is refused before anything is created
        super().ensure_table(table)
        self._mode.refuse()

    def _check_access(self) -> None:
        self._client.state(self._databases[0], "cdc-check")  # some clusters require INSERT on the database for it
        self._mode.why_not()

    def _cluster_findings(self, tables: Sequence[TargetTable]) -> Iterator[Finding]:
        why = self._mode.why_not()
        if why and self._multi_table != "off":
            problem = f"Tables become visible one by one, not in one transaction: {why}"
            is_fatal = self._multi_table == "on"
            yield Finding(problem, "If this is acceptable, set sink.multi_table: off.", is_fatal)
        if (running := self._running_backends()) and not any(running):
            yield Finding("StarRocks has no backend alive.", "Check SHOW BACKENDS on the FE.")
        if why:
            yield from transaction_findings(self._sql, STARROCKS.name, tables)
        yield from self._orphans.findings()
        yield from self._rename_findings(fatal=False)

    def _load_findings(self, table: TargetTable, checked: set[str]) -> Iterator[Finding]:
        """Begin a transaction and roll it back: this needs the privilege and a backend, and changes nothing."""
        database, _, name = table.name.partition(".")
        if database in checked:
            return  # one per database, because each check uses a label, and StarRocks keeps only some labels
        checked.add(database)
        transaction = LoadTransaction(database, f"cdc-check-{uuid.uuid4().hex[:12]}", name)
        context = {"table": table.name}
        try:
            reply = self._client.ask("begin", transaction, timeout="30")
            if reply.is_ok:
                roll_back(self._client, transaction)
                return
            STARROCKS.raise_refused(reply.message, self._address.username, context)
            raise STARROCKS.unavailable(reply.message, **context)
        except Unreachable as error:
            hint = error.hint or "Check that FE and BE run and can be reached."
            yield Finding(f"{table.name}: StarRocks begins no load: {error}", hint)
        except CdcError as error:
            yield Finding(f"{table.name}: {error.message}", error.hint.replace("<database>", database))

    # ---- loads

    def acquire_ownership(self, mark: SinkCheckpoint, targets: Sequence[str]) -> None:
        """See ``Sink``. Existing tables are added to the mode here, because a replay comes before ``ensure_table``."""
        super().acquire_ownership(mark, targets)
        if self._mode.why_not() is None:
            for name in targets:
                if "*" not in name and (statement := self._tables.statement(name)) is not None:
                    self._mode.note_table(name, statement)

    def part_writer(self, table: TargetTable) -> StarrocksPartWriter:
        """See ``Sink``. Raises: TargetMismatch - the table has changed; SinkLimitExceeded, SinkUnavailable."""
        is_multi = self._mode.is_multi()
        self._tables.check_columns(table)
        self._http.hosts.refresh()  # executors get the list, because they have no SQL connection
        losses = dict(self._losses)
        return StarrocksPartWriter(self._client, table, self._settings, is_multi, losses, self._parses_documents)

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: SinkCheckpoint) -> None:
        """See ``Sink``. Each load stores if it is in a shared transaction."""
        self._checkpoints.check_commit(checkpoint)
        shared = [load for load in loads if "transaction" in load.detail]
        # after a change of the mode, replayed loads are shared and the others are not
        self._commit_each([load for load in loads if "transaction" not in load.detail], checkpoint)
        if shared:
            self._commit_shared(shared, checkpoint)
            return
        self._record(loads, checkpoint)
        if not self._has_cleaned_up:
            self._has_cleaned_up = True
            self._orphans.roll_back_earlier_runs(checkpoint)

    def _send_commit(self, load: PreparedLoad, *, is_retry: bool) -> str | None:
        reply = self._client.ask("commit", _transaction_of(load), timeout=str(COMMIT_WAIT_S))
        return None if reply.is_ok else reply.message

    def _discard(self, load: PreparedLoad) -> None:
        self._shared.is_rolled_back(_transaction_of(load))

    def _commit_shared(self, loads: Sequence[PreparedLoad], checkpoint: SinkCheckpoint) -> None:
        transactions = {(load.detail["label"], load.detail["transaction"]) for load in loads}
        whole = replace(_transaction_of(loads[0]), table="", multi=True)
        reply = StarrocksReply("", "its loads are in different transactions")
        if not all(map(self._has_columns, by_table(loads).values())):
            reply = StarrocksReply("", "a table no longer has all columns")
        elif len(transactions) == 1:
            self._checkpoints.create(whole.database)
            reply = self._shared.commit(whole, loads[0].detail["transaction"], checkpoint)
        # roll back before the replay, so that these loads can never be committed later
        if reply.is_ok or not self._shared.is_rolled_back(whole):
            self._await_visible(loads, [whole.label])
            self._visibility.check(loads[0].table)  # a run that starts compares cdc_checkpoints with its state
            return
        if self._is_recorded(checkpoint):
            return
        if loads[0].name.fence == checkpoint.fence and whole.label not in self._reported:
            # report a rejection once; on the next attempt the transaction no longer exists and the rows are replayed
            self._reported.add(whole.label)
            STARROCKS.raise_refused(
                reply.message, self._address.username, {"label": whole.label},
                lambda: self._client.rejected_rows(reply), multi=True,
            )  # fmt: skip
        logger.info("%s is replayed: %s %s", whole.label, reply.status, reply.message)
        of_run = (loads[0].name.fence, checkpoint.checkpoint)
        for key in {of_run, (checkpoint.fence, checkpoint.checkpoint)}:
            self._losses[key] = self._losses.get(key, 0) + 1
        raise STARROCKS.loads_lost([label_for(load.name) for load in loads], reply.message)

    # ---- abort

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """See ``Sink``."""
        prefix = label_prefix(job, incarnation, fence, checkpoint)
        if self._mode.may_have_been():
            known = self._losses.get((fence, checkpoint), 0)
            for losses in itertools.count():  # another process may have begun more of them
                label = shared_label(job, incarnation, fence, checkpoint, {(fence, checkpoint): losses})
                result = self._shared.roll_back(LoadTransaction(self._databases[0], label, multi=True))
                if losses >= known and result is RolledBack.MISSING:
                    break
        self._orphans.roll_back(lambda label: label.startswith(prefix))

    def _discard_unfinished(self, mark: SinkCheckpoint) -> None:
        # a shared transaction is not listed before its commit; a committed one stays
        for checkpoint in (mark.checkpoint - 1, mark.checkpoint):
            self.abort(mark.job, mark.incarnation, mark.fence, checkpoint)
        prefix = job_prefix(mark.job, mark.incarnation)
        self._orphans.roll_back(lambda label: label.startswith(prefix))

    def _abort_others(self, prefix: str, kept: Collection[str]) -> None:
        self._orphans.roll_back(lambda label: label.startswith(prefix) and label not in kept and not is_shared(label))


def _transaction_of(load: PreparedLoad) -> LoadTransaction:
    database, _, table = load.table.partition(".")
    return LoadTransaction(database, label_of(load), table)
