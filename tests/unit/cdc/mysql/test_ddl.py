"""The effects of statements on mapped tables."""

import pytest

from cdc.mysql.ddl import Effect, EffectKind, effect_of
from cdc.mysql.ddl_effect import strongest
from cdc.mysql.ddl_words import in_lower_case


class Shop:
    """Maps shop.orders (reads id, price and every new column), shop.users (reads id only) and crm.*."""

    def maps(self, database, table):
        return (database, table) in {("shop", "orders"), ("shop", "users")} or database == "crm"

    def known(self, database, table=None):
        tables = [("shop", "orders"), ("shop", "users"), ("crm", "leads")]
        return tuple(f"{db}.{name}" for db, name in tables if db == database and table in (None, name))

    def reads_column(self, database, table, column):
        return table not in ("users", "leads") or column.lower() == "id"

    def reads_generated(self, database, table):
        return table == "leads"


NONE, HARMLESS, TOUCHES, CREATES, WRITES = EffectKind

CASES = [
    # no effect on mapped tables
    ("BEGIN", NONE),
    ("", NONE),
    ("/* a ping */", NONE),
    ("GRANT SELECT ON shop.orders TO reader@'%'", NONE),
    ("CREATE TABLE other (id INT)", NONE),
    ("CREATE DATABASE shop", NONE),
    ("CREATE TEMPORARY TABLE orders (id INT)", NONE),
    ("DROP TEMPORARY TABLE IF EXISTS orders", NONE),
    ("DROP TABLE other, warehouse.orders", NONE),
    ("DROP DATABASE other", NONE),
    ("ALTER TABLE warehouse.orders DROP COLUMN price", NONE),
    ("ALTER DATABASE shop CHARACTER SET utf8mb4", NONE),
    ("CREATE DEFINER=`root`@`localhost` VIEW v AS SELECT * FROM orders", NONE),
    ("CREATE DEFINER=`root`@`%` TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.price = 1", NONE),
    ("CREATE PROCEDURE p() BEGIN DELETE FROM orders; END", NONE),
    ("ANALYZE TABLE orders", NONE),
    ("OPTIMIZE TABLE orders", NONE),
    ("RENAME TABLE a TO b", NONE),
    ("RENAME USER a TO b", NONE),
    ("CREATE USER x IDENTIFIED WITH 'caching_sha2_password' AS 'orders'", NONE),
    ("ALTER TABLE other RENAME COLUMN orders TO b", NONE),
    ("TRUNCATE TABLE other", NONE),
    ("DROP TABLE IF EXISTS crm.never_seen", NONE),
    # harmless for mapped tables
    ("ALTER TABLE orders ADD INDEX i (a, b(10))", HARMLESS),
    ("ALTER TABLE orders ADD UNIQUE KEY u (a), ADD CONSTRAINT fk FOREIGN KEY (a) REFERENCES t2 (id)", HARMLESS),
    ("ALTER TABLE orders ADD FULLTEXT KEY f (a), ADD CHECK (price > 1)", HARMLESS),
    ("ALTER TABLE orders COMMENT='drop column price, x' AUTO_INCREMENT=100, ENGINE=InnoDB", HARMLESS),
    ("ALTER TABLE orders ALTER COLUMN price SET DEFAULT 5", HARMLESS),
    ("ALTER TABLE orders ALTER INDEX i INVISIBLE", HARMLESS),
    ("ALTER TABLE orders RENAME INDEX a TO b", HARMLESS),
    ("ALTER TABLE orders ADD PARTITION (PARTITION p3 VALUES LESS THAN (100))", HARMLESS),
    (
        "ALTER TABLE orders REORGANIZE PARTITION p0 INTO (PARTITION n VALUES LESS THAN (5), PARTITION m VALUES IN (1))",
        HARMLESS,
    ),
    ("ALTER TABLE orders REORGANIZE PARTITION p0, p1 INTO (PARTITION n VALUES LESS THAN (5))", HARMLESS),
    ("ALTER TABLE orders OPTIMIZE PARTITION p0, p1", HARMLESS),
    ("ALTER TABLE orders REBUILD PARTITION p0, `p1`", HARMLESS),
    ("ALTER TABLE orders ADD INDEX (a), ORDER BY a, b DESC", HARMLESS),
    ("ALTER TABLE orders REMOVE PARTITIONING", HARMLESS),
    ("ALTER TABLE orders PARTITION BY HASH(id) PARTITIONS 4", HARMLESS),
    ("ALTER TABLE orders ALGORITHM=INPLACE, LOCK=NONE", HARMLESS),
    ("ALTER TABLE orders FORCE", HARMLESS),
    ("ALTER TABLE orders DISABLE KEYS", HARMLESS),
    ("CREATE UNIQUE INDEX i ON orders (a)", HARMLESS),
    ("CREATE TABLE IF NOT EXISTS orders (id INT)", HARMLESS),
    ("ALTER TABLE users ADD COLUMN nick VARCHAR(20) NOT NULL DEFAULT 'x'", HARMLESS),
    ("ALTER TABLE users DROP nick, MODIFY age BIGINT, CHANGE a b INT", HARMLESS),
    ("ALTER TABLE users RENAME COLUMN a TO b", HARMLESS),
    # a mapped table is created
    ("CREATE TABLE crm.calls (id INT PRIMARY KEY, KEY (id)) ENGINE=InnoDB PARTITION BY HASH(id)", CREATES),
    ("CREATE TABLE crm.calls LIKE other.calls", CREATES),
    ("CREATE TABLE `crm`.`calls` (`id` int) START TRANSACTION", CREATES),
    # changes of mapped tables
    ("ALTER TABLE orders ADD COLUMN x INT AFTER id", TOUCHES),
    ("ALTER TABLE `shop`.`orders` ADD x INT FIRST, DROP COLUMN y, ALGORITHM=INPLACE, LOCK=NONE", TOUCHES),
    ("ALTER TABLE orders ADD (x INT, y INT)", TOUCHES),
    ("ALTER TABLE orders MODIFY COLUMN price BIGINT UNSIGNED NOT NULL", TOUCHES),
    ("ALTER TABLE orders CHANGE price cost VARCHAR(20) CHARACTER SET latin1", TOUCHES),
    ("ALTER TABLE orders DROP price", TOUCHES),
    ("ALTER TABLE orders RENAME COLUMN price TO cost", TOUCHES),
    ("ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)", TOUCHES),
    ("ALTER TABLE users ADD PRIMARY KEY (id)", TOUCHES),
    ("ALTER TABLE users ADD CONSTRAINT PRIMARY KEY (id)", TOUCHES),
    ("ALTER TABLE users ADD COLUMN n INT AUTO_INCREMENT PRIMARY KEY", TOUCHES),
    ("ALTER TABLE users ADD COLUMN n INT AUTO_INCREMENT KEY", TOUCHES),
    ("DROP INDEX `PRIMARY` ON users", TOUCHES),
    ("ALTER TABLE orders RENAME TO warehouse.orders2", TOUCHES),
    ("ALTER TABLE orders RENAME orders2", TOUCHES),
    ("ALTER TABLE orders_new RENAME AS orders", TOUCHES),
    ("ALTER TABLE other EXCHANGE PARTITION p WITH TABLE orders", TOUCHES),
    ("ALTER TABLE orders EXCHANGE PARTITION p WITH TABLE other", TOUCHES),
    ("ALTER TABLE orders DROP PARTITION p1", TOUCHES),
    ("ALTER TABLE orders DROP PARTITION p0, p1", TOUCHES),
    ("ALTER TABLE orders TRUNCATE PARTITION ALL", TOUCHES),
    ("ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4", TOUCHES),
    ("ALTER TABLE orders DISCARD TABLESPACE", TOUCHES),
    ("ALTER TABLE orders ENGINE=BLACKHOLE", TOUCHES),
    ("ALTER TABLE orders ADD SYSTEM VERSIONING", TOUCHES),
    ("ALTER TABLE crm.leads MODIFY not_read VARCHAR(20)", TOUCHES),
    ("ALTER TABLE orders COMMENT='x', WITH SYSTEM VERSIONING", TOUCHES),
    ("CREATE TABLE orders (id INT) ENGINE=InnoDB WITH SYSTEM VERSIONING", TOUCHES),
    ("ALTER TABLE orders FROBNICATE", TOUCHES),
    ("ALTER ONLINE TABLE IF EXISTS orders DROP COLUMN IF EXISTS price", TOUCHES),
    ("RENAME TABLE a TO b, orders TO old_orders", TOUCHES),
    ("RENAME TABLE `orders_new` TO `shop`.`orders`", TOUCHES),
    ("TRUNCATE orders", TOUCHES),
    ("TRUNCATE TABLE shop.orders", TOUCHES),
    ("DROP TABLE IF EXISTS `other`,`shop`.`orders` /* generated by server */", TOUCHES),
    ("DROP DATABASE shop", TOUCHES),
    ("DROP SCHEMA IF EXISTS `crm`", TOUCHES),
    ("CREATE OR REPLACE TABLE orders (id INT)", TOUCHES),
    ("/*!50000 ALTER TABLE orders DROP price */", TOUCHES),
    ("ALTER TABLE orders /*!80000 DROP COLUMN price */", TOUCHES),
    ("/*M!100100 TRUNCATE TABLE orders */", TOUCHES),
    ("-- why\n# and\n/* how */ TRUNCATE orders", TOUCHES),
    ("ALTER TABLE orders /* ' */ DROP price -- '", TOUCHES),
    ("FROB TABLE orders", TOUCHES),
    ("ALTER TABLE 'orders", TOUCHES),
    ("truncate table crm.2024_calls", TOUCHES),
    # only in MariaDB
    ("SET STATEMENT max_statement_time=60 FOR TRUNCATE orders", TOUCHES),
    ("set statement sql_mode='a for b', x = \"for\"\nFOR\nALTER TABLE orders DROP PARTITION p0", TOUCHES),
    ("SET STATEMENT a=1 FOR SET STATEMENT b=2 FOR DROP TABLE orders", TOUCHES),
    ("/* why */ SET STATEMENT a=1 FOR DROP TABLE orders", TOUCHES),
    ("SET STATEMENT a=1 FOR ALTER TABLE orders ADD INDEX (a)", HARMLESS),
    ("SET STATEMENT a=1 FOR INSERT INTO other VALUES (1)", WRITES),
    ("SET STATEMENT a=1 FOR CREATE TABLE other (id INT)", NONE),
    ("SET @a = 'orders'", NONE),
    ("ALTER TABLE orders NOWAIT DROP PARTITION p0", TOUCHES),
    ("ALTER TABLE orders NOWAIT MODIFY price INT", TOUCHES),
    ("ALTER TABLE orders WAIT 5 DROP COLUMN price", TOUCHES),
    ("ALTER TABLE orders NOWAIT ADD INDEX (a)", HARMLESS),
    ("ALTER TABLE other NOWAIT RENAME TO orders", TOUCHES),
    ("ALTER TABLE other NOWAIT EXCHANGE PARTITION p WITH TABLE orders", TOUCHES),
    ("ALTER IGNORE TABLE orders ADD UNIQUE (a)", TOUCHES),
    ("ALTER IGNORE TABLE users ADD COLUMN n INT UNIQUE", TOUCHES),
    ("ALTER IGNORE TABLE orders ADD INDEX (a)", HARMLESS),
    ("ALTER IGNORE TABLE users MODIFY unread VARCHAR(5)", TOUCHES),
    ("ALTER IGNORE TABLE orders ADD CONSTRAINT small CHECK (a < 5)", TOUCHES),
    ("ALTER IGNORE TABLE orders PARTITION BY LIST (a) (PARTITION p1 VALUES IN (1, 2))", TOUCHES),
    ("ALTER TABLE orders ENGINE='BLACKHOLE'", TOUCHES),
    ("ALTER TABLE orders ENGINE=`blackhole`", TOUCHES),
    ("ALTER TABLE users RENAME COLUMN IF EXISTS id TO no", TOUCHES),
    ("ALTER TABLE users RENAME COLUMN IF EXISTS a TO b", HARMLESS),
    ("ANALYZE DELETE FROM orders", TOUCHES),
    ("ANALYZE FORMAT=JSON UPDATE orders SET price = 1", TOUCHES),
    ("ANALYZE NO_WRITE_TO_BINLOG TABLE orders", NONE),
]


