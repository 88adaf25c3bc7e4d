"""Versions of a table's schema at the positions of a source."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdc.errors import SchemaMismatch
from cdc.model.batch import RequiredColumns
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, ShadowCopy, TableSchema
from cdc.mysql.ddl import EffectKind
from cdc.sources.binlog.column_changes import ColumnChangeSearch
from cdc.sources.binlog.ddl_handler import DdlHandler
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.omission_rules import OmissionRules
from cdc.sources.binlog.table_registry import TableRegistry
from cdc.sources.schema_history import ResumeOptions, SchemaHistory
from cdc.sources.stored_names import UncertainName
from channels.mapping import Mapping
from channels.routes import Routes

NAME = ("shop", "t")


def at(offset):
    return BinlogPosition("b.000001", offset, "u")


def table(*columns):
    return TableSchema("shop", "t", tuple(Column(name, Kind.INT, "int") for name in columns), ("id",))


@pytest.fixture
def history():
    table_filter = SimpleNamespace(
        may_map=lambda database, name: True, reads=lambda schema: RequiredColumns(frozenset(["id"]), frozenset(["id"]))
    )
    return SchemaHistory(table_filter, None)


def columns(schemas):
    return [[column.name for column in schema.columns] for schema in schemas]


def test_history_first_version_is_valid_before_it_was_added(history):
    history.add(NAME, table("id"), at(100))
    assert columns(history.at(at(50))) == [["id"]]


def test_history_returns_the_version_valid_at_a_position(history):
    history.add(NAME, table("id"), at(100))
    history.add(NAME, table("id", "a"), at(200))
    assert columns(history.at(at(199))) == [["id"]]
    assert columns(history.at(at(200))) == [["id", "a"]]
    assert history.current(NAME).columns[-1].name == "a"


def test_columns_of_a_table_that_no_channel_reads_are_not_saved():
    """Its channel was removed. Statements on it are not followed, and a later channel must not get these columns."""
    names = ["shop.kept", "shop.removed", "shop._kept_gho", "shop.old"]
    saved = [replace(table("id", "a"), table=name.partition(".")[2]) for name in names]
    saved[2], saved[3] = replace(saved[2], copy=ShadowCopy()), replace(saved[3], is_renamed=True)
    table_filter = SimpleNamespace(may_map=lambda database, name: name == "kept")
    history = SchemaHistory(table_filter, None)
    history.begin(saved)
    assert [schema.name for schema in history.at(at(9))] == ["shop.kept", "shop._kept_gho", "shop.old"]


def test_history_ended_table_is_unknown_until_a_later_version(history):
    history.add(NAME, table("id"), at(100))
    history.end(NAME, at(200))
    assert history.has(NAME) and history.current(NAME) is None
    assert columns(history.at(at(150))) == [["id"]] and history.at(at(200)) == ()
    history.add(NAME, table("id", "b"), at(200))
    assert columns(history.at(at(200))) == [["id", "b"]]


def test_history_begins_again_with_saved_schemas(history):
    history.add(NAME, table("id"), at(100))
    history.end(NAME, at(200))
    history.begin(history.at(at(150)))
    assert columns(history.at(at(10))) == [["id"]]


def test_history_require_names_an_unknown_table(history):
    with pytest.raises(SchemaMismatch, match=r"shop\.t are not known"):
        history.require("shop", "t", hint="Create it.")


def test_history_loaded_and_searched_tables_are_known(history):
    assert history.known("shop") == ()
    history.note_loaded(["shop.t"])
    assert history.known("shop") == history.known("shop", "t") == ("shop.t",)
    history.forget_loaded(NAME)
    history.searched = frozenset([NAME])
    assert history.known("shop") == ("shop.t",)


def test_history_every_column_of_an_unknown_table_is_read(history):
    assert history.reads_column("shop", "t", "other")
    history.add(NAME, table("id", "other"), at(100))
    assert not history.reads_column("shop", "t", "other") and history.reads_column("shop", "t", "ID")


@pytest.mark.parametrize("table", ["_t_gho", "_t_ghc", "_t_ghk", "_t_del", "_t_new", "_t_old", "__t_new", "__t_old"])
def test_effect_of_shadow_table_of_a_pattern_is_none(table):
    routes = Routes([Mapping("shop.*", "ods.*")])
    history = SchemaHistory(routes, None)
    for sql in (
        f"CREATE TABLE `{table}` LIKE t",
        f"CREATE TABLE shop.{table} (id INT PRIMARY KEY)",
        f"ALTER TABLE {table} ADD x INT",
        f"DROP TABLE IF EXISTS {table}",
        f"RENAME TABLE {table} TO _other_old",
    ):
        assert history.effect(sql, "shop").kind is EffectKind.NONE, sql
    assert history.effect("CREATE TABLE t2 LIKE t", "shop").kind is EffectKind.CREATES
    swap = history.effect(f"RENAME TABLE t TO _t_del, {table} TO t", "shop")
    assert (swap.kind, swap.tables, swap.row_changing) == (EffectKind.TOUCHES, ("shop.t",), True)


def test_history_dropped_table_keeps_its_columns_until_it_is_created_again(history):
    history.begin([replace(table("id", "a"), is_dropped=True)])
    history.catalog[NAME] = table("id", "b")  # the server has it again, later
    assert history.newest(NAME) is history.current(NAME) is None
    assert len(history.dropped(NAME).columns) == 2 and history.known("shop") == ()
    with pytest.raises(SchemaMismatch, match="not known"):
        history.require(*NAME, hint="Wait.")
    history.add(NAME, table("id", "b"), at(200))
    assert history.dropped(NAME) is None and history.known("shop") == ("shop.t",)
    assert history.at(at(150))[0].is_dropped and not history.at(at(200))[0].is_dropped


def test_history_shadow_table_begins_and_ends_at_its_statements(history):
    name, shadow = ("shop", "_t_gho"), replace(table("id"), table="_t_gho", copy=ShadowCopy())
    history.add_shadow(name, shadow, at(100))
    assert history.at(at(99)) == () and columns(history.at(at(100))) == [["id"]]
    assert history.shadow(name) is not None and history.shadows() == (name,) and history.known("shop") == ()
    history.end(name, at(200))
    assert history.shadow(name) is None and history.at(at(200)) == ()
    history.add_shadow(name, shadow, at(300))
    assert columns(history.at(at(300))) == [["id"]] and history.at(at(250)) == ()


@pytest.mark.parametrize(("read_at", "valid_from"), [(100, 200), (250, 250)])
def test_version_of_rows_after_an_end_is_not_ended_by_it(history, read_at, valid_from):
    """The position that was delivered can be before the statement, after which the rows are."""
    history.add(NAME, table("id"), at(50))
    history.end(NAME, at(200))
    added = history.add_after_end(NAME, table("id", "a"), at(read_at))
    assert history.newest(NAME) is added and added.since == at(valid_from)
    assert columns(history.at(at(150))) == [["id"]] and columns(history.at(at(250))) == [["id", "a"]]


@pytest.mark.parametrize(
    ("fold_case", "sql", "kind", "tables"),
    [
        (None, "TRUNCATE TABLE Orders", "touches", ("shop.orders",)),
        (None, "ALTER TABLE SHOP.ORDERS DROP PARTITION p0", "touches", ("shop.orders",)),
        (None, "DROP TABLE IF EXISTS Orders", "touches", ("shop.orders",)),
        (None, "DROP DATABASE Shop", "touches", ("shop.orders", "shop.Camel")),
        (None, "ALTER TABLE Orders ADD INDEX (id)", "harmless", ("shop.orders",)),
        (None, "INSERT INTO Orders VALUES (1)", "writes", ("shop.orders",)),
        (None, "TRUNCATE TABLE Camel", "touches", ("shop.Camel",)),
        (None, "CREATE TABLE CAMEL (id INT)", "none", ()),
        (True, "TRUNCATE TABLE Orders", "touches", ("shop.orders",)),
        (False, "TRUNCATE TABLE Orders", "none", ()),
    ],
)
def test_effect_on_a_server_that_may_store_names_in_lower_case(fold_case, sql, kind, tables):
    """The text has the names as the user has written them, the rows as the server stores them."""
    routes = Routes([Mapping("shop.orders", "ods.orders"), Mapping("shop.Camel", "ods.camel")])
    history = SchemaHistory(routes, None)
    history.begin([replace(table("id"), table=name) for name in ("orders", "Camel")])
    history.names.fold_case = fold_case
    effect = history.effect(sql, "shop", ansi_quotes=False)
    assert (effect.kind.value, effect.tables) == (kind, tables)


def test_name_with_a_pattern_is_the_table_that_is_known():
    history = SchemaHistory(Routes([Mapping("shop.*", "ods.*")]), None)
    history.begin([replace(table("id"), table=name) for name in ("orders", "Users", "Both", "both")])
    names = history.names
    assert [names.first("shop", one)[1] for one in ("Orders", "Users", "Both", "New")] == [
        "orders",
        "Users",
        "Both",
        "New",
    ]
    assert [names.last("shop", one)[1] for one in ("Orders", "Users", "Both", "New")] == [
        "orders",
        "Users",
        "both",
        "New",
    ]
    assert names.certain("shop", "Users") == ("shop", "Users")
    for name in ("Orders", "Both"):
        with pytest.raises(UncertainName, match=f"shop\\.{name}"):
            names.certain("shop", name)
    assert history.effect("TRUNCATE TABLE Both", "shop").tables == ("shop.Both", "shop.both")
    names.fold_case = True  # of the server that describes the tables of files
    assert [names.certain("shop", one)[1] for one in ("Orders", "Both", "New")] == ["orders", "Both", "new"]


@pytest.mark.parametrize("can_load_whole", [True, False])
@pytest.mark.parametrize("fold_case", [None, True, False])
@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("ALTER TABLE OrderItems ADD INDEX (id)", "harmless"),
        ("TRUNCATE TABLE OrderItems", "touches"),
        ("INSERT INTO OrderItems VALUES (1)", "writes"),
        ("CREATE TABLE Orders (id INT PRIMARY KEY)", "creates"),
        ("CREATE TABLE IF NOT EXISTS Orders (id INT PRIMARY KEY)", "creates"),
        ("DROP TABLE IF EXISTS Orders", "none"),
        ("INSERT INTO Orders VALUES (1)", "writes"),
        ("CREATE SOMETHING Orders", "touches"),
    ],
)
def test_name_in_a_statement_takes_no_target(can_load_whole, fold_case, sql, kind):
    """The rows can have the table in lower case. Words of a statement that cannot be read are no tables."""
    routes = Routes([Mapping("shop.*", "ods.*")], can_load_whole=can_load_whole)
    history = SchemaHistory(routes, None)
    history.names.fold_case = fold_case
    history.begin([replace(table("id"), table="OrderItems")])
    assert history.effect(sql, "shop", ansi_quotes=False).kind.value == kind
    assert routes.left_out == {} and all(routes.maps("shop", name) for name in ("orders", "create", "OrderItems"))
    assert routes.left_out == {}


def test_name_whose_target_another_table_has_is_that_table():
    """The rows of orders have shown how the server stores the name."""
    routes = Routes([Mapping("shop.*", "ods.*")], can_load_whole=False)
    history = SchemaHistory(routes, None)
    assert routes.maps("shop", "orders")
    assert history.effect("TRUNCATE TABLE Orders", "shop").tables == ("shop.orders",)


@pytest.mark.parametrize(
    "sql",
    ["DROP TABLE t", "DROP DATABASE shop", "CREATE OR REPLACE DATABASE shop", "RENAME TABLE t TO crm.t",
     "ALTER TABLE t RENAME TO crm.t"],
)  # fmt: skip
def test_statement_that_can_remove_a_table_is_recorded(sql):
    history = SchemaHistory(Routes([Mapping("shop.*", "ods.*")]), None)
    history.begin([table("id"), replace(table("id"), database="crm")])  # no channel reads the second one
    effect = history.effect(sql, "shop", ansi_quotes=False)
    assert (effect.kind, effect.tables) == (EffectKind.TOUCHES, ("shop.t",))
    history.note_removed(effect, NAME)
    assert history.removed == {"shop.t"}
    history.note_removed(history.effect("ALTER TABLE t DROP id", "shop", ansi_quotes=False), ("shop", "other"))
    assert history.removed == {"shop.t"}
    history.note_shown(NAME)  # for example renamed back
    assert history.removed == frozenset()


def test_drop_of_a_database_is_on_the_tables_that_a_channel_reads():
    """Until the next checkpoint the job knows a table whose channel was removed."""
    history = SchemaHistory(Routes([Mapping("shop.t", "ods.t")]), None)
    history.begin([table("id"), replace(table("id"), table="items")])
    assert history.effect("DROP DATABASE shop", "").tables == ("shop.t",)


def test_creation_in_another_case_touches_a_dropped_table(history):
    history.begin([replace(table("id"), is_dropped=True), replace(table("id"), table="T")])
    effect = history.effect("CREATE TABLE T (id INT)", "shop")
    assert effect.tables == ("shop.T", "shop.t")
    assert history.creation(effect, "CREATE TABLE T (id INT)").kind is EffectKind.TOUCHES


@pytest.mark.parametrize(
    ("sql", "is_ended"),
    [
        ("CREATE TABLE Orders (x INT)", False),
        ("CREATE TABLE Shop.ORDERS (x INT)", False),
        ("CREATE TABLE Orders (orders_id INT, KEY orders (orders_id)) COMMENT 'orders'", False),
        ("CREATE TABLE orders (x INT)", True),
        ("CREATE TABLE `shop`.`orders`(Orders INT)", True),
        ("CREATE TABLE Orders LIKE orders", True),
    ],
)
def test_creation_in_another_case_creates_another_table(sql, is_ended):
    """An existing table cannot be created, so without a server the name is that of a table that no channel reads."""
    routes = Routes([Mapping("shop.orders", "ods.orders")], can_load_whole=False)
    history = SchemaHistory(routes, None)
    history.begin([replace(table("id"), table="orders")])
    search = ColumnChangeSearch(history, None)
    tables = TableRegistry(routes, history, search, OmissionRules(is_accepted=False, has_server=False))
    handler = DdlHandler(routes, tables, ResumeOptions())
    handler.handle(Statement("shop", sql, at(100), at(200), 0, False, False))
    assert (history.newest(("shop", "orders")) is None) is is_ended
    history.end(("shop", "orders"), at(300))  # the user has accepted DROP TABLE
    effect = history.effect(sql, "shop")
    assert history.creation(effect, sql) == effect and effect.kind is EffectKind.CREATES
