"""The sink that Doris and StarRocks share: checks, ownership, and the commit of each table's loads in order.

The cluster remembers a committed load under its label for hours or days. ``cdc_checkpoints`` remembers it for good.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from cdc.errors import PreparedLoadLost, SinkError
from cdc.model.batch import PreparedLoad, TargetState
from channels.sinks.base import AlterStep, Finding, LoadState, SinkCheckpoint, TargetTable
from channels.sinks.labels import label_for, label_prefix
from channels.sinks.stream_load.alter import ALTER_TIMEOUT_S, AlteringSink, ColumnAlterer, light_findings
from channels.sinks.stream_load.checkpoints import CheckpointTable
from channels.sinks.stream_load.checksums import ChecksumProbe
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.http import ClusterAddress, HttpClient, Unreachable
from channels.sinks.stream_load.key_pages import KeyPages
from channels.sinks.stream_load.loader import LoadSettings, attempts
from channels.sinks.stream_load.login import unguarded_findings
from channels.sinks.stream_load.messages import ProductMessages
from channels.sinks.stream_load.rows import ClusterRows
from channels.sinks.stream_load.statements import TableRules
from channels.sinks.stream_load.target_tables import TableHooks, TargetTables
from channels.sinks.stream_load.visibility import LoadVisibility

T = TypeVar("T")
_COMMIT_THREADS = 8


class ClusterSink(AlteringSink, ABC):
    """See ``channels.sinks.base.Sink``. A product adds its requests, its states and its kind of transaction."""

    messages: ClassVar[ProductMessages]
    rules: ClassVar[TableRules]
    states: ClassVar[Mapping[str, LoadState]]  # of the product's words; all other words mean UNKNOWN
    datetime_digits: ClassVar[int]  # of a DATETIME without parameters
    prepared_word: ClassVar[str]  # the product's word for a load that can be committed

    def __init__(
        self,
        address: ClusterAddress,
        *,
        create_tables: bool = True,
        tables: Mapping[str, Any] | None = None,
        tries: int = 5,
        pause_s: float = 0.2,
        alter_timeout_s: float = ALTER_TIMEOUT_S,
    ) -> None:
        """``tables``: buckets, replication, partition and properties of new tables."""
        self._address, self._settings = address, LoadSettings(tries, pause_s)
        self._http, self._sql = HttpClient(address), FrontendSql(address, self.messages)
        self._http.hosts.use(self._sql.nodes)
        hooks = self._hooks()
        self._tables = TargetTables(self._sql, self.rules, hooks, can_create=create_tables, options=tables)
        self._alterer = ColumnAlterer(self._sql, self._tables, self.rules, hooks, alter_timeout_s)
        self._checkpoints = CheckpointTable(self._sql, self._tables.checkpoints_statement)
        self._keys = KeyPages(self._sql)
        self._probe = ChecksumProbe(self._sql, self.datetime_digits)
        self._visibility = LoadVisibility(self.messages, self._label_state)
        self._threads = ThreadPoolExecutor(_COMMIT_THREADS, f"{self.messages.name.lower()}-commit")

    # ---- hooks of a product

    @abstractmethod
    def _hooks(self) -> TableHooks: ...

    @abstractmethod
    def _label_state(self, database: str, label: str) -> str:
        """Return the state of a label, in the product's word. Raises: SinkUnavailable, TargetMismatch."""

    @abstractmethod
    def _check_access(self) -> None:
        """Ask the HTTP side for something that needs the account. Raises: SinkError."""

    @abstractmethod
    def _cluster_findings(self, tables: Sequence[TargetTable]) -> Iterator[Finding]:
        """Find problems of the cluster, in contrast to those of single tables."""

    @abstractmethod
    def _load_findings(self, table: TargetTable, checked: set[str]) -> Iterator[Finding]:
        """Find out if the account may load into an existing table. ``checked``: for the databases done so far."""

    @abstractmethod
    def _send_commit(self, load: PreparedLoad, *, is_retry: bool) -> str | None:
        """Return None if ``load`` is committed, else the server's text.

        Raises: Unreachable, SinkUnavailable, TargetMismatch.
        """

    @abstractmethod
    def _discard(self, load: PreparedLoad) -> None:
        """Abort a load unless it is committed. Raises: SinkUnavailable - its state is unknown."""

    @abstractmethod
    def _abort_others(self, prefix: str, kept: Collection[str]) -> None:
        """Abort unfinished loads whose label begins with ``prefix`` and is not one of ``kept``.

        Loads that the user may not see stay until they expire. Raises: SinkUnavailable - a load cannot be aborted.
        """

    @abstractmethod
    def _discard_unfinished(self, mark: SinkCheckpoint) -> None:
        """Abort all loads of the job that are not committed, also shared ones. Raises: see ``_abort_others``."""

    # ---- tables

    def ensure_table(self, table: TargetTable) -> None:
        """See ``Sink``."""
        self._tables.ensure(table)

    def describe(self, table: TargetTable) -> tuple[Finding, ...]:
        """Find everything that keeps the job from loading into ``table``."""
        return self._tables.findings(table)

    def ddl(self, table: TargetTable) -> str:
        """See ``Sink``. Raises: TargetMismatch - the product has no type for a column."""
        return self._tables.create_statement(table)

    def check(self, tables: Iterable[TargetTable]) -> tuple[Finding, ...]:
        """See ``Sink``."""
        address, tables = self._address, list(tables)
        found = [*unguarded_findings(self.messages.name, {*address.fe, *address.backends}, address.tls)]
        try:
            self._sql.ask("SELECT 1")
            self._check_access()
        except SinkError as error:
            problem = f"{error.message} ({error.location})." if error.location else error.message
            return (*found, Finding(problem, error.hint))
        of_tables = list(self._table_findings(tables))  # first, because StarRocks' mode depends on the tables
        return (*found, *self._cluster_findings(tables), *of_tables)

    def _table_findings(self, tables: Iterable[TargetTable]) -> Iterator[Finding]:
        checked: set[str] = set()
        for table in tables:
            described = self._tables.describe(table.name)
            can_be_missing = self._tables.can_create and described is None
            yield from self._tables.creation_findings(table) if can_be_missing else self._tables.findings(table)
            if described is not None:
                yield from self._load_findings(table, checked)
                yield from light_findings(table, described[1], self.rules)

    # ---- changes of columns

    def alter(self, table: TargetTable, steps: Sequence[AlterStep], mark: SinkCheckpoint) -> None:
        """See ``TableAlterer``. Loads of a killed run are discarded first: the cluster's job would wait for them."""
        self._checkpoints.check_commit(mark)
        self._discard_unfinished(mark)
        self._alterer.alter(table, steps, lambda: self._checkpoints.check_commit(mark))

    # ---- rows

    def keys(self, table: TargetTable, after: pa.Table | None, limit: int) -> pa.Table:
        """See ``KeyLister``. Raises also TargetMismatch - the keys cannot be read exactly."""
        self._visibility.check(table.name)
        return self._keys.page(table, after, limit)

    def row_reader(self, table: TargetTable, columns: Sequence[str]) -> ClusterRows:
        """See ``RowSource``."""
        self._visibility.check(table.name)
        return ClusterRows(self._sql, self._probe, table, columns)

    # ---- ownership and checkpoints

    def acquire_ownership(self, mark: SinkCheckpoint, targets: Sequence[str]) -> None:
        """See ``Sink``: write the row of ``cdc_checkpoints``, read it back, and check it again at each commit.

        Loads of another incarnation that owned the sink are aborted.
        """
        existing = self._sql.databases()
        databases = {target.partition(".")[0] for target in targets}
        owned = databases if self._tables.can_create else databases & existing
        for database in sorted(owned - existing):
            self._tables.create_database(database, database)
        self._checkpoints.acquire_ownership(owned, mark)
        self._discard_replaced()

    def _discard_replaced(self) -> None:
        """Abort the loads of other incarnations that owned the sink before. Raises: see ``_abort_others``.

        A frozen run of one, which checked its ownership before it was frozen, could commit its prepared loads later.
        """
        replaced = self._checkpoints.replaced
        while replaced:
            known = replaced[-1]
            self._discard_unfinished(replace(known, checkpoint=known.checkpoint + 1))  # the one that it prepares
            replaced.pop()  # a repeat after an error continues here

    def last_checkpoint(self, job: str) -> SinkCheckpoint | None:
        """See ``Sink``."""
        return self._checkpoints.newest(job)

    def identity(self, *, create: bool) -> str | None:
        """See ``Sink``. The tables of a cluster prove their identity one by one."""
        return "cluster"

    def identities(self, targets: Sequence[str]) -> Mapping[str, str]:
        """See ``TargetChecker``: the creation times."""
        return self._sql.creation_times(targets)

    def target_states(self, job: str, incarnation: str, targets: Sequence[str]) -> Mapping[str, TargetState]:
        """See ``Sink``: the creation time of a table, and the checkpoint of its database in ``cdc_checkpoints``.

        Not detected: one table that was truncated, or restored from a backup with its creation time.
        """
        return self._checkpoints.states(job, incarnation, targets)

    def _record(self, loads: Iterable[PreparedLoad], mark: SinkCheckpoint) -> None:
        for database in sorted({database_of(load) for load in loads}):
            self._checkpoints.record(database, mark)

    def _is_recorded(self, mark: SinkCheckpoint) -> bool:
        return self._checkpoints.is_recorded(mark.job, mark.incarnation, mark.checkpoint)

    # ---- commit

    def _commit_each(self, loads: Sequence[PreparedLoad], checkpoint: SinkCheckpoint) -> None:
        """Commit the tables in parallel, and the loads of each table in the order of Tasks and parts."""
        if any(load.name.attempt for load in loads):
            kept = {label_of(load) for load in loads}
            for fence in sorted({*range(min(load.name.fence for load in loads), checkpoint.fence + 1)}):
                prefix = label_prefix(checkpoint.job, checkpoint.incarnation, fence, checkpoint.checkpoint)
                self._abort_others(prefix, kept)
        jobs = [self._threads.submit(self._commit_table, found) for found in by_table(loads).values()]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        for error in errors:
            if not isinstance(error, PreparedLoadLost):
                raise error
        if errors and not self._is_recorded(checkpoint):
            labels = [label for error in errors for label in error.context["labels"]]  # type: ignore[attr-defined]
            raise self.messages.loads_lost(labels, errors[0].context["reason"])  # type: ignore[attr-defined]

    def _commit_table(self, loads: Sequence[PreparedLoad]) -> None:
        self._abort_mismatched(loads)
        for number, load in enumerate(loads):
            if (reason := self._commit_load(load)) is not None:
                # the whole table is replayed: a frozen process must not commit the rest of this attempt later
                for other in loads[number + 1 :]:
                    self._discard(other)
                raise self.messages.loads_lost([label_for(load.name)], reason)
        self._await_visible(loads, [label_of(load) for load in loads])

    def _has_columns(self, loads: Sequence[PreparedLoad]) -> bool:
        """Return True if the table of ``loads`` still has all columns that they were written with."""
        names = {str(name) for load in loads for name in load.detail.get("columns", ())}
        return self._tables.has_columns(loads[0].table, names)

    def _abort_mismatched(self, loads: Sequence[PreparedLoad]) -> None:
        """Abort ``loads`` and raise PreparedLoadLost if their table no longer has all their columns."""
        if not self._has_columns(loads):
            for load in loads:
                self._discard(load)
            reason = f"{loads[0].table} no longer has all columns of the loads"
            raise self.messages.loads_lost([label_for(load.name) for load in loads], reason)

    def _commit_load(self, load: PreparedLoad) -> str | None:
        """Return None if the load is committed, the server's text if the cluster no longer has it.

        An answer can be lost, so the state of the label decides. Raises: SinkUnavailable, SinkBusy.
        """
        label = label_of(load)
        reason: object = "no answer"
        context = {"table": load.table, "label": label}
        for number in attempts(self._settings.tries, 2 * self._settings.pause_s, 2.0):
            try:
                refusal = self._send_commit(load, is_retry=number > 0)
            except Unreachable as error:
                reason = error
                continue
            if refusal is None:
                return None
            reason = refusal
            word = self._label_state(database_of(load), label)
            if self.states.get(word) is LoadState.COMMITTED:
                return None
            if word != self.prepared_word:
                return refusal
            self.messages.raise_refused(refusal, self._address.username, context)
        raise self.messages.unavailable(reason, **context)

    def _await_visible(self, loads: Sequence[PreparedLoad], labels: Sequence[str]) -> None:
        """Wait until ``labels``, those of ``loads``, are visible, or for the time limit."""
        self._visibility.wait(database_of(loads[-1]), labels, {load.table for load in loads})

    def state(self, load: PreparedLoad) -> LoadState:
        """See ``Sink``."""
        found = self.states.get(self._label_state(database_of(load), label_of(load)), LoadState.UNKNOWN)
        if found is not LoadState.UNKNOWN:
            return found
        # the cluster forgets labels, cdc_checkpoints does not
        known = self._checkpoints.is_recorded(load.name.job, load.name.incarnation, load.name.checkpoint)
        return LoadState.COMMITTED if known else LoadState.UNKNOWN

    def close(self) -> None:
        """See ``Sink``."""
        self._threads.shutdown(wait=True)
        self._http.close()
        self._sql.close()


def by_table(loads: Sequence[PreparedLoad]) -> dict[str, list[PreparedLoad]]:
    """Return the loads of each table, in the order of Tasks and parts."""
    found: dict[str, list[PreparedLoad]] = {}
    for load in sorted(loads, key=lambda load: load.name):
        found.setdefault(load.table, []).append(load)
    return found


def abort_until_none(
    databases: Iterable[str],
    find: Callable[[str], Sequence[T]],
    abort: Callable[[str, T], None],
    tries: int,
    messages: ProductMessages,
    **context: object,
) -> None:
    """Abort what ``find`` returns until it returns nothing. Raises: SinkUnavailable - not after ``tries``."""
    for database in databases:
        for _ in range(tries):
            found = find(database)
            if not found:
                break
            for each in found:
                abort(database, each)
        else:
            raise messages.unavailable("prepared loads do not end", database=database, **context)


def database_of(load: PreparedLoad) -> str:
    """Return the database of a load's table."""
    return load.table.partition(".")[0]


def label_of(load: PreparedLoad) -> str:
    """Return the label of a load, also of one that an older version saved."""
    return str(load.detail.get("label", label_for(load.name)))
