"""Findings on tables of Doris and StarRocks, and hints that their servers accept."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from channels.sinks.base import TargetColumn, TargetTable
from channels.sinks.doris.table import DORIS_TABLES
from channels.sinks.starrocks.table import STARROCKS_TABLES
from channels.sinks.starrocks.transaction_mode import why_not_shared
from channels.sinks.starrocks.types import starrocks_type
from channels.sinks.stream_load.table import column_findings, model_of, partition_findings

TABLE = TargetTable(
    "ods.orders",
    (TargetColumn("id", pa.int64(), False, "bigint"), TargetColumn("name", pa.string(), True, "varchar(40)")),
    ("id",),
)


def row(name, kind, null="YES", default=None):
    return {"Field": name, "Type": kind, "Null": null, "Default": default}


ID = row("id", "bigint(20)", "NO")
# Doris 2.1.5 prints comments in single quotes and does not escape the quotes in them
UNESCAPED = """CREATE TABLE `orders` (
  `id` bigint NOT NULL COMMENT 'The rows's number',
  `day` date NOT NULL COMMENT 'AUTO PARTITION, PARTITION BY RANGE(`id`) or UNIQUE KEY(`name`)',
  `name` varchar(160) NULL
) ENGINE=OLAP
UNIQUE KEY(`id`, `day`)
COMMENT 'orders'
PARTITION BY RANGE(`day`)
(PARTITION p1 VALUES [('0000-01-01'), ('2024-02-01')))
DISTRIBUTED BY HASH(`id`) BUCKETS 1
PROPERTIES (
"replication_num" = "1"
);"""


def test_model_of_ignores_clauses_in_comments():
    assert model_of(UNESCAPED) == ("UNIQUE", ("id", "day"))
    ends = [{"Range": "[types: [DATE]; keys: [0000-01-01]; ..types: [DATE]; keys: [2024-02-01]; )"}]
    (finding,) = partition_findings(TABLE, UNESCAPED, ends, datetime.date(2026, 1, 1))
    assert "ends at 2024-02-01" in finding.problem and not finding.fatal
    dynamic = UNESCAPED.replace('"replication_num" = "1"', '"dynamic_partition.enable" = "true"')
    assert not [*partition_findings(TABLE, dynamic, ends, datetime.date(2026, 1, 1))]


def test_why_not_shared_ignores_non_ascii_comments():
    statement = UNESCAPED.replace("rows's", "Zeile's größte")
    assert why_not_shared("ods.orders", statement) is None
    assert "größe" in str(why_not_shared("ods.orders", statement.replace("`name` varchar", "`größe` varchar")))


@pytest.mark.parametrize(
    ("there", "problem", "hint"),
    [
        # one statement for both problems, with the default, without which servers refuse it
        (row("name", "varchar(40)", "NO", ""), "is VARCHAR(40), and the source needs VARCHAR(160) bytes, 4 for a "
         "character; it is NOT NULL", 'MODIFY COLUMN `name` VARCHAR(160) NULL DEFAULT ""'),
        (row("name", "varchar(200)", "NO", "x"), "is NOT NULL", 'MODIFY COLUMN `name` varchar(200) NULL DEFAULT "x"'),
        (row("Name", "varchar(200)"), "is spelled Name in the table", "{Name: name}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rules", [DORIS_TABLES, STARROCKS_TABLES], ids=["doris", "starrocks"])
def test_column_findings_have_one_complete_alter(rules, there, problem, hint):
    (finding,) = column_findings(TABLE, [ID, there], rules)
    assert problem in finding.problem and hint in finding.hint


def test_column_findings_of_keys_and_bytes_have_own_hints():
    (finding,) = column_findings(TABLE, [row("id", "int", "NO"), row("name", "varchar(160)")], DORIS_TABLES)
    assert "Keys cannot be modified" in finding.hint
    table = TargetTable("ods.b", (*TABLE.columns[:1], TargetColumn("guid", pa.binary(), True, "binary(16)")), ("id",))
    (finding,) = column_findings(table, [ID, row("guid", "varchar(64)")], STARROCKS_TABLES)
    assert "{guid: hex(guid)}" in finding.hint


def test_starrocks_type_of_decimal_key_fits_sign_and_zero():
    for digits, scale, text in ((4, 4, "-0.1234"), (5, 2, "-123.45")):
        (length,) = starrocks_type(TargetColumn("k", pa.decimal128(digits, scale), False, ""), key=True).parameters
        assert length == len(text)
