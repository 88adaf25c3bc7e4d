"""Every class of column change x server x source x sink x mode, compared value by value with SELECT.

The rows and statements of all cases are written once to each server. Jobs without Spark read them with the real
receivers and chunk readers into the real sinks. A sample runs that contains every pair of two values, and
``pytest -m matrix tests/integration/test_change_classes.py`` runs all others.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from itertools import combinations, groupby, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer
from cdc.errors import DdlStop
from cdc.model.position import BinlogPosition
from cdc.model.schema import Kind, TableSchema
from cdc.model.schema_change import ChangeAction, ChangeMode, ChangePolicy
from cdc.model.snapshot import SnapshotState
from cdc.mysql.server import Server
from cdc.pipeline.flow_control import CommitLimits
from cdc.run_context import SnapshotSettings
from cdc.sources.binlog.receiver import BinlogReceiver
from channels.chunk_reader import ChunkOutcome, ChunkReader, SnapshotResult
from channels.mapping import Mapping as TableMapping
from channels.sinks.delta.sink import DeltaSink
from tests.emulators.doris import cases as doris
from tests.emulators.starrocks import cases as starrocks
from tests.integration.change_cases import ADD, BY_NAME, CASES, DROP, RENAME, Case, left_out
from tests.integration.cluster_values import source_value, target_value
from tests.model.canal import UntilEnd
from tests.model.faults import Faulty
from tests.model.harness import JOB, Harness
from tests.model.runner import ThreadRunner
from tests.model.source import Source
from tests.recovery.matrix.dimensions import chosen
from tests.support.answers import comparable, expected, schema_now
from tests.support.receiving import endpoint, identity, position
from tests.support.seeds import again, seed_of

SERVERS = ("mysql", "mariadb")
SOURCES = ("binlog", "files")
SINKS = ("delta", "doris", "doris-plain", "starrocks-multi", "starrocks-single")
DATABASE = "classes"
LIMITS = CommitLimits(interval_s=0.05, min_rows=2, min_bytes=1, max_bytes=1 << 20, max_rows=50, task_bytes=1 << 16)
SEED = seed_of()


@dataclass(frozen=True, order=True)
class Cell:
    server: str
    source: str
    sink: str
    mode: str
    case: str

    @property
    def group(self) -> tuple[str, ...]:
        return self.server, self.source, self.sink, self.mode

    def __str__(self) -> str:
        return "-".join((*self.group, self.case))


ALL = [Cell(*values) for values in product(SERVERS, SOURCES, SINKS, ChangeMode, BY_NAME)]
CELLS = [cell for cell in ALL if not left_out(cell.case, cell.server, cell.source, cell.sink, ChangeMode(cell.mode))]


def _pairs(cell: Cell) -> Iterator[Any]:
    names = ("server", "source", "sink", "mode", "case")
    return combinations([(name, getattr(cell, name)) for name in names], 2)


SAMPLE = frozenset(chosen(random.Random(SEED), list(CELLS), _pairs, 1))


# the server


@dataclass
class Written:
    """All cases as one server has them."""

    server: LocalServer
    start: BinlogPosition
    files: Path
    end: BinlogPosition | None = None
    before: dict[str, tuple[TableSchema, list[dict[str, Any]]]] = field(default_factory=dict)
    after: dict[str, tuple[TableSchema, list[dict[str, Any]]]] = field(default_factory=dict)


def _write(server: LocalServer, folder: Path) -> Written:
    server.execute(f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}", "FLUSH BINARY LOGS")
    written = Written(server, position(server), folder)
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+02:00'")
        for case in CASES:
            more = f", {case.columns}" if case.columns else ""
            cursor.execute(
                f"CREATE TABLE {case.name} (id INT NOT NULL PRIMARY KEY, n INT NOT NULL{more}) CHARSET utf8mb4"
            )
            for i in (1, 2, 3):
                values = ", ".join([f"{i}", f"{i * 100}", *([case.values] if case.values else [])])
                cursor.execute(f"SET @i = {i}")
                cursor.execute(f"INSERT INTO {case.name} SELECT {values} FROM (SELECT {i} AS i) one")
            connection.commit()
            written.before[case.name] = _rows(server, case.name)
            for number, clauses in enumerate(case.statements, 1):
                cursor.execute(f"ALTER TABLE {case.name} {clauses}")
                is_last = number == len(case.statements)
                if not case.is_refused and (is_last or case.has_rows_between):
                    cursor.execute(f"INSERT INTO {case.name} (id, n) VALUES ({number * 10}, {number})")
                    cursor.execute(f"UPDATE {case.name} SET n = n + 1 WHERE id = 2")
                    cursor.execute(f"DELETE FROM {case.name} WHERE id = 3")
                connection.commit()
            if not case.is_refused:
                written.after[case.name] = _rows(server, case.name)
    written.end = position(server)
    server.execute("FLUSH BINARY LOGS")
    first = int(Path(written.start.file).suffix[1:])
    stem = Path(written.start.file).stem
    folder.mkdir()
    for number in range(first, int(Path(written.end.file).suffix[1:]) + 1):
        shutil.copy(server.data / f"{stem}.{number:06}", folder / f"{stem}.{number:06}")
    return written


def _rows(server: LocalServer, table: str) -> tuple[TableSchema, list[dict[str, Any]]]:
    schema = schema_now(server, DATABASE, table)
    return schema, expected(server, schema)


@pytest.fixture(scope="module")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Written] = {}

    def of(kind: str) -> Written:
        if kind not in known:
            known[kind] = _write(request.getfixturevalue(kind), tmp_path_factory.mktemp(kind) / "files")
        return known[kind]

    yield of
    for one in known.values():
        one.server.execute(f"DROP DATABASE {DATABASE}")


# a job


class ChunkRunner(ThreadRunner):
    """Load rows and read chunks on threads of this process, without Spark."""

    def submit(self, tasks: Any) -> Any:
        renamed = [replace(task, rows=tuple(task.copied_rows())) for task in tasks]
        return super().submit(renamed)

    def submit_reading(self, reading: Any) -> Any:
        return self._pool.submit(self._read, reading)

    def _read(self, reading: Any) -> SnapshotResult:
        loads, outcomes = [], []
        for read in reading.chunks:
            table = reading.tables[read.table]
            rows, above = 0, None
            batches = []
            for part in ChunkReader(reading.endpoint, table, read.chunk).batches(lambda: False):
                above = part.position
                if part.rows is not None:
                    batches.append(part.rows)
                    rows += part.rows.num_rows
            if batches and (load := table.writer(replace(table.name, task=read.chunk.number), iter(batches))):
                loads.append(load)
            outcomes.append(ChunkOutcome(read.table, read.chunk.number, above, True, rows, rows))
        return SnapshotResult(tuple(loads), tuple(outcomes))


class UntilLoaded(Faulty):
    """A receiver whose source ends only after all tables are loaded."""

    def __init__(self, inner: Any, store: Any) -> None:
        super().__init__(inner, None)
        self.store = store

    def status(self) -> Any:
        status = self.inner.status()
        committed = self.store.last_committed(JOB)
        loaded = all(one.state is SnapshotState.CONSISTENT for one in committed.snapshots.values())
        return replace(status, is_finished=status.is_finished and loaded)


class ClassJob(Harness):
    """A job that reads the tables of some cases to the end of what was written."""

    def __init__(self, folder: Path, written: Written, source: str, mode: ChangeMode, make: Any, names: Any) -> None:
        self.written, self.kind, self.make = written, source, make
        policy = ChangePolicy(mode)
        others = tuple(name for name in BY_NAME if name not in names)
        mappings = [TableMapping(f"{DATABASE}.*", "ods.*", exclude=others, changes=policy)]
        super().__init__(folder, Source(), limits=LIMITS, mappings=mappings)
        self.runner.close()
        self.runner = ChunkRunner(self.sink, every_row=False)
        if source == "binlog":
            server = endpoint(written.server)
            self.more_parts = {
                "snapshot": SnapshotSettings(server, Server.position, initial=False, step_s=0.1, readers=1)
            }

    def new_sink(self, folder: Path) -> Any:
        return self.make()

    def new_receiver(self) -> Any:
        if self.kind == "files":
            return BinlogReceiver.of_files(str(self.written.files / "*.*"), self.routes)
        read = BinlogReceiver.of_server(
            endpoint(self.written.server), identity(f"classes{id(self)}"), self.routes, heartbeat_s=1.0
        )
        return UntilLoaded(UntilEnd(read, self.written), self.store)

    def first_position(self) -> BinlogPosition:
        return self.written.start


@contextmanager
def target(sink: str, folder: Path) -> Iterator[tuple[Any, Any]]:
    """Yield what creates the sink, and what returns the rows of a table as ``{column: value}``, or None."""
    kind, _, way = sink.partition("-")
    if kind == "delta":
        root = folder / "warehouse"

        def read(name: str) -> pa.Table | None:
            path = root / "ods" / name
            return proof.read_delta(path).sort_by("id") if path.exists() else None

        yield partial(DeltaSink, root), read
        return
    with doris.emulator(backends=1) if kind == "doris" else starrocks.emulator(version=(4, 1, 0)) as cluster:

        def rows(name: str) -> list[dict[str, Any]] | None:
            if ("ods", name) not in cluster.storage.tables:
                return None
            names, found = cluster.execute(f"SELECT * FROM ods.{name} ORDER BY id")
            return [dict(zip(names, row, strict=True)) for row in found]

        if kind == "doris":
            yield lambda: doris.sink_on(cluster, two_phase_commit=way != "plain"), rows
        else:
            yield lambda: starrocks.sink_on(cluster, way), rows


# a group of cells


@dataclass
class Group:
    """The cells with one server, source, sink and mode: one job for all that are followed, one for each that pauses."""

    folder: Path
    written: Written
    source: str
    sink: str
    mode: ChangeMode
    failures: dict[str, str] = field(default_factory=dict)

    def run(self, cases: list[Case]) -> None:
        policy = ChangePolicy(self.mode)
        pausing = [case for case in cases if case.pauses(policy, self.source, self.sink)]
        followed = [case for case in cases if case not in pausing]
        number = 0
        while followed:  # a case with an unexpected pause is left out, and the others are read again
            stopped = self._follow(followed, number)
            followed = [case for case in followed if case.name in stopped[1:]] if stopped else []
            number += 1
        for case in pausing:
            self._pause(case)

    def _follow(self, cases: list[Case], number: int) -> list[str]:
        """Run a job. Return the names of the cases that are left after an unexpected pause, it first."""
        names = [case.name for case in cases]
        with self._job(f"followed-{number}", names) as (job, read):
            try:
                job.until_finished(runs=500)
            except Exception as error:
                at = next(
                    (name for name in names if f"{DATABASE}.{name}" in f"{error} {getattr(error, 'hint', '')}"),
                    names[0],
                )
                self.failures[at] = f"the job ended with {error!r}: {error} {getattr(error, 'hint', '')}"
                return [at, *(name for name in names if name != at)]
            maps = job.store.last_committed(JOB).column_maps
            for case in cases:
                if problem := self._difference(case, read(case.name)):
                    self.failures[case.name] = f"{problem}; columns {maps.get(f'{DATABASE}.{case.name}')}"
        return []

    def _pause(self, case: Case) -> None:
        with self._job(f"pause-{case.name}", [case.name]) as (job, read):
            try:
                job.until_finished(runs=50)
                self.failures[case.name] = "the job did not pause"
                return
            except DdlStop:
                pass
            except Exception as error:
                self.failures[case.name] = f"not a pause at the statement: {error!r}"
                return
            schema, rows = self.written.before[case.name]
            found = read(case.name)
            names = {column.name: column.name for column in schema.columns}
            if problem := self._compare(schema, rows, found, names, {}):
                self.failures[case.name] = f"a pause changed the target: {problem}"

    @contextmanager
    def _job(self, name: str, names: list[str]) -> Iterator[tuple[ClassJob, Any]]:
        folder = self.folder / name
        folder.mkdir(parents=True)
        with ExitStack() as stack:
            make, read = stack.enter_context(target(self.sink, folder))
            job = ClassJob(folder, self.written, self.source, self.mode, make, names)
            stack.callback(job.close)
            yield job, read

    def _difference(self, case: Case, found: Any) -> str:
        policy, (schema, rows) = ChangePolicy(self.mode), self.written.after[case.name]
        adds, drops, renames = (policy.action(kind) is ChangeAction.APPLY for kind in (ADD, DROP, RENAME))
        names = {column.name: column.name for column in schema.columns}
        if not renames:
            names |= {new: old for old, new in case.renamed.items()}
        if not adds:
            names = {source: name for source, name in names.items() if source not in case.added}
        there = {column.name for column in self.written.before[case.name][0].columns} | (
            set(case.added) if adds else set()
        )
        kept = {} if drops else {name: name in case.columns.split() for name in case.dropped if name in there}
        if case.keeps_type and found is not None:
            found = _as_narrow(found, schema)
        return self._compare(schema, rows, found, names, kept, self.written.before[case.name][1])

    def _compare(
        self,
        schema: TableSchema,
        rows: list[dict[str, Any]],
        found: Any,
        names: Mapping[str, str],
        kept: Mapping[str, bool],
        before: Any = (),
    ) -> str:
        """Return the difference between SELECT and a target. ``names``: source column -> target column."""
        if found is None:
            return "there is no target"
        there = found.schema.names if isinstance(found, pa.Table) else list(found[0])
        extra = sorted(set(there) - set(names.values()))
        if sorted(name.partition("__")[0] for name in extra) != sorted(kept) or not set(names.values()) <= set(there):
            return f"the target has the columns {there}, expected {sorted(names.values())} and {sorted(kept)}"
        columns = [column for column in schema.columns if column.name in names]
        copied = replace(schema, columns=tuple(columns))
        here = [{column.name: row[column.name] for column in columns} for row in rows]
        if isinstance(found, pa.Table):
            chosen_columns = pa.table({source: found.column(name) for source, name in names.items()})
            values, raw = comparable(chosen_columns, copied), found.to_pylist()
        else:
            raw = found
            values = [{one.name: target_value(one, row[names[one.name]]) for one in columns} for row in found]
            here = [{one.name: source_value(one, row[one.name]) for one in columns} for row in here]
        whole = {one.name for one in columns if one.kind is Kind.BIGINT}  # unsigned ones are decimals in targets
        values = [{name: int(value) if name in whole and value is not None else value for name, value in row.items()}
                  for row in values]  # fmt: skip
        if list(map(repr, values)) != list(map(repr, here)):
            return f"target {values}, source {here}"
        old = {row["id"]: row for row in before}
        for name in extra:
            plain = name.partition("__")[0]
            if not kept[plain]:
                continue
            is_free = name in names.values()
            for row in raw:  # a row that was not changed since keeps its value, and the others have none
                value = old[row["id"]][plain] if row["id"] == 1 and not is_free else None
                if row[name] != value:
                    return f"row {row['id']} has {row[name]!r} in the kept column {name}, expected {value!r}"
        return ""


def _as_narrow(found: Any, schema: TableSchema) -> Any:
    """Return the rows of a target, whose column a has kept a wider type, with the type of the source.

    Raises: AssertionError - the target has the narrower type; ArrowInvalid - a value is not one of it.
    """
    column = next(one for one in schema.columns if one.name == "a")
    if not isinstance(found, pa.Table):  # the emulator returns numbers, whose type does not matter
        if column.kind is Kind.FLOAT:  # as the text of a load, whose digits identify a FLOAT
            return [
                {**row, "a": row["a"] if row["a"] is None else pa.scalar(row["a"], pa.float32()).as_py()}
                for row in found
            ]
        if column.kind is not Kind.DECIMAL:
            return found
        digits = Decimal(1).scaleb(-column.scale)
        narrowed = [{**row, "a": row["a"] if row["a"] is None else row["a"].quantize(digits)} for row in found]
        assert narrowed == found, "values have more digits than the source"
        return narrowed
    wide = found.column("a")
    assert wide.type != column.arrow, f"the target has the type {wide.type}"
    narrow = wide.cast(column.arrow)
    assert narrow.cast(wide.type).equals(wide), "values have more digits than the source"
    return found.set_column(found.schema.get_field_index("a"), "a", narrow)


def _param(group: tuple[str, ...], cells: list[Cell], mark: Any = ()) -> Any:
    return pytest.param(cells, id="-".join(group), marks=mark)


def _groups(cells: Any, marks: Any = ()) -> list[Any]:
    return [_param(group, list(found), marks) for group, found in groupby(sorted(cells), key=lambda cell: cell.group)]


def _run(cells: list[Cell], written: Any, folder: Path) -> None:
    first = cells[0]
    group = Group(folder, written(first.server), first.source, first.sink, ChangeMode(first.mode))
    group.run([BY_NAME[cell.case] for cell in cells])
    if group.failures:
        lines = "\n".join(f"{name}: {text}" for name, text in group.failures.items())
        pytest.fail(f"{'-'.join(first.group)}, {again()}\n{lines}", pytrace=False)


@pytest.mark.parametrize("cells", _groups(SAMPLE))
def test_change_class_equals_select(cells: list[Cell], written: Any, tmp_path: Path) -> None:
    _run(cells, written, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("cells", _groups(set(CELLS) - SAMPLE))
def test_change_class_equals_select_in_every_combination(cells: list[Cell], written: Any, tmp_path: Path) -> None:
    _run(cells, written, tmp_path)


def test_change_sample_contains_every_pair() -> None:
    assert {pair for cell in SAMPLE for pair in _pairs(cell)} == {pair for cell in CELLS for pair in _pairs(cell)}
    assert len(SAMPLE) < 1.3 * len(BY_NAME) * len(SINKS)
