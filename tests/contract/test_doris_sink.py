"""What only the Doris sink does: exact types, tables and their hints, bodies, broken environments."""

from __future__ import annotations

import datetime
import decimal
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from pymysql.cursors import DictCursor

from cdc.errors import (
    LoadRejected,
    PreparedLoadLost,
    SinkLimitExceeded,
    SinkUnavailable,
    TargetMismatch,
)
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind
from channels.sinks.base import LoadState, TargetColumn, TargetTable
from channels.sinks.doris.sink import DorisSink
from channels.sinks.doris.types import doris_type
from channels.sinks.stream_load import encoding
from channels.sinks.stream_load.http import HttpClient, Reply
from channels.sinks.stream_load.types import parsed
from tests.emulators.cases import (
    TABLE,
    mark_of,
    name_of,
    rows_of,
    write,
)
from tests.emulators.doris.cases import emulator, sink_on
from tests.emulators.doris.emulator import DorisEmulator
from tests.emulators.faults import Fault
from tests.support.limits import HANG_S

MADE = "CREATE TABLE ods.orders (id BIGINT NOT NULL, name VARCHAR(40))"
REST = 'DISTRIBUTED BY HASH(id) BUCKETS 1 PROPERTIES ("replication_num" = "1"%s)'
D = decimal.Decimal
AT = datetime.datetime(2024, 2, 29, 23, 59, 59, 999999)


@pytest.fixture
def doris() -> Iterator[DorisEmulator]:
    with emulator() as doris:
        yield doris


@pytest.fixture
def sink(doris: DorisEmulator) -> Iterator[DorisSink]:
    sink = sink_on(doris)
    yield sink
    sink.close()


