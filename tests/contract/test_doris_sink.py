"""What only the Doris sink promises: exact types, tables and their mends, bodies, bad surroundings."""

from __future__ import annotations

import datetime
import decimal
import json
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from pymysql.cursors import DictCursor

from cdc.errors import (
    Answer,
    CdcError,
    LoadLost,
    LoadRejected,
    SinkBusy,
    SinkSetting,
    SinkUnavailable,
    TargetMismatch,
    decide,
)
from cdc.schema import DELETED, SEQUENCE, Column, Kind
from channels.sinks import bodies
from channels.sinks.base import LoadState, TargetColumn, TargetTable
from channels.sinks.column_types import parsed
from channels.sinks.doris import DorisSink
from channels.sinks.doris_types import doris_type
from channels.sinks.stream_load import HttpClient, Reply
from tests.servers.doris.cases import sink_on, stand_in
from tests.servers.doris.stand_in import DorisStandIn
from tests.servers.olap_cases import (
    TABLE,
    UNTYPED,
    USER,
    gives_up_loads_of_a_gone_column,
    mark_of,
    name_of,
    rows_of,
    write,
)
from tests.servers.olap_faults import Fault

MADE = "CREATE TABLE ods.orders (id BIGINT NOT NULL, name VARCHAR(40))"
REST = 'DISTRIBUTED BY HASH(id) BUCKETS 1 PROPERTIES ("replication_num" = "1"%s)'
D = decimal.Decimal
AT = datetime.datetime(2024, 2, 29, 23, 59, 59, 999999)


@pytest.fixture
def doris() -> Iterator[DorisStandIn]:
    with stand_in() as doris:
        yield doris


@pytest.fixture
def sink(doris: DorisStandIn) -> Iterator[DorisSink]:
    sink = sink_on(doris)
    yield sink
    sink.close()


# source column, its values, Doris's type, what a reader gets
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
def shared() -> Iterator[DorisStandIn]:
    with stand_in() as doris:
        yield doris


