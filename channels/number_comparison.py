"""Find out whether a filter only compares a column with numbers, so that a wider type of numbers does not change it."""

from __future__ import annotations

import math
import re

import sqlglot
from sqlglot import TokenType, exp

from cdc.model.schema import Column

_COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between, exp.Is)
_LOGIC = (exp.And, exp.Or, exp.Not)
# without an exponent, which makes the number a DOUBLE
_NUMBER = re.compile(r"\d+(?:\.(\d*))?")
_TEXTS = (TokenType.STRING, TokenType.RAW_STRING)


def compares_with_numbers(condition: str, column: Column) -> bool:
    """Return whether ``condition``, valid Spark SQL, only compares ``column`` with NULL and with plain numbers.

    The numbers have no more decimals than the column, because Spark can round others when the column becomes wider.
    False if ``condition`` does not name the column, or uses it in a function, a cast or a calculation.
    """
    name = column.name.casefold()
    comparisons = sqlglot.parse_one(condition, dialect="spark").find_all(*_COMPARISONS)
    compared = sum(_is_condition(one) and _has_numbers(one, name, column.scale) for one in comparisons)
    tokens = sqlglot.tokenize(condition, dialect="spark")
    named = sum(one.text.casefold() == name and one.token_type not in _TEXTS for one in tokens)
    return compared == named > 0


def _is_condition(node: exp.Expr) -> bool:
    """Return whether AND, OR and NOT connect ``node`` with the whole condition, or with one in parentheses."""
    parent = node.parent
    while isinstance(parent, _LOGIC):
        parent = parent.parent
    return parent is None or isinstance(parent, exp.Paren)


def _has_numbers(comparison: exp.Expr, name: str, scale: int) -> bool:
    """Return whether ``comparison`` has the column ``name`` once, and otherwise NULL and numbers."""
    parts = list(comparison.iter_expressions())
    others = [one for one in parts if not (isinstance(one, exp.Column) and one.name.casefold() == name)]
    return len(others) == len(parts) - 1 and all(isinstance(one, exp.Null) or _decimals(one) <= scale for one in others)


def _decimals(part: exp.Expr) -> float:
    """Return how many decimals a number has; infinity if ``part`` is not a plain number."""
    literal = part.this if isinstance(part, exp.Neg) else part
    is_number = isinstance(literal, exp.Literal) and not literal.is_string
    found = _NUMBER.fullmatch(literal.name) if is_number else None
    return len(found[1] or "") if found else math.inf
