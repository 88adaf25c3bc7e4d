"""Names of tables as text: valid and invalid forms, and the round trip."""

from __future__ import annotations

import pytest

from cdc.model.table_names import TableName, parse_excluded, parse_table, table_of, table_text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("shop.orders", TableName("shop", "orders")),
        ("shop.*", TableName("shop", "", "")),
        ("shop.a_*_z", TableName("shop", "a_", "_z")),
        ("`my db`.`odd.table`", TableName("my db", "odd.table")),
        ("`my db`.*", TableName("my db", "", "")),
        ("shop.`a*`", TableName("shop", "a*")),
        ("`a``b`.c", TableName("a`b", "c")),
        ("`shop`.`orders`", TableName("shop", "orders")),
    ],
)
def test_parse_table_reads_names_and_patterns(text, name):
    assert parse_table(text) == name
    assert parse_table(str(name)) == name


@pytest.mark.parametrize(
    "text", ["shop", "shop.", ".t", "a.b.c", "my db.t", "shop.odd table", "*.t", "a.**", "`a.b", "``.t", "`a`b.c", ""]
)
def test_parse_table_ambiguous_text_is_refused(text):
    with pytest.raises(ValueError, match="in backticks"):
        parse_table(text)


@pytest.mark.parametrize(
    "name",
    [
        ("shop", "orders"),
        ("my db", "t"),
        ("a.b", "c"),
        ("a", "b.c"),
        ("a`", "`"),
        ("a", "x*y"),
        ("a", "\t"),
        ("ä", "日"),
    ],
)
def test_table_of_is_reverse_of_table_text(name):
    assert table_of(table_text(*name)) == name


def test_table_of_name_without_backticks_ends_at_first_dot():
    assert table_of("shop.odd table.x") == ("shop", "odd table.x")


@pytest.mark.parametrize("text", ["a.b", "a b", "", "`a"])
def test_parse_excluded_more_than_a_table_is_refused(text):
    with pytest.raises(ValueError, match="without its database"):
        parse_excluded(text)
