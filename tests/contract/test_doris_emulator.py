"""The stand-in Doris says what the real one says: reference answers, states, row checks, versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pymysql
import pytest
import requests

from tests.emulators.doris.emulator import DorisEmulator
from tests.emulators.doris.frontend import basic
from tests.emulators.doris.settings import DorisSettings
from tests.emulators.faults import Fault
from tests.emulators.storage import StoredColumn

USER = ("cdc", "s:ec@ret")
HEADERS = {
    "columns": "id,name,__DORIS_DELETE_SIGN__,seq",
    "function_column.sequence_col": "seq",
    "column_separator": ",",
    "strict_mode": "true",
}
CREATE = (
    "CREATE TABLE ods.t (`id` BIGINT NOT NULL, `name` VARCHAR(5) NULL) UNIQUE KEY(`id`) "
    "DISTRIBUTED BY HASH(`id`) BUCKETS 1 "
    'PROPERTIES ("replication_num" = "1", "function_column.sequence_type" = "bigint")'
)


@pytest.fixture
def doris(request: pytest.FixtureRequest) -> Iterator[DorisEmulator]:
    settings: dict[str, Any] = getattr(request, "param", {})
    with DorisEmulator(DorisSettings(users={"root": "", USER[0]: USER[1]}, **settings)) as doris:
        doris.execute("CREATE DATABASE ods")
        doris.execute(CREATE)
        yield doris


def load(doris: DorisEmulator, body: Any, label: str = "l1", **headers: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{doris.backends[0].port}/api/ods/t/_stream_load"
    given = {**HEADERS, "label": label, **headers}
    with requests.put(url, data=body, headers=given, auth=USER, timeout=120) as answer:
        assert answer.status_code == 200
        return dict(answer.json())


def finish(doris: DorisEmulator, operation: str, **headers: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{doris.backends[0].port}/api/ods/_stream_load_2pc"
    with requests.put(url, headers={"txn_operation": operation, **headers}, auth=USER, timeout=120) as answer:
        return dict(answer.json())


def frontend(doris: DorisEmulator, method: str, path: str, number: int = 0, **arguments: Any) -> requests.Response:
    arguments = {"auth": USER, "allow_redirects": False, "timeout": 10, **arguments}
    with requests.request(method, f"http://{doris.fe[number]}{path}", **arguments) as answer:
        return answer


def state(doris: DorisEmulator, label: str) -> str:
    return str(frontend(doris, "GET", f"/api/ods/get_load_state?label={label}").json()["data"])


def test_a_load_is_redirected_with_credentials_in_the_location(doris: DorisEmulator) -> None:
    answer = frontend(doris, "PUT", "/api/ods/t/_stream_load", headers={"Expect": "100-continue"})
    port = doris.backends[0].port
    assert answer.status_code == 307
    assert answer.headers["Location"] == f"http://cdc:s%3Aec%40ret@127.0.0.1:{port}/api/ods/t/_stream_load?"


def test_the_frontend_refuses_in_two_kinds_of_envelope(doris: DorisEmulator) -> None:
    refused = frontend(doris, "PUT", "/api/ods/t/_stream_load").json()
    assert refused == {"status": "FAILED", "msg": "There is no 100-continue header"}
    unknown = frontend(doris, "GET", "/api/backends", auth=None).json()
    assert unknown == {"msg": "Unauthorized", "code": 401, "data": "Need auth information.", "count": 0}
    assert frontend(doris, "GET", "/api/ods/get_load_state").json()["code"] == 403


@pytest.mark.parametrize("doris", [{"followers": 1}], indirect=True)
def test_a_follower_sends_state_questions_to_the_master(doris: DorisEmulator) -> None:
    answer = frontend(doris, "GET", "/api/ods/get_load_state?label=x", number=1)
    assert answer.status_code == 307
    assert answer.headers["Location"] == f"http://{doris.fe[0]}/api/ods/get_load_state?label=x"


@pytest.mark.parametrize("doris", [{"resets_bodies": True}], indirect=True)
def test_the_frontend_may_cut_a_connection_that_sends_a_body(doris: DorisEmulator) -> None:
    with pytest.raises(requests.ConnectionError):
        frontend(doris, "PUT", "/api/ods/t/_stream_load", data=b"x" * 100, headers={"Expect": "100-continue"})


def test_two_phases_make_rows_visible_once(doris: DorisEmulator) -> None:
    answer = load(doris, "1,a,0,1\n2,b,0,1\n", two_phase_commit="true")
    assert (answer["Status"], answer["TwoPhaseCommit"], answer["NumberLoadedRows"]) == ("Success", "true", 2)
    assert state(doris, "l1") == "PRECOMMITTED"
    assert doris.rows("SELECT * FROM ods.t") == []
    number = str(answer["TxnId"])
    assert finish(doris, "commit", txn_id=number)["msg"] == f"transaction [{number}] commit successfully."
    assert doris.rows("SELECT * FROM ods.t") == [(1, "a"), (2, "b")]
    again = finish(doris, "commit", txn_id=number)
    assert again["status"] == "ANALYSIS_ERROR"
    assert f"transaction [{number}] is already visible, not pre-committed." in again["msg"]
    assert "is already VISIBLE, could not abort." in finish(doris, "abort", txn_id=number)["msg"]
    assert "transaction [5] not found" in finish(doris, "commit", txn_id="5")["msg"]
    assert "transaction not found, label=zz" in finish(doris, "commit", label="zz")["msg"]
    assert "running transaction not found, label=l1" in finish(doris, "commit", label="l1")["msg"]


def test_columns_that_change_between_the_phases_keep_what_was_loaded(doris: DorisEmulator) -> None:
    storage, table = doris.storage, doris.storage.tables["ods", "t"]
    for number in range(3):
        load(doris, f"{number},ann,0,7\n", f"l{number}", two_phase_commit="true")
    storage.rename_column(table, "name", "was")
    finish(doris, "commit", label="l0")
    assert doris.rows("SELECT id, was FROM ods.t") == [(0, "ann")]
    storage.rename_column(table, "was", "name")
    storage.add_column(table, StoredColumn("more", "INT", default="5"))
    finish(doris, "commit", label="l1")
    assert doris.rows("SELECT * FROM ods.t ORDER BY id") == [(0, "ann", 5), (1, "ann", 5)]
    storage.drop_column(table, "name")
    finish(doris, "commit", label="l2")
    storage.add_column(table, StoredColumn("name", "VARCHAR(5)"))
    load(doris, "3,bob,0,7\n", "l3")
    assert doris.rows("SELECT id, name FROM ods.t ORDER BY id") == [(0, None), (1, None), (2, None), (3, "bob")]


def test_a_label_is_taken_once_and_again_after_an_abort(doris: DorisEmulator) -> None:
    first = load(doris, "1,a,0,1\n", two_phase_commit="true")
    again = load(doris, "1,a,0,1\n", two_phase_commit="true")
    assert (again["Status"], again["ExistingJobStatus"], again["TxnId"]) == ("Label Already Exists", "PRECOMMITTED", -1)
    assert f"Label [l1] has already been used, relate to txn [{first['TxnId']}]" in again["Message"]
    finish(doris, "abort", label="l1")
    assert load(doris, "1,a,0,1\n")["Status"] == "Success"
    assert load(doris, "1,a,0,1\n")["ExistingJobStatus"] == "FINISHED"


@pytest.mark.parametrize(
    ("stored", "row", "left"),
    [
        ("1,a,0,5", "1,b,0,6", [(1, "b")]),
        ("1,a,0,5", "1,b,0,5", [(1, "b")]),  # a tie goes to the later load
        ("1,a,0,5", "1,b,0,4", [(1, "a")]),
        ("1,a,0,5", "1,a,1,4", [(1, "a")]),  # a delete with a lower sequence is nothing
        ("1,a,0,5", "1,a,1,6", []),
        ("1,a,1,5", "1,b,0,4", []),  # and hides what comes late
        ("1,a,0,5\n1,z,0,4", "2,b,0,1", [(1, "a"), (2, "b")]),
    ],
)
def test_the_larger_sequence_wins(doris: DorisEmulator, stored: str, row: str, left: list[Any]) -> None:
    load(doris, stored + "\n", "l1")
    load(doris, row + "\n", "l2")
    assert doris.rows("SELECT * FROM ods.t") == left


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("1,abcdef,0,1\n", "the length of input is too long than schema"),
        ("1,äöü,0,1\n", "the length of input is too long than schema"),  # bytes, not characters
        ("x,a,0,1\n", "value is incorrect while strict mode is true"),
        ("\\N,a,1,1\n", "values is null while columns is not nullable"),  # deletes too
        ("1,a,0\n", "actual column number in csv file is less than"),
    ],
)
def test_rows_are_refused_for_the_reference_s_reasons(doris: DorisEmulator, body: str, reason: str) -> None:
    answer = load(doris, body.encode())
    assert (answer["Status"], answer["NumberFilteredRows"]) == ("Fail", 1)
    assert "too many filtered rows" in answer["Message"]
    assert reason in requests.get(answer["ErrorURL"], timeout=120).text
    assert state(doris, "l1") == "ABORTED"


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"columns": "id,name", "function_column.sequence_col": "seq"}, "need to specify the sequence column"),
        ({"columns": "name,seq"}, "Column(id) has no default value."),
        ({"format": "yaml"}, "unknown data format, format=yaml"),
        ({"label": "a b"}, "Label format error"),
        ({"strict_mode": "yes"}, "Invalid strict mode format"),
    ],
)
def test_headers_are_checked_before_the_body(doris: DorisEmulator, headers: dict[str, str], message: str) -> None:
    answer = load(doris, "", **headers)
    assert answer["Status"] == "Fail"
    assert message in answer["Message"]


def test_json_lines_and_arrow_carry_the_same_rows(doris: DorisEmulator) -> None:
    lines = '{"id":"1","name":"a","id":"9","more":1}\n{"id":2,"Name":"b"}\n'
    json_headers = {"format": "json", "read_json_by_line": "true", "columns": "id,name,seq"}
    assert load(doris, lines, **json_headers)["NumberLoadedRows"] == 2
    assert doris.rows("SELECT * FROM ods.t") == [(1, "a"), (2, None)]
    table = pa.table({"id": [3], "name": ["c"], "seq": [1]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    load(doris, sink.getvalue().to_pybytes(), "l2", format="arrow", columns="id,name,seq")
    assert (3, "c") in doris.rows("SELECT * FROM ods.t")


@pytest.mark.parametrize("doris", [{"version": (2, 0)}], indirect=True)
def test_version_2_0_knows_no_arrow_and_no_commit_by_label(doris: DorisEmulator) -> None:
    assert "unknown data format" in load(doris, b"", format="arrow")["Message"]
    load(doris, "1,a,0,1\n", "l2", two_phase_commit="true")
    assert "convert txn_id [] failed" in finish(doris, "commit", label="l2")["msg"]


def test_precommits_expire_and_labels_are_forgotten() -> None:
    now = 1000.0
    with DorisEmulator(DorisSettings(users={"cdc": USER[1]}, label_num_threshold=3), clock=lambda: now) as doris:
        doris.execute("CREATE DATABASE ods")
        doris.execute(CREATE)
        number = str(load(doris, "1,a,0,1\n", two_phase_commit="true")["TxnId"])
        now += 3601
        assert state(doris, "l1") == "ABORTED"
        assert (
            "is already aborted. abort reason: timeout by txn manager" in finish(doris, "commit", txn_id=number)["msg"]
        )
        for each in range(4):
            load(doris, "1,a,0,1\n", f"more{each}")
        assert state(doris, "l1") == "UNKNOWN"
        assert state(doris, "more3") == "VISIBLE"
        now += 43201
        assert state(doris, "more3") == "UNKNOWN"


@pytest.mark.parametrize("doris", [{"max_running_txn_num_per_db": 1}], indirect=True)
def test_running_transactions_are_limited(doris: DorisEmulator) -> None:
    load(doris, "1,a,0,1\n", "l1", two_phase_commit="true")
    assert "current running txns on db 10003 is 1, larger than limit 1" in load(doris, "", "l2")["Message"]


def test_a_frontend_s_restart_forgets_loads_under_way(doris: DorisEmulator) -> None:
    load(doris, "1,a,0,1\n", "kept", two_phase_commit="true")
    doris.transactions.begin("ods", "t", "lost", two_phase=True, timeout_s=60)
    assert state(doris, "lost") == "PREPARE"
    doris.restart_frontend()
    assert (state(doris, "lost"), state(doris, "kept")) == ("UNKNOWN", "PRECOMMITTED")


def test_faults_strike_where_they_are_ordered(doris: DorisEmulator) -> None:
    doris.faults.order("load", Fault.DROP_ANSWER)
    with pytest.raises(requests.ConnectionError):
        load(doris, "1,a,0,1\n", "l1")
    assert state(doris, "l1") == "VISIBLE"
    doris.faults.order("load", Fault.RESET)
    with pytest.raises(requests.ConnectionError):
        load(doris, "1,b,0,2\n", "l2")
    assert state(doris, "l2") == "ABORTED"
    doris.faults.order("load", Fault.ERROR_DONE)
    assert load(doris, "1,c,0,3\n", "l3")["Status"] == "Fail"
    assert doris.rows("SELECT * FROM ods.t") == [(1, "c")]


def test_sql_is_spoken(doris: DorisEmulator) -> None:
    with pymysql.connect(host="127.0.0.1", port=doris.sql_port, user=USER[0], password=USER[1]) as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW CREATE TABLE ods.t")
        assert "UNIQUE KEY(`id`)" in cursor.fetchall()[0][1]
        cursor.execute("ALTER TABLE ods.t ADD COLUMN d DECIMAL(5, 2) NULL")
        cursor.execute("SHOW FULL COLUMNS FROM ods.t")
        assert [row[:2] for row in cursor.fetchall()][-1] == ("d", "decimal(5,2)")
        with pytest.raises(pymysql.MySQLError, match="need to specify the sequence column"):
            cursor.execute("INSERT INTO ods.t (id) VALUES (1)")
    with pytest.raises(pymysql.MySQLError, match=r"[Aa]ccess denied"):
        pymysql.connect(host="127.0.0.1", port=doris.sql_port, user=USER[0], password="wrong")


def test_the_null_mode_reads_bodies_and_keeps_nothing() -> None:
    with DorisEmulator(DorisSettings(users={"cdc": USER[1]}, null=True)) as doris:
        doris.execute("CREATE DATABASE ods")
        doris.execute(CREATE)
        piece = b"x" * ((1 << 20) - 2) + b"\x02\x02"
        answer = load(doris, (piece for _ in range(64)))
        assert (answer["NumberLoadedRows"], answer["LoadBytes"]) == (128, 64 << 20)
        assert basic("a", "b") == "Basic YTpi"


def test_publish_while_its_table_is_dropped_leaves_the_rows_out(doris: DorisEmulator) -> None:
    """As the FE does. A transaction that the stand-in left open refused every later statement."""
    table = doris.storage.tables["ods", "t"]
    checked = doris.storage.check(table, pa.table({"id": ["1"], "name": ["one"]}), strict=True)
    doris.execute("DROP TABLE ods.t")
    doris.storage.apply(table, [checked.rows])
    doris.execute(CREATE)
    assert load(doris, "2,two,0,1\n", label="l2")["Status"] == "Success"
    assert doris.rows("SELECT `id` FROM ods.t") == [(2,)]
