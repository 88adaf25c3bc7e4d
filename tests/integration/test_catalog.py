"""Table schemas read from the catalogs of real servers."""

import pytest

from cdc.errors import SchemaMismatch
from cdc.model.schema import Kind
from cdc.mysql.catalog import KINDS, cascades, mapped_tables, table_schemas
from cdc.mysql.connection import Endpoint
from cdc.mysql.server import Server


def endpoint(server):
    return Endpoint(server.host, server.port, "root", unix_socket=str(server.socket))


def read(server, database, *tables):
    with Server(endpoint(server)) as asked:
        found = table_schemas(asked, [(database, table) for table in tables])
    return [found.get((database, table)) for table in tables]


COMMON = """CREATE TABLE `{db}`.t (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'the ''id''', small TINYINT(1),
  price DECIMAL(12,2) UNSIGNED,
  name VARCHAR(40) CHARACTER SET latin1, note TEXT, raw VARBINARY(16), pad BINARY(4), blobs MEDIUMBLOB, bits BIT(12),
  at DATETIME(3), stamp TIMESTAMP(6) NULL, took TIME(2), born YEAR, day DATE,
  size ENUM('S','it''s','back\\\\slash','a,b') CHARACTER SET latin1, tags SET('x','y'), place POINT,
  twice INT GENERATED ALWAYS AS (small * 2) STORED
) COMMENT 'a table'"""


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_catalog_columns_have_all_attributes(kind, request):
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    server.execute(COMMON.format(db=database))
    (schema,) = read(server, database, "t")
    assert (schema.key, schema.comment) == (("id",), "a table")
    facts = {
        column.name: (column.kind, column.length or column.precision or column.fsp, column.charset)
        for column in schema.columns
    }
    assert facts == {
        "id": (Kind.BIGINT, 0, ""),
        "small": (Kind.TINYINT, 0, ""),
        "price": (Kind.DECIMAL, 12, ""),
        "name": (Kind.VARCHAR, 40, "latin1"),
        "note": (Kind.TEXT, 65535, schema.column("note").charset),
        "raw": (Kind.VARBINARY, 16, ""),
        "pad": (Kind.BINARY, 4, ""),
        "blobs": (Kind.BLOB, 16777215, ""),
        "bits": (Kind.BIT, 12, ""),
        "at": (Kind.DATETIME, 3, ""),
        "stamp": (Kind.TIMESTAMP, 6, ""),
        "took": (Kind.TIME, 2, ""),
        "born": (Kind.YEAR, 0, ""),
        "day": (Kind.DATE, 0, ""),
        "size": (Kind.ENUM, 0, "latin1"),
        "tags": (Kind.SET, 0, schema.column("tags").charset),
        "place": (Kind.GEOMETRY, 0, ""),
        "twice": (Kind.INT, 0, ""),
    }
    assert schema.column("size").labels == ("S", "it's", "back\\slash", "a,b")
    assert schema.column("id").unsigned and schema.column("price").unsigned and not schema.column("small").unsigned
    assert schema.column("id").comment == "the 'id'"
    assert schema.column("twice").generated and not schema.column("id").generated
    assert not schema.column("id").nullable and schema.column("price").nullable


def test_catalog_key_is_primary_or_first_unique_without_null(mysql, database):
    mysql.execute(
        f"CREATE TABLE {database}.composite (a INT, b INT, c INT, PRIMARY KEY (c, a))",
        f"CREATE TABLE {database}.uniques (a INT NULL UNIQUE, b INT NOT NULL, c INT NOT NULL, UNIQUE (c), UNIQUE (b))",
        f"CREATE TABLE {database}.functional (a INT NOT NULL, UNIQUE ((a + 1)))",
        f"CREATE TABLE {database}.keyless (a INT)",
    )
    schemas = read(mysql, database, "composite", "uniques", "functional", "keyless", "missing")
    assert [schema and schema.key for schema in schemas] == [("c", "a"), ("c",), (), (), None]