@pytest.mark.parametrize(("sql", "kind"), CASES, ids=[sql[:60] for sql, _ in CASES])
def test_effect_of_statement_has_kind(sql, kind):
    assert effect_of(sql, database="shop", tables=Shop()).kind is kind


@pytest.mark.parametrize(
    ("clause", "table"),
    [
        ("RENAME TO other.calls", ""),
        ("RENAME AS calls", "crm.calls"),
        ("RENAME COLUMN calls TO leads", ""),
        ("EXCHANGE PARTITION leads WITH TABLE other.calls WITHOUT VALIDATION", ""),
        ("EXCHANGE PARTITION p WITH TABLE calls", "crm.calls"),
        ("CONVERT TO CHARACTER SET utf8mb4", ""),
        ("CONVERT PARTITION leads TO TABLE other.calls", ""),
        ("CONVERT PARTITION p TO TABLE calls", "crm.calls"),
        ("CONVERT TABLE crm.leads TO PARTITION p VALUES LESS THAN (5)", "crm.leads"),
        ("ADD COLUMN leads INT", ""),
    ],
)
def test_alter_of_an_unmapped_table_touches_only_the_table_that_it_names(clause, table):
    """A channel reads every table of the session's database, so any word could be one of its tables."""
    effect = effect_of(f"ALTER TABLE other.t {clause}", database="crm", tables=Shop())
    assert (effect.kind, effect.tables) == ((TOUCHES, (table,)) if table else (NONE, ()))


