"""Literals of defaults: exact for every type, or refused."""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
import pytest

from channels.sinks.stream_load.defaults import default_literal, default_problem, default_text, is_same_default
from channels.sinks.stream_load.types import ColumnType, parsed

MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 58, 120000)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (-128, pa.int8(), "-128"),
        (2**63 - 1, pa.int64(), "9223372036854775807"),
        (decimal.Decimal(2**64 - 1), pa.decimal128(20, 0), "18446744073709551615"),
        (decimal.Decimal("-1.50"), pa.decimal128(10, 2), "-1.50"),
        (decimal.Decimal("0.0000000001"), pa.decimal128(20, 10), "0.0000000001"),
        (True, pa.bool_(), "1"),
        (False, pa.bool_(), "0"),
        (0.1, pa.float64(), "0.1"),
        (datetime.date(2024, 2, 29), pa.date32(), "2024-02-29"),
        (MOMENT, pa.timestamp("us"), "2024-02-29 23:59:58.12"),
        (MOMENT.replace(microsecond=0), pa.timestamp("us"), "2024-02-29 23:59:58"),
        (MOMENT.replace(tzinfo=datetime.UTC), pa.timestamp("us", "UTC"), "2024-02-29 23:59:58.12"),
        ("", pa.string(), ""),
        (b"\x00\xff", pa.binary(), "00ff"),
        (None, pa.int32(), None),
    ],
    ids=str,
)
def test_default_text_of_each_type_is_exact(value, kind, text):
    assert default_text(pa.scalar(value, kind)) == text
    assert default_text(None) is None


@pytest.mark.parametrize("text", ["plain", "it's", 'say "x"', "line\nend", "tab\t", "😀", "`a`", "%s", "", " ", "a;b"])
@pytest.mark.parametrize("escapes", [False, True])
def test_literal_without_escapes_reads_the_same_everywhere(text, escapes):
    literal = default_literal(text, reads_escapes=escapes)
    assert default_problem(ColumnType("STRING"), text, reads_escapes=escapes) is None
    assert literal[1:-1] == text and literal[0] == literal[-1] and literal[0] not in text


@pytest.mark.parametrize(
    ("text", "literal"),
    [("a\\b", '"a\\\\b"'), ("\"'", '"""\'"'), ("\\", '"\\\\"'), ('\\"', "'\\\\\"'")],
)
def test_literal_that_needs_escapes_depends_on_product(text, literal):
    assert default_literal(text, reads_escapes=True) == literal
    assert default_problem(ColumnType("STRING"), text, reads_escapes=True) is None
    assert "not all versions read" in default_problem(ColumnType("STRING"), text, reads_escapes=False)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("JSON", "{}", "no default but NULL"),
        ("VARIANT", "1", "no default but NULL"),
        ("ARRAY<FLOAT>", "[]", "no default but NULL"),
        ("VARBINARY", "00", "no default but NULL"),
        ("VARCHAR(3)", "äöü", "6 bytes, and a default can have 3"),
        ("STRING", "x" * 65534, "65534 bytes"),
        ("STRING", "NULL", "special meaning"),
        ("STRING", "\\N", "special meaning"),
        ("DATETIME", "CURRENT_TIMESTAMP", "special meaning"),
        ("STRING", "a\0b", "special meaning"),
        ("DOUBLE", "nan", "cannot be a default"),
        ("FLOAT", "-inf", "cannot be a default"),
    ],
)
def test_default_that_cluster_cannot_keep_is_a_problem(kind, text, why):
    assert why in str(default_problem(parsed(kind), text, reads_escapes=True))
    assert default_problem(parsed(kind), None, reads_escapes=True) is None


@pytest.mark.parametrize(
    ("kind", "one", "other", "same"),
    [
        ("INT", "5", "5", True),
        ("DECIMAL", "5", "5.00", True),
        ("INT", "5", "6", False),
        ("DOUBLE", "1e2", "100", True),
        ("BOOLEAN", "true", "1", True),
        ("BOOLEAN", "false", "1", False),
        ("DATETIME", "2024-01-01 00:00:00.120000", "2024-01-01 00:00:00.12", True),
        ("DATETIME", "CURRENT_TIMESTAMP", "2024-01-01 00:00:00", False),
        ("VARCHAR", "5", "5.00", False),
        ("VARCHAR", None, "", False),
        ("VARCHAR", None, None, True),
    ],
)
def test_same_default_ignores_how_servers_print_it(kind, one, other, same):
    assert is_same_default(ColumnType(kind), one, other) is same
