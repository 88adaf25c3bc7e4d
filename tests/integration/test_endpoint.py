"""The status endpoint over real HTTP: what it shows and what it rejects."""

from __future__ import annotations

import http.client
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from cdc.api.http_server import CONNECTIONS_MOST
from cdc.api.models import (
    ChannelStatus,
    CheckpointStatus,
    JobStatus,
    LoadTable,
    PauseJob,
    RequestBody,
    Resume,
    SinkStatus,
    SnapshotStatus,
    SourceLogStatus,
    SourceStatus,
    StopJob,
)
from cdc.api.server import StatusEndpoint
from cdc.api.verify_models import StartVerify, VerifyOutcome, VerifyStatus, VerifySummary, VerifyTableStatus
from cdc.errors import ConfigError, DdlStop, PrerequisiteError, error_to_json
from cdc.logging_setup import LineFormatter
from cdc.model.snapshot import SnapshotState
from cdc.model.verify import VerifyState
from cdc.state.base import CheckpointState, CloseReason, JobState
from cdc.state.write_times import WriteTimes

TOKEN = "t0ken-of-the-job"
STATUS = JobStatus(
    job="shop",
    state=JobState.RUNNING,
    started_at="2026-01-01T00:00:00Z",
    source=SourceStatus("binlog", "127.0.0.1:3306"),
    sink=SinkStatus("delta", "./warehouse"),
    position={"file": "mysql-bin.000002", "offset": 1234, "gtid_set": "..."},
    lag_seconds=0.4,
    checkpoint=CheckpointStatus(
        42,
        CheckpointState.COMMITTED,
        "2026-01-01T00:00:05Z",
        CloseReason.INTERVAL,
        120,
        9000,
        {"buffer": 5.0, "prepare": 0.4},
    ),
    channels=(
        ChannelStatus(
            "shop.orders",
            "ods.orders",
            JobState.RUNNING,
            1000,
            10,
            90000,
            3,
            "2026-01-01T00:00:05Z",
            SnapshotStatus(40, 12, 1_200_000, 4_000_000, False, state=SnapshotState.READING),
            2,
        ),
    ),
    window_bytes=77,
    window_limit_bytes=1000,
    source_connected=True,
    source_disconnects=2,
    source_log=SourceLogStatus(1234, 5000, 604800.0),
    last_committed_at="1970-01-01T00:01:05Z",
    store=WriteTimes().with_write(0.003).with_write(0.25).with_write(20.0),
)


class Controls:
    """Return STATUS and record each request."""

    def __init__(self) -> None:
        self.requests: list[object] = []
        self.now = STATUS
        self.broken = False

    def status(self) -> JobStatus:
        if self.broken:
            raise RuntimeError("a secret location in the code")
        return self.now

    def request(self, request: RequestBody) -> None:
        if isinstance(request, LoadTable) and not request.table.startswith("shop."):
            raise ConfigError("The job reads no such table.", hint="Name another.")
        self.requests.append(request)
        if isinstance(request, Resume) and request.past_ddl:
            raise DdlStop("The target lacks a column.", hint="Add it.")


@contextmanager
def served(controls: Controls, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    endpoint = StatusEndpoint(controls, host=host, port=port, token=TOKEN)
    try:
        yield endpoint.start()
    finally:
        endpoint.close()


@pytest.fixture
def controls() -> Controls:
    return Controls()


@pytest.fixture
def url(controls: Controls) -> Iterator[str]:
    with served(controls) as address:
        yield address


def ask(
    url: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any] | str, http.client.HTTPResponse]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if text.startswith("{") else text, answer
    finally:
        connection.close()


def with_token(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def raw(url: str, data: bytes) -> bytes:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=120) as connection:
        connection.sendall(data)
        received = b""
        try:
            while piece := connection.recv(65536):
                received += piece
                if b"\r\n\r\n" in received and b"Connection" not in received[:50]:
                    connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        return received


