"""Mappings and routes: what is read, what becomes the target, and what is refused by name."""

from __future__ import annotations

import pytest

from cdc.errors import ConfigError, SchemaMismatch, TargetMismatch
from cdc.schema import Column, Kind, TableSchema
from channels.mapping import Mapping, Routes

ID = Column("ID", Kind.BIGINT, "bigint", nullable=False)
EMAIL = Column("email", Kind.VARCHAR, "varchar(40)", length=40, charset="utf8mb4", comment="where to")
DAY = Column("day", Kind.DATE, "date", nullable=False)
SCHEMA = TableSchema("shop", "orders", (ID, EMAIL, DAY), ("ID",), "all orders")


def test_without_columns_the_target_is_the_source() -> None:
    target = Mapping("shop.orders", "ods.orders").target_table(SCHEMA)
    assert [column.name for column in target.columns] == ["ID", "email", "day"]
    assert (target.key, target.comment, target.columns[1].comment) == (("ID",), "all orders", "where to")


def test_a_not_null_date_may_be_null_in_the_target_for_zero_dates_come_as_null() -> None:
    target = Mapping("shop.orders", "ods.orders").target_table(SCHEMA)
    assert [column.nullable for column in target.columns] == [False, True, True]


def test_reads_finds_columns_in_expressions_whatever_their_case() -> None:
    mapping = Mapping(
        "shop.orders", "ods.o", columns={"number": "id", "m": "lower(`EMAIL`)"}, filter="Day > '2020-01-01'"
    )
    reads = mapping.reads(SCHEMA)
    assert (reads.columns, reads.key) == ({"ID", "email", "day"}, {"ID"})
    assert mapping.key_of(SCHEMA) == ("number",)


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        (Mapping("shop.orders", "ods.o", columns={"m": "email"}), "ID"),
        (Mapping("shop.orders", "ods.o", key=("email",)), "lacks ID"),
        (Mapping("shop.orders", "ods.o", key=("nope",)), "nope"),
    ],
)
def test_a_key_that_does_not_hold_the_sources_key_is_refused(mapping: Mapping, said: str) -> None:
    with pytest.raises(TargetMismatch, match=said):
        mapping.reads(SCHEMA)


def test_a_table_without_key_wants_one_of_not_null_columns() -> None:
    keyless = TableSchema("shop", "orders", SCHEMA.columns, ())
    with pytest.raises(TargetMismatch, match="no primary key"):
        Mapping("shop.orders", "ods.o").reads(keyless)
    with pytest.raises(TargetMismatch, match="email"):
        Mapping("shop.orders", "ods.o", key=("email",)).reads(keyless)
    assert Mapping("shop.orders", "ods.o", key=("id",)).reads(keyless).key == {"ID"}


@pytest.mark.parametrize("text", ["missing", "lower(missing)", "orders.id"])
def test_a_column_that_is_not_there_is_named(text: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"missing|orders\.id"):
        Mapping("shop.orders", "ods.o", columns={"id": "id", "x": text}).reads(SCHEMA)


@pytest.mark.parametrize("text", ["lower(", "(select max(id) from other)", "id; drop table x"])
def test_what_is_no_expression_over_the_row_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Routes([Mapping("shop.orders", "ods.o", columns={"x": text})])


@pytest.mark.parametrize(
    ("mappings", "said"),
    [
        ([("a.b", "c.d"), ("a.b", "c.e")], "a.b is mapped twice"),
        ([("a.*", "c.*"), ("a.b*", "x.*")], "a.b* is mapped twice"),
        ([("a.b", "c.d"), ("a.c", "C.D")], "C.D is used twice, by a.b and by a.c"),
        ([("a.*", "c.d")], "one side only"),
        ([("a", "c.d")], "not `database.table`"),
        ([("*.b", "c.*")], "not `database.table`"),
    ],
)
def test_what_is_not_one_to_one_is_refused(mappings: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("*", r"\*")):
        Routes([Mapping(source, target) for source, target in mappings])


