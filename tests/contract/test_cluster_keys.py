"""Keys that Doris and StarRocks list: complete after every commit, exact, in bounded pages, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import SinkUnavailable, TargetMismatch
from channels.sinks.base import TargetColumn, TargetTable, can_list_keys
from channels.sinks.stream_load import key_pages
from tests.contract.test_cluster_sinks import KINDS, sink_on
from tests.emulators.cases import TABLE, mark_of, name_of, write
from tests.emulators.faults import Fault


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(kind: str) -> Iterator[Any]:
    with KINDS[kind][0].emulator() as cluster:
        yield cluster


@pytest.fixture
def sink(kind: str, cluster: Any) -> Iterator[Any]:
    """A sink whose table TABLE has the keys 1 to 5."""
    sink = sink_on(kind, cluster)
    sink.ensure_table(TABLE)
    sink.commit([write(sink, *((number, "a", False, number) for number in range(1, 6)))], mark_of())
    yield sink
    sink.close()


def insert(kind: str, cluster: Any, table: str, columns: str, *rows: str) -> None:
    """Insert rows as another program does. Doris needs the sequence column."""
    sequence, value = (", `__DORIS_SEQUENCE_COL__`", ", 1") if kind == "doris" else ("", "")
    values = ", ".join(f"({row}{value})" for row in rows)
    cluster.execute(f"INSERT INTO {table} ({columns}{sequence}) VALUES {values}")


def ids(page: pa.Table) -> list[int]:
    return page.column("id").to_pylist()


def test_cluster_sinks_list_their_keys(sink: Any) -> None:
    assert can_list_keys(sink)
    assert ids(sink.keys(TABLE, None, 100)) == [1, 2, 3, 4, 5]


def test_keys_of_several_answers_are_one_page(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_pages, "ANSWER_KEYS", 2)
    assert ids(sink.keys(TABLE, None, 100)) == [1, 2, 3, 4, 5]
    assert ids(sink.keys(TABLE, None, 3)) == [1, 2, 3]
    assert ids(sink.keys(TABLE, pa.table({"id": pa.array([2], pa.int64())}), 4)) == [3, 4, 5]


def test_long_keys_are_asked_for_in_small_answers(cluster: Any, sink: Any) -> None:
    wide = TargetTable("ods.wide", (TargetColumn("a", pa.string(), False), TargetColumn("b", pa.int32(), True)), ("a",))
    sink.ensure_table(wide)
    asked: list[str] = []
    execute = cluster.sql.execute
    cluster._port._execute = lambda sql, context: (asked.append(sql), execute(sql, context))[1]
    sink._sql.close()
    assert sink.keys(wide, None, 1_000_000).num_rows == 0
    (select,) = [sql for sql in asked if "FROM `ods`.`wide`" in sql and sql.startswith("SELECT")]
    assert int(select.rpartition(" ")[2]) <= (64 << 20) // 65533
    assert "query_timeout" in select


def test_keys_include_commits_that_a_follower_has_not_replayed(cluster: Any, sink: Any) -> None:
    cluster.is_behind = True
    assert ids(sink.keys(TABLE, None, 100)) == [1, 2, 3, 4, 5]


def test_keys_wait_for_a_load_that_is_not_visible(cluster: Any, sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    visibility = sink._visibility
    visibility.timeout_s = 0.0
    states = ["COMMITTED", "COMMITTED", "VISIBLE"]
    ask = sink._label_state
    monkeypatch.setattr(visibility, "_label_state", lambda *label: states.pop(0) if states else ask(*label))
    sink._await_visible([write(sink, (6, "b", False, 6), name=name_of(2))], ["label"])
    with pytest.raises(SinkUnavailable, match="not visible yet"):
        sink.keys(TABLE, None, 100)
    assert states == ["VISIBLE"]
    assert ids(sink.keys(TABLE, None, 100))[:5] == [1, 2, 3, 4, 5]


def test_lost_connection_repeats_sync_and_query(cluster: Any, sink: Any) -> None:
    cluster.is_behind = True
    cluster.faults.order("sql", Fault.RESET, match="SELECT /*+ SET_VAR")
    assert ids(sink.keys(TABLE, None, 100)) == [1, 2, 3, 4, 5]
    assert len(cluster.faults.struck) == 1


def test_refused_query_is_an_error_without_key_values(sink: Any, cluster: Any) -> None:
    cluster.faults.order("sql", Fault.ERROR, match="SELECT /*+ SET_VAR")
    with pytest.raises(SinkUnavailable) as caught:
        sink.keys(TABLE, pa.table({"id": pa.array([4], pa.int64())}), 100)
    assert "`id` > %s" in str(caught.value.context["statement"])


def test_missing_table_is_no_empty_page(sink: Any) -> None:
    with pytest.raises((TargetMismatch, SinkUnavailable)):
        sink.keys(replace(TABLE, name="ods.missing"), None, 100)


def test_key_that_the_job_did_not_write_stops_the_search(kind: str, cluster: Any, sink: Any) -> None:
    """Its delete would not reach the row, and the job would report that no orphan row is left."""
    table = TargetTable(
        "ods.digits",
        (TargetColumn("a", pa.binary(), False, "varbinary(20)"), TargetColumn("n", pa.int32(), True, "int")),
        ("a",),
    )
    sink.ensure_table(table)
    insert(kind, cluster, "ods.digits", "a, n", "'00ff', 1")
    assert sink.keys(table, None, 10).column("a").to_pylist() == [b"\x00\xff"]
    for digits in ("00FF", "0", "xy"):
        insert(kind, cluster, "ods.digits", "a, n", f"'{digits}', 1")
        with pytest.raises(TargetMismatch, match=r"column a that is no value") as caught:
            sink.keys(table, None, 10)
        assert "Delete this row" in caught.value.hint
        cluster.storage._duck.execute(f"DELETE FROM ods.\"digits#rows\" WHERE a = '{digits}'")


def test_other_order_of_the_cluster_stops_the_search(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in ([("2",), ("1",)], [("1",), ("1",)]):
        monkeypatch.setattr(sink._sql, "texts", lambda *_, rows=rows: rows)
        with pytest.raises(TargetMismatch, match="not in the order"):
            sink.keys(TABLE, None, 100)
    monkeypatch.setattr(sink._sql, "texts", lambda *_: [("3",)])
    with pytest.raises(TargetMismatch, match="not in the order"):
        sink.keys(TABLE, pa.table({"id": pa.array([3], pa.int64())}), 100)


def test_bit_key_is_read_as_number(kind: str, sink: Any, cluster: Any) -> None:
    table = TargetTable(
        "ods.flags",
        (TargetColumn("f", pa.int64(), False, "bit(1)"), TargetColumn("n", pa.int32(), False, "int")),
        ("f", "n"),
    )
    sink.ensure_table(table)
    insert(kind, cluster, "ods.flags", "f, n", "0, 1", "1, 1", "1, 2")
    found, after = [], None
    while (page := sink.keys(table, after, 1)).num_rows:
        found += [(row["f"], row["n"]) for row in page.to_pylist()]
        after = page
    assert found == [(0, 1), (1, 1), (1, 2)]