def test_endpoint_status_is_the_documented_json(url: str) -> None:
    code, body, _ = ask(url, "GET", "/status")
    assert code == 200
    assert body == {
        "job": "shop",
        "state": "RUNNING",
        "desired_state": "RUNNING",
        "reason": None,
        "hint": None,
        "resume": None,
        "pause": None,
        "started_at": "2026-01-01T00:00:00Z",
        "source": {"type": "binlog", "server": "127.0.0.1:3306", "destination": None},
        "sink": {"type": "delta", "target": "./warehouse"},
        "position": {"file": "mysql-bin.000002", "offset": 1234, "gtid_set": "..."},
        "lag_seconds": 0.4,
        "source_disconnects": 2,
        "source_log": {"position_bytes": 1234, "behind_bytes": 5000, "retention_seconds": 604800.0},
        "source_connected": True,
        "partitions": [],
        "bad_rows": None,
        "split_transactions": 0,
        "window_bytes": 77,
        "window_limit_bytes": 1000,
        "resumes": 0,
        "last_committed_at": "1970-01-01T00:01:05Z",
        "checkpoint": {
            "id": 42,
            "state": "COMMITTED",
            "committed_at": "2026-01-01T00:00:05Z",
            "closed_by": "interval",
            "rows": 120,
            "bytes": 9000,
            "seconds": {"buffer": 5.0, "prepare": 0.4},
        },
        "store": {
            "writes": 3,
            "seconds": 20.253,
            "within": dict.fromkeys(("0.005", "0.01", "0.025", "0.05", "0.1"), 1)
            | dict.fromkeys(("0.25", "0.5", "1.0", "2.5", "5.0", "10.0"), 2),
        },
        "snapshot": {
            "tables": 1,
            "tables_done": 0,
            "waiting": 0,
            "chunks": 40,
            "chunks_done": 12,
            "rows": 1200000,
        },
        "schema_changes": {"applied": 0, "last": None, "current": None, "counts": []},
        "verify": {"current": None, "last": None},
        "channels": [
            {
                "source": "shop.orders",
                "target": "ods.orders",
                "state": "RUNNING",
                "upserts": 1000,
                "deletes": 10,
                "bytes": 90000,
                "buffered_rows": 3,
                "last_committed_at": "2026-01-01T00:00:05Z",
                "snapshot": {
                    "chunks": 40,
                    "done": 12,
                    "rows": 1200000,
                    "estimated_rows": 4000000,
                    "consistent": False,
                    "since": None,
                    "bytes": 0,
                    "rows_per_second": 0.0,
                    "seconds_left": None,
                    "where": None,
                    "state": "reading",
                },
                "invalid_dates": 2,
                "bad_messages": 0,
                "differences": [],
            }
        ],
        "left_out": [],
    }
    assert JobStatus.from_json(body) == STATUS


def test_endpoint_live_always_and_ready_only_while_running(url: str, controls: Controls) -> None:
    assert ask(url, "GET", "/live")[:2] == (200, {"live": True})
    assert ask(url, "GET", "/ready")[0] == 200
    controls.now = replace(STATUS, state="PAUSED", reason="DDL")
    assert ask(url, "GET", "/ready")[:2] == (503, {"ready": False, "state": "PAUSED", "reason": "DDL"})
    assert ask(url, "GET", "/live")[0] == 200


def test_endpoint_snapshot_request_has_table_and_condition(url: str, controls: Controls) -> None:
    body = json.dumps({"table": "shop.orders", "where": "id > 5"}).encode()
    assert ask(url, "POST", "/snapshot", body)[0] == 401
    assert ask(url, "POST", "/snapshot", body, **with_token())[0] == 202
    assert ask(url, "POST", "/snapshot", b'{"table": "shop.orders"}', **with_token())[0] == 202
    assert controls.requests == [LoadTable("shop.orders", "id > 5"), LoadTable("shop.orders")]
    assert ask(url, "POST", "/snapshot", b'{"table": "crm.people"}', **with_token())[0] == 409
    for bad in (b"{}", b'{"table": 1}', b'{"table": "shop.orders", "rows": 1}', b"[1]"):
        assert ask(url, "POST", "/snapshot", bad, **with_token())[0] == 400


def test_endpoint_verify_request_has_tables_and_options(url: str, controls: Controls) -> None:
    body = json.dumps({"tables": ["shop.orders"], "sample": 0.01, "repair": True, "token": "a"}).encode()
    assert ask(url, "POST", "/verify", body)[0] == 401
    assert ask(url, "POST", "/verify", body, **with_token())[0] == 202
    assert ask(url, "POST", "/verify", **with_token())[0] == 202
    assert controls.requests == [StartVerify(("shop.orders",), 0.01, (), True, "a"), StartVerify()]
    for bad in (b'{"tables": "shop.orders"}', b'{"sample": "1%"}', b'{"rows": 1}', b"[1]"):
        assert ask(url, "POST", "/verify", bad, **with_token())[0] == 400


