"""The targets: how each sink is created, which method commits one load, and what a reader sees."""

from __future__ import annotations

import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from channels.sinks.base import Sink
from channels.sinks.delta.files import STAGING
from channels.sinks.delta.sink import DeltaSink, MergeMode
from channels.sinks.doris.sink import DorisSink
from channels.sinks.starrocks.sink import StarrocksSink
from channels.sinks.stream_load.http import ClusterAddress
from tests.emulators.cases import USER
from tests.emulators.doris.cases import emulator as doris_emulator
from tests.emulators.starrocks.cases import MODES
from tests.emulators.starrocks.cases import emulator as starrocks_emulator
from tests.emulators.storage import SIGN
from tests.model.sink import FileSink
from tests.recovery.matrix.sources import TABLES
from tests.support.delta_protocol import FolderFiles, ProtocolReader
from tests.support.object_stores import Bucket, DrawnFaults, fault_proxy

RETRIES: Any = {"tries": 3, "pause_s": 0.01}
WAREHOUSE = "warehouse"  # the prefix of the tables in a bucket
FAULT_SHARE, MOST_FAULTS = 0.04, 10  # of an S3 server: the share of the writes with a fault, and the most of a scenario
BringBack = Callable[[], None]  # restore the earlier content
Change = tuple[str, int, int, bool]  # table, key, op, deleted


@dataclass(frozen=True)
class Seen:
    """The state of a target when no job runs."""

    rows: dict[str, dict[int, int]]  # table to key to op
    # changes in the order in which they became visible; for Delta without deletes, whose rows just disappear
    shown: list[Change]
    left: list[str]  # prepared, but neither committed nor aborted
    committed_twice: Sequence[str] = ()  # checkpoints, from the log of a Delta table; elsewhere only the rows show it
    missing: Sequence[str] = ()  # files that a version of a Delta table has, and that do not exist


@dataclass(frozen=True)
class Target:
    make: Callable[[], Sink]  # called in the job's process
    one_commit: str | None  # the method of the sink that commits one load, table or transaction
    look: Callable[[], Seen]
    remove: Callable[[str], BringBack]  # removes a table
    copy: Callable[
        [str], Callable[[], BringBack]
    ]  # copies a table or its database; the returned function restores the copy
    expire: Callable[[], None]  # expires prepared loads, as after a long time
    shows_once: bool = True  # no change may become visible twice, or after a newer one of its key
    # otherwise an older table that is loaded again keeps rows that the source has deleted since
    tells_keys: bool = True


@contextmanager
def file(folder: Path) -> Iterator[Target]:
    def look() -> Seen:
        sink = FileSink(folder / "sink.db")
        rows = {_table(target): rows for target, rows in sink.rows().items()}
        shown = [(_table(target), *rest) for target, *rest in sink.shown()]
        left = sink.prepared()
        sink.close()
        return Seen(rows, shown, left)

    rows = FileRows(folder / "sink.db")
    yield Target(partial(FileSink, rows.path), "_apply", look, rows.remove, rows.copy, rows.expire)


class TakenTables:
    """Tables whose whole content can be taken and put back. Subclasses define what a content is."""

    nothing: ClassVar[Any]  # the content of a table that does not exist

    def remove(self, table: str) -> BringBack:
        there = self._take(table)
        self._put(table, self.nothing)
        return lambda: self._put(table, there)

    def copy(self, table: str) -> Callable[[], BringBack]:
        older = self._take(table)

        def put() -> BringBack:
            there = self._take(table)
            self._put(table, older)
            return lambda: self._put(table, there)

        return put

    def _take(self, table: str) -> Any:
        raise NotImplementedError

    def _put(self, table: str, found: Any) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class FileRows(TakenTables):
    """Rows and proof of a table in the file of a FileSink."""

    nothing: ClassVar[Any] = ([], [])

    path: Path

    def expire(self) -> None:
        with self._connected() as connection:
            connection.execute("DELETE FROM loads WHERE state = 'PREPARED'")

    def _take(self, table: str) -> tuple[list[Any], list[Any]]:
        with self._connected() as connection:
            rows, proof = (
                connection.execute(f"SELECT * FROM {name} WHERE target = ?", (f"ods.{table}",)).fetchall()
                for name in ("rows", "tables")
            )
            return rows, proof

    def _put(self, table: str, found: tuple[list[Any], list[Any]]) -> None:
        with self._connected() as connection:
            for name, rows in zip(("rows", "tables"), found, strict=True):
                connection.execute(f"DELETE FROM {name} WHERE target = ?", (f"ods.{table}",))
                connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=0)) as connection, connection:
            yield connection


