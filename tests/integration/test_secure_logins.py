"""Logins on real servers: required TLS, Unix sockets, and a pinned public key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.checks.mysql import check_source
from cdc.demo.local_servers import LocalServer
from cdc.errors import SourceUnavailable
from cdc.mysql.client import GuardedConnection
from cdc.mysql.connection import Endpoint, Tls, connect, query
from tests.support.receiving import Mapped, identity

PASSWORD = "secret-pässword"


@pytest.fixture
def account(mysql: LocalServer) -> str:
    """An account with the default plugin of the server, whose hash the server has not cached."""
    mysql.execute("DROP USER IF EXISTS guarded@localhost", "DROP USER IF EXISTS guarded@127.0.0.1")
    mysql.create_user("guarded", PASSWORD)
    return "guarded"


def tcp(server: LocalServer, tls: Tls) -> Endpoint:
    return Endpoint("127.0.0.1", server.port, "guarded", PASSWORD, tls)


def test_login_without_tls_needs_the_public_key(
    mysql: LocalServer, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedConnection, "_is_local", lambda _: False)
    with pytest.raises(SourceUnavailable, match="the password was not sent") as caught:
        connect(tcp(mysql, Tls("off")))
    assert "public_key" in caught.value.hint
    key = Tls("off", public_key=str(mysql.data / "public_key.pem"))
    with connect(tcp(mysql, key)) as connection:
        assert query(connection, "SELECT 1 AS one") == [{"one": 1}]


def test_login_unverified_tls_raises_and_verified_tls_works(
    mysql: LocalServer, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedConnection, "_is_local", lambda _: False)
    with pytest.raises(SourceUnavailable, match="the password was not sent") as caught:
        connect(tcp(mysql, Tls("required")))
    assert "verify_ca" in caught.value.hint
    with connect(tcp(mysql, Tls("verify_ca", str(mysql.data / "ca.pem")))) as connection:
        assert query(connection, "SHOW STATUS LIKE 'Ssl_cipher'")[0]["Value"]
    connect(tcp(mysql, Tls("required"))).close()  # the server has cached the hash and asks for nothing else


@pytest.mark.parametrize("tls", [Tls("off"), Tls("required")])
def test_login_on_loopback_needs_no_tls(mysql: LocalServer, account: str, tls: Tls) -> None:
    connect(tcp(mysql, tls)).close()


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_login_by_unix_socket_works_like_by_host(kind: str, request: pytest.FixtureRequest) -> None:
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    server.execute(
        "DROP USER IF EXISTS guarded@localhost",
        f"CREATE USER guarded@localhost IDENTIFIED BY '{PASSWORD}'",
        "GRANT ALL ON *.* TO guarded@localhost",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY)",
    )
    server_endpoint = Endpoint("localhost", 3306, "guarded", PASSWORD, Tls("off"), str(server.socket))
    assert check_source(server_endpoint, identity(), Mapped(database), [f"{database}.t"]) == ()


def test_login_to_server_that_requires_tls_names_the_setting(mysql: LocalServer, account: str) -> None:
    mysql.execute("SET GLOBAL require_secure_transport = ON")
    try:
        with pytest.raises(SourceUnavailable, match="require_secure_transport") as caught:
            connect(tcp(mysql, Tls("off")))
        connect(tcp(mysql, Tls("verify_ca", str(Path(mysql.data) / "ca.pem")))).close()
    finally:
        mysql.execute("SET GLOBAL require_secure_transport = OFF")
    assert "source.tls" in caught.value.hint
