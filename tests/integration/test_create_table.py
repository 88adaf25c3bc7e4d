"""CREATE TABLE statements as real servers print them, compared with information_schema."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.mysql.catalog import table_schemas
from cdc.mysql.connection import Endpoint
from cdc.mysql.create_table import read_create_table
from cdc.mysql.server import Server

INTEGERS = [
    f"{kind}{sign}" for kind in ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT") for sign in ("", " UNSIGNED")
]
COMMON = [
    *INTEGERS, "TINYINT(1)", "INT(6) ZEROFILL", "BOOL", "INTEGER", "FLOAT", "FLOAT(7,3)", "FLOAT(20)", "FLOAT(40)",
    "FLOAT UNSIGNED", "DOUBLE", "DOUBLE PRECISION", "DOUBLE(10,2) UNSIGNED", "DECIMAL", "DECIMAL(7)", "NUMERIC(65,30)",
    "DEC(12,2) UNSIGNED", "BIT", "BIT(64)", "YEAR", "DATE", "DATETIME", "DATETIME(3)", "TIME", "TIME(6)",
    "TIMESTAMP(2) NULL DEFAULT CURRENT_TIMESTAMP(2) ON UPDATE CURRENT_TIMESTAMP(2)", "TIMESTAMP NOT NULL DEFAULT NOW()",
    "CHAR", "CHAR(9) CHARACTER SET latin1", "CHARACTER VARYING(9)", "VARCHAR(40) COLLATE utf8mb4_bin NOT NULL DEFAULT ''",
    "VARCHAR(9) CHARACTER SET utf8", "VARCHAR(9) CHARACTER SET binary", "TEXT CHARACTER SET ucs2", "TINYTEXT",
    "MEDIUMTEXT", "LONGTEXT", "TEXT CHARACTER SET binary", "BINARY", "BINARY(7)", "VARBINARY(16) DEFAULT X'61'",
    "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB", "GEOMETRY", "POINT", "LINESTRING", "MULTIPOLYGON",
    "GEOMETRYCOLLECTION", "VARCHAR(20) COMMENT 'a ''quoted'', \\\\ and \\n (comment'",
    "ENUM('S','it''s','back\\\\slash','a,b','(','ü','new\\nline','a ') CHARACTER SET latin1 DEFAULT 'a,b'",
    "SET('x','y','') NOT NULL COMMENT ')'", "INT AS (LENGTH(CONCAT(c0, ',(')))", "INT GENERATED ALWAYS AS (c1 + 1) STORED",
    "INT NOT NULL DEFAULT -7", "BIT(3) DEFAULT b'101'", "VARCHAR(9) DEFAULT (CONCAT('a', ')'))", "INT INVISIBLE",
]  # fmt: skip
MYSQL = ["JSON", "VECTOR(3)", "VECTOR", "POINT SRID 4326", "VARCHAR(3) CHARACTER SET latin1 DEFAULT _utf8mb4'x'"]
MARIADB = [
    "UUID", "UUID DEFAULT UUID()", "INET4", "INET6 NOT NULL DEFAULT '::1'", "JSON", "TEXT COMPRESSED",
    "VARCHAR(99) COMPRESSED"
]  # fmt: skip
TABLES = [
    "(a INT, b INT, c INT, `pri``mary,(` INT, PRIMARY KEY (c, `pri``mary,(` DESC), KEY (a), UNIQUE u (b)) COMMENT 'it''s'",
    "(a INT NULL UNIQUE, b INT NOT NULL, c INT NOT NULL, UNIQUE (c), UNIQUE (b)) DEFAULT CHARSET latin1",
    "(a INT NOT NULL, t VARCHAR(9), CONSTRAINT `x` UNIQUE KEY (a), FULLTEXT KEY (t)) COLLATE latin1_german1_ci",
    "(a INT NOT NULL PRIMARY KEY, t VARCHAR(9)) CHARACTER SET gbk PARTITION BY HASH (a) PARTITIONS 2",
    "(a INT PRIMARY KEY) PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (9), PARTITION q VALUES LESS THAN MAXVALUE)",
    "(A INT, T VARCHAR(9) CHARACTER SET utf8mb3, primary key (a)) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf16",
    "(a INT CHECK (a > 0), CONSTRAINT positive CHECK (a < 9))",
]
MARIADB_TABLES = [
    "(id INT PRIMARY KEY, n INT WITHOUT SYSTEM VERSIONING) WITH SYSTEM VERSIONING",
    "(id INT, s TIMESTAMP(6) GENERATED ALWAYS AS ROW START INVISIBLE, e TIMESTAMP(6) GENERATED ALWAYS AS "
    "ROW END INVISIBLE, PRIMARY KEY (id, e), PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING",
]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_create_table_text_gives_the_schema_of_the_catalog(kind, request):
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    types = COMMON + (MYSQL if kind == "mysql" else MARIADB)
    columns = ", ".join(f"c{number} {each}" for number, each in enumerate(types))
    tables = [f"({columns}, PRIMARY KEY (c0))", *TABLES, *(MARIADB_TABLES if kind == "mariadb" else [])]
    statements = [f"CREATE TABLE `{database}`.t{number} {each}" for number, each in enumerate(tables)]
    server.execute(*statements)
    with Server(Endpoint(server.host, server.port, "root", unix_socket=str(server.socket))) as asked:
        shown = [
            asked.ask(f"SHOW CREATE TABLE `{database}`.t{number}")[0]["Create Table"] for number in range(len(tables))
        ]
        described = table_schemas(asked, [(database, f"t{number}") for number in range(len(tables))])
        charset = asked.ask(f"SHOW CREATE DATABASE `{database}`")[0]["Create Database"]
    default = "utf8mb4" if "utf8mb4" in charset else "latin1"
    for number, text in enumerate(shown):
        expected = described[database, f"t{number}"]
        found = read_create_table(text, database=database, mariadb=kind == "mariadb").schema
        assert [*found.columns] == [*expected.columns], text
        assert found == expected, text
        own = read_create_table(
            statements[number], database="", charset=default, mariadb=kind == "mariadb"
        ).schema  # as written by a user; `type` then has no display widths
        assert _shape(own) == _shape(expected), statements[number]


def _shape(schema):
    return replace(schema, columns=tuple(replace(column, type="") for column in schema.columns))
