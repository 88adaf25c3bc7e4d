"""Binlog files whose rows do not contain column metadata: MINIMAL metadata, and MariaDB's own types."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.errors import CdcError, DdlStop, SchemaMismatch
from cdc.sources.binlog.file_tables import ServerDescriptions, StatementDescriptions
from cdc.sources.binlog.receiver import BinlogReceiver
from cdc.sources.schema_history import ResumeOptions
from tests.support.receiving import Collector, Mapped, endpoint, position, until

TABLE = """CREATE TABLE {db}.orders (
  id INT PRIMARY KEY, price DECIMAL(9,2) UNSIGNED, note VARCHAR(20) CHARACTER SET latin1, size ENUM('S','it''s','ü'),
  tags SET('x','y') CHARACTER SET latin1, at TIMESTAMP(3) NOT NULL, raw BLOB, big BIGINT UNSIGNED, pad BINARY(4)
) DEFAULT CHARSET=utf8mb4"""
ROWS = (
    "INSERT INTO {db}.orders VALUES (1, 1.50, 'größe', 'it''s', 'x,y', '2020-01-02 03:04:05.678', 'a', ~0, 'pad'), "
    "(2, NULL, NULL, 'ü', '', '2020-01-02 03:04:05', NULL, 7, NULL)"
)


class Files:
    """A real server whose binlog has no row metadata, and the files that it writes."""

    def __init__(self, server, database):
        self.server, self.database = server, database
        self.start = replace(position(server), server="", gtid_set="")
        self.pattern = f"{server.data}/mysql-bin.*"

    def write(self, *statements):
        self.server.execute(*(each.format(db=self.database) for each in statements))

    def receiver(self, descriptions=None, **options):
        found = BinlogReceiver.of_files(self.pattern, Mapped(self.database), descriptions=descriptions, **options)
        found.open(self.start, (), 0)
        return found

    def read(self, descriptions=None):
        receiver = self.receiver(descriptions)
        try:
            return Collector(receiver).collect(lambda collector: collector.receiver.status().is_finished).table()
        finally:
            receiver.close()

    def select(self):
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute("SELECT * FROM orders")
            names = [each[0] for each in cursor.description]
            return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}

    def dump(self, folder):
        """Write USE and SHOW CREATE TABLE of each table, as mysqldump does. Return the descriptions of that file."""
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW CREATE TABLE orders")
            text = cursor.fetchone()[1]
        file = folder / "schema.sql"
        file.write_text(f"-- a ; comment\nUSE `{self.database}`;\nDROP TABLE IF EXISTS `orders`;\n{text};\n")
        return StatementDescriptions(str(file))


@pytest.fixture(params=["mysql", "mariadb"])
def files(request):
    server = request.getfixturevalue(request.param)
    database = request.getfixturevalue("database" if request.param == "mysql" else "mariadb_database")
    value = "MINIMAL" if request.param == "mysql" else "NO_LOG"
    server.execute(f"SET GLOBAL binlog_row_metadata = {value}", "FLUSH BINARY LOGS")
    yield Files(server, database)
    server.execute("SET GLOBAL binlog_row_metadata = FULL")


def plain(rows):
    """Return the values as SELECT returns them."""
    return {
        key: {
            name: frozenset(filter(None, value.split(","))) if name == "tags" and value is not None
            else value.replace(tzinfo=None) if name == "at" else value
            for name, value in row.items()
        }
        for key, row in rows.items()
    }  # fmt: skip


def assert_equal(found, expected):
    assert plain(found) == plain(expected)


@pytest.mark.parametrize("way", ["mysql", "file", "statements"])
def test_old_files_give_the_rows_of_select_with_each_schema(files, way, tmp_path):
    if way != "statements":
        files.write(TABLE)
        files.start = replace(position(files.server), server="", gtid_set="")
    files.write(*([TABLE, ROWS] if way == "statements" else [ROWS]), "DELETE FROM {db}.orders WHERE id = 2")
    files.write("UPDATE {db}.orders SET note = 'changed', at = '2021-01-01'")
    descriptions = {
        "mysql": lambda: ServerDescriptions(endpoint(files.server)),
        "file": lambda: files.dump(tmp_path),
        "statements": lambda: None,
    }[way]()
    found = files.read(descriptions)
    assert len(found) == 1
    assert_equal(found, files.select())


def test_old_files_without_a_description_raise_with_hint(files):
    files.write(TABLE)
    files.start = replace(position(files.server), server="", gtid_set="")
    files.write(ROWS)
    receiver = files.receiver()
    with pytest.raises(SchemaMismatch, match="no description of the table was found") as raised:
        until(lambda: receiver.get(0.2), 60)
    receiver.close()
    assert "source.schema" in raised.value.hint


def run(files, descriptions, resume_options=None, start=None, schemas=()):
    """Read until the end or an error. Return the rows by key, the error, and the last position with its schemas."""
    receiver = BinlogReceiver.of_files(
        files.pattern,
        Mapped(files.database),
        descriptions=descriptions,
        resume_options=resume_options or ResumeOptions(),
    )
    receiver.open(start or files.start, schemas, 0)
    collected = Collector(receiver)
    error = None
    try:
        collected.collect(lambda collector: collector.receiver.status().is_finished, 60)
    except CdcError as found:
        error = found
    last = collected.batches[-1].last if collected.batches else start or files.start
    schemas = receiver.schemas()
    receiver.close()
    return collected.table(), error, last, schemas


SMALL = "CREATE TABLE {db}.orders (id INT PRIMARY KEY, a INT, b INT)"


def test_old_files_rows_before_ddl_ignore_the_final_description(files, tmp_path):
    files.write(SMALL)
    files.start = replace(position(files.server), server="", gtid_set="")
    files.write(
        "INSERT INTO {db}.orders VALUES (1, 10, 20)",
        "ALTER TABLE {db}.orders CHANGE a c INT, CHANGE b a INT",
        "INSERT INTO {db}.orders VALUES (2, 30, 40)",
    )
    for descriptions in (ServerDescriptions(endpoint(files.server)), files.dump(tmp_path)):
        rows, error, _, _ = run(files, descriptions)
        assert rows == {} and isinstance(error, SchemaMismatch) and "CHANGE a c" in error.message
        assert "valid after the last change" in error.hint


def test_old_files_create_table_applies_until_ddl(files, tmp_path):
    files.write(
        SMALL,
        "INSERT INTO {db}.orders VALUES (1, 10, 20)",
        "ALTER TABLE {db}.orders CHANGE a c INT, CHANGE b a INT",
        "INSERT INTO {db}.orders VALUES (2, 30, 40)",
    )
    descriptions = files.dump(tmp_path)
    rows, error, last, schemas = run(files, descriptions)
    assert rows == {1: {"id": 1, "a": 10, "b": 20}} and isinstance(error, DdlStop)
    resume_options = ResumeOptions(acknowledged={error.context["position"]: True})
    rows, error, _, _ = run(files, descriptions, resume_options, last, schemas)
    assert (rows, error) == ({2: {"id": 2, "c": 30, "a": 40}}, None)
    rows, error, _, _ = run(files, None, resume_options, last, schemas)
    assert rows == {} and isinstance(error, SchemaMismatch) and "source.schema" in error.hint


def test_old_files_recreated_table_has_its_new_columns(files):
    files.write(SMALL, "INSERT INTO {db}.orders VALUES (1, 10, 20)")
    dropped = replace(position(files.server), server="", gtid_set="")
    files.write(
        "DROP TABLE {db}.orders",
        "CREATE TABLE {db}.orders (id INT PRIMARY KEY, b INT, a INT)",
        "INSERT INTO {db}.orders VALUES (2, 30, 40)",
    )
    rows, error, last, schemas = run(files, None)
    assert rows == {1: {"id": 1, "a": 10, "b": 20}} and isinstance(error, DdlStop)
    assert last.reached(dropped)
    accepted = ResumeOptions(acknowledged={error.context["position"]: True})
    rows, error, _, _ = run(files, None, accepted, last, schemas)
    assert (rows, error) == ({2: {"id": 2, "b": 30, "a": 40}}, None)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE TABLE IF NOT EXISTS {db}.orders (id INT PRIMARY KEY, a INT)", "IF NOT EXISTS"),
        ("CREATE TABLE {db}.orders (id INT PRIMARY KEY, a VARCHAR(9))", "default of the database"),
    ],
)
def test_old_files_ambiguous_create_table_raises(files, statement, why):
    files.write(statement, "INSERT INTO {db}.orders VALUES (1, 1)")
    rows, error, _, _ = run(files, None)
    assert rows == {} and isinstance(error, SchemaMismatch) and why in error.hint


def test_old_files_dump_without_a_database_raises(files, tmp_path):
    files.write(SMALL)
    files.start = replace(position(files.server), server="", gtid_set="")
    files.write("INSERT INTO {db}.orders VALUES (1, 10, 20)")
    file = tmp_path / "schema.sql"
    file.write_text(SMALL.replace("{db}.", ""))
    rows, error, _, _ = run(files, StatementDescriptions(str(file)))
    assert rows == {} and "names no database" in error.message and "source.schema.database" in error.hint
    rows, error, _, _ = run(files, StatementDescriptions(str(file), files.database))
    assert (rows, error) == ({1: {"id": 1, "a": 10, "b": 20}}, None)


def test_old_files_dropped_key_index_makes_columns_unknown(files):
    files.write(
        "CREATE TABLE {db}.orders (id INT NOT NULL, a INT NOT NULL, UNIQUE k (id), UNIQUE l (a))",
        "INSERT INTO {db}.orders VALUES (1, 10)",
        "DROP INDEX k ON {db}.orders",
        "INSERT INTO {db}.orders VALUES (2, 20)",
    )
    rows, error, last, schemas = run(files, None)
    assert list(rows) == [1] and isinstance(error, SchemaMismatch)
    rows, error, _, _ = run(files, None, start=last, schemas=schemas)  # a restart keeps this state
    assert rows == {} and isinstance(error, SchemaMismatch)
    rows, error, _, schemas = run(files, ServerDescriptions(endpoint(files.server)))
    assert list(rows) == [1, 2] and error is None and schemas[-1].key == ("a",)


OWN = "CREATE TABLE {db}.orders (id INT PRIMARY KEY, u UUID, v INET4, w INET6, x BINARY(16))"
OWN_ROW = (
    "INSERT INTO {db}.orders VALUES "
    "(1, '123e4567-e89b-12d3-a456-426655440000', '192.0.2.1', '2001:db8::ff00:42:8329', REPEAT('x', 16))"
)


@pytest.fixture
def full(mariadb, mariadb_database):
    """The files of a MariaDB with full row metadata."""
    mariadb.execute("FLUSH BINARY LOGS")
    return Files(mariadb, mariadb_database)


@pytest.mark.parametrize("way", ["mysql", "file", "statements"])
def test_old_files_mariadb_types_are_text(full, way, tmp_path):
    full.write(OWN)
    if way != "statements":
        full.start = replace(position(full.server), server="", gtid_set="")
    full.write(OWN_ROW)
    descriptions = {
        "mysql": lambda: ServerDescriptions(endpoint(full.server)),
        "file": lambda: full.dump(tmp_path),
        "statements": lambda: None,
    }[way]()
    assert full.read(descriptions) == {
        1: {
            "id": 1,
            "u": "123e4567-e89b-12d3-a456-426655440000",
            "v": "192.0.2.1",
            "w": "2001:db8::ff00:42:8329",
            "x": b"x" * 16,
        }
    }


def test_old_files_mariadb_type_before_later_ddl_raises(full):
    full.write(OWN)
    full.start = replace(position(full.server), server="", gtid_set="")
    full.write(
        OWN_ROW, "ALTER TABLE {db}.orders ADD COLUMN y INT", OWN_ROW.replace("(1,", "(2,").replace("))", "), 3)")
    )
    rows, error, _, _ = run(full, ServerDescriptions(endpoint(full.server)))
    assert rows == {} and isinstance(error, SchemaMismatch) and "Column u" in error.message