@pytest.mark.parametrize(
    "clause",
    [
        "RENAME TO calls",
        "EXCHANGE PARTITION p WITH TABLE calls WITHOUT VALIDATION",
        "CONVERT PARTITION p TO TABLE crm.calls",
        "CONVERT TABLE calls TO PARTITION p VALUES LESS THAN (5)",
    ],
)
def test_alter_of_a_mapped_table_names_the_other_table_too(clause):
    effect = effect_of(f"ALTER TABLE shop.orders {clause}", database="crm", tables=Shop())
    assert (effect.kind, effect.tables) == (TOUCHES, ("shop.orders", "crm.calls"))
    unmapped = effect_of(f"ALTER TABLE shop.orders {clause}".replace("calls", "x"), database="other", tables=Shop())
    assert unmapped.tables[0] == "shop.orders" and "other.x" not in unmapped.tables


@pytest.mark.parametrize(
    ("sql", "row_changing"),
    [
        ("ALTER TABLE orders ADD x INT", False),
        ("ALTER TABLE orders ADD x INT DEFAULT NULL", False),
        ("ALTER TABLE orders ADD x INT NOT NULL", True),
        ("ALTER TABLE orders ADD x INT DEFAULT 3", True),
        ("ALTER TABLE orders ADD x INT AS (price * 2)", True),
        ("ALTER TABLE orders DROP price", False),
        ("ALTER TABLE orders RENAME COLUMN price TO cost", False),
        ("ALTER TABLE orders MODIFY price INT", True),
        ("ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)", False),
        ("ALTER TABLE orders DROP PARTITION p1", True),
        ("TRUNCATE orders", True),
        ("DROP TABLE orders", True),
        ("ALTER IGNORE TABLE orders ADD PRIMARY KEY (id)", True),
        ("SET STATEMENT a=1 FOR TRUNCATE orders", True),
    ],
)
def test_effect_of_ddl_has_row_changing(sql, row_changing):
    effect = effect_of(sql, database="shop", tables=Shop())
    assert (effect.kind, effect.row_changing) == (TOUCHES, row_changing)


