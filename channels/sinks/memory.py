"""A sink for tests, with tables in this process. Tests compare the other sinks with it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from cdc.errors import PreparedLoadLost, TargetMismatch
from cdc.model.batch import LoadName, PreparedLoad, TargetState
from cdc.model.row_keys import newest_rows
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.alter_plan import alter_plan
from channels.sinks.base import AlterStep, Finding, LoadState, SinkCheckpoint, TargetTable, ownership_error
from channels.sinks.key_pages import key_page
from channels.sinks.labels import label_for
from channels.sinks.null_checks import check_nulls


@dataclass(slots=True)
class _MemoryTable:
    target: TargetTable
    rows: pa.Table
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    checkpoints: dict[tuple[str, str], int] = field(default_factory=dict)  # newest, by job and incarnation


class MemorySink:
    """See ``channels.sinks.base.Sink``. Its part writer works only within this process."""

    tasks_in_order = False  # loads commit in order

    def __init__(self, *, create_tables: bool = True) -> None:
        """Start without tables."""
        self._create_tables = create_tables
        self._tables: dict[str, _MemoryTable] = {}
        self._staged: dict[LoadName, pa.Table] = {}
        self._states: dict[LoadName, LoadState] = {}
        self._marks: dict[str, SinkCheckpoint] = {}
        self._owners: dict[str, SinkCheckpoint] = {}
        self._identity: str | None = None
        self._lock = threading.Lock()

    def rows(self, table: str) -> pa.Table:
        """Return the visible rows of a table."""
        return self._tables[table].rows

    def ensure_table(self, table: TargetTable) -> None:
        """See ``Sink``."""
        findings = self.describe(table)
        if not findings:
            return
        if table.name in self._tables or not self._create_tables:
            raise TargetMismatch(findings[0].problem, hint=findings[0].hint, table=table.name)
        schema = pa.schema([pa.field(column.name, column.arrow) for column in table.columns])
        self._tables[table.name] = _MemoryTable(table, schema.empty_table())

    def describe(self, table: TargetTable) -> tuple[Finding, ...]:
        """See ``Sink``."""
        known = self._tables.get(table.name)
        if known is None:
            return (Finding(f"There is no table {table.name}.", "Set `sink.create_tables: true`."),)
        shape = [(column.name, column.arrow) for column in table.columns]
        if shape != [(column.name, column.arrow) for column in known.target.columns] or table.key != known.target.key:
            return (Finding(f"Table {table.name} has other columns or another key.", "Choose another target."),)
        return ()

    def check(self, tables: Iterable[TargetTable]) -> tuple[Finding, ...]:
        """See ``Sink``."""
        if self._create_tables:
            tables = [table for table in tables if table.name in self._tables]
        return tuple(finding for table in tables for finding in self.describe(table))

    def ddl(self, table: TargetTable) -> str:
        """See ``Sink``."""
        columns = ", ".join(f"{column.name} {column.arrow}" for column in table.columns)
        return f"{table.name}({columns}; key {', '.join(table.key)})"

    def part_writer(self, table: TargetTable) -> MemoryPartWriter:
        """See ``Sink``."""
        return MemoryPartWriter(self, table)

    def acquire_ownership(self, mark: SinkCheckpoint, targets: Sequence[str]) -> None:
        """See ``Sink``."""
        with self._lock:
            known = self._owners.get(mark.job)
            if known is not None and known.incarnation != mark.incarnation and known.sequence >= mark.sequence:
                raise ownership_error(known)
            self._owners[mark.job] = mark

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: SinkCheckpoint) -> None:
        """See ``Sink``."""
        with self._lock:
            acquired = self._owners.get(checkpoint.job)
            if acquired is not None and acquired.incarnation != checkpoint.incarnation:
                raise ownership_error(acquired)
            last = self._marks.get(checkpoint.job)
            is_own = last is not None and last.incarnation == checkpoint.incarnation
            if last is not None and is_own and last.checkpoint > checkpoint.checkpoint:
                raise ownership_error(last)
            due = [load for load in sorted(loads, key=lambda load: load.name) if not self._is_committed(load)]
            lost = [label_for(load.name) for load in due if load.name not in self._staged]
            if lost:
                raise PreparedLoadLost(
                    "Loads do not exist.", hint="The job loads them again automatically.", labels=lost
                )
            for load in due:
                table = self._tables[load.table]
                table.rows = _merged(table, self._staged.pop(load.name))
                table.checkpoints[checkpoint.job, checkpoint.incarnation] = checkpoint.checkpoint
                self._states[load.name] = LoadState.COMMITTED
            self._marks[checkpoint.job] = checkpoint

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """See ``Sink``."""
        with self._lock:
            for name in list(self._staged):
                if (name.job, name.incarnation, name.fence, name.checkpoint) == (job, incarnation, fence, checkpoint):
                    del self._staged[name]
                    self._states[name] = LoadState.ABORTED

    def state(self, load: PreparedLoad) -> LoadState:
        """See ``Sink``."""
        return self._states.get(load.name, LoadState.UNKNOWN)

    def last_checkpoint(self, job: str) -> SinkCheckpoint | None:
        """See ``Sink``."""
        return self._marks.get(job)

    def identity(self, *, create: bool) -> str | None:
        """See ``Sink``."""
        if create and self._identity is None:
            self._identity = uuid.uuid4().hex
        return self._identity

    def target_states(self, job: str, incarnation: str, targets: Sequence[str]) -> Mapping[str, TargetState]:
        """See ``Sink``."""
        tables = {name: self._tables[name] for name in targets if name in self._tables}
        return {
            name: TargetState(table.identity, table.checkpoints.get((job, incarnation), -1))
            for name, table in tables.items()
        }

    def keys(self, table: TargetTable, after: pa.Table | None, limit: int) -> pa.Table:
        """See ``KeyLister``."""
        return key_page(self.rows(table.name).select(list(table.key)), after, limit)

    @property
    def alters_in_one_commit(self) -> bool:
        """See ``TableAlterer``."""
        return True

    def check_steps(self, table: TargetTable, steps: Sequence[AlterStep]) -> tuple[Finding, ...]:
        """See ``TableAlterer``."""
        known = self._tables.get(table.name)
        try:
            if known is not None:
                alter_plan(table.name, known.target.columns, known.target.key, steps)
        except TargetMismatch as error:
            return (Finding(error.message, error.hint),)
        return ()

    def alter(self, table: TargetTable, steps: Sequence[AlterStep], mark: SinkCheckpoint) -> None:
        """See ``TableAlterer``."""
        with self._lock:
            acquired, known = self._owners.get(mark.job), self._tables.get(table.name)
            if acquired is not None and acquired.incarnation != mark.incarnation:
                raise ownership_error(acquired)
            if known is None or known.checkpoints.get((mark.job, mark.incarnation)) == mark.checkpoint:
                return
            plan = alter_plan(table.name, known.target.columns, known.target.key, steps)
            plan.check_filled(table.name, known.rows)
            columns = tuple(one.column for one in plan.columns)
            schema = pa.schema([pa.field(column.name, column.arrow) for column in columns])
            parts = list(plan.rows(known.rows, schema))
            known.rows = pa.concat_tables([schema.empty_table(), *parts])
            known.target = replace(known.target, columns=columns)
            known.checkpoints[mark.job, mark.incarnation] = mark.checkpoint
            self._marks[mark.job] = mark

    @property
    def alter_progress(self) -> None:
        """See ``TableAlterer``. Each change is immediate."""

    def stop_altering(self) -> None:
        """See ``TableAlterer``. No call waits."""

    def close(self) -> None:
        """See ``Sink``. There are no connections."""

    def stage(self, name: LoadName, rows: pa.Table) -> None:
        """Store a part until its commit. Parts of aborted loads are discarded."""
        with self._lock:
            if self._states.get(name) not in (LoadState.ABORTED, LoadState.COMMITTED):
                self._staged[name] = rows
                self._states[name] = LoadState.PREPARED

    def _is_committed(self, load: PreparedLoad) -> bool:
        return self._states.get(load.name) is LoadState.COMMITTED


@dataclass(frozen=True, slots=True)
class MemoryPartWriter:
    """See ``channels.sinks.base.PartWriter``."""

    sink: MemorySink
    table: TargetTable

    def __call__(self, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        """See ``PartWriter``."""
        table = pa.Table.from_batches(rows)
        if not table.num_rows:
            return None
        check_nulls(self.table, table)
        names = [column.name for column in self.table.columns]
        for kept in self.table.kept:
            table = table.append_column(kept, pa.nulls(table.num_rows))
        self.sink.stage(name, table.select([*names, *self.table.kept, DELETED]))
        return PreparedLoad(name, self.table.name, table.num_rows, table.nbytes)


def _merged(table: _MemoryTable, load: pa.Table) -> pa.Table:
    """Return the newest row of each key of the table and then of ``load``, without deleted ones."""
    names = table.rows.schema.names
    old = table.rows.append_column(DELETED, pa.repeat(pa.scalar(False), table.rows.num_rows))
    both = pa.concat_tables([old, load.select(old.schema.names).cast(old.schema)])
    both = both.append_column(SEQUENCE, pa.array(range(both.num_rows), pa.int64()))
    newest = newest_rows(both, table.target.key)
    return newest.filter(pa.compute.invert(newest.column(DELETED))).select(names)