@pytest.mark.parametrize("as_json", [False, True], ids=["csv", "json"])
@pytest.mark.parametrize(
    ("number", "case"), list(enumerate(TYPES)), ids=[f"{each[0].type}-{number}" for number, each in enumerate(TYPES)]
)
def test_every_type_arrives_exactly(
    shared: DorisStandIn, number: int, case: tuple[Column, list[object], str, list[object] | None], as_json: bool
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


def test_a_lone_backslash_n_is_text(doris: DorisStandIn, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    sink.commit([write(sink, (1, "\\N", False, 1), (2, None, False, 2), (3, "a\x02", False, 3))], mark_of())
    assert doris.rows("SELECT * FROM ods.orders") == [(1, "\\N"), (2, None), (3, "a\x02")]


@pytest.mark.parametrize("way", ["csv", "lz4", "json"])
def test_a_part_beyond_its_memory_goes_through_a_file(way: str) -> None:
    batches = [rows_of(*((number * 10 + each, f"n{each}", False, each) for each in range(10))) for number in range(20)]
    rows = bodies.Rows(iter(batches), limit_bytes=1000)
    for _ in range(2):  # as often as a load is tried
        names = ["id", "name", "d", "s"]
        body = bodies.json_body(rows, names) if way == "json" else bodies.csv_body(rows, None if way == "csv" else way)
        sent = b"".join(body)
        if way == "lz4":
            sent = pa.CompressedInputStream(pa.BufferReader(sent), "lz4").read()
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        assert sent == (bodies.json_lines(whole, names) if way == "json" else bodies.csv_lines(whole))
    assert rows.row_count == 200
    rows.close()


def test_json_lines_are_json() -> None:
    text = "".join(map(chr, range(0x250))) + "\u2028𝄞"
    batch = pa.record_batch({"c": pa.array([text, None])})
    assert [json.loads(line) for line in bodies.json_lines(batch, ['q"']).splitlines()] == [{'q"': text}, {'q"': None}]


def test_lz4_bodies_load(doris: DorisStandIn) -> None:
    sink = sink_on(doris, compression="lz4")
    sink.ensure_table(TABLE)
    sink.commit([write(sink, *((n, f"n{n}", False, n) for n in range(1, 5000)))], mark_of())
    assert doris.rows("SELECT count(*), min(name), max(id) FROM ods.orders") == [(4999, "n1", 4999)]
    sink.close()


def test_an_executor_gets_the_writer_and_the_password_does_not_print(doris: DorisStandIn, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    writer = pickle.loads(pickle.dumps(sink.part_writer(TABLE)))
    load = writer(name_of(), iter([rows_of((1, "a", False, 1))]))
    sink.commit([load], mark_of())
    assert doris.rows("SELECT * FROM ods.orders") == [(1, "a")]
    assert USER[1] not in repr(writer)
    assert writer(name_of(2), iter([rows_of()])) is None


def test_a_table_is_made_with_what_the_job_file_says(doris: DorisStandIn) -> None:
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


@pytest.mark.parametrize(
    ("statement", "problem", "mend"),
    [
        (
            f"{MADE} DUPLICATE KEY(id) {REST % ''}",
            "model is DUPLICATE KEY",
            "cdc ddl",
        ),
        (
            f"{MADE} UNIQUE KEY(id) {REST % ''}",
            "no sequence column",
            'ENABLE FEATURE "SEQUENCE_LOAD"',
        ),
        ("name VARCHAR(39) NULL", "column name is VARCHAR(39)", "MODIFY COLUMN `name` VARCHAR(40) NULL"),
        ("name VARCHAR(40) NOT NULL", "NOT NULL, and the source has NULL", "MODIFY COLUMN `name` varchar(40) NULL"),
        ("other INT NULL", "column name is missing", "ADD COLUMN `name` VARCHAR(40) NULL"),
        ("name STRING, other INT NOT NULL", "other is NOT NULL without a default", "MODIFY COLUMN `other` int NULL"),
    ],
)
def test_a_table_that_does_not_fit_is_named_with_its_mend(
    doris: DorisStandIn, sink: DorisSink, statement: str, problem: str, mend: str
) -> None:
    doris.execute("CREATE DATABASE ods")
    if not statement.startswith("CREATE"):
        statement = (
            f"CREATE TABLE ods.orders (id BIGINT NOT NULL, {statement}) UNIQUE KEY(id) "
            + REST % ', "function_column.sequence_type" = "bigint"'
        )
    doris.execute(statement)
    findings = sink.describe(TABLE)
    assert any(problem in finding.problem and mend in finding.mend for finding in findings), findings
    with pytest.raises(TargetMismatch):
        sink.ensure_table(TABLE)
    for finding in findings:
        if finding.mend.startswith("ALTER"):
            doris.execute(finding.mend.partition(";")[0])
    if "model" not in problem:
        assert sink.describe(TABLE) == ()


def test_loads_made_after_a_column_has_gone_are_given_up(doris: DorisStandIn, sink: DorisSink) -> None:
    gives_up_loads_of_a_gone_column(doris, sink)


def test_no_cycle_follows_plain_loads_made_after_a_column_has_gone(doris: DorisStandIn) -> None:
    sink = sink_on(doris, two_phase_commit=False)
    sink.ensure_table(TABLE)
    doris.execute("ALTER TABLE ods.orders DROP COLUMN name")
    load = write(sink, (1, "a", False, 1))
    with pytest.raises(LoadLost):
        sink.commit([load], mark_of())
    assert sink.last_checkpoint("shop") is None, "nothing says that it is committed"
    with pytest.raises(TargetMismatch, match="column name is missing"):
        write(sink, (1, "a", False, 1), name=name_of(attempt=1))
    sink.close()


def test_a_comment_is_no_clause(doris: DorisStandIn, sink: DorisSink) -> None:
    doris.execute("CREATE DATABASE ods")
    columns = "id BIGINT NOT NULL COMMENT 'once DUPLICATE KEY (other)', name VARCHAR(40) COMMENT 'AUTO PARTITION'"
    properties = REST % ', "function_column.sequence_type" = "bigint"'
    doris.execute(f"CREATE TABLE ods.orders ({columns}) UNIQUE KEY(id) {properties}")
    assert sink.describe(TABLE) == ()


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
def test_a_type_holds_what_it_can_keep_exactly(there: str, wanted: str, holds: bool) -> None:
    assert parsed(there).holds(parsed(wanted)) is holds


def test_a_table_without_a_partition_for_today_is_found_and_mended(doris: DorisStandIn, sink: DorisSink) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    table = TargetTable(
        "ods.daily",
        (TargetColumn("day", pa.date32(), False, "date"), TargetColumn("id", pa.int64(), False, "bigint")),
        ("day", "id"),
        options={"partition": 'PARTITION BY RANGE(`day`) (PARTITION p1 VALUES LESS THAN ("2024-02-01"))'},
    )
    sink.ensure_table(table)  # rows of today may never come
    batch = pa.record_batch({"day": pa.array([today]), "id": [1], DELETED: [False], SEQUENCE: [1]})
    with pytest.raises(LoadRejected, match="no partition for this tuple"):
        sink.part_writer(table)(name_of(channel="ods.daily"), iter([batch]))
    (finding,) = sink.describe(table)
    assert "the last partition ends at 2024-02-01" in finding.problem and not finding.fatal
    doris.execute(finding.mend)
    assert sink.describe(table) == ()
    load = sink.part_writer(table)(name_of(channel="ods.daily"), iter([batch]))
    assert load is not None
    sink.commit([load], mark_of())
    assert doris.rows("SELECT * FROM ods.daily") == [(today, 1)]


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize(("table", "column"), UNTYPED)
def test_a_column_without_a_type_is_named_before_anything_is_made(
    sink: DorisSink, table: TargetTable, column: str, is_there: bool
) -> None:
    table = replace(table, name="ods.orders" if is_there else "ods.others")
    sink.ensure_table(TABLE)
    (finding,) = sink.check([table])
    assert f"column {column}" in finding.problem and "cast(... as string)" in finding.mend and finding.fatal
    assert finding in sink.describe(table)
    for refused in (sink.ensure_table, sink.ddl):
        with pytest.raises(TargetMismatch, match=f"column {column}"):
            refused(table)


def test_a_missing_table_that_is_not_ours_to_make(doris: DorisStandIn) -> None:
    sink = sink_on(doris, create_tables=False)
    with pytest.raises(TargetMismatch, match=r"no table ods\.orders"):
        sink.ensure_table(TABLE)
    assert [finding.fatal for finding in sink.check([TABLE])] == [True]
    sink.close()


def test_refused_rows_are_shown_with_their_key(doris: DorisStandIn, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    doris.execute("ALTER TABLE ods.orders MODIFY COLUMN name VARCHAR(3) NULL")
    with pytest.raises(LoadRejected) as caught:
        write(sink, (1, "ok", False, 1), (77, "too long", False, 2))
    assert decide(caught.value) is Answer.PAUSE
    assert caught.value.where["key"] == "id"
    assert "length of input is too long" in str(caught.value)
    assert "77" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"password": "wrong"}, TargetMismatch, "sink.password"),
        ({"sql_port": 1}, SinkUnavailable, "does not answer"),
    ],
)
def test_check_says_what_is_wrong_with_the_cluster(
    doris: DorisStandIn, change: dict[str, object], error: type[CdcError], says: str
) -> None:
    sink = sink_on(doris, **change)
    (finding,) = sink.check([TABLE])
    assert says in f"{finding.problem} {finding.mend}"
    with pytest.raises(error):
        sink.ensure_table(TABLE)
    sink.close()


