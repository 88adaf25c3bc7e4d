"""Sources and targets of the walk: their part of the job file, how their rows are read, and how they fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import duckdb
import pyarrow as pa
import pymysql
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer
from tests.emulators.canal import DESTINATION, CanalServer, obtain_canal
from tests.emulators.canal import PASSWORD as CANAL_PASSWORD
from tests.emulators.canal import USER as CANAL_USER
from tests.emulators.cases import USER
from tests.emulators.doris.cases import emulator as doris_emulator
from tests.emulators.doris.emulator import DorisEmulator
from tests.emulators.faults import Fault, Faults
from tests.emulators.starrocks.cases import MODES
from tests.emulators.starrocks.cases import emulator as starrocks_emulator
from tests.emulators.starrocks.emulator import StarrocksEmulator
from tests.soak.checker import Promise
from tests.soak.random_walk import TABLES, Row
from tests.support.canal_sources import drain

PASSWORD = "walking-shoes"
FAULTS = (("load", Fault.DROP_ANSWER), ("load", Fault.ERROR_DONE), ("load", Fault.RESET), ("commit", Fault.DROP_ANSWER))
CHANCE = 0.02  # of each fault, at each request for which it applies

Start = tuple[str, int] | Literal["snapshot"]  # a position in the binlog, or existing rows first


@dataclass(frozen=True)
class Source:
    """The source of the job, and its faults beside the kills of the job."""

    yaml: str
    disturb: Callable[[], None]


@dataclass(frozen=True)
class Target:
    """A running sink."""

    yaml: str
    promise: Promise
    read: Callable[[], dict[Row, int]]  # all rows of all tables of the walk; of one moment if the sink guarantees that
    rows: Callable[[str], pa.Table]  # of any table
    disturb: Callable[[random.Random], None] | None = None  # None: there is no server


@contextmanager
def binlog(server: LocalServer, start: Start, _: Path) -> Iterator[Source]:
    """Yield the raw binlog, whose connections are cut now and then."""
    place = start if isinstance(start, str) else f"{{file: {start[0]}, offset: {start[1]}}}"

    def cut() -> None:
        connection = server.connect()
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM performance_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            for (number,) in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):  # already closed
                    cursor.execute(f"KILL {number}")

    yield Source(
        f"source: {{type: binlog, host: 127.0.0.1, port: {server.port}, username: cdc, password: {PASSWORD}, "
        f"tls: {{mode: {'off' if 'mariadb' in str(server.data) else 'required'}}}, start: {place}}}",
        cut,
    )


@contextmanager
def canal(server: LocalServer, start: Start, folder: Path) -> Iterator[Source]:
    """Yield a real Canal that keeps its cursor on disk, and is killed and started again now and then."""
    with CanalServer(obtain_canal(), folder / "canal", server) as canal_server:
        drain(canal_server)  # without a cursor, a restarted Canal would start at the end of the binlog

        def crash() -> None:
            canal_server.kill()
            canal_server.launch()

        yield Source(
            f"source: {{type: canal, servers: ['{canal_server.address}'], destination: {DESTINATION}, "
            f"username: {CANAL_USER}, password: {CANAL_PASSWORD}, "
            f"start: {start if isinstance(start, str) else 'cursor'}, "
            f"mysql: {{host: 127.0.0.1, port: {server.port}, username: cdc, password: {PASSWORD}}}}}",
            crash,
        )


@contextmanager
def delta(folder: Path, _: int) -> Iterator[Target]:
    """Yield Delta tables in a folder."""

    def read() -> dict[Row, int]:
        found: dict[Row, int] = {}
        for table in TABLES:
            try:
                opened = DeltaTable(str(folder / "warehouse" / "ods" / table))
            except TableNotFoundError:
                continue
            rows = pa.table(QueryBuilder().register("t", opened).execute("SELECT id, step FROM t").read_all())
            found |= {(table, number): step for number, step in zip(*rows.to_pydict().values(), strict=True)}
        return found

    yield Target(
        "sink: {type: delta, path: ./warehouse, create_tables: true}",
        Promise.TABLE_AT_ONCE,
        read,
        lambda table: proof.read_delta(folder / "warehouse" / "ods" / table),
    )


@contextmanager
def doris(_: Path, seed: int, *, two_phase: bool) -> Iterator[Target]:
    """Yield the emulator of Doris, which loses replies and fails after the work now and then."""
    with doris_emulator(backends=2) as server:
        # without two phases, a repeated load shows older steps for a moment, until the newest one is loaded again
        promise = Promise.IN_ORDER if two_phase else Promise.IN_THE_END
        yield _cluster(server, f"type: doris, two_phase_commit: {str(two_phase).lower()}", promise, seed)


@contextmanager
def starrocks(_: Path, seed: int, *, mode: str) -> Iterator[Target]:
    """Yield the emulator of StarRocks, with the same faults."""
    with starrocks_emulator(backends=2) as server:
        # the cycles of the walk are small: one Task for each table, and so one load
        promise = Promise.ALL_AT_ONCE if mode == "multi" else Promise.TABLE_AT_ONCE
        yield _cluster(server, f'type: starrocks, multi_table: "{MODES[mode]}"', promise, seed)


def _cluster(server: DorisEmulator | StarrocksEmulator, kind: str, promise: Promise, seed: int) -> Target:
    server.faults = Faults(seed)
    for place, fault in FAULTS:
        server.faults.order(place, fault, times=10**6, chance=CHANCE)
    query = " UNION ALL ".join(f"SELECT '{table}' AS place, id, step FROM ods.{table}" for table in TABLES)

    def read() -> dict[Row, int]:
        try:
            places, numbers, steps = server.storage.arrow(query).to_pydict().values()
        # one of the tables does not exist yet, and the other one is never checked alone
        except duckdb.CatalogException:
            return {}
        return {(place, number): step for place, number, step in zip(places, numbers, steps, strict=True)}

    def crash(draw: random.Random) -> None:
        draw.choice((server.restart_backend, server.restart_frontend))(0)

    name, password = USER
    yaml = (
        f'sink: {{{kind}, fe: ["{server.fe[0]}"], sql_port: {server.sql_port}, username: {name}, '
        f'password: "{password}", create_tables: true}}'
    )
    return Target(yaml, promise, read, lambda table: server.storage.arrow(f"SELECT * FROM ods.{table}"), crash)


SOURCES: dict[str, Callable[[LocalServer, Start, Path], AbstractContextManager[Source]]] = {
    "binlog": binlog,
    "canal": canal,
}
# arguments: a folder and the seed of the faults
TARGETS: dict[str, Callable[[Path, int], AbstractContextManager[Target]]] = {
    "delta": delta,
    "doris": partial(doris, two_phase=True),
    "doris-plain": partial(doris, two_phase=False),
    "starrocks": partial(starrocks, mode="single"),
    "starrocks-multi": partial(starrocks, mode="multi"),
}
