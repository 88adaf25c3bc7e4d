"""The address of the store and its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.errors import ConfigError
from cdc.state.opening import lease_of
from cdc.state.server_errors import code_of, is_conflict, is_transient, store_error
from cdc.state.store_url import StoreUrl, store_url


def url(text: str, **more: str) -> StoreUrl:
    found = store_url({"CDC_STORE": text, **more})
    assert found is not None
    return found


@pytest.mark.parametrize("text", ["", "  ", "sqlite"])
def test_store_url_default_is_the_file_of_the_user(text: str) -> None:
    assert store_url({"CDC_STORE": text}) is None
    assert store_url({}) is None


def test_store_url_parts_have_defaults() -> None:
    found = url("mysql://cdc@db.example/state")
    assert (found.kind, found.host, found.port, found.user, found.database) == (
        "mysql", "db.example", 3306, "cdc", "state"
    )  # fmt: skip
    assert found.tls_mode == "required"
    assert url("mariadb://cdc@127.0.0.1/state").tls_mode == "off"
    other = url("postgres://c%40c:x@[::1]:77/s%20t?tls=off")
    assert (other.kind, other.port, other.user, other.database, other.tls_mode) == (
        "postgresql",
        77,
        "c@c",
        "s t",
        "off",
    )
    assert other.shown == "postgresql://c@c@[::1]:77/s t"


def test_store_url_password_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "word"
    file.write_text("from-file\n")
    text = "mysql://cdc:${WORD}@db/state"
    assert url(text, WORD="of-variable").password == "of-variable"
    assert url("mysql://cdc:a%2Fb@db/state").password == "a/b"
    assert url(text, CDC_STORE_PASSWORD_FILE=str(file)).password == "from-file"
    found = url(text, CDC_STORE_PASSWORD_FILE=str(file), CDC_STORE_PASSWORD="first")
    assert found.password == "first"
    assert "first" not in repr(found) + found.shown
    with pytest.raises(ConfigError, match="WORD, which is not set"):
        store_url({"CDC_STORE": text})
    with pytest.raises(ConfigError, match="CDC_STORE_PASSWORD_FILE cannot be read"):
        url(text, CDC_STORE_PASSWORD_FILE=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("oracle://cdc@db/x", "scheme oracle"),
        ("mysql://db/x", "needs a user"),
        ("mysql://cdc:hidden-word@db", "a database"),
        ("mysql://cdc:hidden-word@db:port/x", "not an address"),
        ("mysql://cdc:hidden-word@db/x?tls=maybe", "tls=maybe"),
        ("mysql://cdc:hidden-word@db/x?sslmode=off", "setting sslmode"),
        ("mysql://cdc:hidden-word@db/x?ca=none.pem", "none.pem is not an absolute path"),
        ("mysql://cdc:hidden-word@db/x?ca=/no/such.pem", "there is no file /no/such.pem"),
        ("mysql://cdc:hidden-word@db/x?ca=/" + "x" * 300, "cannot be read: File name too long"),
        ("mysql://cdc:hidden-word@db/x?ca=/a%00b", "there is no file"),
    ],
)
def test_store_url_invalid_is_refused_without_password(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        store_url({"CDC_STORE": text})
    assert "hidden-word" not in str(refused.value) and refused.value.hint


def test_lease_has_limits() -> None:
    assert lease_of({}) == 6.0 and lease_of({"CDC_LEASE": "5s"}) == 5.0
    for text in ("0", "x", "1e9", "nan"):
        with pytest.raises(ConfigError, match="CDC_LEASE"):
            lease_of({"CDC_LEASE": text})


class Mysql(Exception):
    sqlstate = "HY000"


class Postgres(Exception):
    def __init__(self, state: str, text: str = "text") -> None:
        super().__init__(text)
        self.sqlstate = state


@pytest.mark.parametrize("number", [1205, 1213, 1180, 3101, 1062])
def test_errors_of_other_transactions_are_repeated(number: int) -> None:
    error = Mysql(number, "x")
    assert code_of(error) == number and is_conflict(error) and is_transient(error)


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "23505"])
def test_errors_of_other_transactions_are_repeated_postgres(state: str) -> None:
    assert is_conflict(Postgres(state)) and is_transient(Postgres(state))


@pytest.mark.parametrize("error", [Mysql(2013, "lost"), Mysql(1290, "ro"), Postgres("57P01"), Postgres("08006")])
def test_errors_of_a_failover_are_transient(error: Exception) -> None:
    assert is_transient(error) and not is_conflict(error)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Mysql(1045, "Access denied"), "refused the login"),
        (Mysql(1114, "full"), "disk of the state store is full"),
        (Mysql(1146, "missing"), "table of the state store is missing"),
        (Mysql(1064, "syntax"), "cannot be used"),
        (Postgres("28P01"), "refused the login"),
        (Postgres("53100"), "disk of the state store is full"),
        (Postgres("42P01"), "table of the state store is missing"),
        (Postgres("42601"), "cannot be used"),
    ],
)
def test_errors_that_stay_have_a_hint(error: Exception, says: str) -> None:
    assert not is_transient(error)
    found = store_error(error, "mysql://cdc@db:3306/state")
    assert says in found.message and found.hint and found.context["store"] == "mysql://cdc@db:3306/state"
