"""Whether a server's binlog holds every change of the mapped tables, in a form that can be read.

What a server does not log is missing in the targets without a trace, so every connection asks, not ``cdc check`` alone.

Source: MySQL manual, "Binary Logging Options and Variables"; MariaDB documentation, "Selectively Logging Replication
Events", "InnoDB-Based Binary Log".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cdc.binlog.catalog import mapped_tables
from cdc.binlog.server import Server
from cdc.errors import SourceBlocked


def refuse_unlogged(server: Server, maps: Callable[[str, str], bool]) -> None:
    """Raises: SourceBlocked - changes of mapped tables are not in the binlog, or it is no file of events."""
    for gap in unlogged(server, maps):
        raise gap


def unlogged(server: Server, maps: Callable[[str, str], bool]) -> Iterator[SourceBlocked]:
    """What the binlog lacks. Raises: SourceUnavailable - a privilege is missing."""
    engine = server.settings.get("binlog_storage_engine")
    if engine:
        yield SourceBlocked(
            f"binlog_storage_engine is {engine}: that binlog has no files and no offsets in them, by which jobs keep "
            "their position.",
            mend="Remove binlog_storage_engine from the server's configuration and restart it, or read a replica that "
            "is without it and has log_slave_updates=ON.",
            server=server.endpoint,
        )
        return
    if not server.logs_replicated and server.replicates():
        yield SourceBlocked(
            f"The server is a replica, and {server.replicated_setting} is OFF: what it replicates is not in its "
            "binlog.",
            mend=f"Set {server.replicated_setting}=ON in its configuration and restart it, or read the server that it "
            "replicates from. If it replicates no more, run RESET REPLICA ALL (RESET SLAVE ALL) there.",
            server=server.endpoint,
        )
    only, never = server.log_filter()
    databases = {name[0] for name in mapped_tables(server, maps)} if only or never else set()
    for database in sorted(databases):
        if database not in only if only else database in never:
            yield SourceBlocked(
                f"Database {database} is not in the binlog: the server "
                + (f"logs {', '.join(sorted(only))} alone." if only else f"leaves out {', '.join(sorted(never))}."),
                mend="Remove binlog_do_db and binlog_ignore_db from the server's configuration and restart it.",
                server=server.endpoint,
            )
