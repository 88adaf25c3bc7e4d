"""Sources and targets that the walk goes between: their part of the job file, and how their rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from cdc.local_servers import LocalServer
from tests.servers.doris.cases import USER as DORIS_USER
from tests.servers.doris.cases import stand_in as doris_stand_in
from tests.servers.olap_faults import Fault
from tests.stress.checker import Promise
from tests.stress.walk import TABLES, Row

PASSWORD = "walking-shoes"


@dataclass(frozen=True)
class Target:
    """A sink that runs."""

    yaml: str
    promise: Promise
    read: Callable[[], dict[Row, int]]  # all rows of all tables


@contextmanager
def delta(folder: Path) -> Iterator[Target]:
    """Delta tables in a folder."""

    def read() -> dict[Row, int]:
        found: dict[Row, int] = {}
        for table in TABLES:
            try:
                opened = DeltaTable(str(folder / "warehouse" / "ods" / table))
            except TableNotFoundError:
                continue
            rows = pa.table(QueryBuilder().register("t", opened).execute("SELECT id, step FROM t").read_all())
            found |= _steps(table, rows)
        return found

    yield Target("sink: {type: delta, path: ./warehouse, create_tables: true}", Promise.TABLE_AT_ONCE, read)


@contextmanager
def doris(_: Path, *, two_phase: bool) -> Iterator[Target]:
    """The stand-in for Doris, which loses answers and fails after the work now and then."""
    with doris_stand_in(backends=2) as server:
        for place, fault in (("load", Fault.DROP_ANSWER), ("load", Fault.ERROR_DONE), ("commit", Fault.DROP_ANSWER)):
            server.faults.order(place, fault, times=10**6, chance=0.02)

        def read() -> dict[Row, int]:
            found: dict[Row, int] = {}
            for table in TABLES:
                with suppress(duckdb.CatalogException):  # not there yet
                    found |= _steps(table, server.storage.arrow(f"SELECT id, step FROM ods.{table}"))
            return found

        name, password = DORIS_USER
        yaml = (
            f'sink: {{type: doris, fe: ["{server.fe[0]}"], sql_port: {server.sql_port}, username: {name}, '
            f'password: "{password}", create_tables: true, two_phase_commit: {str(two_phase).lower()}}}'
        )
        # without two phases a repeated load shows older steps for a moment, until the newest is loaded again
        yield Target(yaml, Promise.IN_ORDER if two_phase else Promise.IN_THE_END, read)


@contextmanager
def binlog(server: LocalServer, start: tuple[str, int], _: Path) -> Iterator[str]:
    """The raw binlog; gives the ``source:`` of the job file."""
    yield (
        f"source: {{type: binlog, host: 127.0.0.1, port: {server.port}, username: cdc, password: {PASSWORD}, "
        f"tls: {{mode: required}}, start: {{file: {start[0]}, offset: {start[1]}}}}}"
    )


SOURCES: dict[str, Callable[..., Any]] = {"binlog": binlog}
TARGETS: dict[str, Callable[..., Any]] = {
    "delta": delta,
    "doris": lambda folder: doris(folder, two_phase=True),
    "doris-plain": lambda folder: doris(folder, two_phase=False),
}


def _steps(table: str, rows: pa.Table) -> dict[Row, int]:
    return {(table, number): step for number, step in zip(*(rows.column(i).to_pylist() for i in (0, 1)), strict=True)}
