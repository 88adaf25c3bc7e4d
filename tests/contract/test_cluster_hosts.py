"""The password of a cluster account is sent only to hosts of the job file and to hosts that the cluster lists."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cdc.errors import SinkUnavailable, TargetMismatch
from channels.sinks.doris import client as doris_client
from channels.sinks.starrocks import client as starrocks_client
from channels.sinks.stream_load import http as stream_load
from channels.sinks.stream_load.hosts import ClusterHosts, canonical
from channels.sinks.stream_load.http import ClusterAddress, HttpClient, Reply, Unreachable
from tests.emulators.cases import TABLE, USER, mark_of, name_of, rows_of, write
from tests.emulators.doris import cases as doris
from tests.emulators.starrocks import cases as starrocks

PRODUCTS = {"doris": (doris, {"followers": 1}), "starrocks": (starrocks, {"followers": 1})}
ADDRESS = ClusterAddress(("fe1:8030",), *USER, ("be1:8040",))


class ForeignHost(ThreadingHTTPServer):
    """A host outside the cluster. ``requests`` contains what it received."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        foreign_host = self

        class Handler(BaseHTTPRequestHandler):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self._serve
                raise AttributeError(name)

            def _serve(self) -> None:
                foreign_host.requests.append(f"{self.requestline}\n{self.headers}")
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def foreign_host() -> Iterator[ForeignHost]:
    with ForeignHost() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("is_json", [False, True])