def test_effect_of_rename_names_every_mapped_table():
    effect = effect_of("RENAME TABLE orders TO x, crm.a TO crm.b", database="shop", tables=Shop())
    assert effect.tables == ("shop.orders", "crm.a", "crm.b")


def test_effect_of_ansi_quotes_reads_double_quotes_as_names():
    sql = 'ALTER TABLE "shop"."orders" DROP "price"'
    assert effect_of(sql, database="", tables=Shop(), ansi_quotes=True).kind is TOUCHES
    assert effect_of('ALTER TABLE users COMMENT "orders"', database="shop", tables=Shop()).kind is HARMLESS


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ('TRUNCATE TABLE "orders"', TOUCHES),
        ('TRUNCATE "shop"."orders"', TOUCHES),
        ('DROP TABLE "orders" /* generated by server */', TOUCHES),
        ('RENAME TABLE "orders" TO "x", "y" TO "orders"', TOUCHES),
        ('ALTER TABLE "orders" DROP PARTITION p0', TOUCHES),
        ('ALTER TABLE "orders" MODIFY "price" DECIMAL(8,2)', TOUCHES),
        ('ALTER TABLE "orders" CHANGE "a" "b" INT, CHANGE "b" "a" INT', TOUCHES),
        ('ALTER TABLE "x" EXCHANGE PARTITION p WITH TABLE "orders"', TOUCHES),
        ('ALTER TABLE "x" RENAME "orders"', TOUCHES),
        ('DROP DATABASE "shop"', TOUCHES),
        ('CREATE TABLE "orders" (id INT)', CREATES),
        ('ALTER TABLE "orders" ADD INDEX ("price")', HARMLESS),
        ('ALTER TABLE orders COMMENT "x", ALTER price SET DEFAULT "5"', HARMLESS),
        ('ALTER TABLE other COMMENT "orders"', NONE),
        ('CREATE USER x IDENTIFIED BY "orders"', NONE),
        ('INSERT INTO "orders" VALUES (1)', WRITES),
    ],
)
def test_effect_of_unknown_sql_mode_is_the_strongest_one(sql, kind):
    effect = effect_of(sql, database="shop", tables=Shop(), ansi_quotes=None)
    assert effect.kind is kind
    assert kind is NONE or "shop.orders" in effect.tables


