"""The keys of the file of ``cdc serve``, the same on every host. All of it may be omitted on one host."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from cdc.config.alert_models import HostAlerts
from cdc.config.fields import Bytes, Model, PathText, PlainAddress, Seconds, Text
from cdc.config.issues import to_issues
from cdc.config.loader import NO_HOME, CrossFieldError, FileKind, read_job_file
from cdc.errors import ConfigError
from cdc.model.host_name import HOST_NAME_FORM, is_host_name

SERVE_PORT = 8480
SHARED = "shared"  # value of ``spark.connect``
JOB_MEMORY_BYTES = 1 << 30  # measured at rest: 0.6 to 0.8 GiB with a Spark of its own, 1.1 GiB under load
_SERVE_FILE = FileKind(
    "The file of `cdc serve`",
    "keys such as store, listen and jobs",
    "run `cdc serve` without it, or see docs/reference/serve-file.md for its keys",
)


class Resources(Model):
    """What the job needs of the host that runs it."""

    memory: Bytes = Field(
        default=JOB_MEMORY_BYTES,
        description="Memory of driver, JVM and workers. A host runs so many jobs as its memory allows.",
    )


class HostKeys(Model):
    """This host."""

    name: Text | None = Field(default=None, description="Name of the host. Default: `$CDC_HOST`, else the machine's.")
    address: PlainAddress | None = Field(
        default=None, description="Address for people and other hosts: `https://a1:8480`."
    )
    memory: Bytes | None = Field(
        default=None, description="Memory that jobs may use. Default: 80 % of the machine, or of its container."
    )
    labels: dict[str, Text] = Field(default={}, description="Labels, for `host_selector` of jobs: `{zone: eu}`.")

    @field_validator("name")
    @classmethod
    def _usable_name(cls, value: str | None) -> str | None:
        if value is not None and not is_host_name(value):
            raise ValueError(HOST_NAME_FORM)
        return value


class Listen(Model):
    """The address of REST API and web page."""

    host: Text = Field(default="127.0.0.1", description="An address other than loopback requires `tokens` and TLS.")
    port: int = Field(default=SERVE_PORT, ge=0, le=65535, description="Port; 0: a free one.")
    certificate: PathText | None = Field(
        default=None, description="File with the certificate chain, for TLS. It is read again after a change."
    )
    key: PathText | None = Field(default=None, description="File with the private key, for TLS.")
    insecure: bool = Field(
        default=False, description="Allow an address other than loopback without TLS, behind a proxy that adds it."
    )


class TokenKeys(Model):
    """Who may use REST API and web page."""

    admin: SecretStr | None = Field(default=None, description="Token that may do everything.")
    viewer: SecretStr | None = Field(default=None, description="Token that may only read.")

    @model_validator(mode="after")
    def _not_empty(self) -> TokenKeys:
        for name, token in (("admin", self.admin), ("viewer", None if self.admin else self.viewer)):
            if token is not None and not token.get_secret_value():  # of a variable that is set, but empty
                raise CrossFieldError(name, "is empty, so no token would be required: set it, or remove the key")
        return self


class SparkKeys(Model):
    """The Spark of jobs whose files have neither `spark.master` nor `spark.remote`."""

    connect: Text | None = Field(
        default=None,
        description=(
            "Spark Connect server: `shared` starts one on this host and keeps it running; otherwise an address such "
            "as `sc://spark:15002`. Default: each job starts its own Spark."
        ),
    )
    memory: Bytes | None = Field(
        default=None,
        ge=512 << 20,
        description="Heap of the shared server. Default: an eighth of the machine, from 512 MiB to 2 GiB.",
    )

    @property
    def is_shared(self) -> bool:
        """Whether this host runs the server."""
        return self.connect == SHARED

    @model_validator(mode="after")
    def _usable(self) -> SparkKeys:
        if self.connect is not None and not self.is_shared and not self.connect.startswith("sc://"):
            raise CrossFieldError("connect", "must be `shared`, or an address such as sc://host:15002")
        if self.memory is not None and not self.is_shared:
            raise CrossFieldError("memory", "needs `connect: shared`")
        return self


class ServeConfig(Model):
    """The file of ``cdc serve``."""

    store: Text | None = Field(default=None, description="Address of the state store. Default: `$CDC_STORE`.")
    store_password: SecretStr | None = Field(default=None, description="Its password. Default: `$CDC_STORE_PASSWORD`.")
    host: HostKeys = Field(default=HostKeys(), description="This host.")
    listen: Listen = Field(default=Listen(), description="The address of REST API and web page.")
    tokens: TokenKeys = Field(default=TokenKeys(), description="Who may use REST API and web page.")
    spark: SparkKeys = Field(default=SparkKeys(), description="The Spark of jobs that name none.")
    alerts: HostAlerts = Field(default=HostAlerts(), description="Messages about all jobs to another program.")
    lease: Seconds = Field(
        default=6.0,
        ge=2,
        le=600,
        description=(
            "How long a host may be silent before others take over its jobs. Default: `$CDC_LEASE`, else 6 s."
        ),
    )
    rebalance: Seconds | None = Field(
        default=None,
        ge=1,
        le=86400,
        description=(
            "When hosts and jobs have not changed for this time, such as `5m`, a running job moves to a host with more "
            "free memory. Jobs move one at a time. Default: a running job stays where it is."
        ),
    )
    jobs: PathText | None = Field(
        default=None, description="Folder of job files, which is watched. Each `*.yaml` in it is a job that runs."
    )

    def secrets(self) -> tuple[str, ...]:
        """Return all secrets of the file, for the filter that removes them from the log."""
        found = (self.tokens.admin, self.tokens.viewer, self.store_password, self.alerts.webhook)
        return tuple(one.get_secret_value() for one in found if one is not None)

    @property
    def jobs_folder(self) -> Path | None:
        """The folder of job files as an absolute path."""
        return None if self.jobs is None else Path(self.located(self.jobs))


def load_serve_config(path: Path | None) -> ServeConfig:
    """Read and validate the file of ``cdc serve``; None: the defaults. Raises: ConfigError - with all errors."""
    if path is None:
        return ServeConfig()
    try:
        file = path.expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(
            f"The file of `cdc serve` cannot be read: {NO_HOME}.",
            hint="Give the path of a readable YAML file.",
            file=path,
        ) from error
    root, issues = read_job_file(file, _SERVE_FILE)
    config = None
    try:
        config = ServeConfig.model_validate(root.plain() if root else {}, context={"file": file})
    except ValidationError as error:
        if root is not None:
            issues += to_issues(error, root, ServeConfig)
    if issues or config is None:
        lines = [issue.format(path.name) for issue in sorted(issues, key=lambda one: one.line)]
        raise ConfigError("\n".join(["The file of `cdc serve` is not valid:", *lines]), hint="Correct the file.")
    return config