# source column, its values, its type in Doris, the values that a reader gets
TYPES = [
    (Column("c", Kind.TINYINT, "tinyint"), [-128, 127, None], "TINYINT", None),
    (Column("c", Kind.TINYINT, "tinyint unsigned", unsigned=True), [0, 255], "SMALLINT", None),
    (Column("c", Kind.SMALLINT, "smallint unsigned", unsigned=True), [65535], "INT", None),
    (Column("c", Kind.MEDIUMINT, "mediumint"), [-8388608], "INT", None),
    (Column("c", Kind.INT, "int(10) unsigned", unsigned=True), [4294967295], "BIGINT", None),
    (Column("c", Kind.BIGINT, "bigint"), [-(2**63), 2**63 - 1], "BIGINT", None),
    (Column("c", Kind.BIGINT, "bigint unsigned", unsigned=True), [D(2**64 - 1), D(0)], "LARGEINT", [2**64 - 1, 0]),
    (Column("c", Kind.BIT, "bit(1)", length=1), [0, 1], "BOOLEAN", [False, True]),
    (Column("c", Kind.BIT, "bit(63)", length=63), [2**63 - 1], "BIGINT", None),
    (Column("c", Kind.BIT, "bit(64)", length=64), [D(2**64 - 1)], "LARGEINT", [2**64 - 1]),
    (Column("c", Kind.YEAR, "year"), [1901, 0], "SMALLINT", None),
    (Column("c", Kind.FLOAT, "float"), [0.5, -(2.0**100), None], "FLOAT", None),
    (Column("c", Kind.DOUBLE, "double"), [0.1, 1e300, -5e-324], "DOUBLE", None),
    (
        Column("c", Kind.DECIMAL, "decimal(38,10)", precision=38, scale=10),
        [D("0.0000000001"), D("-0.0000000100"), D("9" * 28 + "." + "9" * 10)],
        "DECIMAL(38, 10)",
        None,
    ),
    (Column("c", Kind.DECIMAL, "decimal(5,0)", precision=5), [D(-99999)], "DECIMAL(5, 0)", None),
    (Column("c", Kind.DECIMAL, "decimal(65,2)", precision=65, scale=2), ["9" * 63 + ".99"], "STRING", None),
    (Column("c", Kind.DATE, "date"), [datetime.date(1000, 1, 1), datetime.date(9999, 12, 31)], "DATE", None),
    (Column("c", Kind.DATETIME, "datetime"), [AT.replace(microsecond=0)], "DATETIME", None),
    (Column("c", Kind.DATETIME, "datetime(3)", fsp=3), [AT.replace(microsecond=999000)], "DATETIME(3)", None),
    (Column("c", Kind.DATETIME, "datetime(6)", fsp=6), [AT, datetime.datetime(1969, 12, 31)], "DATETIME(6)", None),
    (Column("c", Kind.TIMESTAMP, "timestamp(6)", fsp=6), [AT.replace(tzinfo=datetime.UTC)], "DATETIME(6)", [AT]),
    (Column("c", Kind.TIME, "time(6)", fsp=6), ["-838:59:59.000000"], "VARCHAR(17)", None),
    (Column("c", Kind.CHAR, "char(2)", length=2, charset="utf8mb4"), ["日本", ""], "VARCHAR(8)", None),
    (Column("c", Kind.VARCHAR, "varchar(3)", length=3), ["𝄞𝄞𝄞", " a "], "VARCHAR(12)", None),
    (Column("c", Kind.VARCHAR, "varchar(20000)", length=20000), ["x"], "STRING", None),
    (Column("c", Kind.TEXT, "longtext"), ["a\tb\nc\r\n\\N,\"'\\", "\\n", "null", None], "STRING", None),
    (Column("c", Kind.ENUM, "enum('a','b')", labels=("a", "b")), ["a", ""], "STRING", None),
    (Column("c", Kind.SET, "set('a','b')", labels=("a", "b")), ["a,b"], "STRING", None),
    (Column("c", Kind.JSON, "json"), ['{"a": [1, "ü\\n", 1.50]}', "null"], "JSON", None),
    (Column("c", Kind.BINARY, "binary(2)", length=2), [b"\x00\xff"], "VARCHAR(4)", ["00ff"]),
    (Column("c", Kind.BLOB, "blob"), [b"", b"\x01\x02\\N", None], "STRING", ["", "01025c4e", None]),
    (Column("c", Kind.VECTOR, "vector(2)", length=2), [[0.5, -2.0], None], "ARRAY<FLOAT>", None),
    (Column("c", Kind.UUID, "uuid"), ["00000000-0000-0000-0000-000000000001"], "VARCHAR(36)", None),
    (Column("c", Kind.INET6, "inet6"), ["::1"], "VARCHAR(45)", None),
]


@pytest.fixture(scope="module")
def shared() -> Iterator[DorisEmulator]:
    with emulator() as doris:
        yield doris


@pytest.mark.parametrize("as_json", [False, True], ids=["csv", "json"])
@pytest.mark.parametrize(
    ("number", "case"), list(enumerate(TYPES)), ids=[f"{each[0].type}-{number}" for number, each in enumerate(TYPES)]
)
def test_value_of_each_type_arrives_exactly(
    shared: DorisEmulator, number: int, case: tuple[Column, list[object], str, list[object] | None], as_json: bool
) -> None:
    column, values, kind, expected = case
    sink = sink_on(shared)
    name = f"ods.t{number}_{as_json}"
    table = TargetTable(
        name,
        (
            TargetColumn("id", pa.int64(), False, "bigint"),
            TargetColumn("c", column.arrow, True, column.type),
            TargetColumn("way", pa.string(), True, "text"),
        ),
        ("id",),
    )
    sink.ensure_table(table)
    way = "\x01" if as_json else "plain"  # a separator within a text forces JSON lines
    ids = list(range(len(values)))
    batch = pa.record_batch(
        {
            "id": pa.array(ids),
            "c": pa.array(values, column.arrow),
            "way": pa.array([way] * len(values)),
            DELETED: pa.array([False] * len(values)),
            SEQUENCE: pa.array(ids, pa.int64()),
        }
    )

    load = sink.part_writer(table)(name_of(channel=name), iter([batch.slice(0, 1), batch.slice(1)]))
    assert load is not None
    sink.commit([load], mark_of())

    assert str(doris_type(table.columns[1], key=False)) == kind
    assert sink.describe(table) == ()
    found = shared.execute(f"SELECT c FROM {name} ORDER BY id")[1]
    assert [row[0] for row in found] == (values if expected is None else expected)
    sink.close()


