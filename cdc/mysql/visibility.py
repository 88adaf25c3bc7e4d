"""Wait until queries see all transactions that the stream has delivered.

A server sends a transaction to binlog readers shortly before other sessions see its rows. A chunk that is read in
between lacks these rows, and the stream does not deliver them again. So does a chunk from a server that answers at the
same address after a failover, and has not applied all transactions of the earlier one yet. In the same way, a table has
its old columns for a moment after the stream has delivered the statement that changes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from cdc.errors import SourceUnavailable
from cdc.model.gtid import GtidSet, MariadbGtidSet, parse_gtid_set
from cdc.model.position import Position
from cdc.model.schema import TableSchema
from cdc.mysql.catalog import table_schemas
from cdc.mysql.server import Server

TIMEOUT_S = 5.0
_POLL_S = 0.005
_WITHOUT_GTIDS_S = 1.0  # a commit in the binlog becomes visible within milliseconds; the server does not report when
_SEMI_SYNC_POLL_S = 0.1


def is_visible(server: Server, position: Position, timeout_s: float = TIMEOUT_S) -> bool:
    """Wait until queries see every transaction up to ``position``. Return False after ``timeout_s``.

    MySQL with GTIDs reports which transactions are visible or still being committed. MariaDB reports the binlog
    position of a consistent snapshot. MySQL without GTIDs reports neither, so wait for 1 s, and until no commit waits
    for a replica. A commit that takes longer for another reason is not noticed.
    """
    deadline = time.monotonic() + timeout_s
    if server.mariadb:
        return _has_followed(server, position, deadline) and _is_visible_mariadb(server, deadline)
    if not server.gtids:
        return _has_passed_semi_sync(server, deadline)
    seen = parse_gtid_set(str(getattr(position, "gtid_set", "")))
    if isinstance(seen, GtidSet) and seen:
        while not GtidSet.parse(server.executed()).contains(seen):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True
    committing = _owned(server)
    while committing & _owned(server):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def schemas_after(
    server: Server,
    names: Sequence[tuple[str, str]],
    position: Position,
    is_visible_in: Callable[[Mapping[tuple[str, str], TableSchema]], bool] = lambda found: False,
) -> Mapping[tuple[str, str], TableSchema]:
    """Return the tables as ``server`` describes them, with what all statements up to ``position`` have changed.

    ``is_visible_in``: returns whether the tables show the last of these statements, so that no wait is needed.
    Raises: SourceUnavailable.
    """
    found = table_schemas(server, names)
    if is_visible_in(found):
        return found
    wait_until_visible(server, position)
    return table_schemas(server, names)


def wait_until_visible(server: Server, position: Position) -> None:
    """Wait until queries see every statement up to ``position``. Raises: SourceUnavailable - not within 5 s."""
    if not is_visible(server, position):
        raise SourceUnavailable(
            "The source still describes its tables as they were before a statement that it has logged.",
            hint="The job repeats the query automatically.",
            server=server.endpoint,
            position=position,
        )


def refuse_other_server(server: Server, planned_on: str) -> None:
    """Raise SourceUnavailable if ``server`` is not the one for which ``is_visible`` was asked.

    The rows that were read in between may be those of the other server, and older than the position.
    """
    if server.identity != planned_on:
        raise SourceUnavailable(
            "Another server answers at the address of the source than when rows were planned to be read.",
            hint="The job reads the rows again automatically.",
            server=server.endpoint,
            expected=planned_on,
            found=server.identity,
        )


def _has_followed(server: Server, position: Position, deadline: float) -> bool:
    """Wait until a MariaDB server has the transactions that the stream has read from another one."""
    seen = parse_gtid_set(str(getattr(position, "gtid_set", "")))
    if getattr(position, "server", "") in ("", server.identity) or not isinstance(seen, MariadbGtidSet):
        return True
    while not server.has_done(seen):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _has_passed_semi_sync(server: Server, deadline: float) -> bool:
    """Wait at least 1 s, and until the commits that wait for the acknowledgement of a replica are visible.

    With AFTER_SYNC, the server sends a group of commits to binlog readers, waits for a replica (10 s by default), and
    makes the group visible then. One group after the other waits, in the order of the binlog. Between two groups none
    waits for a moment. A count of 0 is therefore no proof until 1 s passes in which no group waits or ends. On a server
    on which groups always wait, it is enough that more of them end than wait at first: the next group, whose commits
    the stream may have already, and one more.
    """
    waiting, ended = last = _semi_sync(server)
    unchanged_since = time.monotonic()
    while True:
        time.sleep(_SEMI_SYNC_POLL_S)
        waiting_now, ended_now = now = _semi_sync(server)
        if ended_now - ended > max(1, waiting) + 1:
            time.sleep(_WITHOUT_GTIDS_S)
            return True
        if now != last:
            last, unchanged_since = now, time.monotonic()
        elif not waiting_now and time.monotonic() - unchanged_since >= _WITHOUT_GTIDS_S:
            return True
        if time.monotonic() > deadline:
            return False


def _semi_sync(server: Server) -> tuple[int, int]:
    """Return how many commits wait for a replica, and how many have ended, with or without its acknowledgement."""
    values = {
        str(row["Variable_name"]).lower().replace("_master_", "_source_"): row["Value"]
        for row in server.ask("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%'")
    }
    waiting, yes, no = (
        int(values.get(f"rpl_semi_sync_source_{name}", 0)) for name in ("wait_sessions", "yes_tx", "no_tx")
    )
    return waiting, yes + no


def _owned(server: Server) -> set[tuple[str, str]]:
    """Return the GTIDs of transactions that are being committed. The server sends ``uuid:4#12:5#13,uuid:tag:1#14``."""
    value = server.ask("SELECT @@GLOBAL.gtid_owned AS gtids")[0]["gtids"]
    text = value.decode() if isinstance(value, bytes) else str(value or "")
    found = set()
    for group in text.replace("\n", "").split(","):
        origin, *context = group.strip().split(":")
        for part in context:
            number, owner, _ = part.partition("#")
            if owner:
                found.add((origin, number))
            else:
                origin = f"{origin.split(':')[0]}:{part}"
    return found


def _is_visible_mariadb(server: Server, deadline: float) -> bool:
    end = server.position()
    while True:
        server.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        rows = server.ask("SHOW STATUS LIKE 'binlog_snapshot_%%'")
        server.ask("ROLLBACK")
        status = {row["Variable_name"].lower(): row["Value"] for row in rows}
        file, offset = status.get("binlog_snapshot_file", ""), status.get("binlog_snapshot_position", "")
        if file and (_number(file), int(offset)) >= (_number(end.file), end.offset):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])