def test_answer_that_echoes_the_request_is_shown_without_credentials(is_json: bool) -> None:
    token = base64.b64encode(":".join(USER).encode()).decode()
    echo = f"denied to Basic {token} and to {USER[1]}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert token in self.headers["Authorization"]
            self.send_response(500)
            self.end_headers()
            self.wfile.write((json.dumps({"msg": echo, "data": USER[1], "rows": [echo]}) if is_json else echo).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        client = HttpClient(ClusterAddress((host,), *USER))
        reply = client.request("GET", host, "/x")
        with pytest.raises(Unreachable) as caught:
            client.ask_frontends("GET", "/x")
        texts = [str(caught.value), client.page(f"http://{host}/x")]
        if is_json:
            texts += [reply.json()["msg"], *reply.json()["rows"]]
            assert reply.json()["data"] == USER[1]  # a state or a name, which code compares
        else:
            with pytest.raises(Unreachable) as caught:
                reply.json()
            texts.append(str(caught.value))
        client.close()
        server.shutdown()
    assert all("[hidden]" in text and token not in text and USER[1] not in text for text in texts), texts


@contextmanager
def cluster(kind: str, **settings: Any) -> Iterator[Any]:
    with PRODUCTS[kind][0].emulator(**settings) as found:
        found.execute("CREATE DATABASE IF NOT EXISTS ods")
        yield found


def redirect_requests(monkeypatch: pytest.MonkeyPatch, location: str, *paths: str) -> None:
    """Redirect every request to ``location`` whose path contains one of ``paths``."""
    request = HttpClient.request

    def redirected_request(client: HttpClient, method: str, host: str, path: str, **more: Any) -> Reply:
        if any(part in path for part in paths) and host in client.address.fe:
            return Reply(307, {"location": location + path}, b"")
        return request(client, method, host, path, **more)

    monkeypatch.setattr(HttpClient, "request", redirected_request)


@pytest.mark.parametrize(
    ("kind", "paths"),
    [
        ("doris", ["get_load_state"]),
        ("doris", ["/api/backends"]),
        ("starrocks", ["get_load_state"]),
        ("starrocks", ["transaction/begin"]),
        ("starrocks", ["transaction/load"]),
        ("starrocks", ["transaction/commit", "get_load_state"]),
    ],
)
def test_sink_redirect_to_an_unlisted_host_sends_nothing(
    kind: str, paths: list[str], foreign_host: ForeignHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(kind) as there:
        sink = PRODUCTS[kind][0].sink_on(there)
        sink.ensure_table(TABLE)
        redirect_requests(monkeypatch, f"http://user:pw@127.0.0.1:{foreign_host.server_port}", *paths)
        with pytest.raises(SinkUnavailable) as caught:
            load = write(sink, (1, "a", False, 1))
            sink.commit([load], mark_of())
            sink.state(load)
        sink.close()
    assert foreign_host.requests == []
    assert f"127.0.0.1:{foreign_host.server_port}" in str(caught.value) and "nothing was sent to it" in str(
        caught.value
    )
    assert "sink.be" in caught.value.hint and "sink.fe" in caught.value.hint
    assert USER[1] not in str(caught.value) and "user:pw" not in str(caught.value)


@pytest.mark.parametrize("kind", PRODUCTS)
def test_sink_redirect_to_listed_or_configured_hosts_is_followed(kind: str) -> None:
    module, settings = PRODUCTS[kind]
    with cluster(kind, **settings) as there:
        follower = [f"127.0.0.1:{there.frontends[1].port}"]
        backends = [f"127.0.0.1:{each.port}" for each in there.backends]
        sink = module.sink_on(there)
        sink.ensure_table(TABLE)
        sink.commit([write(sink, (1, "a", False, 1))], mark_of())
        sink.close()
        rights = there.settings.administrators if kind == "doris" else there.settings.operators
        rights.discard(USER[0])
        alone = module.sink_on(there, fe=follower)
        with pytest.raises(SinkUnavailable, match="nothing was sent to it"):
            alone._label_state("ods", "x")
        alone.close()
        named = module.sink_on(there, fe=[*follower, there.fe[0]], backends=backends)
        load = write(named, (2, "b", False, 1001), name=name_of(2))
        named.commit([load], mark_of(2))
        named.close()
        assert there.rows("SELECT id FROM ods.orders") == [(1,), (2,)]


def test_starrocks_check_names_the_setting_for_backends() -> None:
    with cluster("starrocks") as there:
        backends = [f"127.0.0.1:{each.port}" for each in there.backends]
        there.settings.operators.discard(USER[0])
        sink = starrocks.sink_on(there, "single", backends=backends)
        sink.ensure_table(TABLE)  # with as many replicas as there are backends in sink.be
        assert f'"replication_num" = "{len(backends)}"' in str(there.execute("SHOW CREATE TABLE ods.orders")[1])
        sink.close()
        sink = starrocks.sink_on(there, "single")
        findings = [finding for finding in sink.check([TABLE]) if finding.fatal]
        assert len(findings) == 1 and "sink.be" in findings[0].hint, findings
        sink.close()
        sink = starrocks.sink_on(there, "single", backends=backends)
        assert not [finding for finding in sink.check([TABLE]) if finding.fatal]
        sink.close()


def test_starrocks_backend_with_two_names_in_be_needs_replication() -> None:
    with cluster("starrocks", backends=1) as there:
        backends = [f"{host}:{there.backends[0].port}" for host in ("127.0.0.1", "localhost")]
        there.settings.operators.discard(USER[0])
        sink = starrocks.sink_on(there, "single", backends=backends)
        with pytest.raises(TargetMismatch, match="does not create the table") as caught:
            sink.ensure_table(TABLE)
        assert "set sink.tables.replication" in caught.value.hint
        sink.close()
        sink = starrocks.sink_on(there, "single", backends=backends, tables={"replication": 1})
        sink.acquire_ownership(mark_of(0), [TABLE.name])
        sink.ensure_table(TABLE)
        sink.commit([write(sink, (1, "a", False, 1))], mark_of())
        assert sink.last_checkpoint("shop") == mark_of()
        sink.close()


def test_http_client_does_not_read_a_page_of_an_unlisted_host(foreign_host: ForeignHost) -> None:
    client = HttpClient(ADDRESS)
    for _ in range(2):
        page = client.page(f"http://127.0.0.1:{foreign_host.server_port}/log?signature=1")
        assert "not listed as a host of the cluster" in page
    assert foreign_host.requests == []


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("http://be1:8040/a?b", ("be1:8040", "/a?b")),
        ("http://u:p@BE1.:8040/a%2Fb", ("be1:8040", "/a%2Fb")),
        ("http://be2:8040/a", None),
        ("http://be1:8041/a", None),
        ("http://be1/a", None),
        ("http://be1:8040@evil:80/a", None),
        ("http://be1:8040\\@evil:80/a", None),
        ("http://evil:80#@be1:8040/a", None),
        ("http://[::1]:8040/a", ("[::1]:8040", "/a")),
        ("http://[0:0::1]:8040/a", ("[::1]:8040", "/a")),
        ("http://[::1/a", None),
        ("http://[::ffff:10.0.0.1]:8040/a", None),
        ("http://be1:x/a", None),
        ("http://be1:99999/a", None),
        ("https://be1:8040/a", None),
        ("file:///etc/passwd", None),
        ("//be1:8040/a", None),
        ("/a", None),
        ("", None),
    ],
)
def test_http_client_follows_locations_of_known_hosts_only(location: str, expected: tuple[str, str] | None) -> None:
    client = HttpClient(ClusterAddress(("fe1:8030",), *USER, ("be1:8040", "[::1]:8040")))
    reply = Reply(307, {"location": location}, b"")
    if expected is None:
        with pytest.raises(Unreachable):
            client.follow(reply, "GET x")
    else:
        assert client.follow(reply, "GET x") == expected