class Everything(Shop):
    """As a channel with a pattern: each word of a statement can be a table."""

    def maps(self, database, table):
        return True


@pytest.mark.parametrize("tables", [Shop(), Everything()])
@pytest.mark.parametrize(
    "sql",
    [
        'TRUNCATE TABLE "orders"',
        'DROP TABLE IF EXISTS "none", shop."orders"',
        'CREATE TABLE "new" (id INT)',
        'CREATE TABLE IF NOT EXISTS "orders" (id INT)',
        'DROP INDEX "uk" ON "orders"',
        'ALTER TABLE "orders" DROP INDEX "uk"',
        'ALTER TABLE orders DROP COLUMN "price"',
        'ALTER TABLE "other" RENAME TO "orders"',
        'RENAME TABLE "orders" TO "x"',
        'DROP DATABASE IF EXISTS "none"',
        'INSERT INTO "orders" VALUES (1)',
    ],
)
def test_reading_with_a_text_in_place_of_a_name_does_not_count(sql, tables):
    known, unknown = (effect_of(sql, database="shop", tables=tables, ansi_quotes=one) for one in (True, None))
    assert unknown == known


@pytest.mark.parametrize("tables", [Shop(), Everything()])
@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        (r'CREATE VIEW v AS SELECT "a\"b" FROM orders', NONE),
        (r'CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.a = "it\"s"', NONE),
        (r'CREATE USER "u"@"%" IDENTIFIED BY "x\"y"', NONE),
        (r'ALTER TABLE orders COMMENT "5\" disk"', HARMLESS),
        (r'ALTER TABLE orders COMMENT "5\" disk", DROP COLUMN price', TOUCHES),
    ],
)
def test_reading_with_an_open_quote_does_not_count(sql, kind, tables):
    assert effect_of(sql, database="shop", tables=tables, ansi_quotes=None).kind is kind


