"""Doris and StarRocks over https and TLS: certificates are verified, and nothing is sent in plain text."""

from __future__ import annotations

import datetime
import ipaddress
import pickle
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cdc.config.connection_models import ServerTls
from cdc.config.sink_models import DorisSinkConfig
from cdc.demo.local_servers import LocalServer
from cdc.errors import ConfigError, SinkUnavailable
from cdc.job.wiring import _tls_of
from channels.sinks.doris.errors import DORIS
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.http import ClusterAddress, HttpClient, Reply, Unreachable
from channels.sinks.stream_load.login import NO_TLS, ClusterTls, unguarded_findings
from tests.emulators.cases import TABLE, USER, mark_of, write
from tests.emulators.doris import cases as doris
from tests.emulators.hostile import Peer, hostile
from tests.emulators.starrocks import cases as starrocks

PRODUCTS: dict[str, Any] = {"doris": doris, "starrocks": starrocks}


class Authority:
    """A certificate authority and a server certificate for ``host``."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        key, name = ec.generate_private_key(ec.SECP256R1()), _name("authority")
        certificate = _certificate(name, name, key, key, x509.BasicConstraints(ca=True, path_length=None))
        server = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)]
        )
        text = _certificate(_name("server"), name, server, key, names).public_bytes(serialization.Encoding.PEM)
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        file = folder / f"{host}.pem"
        file.write_bytes(text + server.private_bytes(serialization.Encoding.PEM, form, plain))
        self.ca = certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(file)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(subject: x509.Name, issuer: x509.Name, key: Any, by: Any, extension: Any) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1)).add_extension(extension, critical=True)
    return builder.sign(by, hashes.SHA256())


def https_sink(cases: Any, there: Any, tls: ClusterTls) -> Any:
    """Return a sink that uses https. The SQL port of the emulator has no TLS; tests below use a real server."""
    sink = cases.sink_on(there, tls=tls)
    sink._sql._address = replace(sink._sql._address, tls=NO_TLS)
    return sink


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=PRODUCTS)
def secure(request: pytest.FixtureRequest, authority: Authority) -> Iterator[tuple[Any, Any]]:
    """Yield the cases of a product and its emulator with TLS on every port."""
    cases = PRODUCTS[request.param]
    with cases.emulator(tls=authority.context, followers=1) as there:
        there.execute("CREATE DATABASE ods")
        yield cases, there


@pytest.mark.parametrize("mode", ["required", "verify_ca", "verify_identity"])
def test_sink_loads_over_tls_are_committed(secure: tuple[Any, Any], authority: Authority, mode: str) -> None:
    cases, there = secure
    sink = https_sink(cases, there, ClusterTls(mode, authority.ca))
    sink.ensure_table(TABLE)
    assert not [finding for finding in sink.check([TABLE]) if finding.fatal]
    writer = pickle.loads(pickle.dumps(sink.part_writer(TABLE)))
    assert writer.client.address.tls.mode == mode, "executors use TLS too"
    rows = [(number, "name" * 10, False, number) for number in range(30_000)]  # more than one TLS record
    sink.commit([write(sink, *rows)], mark_of())
    sink.close()
    assert there.rows("SELECT count(*) FROM ods.orders") == [(30_000,)]


def test_sink_unknown_certificate_raises(secure: tuple[Any, Any], tmp_path: Path) -> None:
    cases, there = secure
    sink = https_sink(cases, there, ClusterTls("verify_identity", Authority(tmp_path).ca))
    with pytest.raises(SinkUnavailable, match="certificate verify failed") as caught:
        sink._label_state("ods", "x")
    assert "sink.tls" in caught.value.hint
    assert [finding for finding in sink.check([TABLE]) if finding.fatal]
    sink.close()


@pytest.mark.parametrize(("mode", "is_accepted"), [("verify_ca", True), ("verify_identity", False)])
def test_sink_verify_identity_checks_the_certificate_name(mode: str, is_accepted: bool, tmp_path: Path) -> None:
    other = Authority(tmp_path, "db.example")
    with doris.emulator(tls=other.context) as there:
        there.execute("CREATE DATABASE ods")
        sink = https_sink(doris, there, ClusterTls(mode, other.ca))
        if is_accepted:
            assert sink._label_state("ods", "x") == "UNKNOWN"
        else:
            with pytest.raises(SinkUnavailable, match="certificate verify failed"):
                sink._label_state("ods", "x")
        sink.close()


@pytest.mark.parametrize("cases", PRODUCTS.values())
def test_sink_sends_no_credentials_to_a_server_without_tls(cases: Any, authority: Authority) -> None:
    with cases.emulator() as there:
        sink = cases.sink_on(there, tls=ClusterTls("required"))
        for step in (lambda: sink._sql.ask("SELECT 1"), lambda: sink._label_state("ods", "x")):
            with pytest.raises(SinkUnavailable) as caught:
                step()
            assert "sink.tls" in caught.value.hint
        sink.close()


def test_http_client_with_tls_sends_no_plain_text() -> None:
    def script(peer: Peer) -> None:
        peer.wait()

    with hostile(script) as server:
        client = HttpClient(
            ClusterAddress((f"127.0.0.1:{server.port}",), *USER, connect_timeout_s=0.3, tls=ClusterTls())
        )
        secure = HttpClient(
            ClusterAddress((f"127.0.0.1:{server.port}",), *USER, connect_timeout_s=0.3, tls=ClusterTls("required"))
        )
        with pytest.raises(Unreachable):
            secure.request("GET", f"127.0.0.1:{server.port}", "/")
        assert b"Authorization" not in server.received
        with pytest.raises(Unreachable):
            client.request("GET", f"127.0.0.1:{server.port}", "/", timeout_s=0.3)
        assert b"Authorization" in server.received


@pytest.mark.parametrize(("mode", "location"), [("required", "http://fe2:8030/x"), ("off", "https://fe2:8030/x")])
def test_http_client_redirect_to_another_scheme_raises(mode: str, location: str) -> None:
    client = HttpClient(ClusterAddress(("fe1:8030", "fe2:8030"), *USER, tls=ClusterTls(mode)))
    with pytest.raises(Unreachable, match="nothing was sent to it"):
        client.follow(Reply(307, {"location": location}, b""), "GET x")


@pytest.mark.parametrize(
    ("hosts", "mode", "count"),
    [
        (["fe1:8030"], "off", 1),
        (["fe1:8030"], "required", 1),
        (["fe1:8030"], "verify_ca", 0),
        (["127.0.0.1:8030", "[::1]:8040", "localhost:8030"], "off", 0),
        (["127.0.0.1:8030", "10.0.0.1:8040"], "off", 1),
    ],
)
def test_check_plain_text_credentials_give_a_warning(hosts: list[str], mode: str, count: int) -> None:
    found = list(unguarded_findings("Doris", hosts, ClusterTls(mode)))
    assert len(found) == count and not any(finding.fatal for finding in found)
    assert all("sink.tls" in finding.hint for finding in found)


def test_tls_ca_file_without_certificates_names_the_setting(tmp_path: Path, authority: Authority) -> None:
    file = tmp_path / "ca.pem"
    sink = DorisSinkConfig.model_construct(tls=ServerTls.model_construct(mode="verify_ca", ca=str(file)))
    for text in ("", "no certificate", "\udcff"):
        file.write_text(text, errors="surrogateescape")
        with pytest.raises(ConfigError) as caught:
            _tls_of(sink)
        assert "sink.tls.ca" in caught.value.hint
    file.write_text(authority.ca)
    assert _tls_of(sink) == ClusterTls("verify_ca", authority.ca)


@pytest.mark.parametrize("mode", ["off", "required", "verify_ca"])
def test_sql_connection_uses_tls_by_mode(mysql: LocalServer, mode: str) -> None:
    tls = ClusterTls(mode, None if mode == "off" else (mysql.data / "ca.pem").read_text())
    address = ClusterAddress((f"127.0.0.1:{mysql.port}",), "root", "", sql_port=mysql.port, tls=tls)
    sql = FrontendSql(address, DORIS)
    assert bool(sql.one("SHOW STATUS LIKE 'Ssl_cipher'")["Value"]) == (mode != "off")
    sql.close()


def test_sql_connection_unknown_certificate_raises(mysql: LocalServer, authority: Authority) -> None:
    tls = ClusterTls("verify_ca", authority.ca)
    address = ClusterAddress((f"127.0.0.1:{mysql.port}",), "root", "", sql_port=mysql.port, tls=tls)
    with pytest.raises(SinkUnavailable, match="certificate verify failed") as caught:
        FrontendSql(address, DORIS).ask("SELECT 1")
    assert "sink.tls" in caught.value.hint