def test_text_backslash_n_is_not_null(doris: DorisEmulator, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    sink.commit([write(sink, (1, "\\N", False, 1), (2, None, False, 2), (3, "a\x02", False, 3))], mark_of())
    assert doris.rows("SELECT * FROM ods.orders") == [(1, "\\N"), (2, None), (3, "a\x02")]


@pytest.mark.parametrize("way", ["csv", "lz4", "json"])
def test_rows_beyond_memory_limit_use_file(way: str) -> None:
    batches = [rows_of(*((number * 10 + each, f"n{each}", False, each) for each in range(10))) for number in range(20)]
    rows = encoding.BodyRows(iter(batches), limit_bytes=1000)
    for _ in range(2):  # each attempt of a load reads the rows again
        names = ["id", "name", "d", "s"]
        body = (
            encoding.json_body(rows, names) if way == "json" else encoding.csv_body(rows, None if way == "csv" else way)
        )
        sent = b"".join(body)
        if way == "lz4":
            sent = pa.CompressedInputStream(pa.BufferReader(sent), "lz4").read()
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        assert sent == (encoding.json_lines(whole, names) if way == "json" else encoding.csv_lines(whole))
    assert rows.row_count == 200
    rows.close()


def test_json_lines_of_all_characters_are_json() -> None:
    text = "".join(map(chr, range(0x250))) + "\u2028𝄞"
    batch = pa.record_batch({"c": pa.array([text, None])})
    assert [json.loads(line) for line in encoding.json_lines(batch, ['q"']).splitlines()] == [
        {'q"': text},
        {'q"': None},
    ]


def test_load_with_lz4_commits_all_rows(doris: DorisEmulator) -> None:
    sink = sink_on(doris, compression="lz4")
    sink.ensure_table(TABLE)
    sink.commit([write(sink, *((n, f"n{n}", False, n) for n in range(1, 5000)))], mark_of())
    assert doris.rows("SELECT count(*), min(name), max(id) FROM ods.orders") == [(4999, "n1", 4999)]
    sink.close()


def test_new_table_has_options_of_job_file(doris: DorisEmulator) -> None:
    sink = sink_on(doris, tables={"buckets": 4, "properties": {"compression": "zstd"}})
    table = replace(
        TABLE,
        columns=(TargetColumn("note", pa.string(), True, "varchar(5)", "it's"), *TABLE.columns),
        comment="all \\ orders",
        options={"buckets": 8, "partition": 'PARTITION BY RANGE(`id`) (PARTITION p1 VALUES LESS THAN ("100"))'},
    )
    sink.ensure_table(table)
    text = doris.execute("SHOW CREATE TABLE ods.orders")[1][0][1]
    for part in ("`id` bigint NOT NULL", "it's", '"compression" = "zstd"', "PARTITION BY RANGE", "UNIQUE KEY(`id`)"):
        assert part in text
    assert "BUCKETS 8" in sink.ddl(table)
    assert sink.describe(table) == ()
    sink.close()


def test_hint_of_missing_sequence_column_adds_it(doris: DorisEmulator, sink: DorisSink) -> None:
    doris.execute("CREATE DATABASE ods")
    doris.execute(f"{MADE} UNIQUE KEY(id) {REST % ''}")
    (finding,) = sink.describe(TABLE)
    assert "no sequence column" in finding.problem and 'ENABLE FEATURE "SEQUENCE_LOAD"' in finding.hint
    with pytest.raises(TargetMismatch):
        sink.ensure_table(TABLE)
    doris.execute(finding.hint.partition(";")[0])
    assert sink.describe(TABLE) == ()


def test_plain_load_after_drop_of_column_stops_job(doris: DorisEmulator) -> None:
    sink = sink_on(doris, two_phase_commit=False)
    sink.ensure_table(TABLE)
    doris.execute("ALTER TABLE ods.orders DROP COLUMN name")
    load = write(sink, (1, "a", False, 1))
    with pytest.raises(PreparedLoadLost):
        sink.commit([load], mark_of())
    assert sink.last_checkpoint("shop") is None, "nothing says that it is committed"
    with pytest.raises(TargetMismatch, match="column name is missing"):
        write(sink, (1, "a", False, 1), name=name_of(attempt=1))
    sink.close()


def test_plain_loads_of_several_tables_wait_in_parallel(doris: DorisEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_on(doris, two_phase_commit=False)
    tables = [replace(TABLE, name=f"ods.orders_{number}") for number in range(4)]
    loads = []
    for table in tables:
        sink.ensure_table(table)
        loads.append(write(sink, (1, "a", False, 1), name=name_of(channel=table.name), table=table))
    together = threading.Barrier(len(tables))  # each table waits here for the others
    monkeypatch.setattr(sink._visibility, "wait", lambda *of: together.wait(HANG_S))
    sink.commit(loads, mark_of())
    assert sink.last_checkpoint("shop") == mark_of()
    sink.close()


@pytest.mark.parametrize(
    ("there", "wanted", "holds"),
    [
        ("int(11)", "BIGINT", False),
        ("largeint", "BIGINT", True),
        ("decimalv3(12, 2)", "DECIMAL(10, 2)", True),
        ("decimal(12,2)", "DECIMAL(12, 4)", False),
        ("decimal(20,0)", "LARGEINT", True),
        ("decimal(19,0)", "LARGEINT", False),
        ("datetimev2(3)", "DATETIME(6)", False),
        ("datetime", "DATETIME(0)", True),
        ("text", "VARCHAR(100)", True),
        ("varchar(65533)", "STRING", False),
        ("json", "STRING", False),
    ],
)
def test_type_holds_only_values_that_it_stores_exactly(there: str, wanted: str, holds: bool) -> None:
    assert parsed(there).holds(parsed(wanted)) is holds


def test_hint_of_missing_partition_adds_it(doris: DorisEmulator, sink: DorisSink) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    table = TargetTable(
        "ods.daily",
        (TargetColumn("day", pa.date32(), False, "date"), TargetColumn("id", pa.int64(), False, "bigint")),
        ("day", "id"),
        options={"partition": 'PARTITION BY RANGE(`day`) (PARTITION p1 VALUES LESS THAN ("2024-02-01"))'},
    )
    sink.ensure_table(table)  # the source may have no rows of today
    batch = pa.record_batch({"day": pa.array([today]), "id": [1], DELETED: [False], SEQUENCE: [1]})
    with pytest.raises(LoadRejected, match="no partition for this tuple"):
        sink.part_writer(table)(name_of(channel="ods.daily"), iter([batch]))
    (finding,) = sink.describe(table)
    assert "the last partition ends at 2024-02-01" in finding.problem and not finding.fatal
    doris.execute(finding.hint)
    assert sink.describe(table) == ()
    load = sink.part_writer(table)(name_of(channel="ods.daily"), iter([batch]))
    assert load is not None
    sink.commit([load], mark_of())
    assert doris.rows("SELECT * FROM ods.daily") == [(today, 1)]


@pytest.mark.parametrize(("status", "body"), [(403, b"<html>Forbidden</html>"), (200, b"<html>Log in"), (200, b"[]")])
def test_answer_of_proxy_means_unavailable(
    sink: DorisSink, status: int, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.ensure_table(TABLE)
    load = write(sink, (1, "a", False, 1))
    request = HttpClient.request

    def proxied(client: HttpClient, method: str, host: str, path: str, **more: Any) -> Reply:
        is_asked = "get_load_state" in path or "backends" in path or path.endswith("_stream_load")
        return Reply(status, {}, body) if is_asked else request(client, method, host, path, **more)

    monkeypatch.setattr(HttpClient, "request", proxied)
    for step in (lambda: sink.state(load), lambda: sink.commit([load], mark_of())):
        with pytest.raises(SinkUnavailable):
            step()
    assert any(finding.fatal for finding in sink.check([TABLE]))
    assert any(finding.fatal for finding in sink._load_findings(TABLE, set()))


def test_unlisted_backends_name_sink_be(sink: DorisSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpClient, "request", lambda *_, **__: Reply(404, {}, b""))
    with pytest.raises(SinkUnavailable, match="lists no backend") as caught:
        sink._client.backends(fresh=True)
    assert "sink.be" in caught.value.hint


def test_check_with_refused_select_has_finding(doris: DorisEmulator, sink: DorisSink) -> None:
    doris.faults.order("sql", Fault.ERROR, match="SELECT 1", text="There is no scanNode Backend available")
    (finding,) = sink.check([TABLE])
    assert "no scanNode Backend" in finding.problem


def test_broken_sql_connection_is_opened_again(
    doris: DorisEmulator, sink: DorisSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.ensure_table(TABLE)
    execute, broken = DictCursor.execute, [pymysql.err.InternalError("Packet sequence number wrong - got 3 expected 1")]

    def breaks(cursor: DictCursor, *arguments: Any) -> int:
        if broken:
            raise broken.pop()
        return execute(cursor, *arguments)

    monkeypatch.setattr(DictCursor, "execute", breaks)
    assert sink.describe(TABLE) == ()
    assert not broken


def test_view_as_target_is_refused(sink: DorisSink, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.ensure_table(TABLE)
    ask = sink._sql.ask
    view = {"View": "orders", "Create View": "CREATE VIEW `orders` AS SELECT sum(1) OVER (PARTITION BY id) FROM t"}
    monkeypatch.setattr(
        sink._sql, "ask", lambda sql, *values: [view] if sql.startswith("SHOW CREATE") else ask(sql, *values)
    )
    assert [finding.problem for finding in sink.check([TABLE])] == [
        "ods.orders is a view, and rows can be loaded into tables only"
    ]
    with pytest.raises(TargetMismatch, match="is a view"):
        sink.ensure_table(TABLE)


def test_check_without_backend_has_finding(doris: DorisEmulator, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    doris.stop_backend()
    (finding,) = sink.check([TABLE])
    assert "no backend alive" in finding.problem
    with pytest.raises(SinkUnavailable):
        write(sink, (1, "a", False, 1))
    doris.start_backend()
    assert sink.state(write(sink, (1, "a", False, 1))) is LoadState.PREPARED


@pytest.mark.parametrize("version", [(1, 2), (2, 0), (2, 1), (4, 0)])
def test_sink_works_with_each_version(version: tuple[int, int]) -> None:
    with emulator(version=version, backends=2, followers=1) as doris:
        sink = sink_on(doris)
        sink.ensure_table(TABLE)
        first = write(sink, (1, "a", False, 1))
        write(sink, (2, "b\x01", False, 2), name=name_of(2))
        sink.abort("shop", "0a1b2c3d", 1, 2)
        sink.commit([first], mark_of())
        assert doris.rows("SELECT * FROM ods.orders") == [(1, "a")]
        assert sink.last_checkpoint("shop") == mark_of()
        sink.close()


def test_requests_to_one_host_are_limited(doris: DorisEmulator) -> None:
    sink = sink_on(doris, connections=1)
    sink.ensure_table(TABLE)
    doris.faults.order("load", Fault.SLOW, times=3, seconds=0.2)
    began = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        loads = list(threads.map(lambda task: write(sink, (task, "a", False, 1), name=name_of(1, task)), range(3)))
    assert time.monotonic() - began >= 0.6
    assert {sink.state(load) for load in loads} == {LoadState.PREPARED}
    sink.close()


@pytest.mark.parametrize("version", [(1, 2), (2, 1), (3, 0), (4, 0), (4, 1)])
def test_each_version_loads_label_once_and_aborts(version: tuple[int, int]) -> None:
    with emulator(version=version) as doris:
        sink = sink_on(doris)
        sink.ensure_table(TABLE)
        kept, dropped = write(sink, (1, "a", False, 1)), write(sink, (2, "b", False, 2), name=name_of(2))
        doris.faults.order("load", Fault.DROP_ANSWER)
        again = write(sink, (3, "c", False, 3), name=name_of(task=1))
        sink.abort(dropped.name.job, dropped.name.incarnation, dropped.name.fence, 2)
        assert sink.state(dropped) is LoadState.ABORTED
        sink.commit([kept, again], mark_of())
        assert doris.rows("SELECT * FROM ods.orders") == [(1, "a"), (3, "c")]
        assert len(doris.transactions.history) == 3
        sink.close()


def test_check_without_admin_warns_of_hidden_loads(caplog: pytest.LogCaptureFixture) -> None:
    with emulator(version=(4, 0), administrators={"root"}) as doris:
        sink = sink_on(doris)
        sink.acquire_ownership(mark_of(), [TABLE.name])
        sink.ensure_table(TABLE)
        (finding,) = sink.check([TABLE])
        assert "may not see the transactions of ods" in finding.problem and not finding.fatal
        load = write(sink, (1, "a", False, 1))
        sink.abort(load.name.job, load.name.incarnation, load.name.fence, load.name.checkpoint)
        assert "end at their time limit" in caplog.text
        sink.close()


def test_load_under_other_label_is_refused(doris: DorisEmulator) -> None:
    doris.settings.group_commit = True
    sink = sink_on(doris, two_phase_commit=False)
    sink.ensure_table(TABLE)
    with pytest.raises(SinkLimitExceeded, match="group_commit_mode"):
        write(sink, (1, "a", False, 1))
    sink.close()


@pytest.mark.parametrize(
    ("told", "is_found"),
    [("2.1.5", True), ("2.1.6", False), ("3.0.1", True), ("3.1.0", False), ("1.2.7", True), ("4.0.0", False)],
)
def test_check_finds_version_that_duplicates_rows(
    sink: DorisSink, told: str, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.ensure_table(TABLE)
    ask = sink._sql.ask
    row = [{"@@version_comment": f"Doris version doris-{told}-rc01-0000000"}]
    monkeypatch.setattr(sink._sql, "ask", lambda sql, *more: row if "version" in sql else ask(sql, *more))
    assert ["two rows of one key" in finding.problem for finding in sink.check([TABLE])] == [True] * is_found


def test_check_uses_quota_of_database(doris: DorisEmulator, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    doris.settings.quotas["ods"] = 20
    (finding,) = sink.check([TABLE])
    assert finding.hint == "ALTER DATABASE `ods` SET TRANSACTION QUOTA 1000"
    doris.settings.quotas["ods"] = 1000
    assert sink.check([TABLE]) == ()


def test_text_keeps_its_byte_order_mark(doris: DorisEmulator, sink: DorisSink) -> None:
    table = TargetTable("ods.notes", (TargetColumn("note", pa.string(), False, "varchar(9)"),), ("note",))
    sink.ensure_table(table)
    batch = pa.record_batch({"note": ["\ufeffa", "\ufeffb"], DELETED: [False, False], SEQUENCE: [1, 2]})
    load = sink.part_writer(table)(name_of(channel="ods.notes"), iter([batch]))
    assert load is not None
    sink.commit([load], mark_of())
    assert doris.rows("SELECT * FROM ods.notes") == [("\ufeffa",), ("\ufeffb",)]


def test_empty_refusal_of_backend_names_grant(doris: DorisEmulator, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    load = write(sink, (1, "a", False, 1))
    doris.settings.asks_all = True
    with pytest.raises(TargetMismatch, match="GRANT LOAD_PRIV"):
        sink.commit([load], mark_of())
    doris.settings.asks_all = False
    sink.commit([load], mark_of())