def test_patterns_give_each_table_its_own_mapping() -> None:
    routes = Routes([Mapping("crm.*", "ods.crm_*"), Mapping("shop.orders", "ods.orders")])
    found = routes.mapping_for("crm", "people")
    assert found is not None
    assert (found.source, found.target, found.is_pattern) == ("crm.people", "ods.crm_people", False)
    assert routes.mapping_for("crm", "people") is found
    assert not routes.maps("shop", "order") and not routes.maps("crm2", "people")


def test_a_table_whose_target_is_taken_is_left_out():
    routes = Routes([Mapping("a.*", "ods.*"), Mapping("b.*", "ods.*")])
    assert routes.maps("a", "people") and not routes.maps("b", "people") and not routes.maps("b", "People")
    left_out = routes.left_out["b.people"]
    assert "by a.people and by b.people" in left_out.reason
    assert (
        "exclude: [people]` in the channel b.*" in left_out.mend
        and "{source: b.people, target: another one" in left_out.mend
    )


def test_a_loaded_table_keeps_its_target_whatever_comes_first():
    routes = Routes([Mapping("a.*", "ods.*")])
    routes.restore({"a.t0"}, {})
    assert not routes.maps("a", "T0") and routes.maps("a", "t0")
    assert set(routes.left_out) == {"a.T0"}


def test_a_channel_takes_precedence_over_a_pattern():
    routes = Routes([Mapping("crm.*", "ods.*"), Mapping("crm.notes", "ods.old_notes", ("id",))])
    found = routes.mapping_for("crm", "notes")
    assert found is not None and (found.target, found.key) == ("ods.old_notes", ("id",))
    assert not routes.maps("crm", "old_notes"), "its target is the named channel's"


def test_exclude_takes_names_and_patterns():
    routes = Routes([Mapping("crm.*", "ods.*", exclude=("backup", "tmp_*_?", "`a*`"))])
    mapped = {name: routes.maps("crm", name) for name in ("backup", "backup2", "tmp_1_?", "tmp_1_2", "a*", "ab")}
    assert mapped == {"backup": False, "backup2": True, "tmp_1_?": False, "tmp_1_2": True, "a*": False, "ab": True}
    assert routes.left_out == {}


@pytest.mark.parametrize("kind", ["gho", "ghc", "del", "new", "old"])
def test_a_pattern_does_not_take_in_shadow_tables(kind):
    routes = Routes([Mapping("crm.*", "ods.*"), Mapping("crm._kept_new", "ods.kept")])
    assert not routes.maps("crm", f"_people_{kind}") and routes.maps("crm", f"people_{kind}")
    assert routes.maps("crm", f"__{kind}") and routes.maps("crm", "_kept_new")


def test_a_table_without_key_is_left_out_unless_rows_of_it_are_loaded():
    keyless = TableSchema("crm", "backup", SCHEMA.columns, ())
    routes = Routes([Mapping("crm.*", "ods.*"), Mapping("crm.named", "ods.named")])
    with pytest.raises(TargetMismatch) as caught:
        routes.reads(keyless)
    assert (
        "exclude: [backup]" in caught.value.mend and "{source: crm.backup, target: ods.backup, key" in caught.value.mend
    )
    assert routes.leave_out("crm", "backup", caught.value) and not routes.maps("crm", "backup")
    assert not routes.leave_out("crm", "named", caught.value), "a channel that names its table is never given up"
    routes.restore({"crm.backup"}, {})
    assert not routes.leave_out("crm", "backup", caught.value) and routes.maps("crm", "backup")


def test_a_source_column_with_a_name_of_ours_is_refused_unless_columns_say_otherwise():
    schema = TableSchema("shop", "orders", (ID, Column("__Deleted", Kind.TINYINT, "tinyint")), ("id",))
    with pytest.raises(SchemaMismatch, match="__Deleted, which is a name of ours"):
        Mapping("shop.orders", "ods.orders").reads(schema)
    assert Mapping("shop.orders", "ods.orders", columns={"id": "id"}).reads(schema).columns == {"ID"}