@contextmanager
def delta(folder: Path) -> Iterator[Target]:
    root, folders = folder / "warehouse", DeltaFolders(folder / "warehouse", folder / "aside")
    make = partial(DeltaSink, root, merge=_merge_of(folder))
    yield Target(make, "_commit_table", lambda: _seen(root), folders.remove, folders.copy, folders.expire)


@contextmanager
def delta_s3(folder: Path, bucket: Bucket, seed: object) -> Iterator[Target]:
    """Tables in ``bucket``. A few requests of the job fail as networks and stores do; the log of the job has them."""

    def look() -> Seen:
        copy = folder / "bucket"  # reads of all versions are many requests
        keys = list(bucket.objects())
        for key, content in zip(keys, bucket.contents(keys), strict=True):
            (copy / key).parent.mkdir(parents=True, exist_ok=True)
            (copy / key).write_bytes(content)
        seen = _seen(copy / WAREHOUSE)
        return seen if seen.missing else replace(seen, rows={one: _ops(bucket.open(_prefix(one))) for one in TABLES})

    def log(line: str) -> None:
        with (folder / "log.txt").open("a") as file:
            file.write(f"{line}\n")

    objects = DeltaObjects(bucket)
    with fault_proxy(bucket) as proxy:
        proxy.decide = DrawnFaults(seed, FAULT_SHARE, MOST_FAULTS, log)
        url, options = f"{bucket.url}/{WAREHOUSE}", proxy.through(bucket).options
        make = partial(DeltaSink, url, merge=_merge_of(folder), storage=options)
        yield Target(make, "_commit_table", look, objects.remove, objects.copy, objects.expire)
    objects.delete("")


def _merge_of(folder: Path) -> MergeMode:
    """Return deletion vectors for half of the scenarios, by the name of the scenario."""
    return "deletion_vectors" if zlib.crc32(folder.name.encode()) % 2 else "rewrite"


def _seen(root: Path) -> Seen:
    rows, shown, twice, missing = {}, [], [], []
    for table in TABLES:
        files = ProtocolReader(FolderFiles(root / "ods" / table))
        twice += files.committed_twice()
        missing += files.missing()
        if not missing:
            rows[table] = _versions(root / "ods" / table, table, shown)
    staged = (root / STAGING).glob("*/*.parquet")
    return Seen(rows, shown, [str(path.relative_to(root)) for path in staged], twice, missing)


@dataclass(frozen=True)
class DeltaFolders:
    """Folders of Delta tables."""

    root: Path
    aside: Path

    def remove(self, table: str) -> BringBack:
        live = self.root / "ods" / table
        if not live.exists():
            return lambda: None
        live.rename(self.aside)

        def bring_back() -> None:
            shutil.rmtree(live, ignore_errors=True)
            self.aside.rename(live)

        return bring_back

    def copy(self, table: str) -> Callable[[], BringBack]:
        live, older = self.root / "ods" / table, self.aside.with_name("older")
        if live.exists():
            shutil.copytree(live, older)

        def put() -> BringBack:
            bring_back = self.remove(table)
            if older.exists():
                older.rename(live)
            return bring_back

        return put

    def expire(self) -> None:
        for file in (self.root / STAGING).glob("*/*.parquet"):
            file.unlink()


@dataclass(frozen=True)
class DeltaObjects(TakenTables):
    """Delta tables in a bucket, as an administrator removes and restores them."""

    nothing: ClassVar[Any] = {}

    bucket: Bucket

    def expire(self) -> None:
        for key in self.bucket.objects(f"{WAREHOUSE}/{STAGING}/"):
            if key.endswith(".parquet"):
                self.bucket.path(key).unlink()

    def delete(self, prefix: str) -> None:
        self.bucket.path(prefix).delete_all()

    def _take(self, table: str) -> dict[str, bytes]:
        keys = list(self.bucket.objects(_prefix(table) + "/"))
        return dict(zip(keys, self.bucket.contents(keys), strict=True))

    def _put(self, table: str, found: dict[str, bytes]) -> None:
        self.delete(_prefix(table))
        for key, content in found.items():
            self.bucket.path(key).put(content)


def _prefix(table: str) -> str:
    return f"{WAREHOUSE}/ods/{table}"


def _versions(path: Path, table: str, shown: list[Change]) -> dict[int, int]:
    """Return the rows at the end, and append the changes of each version to ``shown``."""
    before: dict[int, int] = {}
    for version in range(DeltaTable(str(path)).version() + 1):
        now = _ops(DeltaTable(str(path), version=version))
        shown += [(table, key, op, False) for key, op in now.items() if before.get(key) != op]
        before = now
    return before


