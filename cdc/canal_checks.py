"""What `cdc check` looks at around a Canal source: the server, the knobs against its ring, what Canal cannot read.

Every check runs, and every finding ends in its mend. Nothing is changed: no rollback is sent, and no filter, since
either would be felt by a job that runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc.binlog.server import Server
from cdc.canal.client import CanalClient
from cdc.canal.entries import NOT_ASCII
from cdc.errors import SourceUnavailable
from cdc.receiver.fetching import HALF, Ring
from cdc.schema import Kind, TableSchema
from channels.sinks.base import Finding

_UTF8 = ("utf8mb4", "utf8mb3", "ascii", "")
_TEXTS = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT)
_UNREADABLE = (Kind.VECTOR, Kind.UUID, Kind.INET4, Kind.INET6)


def canal_findings(
    client: CanalClient, *, filter: str, patterns: bool, create_tables: bool, mysql: bool
) -> Iterator[Finding]:
    """Whether the destination can be used, and what the job asks of it that it cannot give."""
    try:
        client.probe()
    except SourceUnavailable as error:
        yield Finding(str(error), error.mend)
    if filter:
        yield Finding(
            f"source.filter {filter!r} replaces the filter of the whole destination, for every client, and stays.",
            'Set filter: "" and let the Canal server\'s own canal.instance.filter.regex decide.',
            fatal=False,
        )
    if patterns and not mysql:
        yield Finding(
            "A pattern in `channels` needs the list of tables, and Canal has none.",
            "Add source.mysql, or name each table.",
        )
    if create_tables and not mysql:
        yield Finding(
            "create_tables needs comments, charsets and NOT NULL of the source, which Canal does not tell.",
            "Add source.mysql, or set create_tables: false.",
        )


def ring_findings(ring: Ring, *, min_bytes: int, max_bytes: int) -> Iterator[Finding]:
    """The commit knobs against the server's ring, which holds everything until it is acked."""
    size = ring.entries * ring.unit_bytes
    if ring.mode == "ITEMSIZE":
        return  # the ring counts entries; nothing can be said about bytes
    if min_bytes >= size:
        yield Finding(
            f"commit.min_bytes ({min_bytes}) is not below the Canal ring's {size} bytes: an idle cycle would wait for "
            "more than the ring can hold.",
            f"Set commit.min_bytes below {size}, or enlarge canal.instance.memory.buffer.size and source.buffer.",
            fatal=False,
        )
    if max_bytes <= size:
        yield Finding(
            f"commit.max_bytes ({max_bytes}) is not above the Canal ring's {size} bytes: cycles close before the ring "
            "makes them.",
            f"Set commit.max_bytes above {size}; a cycle closes by itself once {int(size * HALF)} bytes are not acked.",
            fatal=False,
        )


def source_findings(server: Server, tables: Sequence[tuple[TableSchema, frozenset[str]]]) -> Iterator[Finding]:
    """Settings, and columns that are read, from which Canal makes other values than were written."""
    if "PARTIAL_JSON" in server.settings.get("binlog_row_value_options", "").upper():
        yield Finding(
            "binlog_row_value_options has PARTIAL_JSON: Canal gives JSON updates as expressions and not as documents.",
            "Run SET PERSIST binlog_row_value_options = ''.",
        )
    for name, needs in (
        ("binlog_transaction_compression", "1.1.7 and canal.instance.parser.parallel=true"),
        ("log_bin_compress", "1.1.7"),
    ):
        if server.settings.get(name, "").upper() in ("ON", "1"):
            yield Finding(
                f"{name} is ON, and a Canal without {needs} leaves out compressed rows and says nothing.",
                f"Run SET GLOBAL {name} = OFF, or see that Canal has {needs}.",
                fatal=False,
            )
    documents = [
        f"{table.name}.{column.name}"
        for table, read in tables
        for column in table.columns
        if column.kind is Kind.JSON and column.name in read
    ]
    if documents:
        yield Finding(
            f"Canal's text of a JSON document differs from what was written: {', '.join(documents)}. Numbers may lose "
            "digits, a DATE becomes a date with time, and opaque values become raw bytes.",
            "Use a binlog source where such values matter; otherwise nothing is to be done.",
            fatal=False,
        )
    for table, read in tables:
        for column in table.columns:
            if column.name not in read:
                continue
            if column.kind in _UNREADABLE:
                yield Finding(
                    f"Canal cannot read {table.name}.{column.name}, a {column.kind.value.upper()}.",
                    "Leave the column out of `columns`, or use a binlog source.",
                )
            elif column.kind in _TEXTS and column.charset in NOT_ASCII:
                yield Finding(
                    f"Canal reads {table.name}.{column.name} as UTF-8, and its bytes are {column.charset}.",
                    "Convert the column to utf8mb4, leave it out of `columns`, or use a binlog source.",
                )
            elif column.kind in _TEXTS and column.charset not in _UTF8:
                yield Finding(
                    f"Canal reads {table.name}.{column.name} as UTF-8, and it is {column.charset}: whatever is not "
                    "plain ASCII pauses the job.",
                    "Convert the column to utf8mb4, leave it out of `columns`, or use a binlog source.",
                    fatal=False,
                )
