"""Changes that Canal's statements make: what a receiver attaches to DdlStop, and where reading continues after it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdc.errors import DdlStop, SchemaMismatch
from cdc.model.batch import RequiredColumns
from cdc.model.position import CanalPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ChangeKind, FillKind
from cdc.model.table_names import is_shadow
from cdc.mysql.connection import Endpoint
from cdc.sources.canal import change_reader, receiver, table_registry
from cdc.sources.canal.receiver import CanalReceiver
from tests.support.canal_script import FILE, Log, Scripted
from tests.support.receiving import Collector, Mapped

CURSOR = CanalPosition("", 0)
BEFORE = TableSchema(
    "shop",
    "orders",
    (Column("id", Kind.INT, "int", nullable=False), Column("a", Kind.INT, "int"), Column("b", Kind.INT, "int")),
    ("id",),
    charset="utf8mb4",
)


def columns(**values):
    return {"id": ("int", 1), **{name: ("int", value) for name, value in values.items()}}


class Shop(Mapped):
    """As a channel with a pattern: copies of gh-ost and pt-online-schema-change are not mapped."""

    def maps(self, database, table):
        return super().maps(database, table) and not is_shadow(table)


class Catalog:
    """A MySQL server with the table shop.orders, as ``schema`` describes it now."""

    def __init__(self, monkeypatch, schema):
        self.schema = schema
        for module in (change_reader, table_registry):
            monkeypatch.setattr(module, "table_schemas", self._found)
        monkeypatch.setattr(table_registry, "mapped_tables", lambda server, maps: [("shop", "orders")])
        monkeypatch.setattr("cdc.sources.schema_history.table_schemas", self._found)
        server = SimpleNamespace(folds_case=False, mariadb=False)
        monkeypatch.setattr(receiver, "Server", lambda endpoint: nullcontext(server))

    def _found(self, server, names, leave_out=None):
        return {("shop", "orders"): self.schema} if self.schema is not None else {}


@pytest.fixture
def opened():
    receivers = []

    def open_(*batches, start=CURSOR, schemas=(), **options):
        client = Scripted(*[[batch] for batch in batches])
        receivers.append(CanalReceiver(lambda: client, Shop("shop"), **options))
        receivers[-1].open(start, schemas, 0)
        return Collector(receivers[-1])

    yield open_
    for each in receivers:
        each.close()


def stop_of(taker):
    with pytest.raises(DdlStop) as caught:
        taker.collect(lambda _: False, 60)
    return caught.value


MYSQL = {"mysql": Endpoint("localhost", 1, "cdc", "")}


def test_change_of_a_statement_begins_and_ends_at_its_event(opened):
    log = Log()
    first, ddl, later = log.row(**columns(a=1)), log.ddl("ALTER TABLE orders ADD c INT DEFAULT '07'"), log.offset
    taker = opened(first + ddl)
    change = stop_of(taker).change
    assert change.first == taker.batches[-1].last
    assert (change.first.file, change.first.offset, change.first.entry) == (FILE, later - 100, 0)
    assert (change.last.offset, change.last.entry, change.last.newest_ms) == (later, 0, 1_700_000_000_000 + later - 100)
    (table,) = change.tables
    assert [column.name for column in table.after.columns] == ["id", "a", "c"]
    (added,) = table.columns
    assert (added.kind, added.fill.kind, added.fill.text) == (ChangeKind.ADD_COLUMN, FillKind.LITERAL, b"7")

    # the server sends everything again: what is at or before the change is dropped, the statement too
    row = log.row(**columns(a=2, c=3))
    again = opened(first + ddl, row, start=change.last, schemas=(table.after,)).collect_rows(1)
    assert [(one["a"], one["c"]) for one in again.rows] == [(2, 3)]
    assert again.batches[0].first == change.last


def test_change_is_read_at_the_paused_position_again(opened):
    log = Log()
    entries = log.row(**columns(a=1)) + log.ddl("ALTER TABLE orders ADD c INT")
    taker = opened(entries)
    stop_of(taker)
    paused, schemas = taker.batches[-1].last, taker.receiver.schemas()
    change = stop_of(opened(entries, start=paused, schemas=schemas)).change
    assert change.first == paused


@pytest.mark.parametrize(("mysql", "charset"), [(False, "utf8mb4"), (True, "latin1")])
def test_added_text_has_the_charset_of_the_catalog_or_of_rows(opened, monkeypatch, mysql, charset):
    log = Log()
    entries = log.row(**columns(a=1, b=1)) + log.ddl("ALTER TABLE orders ADD c VARCHAR(9) DEFAULT 'x'")
    added = Column("c", Kind.VARCHAR, "varchar(9)", length=9, charset="latin1")
    catalog = Catalog(monkeypatch, replace(BEFORE, charset="latin1"))
    taker = opened(entries[:3], entries[3:], **(MYSQL if mysql else {})).collect_rows(1)
    catalog.schema = replace(BEFORE, charset="latin1", columns=(*BEFORE.columns, added))
    (table,) = stop_of(taker).change.tables
    assert table.after.column("c").charset == charset == table.columns[0].new.charset


def test_changed_text_without_charset_and_without_server_is_refused(opened):
    log = Log()
    text = {**columns(), "c": ("varchar(9)", "x")}
    stop = stop_of(opened(log.row(**text) + log.ddl("ALTER TABLE orders MODIFY c VARCHAR(20)")))
    assert stop.change is None and "the character set of column c is not known" in stop.message


def test_statement_without_effect_is_a_change_of_nothing(opened):
    log = Log()
    (table,) = stop_of(
        opened(log.row(**columns(a=1)) + log.ddl("ALTER TABLE orders MODIFY a INT DEFAULT 3"))
    ).change.tables
    assert (table.columns, table.rows, table.after.columns) == ((), None, table.before.columns)


@pytest.mark.parametrize("default", ["CURRENT_TIMESTAMP", "'2024-02-29 10:20:30'"])
def test_timestamp_of_the_session_needs_a_snapshot(opened, default):
    log = Log()
    sql = f"ALTER TABLE orders ADD t TIMESTAMP NULL DEFAULT {default}"
    (table,) = stop_of(opened(log.row(**columns(a=1)) + log.ddl(sql))).change.tables
    assert table.columns[0].fill.kind in (FillKind.STATEMENT_TIME, FillKind.BY_ROW)


def test_change_of_a_table_without_rows_needs_the_catalog(opened, monkeypatch):
    ddl = Log().ddl("ALTER TABLE orders DROP COLUMN b")
    assert "before the statement are not known" in stop_of(opened(ddl)).message
    catalog = Catalog(monkeypatch, BEFORE)
    taker = opened(ddl, **MYSQL)
    catalog.schema = replace(BEFORE, columns=BEFORE.columns[:2])
    (table,) = stop_of(taker).change.tables
    assert (table.before.columns, table.after.columns) == (BEFORE.columns, BEFORE.columns[:2])


def test_later_statement_leaves_the_computed_columns(opened, monkeypatch):
    log = Log()
    entries = log.row(**columns(a=1, b=2)) + log.ddl("ALTER TABLE orders RENAME COLUMN b TO c")
    Catalog(monkeypatch, replace(BEFORE, columns=(*BEFORE.columns[:2], Column("d", Kind.INT, "int"))))
    (table,) = stop_of(opened(entries, schemas=(BEFORE,), **MYSQL)).change.tables
    assert [column.name for column in table.after.columns] == ["id", "a", "c"]


def test_statement_after_one_that_the_user_passed_is_refused_until_rows(opened):
    log = Log()
    first = log.row(**columns(a=1)) + log.ddl("ALTER TABLE orders ADD c INT")
    taker = opened(first)
    accepted = table_registry.ResumeOptions(acknowledged={stop_of(taker).context["position"]: False})
    start, schemas = taker.batches[-1].last, taker.receiver.schemas()
    options = {"start": start, "schemas": schemas, "resume_options": accepted}
    second = log.ddl("ALTER TABLE orders ADD d INT")
    assert "before the statement are not known" in stop_of(opened(first + second, **options)).message


def test_default_charset_of_a_harmless_alter_is_that_of_later_columns(opened, monkeypatch):
    log = Log()
    entries = log.row(**columns(a=1, b=2)) + log.ddl("ALTER TABLE orders DEFAULT CHARSET=latin1")
    catalog = Catalog(monkeypatch, BEFORE)
    taker = opened(entries, log.ddl("ALTER TABLE orders ADD c VARCHAR(9), ADD d INT"), **MYSQL).collect_rows(1)
    catalog.schema = None  # a later statement has changed the table: the catalog has other columns
    assert stop_of(taker).change.tables[0].after.column("c").charset == "latin1"


# --- names of another time ---


def test_exchange_of_names_is_followed_if_rows_had_the_old_ones(opened):
    log = Log()
    exchange = "ALTER TABLE orders RENAME COLUMN a TO b, RENAME COLUMN b TO a"
    (table,) = stop_of(opened(log.row(**columns(a=1, b=2)) + log.ddl(exchange), schemas=(BEFORE,))).change.tables
    assert [column.name for column in table.after.columns] == ["id", "b", "a"]


@pytest.mark.parametrize("mysql", [False, True])
def test_rows_with_the_names_after_an_exchange_raise(opened, monkeypatch, mysql):
    late = log_of_late_names()
    Catalog(monkeypatch, replace(BEFORE, columns=(BEFORE.columns[0], BEFORE.columns[2], BEFORE.columns[1])))
    taker = opened(late, schemas=(BEFORE,), **(MYSQL if mysql else {}))
    with pytest.raises(SchemaMismatch, match="in the order id, b, a"):
        taker.collect(lambda _: False, 60)
    assert taker.rows == []


def test_rename_after_rows_with_later_names_is_refused(opened, monkeypatch):
    log = Log()
    entries = log.row(**columns(a=1, c=2)) + log.ddl("ALTER TABLE orders RENAME COLUMN b TO c")
    Catalog(monkeypatch, replace(BEFORE, columns=(*BEFORE.columns[:2], Column("c", Kind.INT, "int"))))
    stop = stop_of(opened(entries, schemas=(BEFORE,), **MYSQL))
    assert stop.change is None


def log_of_late_names():
    """Return the entries of a Canal server without TSDB that reads a row after two columns have exchanged their names.

    The row was written before.
    """
    log = Log()
    return log.row(**columns(b=1, a=2)) + log.ddl("ALTER TABLE orders RENAME COLUMN a TO b, RENAME COLUMN b TO a")


# --- keys that an index is ---

UNIQUE = replace(BEFORE, columns=tuple(replace(one, nullable=False) for one in BEFORE.columns), key=("a",))
REKEY = "ALTER TABLE orders DROP INDEX uk1, ADD UNIQUE uk1 (a, b)"


def test_key_that_an_index_changes_stops_the_job(opened, monkeypatch):
    log = Log()
    first, ddl = log.row(**columns(a=1, b=2)), log.ddl(REKEY)
    catalog = Catalog(monkeypatch, UNIQUE)
    taker = opened(first, ddl, **MYSQL).collect_rows(1)
    catalog.schema = replace(UNIQUE, key=("a", "b"))
    stop = stop_of(taker)
    assert stop.context["tables"] == "shop.orders"

    accepted = table_registry.ResumeOptions(acknowledged={stop.context["position"]: False})
    options = {"start": taker.batches[-1].last, "schemas": taker.receiver.schemas(), "resume_options": accepted}
    again = opened(first + ddl, log.row(**columns(a=3, b=4)), **options, **MYSQL).collect_rows(1)
    assert again.receiver.schemas()[0].key == ("a", "b")


def test_index_that_is_not_the_key_does_not_stop_the_job(opened, monkeypatch):
    log = Log()
    entries = (
        log.row(**columns(a=1, b=2)) + log.ddl("ALTER TABLE orders DROP INDEX other") + log.row(**columns(a=3, b=4))
    )
    Catalog(monkeypatch, UNIQUE)
    assert len(opened(entries, **MYSQL).collect_rows(2).rows) == 2


def test_key_of_a_later_statement_is_not_used_before_it(opened, monkeypatch):
    log = Log()
    monkeypatch.setattr(Shop, "reads", lambda _, schema: RequiredColumns(frozenset("ab"), frozenset(schema.key)))
    entries = log.row(**columns(a=1, b=2)) + log.ddl("ALTER TABLE orders ADD c INT")
    entries += log.row(**columns(a=3, b=4, c=5)) + log.ddl(REKEY)
    c = Column("c", Kind.INT, "int")
    Catalog(monkeypatch, replace(UNIQUE, columns=(*UNIQUE.columns, c), key=("a", "b")))
    taker = opened(entries, schemas=(UNIQUE,), **MYSQL)
    assert stop_of(taker).context["statement"] == REKEY
    assert [batch.changes[0].schema.key for batch in taker.batches if batch.changes] == [("a",), ("a",)]


# --- statements on whole tables ---

GHOST = (
    "CREATE /* gh-ost */ TABLE `shop`.`_orders_gho` LIKE `shop`.`orders`",
    "ALTER /* gh-ost */ TABLE `shop`.`_orders_gho` ADD c INT NOT NULL DEFAULT 5",
)
GHOST_SWAP = (
    "RENAME /* gh-ost */ TABLE `shop`.`orders` TO `shop`.`_orders_del`, `shop`.`_orders_gho` TO `shop`.`orders`"
)


def statements(log, *texts):
    return [entry for text in texts for entry in log.ddl(text)]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_whole_run_of_gh_ost_is_one_alter(opened, is_restarted):
    log = Log()
    begin = log.row(**columns(a=1)) + statements(log, *GHOST)
    taker = opened(begin, log.ddl(GHOST_SWAP)) if not is_restarted else opened(begin).collect_rows(1)
    if is_restarted:
        taker.collect(lambda one: one.batches[-1].last.offset == log.offset, 60)
        last, schemas = taker.batches[-1].last, taker.receiver.schemas()
        taker = opened(begin, log.ddl(GHOST_SWAP), start=last, schemas=schemas)
    change = stop_of(taker).change
    (table,) = change.tables
    assert (table.rows, table.values_differ, table.after.name) == (None, False, "shop.orders")
    assert [(one.kind, one.fill.text) for one in table.columns] == [(ChangeKind.ADD_COLUMN, b"5")]
    assert change.forgets == ("shop._orders_gho",)


def test_truncate_during_gh_ost_ends_the_record_of_the_copy(opened):
    log = Log()
    begin = log.row(**columns(a=1)) + statements(log, *GHOST)
    change = stop_of(opened(begin, log.ddl("TRUNCATE TABLE orders"))).change
    assert change.forgets == ("shop._orders_gho",)
    accepted = table_registry.ResumeOptions(acknowledged={change.first: True})
    log = Log()
    begin = log.row(**columns(a=1)) + statements(log, *GHOST, "TRUNCATE TABLE orders")
    stop = stop_of(opened(begin, log.ddl(GHOST_SWAP), resume_options=accepted))
    assert stop.change is None


def test_gh_ost_that_the_stream_has_in_part_is_another_table(opened):
    log = Log()
    stop = stop_of(opened(log.row(**columns(a=1)) + statements(log, GHOST[1], GHOST_SWAP)))
    assert stop.change is None and "after it are not known" in stop.message


def test_dropped_table_keeps_its_columns_until_it_is_created_again(opened):
    log = Log()
    begin = log.row(**columns(a=1)) + log.ddl("DROP TABLE `orders` /* generated by server */")
    dropped = stop_of(opened(begin)).change
    (table,) = dropped.tables
    assert (table.rows, table.after.is_dropped) == (ChangeKind.DROP_TABLE, True)
    create = log.ddl("CREATE TABLE orders (id INT PRIMARY KEY, z INT) CHARSET=utf8mb4")
    (again,) = stop_of(opened(begin, create, start=dropped.last, schemas=(table.after,))).change.tables
    assert (again.rows, again.before.is_dropped) == (ChangeKind.CREATE_TABLE, True)
    assert [(one.kind, (one.new or one.old).name) for one in again.columns] == [
        (ChangeKind.DROP_COLUMN, "a"),
        (ChangeKind.ADD_COLUMN, "z"),
    ]


def test_rows_of_a_dropped_table_raise(opened):
    log = Log()
    taker = opened(log.row(**columns(a=1)), schemas=(replace(BEFORE, is_dropped=True),))
    with pytest.raises(SchemaMismatch, match="was dropped, but has rows"):
        taker.collect(lambda _: False, 60)


def test_table_that_the_user_accepted_as_created_again_has_its_rows(opened):
    log = Log()
    create = log.ddl("CREATE TABLE orders (id INT PRIMARY KEY, z INT) CHARSET=utf8mb4")
    start = CanalPosition(FILE, log.offset - 100)
    options = {"resume_options": table_registry.ResumeOptions(acknowledged={start: True})}
    taker = opened(create, log.row(**columns(z=3)), start=start, schemas=(replace(BEFORE, is_dropped=True),), **options)
    (row,) = taker.collect_rows(1).rows
    assert row["z"] == 3
    (known,) = taker.receiver.schemas()
    assert [one.name for one in known.columns] == ["id", "z"] and not known.is_dropped


def test_created_table_with_rows_in_its_transaction_is_refused(opened):
    log = Log()
    create = log.ddl("CREATE TABLE orders (id INT PRIMARY KEY, z INT) START TRANSACTION")
    stop = stop_of(opened(create, schemas=(replace(BEFORE, is_dropped=True),)))
    assert stop.change is None and "also has rows" in stop.message


def test_table_renamed_away_and_back_is_followed(opened):
    log = Log()
    away = log.row(**columns(a=1, b=2)) + log.ddl("RENAME TABLE orders TO elsewhere.orders_1")
    first = stop_of(opened(away, schemas=(BEFORE,))).change
    assert first.tables[0].after.is_dropped and [one.name for one in first.renamed] == ["elsewhere.orders_1"]
    saved = (first.tables[0].after, *first.renamed)
    back = log.ddl("RENAME TABLE elsewhere.orders_1 TO orders")
    (table,) = stop_of(opened(away, back, start=first.last, schemas=saved)).change.tables
    assert table.rows is ChangeKind.RENAME_TABLE and [one.name for one in table.after.columns] == ["id", "a", "b"]


def test_unknown_table_with_a_mapped_name_has_the_columns_of_the_catalog(opened, monkeypatch):
    log = Log()
    Catalog(monkeypatch, replace(BEFORE, columns=(*BEFORE.columns, Column("c", Kind.INT, "int"))))
    swap = "RENAME TABLE orders TO elsewhere.old, elsewhere.new TO orders"
    (table,) = stop_of(opened(log.row(**columns(a=1, b=2)) + log.ddl(swap), schemas=(BEFORE,), **MYSQL)).change.tables
    assert table.rows is ChangeKind.RENAME_TABLE
    assert [(one.kind, one.new.name, one.fill.kind) for one in table.columns] == [
        (ChangeKind.ADD_COLUMN, "c", FillKind.BY_ROW)
    ]


def test_statement_on_tables_after_a_passed_one_is_refused_until_rows(opened):
    log = Log()
    first = log.row(**columns(a=1)) + log.ddl("ALTER TABLE orders ADD c INT")
    taker = opened(first)
    accepted = table_registry.ResumeOptions(acknowledged={stop_of(taker).context["position"]: False})
    start, schemas = taker.batches[-1].last, taker.receiver.schemas()
    options = {"start": start, "schemas": schemas, "resume_options": accepted}
    stop = stop_of(opened(first + log.ddl("RENAME TABLE orders TO elsewhere.orders"), **options))
    assert stop.change is None and "before it are not known" in stop.message


def test_resume_accepts_only_the_statement_of_the_pause(opened):
    log = Log()
    begin, first = log.row(**columns(a=1)), log.ddl("ALTER TABLE orders ADD c INT")
    taker = opened(begin + first)
    accepted = table_registry.ResumeOptions(acknowledged={stop_of(taker).context["position"]: True})
    start, schemas = taker.batches[-1].last, taker.receiver.schemas()
    second = log.ddl("TRUNCATE TABLE orders")
    again = opened(begin + first + second, start=start, schemas=schemas, resume_options=accepted)
    stop = stop_of(again)
    assert stop.context["statement"] == "TRUNCATE TABLE orders"
    after = again.batches[-1].last
    idle = opened(begin + first + second, start=after, schemas=again.receiver.schemas(), resume_options=accepted)
    assert stop_of(idle).context["statement"] == "TRUNCATE TABLE orders"