def test_catalog_hidden_generated_primary_key_is_read(mysql, database):
    mysql.execute("SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF")
    try:
        with mysql.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_generate_invisible_primary_key = ON")
            cursor.execute("CREATE TABLE hidden (a INT)")
        (schema,) = read(mysql, database, "hidden")
    finally:
        mysql.execute("SET GLOBAL show_gipk_in_create_table_and_information_schema = DEFAULT")
    assert schema.key == ("my_row_id",)
    assert [(column.name, column.visible) for column in schema.columns] == [("my_row_id", False), ("a", True)]


def test_catalog_unknown_type_names_the_column(mysql, database, monkeypatch):
    monkeypatch.delitem(KINDS, "year")
    mysql.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, born YEAR)")
    with pytest.raises(SchemaMismatch, match="Column born has a type that this version does not know: year") as raised:
        read(mysql, database, "t")
    assert raised.value.context == {"table": f"{database}.t"}


def test_catalog_mariadb_only_types_are_read(mariadb, mariadb_database):
    mariadb.execute(
        f"CREATE TABLE {mariadb_database}.m (u UUID, i INET6, v INET4, j JSON, c TEXT COMPRESSED, h INT INVISIBLE)",
        f"CREATE TABLE {mariadb_database}.history (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
    )
    schema, history = read(mariadb, mariadb_database, "m", "history")
    assert [column.kind for column in schema.columns] == [
        Kind.UUID,
        Kind.INET6,
        Kind.INET4,
        Kind.TEXT,
        Kind.TEXT,
        Kind.INT,
    ]
    assert [column.visible for column in schema.columns] == [True] * 5 + [False]
    assert [column.name for column in history.columns] == ["id", "row_start", "row_end"]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_catalog_cascades_are_visible_with_documented_grants(kind, request):
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    server.execute(
        f"CREATE TABLE {database}.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE {database}.`a,b(` (id INT PRIMARY KEY, p INT, q INT, t VARCHAR(9) DEFAULT 'a,(\\'', "
        f"CONSTRAINT `on(` FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE SET NULL, "
        f"CONSTRAINT kept FOREIGN KEY (q) REFERENCES parent (id) ON DELETE RESTRICT ON UPDATE NO ACTION)",
        "DROP USER IF EXISTS reader@'localhost'",
        "DROP USER IF EXISTS reader@'127.0.0.1'",
    )
    server.create_user("reader", "pw", "REPLICATION SLAVE, REPLICATION CLIENT")
    server.execute(*(f"GRANT SELECT ON {database}.* TO reader@'{host}'" for host in ("localhost", "127.0.0.1")))
    with Server(Endpoint(server.host, server.port, "reader", "pw", unix_socket=str(server.socket))) as asked:
        found = cascades(asked, lambda db, _: db == database)
    assert sorted((key.child, key.parent, key.constraint, key.action) for key in found) == [
        (f"{database}.a,b(", f"{database}.parent", "on(", "ON DELETE CASCADE"),
        (f"{database}.a,b(", f"{database}.parent", "on(", "ON UPDATE SET NULL"),
    ]


def test_catalog_lists_mapped_tables_and_cascades(mysql, database):
    mysql.execute(
        f"CREATE TABLE {database}.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE {database}.child (id INT PRIMARY KEY, p INT, CONSTRAINT fk FOREIGN KEY (p) "
        f"REFERENCES {database}.parent (id) ON DELETE CASCADE)",
        f"CREATE VIEW {database}.v AS SELECT * FROM {database}.parent",
    )
    with Server(endpoint(mysql)) as server:
        assert mapped_tables(server, lambda db, _: db == database) == ((database, "child"), (database, "parent"))
        (found,) = cascades(server, lambda db, table: (db, table) == (database, "child"))
    assert (found.child, found.action) == (f"{database}.child", "ON DELETE CASCADE")
