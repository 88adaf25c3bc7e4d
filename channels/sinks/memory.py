"""The sink for tests: tables in this process. The model that the other sinks are held against."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc.batch import LoadName, PreparedLoad, TargetState
from cdc.errors import LoadLost, TargetMismatch
from cdc.schema import DELETED, SEQUENCE
from channels.label import label_for
from channels.sinks.base import CheckpointMark, Finding, LoadState, TargetTable, foreign
from channels.sinks.nulls import check_nulls
from spark.newest import newest_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class _Table:
    target: TargetTable
    rows: pa.Table
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    checkpoints: dict[tuple[str, str], int] = field(default_factory=dict)  # newest, by job and incarnation


class MemorySink:
    """See ``channels.sinks.base.Sink``. Its part writer works within this process alone."""

    tasks_in_order = False  # loads commit in order

    def __init__(self, *, create_tables: bool = True) -> None:
        """Starts without tables."""
        self._create_tables = create_tables
        self._tables: dict[str, _Table] = {}
        self._staged: dict[LoadName, pa.Table] = {}
        self._states: dict[LoadName, LoadState] = {}
        self._marks: dict[str, CheckpointMark] = {}
        self._claims: dict[str, CheckpointMark] = {}
        self._identity: str | None = None
        self._lock = threading.Lock()

    def rows(self, table: str) -> pa.Table:
        """The table's rows, as a reader sees them."""
        return self._tables[table].rows

    def ensure_table(self, table: TargetTable) -> None:
        """See ``Sink``."""
        findings = self.describe(table)
        if not findings:
            return
        if table.name in self._tables or not self._create_tables:
            raise TargetMismatch(findings[0].problem, mend=findings[0].mend, table=table.name)
        schema = pa.schema([pa.field(column.name, column.arrow) for column in table.columns])
        self._tables[table.name] = _Table(table, schema.empty_table())

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

    def prepare(self, frame: DataFrame, name: LoadName, table: TargetTable) -> tuple[PreparedLoad, ...]:
        """See ``Sink``."""
        load = self.part_writer(table)(name, iter(frame.toArrow().to_batches()))
        return (load,) if load is not None else ()

    def claim(self, mark: CheckpointMark, targets: Sequence[str]) -> None:
        """See ``Sink``."""
        with self._lock:
            known = self._claims.get(mark.job)
            if known is not None and known.incarnation != mark.incarnation and known.sequence >= mark.sequence:
                raise foreign(known)
            self._claims[mark.job] = mark

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        """See ``Sink``."""
        with self._lock:
            claimed = self._claims.get(checkpoint.job)
            if claimed is not None and claimed.incarnation != checkpoint.incarnation:
                raise foreign(claimed)
            last = self._marks.get(checkpoint.job)
            is_own = last is not None and last.incarnation == checkpoint.incarnation
            if last is not None and is_own and last.checkpoint > checkpoint.checkpoint:
                raise foreign(last)
            due = [load for load in sorted(loads, key=lambda load: load.name) if not self._is_committed(load)]
            lost = [label_for(load.name) for load in due if load.name not in self._staged]
            if lost:
                raise LoadLost("Loads are gone.", mend="They are loaded again by themselves.", labels=lost)
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

    def last_checkpoint(self, job: str) -> CheckpointMark | None:
        """See ``Sink``."""
        return self._marks.get(job)

    def identity(self, *, create: bool) -> str | None:
        """See ``Sink``."""
        if create and self._identity is None:
            self._identity = uuid.uuid4().hex
        return self._identity

    def repair(self, target: str) -> None:
        """See ``Sink``: there is nothing to repair."""

    def target_states(self, job: str, incarnation: str, targets: Sequence[str]) -> Mapping[str, TargetState]:
        """See ``Sink``."""
        tables = {name: self._tables[name] for name in targets if name in self._tables}
        return {
            name: TargetState(table.identity, table.checkpoints.get((job, incarnation), -1))
            for name, table in tables.items()
        }

    @property
    def tells_keys(self) -> bool:
        """See ``Sink``."""
        return True

    def keys(self, table: TargetTable) -> pa.Table | None:
        """See ``Sink``."""
        return self.rows(table.name).select(list(table.key))

    def maintain(self, tables: Iterable[TargetTable]) -> None:
        """See ``Sink``: there is nothing to do."""

    def close(self) -> None:
        """See ``Sink``: there is nothing to let go."""

    def stage(self, name: LoadName, rows: pa.Table) -> None:
        """Keep a part until its commit; of an aborted name nothing is kept."""
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
        self.sink.stage(name, table.select([*names, DELETED]))
        return PreparedLoad(name, self.table.name, table.num_rows, table.nbytes)


def _merged(table: _Table, load: pa.Table) -> pa.Table:
    """Old rows and then new ones, numbered in that order: the newest of each key that is no delete."""
    names = table.rows.schema.names
    old = table.rows.append_column(DELETED, pa.repeat(pa.scalar(False), table.rows.num_rows))
    both = pa.concat_tables([old, load.cast(old.schema)])
    both = both.append_column(SEQUENCE, pa.array(range(both.num_rows), pa.int64()))
    newest = newest_rows(both, table.target.key)
    return newest.filter(pa.compute.invert(newest.column(DELETED))).select(names)
