"""Steps that change columns: recognised by columns, refused by the limits of the products."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from channels.sinks.base import AlterAction, AlterStep, TargetColumn, TargetTable
from channels.sinks.doris.names import DORIS_NAMES
from channels.sinks.doris.table import DORIS_TABLES
from channels.sinks.starrocks.names import STARROCKS_NAMES
from channels.sinks.starrocks.table import STARROCKS_TABLES
from channels.sinks.stream_load.alter_steps import Image, by_name, fixed_columns, image_of, statement_of, step_findings

TABLE = TargetTable("ods.orders", (TargetColumn("id", pa.int64(), False, "bigint"),), ("id",))
INT = TargetColumn("n", pa.int32(), True, "int")
LONG = TargetColumn("n", pa.int64(), True, "bigint")
STRICT = replace(INT, nullable=False)
OTHER = replace(INT, name="m")
FIVE = pa.scalar(5, pa.int32())
ADD = AlterStep(AlterAction.ADD, None, INT)
ADD_FIVE = AlterStep(AlterAction.ADD, None, INT, FIVE)
DROP = AlterStep(AlterAction.DROP, INT, None)
RENAME = AlterStep(AlterAction.RENAME, INT, OTHER)
WIDEN = AlterStep(AlterAction.WIDEN, INT, LONG)
LOOSEN = AlterStep(AlterAction.MAKE_NULLABLE, STRICT, INT)
CREATE = """CREATE TABLE `orders` (
  `id` bigint NOT NULL,
  `day` date NULL COMMENT 'PARTITION BY (`n`)'
) ENGINE=OLAP
UNIQUE KEY(`id`)
PARTITION BY RANGE(`day`)
DISTRIBUTED BY HASH(`bucket`) BUCKETS 1
ORDER BY(`sorted`)
PROPERTIES ("x" = "1");"""


def row(name, kind, null="Yes", default=None):
    return {"Field": name, "Type": kind, "Null": null, "Default": default}


ID = row("id", "bigint(20)", "No")


@pytest.mark.parametrize(
    ("step", "rows", "image"),
    [
        (ADD, [], Image.BEFORE),
        (ADD, [row("n", "int")], Image.AFTER),
        (ADD, [row("n", "bigint")], Image.AFTER),
        (ADD, [row("n", "date")], Image.OTHER),
        (ADD, [row("N", "int")], Image.OTHER),
        (ADD, [row("n", "int", default="5")], Image.OTHER),
        (ADD, [row("n", "int", "No")], Image.OTHER),
        (ADD_FIVE, [row("n", "int", default="5")], Image.AFTER),
        (ADD_FIVE, [row("n", "int")], Image.OTHER),
        (DROP, [row("n", "int")], Image.BEFORE),
        (DROP, [], Image.AFTER),
        (DROP, [row("n", "date")], Image.OTHER),
        (RENAME, [row("n", "int")], Image.BEFORE),
        (RENAME, [row("m", "int")], Image.AFTER),
        (RENAME, [row("n", "int"), row("m", "int")], Image.OTHER),
        (RENAME, [], Image.OTHER),
        (RENAME, [row("m", "int", "No")], Image.AFTER),
        (WIDEN, [row("n", "int")], Image.BEFORE),
        (WIDEN, [row("n", "bigint")], Image.AFTER),
        (WIDEN, [row("n", "bigint", "No")], Image.BEFORE),
        (WIDEN, [row("n", "date")], Image.OTHER),
        (WIDEN, [], Image.OTHER),
        (LOOSEN, [row("n", "int", "No")], Image.BEFORE),
        (LOOSEN, [row("n", "int")], Image.AFTER),
    ],
)
@pytest.mark.parametrize("rules", [DORIS_TABLES, STARROCKS_TABLES], ids=["doris", "starrocks"])
def test_image_of_step_follows_from_columns(rules, step, rows, image):
    assert image_of(TABLE, step, by_name([ID, *rows]), rules) is image


@pytest.mark.parametrize(
    ("step", "existing", "clause"),
    [
        (ADD, None, "ADD COLUMN `n` INT NULL"),
        (ADD_FIVE, None, 'ADD COLUMN `n` INT NULL DEFAULT "5"'),
        (AlterStep(AlterAction.ADD, None, STRICT, FIVE), None, 'ADD COLUMN `n` INT NULL DEFAULT "5"'),
        (DROP, row("n", "int"), "DROP COLUMN `n`"),
        (WIDEN, row("n", "int", "No", "7"), 'MODIFY COLUMN `n` BIGINT NULL DEFAULT "7" COMMENT \'it\'\'s\''),
        (LOOSEN, row("n", "bigint", "No"), "MODIFY COLUMN `n` bigint NULL COMMENT 'it''s'"),
        (replace(WIDEN, after=replace(LONG, nullable=False)), row("n", "int", "No"),
         "MODIFY COLUMN `n` BIGINT NOT NULL COMMENT 'it''s'"),
    ],
)  # fmt: skip
def test_statement_of_step_keeps_default_and_comment(step, existing, clause):
    columns = by_name([ID, *([existing] if existing else [])])
    assert statement_of(TABLE, step, columns, "it's", DORIS_TABLES) == f"ALTER TABLE `ods`.`orders` {clause}"


def test_statement_of_rename_quotes_names_of_each_product():
    step = AlterStep(AlterAction.RENAME, replace(INT, name="a`b"), replace(INT, name="select x"))
    columns = by_name([ID, row("a`b", "int")])
    assert statement_of(TABLE, step, columns, "", DORIS_TABLES).endswith("RENAME COLUMN `a``b` `select x`")
    assert statement_of(TABLE, step, columns, "", STARROCKS_TABLES).endswith("RENAME COLUMN `a``b` TO `select x`")


def test_fixed_columns_are_read_from_clauses_not_comments():
    rows = [ID, *(row(name, "int") for name in ("day", "bucket", "sorted", "n"))]
    assert fixed_columns(TABLE, by_name(rows), CREATE) == {"id", "day", "bucket", "sorted"}
    by_function = "PARTITION BY date_trunc('n', day)\n"
    assert fixed_columns(TABLE, by_name(rows), by_function) == {"id", "day"}


def findings(rules, steps, *rows, names=STARROCKS_NAMES):
    return [*step_findings(TABLE, steps, by_name([ID, *rows]), CREATE, rules, lambda: names)]


@pytest.mark.parametrize("name", ["day", "bucket", "sorted"])
@pytest.mark.parametrize("action", [AlterAction.DROP, AlterAction.RENAME, AlterAction.WIDEN])
def test_change_of_fixed_column_is_fatal(name, action):
    after = {AlterAction.DROP: None, AlterAction.RENAME: OTHER, AlterAction.WIDEN: replace(LONG, name=name)}[action]
    step = AlterStep(action, replace(INT, name=name), after)
    (finding,) = findings(STARROCKS_TABLES, [step], row(name, "int"))
    assert finding.fatal and "key, the partitions, the buckets or the sort order" in finding.problem


@pytest.mark.parametrize(
    ("column", "fill", "why"),
    [
        (TargetColumn("n", pa.string(), True, "json"), "{}", "no default but NULL"),
        (TargetColumn("n", pa.list_(pa.float32()), True), [1.0], "no default but NULL"),
        (TargetColumn("n", pa.string(), True, "text"), "NULL", "special meaning"),
    ],
)
def test_fill_without_default_asks_for_reload(column, fill, why):
    step = AlterStep(AlterAction.ADD, None, column, pa.scalar(fill, column.arrow))
    (finding,) = findings(DORIS_TABLES, [step], names=DORIS_NAMES)
    assert finding.fatal and why in finding.problem and "Load the table again" in finding.hint


def test_backslash_in_fill_is_fatal_for_doris_only():
    text = TargetColumn("n", pa.string(), True, "text")
    step = AlterStep(AlterAction.ADD, None, text, pa.scalar("a\\b"))
    assert "backslash" in findings(DORIS_TABLES, [step], names=DORIS_NAMES)[0].problem
    assert findings(STARROCKS_TABLES, [step]) == []


def test_name_of_renamed_column_is_fatal_for_starrocks_only():
    steps = [RENAME, ADD]
    (finding,) = findings(STARROCKS_TABLES, steps, row("n", "int"))
    assert finding.fatal and "which a renamed column had" in finding.problem
    assert findings(DORIS_TABLES, steps, row("n", "int"), names=DORIS_NAMES) == []


@pytest.mark.parametrize(
    ("step", "existing", "why"),
    [
        (AlterStep(AlterAction.RENAME, INT, replace(INT, name="N")), row("n", "int"), "only the case"),
        (AlterStep(AlterAction.WIDEN, INT, replace(INT, arrow=pa.date32())), row("n", "int"), "cannot be changed"),
        (replace(WIDEN, before=INT), row("n", "int", default="NULL"), "cannot keep its default"),
        (DROP, row("n", "date"), "before the change it has `n` INT NULL, after it no column"),
        (AlterStep(AlterAction.RENAME, INT, replace(INT, name="mv_x")), row("n", "int"), "does not create a column"),
        (AlterStep(AlterAction.ADD, None, replace(INT, name="a\nb")), None, "control characters"),
        (AlterStep(AlterAction.ADD, None, replace(INT, arrow=pa.duration("s"))), None, "no type"),
    ],
)
def test_step_that_server_refuses_is_fatal(step, existing, why):
    found = findings(DORIS_TABLES, [step], *([existing] if existing else []), names=DORIS_NAMES)
    assert found and all(finding.fatal for finding in found) and why in found[0].problem


def test_findings_use_columns_that_earlier_steps_leave():
    spare = replace(INT, name="spare")
    swap = [
        AlterStep(AlterAction.RENAME, INT, spare),
        AlterStep(AlterAction.RENAME, OTHER, INT),
        AlterStep(AlterAction.RENAME, spare, OTHER),
        AlterStep(AlterAction.WIDEN, INT, LONG),
        AlterStep(AlterAction.DROP, LONG, None),
    ]
    assert findings(DORIS_TABLES, swap, row("n", "int"), row("m", "int"), names=DORIS_NAMES) == []
