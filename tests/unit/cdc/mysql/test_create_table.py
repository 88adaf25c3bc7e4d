"""CREATE TABLE statements that are refused because their result is ambiguous."""

from __future__ import annotations

import pytest

from cdc.mysql.create_table import read_create_table
from cdc.mysql.ddl_tokens import Unreadable


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("(a VARCHAR(9))", "character set of column a is the default of the database"),
        ("(a TEXT(99))", "type of column a depends on the default character set"),
        ("(a REAL)", "type real"),
        ("(a NUMBER)", "type number"),
        ("(a INT FIRST)", "FIRST of column a"),
        ("(a INT) SELECT 1 AS a", "another table"),
        ("(a INT) ENGINE=InnoDB AS SELECT 1", "another table"),
        ("(a INT) (SELECT 1)", "query"),
        ("(a INT) PARTITION BY HASH (a) PARTITIONS 2 VALUES ROW(1)", "another table"),
        ("LIKE other", "brackets"),
        ("(LIKE other)", "type other"),
        ("(a ENUM('a'))", "character set"),
        ("(a ENUM(x'61') CHARACTER SET latin1)", "a text is expected"),
        ("(a ENUM(_latin1'x') CHARACTER SET latin1)", "a text is expected"),
        ("(a SET('a' 'b') CHARACTER SET latin1)", "follow each other"),
        ("(a VARCHAR(9) CHARACTER SET klingon)", "klingon is not known"),
        ("(a INT UNHEARD_OF)", "UNHEARD_OF of column a"),
        ("(a INT, a INT)", "twice"),
        ("(a INT, PRIMARY KEY (b))", "not there"),
        ("(a BLOB NOT NULL, UNIQUE (a(9)))", "parts of values"),
        ("(a INT", "not closed"),
        ("(a INT, s TIMESTAMP(6) AS ROW START, e TIMESTAMP(6) AS ROW END, PRIMARY KEY (a))", "adds e to its key"),
    ],
)
def test_read_create_table_ambiguous_text_is_refused(definition: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read_create_table(f"CREATE TABLE shop.t {definition}", database="")


def test_read_create_table_without_database_is_refused() -> None:
    with pytest.raises(Unreadable, match="names no database"):
        read_create_table("CREATE TABLE t (a INT)", database="")


@pytest.mark.parametrize(
    ("definition", "type_text"),
    [
        ("SERIAL", "bigint unsigned"),
        ("NVARCHAR(9)", "varchar(9)"),
        ("TEXT(99) CHARACTER SET latin1", "tinytext"),
        ("LONG VARBINARY", "mediumblob"),
        ("CHAR(4) BYTE", "binary(4)"),
    ],
)
def test_read_create_table_other_spellings_are_read(definition: str, type_text: str) -> None:
    found = read_create_table(f"CREATE TABLE shop.t (a {definition})", database="").schema
    assert found.columns[0].type == type_text


def test_read_create_table_ignores_mariadb_comment_on_mysql() -> None:
    text = "CREATE TABLE t (a INT /*M! , b INT */)"
    assert len(read_create_table(text, database="shop", mariadb=False).schema.columns) == 1
    assert len(read_create_table(text, database="shop", mariadb=True).schema.columns) == 2


def test_read_create_table_returns_unique_index_of_key() -> None:
    text = "CREATE TABLE t (a INT NOT NULL, b INT, UNIQUE (b), UNIQUE KEY x (a)) DEFAULT CHARSET=utf8"
    found = read_create_table(text, database="shop")
    assert (found.schema.key, found.key_index) == (("a",), "x")
