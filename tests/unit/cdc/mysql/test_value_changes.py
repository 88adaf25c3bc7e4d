"""Which changes of a type keep the values of existing rows."""

from __future__ import annotations

import pytest

from cdc.model.schema import Column
from cdc.mysql.column_definition import Dialect, read_column
from cdc.mysql.ddl_tokens import TokenCursor, tokens_of
from cdc.mysql.value_changes import can_change_values


def column(text: str) -> Column:
    tokens = tokens_of(f"c {text}", False, mariadb=False)
    return read_column(TokenCursor(tokens), charset="utf8mb4", dialect=Dialect(False)).described


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("INT", "BIGINT"),
        ("INT NOT NULL", "INT"),
        ("INT UNSIGNED", "BIGINT UNSIGNED"),
        ("DECIMAL(5,2)", "DECIMAL(8,4)"),
        ("FLOAT", "DOUBLE"),
        ("VARCHAR(9)", "VARCHAR(300) COMMENT 'x'"),
        ("VARCHAR(9)", "TEXT"),
        ("CHAR(9)", "VARCHAR(9)"),
        ("VARCHAR(9) CHARSET latin1", "VARCHAR(9) CHARSET utf8mb4"),
        ("TEXT CHARSET latin1", "MEDIUMTEXT CHARSET utf8mb4"),
        ("TEXT CHARSET utf8mb3", "TEXT CHARSET utf8mb4"),
        ("ENUM('a','b')", "ENUM('b','x','a')"),
        ("SET('a','b')", "SET('a','x','b')"),
        ("DATETIME", "DATETIME(6)"),
        ("TEXT", "LONGTEXT"),
    ],
)
def test_can_change_values_of_wider_type_is_false(old: str, new: str) -> None:
    assert not can_change_values(column(old), column(new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("BIGINT", "INT"),
        ("INT", "BIGINT UNSIGNED"),
        ("INT", "INT NOT NULL"),
        ("INT", "VARCHAR(20)"),
        ("DECIMAL(5,2)", "DECIMAL(5,3)"),
        ("DECIMAL(40,2)", "DECIMAL(42,4)"),
        ("FLOAT", "FLOAT(7,2)"),
        ("VARCHAR(9)", "CHAR(9)"),
        ("VARCHAR(255)", "TINYTEXT"),
        ("TEXT", "VARCHAR(9)"),
        ("TEXT CHARSET latin1", "TEXT CHARSET utf8mb4"),
        ("VARCHAR(9)", "VARCHAR(9) CHARSET latin1"),
        ("ENUM('a','b')", "ENUM('a')"),
        ("SET('a','b')", "SET('b','a')"),
        ("TIME", "TIME(3)"),
        ("DATETIME(3)", "DATETIME"),
        ("INT", "INT AS (1)"),
    ],
)
def test_can_change_values_of_another_type_is_true(old: str, new: str) -> None:
    assert can_change_values(column(old), column(new))
