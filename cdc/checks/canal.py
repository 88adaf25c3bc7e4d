"""Checks of `cdc check` for a Canal source: the server, commit limits and ring buffer, columns that Canal cannot read.

Every check runs, and every finding has a hint. The checks change nothing: they send no rollback and no filter, because
both would affect a running job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc.checks.mysql import finding_of
from cdc.errors import SourceUnavailable
from cdc.model.schema import Kind, TableSchema
from cdc.mysql.server import Server
from cdc.sources.canal.client import CanalClient
from cdc.sources.canal.fetcher import HALF, Ring
from cdc.sources.canal.value_parsers import NOT_ASCII
from channels.sinks.base import Finding

_UTF8 = ("utf8mb4", "utf8mb3", "ascii", "")
_TEXTS = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT)
_UNREADABLE = (Kind.VECTOR, Kind.UUID, Kind.INET4, Kind.INET6)


def canal_findings(
    client: CanalClient, *, filter: str, patterns: bool, create_tables: bool, mysql: bool
) -> Iterator[Finding]:
    """Yield a finding if the destination is not usable, and for each key of the job file that Canal cannot serve."""
    try:
        client.probe()
    except SourceUnavailable as error:
        yield finding_of(error)
    if filter:
        yield Finding(
            f"source.filter {filter!r} permanently replaces the filter of the destination, for every client.",
            'Set filter: "", so that canal.instance.filter.regex of the Canal server applies.',
            fatal=False,
        )
    if patterns and not mysql:
        yield Finding(
            "A pattern in `channels` needs the list of tables, which Canal does not have.",
            "Add source.mysql, or name each table.",
        )
    if create_tables and not mysql:
        yield Finding(
            "create_tables needs comments, charsets and NOT NULL of the source columns, which Canal does not send.",
            "Add source.mysql, or set create_tables: false.",
        )


def ring_findings(ring: Ring, *, min_bytes: int, max_bytes: int) -> Iterator[Finding]:
    """Compare the commit limits with the ring buffer of the server, which keeps entries until they are acknowledged."""
    size = ring.entries * ring.unit_bytes
    if ring.mode == "ITEMSIZE":
        return  # the ring counts entries, not bytes
    if min_bytes >= size:
        yield Finding(
            f"commit.min_bytes ({min_bytes}) is not below the {size} bytes of the Canal ring buffer: an idle cycle "
            "would wait for more bytes than the buffer can hold.",
            f"Set commit.min_bytes below {size}, or enlarge canal.instance.memory.buffer.size and source.buffer.",
            fatal=False,
        )
    if max_bytes <= size:
        yield Finding(
            f"commit.max_bytes ({max_bytes}) is not above the {size} bytes of the Canal ring buffer: cycles close "
            "earlier than the buffer requires.",
            f"Set commit.max_bytes above {size}; a cycle closes automatically when {int(size * HALF)} bytes are not "
            "acknowledged.",
            fatal=False,
        )


def source_findings(server: Server, tables: Sequence[tuple[TableSchema, frozenset[str]]]) -> Iterator[Finding]:
    """Yield settings and columns with which Canal sends values that differ from the written ones."""
    if "PARTIAL_JSON" in server.settings.get("binlog_row_value_options", "").upper():
        yield Finding(
            "binlog_row_value_options has PARTIAL_JSON: Canal sends JSON updates as expressions, not as documents.",
            "Run SET PERSIST binlog_row_value_options = ''.",
        )
    for name, needs in (
        ("binlog_transaction_compression", "1.1.7 and canal.instance.parser.parallel=true"),
        ("log_bin_compress", "1.1.7"),
    ):
        if server.settings.get(name, "").upper() in ("ON", "1"):
            yield Finding(
                f"{name} is ON. A Canal server without {needs} leaves out compressed rows without an error.",
                f"Run SET GLOBAL {name} = OFF, or make sure that Canal has {needs}.",
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
            f"Canal's text of a JSON document differs from the written one: {', '.join(documents)}. Numbers may lose "
            "digits, a DATE becomes a date with time, and opaque values become raw bytes.",
            "Use a binlog source if such values matter; otherwise no action is needed.",
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
                    f"Canal reads {table.name}.{column.name} as UTF-8, but its bytes are {column.charset}.",
                    "Convert the column to utf8mb4, leave it out of `columns`, or use a binlog source.",
                )
            elif column.kind in _TEXTS and column.charset not in _UTF8:
                yield Finding(
                    f"Canal reads {table.name}.{column.name} as UTF-8, but it is {column.charset}: a value that is not "
                    "plain ASCII pauses the job.",
                    "Convert the column to utf8mb4, leave it out of `columns`, or use a binlog source.",
                    fatal=False,
                )
