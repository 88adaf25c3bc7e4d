"""Models of connections in a job file: TLS and a MySQL server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from cdc.config.fields import Host, Model, PathText, Port, Text, switch
from cdc.config.loader import CrossFieldError
from cdc.files import reading_problem

MYSQL_PORT = 3306


class ServerTls(Model):
    """TLS of the connections to a server."""

    mode: Annotated[Literal["off", "required", "verify_ca", "verify_identity"], BeforeValidator(switch)] = Field(
        default="verify_identity",
        description=(
            "How the connection is protected. `required` encrypts it. `verify_ca` also verifies the server's "
            "certificate, and `verify_identity` also its host name."
        ),
    )
    ca: PathText | None = Field(
        default=None,
        description=(
            "File with the certificates of the authorities that `verify_ca` and `verify_identity` accept. "
            "Default: the authorities of this machine."
        ),
    )

    @model_validator(mode="after")
    def _ca_exists(self) -> Self:
        if self.ca_file is not None and (problem := reading_problem(Path(self.ca_file))):
            raise CrossFieldError("ca", problem)
        return self

    @property
    def ca_file(self) -> str | None:
        """Absolute path of ``ca``."""
        return None if self.ca is None else self.located(self.ca)


class TlsConfig(ServerTls):
    """TLS of the connection to MySQL."""

    public_key: PathText | None = Field(
        default=None,
        description=(
            "File with the RSA key of the server, for logins without TLS (`mode: off`) with "
            "`caching_sha2_password` or `sha256_password`."
        ),
    )

    @model_validator(mode="after")
    def _key_exists(self) -> Self:
        if self.public_key_file is not None and (problem := reading_problem(Path(self.public_key_file))):
            raise CrossFieldError("public_key", problem)
        if self.public_key is not None and self.mode != "off":
            raise CrossFieldError("public_key", "works only without TLS: set `mode: off`, or remove it")
        return self

    @property
    def public_key_file(self) -> str | None:
        """Absolute path of ``public_key``."""
        return None if self.public_key is None else self.located(self.public_key)


class MysqlServer(Model):
    """How to reach a MySQL server."""

    host: Host | None = Field(
        default=None, description="Host name or address of the server. An IPv6 address is written in brackets."
    )
    port: Port = Field(default=MYSQL_PORT, description="TCP port of the server.")
    socket: PathText | None = Field(default=None, description="Path of a Unix socket, instead of `host` and `port`.")
    username: Text = Field(description="MySQL user of the job.")
    password: SecretStr = Field(default=SecretStr(""), description="Password of this user.")
    tls: TlsConfig = Field(
        default=TlsConfig(mode="off"), description="Encryption of the connection and verification of the server."
    )

    @model_validator(mode="after")
    def _host_or_socket(self) -> Self:
        if self.host is None and self.socket is None:
            raise CrossFieldError("host", "is required, or `socket` (the path of a Unix socket)")
        if self.socket is not None and (self.host is not None or "port" in self.model_fields_set):
            raise CrossFieldError("socket", "cannot be combined with `host` and `port`: remove one or the other")
        return self

    @property
    def socket_file(self) -> str | None:
        """Absolute path of ``socket``."""
        return None if self.socket is None else self.located(self.socket)

    @property
    def server(self) -> str:
        """``host:port``, or the path of the socket."""
        return self.socket_file or f"{self.host}:{self.port}"
