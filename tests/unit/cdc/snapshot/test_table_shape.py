"""Whether a table is still as it was when its rows were planned to be read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.model.schema import Column, Kind, TableSchema
from cdc.snapshot.table_shape import same_columns

ID, PRICE = Column("id", Kind.INT, "int", nullable=False), Column("price", Kind.INT, "int", nullable=False)
KNOWN = TableSchema("shop", "orders", (ID, PRICE), ("id",))


@pytest.mark.parametrize(
    ("price", "same"),
    [
        (PRICE, True),
        (replace(PRICE, comment="in cents"), True),
        (replace(PRICE, kind=Kind.BIGINT, type="bigint"), False),
        (replace(PRICE, nullable=True), False),
    ],
)
def test_same_columns_have_no_other_type_and_no_new_nulls(price: Column, same: bool) -> None:
    assert same_columns(replace(KNOWN, columns=(ID, price)), KNOWN) is same


def test_column_that_refuses_nulls_since_is_the_same() -> None:
    """Rows of it fit into the target. Some sources do not tell whether a column has NULLs."""
    assert same_columns(KNOWN, replace(KNOWN, columns=(ID, replace(PRICE, nullable=True))))


@pytest.mark.parametrize(
    ("known", "today", "same"),
    [
        (("a😀", "b"), ("a?", "b"), True),  # information_schema has ? for characters outside the basic plane
        (("a😀", "b"), ("b", "a?"), False),
        (("a", "b"), ("a", "b", "c"), False),
        (("a", "b"), ("b", "a"), False),
    ],
)
def test_labels_of_row_metadata_equal_those_of_the_catalog(
    known: tuple[str, ...], today: tuple[str, ...], same: bool
) -> None:
    shown, read = (Column("e", Kind.ENUM, "enum", charset="utf8mb4", labels=labels) for labels in (today, known))
    assert same_columns(replace(KNOWN, columns=(ID, shown)), replace(KNOWN, columns=(ID, read))) is same


@pytest.mark.parametrize(
    ("today", "same"), [(65535, True), (32767, True), (16383, True), (127, False), (8388607, False)]
)
def test_length_of_text_is_compared_by_its_size(today: int, same: bool) -> None:
    """The catalog counts characters of the shortest size, row metadata bytes."""
    shown, read = (Column("t", Kind.TEXT, "text", charset="utf16", length=length) for length in (today, 65535))
    assert same_columns(replace(KNOWN, columns=(ID, shown)), replace(KNOWN, columns=(ID, read))) is same
