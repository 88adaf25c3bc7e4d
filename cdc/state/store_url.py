"""The address of the state store: ``$CDC_STORE``, and the password that belongs to it.

::

    mysql://cdc@db.example/cdc_state              MySQL and MariaDB; port 3306
    postgresql://cdc@db.example:5432/cdc_state
    mysql://cdc@db.example/cdc_state?tls=verify_identity&ca=/etc/ssl/db.pem
    mysql://cdc:${DB_PASSWORD}@db.example/cdc_state

The password is the first of: ``$CDC_STORE_PASSWORD``, the file ``$CDC_STORE_PASSWORD_FILE``, the one in the address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn, cast
from urllib.parse import parse_qs, unquote, urlsplit

from cdc.errors import ConfigError
from cdc.files import read_text_limited, reading_problem

STORE, PASSWORD, PASSWORD_FILE = "CDC_STORE", "CDC_STORE_PASSWORD", "CDC_STORE_PASSWORD_FILE"
FORM = "mysql://USER@HOST:PORT/DATABASE, or postgresql://USER@HOST:PORT/DATABASE"
PASSWORD_BYTES = 1 << 16
TLS_MODES = ("off", "required", "verify_ca", "verify_identity")

Tls = Literal["off", "required", "verify_ca", "verify_identity"]
_KINDS = {"mysql": "mysql", "mariadb": "mysql", "postgresql": "postgresql", "postgres": "postgresql"}
_PORTS = {"mysql": 3306, "postgresql": 5432}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Where a shared store is, and how to log in."""

    kind: Literal["mysql", "postgresql"]
    host: str
    port: int
    user: str
    database: str
    password: str = field(default="", repr=False)
    tls: Tls | None = None  # None: no TLS on loopback, otherwise ``required``
    ca: str | None = None  # absolute path of a file with certificates

    @property
    def shown(self) -> str:
        """The address without the password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}://{self.user}@{host}:{self.port}/{self.database}"

    @property
    def tls_mode(self) -> Tls:
        """The TLS mode in use."""
        return self.tls or ("off" if self.host in _LOOPBACK else "required")


def store_url(environment: Mapping[str, str]) -> StoreUrl | None:
    """Return the address in ``$CDC_STORE``; None if the store is the SQLite file of this user.

    Raises: ConfigError - the address is not valid, or its password cannot be read. The message has no password.
    """
    text = environment.get(STORE, "").strip()
    if text in ("", "sqlite"):
        return None
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        _refuse("is not an address")
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        _refuse(f"has the scheme {parts.scheme or 'none'}, which is not known")
    database = unquote(parts.path.removeprefix("/"))
    if not parts.hostname or not parts.username or not database or "/" in database:
        _refuse("needs a user, a host and a database")
    settings = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    unknown = sorted(settings.keys() - {"tls", "ca"})
    if unknown:
        _refuse(f"has the setting {unknown[0]}, which is not known (tls, ca)")
    tls, ca = settings.get("tls"), settings.get("ca")
    if tls is not None and tls not in TLS_MODES:
        _refuse(f"has tls={tls}, which is none of {', '.join(TLS_MODES)}")
    if ca is not None:
        problem = reading_problem(Path(ca)) if Path(ca).is_absolute() else f"{ca} is not an absolute path"
        if problem is not None:
            _refuse(f"has a `ca` that cannot be used: {problem}", "Correct `ca=`.")
    return StoreUrl(
        cast(Literal["mysql", "postgresql"], kind), parts.hostname, port or _PORTS[kind], unquote(parts.username),
        database, _password(unquote(parts.password or ""), environment), cast("Tls | None", tls), ca,
    )  # fmt: skip


def _password(written: str, environment: Mapping[str, str]) -> str:
    if PASSWORD in environment:
        return environment[PASSWORD]
    if file := environment.get(PASSWORD_FILE):
        try:
            return read_text_limited(Path(file), PASSWORD_BYTES).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(
                f"The file of {PASSWORD_FILE} cannot be read: {cause}.", hint=f"Correct {PASSWORD_FILE}.", path=file
            ) from None
    found = _VARIABLE.fullmatch(written)
    if found is None:
        return written
    if found[1] not in environment:
        raise ConfigError(f"{STORE} names the variable {found[1]}, which is not set.", hint=f"Set {found[1]}.")
    return environment[found[1]]


def _refuse(why: str, hint: str = f"Its form is {FORM}.") -> NoReturn:
    raise ConfigError(f"{STORE} {why}.", hint=hint) from None
