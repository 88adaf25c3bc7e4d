"""Every class of change x server x source x sink x mode, compared value by value with SELECT.

The rows and statements of all cases are written once to each server. Jobs without Spark read them with the real
receivers and chunk readers into the real sinks: from the binlog, from its files, and what a Canal server has sent. A
sample runs that contains every pair of two values, and ``pytest -m matrix tests/integration/test_change_classes.py``
runs all others.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from itertools import combinations, groupby, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from cdc.demo import proof
from cdc.errors import DdlStop, PrerequisiteError
from cdc.model.schema import Kind, TableSchema
from cdc.model.schema_change import ChangeAction, ChangeMode, ChangePolicy
from cdc.model.snapshot import SnapshotState
from cdc.mysql.server import Server
from cdc.pipeline.flow_control import CommitLimits
from cdc.run_context import SnapshotSettings
from cdc.sources.binlog.receiver import BinlogReceiver
from cdc.sources.canal.receiver import CanalReceiver
from channels.chunk_reader import ChunkOutcome, ChunkReader, SnapshotResult
from channels.mapping import Mapping as TableMapping
from channels.sinks.delta.sink import DeltaSink
from tests.conftest import unavailable
from tests.emulators.canal import CanalServer, obtain_canal
from tests.emulators.doris import cases as doris
from tests.emulators.starrocks import cases as starrocks
from tests.integration.change_cases import ADD, BY_NAME, DROP, PARTITION, RENAME, SERVERS, TRUNCATE, Case, left_out
from tests.integration.cluster_values import source_value, target_value
from tests.model.canal import UntilEnd
from tests.model.faults import Faulty
from tests.model.harness import JOB, Harness
from tests.model.runner import ThreadRunner
from tests.model.source import Source
from tests.recovery.matrix.dimensions import chosen
from tests.support.answers import comparable
from tests.support.canal_script import Scripted
from tests.support.canal_sources import CURSOR
from tests.support.receiving import endpoint, identity
from tests.support.seeds import again, seed_of
from tests.support.written_changes import AWAY, DATABASE, Written, write

SOURCES = ("binlog", "files", "canal")
SINKS = ("delta", "doris", "doris-plain", "starrocks-multi", "starrocks-single")
LIMITS = CommitLimits(interval_s=0.05, min_rows=2, min_bytes=1, max_bytes=1 << 20, max_rows=50, task_bytes=1 << 16)
SEED = seed_of()
CANAL_ZONE_US = 8 * 3_600_000_000  # GMT+08:00


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


SAMPLE = frozenset(chosen(random.Random(SEED), list(CELLS), _pairs))


# the server


@pytest.fixture(scope="module")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Written] = {}

    def of(kind: str) -> Written:
        if kind not in known:
            server, folder = request.getfixturevalue(kind), tmp_path_factory.mktemp(kind)
            start_canal = None
            with suppress(PrerequisiteError):  # it is not installed
                start_canal = partial(CanalServer, obtain_canal(), time_zone="GMT+08:00")
            known[kind] = write(server, folder, start_canal)
        return known[kind]

    yield of
    for one in known.values():
        one.server.execute(*(f"DROP DATABASE {name}" for name in (DATABASE, AWAY)))


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


class Replayed(UntilEnd):
    """A receiver of what a Canal server has sent, whose job knows its tables since before the first statement."""

    def __init__(self, inner: Any, written: Written, names: Any) -> None:
        super().__init__(inner, SimpleNamespace(end=written.canal_end))
        self.known = tuple(written.before[name][0] for name in names)

    def open(self, start: Any, schemas: Any, sequence: int) -> None:
        super().open(start, schemas if start.file else self.known, sequence)


class ClassJob(Harness):
    """A job that reads the tables of some cases to the end of what was written."""

    def __init__(self, folder: Path, written: Written, source: str, mode: ChangeMode, make: Any, names: Any) -> None:
        self.written, self.kind, self.make, self.names = written, source, make, names
        self.canal = Scripted(*[[batch] for batch in written.batches])
        policy = ChangePolicy(mode)
        others = tuple(name for name in BY_NAME if name not in names)
        mappings = [TableMapping(f"{DATABASE}.*", "ods.*", exclude=others, changes=policy)]
        super().__init__(folder, Source(), limits=LIMITS, mappings=mappings)
        self.runner.close()
        self.runner = ChunkRunner(self.sink, every_row=False)
        if source != "files":
            at: Any = Server.position if source == "binlog" else lambda server: written.canal_end
            server = endpoint(written.server)
            self.more_parts = {"snapshot": SnapshotSettings(server, at, initial=False, step_s=0.1, readers=1)}

    def new_sink(self, folder: Path) -> Any:
        return self.make()

    def new_receiver(self) -> Any:
        if self.kind == "files":
            return BinlogReceiver.of_files(str(self.written.files / "*.*"), self.routes)
        if self.kind == "canal":
            inner = CanalReceiver(
                lambda: self.canal, self.routes, zone_us=CANAL_ZONE_US, mysql=endpoint(self.written.server)
            )
            return UntilLoaded(Replayed(inner, self.written, self.names), self.store)
        read = BinlogReceiver.of_server(
            endpoint(self.written.server), identity(f"classes{id(self)}"), self.routes, heartbeat_s=1.0
        )
        return UntilLoaded(UntilEnd(read, self.written), self.store)

    def first_position(self) -> Any:
        return CURSOR if self.kind == "canal" else self.written.start


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
        if any(policy.action(kind) is ChangeAction.IGNORE for kind in case.kinds if kind in (TRUNCATE, PARTITION)):
            left = [row for row in self.written.before[case.name][1] if row["id"] in case.removed]
            rows = [row for _, row in sorted({row["id"]: row for row in (*left, *rows)}.items())]
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
            if not kept[plain]:  # the case has added it: rows that were written after it was dropped have none
                changed = {2, max(row["id"] for row in raw)}
                if any(row[name] is not None for row in raw if row["id"] in changed):
                    return f"the kept column {name} has values in rows that were changed after it was dropped: {raw}"
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
    found = written(first.server)
    if first.source == "canal" and not found.batches:
        unavailable("Canal is not installed.")
    group = Group(folder, found, first.source, first.sink, ChangeMode(first.mode))
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


# readers of a Delta table while it changes

EVOLVE = ChangePolicy(ChangeMode.EVOLVE)
READ = [
    case.name
    for case in BY_NAME.values()
    if "mysql" in case.servers and not case.pauses(EVOLVE, "binlog", "delta")
    if not left_out(case.name, "mysql", "binlog", "delta", ChangeMode.EVOLVE)
]


class Polling(threading.Thread):
    """A reader that opens each table of a folder again and again, and keeps every version that it sees."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        super().__init__(daemon=True)
        self.folder, self.names = folder, names
        self.seen: dict[tuple[str, int], pa.Table] = {}
        self.error: BaseException | None = None
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                for name in self.names:
                    if (path := self.folder / name / "_delta_log").exists() and any(path.glob("*.json")):
                        self._read(name, DeltaTable(str(path.parent)).version())
        except BaseException as error:
            self.error = error

    def _read(self, name: str, version: int) -> None:
        if (name, version) not in self.seen:
            self.seen[name, version] = proof.read_delta(self.folder / name, version=version)

    def end(self) -> None:
        """Stop, and read the versions that were replaced before the next look. Raises: the error of the reader."""
        self._ending.set()
        self.join()
        if self.error is not None:
            raise self.error
        for name in self.names:
            for version in range(DeltaTable(str(self.folder / name)).version() + 1):
                self._read(name, version)


