"""Logins at real servers: TLS that the server requires, Unix sockets, a public key that the user has."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.binlog.connection import Endpoint, Tls, connect, query
from cdc.errors import SourceUnavailable
from cdc.local_servers import LocalServer
from cdc.mysql_client import GuardedConnection
from cdc.preflight import check_source
from tests.receiving import Mapped, identity

PASSWORD = "secret-pässword"


@pytest.fixture
def account(mysql: LocalServer) -> str:
    """An account with the server's default plugin, whose hash the server does not have in memory."""
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
    assert "public_key" in caught.value.mend
    key = Tls("off", public_key=str(mysql.data / "public_key.pem"))
    with connect(tcp(mysql, key)) as connection:
        assert query(connection, "SELECT 1 AS one") == [{"one": 1}]


def test_login_with_unverified_tls_is_refused_and_with_the_servers_ca_accepted(
    mysql: LocalServer, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedConnection, "_is_local", lambda _: False)
    with pytest.raises(SourceUnavailable, match="the password was not sent") as caught:
        connect(tcp(mysql, Tls("required")))
    assert "verify_ca" in caught.value.mend
    with connect(tcp(mysql, Tls("verify_ca", str(mysql.data / "ca.pem")))) as connection:
        assert query(connection, "SHOW STATUS LIKE 'Ssl_cipher'")[0]["Value"]
    connect(tcp(mysql, Tls("required"))).close()  # the server knows the hash now and asks for nothing else


@pytest.mark.parametrize("tls", [Tls("off"), Tls("required")])
def test_loopback_needs_no_more(mysql: LocalServer, account: str, tls: Tls) -> None:
    connect(tcp(mysql, tls)).close()


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_unix_socket_is_read_like_a_host(kind: str, request: pytest.FixtureRequest) -> None:
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    server.execute(
        "DROP USER IF EXISTS guarded@localhost",
        f"CREATE USER guarded@localhost IDENTIFIED BY '{PASSWORD}'",
        "GRANT ALL ON *.* TO guarded@localhost",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY)",
    )
    place = Endpoint("localhost", 3306, "guarded", PASSWORD, Tls("off"), str(server.socket))
    assert check_source(place, identity(), Mapped(database), [f"{database}.t"]) == ()


def test_server_that_requires_tls_names_the_setting(mysql: LocalServer, account: str) -> None:
    mysql.execute("SET GLOBAL require_secure_transport = ON")
    try:
        with pytest.raises(SourceUnavailable, match="require_secure_transport") as caught:
            connect(tcp(mysql, Tls("off")))
        connect(tcp(mysql, Tls("verify_ca", str(Path(mysql.data) / "ca.pem")))).close()
    finally:
        mysql.execute("SET GLOBAL require_secure_transport = OFF")
    assert "source.tls" in caught.value.mend
