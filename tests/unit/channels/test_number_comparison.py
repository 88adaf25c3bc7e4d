"""Filters whose result does not depend on the type of a column of numbers."""

from __future__ import annotations

import pytest

from cdc.model.schema import Column, Kind
from channels.number_comparison import compares_with_numbers

A = Column("a", Kind.INT, "int")
MONEY = Column("a", Kind.DECIMAL, "decimal(10,2)", precision=10, scale=2)


@pytest.mark.parametrize(
    "condition",
    [
        "a > 5",
        "-5 <= `A`",
        "a <=> 5",
        "a != 5 OR b = 'x'",
        "NOT (a IN (1, -2, NULL) AND a NOT BETWEEN 3 AND 4)",
        "a IS NOT NULL AND upper(b) = 'a'",
        "coalesce((a = 5), false)",
        "(a > 5) = c",
    ],
)
def test_comparisons_with_numbers_do_not_depend_on_the_type(condition: str) -> None:
    assert compares_with_numbers(condition, A)
    assert compares_with_numbers(condition, MONEY)


@pytest.mark.parametrize(
    "condition",
    [
        "b > 5",  # not this column
        "a = '5'",
        "a > 5e0",
        "a > 5L",
        "a > 5.125",
        "a > 2 + 3",
        "a > b",
        "a = a",
        "a IN (1, a)",
        "a IN (1, '2')",
        "a IS TRUE",
        "a",
        "-a < 5",
        "a + 1 > 5",
        "a % 2 = 0",
        "hash(a) > 5",
        "cast(a AS string) > '5'",
        "a LIKE '5%'",
        "a > 5 || b",
        "a > 5 AND trunc(b, a)",
        "a > 5 AND b > abs(a)",
        "concat(a > 5, b) = 'x'",
        "CASE a WHEN 5 THEN true END",
        "CASE WHEN a > 5 THEN b END",
    ],
)
def test_other_uses_of_a_column_depend_on_its_type(condition: str) -> None:
    assert not compares_with_numbers(condition, A)
    assert not compares_with_numbers(condition, MONEY)


def test_number_with_more_decimals_than_the_column_depends_on_its_type() -> None:
    """A DECIMAL(38,2) and 0.125 have no common type of 38 digits, so Spark rounds one of them."""
    assert compares_with_numbers("a > 5.25", MONEY) and not compares_with_numbers("a > 5.25", A)
