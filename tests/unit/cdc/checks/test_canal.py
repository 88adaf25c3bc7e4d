"""The checks around a Canal source, without a server."""

from __future__ import annotations

from types import SimpleNamespace

from cdc.checks.canal import canal_findings, ring_findings, source_findings
from cdc.model.schema import Column, Kind, TableSchema
from cdc.sources.canal.client import CanalClient
from cdc.sources.canal.fetcher import Ring

MIB = 1 << 20


def away():
    return CanalClient([], destination="shop")


def test_ring_findings_limits_beyond_ring_are_reported():
    assert not list(ring_findings(Ring(), min_bytes=15 * MIB, max_bytes=64 * MIB))
    (low,) = ring_findings(Ring(), min_bytes=16 * MIB, max_bytes=64 * MIB)
    assert "commit.min_bytes (16777216)" in low.problem and "16777216" in low.hint
    (high,) = ring_findings(Ring(), min_bytes=MIB, max_bytes=16 * MIB)
    assert "commit.max_bytes" in high.problem and "8388608" in high.hint
    assert not list(ring_findings(Ring(mode="ITEMSIZE"), min_bytes=64 * MIB, max_bytes=1))


def test_canal_findings_without_mysql_are_fatal():
    found = list(canal_findings(away(), filter="", patterns=True, create_tables=True, mysql=False))
    assert ["lists no server" in found[0].problem, "pattern" in found[1].problem] == [True, True]
    assert "create_tables" in found[2].problem and all(finding.fatal for finding in found)
    assert all(finding.hint and finding.hint not in finding.problem for finding in found)
    with_mysql = canal_findings(away(), filter="", patterns=True, create_tables=True, mysql=True)
    assert len(list(with_mysql)) == 1


def test_canal_findings_filter_is_warning():
    client = away()
    found = list(canal_findings(client, filter="shop\\..*", patterns=False, create_tables=False, mysql=True))
    assert "every client" in found[-1].problem and not found[-1].fatal


def test_source_findings_name_columns_that_canal_changes():
    class Settings:
        settings = {  # noqa: RUF012
            "binlog_row_value_options": "PARTIAL_JSON",
            "binlog_transaction_compression": "ON",
            "log_bin_compress": "OFF",
        }

    columns = (
        Column("id", Kind.INT, "int"),
        Column("name", Kind.VARCHAR, "varchar(9)", charset="gbk"),
        Column("note", Kind.TEXT, "text", charset="utf8mb4"),
        Column("place", Kind.VECTOR, "vector(3)"),
    )
    found = list(
        source_findings(
            Settings(), [(TableSchema("shop", "orders", columns, ("id",)), frozenset({"id", "name", "note", "place"}))]
        )
    )
    assert [finding.fatal for finding in found] == [True, False, False, True]
    assert "binlog_transaction_compression" in found[1].problem and "1.1.7" in found[1].hint
    assert "shop.orders.name" in found[2].problem and "gbk" in found[2].problem
    assert "shop.orders.place" in found[3].problem


def test_source_findings_json_columns_are_one_warning():
    columns = (Column("id", Kind.INT, "int"), *(Column(name, Kind.JSON, "json") for name in ("doc", "extra", "unread")))
    tables = [
        (TableSchema("shop", name, columns, ("id",)), frozenset({"id", "doc", "extra"})) for name in ("orders", "items")
    ]
    (found,) = source_findings(SimpleNamespace(settings={}), tables)
    assert not found.fatal and "binlog source" in found.hint
    assert "shop.orders.doc, shop.orders.extra, shop.items.doc, shop.items.extra." in found.problem
    assert "DATE" in found.problem and "opaque" in found.problem and "unread" not in found.problem
