"""The top level of a job file, and ``load_config``, which reports all errors of a file at once.

Only ``cdc.job``, ``cdc.checks`` and ``cdc.cli`` import ``Config``; lower layers get plain arguments. Durations are in
seconds, sizes in bytes. Relative paths start from the folder of the job file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

from pydantic import BaseModel, BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator

from cdc.config.alert_models import Alerts
from cdc.config.change_models import SchemaChanges, SchemaChangesOrMode
from cdc.config.channel_models import ChannelConfig
from cdc.config.fields import Bytes, Count, Model, Seconds, Text, filled, is_loopback, setting
from cdc.config.issues import to_issues
from cdc.config.kafka_models import KafkaSourceConfig, check_channels
from cdc.config.loader import NO_HOME, ConfigIssue, CrossFieldError, read_job_file
from cdc.config.serve_models import Resources
from cdc.config.sink_models import (
    ClusterSinkConfig,
    DeltaSinkConfig,
    DorisSinkConfig,
    StarrocksSinkConfig,
)
from cdc.config.source_models import BinlogFilesSourceConfig, BinlogSourceConfig, CanalSourceConfig
from cdc.config.validation import validate
from cdc.config.verify_models import Verify
from cdc.errors import ConfigError
from cdc.logging_setup import SECRET_SETTING, basic_token
from cdc.model.schema_change import ChangeMode

INTERVAL_S = 5.0  # a merge has a fixed cost: a few seconds of lag make merges large enough for it
MIN_ROWS = 10_000  # as in Binlog Load: with an idle source, so many rows do not wait for the interval
MIN_BYTES = 15 << 20  # as MIN_ROWS, in bytes
MAX_BYTES = 64 << 20  # one merge of this size takes about a second on two cores
MAX_ROWS = 20_000_000  # narrow rows: a limit in bytes alone would make cycles very long
PARALLEL_TASKS = 8  # keeps the executors of a small cluster busy while some Tasks wait for the sink
TASK_BYTES = 32 << 20  # a Spark job costs tens of milliseconds; several of this size fit into the window
WINDOW_BYTES = 256 << 20  # two full cycles and the Tasks between them, on a 4 GiB machine
MERGE_BYTES = 1 << 30  # a quarter of a 4 GiB machine; driver, JVM and workers need the rest
STEP_S = 5.0  # the stream lags by two or three times this while tables are loaded
READERS = 4  # most servers can spare so many connections; the number of Spark cores is a second limit
STATUS_PORT = 8470
NAME_MOST = 40  # the shortest label limit of all sinks leaves so many characters for the job name

_NAME = re.compile(rf"[a-z0-9_][a-z0-9_-]{{0,{NAME_MOST - 1}}}")


class Commit(Model):
    """When a commit cycle closes."""

    interval: Seconds = Field(default=INTERVAL_S, description="Close the commit cycle this long after its first row.")
    max_bytes: Bytes = Field(
        default=MAX_BYTES,
        description="Close the cycle when it holds this much. A transaction is never cut, so a cycle can be larger.",
    )
    max_rows: Count = Field(
        default=MAX_ROWS, description="Close the cycle when it holds this many rows. A transaction is never cut."
    )
    min_rows: Count = Field(
        default_factory=lambda known: min(MIN_ROWS, known.get("max_rows", MAX_ROWS)),
        description=(
            "If the source is idle, close the cycle at once when it holds this many rows. Default: 10000, at "
            "most `max_rows`."
        ),
    )
    min_bytes: Bytes = Field(
        default_factory=lambda known: min(MIN_BYTES, known.get("max_bytes", MAX_BYTES)),
        description=(
            "If the source is idle, close the cycle at once when it holds this much. Default: 15 MiB, at most "
            "`max_bytes`."
        ),
    )

    @model_validator(mode="after")
    def _ordered(self) -> Commit:
        if self.max_bytes < self.min_bytes:
            raise CrossFieldError("max_bytes", f"must not be below min_bytes ({self.min_bytes} bytes)")
        if self.max_rows < self.min_rows:
            raise CrossFieldError("max_rows", f"must not be below min_rows ({self.min_rows})")
        return self


class Tasks(Model):
    """How much is loaded at the same time."""

    parallel: Annotated[int, Field(ge=1, le=256)] = Field(
        default=PARALLEL_TASKS,
        description=(
            "Tasks (Spark jobs) that run at the same time, over all channels. With `spark.master: local`, one more "
            "than there are cores at most."
        ),
    )
    max_bytes: Bytes = Field(
        default=TASK_BYTES,
        description=(
            "Start a Task for a channel as soon as it holds this much. By default at most a quarter of `memory.window`."
        ),
    )


class Memory(Model):
    """Limits of memory."""

    window: Bytes = Field(
        default=WINDOW_BYTES,
        description=(
            "Rows in memory that no Task has started to load. When the window is full, the job stops reading "
            "the source."
        ),
    )
    merge: Bytes = Field(
        default=MERGE_BYTES, description="Memory of one merge in the Delta sink. A load that needs more pauses the job."
    )


class Snapshot(Model):
    """How rows that exist already are read."""

    step: Seconds = Field(default=STEP_S, description="How long the stream waits for one snapshot step.")
    readers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=READERS,
        description=(
            "Connections to MySQL that read rows at the same time. The number of Spark cores is a second limit."
        ),
    )
    rows_per_second: Count | None = Field(
        default=None, description="Rows that all readers together read per second. Default: no limit."
    )
    bytes_per_second: Bytes | None = Field(
        default=None, description="Bytes that all readers together read per second. Default: no limit."
    )


class Spark(Model):
    """Which Spark the Tasks run on."""

    master: Text | None = Field(default=None, description="Spark master. Default: `local[*]`, unless `remote` is set.")
    remote: Text | None = Field(
        default=None, description="Address of a Spark Connect server, such as `sc://host:15002`."
    )
    conf: dict[str, Annotated[str, BeforeValidator(setting)]] = Field(
        default_factory=dict, description="Further settings of Spark."
    )

    @model_validator(mode="after")
    def _one_address(self) -> Spark:
        if self.master and self.remote:
            raise CrossFieldError("remote", "cannot be combined with `master`: a job uses one Spark")
        return self


class StatusAddress(Model):
    """Where the status endpoint listens."""

    host: Text = Field(
        default="127.0.0.1",
        description=(
            "Address on which the status endpoint listens. An address that other machines can reach requires `token`."
        ),
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=STATUS_PORT,
        description="Port of the status endpoint. If it is in use, the next free port is taken. 0: any free port.",
    )
    token: SecretStr | None = Field(
        default=None,
        description="Token that requests to the endpoint must send. Default: a random token in the state folder.",
    )

    @model_validator(mode="after")
    def _guarded(self) -> StatusAddress:
        if not is_loopback(self.host) and not (self.token and self.token.get_secret_value()):
            others = "is not a loopback address, so `token` is required: without one, any client could stop the job"
            raise CrossFieldError("host", others)
        return self


class Config(Model):
    """One job file."""

    name: str = Field(
        description=(
            "Name of the job: `a-z`, `0-9`, `-` and `_`, at most 40 characters. It identifies the job in its "
            "state and in the sink."
        )
    )
    source: BinlogSourceConfig | CanalSourceConfig | BinlogFilesSourceConfig | KafkaSourceConfig = Field(
        discriminator="type", description="Where changes are read from."
    )
    sink: DeltaSinkConfig | DorisSinkConfig | StarrocksSinkConfig = Field(
        discriminator="type", description="Where rows are written to."
    )
    channels: Annotated[tuple[ChannelConfig, ...], BeforeValidator(filled)] = Field(
        description="Which source tables are written to which target tables."
    )
    commit: Commit = Field(default=Commit(), description="When a commit cycle closes.")
    tasks: Tasks = Field(default=Tasks(), description="How much is loaded at the same time.")
    memory: Memory = Field(default=Memory(), description="Limits of memory.")
    snapshot: Snapshot = Field(default=Snapshot(), description="How rows that exist already are read.")
    verify: Verify = Field(default=Verify(), description="Comparisons of source and target while the job runs.")
    schema_changes: SchemaChangesOrMode = Field(
        default_factory=lambda known: _default_changes(known.get("sink")),
        description=(
            "What the job does when a source table changes. Default: `lenient`, or `pause` with "
            "`sink.create_tables: false`."
        ),
    )
    spark: Spark = Field(default=Spark(), description="The Spark that runs the Tasks.")
    status: StatusAddress = Field(default=StatusAddress(), description="The status endpoint.")
    resources: Resources = Field(default=Resources(), description="What the job needs of its host (`cdc serve`).")
    host_selector: dict[str, Text] = Field(
        default={}, description="Labels that the host of the job must have (`cdc serve`): `{zone: eu}`."
    )
    alerts: Alerts = Field(default=Alerts(), description="Messages about the job to another program.")

    @field_validator("name")
    @classmethod
    def _usable_name(cls, value: str) -> str:
        return job_name(value)

    @model_validator(mode="after")
    def _tables_to_verify(self) -> Config:
        source = self.source
        if self.verify.every is not None and not isinstance(source, BinlogSourceConfig):
            if not isinstance(source, CanalSourceConfig):
                reason = "the source has no tables to compare with, only a stream of changes"
                raise CrossFieldError("verify", f"`every` needs `source.type: binlog` or canal: {reason}")
            if source.mysql is None:
                raise CrossFieldError("verify", "`every` needs `source.mysql`, the tables that are compared")
        return self

    @model_validator(mode="after")
    def _keys_of_channels(self) -> Config:
        check_channels(self.source.format if isinstance(self.source, KafkaSourceConfig) else "", self.channels)
        return self

    @property
    def task_bytes(self) -> int:
        """Return ``tasks.max_bytes``: by default at most a quarter of the window."""
        if "max_bytes" in self.tasks.model_fields_set:
            return self.tasks.max_bytes
        return min(self.tasks.max_bytes, max(1, self.memory.window // 4))

    def secrets(self) -> tuple[str, ...]:
        """Return all secrets of the file, for the filter that removes them from logs and reasons.

        A secret that equals a user name (Canal's default is canal, canal) is left out, because names are shown.
        """
        named = [*self.spark.conf.items(), *_parameters(self.spark.remote or "")]
        if isinstance(self.source, KafkaSourceConfig):
            named += self.source.properties.items()
        settings = {value for name, value in named if SECRET_SETTING.search(name)}
        if isinstance(self.sink, DeltaSinkConfig) and self.sink.storage is not None:
            stored = self.sink.storage.properties.items()
            settings |= {value for name, value in stored if "key" in name or SECRET_SETTING.search(name)}
        return tuple({*_secrets(self), *settings} - {"", *_usernames(self)}) + tuple(_basic_tokens(self.sink))


def job_name(value: object) -> str:
    """Return the name of a job. Raises: ValueError - it is not a valid one."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"must consist of 1 to {NAME_MOST} characters a-z, 0-9, - and _, and not start with -")
    return value


def load_config(path: Path) -> Config:
    """Read and validate a job file.

    Raises: ConfigError - with all errors: file, line, path and reason.
    """
    try:
        file = path.expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(
            f"The job file cannot be read: {NO_HOME}.", hint="Give the path of a readable YAML file.", file=path
        ) from error
    root, issues = read_job_file(file)
    config = None
    try:
        config = Config.model_validate(root.plain() if root else {}, context={"file": file})
    except ValidationError as error:
        if root is not None:
            issues += to_issues(error, root, Config)
    if root is not None:
        issues += validate(root)
        if config is not None and config.memory.window < config.task_bytes:
            message = f"must hold at least one Task: tasks.max_bytes is {config.task_bytes} bytes"
            issues.append(ConfigIssue(root.line_of(("memory", "window")), ("memory", "window"), message))
    if issues or config is None:
        lines = [issue.format(path.name) for issue in sorted(issues, key=lambda one: one.line)]
        count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
        raise ConfigError(
            "\n".join([f"{path} has {count}:", *(f"  {line}" for line in lines)]) + "\n",
            hint=f"Nothing was started. Correct the file, then run `cdc check {path}`.",
        )
    return config


def _default_changes(sink: DeltaSinkConfig | ClusterSinkConfig | None) -> SchemaChanges:
    """Return the default mode: a job that may not create tables does not change them either."""
    may_create = sink is None or sink.create_tables
    return SchemaChanges(mode=ChangeMode.LENIENT if may_create else ChangeMode.PAUSE)


def _parameters(remote: str) -> Iterator[tuple[str, str]]:
    """Yield the parameters of ``sc://host:port/;name=value;...``, with each value as written and URL-decoded."""
    for part in remote.split(";")[1:]:
        name, _, value = part.partition("=")
        yield from ((name, value), (name, unquote(value)))


def _usernames(model: BaseModel) -> Iterator[str]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if name == "username":
            yield value
        elif isinstance(value, BaseModel):
            yield from _usernames(value)


def _basic_tokens(sink: BaseModel) -> Iterator[str]:
    if isinstance(sink, (DorisSinkConfig, StarrocksSinkConfig)) and (password := sink.password.get_secret_value()):
        yield basic_token(sink.username, password)


def _secrets(model: BaseModel) -> Iterator[str]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, SecretStr):
            yield value.get_secret_value()
        elif isinstance(value, BaseModel):
            yield from _secrets(value)
