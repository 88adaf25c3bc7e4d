"""The stand-in StarRocks says what the real one says: routes, both writers' answers, states, what is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
import requests

from tests.emulators.faults import Fault
from tests.emulators.starrocks.cases import emulator
from tests.emulators.starrocks.emulator import StarrocksEmulator
from tests.emulators.starrocks.settings import StarrocksSettings

USER = ("cdc", "s:ec@ret")
CREATE = (
    "CREATE TABLE ods.t (`id` BIGINT NOT NULL, `name` VARCHAR(5) NULL) PRIMARY KEY(`id`) "
    'DISTRIBUTED BY HASH(`id`) PROPERTIES ("replication_num" = "1")'
)
JSON = {"format": "json", "strict_mode": "true"}
ROW = b'{"id": 1, "name": "a"}'


@pytest.fixture
def starrocks(request: pytest.FixtureRequest) -> Iterator[StarrocksEmulator]:
    with emulator(**getattr(request, "param", {})) as starrocks:
        starrocks.execute("CREATE DATABASE ods")
        starrocks.execute(CREATE)
        yield starrocks


def ask(
    starrocks: StarrocksEmulator, operation: str, label: str = "l1", body: bytes = b"", *, follow: bool = True,
    number: int = 0, user: tuple[str, str] = USER, **headers: str,
) -> requests.Response:  # fmt: skip
    """One operation; redirects are followed with credentials, the body goes where they end."""
    given = {"db": "ods", "table": "t", "label": label, **{k.replace("__", "-"): v for k, v in headers.items()}}
    method = "PUT" if operation == "load" else "POST"
    url = f"http://{starrocks.fe[number]}/api/transaction/{operation}"
    answer = requests.request(method, url, headers=given, auth=user, allow_redirects=False, timeout=120)
    while follow and answer.status_code == 307:
        answer = requests.request(
            method, answer.headers["Location"], headers=given, auth=user, data=body, allow_redirects=False, timeout=120
        )
    return answer


def said(starrocks: StarrocksEmulator, operation: str, label: str = "l1", body: bytes = b"", **more: Any) -> str:
    """Status and message."""
    answer = ask(starrocks, operation, label, body, **more).json()
    return f"{answer['Status']}: {answer['Message']}"


def state(starrocks: StarrocksEmulator, label: str = "l1") -> str:
    url = f"http://{starrocks.fe[0]}/api/ods/get_load_state?label={label}"
    return str(requests.get(url, auth=USER, timeout=120).json()["state"])


def prepared(starrocks: StarrocksEmulator, label: str = "l1", body: bytes = ROW) -> None:
    for operation, data in (("begin", b""), ("load", body), ("prepare", b"")):
        assert said(starrocks, operation, label, data, **JSON) == "OK: "


def test_a_transaction_passes_through_its_states(starrocks: StarrocksEmulator) -> None:
    assert state(starrocks) == "UNKNOWN"
    assert said(starrocks, "begin") == "OK: "
    assert state(starrocks) == "PREPARE"
    assert said(starrocks, "load", body=ROW, **JSON) == "OK: "
    answer = ask(starrocks, "prepare").json()
    assert (answer["NumberTotalRows"], answer["NumberLoadedRows"], answer["NumberFilteredRows"]) == (1, 1, 0)
    assert state(starrocks) == "PREPARED"
    assert starrocks.rows("SELECT * FROM ods.t") == []
    answer = ask(starrocks, "commit").json()
    assert set(answer) == {"TxnId", "Label", "Status", "Message"}, "the FE gives no counts"
    assert state(starrocks) == "VISIBLE"
    assert starrocks.rows("SELECT * FROM ods.t") == [(1, "a")]
    assert "has already committed" in said(starrocks, "commit")
    assert said(starrocks, "rollback").startswith(
        "FAILED: class com.starrocks.common.StarRocksException: Can not abort"
    )


@pytest.mark.parametrize(
    ("steps", "operation", "expected"),
    [
        ([], "load", "FAILED: class com.starrocks.common.StarRocksException: Can't find the transaction with db [ods]"),
        ([], "commit", "FAILED: class com.starrocks.common.StarRocksException: No transaction found with db[ods]"),
        (["begin"], "begin", "LABEL_ALREADY_EXISTS: "),
        (["begin"], "prepare", "INTERNAL_ERROR: transaction 1001 hasn't send any data yet"),
        (["begin", "load", "prepare"], "prepare", "TXN_NOT_EXISTS: transaction with label l1 not exists"),
        (["begin", "load", "prepare"], "load", "TXN_NOT_EXISTS: Transaction with label l1 not exists"),
        (["begin", "load", "prepare"], "begin", "LABEL_ALREADY_EXISTS: Label [l1] has already been used."),
        (["begin", "load", "prepare", "rollback"], "commit", "Can not commit ABORTED transaction 1001, label is l1"),
        (["begin", "load", "prepare", "rollback"], "rollback", "OK: Transaction 1001 has already aborted"),
        (["begin", "load", "prepare", "rollback"], "begin", "OK: "),
        (["begin", "rollback"], "rollback", "OK: Transaction 1001 has already aborted"),
    ],
)
def test_an_operation_out_of_turn(
    starrocks: StarrocksEmulator, steps: list[str], operation: str, expected: str
) -> None:
    for step in steps:
        assert said(starrocks, step, body=ROW if step == "load" else b"", **JSON).startswith("OK")
    assert expected in said(starrocks, operation, body=ROW if operation == "load" else b"", **JSON)


@pytest.mark.parametrize(
    ("operation", "headers", "expected"),
    [
        ("begin", {"db": ""}, "No database selected."),
        ("begin", {"label": ""}, "Empty label."),
        ("begin", {"db": "no"}, "Database[no] does not exist."),
        ("begin", {"table": "no"}, 'ANALYSIS_ERROR: unknown table "ods.no"'),
        ("begin", {"label": "a:b"}, "Label format error"),
        ("begin", {"timeout": "300000"}, "Expected values should be between 1 and 259200 seconds"),
        ("begin", {"timeout": "soon"}, "java.lang.NumberFormatException"),
        ("finish", {}, "Unknown transaction operation: finish"),
    ],
)
def test_headers_are_checked(
    starrocks: StarrocksEmulator, operation: str, headers: dict[str, str], expected: str
) -> None:
    given = {"label": "l1", **headers}
    label = given.pop("label")
    assert expected in said(starrocks, operation, label, **given)


@pytest.mark.parametrize("starrocks", [{"followers": 1}], indirect=True)
def test_a_follower_leads_to_the_leader_and_the_leader_to_the_backend_of_the_label(
    starrocks: StarrocksEmulator,
) -> None:
    answer = ask(starrocks, "begin", follow=False, number=1)
    assert (answer.status_code, answer.content, answer.headers["Content-Length"]) == (307, b"", "0")
    assert f":{starrocks.frontends[0].port}/" in answer.headers["Location"]
    places = {ask(starrocks, "begin", follow=False).headers["Location"] for _ in range(5)}
    assert len(places) == 1, "a label stays with its backend"
    others = {ask(starrocks, "begin", f"x{n}", follow=False).headers["Location"] for n in range(5)}
    assert len(others) == 2


def test_a_wrong_password_is_the_only_http_status(starrocks: StarrocksEmulator) -> None:
    answer = ask(starrocks, "begin", user=("cdc", "wrong"))
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm=""')
    assert answer.json()["status"] == "FAILED"
    assert ask(starrocks, "begin", db="no").status_code == 200


def test_a_load_says_ok_before_its_rows_are_looked_at(starrocks: StarrocksEmulator) -> None:
    assert said(starrocks, "begin") == "OK: "
    assert said(starrocks, "load", body=b'{"id": "x", "name": "far too long"}', **JSON) == "OK: "
    answer = ask(starrocks, "prepare").json()
    assert (answer["Status"], answer["Message"]) == ("INTERNAL_ERROR", "too many filtered rows")
    assert b"value is incorrect" in requests.get(answer["ErrorURL"], timeout=120).content
    assert state(starrocks) == "ABORTED"


def test_loads_of_one_transaction_come_in_order_with_the_same_headers(starrocks: StarrocksEmulator) -> None:
    assert said(starrocks, "begin") == "OK: "
    bodies = (b'{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}', b'{"id": 1, "name": "c"}', b'{"id": 2, "__op": 1}')
    for body in bodies:
        assert said(starrocks, "load", body=body, columns="id,name,__op", **JSON) == "OK: "
    assert said(starrocks, "prepare") == "OK: "
    assert said(starrocks, "commit") == "OK: "
    assert starrocks.rows("SELECT * FROM ods.t") == [(1, "c")]
    assert said(starrocks, "begin", "l2") == "OK: "
    assert said(starrocks, "load", "l2", ROW, **JSON) == "OK: "
    assert said(starrocks, "load", "l2", ROW, format="json") == "INTERNAL_ERROR: load request not equal last."
    assert said(starrocks, "load", "l2", ROW, **JSON).startswith("TXN_NOT_EXISTS")


def test_a_body_that_was_cut_is_glued_to_the_next_one(starrocks: StarrocksEmulator) -> None:
    assert said(starrocks, "begin") == "OK: "
    starrocks.faults.order("load", Fault.RESET)
    with pytest.raises(requests.ConnectionError):
        ask(starrocks, "load", body=ROW, **JSON)
    assert said(starrocks, "load", body=ROW, **JSON) == "OK: "
    assert said(starrocks, "prepare") == "INTERNAL_ERROR: too many filtered rows"


def test_one_operation_of_a_label_at_a_time_and_a_rollback_does_not_wait(starrocks: StarrocksEmulator) -> None:
    assert said(starrocks, "begin") == "OK: "
    starrocks.faults.order("load", Fault.SLOW, seconds=3)
    loader = threading.Thread(target=lambda: ask(starrocks, "load", body=ROW, **JSON))
    loader.start()
    while not starrocks.faults.struck:
        assert loader.is_alive()
        time.sleep(0.01)
    assert said(starrocks, "prepare") == "TXN_IN_PROCESSING: Transaction is in processing"
    assert said(starrocks, "rollback") == "OK: "
    loader.join()
    assert state(starrocks) == "ABORTED"


@pytest.mark.parametrize("starrocks", [{"batch_bytes": 30}], indirect=True)
def test_json_is_bounded_unless_its_size_is_ignored(starrocks: StarrocksEmulator) -> None:
    for label, more, expected in (("l1", {}, "exceed the max size"), ("l2", {"ignore_json_size": "true"}, "OK: ")):
        assert said(starrocks, "begin", label) == "OK: "
        assert said(starrocks, "load", label, ROW, **JSON, **more) == "OK: "
        assert expected in said(starrocks, "load", label, ROW, **JSON, **more)


def test_a_json_key_is_told_apart_by_case_and_null_is_refused_where_it_must_not_be(
    starrocks: StarrocksEmulator,
) -> None:
    prepared(starrocks, body=b'{"id": 1, "NAME": "a"}')
    assert said(starrocks, "commit") == "OK: "
    assert starrocks.rows("SELECT * FROM ods.t") == [(1, None)]
    assert said(starrocks, "begin", "l2") == "OK: "
    assert said(starrocks, "load", "l2", b'{"ID": 1}', **JSON) == "OK: "
    assert "too many filtered rows" in said(starrocks, "prepare", "l2")


def test_a_frontend_s_restart_loses_what_is_not_prepared(starrocks: StarrocksEmulator) -> None:
    prepared(starrocks, "kept")
    assert said(starrocks, "begin", "lost") == "OK: "
    starrocks.restart_frontend()
    assert (state(starrocks, "kept"), state(starrocks, "lost")) == ("PREPARED", "UNKNOWN")
    assert "Can't find the transaction" in said(starrocks, "load", "lost", ROW, **JSON)
    assert said(starrocks, "commit", "kept") == "OK: "


def test_a_backend_s_restart_loses_its_contexts_alone(starrocks: StarrocksEmulator) -> None:
    prepared(starrocks, "kept")
    assert said(starrocks, "begin", "lost") == "OK: "
    for number in range(2):
        starrocks.restart_backend(number)
    assert (state(starrocks, "kept"), state(starrocks, "lost")) == ("PREPARED", "PREPARE")
    assert said(starrocks, "rollback", "lost").startswith("TXN_NOT_EXISTS")
    cancel = f"http://{starrocks.fe[0]}/api/ods/_/_cancel?label=lost"
    assert requests.post(cancel, auth=USER, timeout=120).json()["status"] == "OK"
    assert state(starrocks, "lost") == "ABORTED"


def test_time_and_count_make_it_forget() -> None:
    now = [0.0]
    settings = StarrocksSettings(users={"root": "", USER[0]: USER[1]}, label_keep_max_num=2, prepared_timeout_s=100)
    with StarrocksEmulator(settings, clock=lambda: now[0]) as starrocks:
        starrocks.execute("CREATE DATABASE ods")
        starrocks.execute(CREATE)
        prepared(starrocks, "late")
        for label in ("a", "b", "c"):
            prepared(starrocks, label)
            assert said(starrocks, "commit", label) == "OK: "
        assert [state(starrocks, label) for label in "abc"] == ["UNKNOWN", "VISIBLE", "VISIBLE"]
        assert said(starrocks, "begin", "a") == "OK: ", "a forgotten label can be used again"
        now[0] = 101
        assert state(starrocks, "late") == "ABORTED"
        now[0] = 700
        assert state(starrocks, "a") == "ABORTED"


# ---- multi-table transactions

MULTI = {"transaction_type": "multi", **JSON}


def test_a_multi_table_transaction_is_answered_by_the_frontend_alone(starrocks: StarrocksEmulator) -> None:
    assert ask(starrocks, "begin", follow=False, **MULTI).json() == {"Status": "OK", "Message": ""}
    again = ask(starrocks, "begin", **MULTI).json()
    assert again["Message"] == "Transaction already started with label [l1], txnId: 1001"
    assert said(starrocks, "load", body=ROW, **MULTI) == "OK: "
    assert "Unsupported operation: TXN_PREPARE" in said(starrocks, "prepare", **MULTI)
    place = ask(starrocks, "load", follow=False, **MULTI).headers["Location"]
    wrong = requests.post(place.replace("load", "commit"), headers={"label": "l1", **MULTI}, auth=USER, timeout=120)
    assert wrong.json()["Status"] == "INVALID_ARGUMENT"
    assert ask(starrocks, "commit", **MULTI).json()["TxnId"] == 1001
    assert starrocks.rows("SELECT * FROM ods.t") == [(1, "a")]
    assert "has already committed" in said(starrocks, "commit", **MULTI)
    assert "has already been commited" in said(starrocks, "load", body=ROW, **MULTI)
    assert "Can not abort VISIBLE" in said(starrocks, "rollback", **MULTI)
    assert "Label [l1] has already been used." in said(starrocks, "begin", **MULTI)


def test_a_load_that_fails_takes_the_whole_transaction_with_it(starrocks: StarrocksEmulator) -> None:
    assert said(starrocks, "begin", **MULTI) == "OK: "
    assert said(starrocks, "load", body=ROW, **MULTI) == "OK: "
    assert "Failed to find table no in db ods" in said(starrocks, "load", body=ROW, **{**MULTI, "table": "no"})
    assert "has already been cancelled" in said(starrocks, "load", body=ROW, **MULTI)
    assert "has already been cancelled" in said(starrocks, "commit", **MULTI)
    assert "has already aborted" in said(starrocks, "rollback", **MULTI)
    again = ask(starrocks, "begin", **MULTI).json()
    assert (again["Status"], again["ExistingJobStatus"]) == ("LABEL_ALREADY_EXISTS", "CANCELLED")
    assert "has already been cancelled" in said(starrocks, "load", body=ROW, **MULTI)
    assert "stream load task l2 does not exist" in said(starrocks, "commit", "l2", **MULTI)


def test_a_multi_table_transaction_lives_for_twenty_seconds_unless_it_says_more() -> None:
    now = [0.0]
    settings = StarrocksSettings(users={"root": "", USER[0]: USER[1]})
    with StarrocksEmulator(settings, clock=lambda: now[0]) as starrocks:
        starrocks.execute("CREATE DATABASE ods")
        starrocks.execute(CREATE)
        assert said(starrocks, "begin", **MULTI) == "OK: "
        assert said(starrocks, "begin", "l2", **MULTI, timeout="600") == "OK: "
        now[0] = 21
        assert "timeout by txn manager" in said(starrocks, "load", body=ROW, **MULTI)
        assert said(starrocks, "load", "l2", ROW, **MULTI) == "OK: "


@pytest.mark.parametrize("starrocks", [{"unknown_before_commit": True, "false_ok": True}], indirect=True)
def test_what_versions_before_4_0_7_got_wrong(starrocks: StarrocksEmulator) -> None:
    assert said(starrocks, "begin", **MULTI) == "OK: "
    assert said(starrocks, "load", body=b'{"id": null}', **MULTI) == "OK: "
    assert state(starrocks) == "UNKNOWN"
    assert said(starrocks, "commit", **MULTI) == "OK: "
    assert state(starrocks) == "ABORTED"
    assert starrocks.rows("SELECT * FROM ods.t") == []


@pytest.mark.parametrize("starrocks", [{"version": (3, 5, 0)}], indirect=True)
def test_an_older_version_knows_no_multi_table_transaction(starrocks: StarrocksEmulator) -> None:
    answer = ask(starrocks, "begin", follow=False, **MULTI)
    assert answer.status_code == 307, "the header means nothing to it"


# ---- SQL


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("CREATE TABLE ods.x (a INT, b INT NOT NULL) PRIMARY KEY(b)", "ordered prefix"),
        ("CREATE TABLE ods.x (a DOUBLE NOT NULL) PRIMARY KEY(a)", "Invalid data type of primary key column"),
        ("CREATE TABLE ods.x (a DECIMAL(9,2) NOT NULL) PRIMARY KEY(a)", "Invalid data type of primary key column"),
        ("CREATE TABLE ods.x (a INT) PRIMARY KEY(a)", "cannot be nullable"),
        ("CREATE TABLE ods.x (a INT NOT NULL, __op INT) PRIMARY KEY(a)", "reserved name"),
        ("CREATE TABLE ods.x (a INT NOT NULL, b VARCHAR(1048577)) PRIMARY KEY(a)", "Varchar size"),
        ("CREATE TABLE ods.x (a INT NOT NULL) PRIMARY KEY(a) DISTRIBUTED BY HASH(a)", "replication num"),
    ],
)
def test_a_table_that_starrocks_would_not_make(starrocks: StarrocksEmulator, statement: str, refusal: str) -> None:
    with (
        pymysql.connect(host="127.0.0.1", port=starrocks.sql_port, user="root") as connection,
        pytest.raises(pymysql.MySQLError, match=refusal),
    ):
        connection.cursor().execute(statement)


def test_the_sql_port_tells_version_and_running_transactions(starrocks: StarrocksEmulator) -> None:
    prepared(starrocks)
    with pymysql.connect(host="127.0.0.1", port=starrocks.sql_port, user="root") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT current_version()")
        assert cursor.fetchone() == ("4.1.0-0a1b2c3",)
        cursor.execute("SHOW PROC '/transactions/ods/running'")
        assert [row[1] for row in cursor.fetchall()] == ["l1"]
        cursor.execute("SHOW CREATE TABLE ods.t")
        assert "PRIMARY KEY(`id`)" in cursor.fetchone()[1]  # type: ignore[index]
