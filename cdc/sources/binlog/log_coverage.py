"""Log coverage: check that a server's binlog has every change of the mapped tables, in a form that can be read.

Changes that a server does not log are missing in the targets without any error. Therefore each connection checks this,
and ``cdc check`` does too.

Source: MySQL manual, "Binary Logging Options and Variables"; MariaDB documentation, "Selectively Logging Replication
Events", "InnoDB-Based Binary Log".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cdc.errors import SourceActionRequired
from cdc.mysql.catalog import mapped_tables
from cdc.mysql.server import Server


def check_log_coverage(server: Server, maps: Callable[[str, str], bool]) -> None:
    """Raise SourceActionRequired if changes of mapped tables are not in the binlog, or the binlog cannot be read."""
    for gap in uncovered_tables(server, maps):
        raise gap


def uncovered_tables(server: Server, maps: Callable[[str, str], bool]) -> Iterator[SourceActionRequired]:
    """Yield an error for each setting that keeps changes out of the binlog. Raises: SourceUnavailable - a privilege."""
    engine = server.settings.get("binlog_storage_engine")
    if engine:
        yield SourceActionRequired(
            f"binlog_storage_engine is {engine}: this binlog has no files with offsets, which a job needs for its "
            "position.",
            hint="Remove binlog_storage_engine from the server's configuration and restart it, or read a replica "
            "without this setting and with log_slave_updates=ON.",
            server=server.endpoint,
        )
        return
    if not server.logs_replicated and server.replicates():
        yield SourceActionRequired(
            f"The server is a replica with {server.replicated_setting}=OFF: its binlog does not have the replicated "
            "changes.",
            hint=f"Set {server.replicated_setting}=ON in its configuration and restart it, or read the server that it "
            "replicates from. If it is no longer a replica, run RESET REPLICA ALL (RESET SLAVE ALL) on it.",
            server=server.endpoint,
        )
    only, never = server.log_filter()
    databases = {name[0] for name in mapped_tables(server, maps)} if only or never else set()
    for database in sorted(databases):
        if database not in only if only else database in never:
            yield SourceActionRequired(
                f"Database {database} is not in the binlog: the server "
                + (f"logs only {', '.join(sorted(only))}." if only else f"ignores {', '.join(sorted(never))}."),
                hint="Remove binlog_do_db and binlog_ignore_db from the server's configuration and restart it.",
                server=server.endpoint,
            )