def test_endpoint_metrics_of_the_last_verification(url: str, controls: Controls) -> None:
    text = str(ask(url, "GET", "/metrics")[1])
    assert 'cdc_verify_running{job_name="shop"} 0.0' in text and "cdc_verify_equal" not in text
    table = VerifyTableStatus("shop.orders", VerifyState.DONE, rows=90, missing=1, extra=2, different=3)
    last = VerifyStatus(
        7, VerifyOutcome.DIFFERENT, "", ended_at="2026-01-01T00:00:00Z", seconds=1.5, missing=1, tables=(table,)
    )
    controls.now = replace(STATUS, verify=VerifySummary(replace(last, state=VerifyOutcome.RUNNING), last))
    lines = str(ask(url, "GET", "/metrics")[1]).splitlines()
    for line in (
        'cdc_verify_running{job_name="shop"} 1.0',
        'cdc_verify_equal{job_name="shop"} 0.0',
        'cdc_verify_failed{job_name="shop"} 0.0',
        'cdc_verify_seconds{job_name="shop"} 1.5',
        'cdc_verify_ended_seconds{job_name="shop"} 1.7672256e+09',
        'cdc_verify_rows{job_name="shop",result="compared",source="shop.orders"} 90.0',
        'cdc_verify_rows{job_name="shop",result="extra",source="shop.orders"} 2.0',
    ):
        assert line in lines, line
    assert JobStatus.from_json(ask(url, "GET", "/status")[1]) == controls.now


def test_endpoint_metrics_are_prometheus_text(url: str, controls: Controls) -> None:
    code, text, answer = ask(url, "GET", "/metrics")
    assert code == 200
    assert str(answer.getheader("Content-Type")).startswith("text/plain; version=")
    for line in (
        'cdc_job_state{job_name="shop",state="RUNNING"} 1.0',
        'cdc_job_state{job_name="shop",state="PAUSED"} 0.0',
        'cdc_lag_seconds{job_name="shop"} 0.4',
        'cdc_window_bytes{job_name="shop"} 77.0',
        'cdc_job_desired_state{job_name="shop",state="RUNNING"} 1.0',
        'cdc_job_desired_state{job_name="shop",state="PAUSED"} 0.0',
        'cdc_source_connected{job_name="shop"} 1.0',
        'cdc_source_disconnects_total{job_name="shop"} 2.0',
        'cdc_source_position_bytes{job_name="shop"} 1234.0',
        'cdc_source_behind_bytes{job_name="shop"} 5000.0',
        'cdc_source_retention_seconds{job_name="shop"} 604800.0',
        'cdc_last_commit_timestamp_seconds{job_name="shop"} 65.0',
        'cdc_store_seconds_bucket{job_name="shop",le="0.1"} 1.0',
        'cdc_store_seconds_bucket{job_name="shop",le="0.25"} 2.0',
        'cdc_store_seconds_bucket{job_name="shop",le="10.0"} 2.0',
        'cdc_store_seconds_bucket{job_name="shop",le="+Inf"} 3.0',
        'cdc_store_seconds_sum{job_name="shop"} 20.253',
        'cdc_store_seconds_count{job_name="shop"} 3.0',
        'cdc_checkpoint_seconds{job_name="shop",part="buffer"} 5.0',
        'cdc_channel_upserts_total{job_name="shop",source="shop.orders",target="ods.orders"} 1000.0',
        'cdc_channel_deletes_total{job_name="shop",source="shop.orders",target="ods.orders"} 10.0',
        'cdc_channel_bytes_total{job_name="shop",source="shop.orders",target="ods.orders"} 90000.0',
        'cdc_channel_invalid_dates_total{job_name="shop",source="shop.orders",target="ods.orders"} 2.0',
    ):
        assert line in str(text).splitlines()
    controls.now = replace(STATUS, lag_seconds=None, checkpoint=None, source_connected=None)
    text = str(ask(url, "GET", "/metrics")[1])
    assert "cdc_lag_seconds{" not in text and "cdc_source_connected{" not in text


def test_endpoint_request_with_token_reaches_the_job(url: str, controls: Controls) -> None:
    for path in ("/pause", "/resume", "/stop"):
        code, body, _ = ask(url, "POST", path, **with_token())
        assert (code, body) == (202, STATUS.to_json())
    ask(url, "POST", "/resume", b'{"accept_gap": true}', **with_token())
    assert controls.requests == [PauseJob(), Resume(), StopJob(), Resume(accept_gap=True)]


def test_endpoint_job_error_has_a_hint(url: str) -> None:
    code, body, _ = ask(url, "POST", "/resume", b'{"past_ddl": true}', **with_token())
    assert (code, body) == (409, error_to_json(DdlStop("The target lacks a column.", hint="Add it.")))


def test_endpoint_job_error_hides_secrets(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("shop", ("a column",)))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    _, body, _ = ask(url, "POST", "/resume", b'{"past_ddl": true}', **with_token())
    assert isinstance(body, dict) and body["error"] == "The target lacks [hidden]."


@pytest.mark.parametrize(
    "headers",
    [
        {},
        with_token("wrong"),
        with_token(""),
        with_token(TOKEN + "x"),
        with_token("\u00fc"),
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
    ],
)
def test_endpoint_request_without_valid_token_gets_401(url: str, controls: Controls, headers: dict[str, str]) -> None:
    code, _, answer = ask(url, "POST", "/stop", **headers)
    assert code == 401
    assert answer.getheader("WWW-Authenticate") == "Bearer"
    assert controls.requests == []


