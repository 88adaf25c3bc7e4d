"""Rows and statements of all change cases, written to a real server, and what its Canal server has sent meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql

from cdc.demo.local_servers import LocalServer
from cdc.model.position import BinlogPosition, CanalPosition
from cdc.model.schema import TableSchema
from tests.emulators.canal import CanalServer
from tests.integration.change_cases import CASES, Case
from tests.support.answers import expected, schema_now
from tests.support.canal_sources import drain
from tests.support.online_changes import Writers, gh_ost, pt_osc_begin, pt_osc_end
from tests.support.receiving import position

DATABASE = "classes"
AWAY = "classes_away"  # a database that no channel reads

Rows = list[dict[str, Any]]


@dataclass
class Written:
    """All cases as one server has them."""

    server: LocalServer
    start: BinlogPosition
    files: Path
    end: BinlogPosition | None = None
    before: dict[str, tuple[TableSchema, Rows]] = field(default_factory=dict)
    after: dict[str, tuple[TableSchema, Rows]] = field(default_factory=dict)
    states: dict[str, list[tuple[TableSchema, Rows]]] = field(default_factory=dict)  # before, and after each statement
    batches: list[list[bytes]] = field(default_factory=list)  # of Canal: the entries of each batch
    canal_end: CanalPosition | None = None


def write(
    server: LocalServer, folder: Path, start_canal: Callable[..., AbstractContextManager[CanalServer]] | None
) -> Written:
    """Write the rows before all statements, then the first statement of each case with the rows after it, and so on.

    ``start_canal``: starts a Canal server that reads ``server``; None: there is none. Canal names columns as they are
    called when it reads them, so each part is written when it has read the one before. Only with TSDB can it read the
    tables of the tools, which are dropped at once; but then it does not understand all other statements.
    """
    server.execute(
        *(f"DROP DATABASE IF EXISTS {one}" for one in (DATABASE, AWAY)),
        f"CREATE DATABASE {DATABASE}",
        f"CREATE DATABASE {AWAY}",
        "FLUSH BINARY LOGS",
    )
    written = Written(server, position(server), folder / "files")
    for tsdb in (False, True):
        cases = [case for case in CASES if server.binaries.kind in case.servers and bool(case.tool) is tsdb]
        with (
            start_canal(folder / f"canal-{tsdb}", server, tsdb=tsdb)
            if start_canal is not None
            else nullcontext() as canal
        ):
            _write(written, cases, canal)
    _copy_files(written)
    return written


def _write(written: Written, cases: list[Case], canal: CanalServer | None) -> None:
    server = written.server
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+02:00'")
        for case in cases:
            _create(cursor, case)
        connection.commit()
        if canal is not None:
            drain(canal)  # the job knows the tables before their first rows
        for case in cases:
            _fill(cursor, case)
            connection.commit()
            written.before[case.name] = _rows(server, case.name)
            written.states[case.name] = [written.before[case.name]]
        for number in range(1, 1 + max(len(case.statements) for case in cases)):
            _read(canal, written)
            for case in cases:
                if number <= len(case.statements):
                    _change(server, cursor, case, number)
                    connection.commit()
                    if not case.is_refused:
                        written.states[case.name] += _rows_if_any(server, cursor, case.name)
    for case in cases:
        if not case.is_refused:
            written.after[case.name] = written.states[case.name][-1]
    written.end = position(server)
    written.canal_end = CanalPosition(written.end.file, written.end.offset)
    _read(canal, written)


def _read(canal: CanalServer | None, written: Written) -> None:
    if canal is not None:
        drain(canal, written.batches)


def _create(cursor: pymysql.cursors.Cursor, case: Case) -> None:
    more = f", {case.columns}" if case.columns else ""
    cursor.execute(
        f"CREATE TABLE {case.name} (id INT NOT NULL PRIMARY KEY, n INT NOT NULL{more}) CHARSET utf8mb4 {case.options}"
    )
    for statement in case.others:
        cursor.execute(statement.format(t=case.name, away=AWAY))


def _fill(cursor: pymysql.cursors.Cursor, case: Case) -> None:
    for i in (1, 2, 3):
        values = ", ".join([f"{i}", f"{i * 100}", *([case.values] if case.values else [])])
        cursor.execute(f"SET @i = {i}")
        cursor.execute(f"INSERT INTO {case.name} SELECT {values} FROM (SELECT {i} AS i) one")


def _change(server: LocalServer, cursor: pymysql.cursors.Cursor, case: Case, number: int) -> None:
    text = case.statements[number - 1]
    if case.tool == "gh-ost":
        gh_ost(server, DATABASE, text, Writers(), table=case.name)
    elif case.tool:
        pt_osc_begin(server, DATABASE, text, table=case.name)
        pt_osc_end(server, DATABASE, table=case.name, drop_swap=case.tool == "drop_swap")
    else:
        whole = text.format(t=case.name, away=AWAY) if "{t}" in text else f"ALTER TABLE {case.name} {text}"
        cursor.execute(whole)
    is_last = number == len(case.statements)
    if case.is_refused or case.is_gone or not (is_last or case.has_rows_between):
        return
    cursor.execute(f"INSERT INTO {case.name} (id, n) VALUES ({number * 10}, {number})")
    cursor.execute(f"UPDATE {case.name} SET n = n + 1 WHERE id = 2")
    cursor.execute(f"DELETE FROM {case.name} WHERE id = 3")


def _rows(server: LocalServer, table: str) -> tuple[TableSchema, Rows]:
    schema = schema_now(server, DATABASE, table)
    return schema, expected(server, schema)


def _rows_if_any(server: LocalServer, cursor: pymysql.cursors.Cursor, table: str) -> Iterator[tuple[TableSchema, Rows]]:
    if cursor.execute("SHOW TABLES LIKE %s", (table,)):
        yield _rows(server, table)


def _copy_files(written: Written) -> None:
    server, end = written.server, written.end
    assert end is not None
    server.execute("FLUSH BINARY LOGS")
    first = int(Path(written.start.file).suffix[1:])
    stem = Path(written.start.file).stem
    written.files.mkdir()
    for number in range(first, int(Path(end.file).suffix[1:]) + 1):
        shutil.copy(server.data / f"{stem}.{number:06}", written.files / f"{stem}.{number:06}")