@pytest.mark.parametrize(("status", "body"), [(403, b"<html>Forbidden</html>"), (200, b"<html>Log in"), (200, b"[]")])
def test_a_proxy_that_answers_for_a_frontend_is_a_sink_that_is_away(
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
    assert any(finding.fatal for finding in sink._may_load(TABLE))


def test_a_backend_is_not_found_by_a_redirect_that_leads_nowhere(
    sink: DorisSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        HttpClient, "request", lambda client, method, *_, **__: Reply(307 if method == "PUT" else 404, {}, b"")
    )
    with pytest.raises(SinkUnavailable, match="redirect to nowhere"):
        sink._http.backends(fresh=True, via="/api/ods/orders/_stream_load")


def test_the_password_goes_to_no_host_that_only_an_error_s_address_names(sink: DorisSink) -> None:
    heard: list[str] = []

    class Store(BaseHTTPRequestHandler):
        """Has logs of refused rows under addresses that are passwords themselves."""

        def do_GET(self) -> None:
            heard.append(str(self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"Reason: too long")

    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as store:
        threading.Thread(target=store.serve_forever, daemon=True).start()
        page = sink._http.page(f"http://127.0.0.1:{store.server_port}/bucket/log?signature=1")
        store.shutdown()
    assert page == "Reason: too long" and heard == ["None"]


def test_a_frontend_that_refuses_the_simplest_statement_is_a_finding(doris: DorisStandIn, sink: DorisSink) -> None:
    doris.faults.order("sql", Fault.ERROR, match="SELECT 1", text="There is no scanNode Backend available")
    (finding,) = sink.check([TABLE])
    assert "no scanNode Backend" in finding.problem


def test_a_line_that_broke_in_the_middle_of_an_answer_is_made_again(
    doris: DorisStandIn, sink: DorisSink, monkeypatch: pytest.MonkeyPatch
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


def test_a_view_is_no_target(sink: DorisSink, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.ensure_table(TABLE)
    ask = sink._sql.ask
    view = {"View": "orders", "Create View": "CREATE VIEW `orders` AS SELECT sum(1) OVER (PARTITION BY id) FROM t"}
    monkeypatch.setattr(
        sink._sql, "ask", lambda sql, *values: [view] if sql.startswith("SHOW CREATE") else ask(sql, *values)
    )
    assert [finding.problem for finding in sink.check([TABLE])] == [
        "ods.orders is a view, and rows go into tables alone"
    ]
    with pytest.raises(TargetMismatch, match="is a view"):
        sink.ensure_table(TABLE)


def test_no_backend_alive_is_said_and_tried_again(doris: DorisStandIn, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    doris.stop_backend()
    (finding,) = sink.check([TABLE])
    assert "no backend alive" in finding.problem
    with pytest.raises(SinkUnavailable):
        write(sink, (1, "a", False, 1))
    doris.start_backend()
    assert sink.state(write(sink, (1, "a", False, 1))) is LoadState.PREPARED


def test_a_missing_privilege_names_the_grant(doris: DorisStandIn, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    doris.settings.denied.add((USER[0], "ods"))
    with pytest.raises(TargetMismatch, match="GRANT LOAD_PRIV"):
        write(sink, (1, "a", False, 1))


def test_a_dropped_table_is_named(doris: DorisStandIn, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    doris.execute("DROP TABLE ods.orders")
    with pytest.raises(TargetMismatch, match="unknown table"):
        write(sink, (1, "a", False, 1))


def test_too_many_running_transactions_ask_for_patience() -> None:
    with stand_in(max_running_txn_num_per_db=1) as doris:
        sink = sink_on(doris)
        sink.ensure_table(TABLE)
        write(sink, (1, "a", False, 1))
        with pytest.raises(SinkBusy) as caught:
            write(sink, (1, "b", False, 2), name=name_of(task=1))
        assert caught.value.after_s > 0
        assert any("running transactions" in finding.problem for finding in sink.check([TABLE]))
        sink.close()


@pytest.mark.parametrize("version", [(1, 2), (2, 0), (2, 1), (4, 0)])
def test_every_version_is_served(version: tuple[int, int]) -> None:
    with stand_in(version=version, backends=2, followers=1) as doris:
        sink = sink_on(doris)
        sink.ensure_table(TABLE)
        first = write(sink, (1, "a", False, 1))
        write(sink, (2, "b\x01", False, 2), name=name_of(2))
        sink.abort("shop", "0a1b2c3d", 1, 2)
        sink.commit([first], mark_of())
        assert doris.rows("SELECT * FROM ods.orders") == [(1, "a")]
        assert sink.last_checkpoint("shop") == mark_of()
        sink.close()


def test_one_host_gets_only_so_many_requests_at_once(doris: DorisStandIn) -> None:
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
def test_every_version_takes_a_label_once_and_lets_go_of_what_is_prepared(version: tuple[int, int]) -> None:
    with stand_in(version=version) as doris:
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


def test_a_user_who_may_not_see_transactions_is_told_what_it_means(caplog: pytest.LogCaptureFixture) -> None:
    with stand_in(version=(4, 0), administrators={"root"}) as doris:
        sink = sink_on(doris)
        sink.claim(mark_of(), [TABLE.name])
        sink.ensure_table(TABLE)
        (finding,) = sink.check([TABLE])
        assert "may not see the transactions of ods" in finding.problem and not finding.fatal
        load = write(sink, (1, "a", False, 1))
        sink.abort(load.name.job, load.name.incarnation, load.name.fence, load.name.checkpoint)
        assert "end by themselves" in caplog.text
        sink.close()


def test_a_load_that_goes_under_another_label_is_refused(doris: DorisStandIn) -> None:
    doris.settings.group_commit = True
    sink = sink_on(doris, two_phase_commit=False)
    sink.ensure_table(TABLE)
    with pytest.raises(SinkSetting, match="group_commit_mode"):
        write(sink, (1, "a", False, 1))
    sink.close()


def test_many_bad_rows_are_bad_rows_too(doris: DorisStandIn, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    doris.execute("ALTER TABLE ods.orders MODIFY COLUMN name VARCHAR(3) NULL")
    with pytest.raises(LoadRejected, match="refused rows"):
        write(sink, *((number, "too long", False, number) for number in range(60)))


@pytest.mark.parametrize(
    ("told", "is_found"),
    [("2.1.5", True), ("2.1.6", False), ("3.0.1", True), ("3.1.0", False), ("1.2.7", True), ("4.0.0", False)],
)
def test_a_version_that_shows_rows_twice_is_found(
    sink: DorisSink, told: str, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.ensure_table(TABLE)
    ask = sink._sql.ask
    row = [{"@@version_comment": f"Doris version doris-{told}-rc01-0000000"}]
    monkeypatch.setattr(sink._sql, "ask", lambda sql, *more: row if "version" in sql else ask(sql, *more))
    assert ["two rows of one key" in finding.problem for finding in sink.check([TABLE])] == [True] * is_found


def test_a_database_s_own_quota_counts(doris: DorisStandIn, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    doris.settings.quotas["ods"] = 20
    (finding,) = sink.check([TABLE])
    assert finding.mend == "ALTER DATABASE `ods` SET TRANSACTION QUOTA 1000"
    doris.settings.quotas["ods"] = 1000
    assert sink.check([TABLE]) == ()


def test_a_text_that_begins_with_a_byte_order_mark_keeps_it(doris: DorisStandIn, sink: DorisSink) -> None:
    table = TargetTable("ods.notes", (TargetColumn("note", pa.string(), False, "varchar(9)"),), ("note",))
    sink.ensure_table(table)
    batch = pa.record_batch({"note": ["\ufeffa", "\ufeffb"], DELETED: [False, False], SEQUENCE: [1, 2]})
    load = sink.part_writer(table)(name_of(channel="ods.notes"), iter([batch]))
    assert load is not None
    sink.commit([load], mark_of())
    assert doris.rows("SELECT * FROM ods.notes") == [("\ufeffa",), ("\ufeffb",)]


def test_a_backend_that_refuses_without_a_word_names_the_grant(doris: DorisStandIn, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    load = write(sink, (1, "a", False, 1))
    doris.settings.asks_all = True
    with pytest.raises(TargetMismatch, match="GRANT LOAD_PRIV"):
        sink.commit([load], mark_of())
    doris.settings.asks_all = False
    sink.commit([load], mark_of())


def test_a_claim_waits_until_it_is_seen(doris: DorisStandIn, sink: DorisSink, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.ensure_table(TABLE)
    sink.claim(mark_of(), [TABLE.name])
    marks, looks = sink._sql.marks, list[int]()

    def late(databases: Any, job: str) -> Any:
        looks.append(1)
        found = marks(databases, job)
        return [replace(mark, incarnation="old", sequence=0) for mark in found] if len(looks) in (2, 3) else found

    monkeypatch.setattr(sink._sql, "marks", late)
    sink.claim(replace(mark_of(), sequence=mark_of().sequence + 1), [TABLE.name])
    assert len(looks) > 3


def test_commit_of_new_attempt_first_aborts_earlier_ones(doris: DorisStandIn, sink: DorisSink) -> None:
    sink.ensure_table(TABLE)
    old = write(sink, (1, "old", False, 1))
    new = write(sink, (1, "new", False, 2), name=name_of(attempt=1))
    commit_load, states = sink._commit_load, []

    def look_then_commit(load: Any) -> bool:
        states.append(sink.state(old))
        return commit_load(load)

    sink._commit_load = look_then_commit  # type: ignore[method-assign]
    sink.commit([new], mark_of())
    assert states == [LoadState.ABORTED]
