"""Models of the key ``source`` of a job file: one class per source type."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, SecretStr, Tag, field_validator, model_validator

from cdc.config.connection_models import MysqlServer
from cdc.config.fields import Address, Count, Model, PathText, PlainAddress, Text, fixed_offset, zone_us
from cdc.config.loader import CrossFieldError
from cdc.files import reading_problem

CANAL_CLIENT_ID = 1001  # Canal's default; a destination has one client
CANAL_BATCH_ENTRIES = 8192  # half of Canal's default ring buffer: Canal fills one half while the job loads the other
EXAMPLE_UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
FIRST_EVENT_OFFSET = 4  # a binlog file starts with four magic bytes


class StartAtFile(Model):
    """Start at a position in a binlog file."""

    tag: ClassVar = "a file"
    file: Text = Field(description="Name of the binlog file, such as `mysql-bin.000042`.")
    offset: Annotated[int, Field(ge=FIRST_EVENT_OFFSET)] = Field(
        default=FIRST_EVENT_OFFSET,
        description="Offset of the first event to read. It must be the start of a transaction.",
    )


class StartAtGtids(Model):
    """Start after a set of transactions."""

    tag: ClassVar = "a GTID set"
    gtid_set: str = Field(description="Transactions that are already in the target. The job reads the others.")

    @field_validator("gtid_set")
    @classmethod
    def _parses(cls, value: str) -> str:
        from cdc.model.gtid import parse_gtid_set

        try:
            parse_gtid_set(value)
        except ValueError:  # its message repeats a part of the value, which may be that of a variable
            raise ValueError(
                f'must be a GTID set in quotes, such as "{EXAMPLE_UUID}:1-5", or "0-1-10" of MariaDB'
            ) from None
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


class BinlogSourceConfig(MysqlServer):
    """The raw binlog of a MySQL or MariaDB server."""

    tag: ClassVar = "binlog"
    type: Literal["binlog"] = Field(description="Read the binary log of a MySQL or MariaDB server.")
    server_id: Annotated[int, Field(ge=1, le=(1 << 32) - 1)] | None = Field(
        default=None,
        description=(
            "Server id of the job among the replicas of the server. No other reader may use it. Default: "
            "derived from the job name and the host."
        ),
    )
    start: Start = Field(
        default="snapshot",
        description=(
            "Where a new job starts: `snapshot` (all rows, then all changes), `latest`, `earliest`, a file "
            "and offset, or a GTID set."
        ),
    )


class FileSchema(Model):
    """Column definitions at the end of binlog files, for servers that write no metadata into the rows."""

    file: PathText | None = Field(
        default=None, description="File with CREATE TABLE statements, as `mysqldump --no-data` prints them."
    )
    database: Text | None = Field(
        default=None, description="Database of the statements before the first USE in `file`."
    )
    mysql: MysqlServer | None = Field(
        default=None, description="Server that has the tables. SELECT privilege is enough; its binary log is not read."
    )

    @model_validator(mode="after")
    def _one_way(self) -> FileSchema:
        if bool(self.file) == (self.mysql is not None):
            raise CrossFieldError("file", "either `file` or `mysql` is required, and not both")
        if self.database and not self.file:
            raise CrossFieldError("database", "is used only together with `file`")
        if self.statements is not None and (problem := reading_problem(Path(self.statements))):
            raise CrossFieldError("file", problem)
        return self

    @property
    def statements(self) -> str | None:
        """Absolute path of ``file``."""
        return None if self.file is None else self.located(self.file)


class BinlogFilesSourceConfig(Model):
    """Binlog files on disk, read once to their end."""

    tag: ClassVar = "binlog_files"
    type: Literal["binlog_files"] = Field(description="Read binlog files from a disk once, to their end.")
    path: PathText = Field(description="Path of the files. `*`, `?` and `[...]` are wildcards.")
    table_schema: FileSchema | None = Field(
        default=None,
        alias="schema",
        description=(
            "Where the column definitions are, if the rows in the files do not contain them. The definitions "
            "are those at the end of the files."
        ),
    )

    @property
    def location(self) -> str:
        """Absolute path of ``path``."""
        return self.located(self.path)


class CanalBuffer(Model):
    """Ring buffer settings of the Canal server, which does not report them."""

    entries: Count = Field(
        default=16384, description="`canal.instance.memory.buffer.size` of the Canal server, a power of two."
    )
    unit_bytes: Count = Field(default=1024, description="`canal.instance.memory.buffer.memunit` of the Canal server.")
    mode: Literal["MEMSIZE", "ITEMSIZE"] = Field(
        default="MEMSIZE", description="`canal.instance.memory.batch.mode` of the Canal server."
    )

    @field_validator("entries")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("must be a power of two, as canal.instance.memory.buffer.size is")
        return value


class CanalSourceConfig(Model):
    """A destination of a Canal server."""

    tag: ClassVar = "canal"
    type: Literal["canal"] = Field(description="Read from a destination of a Canal server.")
    servers: tuple[Address, ...] = Field(
        default=(), description="Addresses of the Canal servers, as `host:port`. Give either `servers` or `zookeeper`."
    )
    zookeeper: PlainAddress | None = Field(
        default=None, description="Addresses of the ZooKeeper ensemble that lists the Canal servers."
    )
    destination: Text = Field(description="Name of the Canal destination. One destination serves one job.")
    client_id: Annotated[int, Field(ge=1, le=32767)] = Field(
        default=CANAL_CLIENT_ID, description="Client id of the job at the Canal server."
    )
    username: str = Field(default="", description="User of the Canal server.")
    password: SecretStr = Field(default=SecretStr(""), description="Password of this user.")
    batch_size: Count = Field(
        default=CANAL_BATCH_ENTRIES,
        description=(
            "How much the server sends for one request: KiB in the batch mode `MEMSIZE`, entries in "
            "`ITEMSIZE`. It is limited to an eighth of the ring buffer."
        ),
    )
    filter: str = Field(
        default="",
        description=(
            "Table filter that replaces the filter of the Canal server, for all its clients. Empty: the "
            "server keeps its filter."
        ),
    )
    time_zone: str = Field(
        default="+00:00",
        description=(
            "UTC offset of the JVM of the Canal server. The offset must be fixed: a zone with summer time is ambiguous."
        ),
    )
    buffer: CanalBuffer = Field(
        default=CanalBuffer(), description="Ring buffer of the Canal server. The server does not report these settings."
    )
    start: Literal["snapshot", "cursor"] = Field(
        default="cursor",
        description=(
            "Where a new job starts: `cursor` (the position of the Canal destination) or `snapshot` (all rows "
            "first; needs `mysql`)."
        ),
    )
    mysql: MysqlServer | None = Field(
        default=None,
        description=(
            "The MySQL server that Canal reads from. It is needed for snapshots, wildcards and "
            "`create_tables`, and gives the exact table definitions."
        ),
    )

    @model_validator(mode="after")
    def _one_way(self) -> CanalSourceConfig:
        if bool(self.servers) == bool(self.zookeeper):
            raise CrossFieldError("servers", "either `servers` or `zookeeper` is required, and not both")
        if self.start == "snapshot" and self.mysql is None:
            raise CrossFieldError("start", "`snapshot` reads the rows from `mysql:`, which is missing")
        return self

    @field_validator("time_zone")
    @classmethod
    def _fixed_offset(cls, value: str) -> str:
        return fixed_offset(value)

    @property
    def zone_us(self) -> int:
        """``time_zone`` in microseconds ahead of UTC."""
        return zone_us(self.time_zone)