@pytest.mark.parametrize("ansi_quotes", [None, False, True])
@pytest.mark.parametrize(
    "sql", ['TRUNCATE TABLE shop.orders "x', "FLOGGED shop.orders 'x", 'DROP TABLE "a", 5, orders']
)
def test_effect_of_a_statement_without_a_valid_reading_is_on_each_table_that_it_names(sql, ansi_quotes):
    effect = effect_of(sql, database="shop", tables=Shop(), ansi_quotes=ansi_quotes)
    assert (effect.kind, effect.tables, effect.row_changing) == (TOUCHES, ("shop.orders",), True)


def test_strongest_effect_has_the_tables_of_harmless_readings():
    harmless = Effect(HARMLESS, ("shop.Orders",), "DROP INDEX u", may_rekey=True)
    found = strongest([harmless, Effect(NONE), Effect(TOUCHES, ("shop.orders",), "DROP COLUMN a")])
    assert found == Effect(TOUCHES, ("shop.orders", "shop.Orders"), "DROP COLUMN a", may_rekey=True)


def test_effect_of_names_in_lower_case_ignores_case():
    assert effect_of("TRUNCATE Shop.Orders", database="", tables=Shop()).kind is NONE
    assert effect_of("TRUNCATE Shop.Orders", database="", tables=Shop(), stored=in_lower_case).kind is TOUCHES


def test_effect_of_drop_index_has_may_rekey():
    assert effect_of("ALTER TABLE orders DROP INDEX u", database="shop", tables=Shop()).may_rekey
    assert effect_of("DROP INDEX u ON orders", database="shop", tables=Shop()).may_rekey


def test_effect_of_drop_unread_column_reshapes():
    assert effect_of("ALTER TABLE users DROP nick", database="shop", tables=Shop()).reshapes
    assert not effect_of("ALTER TABLE users ADD INDEX (nick)", database="shop", tables=Shop()).reshapes


@pytest.mark.parametrize(
    ("sql", "written"),
    [
        ("INSERT INTO orders VALUES (1)", ("shop.orders",)),
        ("INSERT INTO log SELECT * FROM orders", ("shop.log",)),
        ("UPDATE crm.leads SET a = 1 WHERE id = 2", ("crm.leads",)),
        ("DELETE FROM orders WHERE id = 3", ("shop.orders",)),
        ("UPDATE log JOIN orders ON log.id = orders.id SET orders.price = 1", ("shop.log", "shop.orders")),
        ("CALL p()", ()),
        ("LOAD DATA LOCAL INFILE 'into table x' REPLACE INTO TABLE `shop`.`orders` (id)", ("shop.orders",)),
        ("REPLACE DELAYED INTO orders VALUES (1)", ("shop.orders",)),
        ("INSERT IGNORE crm.leads VALUES (1)", ()),
        (
            "SET STATEMENT max_statement_time=60 FOR DELETE FROM mysql.rds_sysinfo WHERE name = 'a'",
            ("mysql.rds_sysinfo",),
        ),
    ],
)
def test_effect_of_dml_names_written_tables(sql, written):
    effect = effect_of(sql, database="shop", tables=Shop())
    assert effect.kind is WRITES
    assert effect.tables == written


def test_effect_of_mariadb_comment_is_ignored_on_mysql():
    sql = "ALTER TABLE orders ADD INDEX i (price) /*M!100100 , DROP COLUMN price */"
    assert effect_of(sql, database="shop", tables=Shop(), mariadb=False).kind is HARMLESS
    assert effect_of(sql, database="shop", tables=Shop(), mariadb=True).kind is TOUCHES
    assert effect_of("/*!80000 TRUNCATE TABLE orders */", database="shop", tables=Shop(), mariadb=False).kind is TOUCHES
