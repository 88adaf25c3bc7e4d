"""Values of existing rows in an added column. The integration test compares many more with real servers."""

from __future__ import annotations

import pytest

from cdc.model.schema_change import Fill, FillKind
from cdc.mysql.column_default import fill_of
from cdc.mysql.column_definition import Dialect, read_column
from cdc.mysql.ddl_tokens import TokenCursor, tokens_of

KNOWN = Dialect(False, backslash_escapes=True, explicit_timestamps=True, time_zone="+02:00")


def fill(text: str, dialect: Dialect = KNOWN, charset: str = "utf8mb4") -> Fill:
    tokens = tokens_of(f"c {text}", False, mariadb=False)
    definition = read_column(TokenCursor(tokens), charset=charset, dialect=dialect)
    return fill_of(definition, definition.described, dialect)


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ("INT DEFAULT '007'", b"7"),
        ("INT DEFAULT -1.5", b"-2"),
        ("DECIMAL(5,2) DEFAULT 1.005", b"1.01"),
        ("DECIMAL(5,2) NOT NULL", b"0.00"),
        ("BIT(4) DEFAULT b'101'", b"5"),
        ("BINARY(3) DEFAULT 0x41", b"A\0\0"),
        ("INT DEFAULT 0x31", b"49"),
        ("VARCHAR(9) DEFAULT X'31'", b"1"),
        ("VARCHAR(9) DEFAULT _latin1'ab'", b"ab"),
        ("VARCHAR(9) DEFAULT -0.5", b"-0.5"),
        ("BINARY(3) NOT NULL", b"\0\0\0"),
        ("CHAR(5) DEFAULT 'a '", b"a"),
        ("VARCHAR(9) DEFAULT 'it''s'", b"it's"),
        ('VARCHAR(9) DEFAULT "\u00fc"', "\u00fc".encode()),
        ("ENUM('first','b') NOT NULL", b"first"),
        ("ENUM('first','b') DEFAULT 'B'", b"b"),
        ("SET('x','y') DEFAULT 'y,x'", b"x,y"),
        ("JSON NOT NULL", b"null"),
        ("JSON DEFAULT (JSON_ARRAY())", b"[]"),
        ("YEAR DEFAULT 2024", b"2024"),
        ("TIME(2) NOT NULL", b"00:00:00.00"),
        ("DATETIME(1) DEFAULT '2024-02-29'", b"2024-02-29 00:00:00.0"),
        ("TIMESTAMP NULL DEFAULT '2024-01-01 01:00:00'", b"2023-12-31 23:00:00"),
    ],
)
def test_fill_of_literal_is_the_stored_value(definition: str, text: bytes) -> None:
    assert fill(definition) == Fill(FillKind.LITERAL, text)


@pytest.mark.parametrize(
    "definition", ["INT", "INT DEFAULT NULL", "DATE NOT NULL", "DATE DEFAULT '0000-00-00'", "DATE DEFAULT '2024-00-10'"]
)
def test_fill_without_value_is_null(definition: str) -> None:
    assert fill(definition) == Fill()


@pytest.mark.parametrize(
    "definition", ["DATETIME DEFAULT NOW()", "DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3)", "DATE DEFAULT (CURRENT_DATE)"]
)
def test_fill_of_current_time_is_the_statement_time(definition: str) -> None:
    assert fill(definition) == Fill(FillKind.STATEMENT_TIME)


@pytest.mark.parametrize(
    "definition",
    [
        "INT AUTO_INCREMENT",
        "INT AS (id + 1)",
        "INT DEFAULT (1 + 1)",
        "INT DEFAULT (id)",
        "INT DEFAULT 'x'",
        "INT DEFAULT 3000000000",
        "VARCHAR(40) DEFAULT (UUID())",
        "VARCHAR(2) DEFAULT 'abc'",
        "VARCHAR(9) CHARACTER SET greek DEFAULT '\u00fc'",
        "VARBINARY(9) DEFAULT '\u00fc'",
        "FLOAT DEFAULT 1.2345678",
        "DOUBLE DEFAULT 1e300",
        "DATETIME DEFAULT '2024-02-29 01:02:03.5'",
        "DATETIME(6) DEFAULT (NOW())",
        "DATE DEFAULT '2024-02-30'",
        "GEOMETRY NOT NULL",
        "JSON DEFAULT ('{\"b\": 1}')",
        "BIT(4) DEFAULT '1'",
        "INT DEFAULT X'31'",  # 49 in MySQL, 1 in MariaDB
        "DECIMAL(5,2) DEFAULT (x'31')",
        "VARCHAR(9) DEFAULT _utf16'ab'",
        "INT DEFAULT _utf16'12'",
        "VARCHAR(9) DEFAULT -0",
        "VARCHAR(9) DEFAULT -0.0",
    ],
)
def test_fill_that_is_not_certain_is_by_row(definition: str) -> None:
    assert fill(definition) == Fill(FillKind.BY_ROW)


def test_fill_of_timestamp_depends_on_the_session() -> None:
    assert fill("TIMESTAMP", Dialect()) == Fill(FillKind.NULL_OR_TIME)
    assert fill("TIMESTAMP", KNOWN) == Fill()
    # without explicit_defaults_for_timestamp it is NOT NULL in MariaDB, and an error in MySQL
    assert fill("TIMESTAMP DEFAULT NULL", Dialect(True)) == Fill(FillKind.NULL_OR_TIME)
    assert fill("TIMESTAMP DEFAULT NULL", Dialect(False)) == Fill()
    assert fill("TIMESTAMP NULL DEFAULT NULL", Dialect(True)) == Fill()
    assert fill("TIMESTAMP NULL DEFAULT '2024-01-01'", Dialect(time_zone="SYSTEM")) == Fill(FillKind.BY_ROW)


def test_fill_of_text_without_known_charset_is_certain_for_ascii_only() -> None:
    assert fill("VARCHAR(9) DEFAULT 'x'", charset="") == Fill(FillKind.LITERAL, b"x")
    assert fill("VARCHAR(9) DEFAULT '\u00fc'", charset="") == Fill(FillKind.BY_ROW)
