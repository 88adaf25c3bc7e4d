"""The job file: its models, and ``load_config``, which reads one and tells all of its faults at once.

Only ``cdc.job`` and ``cdc.cli`` see ``Config``; below them parts get plain arguments. Durations are kept in seconds,
sizes in bytes. What is relative is relative to the job file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import unquote

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from cdc.crossing import crossing
from cdc.errors import ConfigError
from cdc.jobfile import NO_HOME, Fault, Misfit, explain, read_job_file
from cdc.kinds import Address, Bytes, Count, Model, PathText, Port, Seconds, Text, filled, setting, switch
from cdc.logs import SECRET_SETTING
from cdc.names import parse_excluded, parse_table
from cdc.status import is_loopback

MYSQL_PORT = 3306
CANAL_CLIENT_ID = 1001  # Canal's own default; it serves one client a destination
CANAL_BATCH_ENTRIES = 8192  # half of Canal's default ring buffer, so that it fills while we work
FIRST_EVENT_OFFSET = 4  # a binlog file starts with four magic bytes
SQL_PORT = 9030  # Doris' and StarRocks' query port
CONNECT_S = 5.0  # within a data centre; the next FE or BE is tried then
LOAD_S = 600.0  # a load's answer comes once all replicas have its rows
CONNECTIONS = 8  # a BE works on a few loads at once and queues the others
RETENTION_S = 3600.0  # longer than a reader's query; older versions only cost disk
INTERVAL_S = 5.0  # a few seconds of lag buy merges that are worth their fixed cost
MIN_ROWS = 10_000  # as in Binlog Load: an idle source is not held for the interval once this much waits
MIN_BYTES = 15 << 20  # the same, in bytes
MAX_BYTES = 64 << 20  # what one merge takes in about a second on two cores
MAX_ROWS = 20_000_000  # narrow rows: bytes alone would let a cycle grow very long
PARALLEL_TASKS = 8  # keeps two to four executors cores busy while some Tasks wait for the sink
TASK_BYTES = 16 << 20  # large enough for Arrow, small enough for several at once within the window
WINDOW_BYTES = 256 << 20  # two full cycles and the Tasks between them, on a 4 GiB machine
MERGE_BYTES = 1 << 30  # a quarter of a 4 GiB machine; the rest is the driver's, the JVM's and the workers'
TURN_S = 5.0  # the stream lags by two or three times that while tables are loaded
READERS = 4  # as many as most servers spare beside their own work; never more than Spark has cores
STATUS_PORT = 8470
NAME_MOST = 40  # the shortest label limit of the sinks leaves this much for the job

_NAME = re.compile(rf"[a-z0-9_][a-z0-9_-]{{0,{NAME_MOST - 1}}}")
_OFFSET = re.compile(r"[+-](0\d|1[0-4]):[0-5]\d")


class Tls(Model):
    """How the connection to MySQL is guarded."""

    mode: Annotated[Literal["off", "required", "verify_ca", "verify_identity"], BeforeValidator(switch)] = (
        "verify_identity"
    )
    ca: PathText | None = None  # file of certificates; None: the machine's own
    public_key: PathText | None = None  # file with the server's RSA key, for logins without TLS

    @model_validator(mode="after")
    def _files_exist(self) -> Tls:
        for key, file in (("ca", self.ca_file), ("public_key", self.public_key_file)):
            if file is not None and not Path(file).is_file():
                raise Misfit(key, f"there is no file {file}")
        if self.public_key is not None and self.mode != "off":
            raise Misfit("public_key", "is used without TLS only: set `mode: off`, or remove it")
        return self

    @property
    def public_key_file(self) -> str | None:
        """Absolute path of ``public_key``."""
        return None if self.public_key is None else self.located(self.public_key)

    @property
    def ca_file(self) -> str | None:
        """Absolute path of ``ca``."""
        return None if self.ca is None else self.located(self.ca)


class StartAtFile(Model):
    """Start at a place in a binlog file."""

    tag: ClassVar = "a file"
    file: Text
    offset: Annotated[int, Field(ge=FIRST_EVENT_OFFSET)] = FIRST_EVENT_OFFSET


class StartAtGtids(Model):
    """Start behind a set of transactions."""

    tag: ClassVar = "a GTID set"
    gtid_set: str

    @field_validator("gtid_set")
    @classmethod
    def _parses(cls, value: str) -> str:
        from cdc.position import parse_gtid_set

        parse_gtid_set(value)
        return value


def _start_tag(value: object) -> str:
    if isinstance(value, dict):
        return StartAtGtids.tag if "gtid_set" in value else StartAtFile.tag
    return value.tag if isinstance(value, StartAtFile | StartAtGtids) else "a word"


Start = Annotated[
    Annotated[Literal["snapshot", "latest", "earliest"], Tag("a word")]
    | Annotated[StartAtFile, Tag(StartAtFile.tag)]
    | Annotated[StartAtGtids, Tag(StartAtGtids.tag)],
    Discriminator(_start_tag),
]


class MysqlServer(Model):
    """How to reach a MySQL server."""

    host: Text | None = None
    port: Port = MYSQL_PORT
    socket: PathText | None = None  # path of a Unix socket, in place of host and port
    username: Text
    password: SecretStr = SecretStr("")
    tls: Tls = Tls(mode="off")  # a server on this machine is the common case; see docs/operations.md for others

    @model_validator(mode="after")
    def _host_or_socket(self) -> Self:
        if self.host is None and self.socket is None:
            raise Misfit("host", "is required, or `socket`, the path of a Unix socket")
        if self.socket is not None and (self.host is not None or "port" in self.model_fields_set):
            raise Misfit("socket", "is given in place of `host` and `port`: remove them or it")
        return self

    @property
    def socket_file(self) -> str | None:
        """Absolute path of ``socket``."""
        return None if self.socket is None else self.located(self.socket)

    @property
    def server(self) -> str:
        """``host:port``, or the path of the socket."""
        return self.socket_file or f"{self.host}:{self.port}"


class BinlogSource(MysqlServer):
    """The raw binlog of a MySQL or MariaDB server."""

    tag: ClassVar = "binlog"
    type: Literal["binlog"]
    server_id: Annotated[int, Field(ge=1, le=(1 << 32) - 1)] | None = None  # None: derived from job and host
    start: Start = "snapshot"


class FileSchema(Model):
    """What the tables of binlog files are at the end of the files, where rows do not tell."""

    file: PathText | None = None  # CREATE TABLE statements
    database: Text | None = None  # of statements before the first USE
    mysql: MysqlServer | None = None  # a server that has the tables

    @model_validator(mode="after")
    def _one_way(self) -> FileSchema:
        if bool(self.file) == (self.mysql is not None):
            raise Misfit("file", "either `file` or `mysql` is required, and not both")
        if self.database and not self.file:
            raise Misfit("database", "belongs to `file`")
        if self.statements is not None and not Path(self.statements).is_file():
            raise Misfit("file", f"there is no file {self.statements}")
        return self

    @property
    def statements(self) -> str | None:
        """``file`` made absolute."""
        return None if self.file is None else self.located(self.file)


class BinlogFilesSource(Model):
    """Binlog files on disk, read once to their end."""

    tag: ClassVar = "binlog_files"
    type: Literal["binlog_files"]
    path: PathText  # may hold wildcards
    table_schema: FileSchema | None = Field(None, alias="schema")  # pydantic has a `schema` of its own

    @property
    def location(self) -> str:
        """``path`` made absolute."""
        return self.located(self.path)


class CanalBuffer(Model):
    """The ring buffer as it is configured at the Canal server, which does not tell."""

    entries: Count = 16384
    unit_bytes: Count = 1024
    mode: Literal["MEMSIZE", "ITEMSIZE"] = "MEMSIZE"

    @field_validator("entries")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("must be a power of two, as canal.instance.memory.buffer.size is")
        return value


class CanalSource(Model):
    """A destination of a Canal server."""

    tag: ClassVar = "canal"
    type: Literal["canal"]
    servers: tuple[Address, ...] = ()
    zookeeper: Text | None = None
    destination: Text
    client_id: Annotated[int, Field(ge=1, le=32767)] = CANAL_CLIENT_ID
    username: str = ""
    password: SecretStr = SecretStr("")
    batch_size: Count = CANAL_BATCH_ENTRIES
    filter: str = ""  # empty: leave the server's own
    time_zone: str = "+00:00"  # of the Canal server's JVM
    buffer: CanalBuffer = CanalBuffer()
    start: Literal["snapshot", "cursor"] = "cursor"  # all rows first, or alone what the server's cursor is before
    mysql: MysqlServer | None = None  # schemas, enum labels, patterns, create_tables, snapshots

    @model_validator(mode="after")
    def _one_way(self) -> CanalSource:
        if bool(self.servers) == bool(self.zookeeper):
            raise Misfit("servers", "either `servers` or `zookeeper` is required, and not both")
        if self.start == "snapshot" and self.mysql is None:
            raise Misfit("start", "`snapshot` reads the rows from `mysql:`, which is missing")
        return self

    @field_validator("time_zone")
    @classmethod
    def _fixed_offset(cls, value: str) -> str:
        if not _OFFSET.fullmatch(value):
            raise ValueError('must be a fixed offset in quotes, such as "+08:00"')
        return value

    @property
    def zone_us(self) -> int:
        """``time_zone`` in microseconds ahead of UTC."""
        minutes = int(self.time_zone[1:3]) * 60 + int(self.time_zone[4:6])
        return (-minutes if self.time_zone[0] == "-" else minutes) * 60_000_000


class DeltaSink(Model):
    """Delta tables in a folder."""

    tag: ClassVar = "delta"
    type: Literal["delta"]
    path: PathText
    create_tables: bool = True
    retention: Seconds = RETENTION_S

    @property
    def location(self) -> str:
        """``path`` made absolute."""
        return self.located(self.path)


class TargetTables(Model):
    """How Doris and StarRocks lay out a table that the job creates."""

    buckets: Literal["auto"] | Count = "auto"
    replication: Count = 1
    properties: dict[str, Annotated[str, BeforeValidator(setting)]] = Field(default_factory=dict)


class ChannelTable(Model):
    """The same for one channel; None: as the sink says."""

    buckets: Literal["auto"] | Count | None = None
    replication: Count | None = None
    properties: dict[str, Annotated[str, BeforeValidator(setting)]] = Field(default_factory=dict)
    partition: Text | None = None


class ClusterTimeouts(Model):
    """How long a cluster may take."""

    connect: Seconds = CONNECT_S
    load: Seconds = LOAD_S  # from the last byte sent to the answer


class ClusterSink(Model):
    """What the two database clusters have in common."""

    fe: Annotated[tuple[Address, ...], BeforeValidator(filled)]
    sql_port: Port = SQL_PORT
    username: Text
    password: SecretStr = SecretStr("")
    create_tables: bool = True
    tables: TargetTables = TargetTables()
    timeouts: ClusterTimeouts = ClusterTimeouts()
    connections: Count = CONNECTIONS  # requests at once to one host, of the driver and of each executor process


class DorisSink(ClusterSink):
    """Unique-key tables of Apache Doris."""

    tag: ClassVar = "doris"
    type: Literal["doris"]
    two_phase_commit: bool = True
    be: Annotated[tuple[Address, ...], BeforeValidator(filled)] = ()  # where they are, if not where the FE says
    compression: Annotated[Literal["off", "lz4"], BeforeValidator(switch)] = "off"


class StarrocksSink(ClusterSink):
    """Primary-key tables of StarRocks."""

    tag: ClassVar = "starrocks"
    type: Literal["starrocks"]
    multi_table: Annotated[Literal["auto", "on", "off"], BeforeValidator(switch)] = "auto"


class Channel(Model):
    """One source table to one target table, or with one ``*`` on each side all tables of a database.

    Names are written as ``cdc.names`` has it. A channel that names a table takes precedence over a pattern.
    """

    source: str
    target: str
    key: Annotated[tuple[Text, ...] | None, BeforeValidator(filled)] = None  # None: the primary key
    columns: Annotated[dict[Text, Text] | None, BeforeValidator(filled)] = (
        None  # target column -> Spark SQL; None: all by name
    )
    filter: Text | None = None
    tables: ChannelTable | None = None
    exclude: Annotated[tuple[Text, ...] | None, BeforeValidator(filled)] = None  # of a pattern: names and * patterns

    @field_validator("source")
    @classmethod
    def _source_name(cls, value: str) -> str:
        return str(parse_table(value))

    @field_validator("target")
    @classmethod
    def _target_name(cls, value: str) -> str:
        name = parse_table(value)
        if "." in name.database or "*" in name.database or (name.plain.count("*") > (name.tail is not None)):
            raise ValueError("must have no dot in its database and no * in backticks: no sink takes such a name")
        return str(name)

    @field_validator("exclude")
    @classmethod
    def _excluded_names(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for one in value or ():
            parse_excluded(one)
        return value

    @model_validator(mode="after")
    def _excludes_from_a_pattern(self) -> Channel:
        if self.exclude and not parse_table(self.source).is_pattern:
            raise Misfit("exclude", "is for a channel with a * in its source; this one names its table")
        return self

    @field_validator("key")
    @classmethod
    def _once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value and len(set(value)) < len(value):
            raise ValueError(f"names {Counter(value).most_common(1)[0][0]} twice")
        return value


class Commit(Model):
    """When a cycle closes."""

    interval: Seconds = INTERVAL_S
    max_bytes: Bytes = MAX_BYTES
    max_rows: Count = MAX_ROWS
    min_rows: Count = Field(default_factory=lambda known: min(MIN_ROWS, known.get("max_rows", MAX_ROWS)))
    min_bytes: Bytes = Field(default_factory=lambda known: min(MIN_BYTES, known.get("max_bytes", MAX_BYTES)))

    @model_validator(mode="after")
    def _ordered(self) -> Commit:
        if self.max_bytes < self.min_bytes:
            raise Misfit("max_bytes", f"must not be below min_bytes ({self.min_bytes} bytes)")
        if self.max_rows < self.min_rows:
            raise Misfit("max_rows", f"must not be below min_rows ({self.min_rows})")
        return self


class Tasks(Model):
    """How much is loaded at once."""

    parallel: Annotated[int, Field(ge=1, le=256)] = PARALLEL_TASKS  # over all channels
    max_bytes: Bytes = TASK_BYTES  # rows a Task takes


class Memory(Model):
    """What may be held in memory."""

    window: Bytes = WINDOW_BYTES  # rows handed out and in no started Task's hands
    merge: Bytes = MERGE_BYTES  # of one merge in the Delta sink


class Snapshot(Model):
    """How the rows are read that are already there."""

    turn: Seconds = TURN_S  # how long the stream waits at a time
    readers: Annotated[int, Field(ge=1, le=64)] = READERS  # connections to MySQL at once
    rows_per_second: Count | None = None  # over all readers; None: as fast as it goes
    bytes_per_second: Bytes | None = None


class Spark(Model):
    """Which Spark the Tasks run on."""

    master: Text | None = None  # None: local[*], unless remote says where
    remote: Text | None = None  # sc://host:port of a Spark Connect server
    conf: dict[str, Annotated[str, BeforeValidator(setting)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_place(self) -> Spark:
        if self.master and self.remote:
            raise Misfit("remote", "cannot stand beside `master`: a job runs on one Spark")
        return self


class StatusAddress(Model):
    """Where the status endpoint listens."""

    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = STATUS_PORT  # 0: any free one
    token: SecretStr | None = None  # None: a random one in the job's state folder

    @model_validator(mode="after")
    def _guarded(self) -> StatusAddress:
        if not is_loopback(self.host) and not (self.token and self.token.get_secret_value()):
            others = "is not a loopback address, so `token` is required: anybody who reaches it could stop the job"
            raise Misfit("host", others)
        return self


class Config(Model):
    """One job file."""

    name: str
    source: BinlogSource | CanalSource | BinlogFilesSource = Field(discriminator="type")
    sink: DeltaSink | DorisSink | StarrocksSink = Field(discriminator="type")
    channels: Annotated[tuple[Channel, ...], BeforeValidator(filled)]
    commit: Commit = Commit()
    tasks: Tasks = Tasks()
    memory: Memory = Memory()
    snapshot: Snapshot = Snapshot()
    spark: Spark = Spark()
    status: StatusAddress = StatusAddress()

    @field_validator("name")
    @classmethod
    def _usable_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError(f"must be made of a-z, 0-9, - and _, at most {NAME_MOST} of them, not starting with -")
        return value

    def secrets(self) -> tuple[str, ...]:
        """Every secret that the file holds, for the filter that keeps them out of logs and reasons.

        None that is the name of a user as well (Canal comes with canal, canal): names are shown.
        """
        named = [*self.spark.conf.items(), *_parameters(self.spark.remote or "")]
        settings = (value for name, value in named if SECRET_SETTING.search(name))
        return tuple({*_secrets(self), *settings} - {"", *_usernames(self)})


def load_config(path: Path) -> Config:
    """Read and validate a job file.

    Raises: ConfigError - with every fault: file, line, path and what is wrong.
    """
    try:
        file = path.expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(
            f"The job file cannot be read: {NO_HOME}.", mend="Name a readable YAML file.", file=path
        ) from error
    root, faults = read_job_file(file)
    config = None
    try:
        config = Config.model_validate(root.plain() if root else {}, context={"file": file})
    except ValidationError as error:
        if root is not None:
            faults += explain(error, root, Config)
    if root is not None:
        faults += crossing(root)
        if config is not None and config.memory.window < config.tasks.max_bytes:
            told = f"must hold at least one Task: tasks.max_bytes is {config.tasks.max_bytes} bytes"
            faults.append(Fault(root.line_of(("memory", "window")), ("memory", "window"), told))
    if faults or config is None:
        lines = [fault.told(path.name) for fault in sorted(faults, key=lambda one: one.line)]
        count = "1 fault" if len(lines) == 1 else f"{len(lines)} faults"
        raise ConfigError(
            "\n".join([f"{path} has {count}:", *(f"  {line}" for line in lines)]) + "\n",
            mend=f"Nothing was started. Mend the file, then run `cdc check {path}`.",
        )
    return config


def _parameters(remote: str) -> Iterator[tuple[str, str]]:
    """Of ``sc://host:port/;name=value;...``: values as they stand, and as Spark reads them."""
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


def _secrets(model: BaseModel) -> Iterator[str]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, SecretStr):
            yield value.get_secret_value()
        elif isinstance(value, BaseModel):
            yield from _secrets(value)