def test_endpoint_on_other_addresses_requires_token_everywhere(controls: Controls) -> None:
    with served(controls, host="0.0.0.0") as url:
        assert url.startswith("http://127.0.0.1:")
        for path in ("/status", "/live", "/ready", "/metrics", "/nothing"):
            assert ask(url, "GET", path)[0] == 401
        assert ask(url, "GET", "/status", **with_token())[0] == 200


@pytest.mark.parametrize("request_bytes", [b"", b"GET /live HTTP/1.1\r\n", b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_endpoint_idle_connections_do_not_block_clients(controls: Controls, request_bytes: bytes) -> None:
    with served(controls, host="0.0.0.0") as url, ExitStack() as held:
        address = urlsplit(url)
        for _ in range(CONNECTIONS_MOST + 20):
            idle = held.enter_context(socket.create_connection((address.hostname, address.port), timeout=120))
            idle.sendall(request_bytes)
            if request_bytes.endswith(b"\r\n\r\n"):
                assert idle.recv(1 << 16), "answered; the connection is idle from here on"
        for _ in range(3):
            assert ask(url, "GET", "/live", **with_token())[:2] == (200, {"live": True})


def test_endpoint_foreign_host_and_origin_get_403(url: str, controls: Controls) -> None:
    assert ask(url, "GET", "/status", Host="evil.example:8470")[0] == 403
    assert ask(url, "GET", "/status", Host="[::bad")[0] == 403
    assert ask(url, "GET", "/status", Host="localhost:1")[0] == 200
    assert ask(url, "POST", "/stop", Origin="http://evil.example", **with_token())[0] == 403
    assert ask(url, "POST", "/stop", Origin="http://[evil", **with_token())[0] == 403
    assert controls.requests == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 400),
        (b"[1]", 400),
        (b'{"past_ddl": "yes"}', 400),
        (b'{"unknown": true}', 400),
        (b"\xff\xfe", 400),
        (b"[" * 4000, 400),
        (b" " * 5000, 413),
    ],
)
def test_endpoint_invalid_body_is_rejected(url: str, controls: Controls, body: bytes, code: int) -> None:
    assert ask(url, "POST", "/resume", body, **with_token())[0] == code
    assert controls.requests == []


def test_endpoint_huge_chunked_body_gets_413(url: str, controls: Controls) -> None:
    head = (
        f"POST /stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    answer = raw(url, head.encode() + b"1000\r\n" + b"x" * 4096 + b"\r\n1000\r\n" + b"x" * 4096 + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    assert controls.requests == []


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /status HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"z" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: minus\r\n\r\n",
    ],
)
def test_endpoint_malformed_http_gets_4xx_and_server_continues(url: str, data: bytes) -> None:
    answer = raw(url, data)
    assert answer.startswith(b"HTTP/1.1 4")
    assert b"Traceback" not in answer
    assert ask(url, "GET", "/status")[0] == 200


def test_endpoint_unknown_paths_and_methods_get_404_and_405(url: str) -> None:
    assert ask(url, "GET", "/../../etc/passwd")[:2] == (404, {"error": "Not Found"})
    assert ask(url, "GET", "/stop")[0] == 405
    assert ask(url, "POST", "/status", **with_token())[0] == 405
    assert ask(url, "DELETE", "/status", **with_token())[0] == 405


def test_endpoint_internal_error_shows_no_details(url: str, controls: Controls) -> None:
    controls.broken = True
    code, body, _ = ask(url, "GET", "/status")
    assert (code, body) == (500, {"error": "the request failed; the job's log has the cause"})
    assert ask(url, "GET", "/live")[0] == 200


def test_endpoint_used_port_takes_the_next_free_one(controls: Controls) -> None:
    with served(controls) as first:
        taken = urlsplit(first).port or 0
        with served(controls, port=taken) as second:
            assert taken < (urlsplit(second).port or 0) <= taken + 100
            assert ask(second, "GET", "/live")[0] == 200


def test_endpoint_port_is_free_after_close(controls: Controls) -> None:
    with served(controls) as first:
        ask(first, "GET", "/status")
    with served(controls, port=urlsplit(first).port or 0) as second:
        assert first == second


def test_endpoint_address_of_another_machine_raises(controls: Controls) -> None:
    endpoint = StatusEndpoint(controls, host="192.0.2.1", port=8470, token=TOKEN)
    with pytest.raises(PrerequisiteError, match="cannot listen"):
        endpoint.start()
    endpoint.close()


def test_endpoint_ipv6_address_works(controls: Controls) -> None:
    with served(controls, "[::1]") as address:
        assert address.startswith("http://[::1]:")
        assert ask(address, "GET", "/live")[0] == 200
