"""Statements of gh-ost and pt-online-schema-change, and what their RENAME TABLE is for the job."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.errors import DdlStop
from cdc.model.batch import RequiredColumns
from cdc.model.position import BinlogPosition, Position
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ChangeKind, FillKind, SchemaChange, TableChange
from cdc.model.table_names import is_shadow, originals_of
from cdc.sources.binlog.column_changes import ColumnChangeSearch
from cdc.sources.binlog.ddl_handler import DdlHandler
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.omission_rules import OmissionRules
from cdc.sources.binlog.table_registry import TableRegistry
from cdc.sources.schema_history import ResumeOptions, SchemaHistory
from cdc.state.codec import from_json, to_json

ID = Column("id", Kind.INT, "int", nullable=False)
A = Column("a", Kind.INT, "int")
T = TableSchema("shop", "t", (ID, A), ("id",), charset="utf8mb4")
GHOST = ("CREATE /* gh-ost */ TABLE shop._t_gho LIKE shop.t", "ALTER /* gh-ost */ TABLE shop._t_gho {0}")
GHOST_SWAP = "RENAME /* gh-ost */ TABLE shop.t TO shop._t_del, shop._t_gho TO shop.t"
PT = (
    "CREATE TABLE shop._t_new (id INT NOT NULL, a INT, PRIMARY KEY (id)) DEFAULT CHARSET=utf8mb4",
    "ALTER TABLE shop._t_new {0}",
    "CREATE TRIGGER pt_osc_shop_t_ins AFTER INSERT ON shop.t FOR EACH ROW REPLACE INTO shop._t_new (id) VALUES (NEW.id)",
)
PT_SWAP = "RENAME TABLE shop.t TO shop._t_old, shop._t_new TO shop.t"
ADD = "ADD COLUMN b INT DEFAULT 5"


class Stream:
    """Statements of a binlog without a server, each at its own position; shop.t is mapped, also as dropped table."""

    def __init__(self, *schemas: TableSchema, at: int = 0, accepted: dict[Position, bool] | None = None) -> None:
        table_filter: Any = SimpleNamespace(
            may_map=lambda database, table: database == "shop" and not is_shadow(table),
            reads=lambda schema: RequiredColumns(frozenset(one.name for one in schema.columns), frozenset(["id"])),
        )
        self.history = SchemaHistory(table_filter, None)
        self.history.begin(schemas or (T,))
        search = ColumnChangeSearch(self.history, None)
        tables = TableRegistry(table_filter, self.history, search, OmissionRules(is_accepted=False, has_server=False))
        self.handler = DdlHandler(table_filter, tables, ResumeOptions(acknowledged=accepted or {}))
        self.at = at

    def position(self, offset: int) -> BinlogPosition:
        return BinlogPosition("b.000001", offset, "u")

    def run(self, *statements: str, is_part: bool = False) -> None:
        for sql in statements:
            self.at += 10
            self.handler.handle(
                Statement(
                    "shop", sql, self.position(self.at), self.position(self.at + 5), 1_700_000_000, False, False,
                    mariadb=False, sql_mode=0, is_part=is_part,
                )
            )  # fmt: skip

    def stop(self, sql: str, **options: Any) -> DdlStop:
        with pytest.raises(DdlStop) as caught:
            self.run(sql, **options)
        return caught.value

    def change(self, sql: str) -> SchemaChange:
        stop = self.stop(sql)
        assert stop.change is not None, stop.message
        return stop.change

    def restarted(self) -> Stream:
        """The stream of a new process, with the saved schemas."""
        kind = tuple[TableSchema, ...]
        saved: Any = from_json(kind, to_json(self.history.at(self.position(self.at + 5)), kind))
        return Stream(*saved, at=self.at)


def described(change: TableChange) -> list[tuple[str, str, str]]:
    """The changes of columns: kind, column, and how existing rows are filled."""
    return [
        (one.kind.value, (one.new or one.old or ID).name, one.fill.kind.value if one.new else "")
        for one in change.columns
    ]


@pytest.mark.parametrize(("begin", "swap"), [(GHOST, GHOST_SWAP), (PT, PT_SWAP)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_whole_run_is_one_alter_of_the_original(begin: tuple[str, ...], swap: str, is_restarted: bool) -> None:
    stream = Stream()
    stream.run(*(each.format(ADD) for each in begin))
    if is_restarted:
        stream = stream.restarted()
    found = stream.change(swap)
    (change,) = found.tables
    assert described(change) == [("add.column", "b", "literal")]
    assert change.rows is None and not change.values_differ and not change.key_changed
    assert (change.before, [one.name for one in change.after.columns]) == (replace(T, since=None), ["id", "a", "b"])
    assert (change.after.table, change.after.copy) == ("t", None)
    assert found.forgets == (f"shop.{'_t_gho' if begin is GHOST else '_t_new'}",)


def test_drop_swap_of_pt_osc_drops_then_alters() -> None:
    stream = Stream()
    stream.run(*(each.format(ADD) for each in PT))
    (dropped,) = stream.change("DROP TABLE IF EXISTS shop.t").tables
    assert (dropped.rows, dropped.after.is_dropped) == (ChangeKind.DROP_TABLE, True)
    stream.at += 5
    shadow = stream.history.shadow(("shop", "_t_new"))
    assert shadow is not None
    stream = Stream(dropped.after, shadow, at=stream.at)  # the run ends after each change
    (change,) = stream.change("RENAME TABLE shop._t_new TO shop.t").tables
    assert described(change) == [("add.column", "b", "literal")] and change.rows is None
    assert change.before.is_dropped and not change.after.is_dropped


@pytest.mark.parametrize(
    ("clauses", "expected", "differ"),
    [
        ("ADD b DATETIME DEFAULT CURRENT_TIMESTAMP", [("add.column", "b", "by row")], False),
        ("ADD b TIMESTAMP DEFAULT CURRENT_TIMESTAMP", [("add.column", "b", "by row")], False),
        ("ADD b DATETIME NULL ON UPDATE CURRENT_TIMESTAMP", [("add.column", "b", "null")], True),
        (
            "ADD b INT COMMENT 'on update', ADD `on` INT",
            [("add.column", "b", "null"), ("add.column", "on", "null")],
            False,
        ),
        ("ADD b INT NOT NULL", [("add.column", "b", "literal")], False),
        ("DROP a, ADD a BIGINT DEFAULT 1", [("drop.column", "a", ""), ("add.column", "a", "by row")], False),
        ("CHANGE a c INT", [("rename.column", "c", "null")], True),
        ("ENGINE=InnoDB", [], False),
        ("ADD INDEX (a)", [], False),
    ],
)
def test_values_that_the_copy_has_decide_about_a_load(clauses: str, expected: list[Any], differ: bool) -> None:
    stream = Stream()
    stream.run(*(each.format(clauses) for each in GHOST))
    (change,) = stream.change(GHOST_SWAP).tables
    assert (described(change), change.values_differ, change.rows) == (expected, differ, None)


@pytest.mark.parametrize(
    "statements",
    [
        (GHOST[1].format(ADD),),  # it began before the job
        (*(each.format(ADD) for each in GHOST), "DROP TABLE shop._t_gho"),
        (*(each.format(ADD) for each in GHOST), "TRUNCATE shop._t_gho"),
        (*(each.format(ADD) for each in GHOST), "ALTER TABLE shop._t_gho ADD COLUMN ((("),
    ],
)  # fmt: skip
def test_run_that_is_not_known_whole_is_another_table(statements: tuple[str, ...]) -> None:
    stream = Stream()
    stream.run(*statements)
    assert "after it are not known" in stream.stop(GHOST_SWAP).message  # there is no server to ask


def test_copy_with_other_rows_is_another_table_with_known_columns() -> None:
    stream = Stream()
    stream.run(GHOST[0], "ALTER TABLE shop._t_gho ADD UNIQUE (a), ADD b INT")  # INSERT IGNORE omits rows
    (change,) = stream.change(GHOST_SWAP).tables
    assert change.rows is ChangeKind.RENAME_TABLE and described(change) == [("add.column", "b", "by row")]


V = Column("v", Kind.VARCHAR, "varchar(20)", length=20, charset="utf8mb4")
E = Column("e", Kind.ENUM, "enum('x')", charset="utf8mb4", labels=("x",))


@pytest.mark.parametrize(
    ("clauses", "loses"),
    [
        ("MODIFY v VARCHAR(5)", True),
        ("CHANGE v w VARCHAR(5)", True),
        ("MODIFY v VARCHAR(20) COLLATE utf8mb4_0900_ai_ci", True),
        ("CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", True),
        ("MODIFY a SMALLINT", True),
        ("MODIFY a INT NOT NULL", True),
        ("MODIFY v VARCHAR(200)", True),  # it sets the collation of the table
        ("MODIFY v VARCHAR(20) COMMENT 'x'", True),
        ("CHANGE v v TEXT", True),
        ("MODIFY a BIGINT", False),
        ("MODIFY e ENUM('y', 'x')", False),
        ("ADD b VARCHAR(5) COLLATE utf8mb4_bin", False),
        ("DEFAULT CHARACTER SET utf8mb4", False),
        ("RENAME COLUMN v TO w", False),
    ],
)
def test_copy_whose_values_can_become_equal_is_another_table(clauses: str, loses: bool) -> None:
    stream = Stream(replace(T, columns=(*T.columns, V, E), charset="utf8mb4"))
    stream.run(*(each.format(clauses) for each in GHOST))
    found = stream.change(GHOST_SWAP)
    rows = [change.rows for change in found.tables]
    assert rows == ([ChangeKind.RENAME_TABLE] if loses else [None])


def test_second_run_begins_with_the_columns_of_the_first() -> None:
    stream = Stream()
    stream.run(*(each.format("ADD never INT") for each in GHOST))  # interrupted
    stream.run("DROP TABLE IF EXISTS shop._t_gho", *(each.format(ADD) for each in GHOST))
    first = stream.change(GHOST_SWAP)
    assert described(first.tables[0]) == [("add.column", "b", "literal")]
    stream = Stream(first.tables[0].after, at=stream.at)
    stream.run(*(each.format("DROP b") for each in GHOST))
    assert described(stream.change(GHOST_SWAP).tables[0]) == [("drop.column", "b", "")]


def test_original_that_changes_during_the_run_is_another_table() -> None:
    stream = Stream()
    stream.run(*(each.format(ADD) for each in GHOST))
    saved = stream.history.shadow(("shop", "_t_gho"))
    assert saved is not None
    stream = Stream(replace(T, columns=(ID, A, replace(A, name="z"))), saved, at=stream.at)
    (change,) = stream.change(GHOST_SWAP).tables
    assert change.rows is ChangeKind.RENAME_TABLE
    assert described(change) == [("drop.column", "z", ""), ("add.column", "b", "by row")]


@pytest.mark.parametrize(
    "sql", ["TRUNCATE shop.t", "ALTER TABLE t DROP PARTITION p", "ALTER TABLE t TRUNCATE PARTITION p"]
)
def test_original_that_loses_rows_during_the_run_is_another_table(sql: str) -> None:
    stream = Stream()
    stream.run(*(each.format(ADD) for each in GHOST))
    change = stream.change(sql)
    assert change.forgets == ("shop._t_gho",)  # the job saves its schemas without this record

    stream = Stream(accepted={stream.position(stream.at): True})
    stream.run(*(each.format(ADD) for each in GHOST), sql)
    assert stream.history.shadow(("shop", "_t_gho")) is None
    assert "after it are not known" in stream.stop(GHOST_SWAP).message


def test_other_tables_that_lose_rows_leave_the_run() -> None:
    stream = Stream(T, replace(T, table="u"))
    stream.run(*(each.format(ADD) for each in GHOST))
    assert stream.change("TRUNCATE u").forgets == ()


def test_table_new_without_triggers_of_the_tool_is_another_table() -> None:
    stream = Stream()
    stream.run(*(each.format(ADD) for each in PT[:2]))
    (change,) = stream.change(PT_SWAP).tables
    assert change.rows is ChangeKind.RENAME_TABLE and described(change) == [("add.column", "b", "by row")]


def test_rename_and_drop_of_mapped_tables_give_a_change_for_each_name() -> None:
    stream = Stream(T, replace(T, table="u", columns=(ID,)))
    tables = stream.change("RENAME TABLE t TO v, u TO t").tables
    found = {one.after.table: one for one in tables}
    assert {name: one.after.is_dropped for name, one in found.items()} == {"v": False, "t": False, "u": True}
    assert described(found["t"]) == [("drop.column", "a", "")] and found["t"].rows is ChangeKind.RENAME_TABLE
    assert found["v"].before.columns == () and found["v"].after.columns == T.columns
    assert [one.before.table for one in stream.change("DROP DATABASE shop").tables] == ["t", "u"]


def test_change_of_a_table_without_rows_before_it_names_the_unknown_columns() -> None:
    """The server described the table when the job was started at an older position: it has the new column already."""
    stream = Stream()
    stream.history.catalog = {("shop", "new"): replace(T, table="new")}
    stop = stream.stop("ALTER TABLE new ADD COLUMN a INT")
    assert stop.change is None and "the columns of shop.new before the statement are not known" in stop.message
    assert "twice" in stream.stop("ALTER TABLE t ADD COLUMN a INT").message


def test_create_after_an_ignored_drop_stops_with_the_difference() -> None:
    stream = Stream(replace(T, is_dropped=True))
    create = "CREATE TABLE t (id INT NOT NULL PRIMARY KEY, c INT) CHARSET=utf8mb4"
    (change,) = stream.change(create).tables
    assert change.rows is ChangeKind.CREATE_TABLE and change.before.is_dropped and not change.after.is_dropped
    assert described(change) == [("drop.column", "a", ""), ("add.column", "c", FillKind.BY_ROW.value)]
    stream = Stream(replace(T, is_dropped=True))
    stop = stream.stop(create, is_part=True)
    assert stop.change is None and "also has rows" in stop.message
    Stream(replace(T, is_dropped=True)).run("DROP TABLE IF EXISTS t")  # it does not exist
    stop = Stream(replace(T, is_dropped=True)).stop(f"{create} WITH SYSTEM VERSIONING")
    assert stop.change is None and "system versioning" in stop.message


def test_shadow_names_have_their_originals() -> None:
    assert originals_of("_t_gho") == ("t",)
    assert originals_of("__t_new") == ("_t", "t")
    assert originals_of("_t_old") == originals_of("t_new") == originals_of("__new") == ()


def test_drop_of_a_table_that_only_a_snapshot_has_loaded_is_a_change() -> None:
    stream = Stream(replace(T, table="other"))
    stream.history.note_loaded(["shop.t"])
    (dropped,) = stream.change("DROP TABLE t").tables
    assert dropped.after.is_dropped and dropped.after.columns == ()
    stream = Stream(dropped.after)
    (created,) = stream.change("CREATE TABLE t (id INT NOT NULL PRIMARY KEY) CHARSET=utf8mb4").tables
    assert created.rows is ChangeKind.CREATE_TABLE and [one.name for one in created.after.columns] == ["id"]
    assert stream.change("CREATE TABLE t LIKE crm.t").tables[0].rows is ChangeKind.CREATE_TABLE


@pytest.mark.parametrize(
    ("options", "charset"),
    [
        ("DEFAULT CHARSET=latin1", "latin1"),
        ("ENGINE=InnoDB, DEFAULT CHARACTER SET = latin1", "latin1"),
        ("COLLATE latin1_bin", "latin1"),
        ("ADD INDEX (a), CHARACTER SET DEFAULT", ""),
        ("COMMENT 'no charset'", "utf8mb4"),
    ],
)
def test_default_charset_of_a_harmless_alter_is_that_of_later_columns(options: str, charset: str) -> None:
    stream = Stream()
    stream.run(f"ALTER TABLE t {options}")
    (before, after) = (stream.history.at(stream.position(at))[0] for at in (stream.at, stream.at + 5))
    assert (before.charset, after.charset) == ("utf8mb4", charset)
    stop = stream.stop("ALTER TABLE t ADD note VARCHAR(50)")
    if charset:
        assert stop.change is not None and stop.change.tables[0].after.column("note").charset == charset
    else:
        assert stop.change is None and "character set of column note is not known" in stop.message


# --- what a resume accepts ---


def test_resume_accepts_only_the_statement_of_the_pause() -> None:
    stream = Stream()
    paused_at = stream.stop("ALTER TABLE t ADD b INT").context["position"]
    stream = Stream(at=0, accepted={paused_at: False})
    stream.run("ALTER TABLE t ADD b INT")
    assert stream.stop("ALTER TABLE t DROP a").context["position"] == stream.position(stream.at)
    assert "DROP a" in Stream(at=10, accepted={paused_at: True}).stop("ALTER TABLE t DROP a").message


def test_resume_without_past_ddl_pauses_again_at_a_truncate() -> None:
    assert "--past-ddl" in Stream(accepted={BinlogPosition("b.000001", 10, "u"): False}).stop("TRUNCATE t").hint
    Stream(accepted={BinlogPosition("b.000001", 10, "u"): True}).run("TRUNCATE t")


@pytest.mark.parametrize("sql", ["TRUNCATE TABLE T", "DROP TABLE IF EXISTS shop.T", "ALTER TABLE T MODIFY a BIGINT"])
def test_statement_in_another_case_pauses_without_a_change(sql: str) -> None:
    """Files do not have the server's lower_case_table_names. A following CREATE TABLE T may also mean the table t."""
    stop = Stream().stop(sql)
    assert stop.change is None and "upper and lower case" in stop.message and stop.context["tables"] == "shop.t"
    dropped = replace(T, is_dropped=True)
    stop = Stream(dropped).stop("CREATE TABLE T (id INT PRIMARY KEY)")
    assert stop.change is None and "upper and lower case" in stop.message
