"""Statements on real servers: the columns, the key and the values that the reader computes equal the server's."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pymysql
import pytest

from cdc.model.schema import Kind
from cdc.model.schema_change import ChangeKind, FillKind
from cdc.mysql.catalog import quoted_column, table_schemas
from cdc.mysql.column_definition import Dialect
from cdc.mysql.connection import Endpoint
from cdc.mysql.ddl_tokens import Unreadable
from cdc.mysql.server import Server
from cdc.mysql.table_changes import confirmed, read_changes
from cdc.mysql.value_changes import with_kept_nulls
from tests.support.ddl_corpus import cases
from tests.support.seeds import seed_of

STATEMENT_TIME = datetime(2024, 5, 6, 7, 8, 9, 987654, UTC)
ZONE = timedelta(hours=5)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_read_changes_of_corpus_equals_catalog_and_rows(kind, request):
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    selected = [case for case in cases() if case.only in ("", kind)]
    tables = [f"t{number}" for number in range(len(selected))]
    connection = server.connect(database)
    utc = server.connect(database, use_unicode=False, conv={}, init_command="SET time_zone = '+00:00', sql_mode = ''")
    counts, problems = Counter(), []
    started = time.monotonic()
    with connection, connection.cursor() as cursor, utc, utc.cursor() as reading, Server(_endpoint(server)) as asked:
        cursor.execute("SET time_zone = '+05:00', sql_mode = ''")
        for table, case in zip(tables, selected, strict=True):
            cursor.execute(f"CREATE TABLE {table} {case.table}")
            cursor.execute(f"INSERT INTO {table} VALUES {case.rows}")
        before = table_schemas(asked, [(database, table) for table in tables])
        done = {}
        for table, case in zip(tables, selected, strict=True):
            statement = case.statement.replace("{t}", table).replace("{{}}", "{}")
            schema = before[database, table]
            cursor.execute(
                f"SET sql_mode = '{'' if case.loose else 'STRICT_ALL_TABLES'}', timestamp = {STATEMENT_TIME.timestamp()}"
            )
            values = [_rows(reading, table, column, schema.key) for column in schema.columns]
            try:
                cursor.execute(statement)
            except pymysql.err.MySQLError as error:
                counts["refused by the server"] += 1
                print("refused:", statement, error.args[-1])
                continue
            try:
                changes = read_changes(
                    statement,
                    database=database,
                    schema_of=lambda _, name: before.get((database, name)),
                    dialect=_dialect(kind),
                )
            except Unreadable as error:
                counts["unreadable"] += 1
                print("unreadable:", statement, error)
                continue
            done[table] = statement, values, changes
        after = table_schemas(asked, [(database, table) for table in done])
        for table, (statement, values, changes) in done.items():
            counts["statements"] += 1
            try:
                _compare(reading, table, before[database, table], after[database, table], values, changes, counts)
            except Exception as error:  # all differences of a run in one report
                problems.append(f"{statement}: {type(error).__name__} {error}")
    print(kind, dict(counts), f"{time.monotonic() - started:.1f} s")
    assert not problems, "\n\n".join(problems)
    assert counts["statements"] >= 300
    assert counts["refused by the server"] <= 60
    assert counts["unreadable"] <= 10
    assert counts["literal"] >= 120 and counts["statement time"] >= 8


def _compare(cursor, table, before, found, values, changes, counts):
    assert len(changes) <= 1
    if not changes:
        assert _described(before) == _described(found)
        counts["no change"] += 1
        return
    change = changes[0]
    assert _described(change.after, change.key_is_certain) == _described(found, change.key_is_certain)
    counts["key not certain"] += not change.key_is_certain
    exact = with_kept_nulls(confirmed(change, found))
    assert exact.after == replace(found, since=None)
    names = {change.old.name: change.new.name for change in exact.columns if change.kind is ChangeKind.RENAME_COLUMN}
    assert exact.key_changed == (tuple(names.get(name, name) for name in before.key) != found.key)
    for column in exact.columns:
        counts[column.kind.value] += 1
        if column.kind is ChangeKind.ADD_COLUMN:
            counts[column.fill.kind.value] += 1
            _compare_fill(cursor, table, column)
    _compare_values(cursor, table, before, found, values, exact)


def _compare_fill(cursor, table, change):
    rows = set(_rows(cursor, table, change.new, ()))
    fill = change.fill
    if fill.kind in (FillKind.BY_ROW, FillKind.NULL_OR_TIME):
        return
    if fill.kind is FillKind.STATEMENT_TIME:
        local = STATEMENT_TIME + (ZONE if change.new.kind is not Kind.TIMESTAMP else timedelta())
        text = f"{local:%Y-%m-%d %H:%M:%S.%f}"
        assert rows == {
            text[: 20 + change.new.fsp if change.new.fsp else 10 if change.new.kind is Kind.DATE else 19].encode()
        }
    else:
        assert rows == {fill.text}, f"fill {fill.text!r}, the server has {rows}"


def _compare_values(cursor, table, before, found, values, change):
    """A value that the statement changed must be reported, except for numbers with another type."""
    renames = {each.old.name: each.new.name for each in change.columns if each.kind is ChangeKind.RENAME_COLUMN}
    dropped = {each.old.name for each in change.columns if each.kind is ChangeKind.DROP_COLUMN}
    changed = {each.new.name for each in change.columns if each.changes_values}
    for column, old in zip(before.columns, values, strict=True):
        if column.name in dropped:
            continue
        new = found.column(renames.get(column.name, column.name))
        if new.name not in changed:
            assert list(map(_plain(column, new), _rows(cursor, table, new, found.key))) == list(
                map(_plain(column, new), old)
            )


def _plain(old, new):
    """Return a function that gives values of both columns the form that targets have."""
    if {old.kind, new.kind} == {Kind.FLOAT, Kind.DOUBLE}:
        return lambda value: f"{float(value):.5g}"
    if new.kind in (Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE) and new.precision <= 38:
        return lambda value: None if value is None else float(value)
    if new.kind in (Kind.DATETIME, Kind.TIMESTAMP):
        return lambda value: (
            None if value is None else value.decode().split(".")[0] + f"{(value.decode() + '.').split('.')[1]:0<6}"
        )
    return lambda value: value


def _rows(cursor, table, column, order):
    name = quoted_column(column.name)
    expression = (
        f"CAST({name} AS UNSIGNED)" if column.kind is Kind.BIT else f"{name} + 0" if "zerofill" in column.type else name
    )
    cursor.execute(
        f"SELECT {expression} FROM {quoted_column(table)}" + (f" ORDER BY {quoted_column(order[0])}" if order else "")
    )
    return [None if row[0] is not None and _is_zero_date(column, row[0]) else row[0] for row in cursor.fetchall()]


def _is_zero_date(column, value):
    return column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP) and (value[5:7] == b"00" or value[8:10] == b"00")


def _described(schema, with_key=True):
    columns = [replace(column, type="", nullable=column.nullable and with_key) for column in schema.columns]
    return columns, schema.key if with_key else (), schema.charset, schema.comment


def _dialect(kind):
    return Dialect(
        kind == "mariadb", backslash_escapes=True, real_is_float=False, explicit_timestamps=True, time_zone="+05:00"
    )


def _endpoint(server):
    return Endpoint(server.host, server.port, "root", unix_socket=str(server.socket))


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_read_changes_of_statements_in_a_row_equals_catalog(kind, request):
    """The reader alone, without the catalog between two statements: a fault would add up."""
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    random, done, unreadable = Random(seed_of()), 0, 0
    server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, c0 INT, c1 VARCHAR(10)) CHARSET latin1")
    with server.connect(database) as connection, connection.cursor() as cursor, Server(_endpoint(server)) as asked:
        schema = table_schemas(asked, [(database, "t")])[database, "t"]
        for number in range(100):
            statement = f"ALTER TABLE t {_random_clauses(random, schema, number)}"
            try:
                cursor.execute(statement)
            except pymysql.err.MySQLError:
                continue
            found = table_schemas(asked, [(database, "t")])[database, "t"]
            try:
                changes = read_changes(
                    statement, database=database, schema_of=lambda *_, now=schema: now, dialect=_dialect(kind)
                )
            except Unreadable:
                schema, unreadable = found, unreadable + 1
                continue
            schema = changes[0].after if changes else schema
            done += 1
            wrong = [
                pair
                for pair in zip(schema.columns, found.columns, strict=False)
                if replace(pair[0], type=pair[1].type) != pair[1]
            ]
            assert _described(schema) == _described(found), f"{statement}: {wrong}"
    print(kind, done, "statements in a row,", unreadable, "unreadable")
    assert done >= 40 and unreadable <= 20


def _random_clauses(random, schema, number):
    columns = [column.name for column in schema.columns if column.name != "id"]
    if not columns:  # all of them were dropped
        return f"ADD n{number} INT"
    types = ("INT", "BIGINT NOT NULL DEFAULT 3", "VARCHAR(9)", "TEXT", "DATETIME(3)", "ENUM('a','b')", "DECIMAL(7,2)")

    def clause(part):
        old, kind, new = random.choice(columns), random.choice(types), f"n{number}_{part}"
        position = random.choice(("", " FIRST", f" AFTER {random.choice(columns)}"))
        options = ("CHARACTER SET latin1", "CHARACTER SET utf8mb4", "COMMENT 'x'", "CONVERT TO CHARACTER SET utf8mb3")
        return random.choice(
            (
                f"ADD {new} {kind}{position}",
                f"ADD {new} {kind}{position}",
                f"DROP {old}",
                f"MODIFY {old} {kind}{position}",
                f"CHANGE {old} {new} {kind}{position}",
                f"RENAME COLUMN {old} TO {random.choice([new, *columns])}",
                random.choice(options),
            )
        )

    return ", ".join(clause(part) for part in range(random.randint(1, 4)))


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_new_auto_increment_renumbers_zero(kind, request):
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL, KEY (v))")
        cursor.execute("INSERT INTO t VALUES (1, 0), (2, 5)")
        cursor.execute("ALTER TABLE t MODIFY v BIGINT NOT NULL AUTO_INCREMENT")
        cursor.execute("SELECT v FROM t ORDER BY id")
        assert cursor.fetchall()[0] != (0,)
        cursor.execute("UPDATE t SET v = 0 WHERE id = 1")
        cursor.execute("ALTER TABLE t MODIFY v BIGINT NOT NULL AUTO_INCREMENT COMMENT 'as before', FORCE")
        cursor.execute("SELECT v FROM t WHERE id = 1")
        assert cursor.fetchall() == ((0,),)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_wider_auto_increment_key_keeps_its_values(kind, request):
    """A key that was AUTO_INCREMENT before keeps even a zero; a key that becomes AUTO_INCREMENT does not."""
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    statement = "ALTER TABLE {} MODIFY id BIGINT NOT NULL AUTO_INCREMENT"
    with server.connect(database) as connection, connection.cursor() as cursor, Server(_endpoint(server)) as asked:
        cursor.execute("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
        cursor.execute("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)")
        cursor.execute("CREATE TABLE plain (id INT PRIMARY KEY)")
        for table, keeps in (("t", True), ("plain", False)):
            cursor.execute(f"INSERT INTO {table} VALUES (0), (5)")
            before = table_schemas(asked, [(database, table)])[database, table]
            (change,) = read_changes(
                statement.format(table), database=database, schema_of=lambda *_, now=before: now, dialect=_dialect(kind)
            )
            cursor.execute("SET sql_mode = ''")
            cursor.execute(statement.format(table))
            change = confirmed(change, table_schemas(asked, [(database, table)])[database, table])
            cursor.execute(f"SELECT id FROM {table} ORDER BY id")
            assert (cursor.fetchall()[0] == (0,)) is keeps
            assert not change.key_changed and [one.changes_values for one in change.columns] == [not keeps]
            assert change.after.columns[0].auto_increment
            cursor.execute("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
