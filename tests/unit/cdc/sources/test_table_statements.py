"""Work on partitions that also changes another table, as the job reads it from a binlog."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.model.schema_change import ChangeKind
from tests.unit.cdc.sources.test_shadow_tables import Stream, T

STAGED = replace(T, table="staged")
TO_PARTITION = "CONVERT TABLE staged TO PARTITION p VALUES LESS THAN (9)"


def test_table_that_becomes_a_partition_is_dropped() -> None:
    """A later CREATE TABLE of its name is another table, whose target still has the old rows."""
    stream = Stream(T, STAGED)
    change = stream.change(f"ALTER TABLE t {TO_PARTITION}")
    found = {one.before.name: (one.rows, one.after.is_dropped, one.values_differ) for one in change.tables}
    dropped, changed = found["shop.staged"], found["shop.t"]
    assert (dropped, changed) == ((ChangeKind.DROP_TABLE, True, False), (ChangeKind.DROP_PARTITION, False, True))
    created = Stream(T, replace(STAGED, is_dropped=True)).change("CREATE TABLE staged (id INT PRIMARY KEY, a INT)")
    assert [one.rows for one in created.tables] == [ChangeKind.CREATE_TABLE]


def test_partition_work_ends_the_record_of_a_shadow_table() -> None:
    stream = Stream(T, STAGED)
    stream.run("CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ADD b INT")
    assert stream.change(f"ALTER TABLE t {TO_PARTITION}").forgets == ("shop._t_gho",)


@pytest.mark.parametrize(
    "clause",
    [
        "EXCHANGE PARTITION p WITH TABLE {0}",
        "CONVERT PARTITION p TO TABLE {0}",
        "CONVERT TABLE {0} TO PARTITION p VALUES LESS THAN (9)",
    ],
)
@pytest.mark.parametrize(("altered", "other"), [("t", "archive"), ("archive", "t")])
def test_partition_work_with_an_unknown_table_pauses_without_a_change(clause: str, altered: str, other: str) -> None:
    """One of the two tables gets rows without row events: the hint names both, so that a snapshot loads them."""
    stop = Stream().stop(f"ALTER TABLE {altered} {clause.format(other)}")
    assert stop.change is None and "shop.archive before the statement are not known" in stop.message
    assert f"cdc snapshot NAME shop.{altered} shop.{other}" in stop.hint
