"""Routes from source tables to mappings, by name and by pattern."""

from __future__ import annotations

import pickle

import pytest

from cdc.errors import ConfigError, SchemaMismatch, TargetMismatch
from cdc.model.schema import Column, Kind, TableSchema
from channels.mapping import Mapping
from channels.routes import Routes

ID = Column("ID", Kind.BIGINT, "bigint", nullable=False)
EMAIL = Column("email", Kind.VARCHAR, "varchar(40)", length=40, charset="utf8mb4", comment="where to")
DAY = Column("day", Kind.DATE, "date", nullable=False)
SCHEMA = TableSchema("shop", "orders", (ID, EMAIL, DAY), ("ID",), "all orders")


@pytest.mark.parametrize("text", ["lower(", "(select max(id) from other)", "id; drop table x"])
def test_routes_invalid_expression_raises(text: str) -> None:
    with pytest.raises(ConfigError):
        Routes([Mapping("shop.orders", "ods.o", columns={"x": text})])


@pytest.mark.parametrize("name", ["__sequence", "__SEQUENCE", "__Deleted", "ID"])
def test_routes_reserved_or_repeated_target_column_raises(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Target column {name} exists twice, or the name is reserved"):
        Routes([Mapping("shop.orders", "ods.o", columns={"id": "ID", name: "email"})])


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


def test_leave_out_source_without_tables_adds_exclude_to_the_hint() -> None:
    routes = Routes([Mapping("crm.*", "ods.*")], can_load_whole=False)
    error = SchemaMismatch("The messages have no types.", hint="Send the types.")
    assert routes.advise("crm", "people", error)  # as ``reads`` does
    assert not routes.leave_out("crm", "people", error) and routes.maps("crm", "people") and not routes.left_out
    assert error.hint.startswith("Send the types. Or leave it out with `exclude: [people]` in the channel crm.*, or")
    assert error.hint.count("exclude") == 1


def test_pickled_routes_map_the_same_tables_and_leave_out_no_more() -> None:
    routes = Routes([Mapping("crm.*", "ods.*")])
    error = TargetMismatch("It has no key.", hint="Set `key`.")
    routes.note_joined("crm.people")
    assert routes.leave_out("crm", "backup", error)
    copy = pickle.loads(pickle.dumps(routes))
    assert [copy.maps("crm", name) for name in ("people", "backup", "other")] == [True, False, True]
    assert copy.mapping_for("crm", "people") == routes.mapping_for("crm", "people")
    assert not copy.leave_out("crm", "other", error) and routes.leave_out("crm", "other", error)


def test_name_that_a_channel_would_read_gets_no_target():
    routes = Routes([Mapping("shop.*", "ods.*"), Mapping("shop.named", "ods.other")])
    assert routes.may_map("shop", "Orders") and routes.may_map("shop", "orders") and routes.may_map("shop", "named")
    assert not routes.may_map("crm", "orders") and not routes.may_map("shop", "_orders_gho")
    assert routes.maps("shop", "orders") and routes.may_map("shop", "orders") and not routes.may_map("shop", "Orders")
    assert not routes.maps("shop", "Orders") and not routes.may_map("shop", "Orders")
    assert [*routes.left_out] == ["shop.Orders"]