@pytest.fixture(scope="module")
def polled(written: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, Polling]:
    """Every version of every table, while one job follows all changes."""
    found: Written = written("mysql")
    folder = tmp_path_factory.mktemp("polled")
    with target("delta", folder) as (make, _):
        job, reader = (
            ClassJob(folder, found, "binlog", ChangeMode.EVOLVE, make, READ),
            Polling(folder / "warehouse" / "ods", READ),
        )
        with closing(job):
            reader.start()
            job.until_finished(runs=500)
            reader.end()
    return found, reader


@pytest.mark.parametrize("name", READ)
def test_delta_reader_sees_each_row_as_before_or_after_the_change(name: str, polled: tuple[Written, Polling]) -> None:
    found, reader = polled
    case, states = BY_NAME[name], found.states[name]
    versions = [rows for (table, _), rows in sorted(reader.seen.items()) if table == name]
    stays = {row["id"] for row in states[0][1]} & {row["id"] for row in states[-1][1]}
    visible, gone, at = set[int](), set[int](), 0
    assert versions, "there is no target"
    for number, rows in enumerate(versions):
        ids = set(rows.column("id").to_pylist())
        assert visible & stays <= ids, f"version {number} lacks rows"
        gone |= visible - ids
        visible |= ids
        assert not gone & {*case.removed} & ids, f"removed rows are back in version {number}"
        names = sorted(rows.schema.names)
        possible = [i for i, (schema, _) in enumerate(states) if sorted(one.name for one in schema.columns) == names]
        assert possible, f"version {number} has the columns {names} of no moment"
        if 1 in ids and not case.is_loaded:
            # row 1 is never changed by a row event: its values are those before or after a statement
            at = next((i for i in possible if i >= at and _has_row(rows, states[i])), -1)
            assert at >= 0, f"version {number} has {rows.to_pylist()}, which is the table of no moment"
    assert visible >= stays


def _has_row(rows: pa.Table, state: tuple[TableSchema, list[dict[str, Any]]]) -> bool:
    schema, expected = state
    row = next((row for row in expected if row["id"] == 1), None)
    try:
        (found,) = comparable(rows.filter(pc.equal(rows.column("id"), 1)), schema)
    except AssertionError:
        return False  # a column has the type of another moment
    whole = {one.name for one in schema.columns if one.kind is Kind.BIGINT}  # unsigned ones are decimals in targets
    values = [int(value) if name in whole and value is not None else value for name, value in found.items()]
    return row is not None and list(map(repr, values)) == [repr(row[one.name]) for one in schema.columns]
