"""Commands over the REST API of a ``cdc serve`` with TLS: ``$CDC_CA_FILE`` has the certificates that are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.client import Jobs
from cdc.errors import ConfigError, PrerequisiteError
from cdc.manager.rest import Tokens
from cdc.state.sqlite import SqliteStore
from tests.emulators.kafka import create_certificate
from tests.support.manager import served
from tests.support.serving import HostProcess


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_certificate(tmp_path_factory.mktemp("certificate"), "host")


@pytest.fixture(scope="module")
def host(certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    listen = f"port: 0, certificate: {certificate}, key: {certificate.with_suffix('.key')}"
    host = HostProcess("first", tmp_path_factory.mktemp("host"), {}, listen=listen).start()
    yield host
    host.kill()


@pytest.fixture(scope="module")
def url(host: HostProcess) -> str:
    return str(host.row("address"))


def test_command_with_the_ca_file_of_the_host_works(host: HostProcess, url: str, certificate: Path) -> None:
    assert url.startswith("https://127.0.0.1:")
    assert "There are no jobs." in host.over_rest("list", CDC_CA_FILE=str(certificate))


def test_command_with_another_ca_file_reports_the_certificate(host: HostProcess, url: str, tmp_path: Path) -> None:
    printed = host.over_rest("list", code=3, CDC_CA_FILE=str(create_certificate(tmp_path, "other")))
    assert "error: The certificate of the REST API is not accepted: self-signed certificate." in printed
    assert f"where: url {url}" in printed
    assert "hint:  Set CDC_CA_FILE (in Python: ca_file) to a file with the certificate of its authority." in printed


def test_ca_file_without_certificates_is_refused(host: HostProcess, url: str, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    printed = host.over_rest("list", code=2, CDC_CA_FILE=str(file))
    assert "error: The file has no certificate that can be read: no certificate or crl found." in printed
    assert f"where: file {file}" in printed and "hint:  Set CDC_CA_FILE (in Python: ca_file) to a file" in printed
    with pytest.raises(ConfigError, match="No such file or directory"):
        Jobs(url, ca_file=tmp_path / "missing.pem")


def test_client_reports_what_fails_in_tls(url: str, certificate: Path) -> None:
    with Jobs(url) as jobs, pytest.raises(PrerequisiteError, match="is not accepted: self-signed"):
        jobs.list()  # with the certificates of the requests package
    with Jobs(url.replace("127.0.0.1", "localhost"), ca_file=certificate) as jobs:
        with pytest.raises(PrerequisiteError, match="is not valid for 'localhost'") as mismatch:
            jobs.list()
        assert mismatch.value.hint == "Use a host name or an IP address of the certificate in the address."


def test_https_address_of_a_host_without_tls_is_reported(certificate: Path, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    with served(store, Tokens()) as plain, Jobs(plain.replace("http:", "https:"), ca_file=certificate) as jobs:
        with pytest.raises(PrerequisiteError, match="TLS connection to the REST API failed: wrong version") as refused:
            jobs.list()
        assert refused.value.hint == "Use http:// in the address if `cdc serve` has no certificate."
    store.close()