def _ops(found: DeltaTable) -> dict[int, int]:
    """Return key to op of one version of a Delta table."""
    rows = pa.table(QueryBuilder().register("t", found).execute("SELECT id, op FROM t").read_all())
    return dict(zip(rows.column("id").to_pylist(), rows.column("op").to_pylist(), strict=True))


@contextmanager
def doris(_: Path, *, two_phase: bool) -> Iterator[Target]:
    with doris_emulator(backends=1) as server:
        look = _watched(
            server, lambda: [each.label for each in server.transactions.listed("ods") if not each.status.final]
        )
        yield Target(
            partial(DorisSink, _address(server), two_phase_commit=two_phase, **RETRIES),
            "_commit_load" if two_phase else None,
            look,
            *ClusterTables(server).actions,
            shows_once=two_phase,
            tells_keys=False,
        )


@contextmanager
def starrocks(_: Path, *, mode: str) -> Iterator[Target]:
    with starrocks_emulator() as server:
        look = _watched(server, lambda: [each.label for each in server.transactions.running("ods")])
        method = "_shared._ask_to_commit" if mode == "multi" else "_commit_load"
        yield Target(
            partial(StarrocksSink, _address(server), multi_table=MODES[mode], databases=["ods"], **RETRIES),
            method,
            look,
            *ClusterTables(server).actions,
            tells_keys=False,
        )


class ClusterTables:
    """Tables of an emulator, as an administrator drops and restores them."""

    def __init__(self, server: Any) -> None:
        self._storage, self._transactions = server.storage, server.transactions

    @property
    def actions(self) -> tuple[Callable[..., Any], ...]:
        return self.remove, self.copy, self.expire

    def remove(self, table: str) -> BringBack:
        there = self._take().get(("ods", table))
        if there is None:
            return lambda: None
        self._storage.drop(there[0])
        return lambda: self._put({("ods", table): there})

    def copy(self, _: str) -> Callable[[], BringBack]:
        """Copy the whole database, because a table that is restored alone with its creation time is not noticed."""
        older = self._take()

        def put() -> BringBack:
            there = self._take()
            self._replace(older)
            return lambda: self._replace(there)

        return put

    def expire(self) -> None:
        self._transactions.expire()

    def _take(self) -> dict[tuple[str, str], tuple[Any, Any]]:
        storage = self._storage
        with storage._lock:
            return {key: (table, storage.arrow(f"FROM {table.base}")) for key, table in storage.tables.items()}

    def _replace(self, found: dict[tuple[str, str], tuple[Any, Any]]) -> None:
        with self._storage._lock:
            for key in self._storage.tables.keys() - found.keys():
                self._storage.drop(self._storage.tables[key])
            self._put(found)

    def _put(self, found: dict[tuple[str, str], tuple[Any, Any]]) -> None:
        storage = self._storage
        with storage._lock:
            for key, (table, rows) in found.items():
                if key not in storage.tables:
                    created = table.created
                    storage.create(table)
                    table.created = created
                storage._duck.execute(f"DELETE FROM {table.base}")
                if rows.num_rows:
                    storage._duck.execute(f"INSERT INTO {table.base} BY NAME SELECT * FROM rows")


def _address(server: Any) -> ClusterAddress:
    return ClusterAddress(tuple(server.fe), *USER, sql_port=server.sql_port)


def _watched(server: Any, left: Callable[[], list[str]]) -> Callable[[], Seen]:
    """Return a function that reads the target. Record every row that becomes visible from now on."""
    shown: list[Change] = []
    apply = server.storage._apply

    def watch(table: Any, rows: Any) -> None:
        if table.name in TABLES:
            columns = (rows.column(name).to_pylist() for name in ("id", "op", SIGN))
            shown.extend((table.name, key, op, bool(deleted)) for key, op, deleted in zip(*columns, strict=True))
        apply(table, rows)

    server.storage._apply = watch

    def look() -> Seen:
        rows = {table: dict(server.execute(f"SELECT id, op FROM ods.{table}")[1]) for table in TABLES}
        return Seen(rows, shown, left())

    return look


def _table(target: str) -> str:
    return target.partition(".")[2]


TARGETS: dict[str, Callable[[Path], Any]] = {  # and ``delta_s3``, which needs a bucket
    "file": file,
    "delta": delta,
    "doris": partial(doris, two_phase=True),
    "doris-plain": partial(doris, two_phase=False),
    "starrocks-single": partial(starrocks, mode="single"),
    "starrocks-multi": partial(starrocks, mode="multi"),
}
