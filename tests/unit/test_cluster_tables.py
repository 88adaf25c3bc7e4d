"""Findings on tables of Doris and StarRocks, and mends that their servers take."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from channels.sinks import doris_tables, starrocks_tables
from channels.sinks.base import TargetColumn, TargetTable
from channels.sinks.cluster import partition_findings
from channels.sinks.column_findings import model_of
from channels.sinks.starrocks_mode import why_not_shared
from channels.sinks.starrocks_types import starrocks_type

TABLE = TargetTable(
    "ods.orders",
    (TargetColumn("id", pa.int64(), False, "bigint"), TargetColumn("name", pa.string(), True, "varchar(40)")),
    ("id",),
)


def row(name, kind, null="YES", default=None):
    return {"Field": name, "Type": kind, "Null": null, "Default": default}


ID = row("id", "bigint(20)", "NO")
# as Doris 2.1.5 prints comments: in single quotes, with those within as they are
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


def test_comments_are_not_read_as_clauses_however_they_are_quoted():
    assert model_of(UNESCAPED) == ("UNIQUE", ("id", "day"))
    ends = [{"Range": "[types: [DATE]; keys: [0000-01-01]; ..types: [DATE]; keys: [2024-02-01]; )"}]
    (finding,) = partition_findings(TABLE, UNESCAPED, ends, datetime.date(2026, 1, 1))
    assert "ends at 2024-02-01" in finding.problem and not finding.fatal
    dynamic = UNESCAPED.replace('"replication_num" = "1"', '"dynamic_partition.enable" = "true"')
    assert not [*partition_findings(TABLE, dynamic, ends, datetime.date(2026, 1, 1))]


def test_a_comment_beyond_ascii_does_not_keep_a_table_out_of_the_transaction():
    statement = UNESCAPED.replace("rows's", "Zeile's größte")
    assert why_not_shared("ods.orders", statement) is None
    assert "größe" in str(why_not_shared("ods.orders", statement.replace("`name` varchar", "`größe` varchar")))


@pytest.mark.parametrize(
    ("there", "problem", "mend"),
    [
        # one statement for both, and with the default: a server refuses it without
        (row("name", "varchar(40)", "NO", ""), "is VARCHAR(40), and the source needs VARCHAR(160) bytes, 4 for a "
         "character; it is NOT NULL", 'MODIFY COLUMN `name` VARCHAR(160) NULL DEFAULT ""'),
        (row("name", "varchar(200)", "NO", "x"), "is NOT NULL", 'MODIFY COLUMN `name` varchar(200) NULL DEFAULT "x"'),
        (row("Name", "varchar(200)"), "is spelt Name in the table", "{Name: name}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("differences", [doris_tables.column_differences, starrocks_tables.column_findings])
def test_a_column_is_mended_by_one_statement_that_is_taken(differences, there, problem, mend):
    (finding,) = differences(TABLE, [ID, there])
    assert problem in finding.problem and mend in finding.mend


def test_keys_and_bytes_have_mends_of_their_own():
    (finding,) = doris_tables.column_differences(TABLE, [row("id", "int", "NO"), row("name", "varchar(160)")])
    assert "Keys cannot be modified" in finding.mend
    table = TargetTable("ods.b", (*TABLE.columns[:1], TargetColumn("guid", pa.binary(), True, "binary(16)")), ("id",))
    (finding,) = starrocks_tables.column_findings(table, [ID, row("guid", "varchar(64)")])
    assert "{guid: hex(guid)}" in finding.mend


def test_a_key_with_digits_behind_the_point_alone_has_room_for_sign_point_and_zero():
    for digits, scale, text in ((4, 4, "-0.1234"), (5, 2, "-123.45")):
        (length,) = starrocks_type(TargetColumn("k", pa.decimal128(digits, scale), False, ""), key=True).parameters
        assert length == len(text)
