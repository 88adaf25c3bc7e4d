"""The targets: how each sink is created, which method commits one load, and what a reader sees."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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

RETRIES: Any = {"tries": 3, "pause_s": 0.01}
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


@dataclass(frozen=True)
class FileRows:
    """Rows and proof of a table in the file of a FileSink."""

    path: Path

    def remove(self, table: str) -> BringBack:
        there = self._take(table)
        self._put(table, ([], []))
        return lambda: self._put(table, there)

    def copy(self, table: str) -> Callable[[], BringBack]:
        older = self._take(table)

        def put() -> BringBack:
            there = self._take(table)
            self._put(table, older)
            return lambda: self._put(table, there)

        return put

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
    """Use deletion vectors in half of the scenarios, by the name of the scenario."""
    root = folder / "warehouse"
    merge: MergeMode = "deletion_vectors" if zlib.crc32(folder.name.encode()) % 2 else "rewrite"

    def look() -> Seen:
        rows, shown, twice = {}, [], []
        for table in TABLES:
            rows[table] = _versions(root / "ods" / table, table, shown)
            twice += _committed_twice(root / "ods" / table)
        staged = (root / STAGING).glob("*/*.parquet")
        return Seen(rows, shown, [str(path.relative_to(root)) for path in staged], twice)

    folders = DeltaFolders(root, folder / "aside")
    yield Target(
        partial(DeltaSink, root, merge=merge), "_commit_table", look, folders.remove, folders.copy, folders.expire
    )


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


def _versions(path: Path, table: str, shown: list[Change]) -> dict[int, int]:
    """Return the rows at the end, and append the changes of each version to ``shown``."""
    before: dict[int, int] = {}
    for version in range(DeltaTable(str(path)).version() + 1):
        reader = QueryBuilder().register("t", DeltaTable(str(path), version=version))
        found = pa.table(reader.execute("SELECT id, op FROM t").read_all())
        now = dict(zip(found.column("id").to_pylist(), found.column("op").to_pylist(), strict=True))
        shown += [(table, key, op, False) for key, op in now.items() if before.get(key) != op]
        before = now
    return before


def _committed_twice(path: Path) -> list[str]:
    """Return checkpoints that the log of a Delta table contains more than once."""
    found: Counter[str] = Counter()
    for entry in (path / "_delta_log").glob("*.json"):
        for line in entry.read_text().splitlines():
            if (transaction := json.loads(line).get("txn")) is not None:
                found[f"{path.name} {transaction['appId']} {transaction['version']}"] += 1
    return [name for name, count in found.items() if count > 1]


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


TARGETS: dict[str, Callable[[Path], Any]] = {
    "file": file,
    "delta": delta,
    "doris": partial(doris, two_phase=True),
    "doris-plain": partial(doris, two_phase=False),
    "starrocks-single": partial(starrocks, mode="single"),
    "starrocks-multi": partial(starrocks, mode="multi"),
}
