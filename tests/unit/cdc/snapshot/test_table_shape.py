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
