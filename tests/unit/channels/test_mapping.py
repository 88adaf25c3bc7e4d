"""Mappings and routes: columns read, target tables, and refused names."""

from __future__ import annotations

import pytest

from cdc.errors import ConfigError, SchemaMismatch, TargetMismatch
from cdc.model.schema import Column, Kind, TableSchema
from channels.mapping import Mapping, Routes

ID = Column("ID", Kind.BIGINT, "bigint", nullable=False)
EMAIL = Column("email", Kind.VARCHAR, "varchar(40)", length=40, charset="utf8mb4", comment="where to")
DAY = Column("day", Kind.DATE, "date", nullable=False)
SCHEMA = TableSchema("shop", "orders", (ID, EMAIL, DAY), ("ID",), "all orders")


def test_target_table_without_columns_copies_source() -> None:
    target = Mapping("shop.orders", "ods.orders").target_table(SCHEMA)
    assert [column.name for column in target.columns] == ["ID", "email", "day"]
    assert (target.key, target.comment, target.columns[1].comment) == (("ID",), "all orders", "where to")


def test_target_table_not_null_date_is_nullable() -> None:
    target = Mapping("shop.orders", "ods.orders").target_table(SCHEMA)
    assert [column.nullable for column in target.columns] == [False, True, True]


def test_reads_ignores_case_of_columns_in_expressions() -> None:
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
def test_reads_key_without_source_key_raises(mapping: Mapping, said: str) -> None:
    with pytest.raises(TargetMismatch, match=said):
        mapping.reads(SCHEMA)


def test_reads_table_without_key_needs_not_null_key() -> None:
    keyless = TableSchema("shop", "orders", SCHEMA.columns, ())
    with pytest.raises(TargetMismatch, match="no primary key"):
        Mapping("shop.orders", "ods.o").reads(keyless)
    with pytest.raises(TargetMismatch, match="email"):
        Mapping("shop.orders", "ods.o", key=("email",)).reads(keyless)
    assert Mapping("shop.orders", "ods.o", key=("id",)).reads(keyless).key == {"ID"}


@pytest.mark.parametrize("text", ["missing", "lower(missing)", "orders.id"])
def test_reads_missing_column_raises(text: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"missing|orders\.id"):
        Mapping("shop.orders", "ods.o", columns={"id": "id", "x": text}).reads(SCHEMA)


@pytest.mark.parametrize("text", ["lower(", "(select max(id) from other)", "id; drop table x"])
def test_routes_invalid_expression_raises(text: str) -> None:
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
def test_routes_not_one_to_one_raises(mappings: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("*", r"\*")):
        Routes([Mapping(source, target) for source, target in mappings])


def test_mapping_for_pattern_returns_mapping_of_table() -> None:
    routes = Routes([Mapping("crm.*", "ods.crm_*"), Mapping("shop.orders", "ods.orders")])
    found = routes.mapping_for("crm", "people")
    assert found is not None
    assert (found.source, found.target, found.is_pattern) == ("crm.people", "ods.crm_people", False)
    assert routes.mapping_for("crm", "people") is found
    assert not routes.maps("shop", "order") and not routes.maps("crm2", "people")


def test_routes_second_table_of_target_is_left_out():
    routes = Routes([Mapping("a.*", "ods.*"), Mapping("b.*", "ods.*")])
    assert routes.maps("a", "people") and not routes.maps("b", "people") and not routes.maps("b", "People")
    left_out = routes.left_out["b.people"]
    assert "by a.people and by b.people" in left_out.reason
    assert (
        "exclude: [people]` in the channel b.*" in left_out.hint
        and "{source: b.people, target: another one" in left_out.hint
    )


def test_restore_loaded_table_keeps_target():
    routes = Routes([Mapping("a.*", "ods.*")])
    routes.restore({"a.t0"}, {})
    assert not routes.maps("a", "T0") and routes.maps("a", "t0")
    assert set(routes.left_out) == {"a.T0"}


def test_mapping_for_named_channel_precedes_pattern():
    routes = Routes([Mapping("crm.*", "ods.*"), Mapping("crm.notes", "ods.old_notes", ("id",))])
    found = routes.mapping_for("crm", "notes")
    assert found is not None and (found.target, found.key) == ("ods.old_notes", ("id",))
    assert not routes.maps("crm", "old_notes"), "its target belongs to the named channel"


def test_exclude_accepts_names_and_patterns():
    routes = Routes([Mapping("crm.*", "ods.*", exclude=("backup", "tmp_*_?", "`a*`"))])
    mapped = {name: routes.maps("crm", name) for name in ("backup", "backup2", "tmp_1_?", "tmp_1_2", "a*", "ab")}
    assert mapped == {"backup": False, "backup2": True, "tmp_1_?": False, "tmp_1_2": True, "a*": False, "ab": True}
    assert routes.left_out == {}


@pytest.mark.parametrize("kind", ["gho", "ghc", "ghk", "del", "new", "old"])
def test_maps_pattern_ignores_shadow_tables(kind):
    routes = Routes([Mapping("crm.*", "ods.*"), Mapping("crm._kept_new", "ods.kept")])
    assert not routes.maps("crm", f"_people_{kind}") and routes.maps("crm", f"people_{kind}")
    assert not routes.maps("crm", f"__people_{kind}") and not routes.maps("crm", f"_people_20240102030405_{kind}")
    assert routes.maps("crm", f"__{kind}") and routes.maps("crm", "_kept_new")


def test_leave_out_table_without_key_unless_loaded():
    keyless = TableSchema("crm", "backup", SCHEMA.columns, ())
    routes = Routes([Mapping("crm.*", "ods.*"), Mapping("crm.named", "ods.named")])
    with pytest.raises(TargetMismatch) as caught:
        routes.reads(keyless)
    assert (
        "exclude: [backup]" in caught.value.hint and "{source: crm.backup, target: ods.backup, key" in caught.value.hint
    )
    assert routes.leave_out("crm", "backup", caught.value) and not routes.maps("crm", "backup")
    assert not routes.leave_out("crm", "named", caught.value), "a table with its own channel is never left out"
    routes.restore({"crm.backup"}, {})
    assert not routes.leave_out("crm", "backup", caught.value) and routes.maps("crm", "backup")


def test_reads_reserved_column_name_raises_unless_omitted():
    schema = TableSchema("shop", "orders", (ID, Column("__Deleted", Kind.TINYINT, "tinyint")), ("id",))
    with pytest.raises(SchemaMismatch, match="column name __Deleted is reserved"):
        Mapping("shop.orders", "ods.orders").reads(schema)
    assert Mapping("shop.orders", "ods.orders", columns={"id": "id"}).reads(schema).columns == {"ID"}
