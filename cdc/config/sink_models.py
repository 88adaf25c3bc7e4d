"""Models of the key ``sink`` of a job file: one class per sink type, and how a sink creates tables."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from cdc.config.connection_models import ServerTls
from cdc.config.fields import Address, Count, Model, Port, Seconds, Text, WidePath, filled, is_url, setting, switch
from cdc.config.loader import CrossFieldError

SQL_PORT = 9030  # Doris' and StarRocks' query port
CONNECT_S = 5.0  # within a data centre; after it the next FE or BE is tried
LOAD_S = 600.0  # the cluster replies to a load after all replicas have its rows
CONNECTIONS = 8  # a BE processes a few loads at once and queues the others
RETENTION_S = 3600.0  # longer than a query of a reader; older versions only use disk space


class StorageConfig(Model):
    """The object store of `sink.path`. Without a key: that of the environment (`AWS_ACCESS_KEY_ID`), or the role."""

    endpoint: Text | None = Field(
        default=None, description="URL of the store, such as `https://minio:9000`. Default: AWS S3 in `region`."
    )
    region: Text | None = Field(default=None, description="Region of the bucket. Default: `AWS_REGION`, or us-east-1.")
    access_key_id: Text | None = Field(default=None, description="Id of the access key.")
    secret_access_key: SecretStr | None = Field(default=None, description="Secret of the access key.")
    session_token: SecretStr | None = Field(default=None, description="Token of a temporary access key.")
    allow_http: bool = Field(default=False, description="Allow an `endpoint` that begins with `http://`.")
    path_style: bool = Field(
        default=True,
        description="Whether requests have the bucket in their path. With `false`, they have it in the host name.",
    )
    properties: dict[str, Annotated[str, BeforeValidator(setting)]] = Field(
        default_factory=dict,
        description="Further options of the library object_store, such as `google_service_account` for `gs://`.",
    )

    @model_validator(mode="after")
    def _complete(self) -> StorageConfig:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise CrossFieldError("access_key_id", "needs `secret_access_key`, and that needs `access_key_id`")
        if self.endpoint and "@" in self.endpoint:
            raise CrossFieldError("endpoint", "must not contain a user or a password; set `access_key_id`")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise CrossFieldError("endpoint", "must begin with https:// or http://")
        if self.endpoint and self.endpoint.startswith("http://") and not self.allow_http:
            raise CrossFieldError("endpoint", "is not encrypted: write https://, or set `allow_http: true`")
        return self

    def options(self, scheme: str) -> dict[str, str]:
        """Return the options of the library object_store for a URL with ``scheme``: secrets in plain text."""
        secret, token = self.secret_access_key, self.session_token
        s3 = {
            "aws_endpoint": self.endpoint,
            "aws_region": self.region or os.environ.get("AWS_REGION") or "us-east-1",
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": secret.get_secret_value() if secret else None,
            "aws_session_token": token.get_secret_value() if token else None,
            "aws_virtual_hosted_style_request": None if self.path_style else "true",
        }
        found = {name: value for name, value in s3.items() if value is not None} if scheme == "s3" else {}
        return {**found, **({"allow_http": "true"} if self.allow_http else {}), **self.properties}


class DeltaSinkConfig(Model):
    """Delta tables in a folder or an object store."""

    tag: ClassVar = "delta"
    type: Literal["delta"] = Field(description="Write Delta tables to a folder or an object store.")
    path: WidePath = Field(
        description="Folder of the tables, or the URL of a prefix in an object store: `s3://bucket/prefix` (`gs://` "
        "and `az://` are not tested). The table `ods.orders` is in its subfolder `ods/orders`."
    )
    storage: StorageConfig | None = Field(default=None, description="The object store, if `path` is a URL.")
    create_tables: bool = Field(
        default=True, description="Create target tables that do not exist. `cdc ddl` prints the statements."
    )
    merge: Literal["rewrite", "deletion_vectors"] = Field(
        default="deletion_vectors",
        description="How a commit changes rows of the tables that this job creates. `deletion_vectors` marks changed "
        "rows as deleted and appends their new versions; readers of the tables must support deletion vectors. "
        "`rewrite` writes each affected file again; every reader can read the result. An existing table keeps its way.",
    )
    retention: Seconds = Field(
        default=RETENTION_S, description="How long files and log entries of older table versions are kept for readers."
    )

    @model_validator(mode="after")
    def _only_for_urls(self) -> DeltaSinkConfig:
        if self.storage is not None and not is_url(self.path):
            raise CrossFieldError("storage", "applies only if `path` is the URL of an object store, such as s3://...")
        return self

    @property
    def location(self) -> str:
        """Absolute path, or URL, of ``path``."""
        return self.path if is_url(self.path) else self.located(self.path)

    @property
    def storage_options(self) -> dict[str, str]:
        """Options of the object store, with secrets in plain text; {} for a folder."""
        scheme = self.path.partition(":")[0]
        return (self.storage or StorageConfig()).options(scheme) if is_url(self.path) else {}


class TargetTablesConfig(Model):
    """Layout of the tables that the job creates in Doris or StarRocks."""

    buckets: Literal["auto"] | Count = Field(
        default="auto", description="Number of buckets of each table that the job creates."
    )
    replication: Count | None = Field(
        default=None,
        description="Number of replicas of each table that the job creates. Default: the number of running backends, "
        "at most 3. Statements of `cdc ddl` use the default of the cluster instead, because it is not asked.",
    )
    properties: dict[str, Annotated[str, BeforeValidator(setting)]] = Field(
        default_factory=dict, description="Further table properties of the cluster."
    )


class ChannelTable(Model):
    """Layout of the table of one channel. None: as in ``TargetTablesConfig``."""

    buckets: Literal["auto"] | Count | None = Field(
        default=None, description="Number of buckets of this table. Default: `sink.tables.buckets`."
    )
    replication: Count | None = Field(
        default=None, description="Number of replicas of this table. Default: `sink.tables.replication`."
    )
    properties: dict[str, Annotated[str, BeforeValidator(setting)]] = Field(
        default_factory=dict, description="Further table properties of the cluster, added to those of `sink.tables`."
    )
    partition: Text | None = Field(
        default=None, description="Partition clause of the cluster, such as `PARTITION BY RANGE(day) (...)`."
    )


class ClusterTimeouts(Model):
    """Timeouts of requests to a cluster."""

    connect: Seconds = Field(
        default=CONNECT_S, description="How long connecting to a host may take. After it, the next host is tried."
    )
    load: Seconds = Field(
        default=LOAD_S, description="How long the reply to a load may take after the last byte was sent."
    )


class ClusterSinkConfig(Model):
    """Keys that Doris and StarRocks share."""

    fe: Annotated[tuple[Address, ...], BeforeValidator(filled)] = Field(
        description="HTTP addresses of the frontends, as `host:port`."
    )
    be: Annotated[tuple[Address, ...], BeforeValidator(filled)] = Field(
        default=(),
        description=(
            "HTTP addresses of the backends, if the user may not list them or if they have other addresses "
            "for this machine. Default: the addresses that the cluster reports."
        ),
    )
    sql_port: Port = Field(default=SQL_PORT, description="MySQL port of the frontends.")
    username: Text = Field(description="User of the cluster.")
    password: SecretStr = Field(default=SecretStr(""), description="Password of this user.")
    tls: ServerTls = Field(
        default=ServerTls(mode="off"),
        description=(
            "Encryption of all connections to the cluster, HTTP and SQL, and verification of its certificates."
        ),
    )
    create_tables: bool = Field(
        default=True,
        description="Create databases and target tables that do not exist. `cdc ddl` prints the statements.",
    )
    tables: TargetTablesConfig = Field(default=TargetTablesConfig(), description="How the job creates tables.")
    timeouts: ClusterTimeouts = Field(default=ClusterTimeouts(), description="How long the cluster may take to reply.")
    connections: Count = Field(
        default=CONNECTIONS,
        description="Concurrent requests to one host, for the driver and for each executor process.",
    )


class DorisSinkConfig(ClusterSinkConfig):
    """Unique-key tables of Apache Doris."""

    tag: ClassVar = "doris"
    type: Literal["doris"] = Field(description="Write Unique-key tables of Apache Doris.")
    two_phase_commit: bool = Field(
        default=True,
        description="Prepare and commit loads separately. With `false`, rows are visible as soon as they are loaded; "
        "it excludes `source.read: executors`.",
    )
    compression: Annotated[Literal["off", "lz4"], BeforeValidator(switch)] = Field(
        default="off", description="Compression of load bodies. `lz4` helps on networks slower than about 1 Gbit/s."
    )


class StarrocksSinkConfig(ClusterSinkConfig):
    """Primary-key tables of StarRocks."""

    tag: ClassVar = "starrocks"
    type: Literal["starrocks"] = Field(description="Write Primary-key tables of StarRocks.")
    multi_table: Annotated[Literal["auto", "on", "off"], BeforeValidator(switch)] = Field(
        default="auto",
        description=(
            "Commit all tables of a checkpoint in one transaction: `on` requires it, `off` never does it, "
            "`auto` does it where it is safe."
        ),
    )