@pytest.mark.parametrize("kind", PRODUCTS)
def test_frontend_that_does_not_answer_in_time_is_asked_last(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of a load would wait for its whole time limit. Executors get a new client with each part."""
    request, asked = HttpClient.request, list[str]()

    def count_requests(client: HttpClient, method: str, host: str, path: str, **more: Any) -> Reply:
        asked.append(host)
        return request(client, method, host, path, **more)

    monkeypatch.setattr(HttpClient, "request", count_requests)
    for client in (doris_client, starrocks_client):
        monkeypatch.setattr(client, "_ASK_S", 0.3)
    with cluster(kind) as there, socket.create_server(("127.0.0.1", 0)) as frozen:
        host = f"127.0.0.1:{frozen.getsockname()[1]}"
        sink = PRODUCTS[kind][0].sink_on(there, fe=[host, *there.fe])
        sink.ensure_table(TABLE)
        for checkpoint in (1, 2):
            writer = pickle.loads(pickle.dumps(sink.part_writer(TABLE)))
            load = writer(name_of(checkpoint), iter([rows_of((checkpoint, "a", False, checkpoint))]))
            sink.commit([load], mark_of(checkpoint))
        assert asked.count(host) == 1
        for client in (sink._http, HttpClient(sink._http.address)):
            assert client.frontends == (*there.fe, host) == pickle.loads(pickle.dumps(client)).address.fe
        monkeypatch.setattr(stream_load, "_ASKED_LAST_S", 0.0)
        assert sink._http.frontends == (host, *there.fe)
        sink.close()


def test_hosts_query_the_cluster_for_a_new_node() -> None:
    listed = ["be1:8040"]
    hosts = ClusterHosts(["fe1:8030"], 80)
    hosts.use(lambda: list(listed))
    assert hosts.is_known("be1:8040") and not hosts.is_known("be2:8040")
    listed.append("be2:8040")
    assert hosts.is_known("BE2:8040")
    listed.clear()
    assert hosts.is_known("be2:8040"), "without a reply the old list is kept"
    client = HttpClient(ADDRESS, hosts.listed)
    assert pickle.loads(pickle.dumps(client)).hosts.is_known("be2:8040")


def test_hosts_treat_names_and_addresses_as_different() -> None:
    assert not ClusterHosts(["localhost:8030"], 80).is_known("127.0.0.1:8030")
    assert canonical("FE1.", 80) == canonical("fe1:80", 443) == "fe1:80"
