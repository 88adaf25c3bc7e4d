"""Whether a query sees everything that the stream has told of.

A server sends a transaction to its readers when it is in the binlog, a moment before other sessions see its rows. A
chunk read in between would miss them, and the stream, which is past them, would not bring them again.
"""

from __future__ import annotations

import time

from cdc.binlog.server import Server
from cdc.position import GtidSet, Position, parse_gtid_set

PATIENCE_S = 5.0
_POLL_S = 0.005
_WITHOUT_GTIDS_S = 1.0  # commits that are in the binlog finish within milliseconds; nothing tells when


def settled(server: Server, position: Position, patience_s: float = PATIENCE_S) -> bool:
    """Wait until queries see every transaction up to ``position``, which was received. False: not yet.

    MySQL with GTIDs tells which transactions are seen, or which are on their way; MariaDB where in the binlog a
    session's view stands. MySQL without GTIDs tells neither: a pause stands in for it.
    """
    deadline = time.monotonic() + patience_s
    if server.mariadb:
        return _mariadb_settled(server, deadline)
    if not server.gtids:
        time.sleep(_WITHOUT_GTIDS_S)
        return True
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


def _owned(server: Server) -> set[tuple[str, str]]:
    """GTIDs of transactions that are not yet seen: ``uuid:4#12:5#13,uuid:tag:1#14``."""
    value = server.ask("SELECT @@GLOBAL.gtid_owned AS gtids")[0]["gtids"]
    text = value.decode() if isinstance(value, bytes) else str(value or "")
    found = set()
    for group in text.replace("\n", "").split(","):
        origin, *parts = group.strip().split(":")
        for part in parts:
            number, owner, _ = part.partition("#")
            if owner:
                found.add((origin, number))
            else:
                origin = f"{origin.split(':')[0]}:{part}"
    return found


def _mariadb_settled(server: Server, deadline: float) -> bool:
    end = server.position()
    while True:
        server.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        rows = server.ask("SHOW STATUS LIKE 'binlog_snapshot_%%'")
        server.ask("ROLLBACK")
        place = {row["Variable_name"].lower(): row["Value"] for row in rows}
        file, offset = place.get("binlog_snapshot_file", ""), place.get("binlog_snapshot_position", "")
        if file and (_number(file), int(offset)) >= (_number(end.file), end.offset):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])
