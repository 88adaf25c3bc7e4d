"""What each name means after a statement that renames, drops or creates tables."""

from __future__ import annotations

import pytest

from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ChangeKind, FillKind
from cdc.mysql.column_definition import Dialect
from cdc.mysql.table_changes import read_changes
from cdc.mysql.table_contents import changes_by_name, contents_of, replaced

ID = Column("id", Kind.INT, "int", nullable=False)
A, B = (Column(name, Kind.INT, "int") for name in "ab")
T = TableSchema("shop", "t", (ID, A), ("id",))
U = TableSchema("shop", "u", (ID, B), ("id",))
KNOWN = {("shop", "t"): T, ("shop", "u"): U}


def contents(sql: str) -> dict[str, tuple[str, str | None, str | None]]:
    changes = read_changes(
        sql,
        database="shop",
        schema_of=lambda *name: KNOWN.get(name),
        tables_of=lambda _: ["t", "u"],
        dialect=Dialect(mariadb=True),
    )
    return {
        table: (one.kind.value, one.origin[1] if one.origin else None, one.schema and one.schema.columns[-1:] and
                one.schema.columns[-1].name)
        for (_, table), one in contents_of(changes).items()
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("RENAME TABLE t TO old, new TO t", {
            "old": ("rename.table", "t", "a"), "t": ("rename.table", "new", ()), "new": ("rename.table", None, None),
        }),
        ("RENAME TABLE t TO x, u TO t, x TO u", {
            "t": ("rename.table", "u", "b"), "u": ("rename.table", "t", "a"), "x": ("rename.table", None, None),
        }),
        ("RENAME TABLE t TO x, x TO t", {"x": ("rename.table", None, None)}),
        ("ALTER TABLE t ADD c INT, RENAME TO crm.t", {"t": ("rename.table", "t", "c")}),
        ("DROP TABLE t, nope", {"t": ("drop.table", None, None)}),
        ("DROP DATABASE shop", {"t": ("drop.database", None, None), "u": ("drop.database", None, None)}),
        ("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, z INT)", {"t": ("drop.table", None, "z")}),
        ("ALTER TABLE t ADD c INT", {}),
    ],
)  # fmt: skip
def test_contents_of_a_statement_are_those_of_its_last_rename(sql, expected) -> None:  # type: ignore[no-untyped-def]
    assert contents(sql) == expected


def test_replaced_table_is_compared_by_column_names() -> None:
    after = TableSchema("shop", "t", (ID, Column("a", Kind.BIGINT, "bigint"), B), ("id",))
    change = replaced(T, after, ChangeKind.RENAME_TABLE)
    assert [(one.kind, one.changes_values) for one in change.columns] == [
        (ChangeKind.ALTER_TYPE, True), (ChangeKind.ADD_COLUMN, False),
    ]  # fmt: skip
    assert change.columns[-1].fill.kind is FillKind.BY_ROW and not change.key_changed
    assert replaced(T, TableSchema("shop", "t", (A,), ("a",)), ChangeKind.RENAME_TABLE).key_changed


def test_changes_by_name_of_a_swap_have_one_name_on_both_sides() -> None:
    sql = "RENAME TABLE t TO old, u TO t"
    found = contents_of(read_changes(sql, database="shop", schema_of=lambda *name: KNOWN.get(name)))
    changes = changes_by_name(
        found.items(), lambda *name: KNOWN.get(name), lambda name, content, before: content.schema or T
    )
    by_name = {one.after.table: one for one in changes}
    assert {name: one.after.is_dropped for name, one in by_name.items()} == {"t": False, "old": False, "u": True}
    assert all(one.before.table == one.after.table for one in by_name.values())
    assert by_name["old"].before.columns == () and by_name["old"].after.columns == T.columns
    assert [one.kind for one in by_name["t"].columns] == [ChangeKind.DROP_COLUMN, ChangeKind.ADD_COLUMN]
