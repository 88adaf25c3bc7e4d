"""What statements change in columns and rows. The integration test compares many more with real servers."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from cdc.errors import SchemaMismatch
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ChangeKind, Fill, FillKind, TableChange
from cdc.mysql.column_definition import Dialect
from cdc.mysql.create_table import read_create_table
from cdc.mysql.ddl_tokens import Unreadable
from cdc.mysql.ddl_words import in_lower_case
from cdc.mysql.table_changes import confirmed, read_changes
from cdc.mysql.value_changes import with_kept_nulls
from tests.support.ddl_corpus import cases
from tests.support.seeds import seed_of

MYSQL = Dialect(False, backslash_escapes=True, real_is_float=False, explicit_timestamps=True)


def table(text: str, charset: str = "utf8mb4") -> TableSchema:
    return read_create_table(f"CREATE TABLE {text}", database="shop", charset=charset, mariadb=False).schema


ORDERS = table("orders (id INT PRIMARY KEY, a INT, b VARCHAR(10), c DECIMAL(8,2) NOT NULL)")
TABLES = {("shop", "orders"): ORDERS, ("shop", "users"): table("users (id INT PRIMARY KEY, a INT)")}


def changes(sql: str, dialect: Dialect = MYSQL, **options: object) -> tuple[TableChange, ...]:
    return read_changes(
        sql,
        database="shop",
        schema_of=lambda *name: TABLES.get(name),
        dialect=dialect,
        **options,  # type: ignore[arg-type]
    )


def altered(clauses: str) -> TableChange:
    (found,) = changes(f"ALTER TABLE orders {clauses}")
    return found


def steps(change: TableChange) -> list[str]:
    """Return each change of a column as "kind old new"."""
    return [
        f"{each.kind.value} {each.old.name if each.old else '-'} {each.new.name if each.new else '-'}"
        for each in change.columns
    ]


def names(change: TableChange) -> str:
    return " ".join(column.name for column in change.after.columns)


@pytest.mark.parametrize(
    ("clauses", "columns"),
    [
        ("ADD x INT FIRST, ADD y INT AFTER a", "x id a y b c"),
        ("ADD x INT AFTER a, ADD y INT AFTER x, ADD z INT AFTER a", "id a z x y b c"),
        ("MODIFY a BIGINT AFTER c, DROP b", "id c a"),
        ("CHANGE a q INT AFTER c, ADD r INT AFTER q", "id b c q r"),
        ("DROP a, ADD a VARCHAR(5)", "id b c a"),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", "id b a c"),
        ("ADD (x INT, y INT, KEY (x))", "id a b c x y"),
        ("ADD x INT PARTITION BY HASH (id) PARTITIONS 4", "id a b c x"),
        ("ADD COLUMN IF NOT EXISTS a INT, ADD IF NOT EXISTS x INT, DROP IF EXISTS q", "id a b c x"),
    ],
)
def test_alter_applies_clauses_in_the_order_of_the_server(clauses: str, columns: str) -> None:
    assert names(altered(clauses)) == columns


@pytest.mark.parametrize(
    ("clauses", "expected"),
    [
        ("ADD a2 INT, DROP a", ["drop.column a -", "add.column - a2"]),
        ("CHANGE a q BIGINT", ["rename.column a q", "alter.column.type q q"]),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO q", ["rename.column b q", "rename.column a b"]),
        ("RENAME COLUMN a TO b, DROP b", ["drop.column b -", "rename.column a b"]),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", ["rename.column a b", "rename.column b a"]),
        ("MODIFY a INT COMMENT 'x'", []),
    ],
)
def test_alter_orders_changes_without_duplicate_names(clauses: str, expected: list[str]) -> None:
    assert steps(altered(clauses)) == expected


def test_alter_describes_values_of_existing_rows() -> None:
    change = altered("ADD x INT DEFAULT '007', ADD g INT AS (a + 1), MODIFY a BIGINT, MODIFY b CHAR(3)")
    assert [(each.fill.kind, each.fill.text, each.changes_values) for each in change.columns] == [
        (FillKind.NULL, None, False),
        (FillKind.NULL, None, True),
        (FillKind.LITERAL, b"7", False),
        (FillKind.BY_ROW, None, False),
    ]


def test_alter_auto_increment_may_change_values() -> None:
    assert altered("MODIFY id BIGINT NOT NULL AUTO_INCREMENT").columns[0].changes_values


@pytest.mark.parametrize(
    ("clauses", "key", "changed", "certain"),
    [
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (c, id)", ("c", "id"), True, True),
        ("DROP PRIMARY KEY", (), True, False),
        ("RENAME COLUMN id TO k", ("k",), False, True),
        ("ADD UNIQUE (a), ADD x INT", ("id",), False, True),
        ("ADD UNIQUE (c)", ("id",), False, False),
        ("DROP INDEX i", ("id",), False, False),
        ("DROP id", (), True, False),
        ("MODIFY id BIGINT", ("id",), False, False),
        ("MODIFY id BIGINT NOT NULL", ("id",), False, True),
    ],
)
def test_alter_key(clauses: str, key: tuple[str, ...], changed: bool, certain: bool) -> None:
    change = altered(clauses)
    assert (change.after.key, change.key_changed, change.key_is_certain) == (key, changed, certain)


@pytest.mark.parametrize("clauses", ["CHARACTER SET latin1, ADD x TEXT", "ADD x TEXT, COLLATE latin1_bin"])
def test_alter_new_text_has_the_default_charset_of_the_table(clauses: str) -> None:
    change = altered(clauses)
    assert change.after.charset == change.after.column("x").charset == "latin1"
    assert change.after.column("b").charset == "utf8mb4"


def test_convert_changes_all_texts_and_makes_text_longer() -> None:
    before = table("t (id INT PRIMARY KEY, v VARCHAR(9), x TEXT, y BLOB)", "latin1")
    (change,) = read_changes(
        "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4", database="shop", schema_of=lambda *_: before, dialect=MYSQL
    )
    assert [(each.type, each.charset) for each in change.after.columns[1:]] == [
        ("varchar(9)", "utf8mb4"), ("mediumtext", "utf8mb4"), ("blob", "")
    ]  # fmt: skip
    assert not any(each.changes_values for each in change.columns)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("TRUNCATE orders", ["orders orders truncate.table"]),
        ("DROP TABLE IF EXISTS nope, orders", ["orders orders drop.table"]),
        ("DROP DATABASE shop", ["orders orders drop.database", "users users drop.database"]),
        ("RENAME TABLE orders TO _old, _new TO orders", ["orders _old rename.table", "_new orders rename.table"]),
        ("RENAME TABLE orders TO tmp, users TO orders, tmp TO users",
         ["orders tmp rename.table", "users orders rename.table", "tmp users rename.table"]),
        ("ALTER TABLE orders RENAME TO crm.o", ["orders o rename.table"]),
        ("ALTER TABLE other RENAME orders", ["other orders rename.table"]),
        ("ALTER TABLE orders DROP PARTITION p", ["orders orders drop.partition"]),
        ("ALTER TABLE orders DROP PARTITION IF EXISTS p0, p1", ["orders orders drop.partition"]),
        ("ALTER TABLE orders ALGORITHM=COPY, TRUNCATE PARTITION p0, p1", ["orders orders drop.partition"]),
        ("ALTER TABLE orders DISCARD PARTITION p0, p1 TABLESPACE", ["orders orders drop.partition"]),
        ("ALTER TABLE orders REORGANIZE PARTITION p0, p1 INTO (PARTITION q VALUES IN (1))", ["orders orders None"]),
        ("ALTER TABLE orders REBUILD PARTITION p0, p1", ["orders orders None"]),
        ("ALTER TABLE orders ORDER BY orders.a, orders.b DESC", ["orders orders None"]),
        ("ALTER TABLE orders EXCHANGE PARTITION p WITH TABLE users",
         ["orders orders drop.partition", "users users drop.partition"]),
        ("ALTER TABLE other EXCHANGE PARTITION p WITH TABLE users", ["users users drop.partition"]),
        ("ALTER TABLE orders CONVERT TABLE users TO PARTITION p VALUES LESS THAN (9)",
         ["orders orders drop.partition", "users users drop.table"]),
        ("ALTER TABLE other CONVERT TABLE users TO PARTITION p VALUES LESS THAN (9)", ["users users drop.table"]),
        ("ALTER IGNORE TABLE orders ADD UNIQUE (a)", ["orders orders drop.partition"]),
        ("ALTER IGNORE TABLE orders MODIFY b VARCHAR(2)", ["orders orders drop.partition"]),
        ("ALTER IGNORE TABLE orders MODIFY a BIGINT", ["orders orders None"]),
        ("ALTER TABLE orders MODIFY b VARCHAR(2)", ["orders orders None"]),
        ("CREATE TABLE n (id INT)", ["n n create.table"]),
        ("CREATE TABLE n LIKE orders", ["n n create.table"]),
        ("CREATE OR REPLACE TABLE users (id INT)", ["users users drop.table", "users users create.table"]),
        ("CREATE TABLE IF NOT EXISTS users (id INT)", []),
        ("CREATE TEMPORARY TABLE users (id INT)", []),
        ("ALTER TABLE orders ADD INDEX (a), REORGANIZE PARTITION p INTO (PARTITION q VALUES IN (1))", ["orders orders None"]),
        ("ALTER TABLE orders ORDER BY a, b DESC", ["orders orders None"]),
        ("ALTER TABLE orders MODIFY a INT DEFAULT 3, DROP PRIMARY KEY, ADD PRIMARY KEY (id)", ["orders orders None"]),
        ("ALTER TABLE orders ADD COLUMN IF NOT EXISTS a INT, DROP COLUMN IF EXISTS z", ["orders orders None"]),
        ("ALTER TABLE other ADD x INT", []),
        ("CREATE INDEX i ON orders (a)", []),
        ("CREATE VIEW v AS SELECT 1", []),
        ("ALTER DATABASE shop CHARACTER SET latin1", []),
        ("INSERT INTO orders VALUES (1)", []),
        ("GRANT ALL ON *.* TO x", []),
        ("", []),
    ],
)  # fmt: skip
def test_statement_gives_changes_of_rows(sql: str, found: list[str]) -> None:
    result = changes(sql, tables_of=lambda _: ["orders", "users"])
    assert [f"{each.before.table} {each.after.table} {each.rows and each.rows.value}" for each in result] == found


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("EXCHANGE PARTITION p WITH TABLE users", [True, True]),
        ("CONVERT TABLE users TO PARTITION p VALUES LESS THAN (9)", [True, False]),
        ("CONVERT PARTITION p TO TABLE fresh", [False]),
        ("CONVERT PARTITION p TO TABLE users", [False, True]),
        ("IMPORT PARTITION p TABLESPACE", [True]),
        ("IMPORT TABLESPACE", [True]),
        ("DISCARD PARTITION p TABLESPACE", [False]),
        ("DROP PARTITION p", [False]),
        ("TRUNCATE PARTITION p", [False]),
    ],
)
def test_partition_work_that_brings_rows_gives_values_that_differ(clause: str, expected: list[bool]) -> None:
    result = changes(f"ALTER TABLE orders {clause}")
    assert [each.values_differ for each in result] == expected
    kinds = [
        ChangeKind.DROP_PARTITION,
        ChangeKind.DROP_TABLE if "CONVERT TABLE" in clause else ChangeKind.DROP_PARTITION,
    ]
    assert [each.rows for each in result] == kinds[: len(expected)]


def test_rename_of_swapped_tables_gives_the_columns_of_the_new_rows() -> None:
    result = changes("RENAME TABLE orders TO tmp, users TO orders, tmp TO users")
    assert [names(each) for each in result] == ["id a b c", "id a", "id a b c"]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("ALTER TABLE orders ADD x NUMBER", "type number"),
        ("ALTER TABLE orders FROBNICATE", "FROBNICATE is not known"),
        ("ALTER TABLE orders ADD x INT FROB", "FROB of column x"),
        ("ALTER TABLE orders ADD x INT AFTER nope", "no column nope"),
        ("ALTER TABLE orders DROP nope", "no column nope"),
        ("ALTER TABLE orders DROP a, ADD COLUMN IF NOT EXISTS a INT", "not clear whether"),
        ("ALTER TABLE orders ADD x INT DEFAULT 1, ALTER x SET DEFAULT 2", "also changes its default"),
        ("ALTER TABLE orders ALTER COLUMN X DROP DEFAULT, ADD x INT DEFAULT 1", "also changes its default"),
        ("ALTER TABLE orders ADD SYSTEM VERSIONING", "system versioning"),
        ("ALTER TABLE orders WITH SYSTEM VERSIONING", "system versioning"),
        ("CREATE TABLE n (id INT) WITH SYSTEM VERSIONING", "system versioning"),
        ("ALTER TABLE orders ENGINE=BLACKHOLE", "keeps no rows"),
        ("ALTER TABLE orders CONVERT TO CHARACTER SET DEFAULT", "default character set"),
        ("ALTER TABLE orders CONVERT TO CHARACTER SET binary", "binaries"),
        ("CREATE TABLE n AS SELECT 1", "brackets"),
        ("CREATE TABLE n LIKE nope", "not known"),
        ("ALTER TABLE 'x", "not valid SQL"),
        ("ALTER IGNORE TABLE orders ADD UNIQUE (a), RENAME x", "renames the table and removes rows"),
        ("ALTER TABLE orders CONVERT TO CHARSET utf8, MODIFY b TEXT", "also defines a text column"),
        ("ALTER TABLE orders CONVERT TO CHARSET utf8, CHARSET latin1", "another default character set"),
        ("FROB TABLE orders", "FROB is not known"),
        ("/**/ SET STATEMENT a=1 FOR DROP TABLE orders", "another statement"),
        ("SET STATEMENT sql_mode='' FOR ALTER TABLE orders DROP a", "settings"),
    ],
)
def test_statement_that_is_not_certain_is_unreadable(sql: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        changes(sql)


def test_set_statement_is_read_through() -> None:
    (change,) = changes("SET STATEMENT max_statement_time=5 FOR ALTER TABLE orders DROP a")
    assert steps(change) == ["drop.column a -"]


def test_backslash_without_known_sql_mode_is_unreadable() -> None:
    sql = "ALTER TABLE orders ADD x VARCHAR(9) DEFAULT 'a\\\\b'"
    with pytest.raises(Unreadable, match="backslash"):
        changes(sql, Dialect(False))
    assert changes(sql)[0].columns[0].fill.text == b"a\\b"


def test_comment_of_mariadb_is_code_on_mariadb_only() -> None:
    sql = "ALTER TABLE orders ADD x INT /*M! , DROP a */"
    assert names(changes(sql)[0]) == "id a b c x"
    assert names(changes(sql, Dialect(True))[0]) == "id b c x"
    with pytest.raises(Unreadable, match="MySQL and MariaDB"):
        changes(sql, Dialect(None))
    assert names(changes("ALTER TABLE orders DROP a", Dialect(None))[0]) == "id b c"


def test_double_quotes_of_an_unknown_sql_mode_have_the_only_possible_meaning() -> None:
    unknown = Dialect(False, ansi_quotes=None)
    assert names(changes('ALTER TABLE "orders" DROP "a"', unknown)[0]) == "id b c"
    (change,) = changes("""ALTER TABLE orders ADD x VARCHAR(5) DEFAULT "y" COMMENT "z", COMMENT 'a "b"'""", unknown)
    assert (change.columns[0].fill.text, change.after.column("x").comment, change.after.comment) == (b"y", "z", 'a "b"')
    with pytest.raises(Unreadable, match="name is expected"):
        changes('ALTER TABLE "orders" DROP "missing"', unknown)


@pytest.mark.parametrize("mariadb", [True, False, None])
@pytest.mark.parametrize(
    ("default", "value"),
    [('""', b""), ('"y"', b"y"), ('("y")', b"y"), ('(("y"))', b"y"), ('"x y"', b"x y"), ('"" COMMENT ""', b"")],
)
def test_default_in_double_quotes_that_is_no_column_is_a_text(mariadb: bool | None, default: str, value: bytes) -> None:
    unknown = Dialect(mariadb, ansi_quotes=None)
    for kind in ("VARCHAR(5)", "VARCHAR(5) NOT NULL"):
        (change,) = changes(f"ALTER TABLE orders ADD x {kind} DEFAULT {default}", unknown)
        assert change.columns[0].fill == Fill(FillKind.LITERAL, value)


@pytest.mark.parametrize(("mariadb", "default"), [(True, '"a"'), (True, '("A")'), (False, '("a")'), (True, '"x"')])
def test_default_in_double_quotes_that_can_be_a_column_is_not_followed(mariadb: bool, default: str) -> None:
    with pytest.raises(Unreadable, match="double quotes"):
        changes(f"ALTER TABLE orders ADD x VARCHAR(5) DEFAULT {default}", Dialect(mariadb, ansi_quotes=None))


def test_default_of_mysql_without_brackets_is_no_column() -> None:
    (change,) = changes('ALTER TABLE orders ADD x VARCHAR(5) DEFAULT "a"', Dialect(False, ansi_quotes=None))
    assert change.columns[0].fill == Fill(FillKind.LITERAL, b"a")


def test_names_with_quotes_and_other_case_are_read() -> None:
    (change,) = changes('ALTER TABLE "ORDERS" ADD "a ""b" INT', Dialect(False, ansi_quotes=True), stored=in_lower_case)
    assert names(change) == 'id a b c a "b'


TIMES = table("orders (id INT PRIMARY KEY, ts TIMESTAMP NULL, other TIMESTAMP NOT NULL)")


def redefined(clause: str, explicit: bool | None, mariadb: bool = False, *, ignores: bool = False) -> TableChange:
    (found,) = read_changes(
        f"ALTER TABLE orders {clause}",
        database="shop",
        schema_of=lambda *_: TIMES,
        dialect=Dialect(mariadb, explicit_timestamps=explicit),
        ignores=ignores,
    )
    return found


@pytest.mark.parametrize(
    ("clause", "explicit", "mariadb", "changed"),
    [
        ("MODIFY ts TIMESTAMP COMMENT 'x'", None, False, [True]),
        ("MODIFY ts TIMESTAMP COMMENT 'x'", False, False, [True]),
        ("CHANGE ts ts TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3)", False, False, [True]),
        ("MODIFY ts TIMESTAMP DEFAULT NULL", None, True, [True]),
        ("MODIFY ts TIMESTAMP DEFAULT NULL", None, False, []),
        ("MODIFY ts TIMESTAMP COMMENT 'x'", True, False, []),
        ("MODIFY ts TIMESTAMP NULL COMMENT 'x'", None, True, []),
        ("MODIFY ts TIMESTAMP(3)", True, False, [False]),
        ("MODIFY other TIMESTAMP NOT NULL", None, False, []),
        ("MODIFY other TIMESTAMP(3)", None, False, [False]),
    ],
)
def test_timestamp_without_null_can_replace_nulls(
    clause: str, explicit: bool | None, mariadb: bool, changed: list[bool]
) -> None:
    """Without explicit_defaults_for_timestamp it becomes NOT NULL, and the server stores the time for each NULL."""
    found = redefined(clause, explicit, mariadb)
    assert [one.changes_values for one in found.columns] == changed
    rows = redefined(clause, explicit, mariadb, ignores=True).rows  # equal times of a unique key
    assert rows is (ChangeKind.DROP_PARTITION if changed == [True] else None)


def test_catalog_shows_whether_nulls_were_kept() -> None:
    change = redefined("MODIFY ts TIMESTAMP COMMENT 'x', MODIFY other TIMESTAMP(3)", None)
    nullable = confirmed(change, replace(change.after, columns=change.after.columns))
    assert [(one.new and one.new.name, one.changes_values) for one in with_kept_nulls(nullable).columns] == [
        ("other", False)
    ]
    not_null = tuple(replace(one, nullable=False) for one in change.after.columns)
    exact = confirmed(change, replace(change.after, columns=not_null))
    assert with_kept_nulls(exact) == exact and exact.columns[0].changes_values
    wider = redefined("MODIFY ts TIMESTAMP(6)", None)
    (kept,) = with_kept_nulls(confirmed(wider, wider.after)).columns
    assert not kept.changes_values and kept.new is not None and kept.new.fsp == 6


@pytest.mark.parametrize(
    ("clause", "nullable", "kind"),
    [
        ("ADD x TIMESTAMP DEFAULT NULL", True, FillKind.NULL),
        ("ADD x TIMESTAMP DEFAULT (NULL)", True, FillKind.NULL),
        ("ADD x TIMESTAMP", True, FillKind.NULL),
        ("ADD x TIMESTAMP DEFAULT NULL", False, FillKind.NULL_OR_TIME),
        ("ADD x TIMESTAMP DEFAULT CURRENT_TIMESTAMP", True, FillKind.STATEMENT_TIME),
        ("ADD x TIMESTAMP DEFAULT (ts)", True, FillKind.BY_ROW),
        ("ADD x TIMESTAMP AS (ts)", True, FillKind.BY_ROW),
    ],
)
def test_catalog_shows_whether_an_added_timestamp_is_null(clause: str, nullable: bool, kind: FillKind) -> None:
    change = redefined(clause, None, mariadb=True)
    columns = tuple(replace(one, nullable=nullable and one.nullable) for one in change.after.columns)
    (found,) = with_kept_nulls(confirmed(change, replace(change.after, columns=columns))).columns
    assert found.fill.kind is kind


def test_confirmed_takes_exact_types_from_the_catalog() -> None:
    (change,) = read_changes(
        "ALTER TABLE orders ADD x VARCHAR(5), MODIFY b VARCHAR(20)",
        database="shop",
        schema_of=lambda *_: replace(ORDERS, charset=""),
        dialect=MYSQL,
    )
    assert change.after.column("x").charset == "" and change.columns[0].changes_values
    found = replace(
        change.after,
        columns=tuple(
            replace(each, charset="utf8mb4" * bool(each.length), comment="c") for each in change.after.columns
        ),
        comment="all orders",
        charset="utf8mb4",
    )
    exact = confirmed(change, found)
    assert exact.after == found
    assert [each.new and (each.new.charset, each.new.comment) for each in exact.columns] == [("utf8mb4", "c")] * 2
    assert not exact.columns[0].changes_values


def test_confirmed_takes_a_key_that_is_not_certain() -> None:
    change = altered("DROP INDEX i")
    assert not confirmed(change, ORDERS).key_changed
    assert confirmed(change, replace(ORDERS, key=("a",))).key_changed


@pytest.mark.parametrize(
    "found",
    [
        replace(ORDERS, key=("a",)),
        replace(ORDERS, columns=ORDERS.columns[:-1]),
        replace(ORDERS, columns=(*ORDERS.columns[:-1], Column("d", Kind.INT, "int"))),
        replace(ORDERS, columns=(*ORDERS.columns[:2], replace(ORDERS.columns[2], length=11), ORDERS.columns[3])),
        replace(ORDERS, columns=(*ORDERS.columns[:2], replace(ORDERS.columns[2], charset="latin1"), ORDERS.columns[3])),
    ],
)
def test_confirmed_with_other_columns_raises_schema_mismatch(found: TableSchema) -> None:
    change = altered("ADD x INT")
    extra = replace(found, columns=(*found.columns, Column("x", Kind.INT, "int")))
    with pytest.raises(SchemaMismatch) as caught:
        confirmed(change, extra)
    assert "x int" in caught.value.context["statement_leads_to"] and caught.value.context["server_has"]


def test_damaged_statement_is_read_or_unreadable() -> None:
    random, read = Random(seed_of()), 0
    statements = [case.statement.replace("{t}", "orders") for case in cases()]
    for statement in statements:
        tokens = statement.split(" ")
        for _ in range(4):
            place = random.randrange(len(tokens))
            damaged = random.choice(
                (
                    tokens[:place],
                    tokens[:place] + tokens[place + 1 :],
                    [*tokens[:place], random.choice(random.choice(statements).split(" ")), *tokens[place:]],
                )
            )
            try:
                changes(" ".join(damaged))
                read += 1
            except Unreadable as error:
                assert str(error) or not damaged
    assert read > 100


@pytest.mark.parametrize(
    "clauses",
    ["MODIFY url VARCHAR(50) CHARACTER SET utf8mb4", "MODIFY d DECIMAL(12,4)", "CONVERT TO CHARACTER SET utf8mb4"],
)
def test_generated_columns_are_computed_again_if_another_column_changes_its_type(clauses: str) -> None:
    before = table("urls (id INT PRIMARY KEY, url VARCHAR(50), d DECIMAL(10,2), h INT AS (LENGTH(url)))", "latin1")
    (change,) = read_changes(
        f"ALTER TABLE urls {clauses} /* , */", database="shop", dialect=MYSQL, schema_of=lambda *_: before
    )
    found = {each.old.name: each.changes_values for each in change.columns if each.old is not None}
    assert found.pop("h") is True and set(found.values()) == {False}


def test_generated_columns_stay_if_no_type_changes() -> None:
    before = table("urls (id INT PRIMARY KEY, url VARCHAR(50), h INT AS (LENGTH(url)))")
    (change,) = read_changes(
        "ALTER TABLE urls ADD n INT, RENAME COLUMN url TO link", database="shop", dialect=MYSQL,
        schema_of=lambda *_: before,
    )  # fmt: skip
    assert steps(change) == ["rename.column url link", "add.column - n"]
