"""The position where reading begins: resolve ``source.start``, and check that a server can continue at a Position.

``resolve_start`` runs once in a job's life. ``resume_point`` runs at each connection: it finds out whether the server
is the one that the job has read, and whether it still has everything after the Position.

Source: MySQL manual, "Replication with GTID Auto-Positioning"; MariaDB knowledge base, "Global Transaction ID".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cdc.errors import GAP_OLDEST_HINT, ConfigError, PositionLost, ServerMismatch, SourceUnavailable
from cdc.model.gtid import AnyGtidSet, GtidSet, MariadbGtidSet, parse_gtid_set
from cdc.model.position import BinlogPosition, file_number
from cdc.mysql.server import Server
from cdc.sources.binlog.decoder import events
from cdc.sources.binlog.event_scan import first_event, scan
from cdc.sources.binlog.replication_stream import BEYOND_DUMP, ReaderIdentity

log = logging.getLogger(__name__)

_SCANS_MOST, _SCAN_PAUSE_S = 20, 0.25
FIRST_EVENT = 4  # offset of the first event, after the magic number of a binlog file
_HEADS = frozenset({events.ROTATE, events.FORMAT_DESCRIPTION, events.GTID_LIST, events.START_ENCRYPTION})
_RETENTION = f"{GAP_OLDEST_HINT} Set binlog_expire_logs_seconds to more than the longest expected stop of the job."
_INSIDE = frozenset(
    {events.XID, events.TABLE_MAP, events.PARTIAL_UPDATE, events.XA_PREPARE, events.ROWS_QUERY}
    | {events.TRANSACTION_PAYLOAD, events.INTVAR, events.RAND, events.USER_VAR}
    | {events.BEGIN_LOAD_QUERY, events.APPEND_BLOCK, events.EXECUTE_LOAD_QUERY}
    | set(range(events.WRITE_V1, events.DELETE_V1 + 1))
    | set(range(events.WRITE_V2, events.DELETE_V2 + 1))
    | set(events.COMPRESSED_ROWS)
)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """How reading continues after a Position at the server that answers now."""

    position: BinlogPosition
    by_gtid: bool  # by the GTID set alone, because file and offset are not valid on this server
    gtids_known: bool = False  # an empty GTID set is the set executed at the position, not an unknown one
    gap: bool = False  # changes between the requested position and this one are omitted


def resolve_start(server: Server, start: str | Mapping[str, object], identity: ReaderIdentity) -> BinlogPosition:
    """Return the Position that ``start`` means now: latest, earliest, {file, offset} or {gtid_set}.

    A snapshot also begins at ``latest``. The GTID set of the Position is exact, so that a failover can use it.
    Calls: once in a job's life; may read one binlog file.
    Raises: SourceUnavailable; PositionLost; ConfigError - ``start`` is not valid.
    """
    found = _resolved(server, start, identity)
    return replace(found, created=created_at(server, found.file)) if found.file else found


def _resolved(server: Server, start: str | Mapping[str, object], identity: ReaderIdentity) -> BinlogPosition:
    if start == "latest":
        return server.locked_position() or _with_gtids(server, server.position(), identity)
    if start == "earliest":
        file = next(iter(server.files()), None)
        if file is None:
            raise SourceUnavailable(
                "The server has no binlog file.",
                hint="Set log_bin in the server's configuration and restart it.",
                server=server.endpoint,
            )
        return BinlogPosition(file, FIRST_EVENT, server.identity, _gtids_before(server, file))
    if isinstance(start, Mapping) and "gtid_set" in start:
        return _by_gtid_set(server, str(start["gtid_set"]))
    if isinstance(start, Mapping) and "file" in start:
        offset = int(str(start.get("offset", FIRST_EVENT)))
        return _by_file(server, BinlogPosition(str(start["file"]), offset, server.identity), identity)
    raise ConfigError(
        f"`source.start: {start}` is not a position in a binlog.",
        hint="Write latest, earliest, {file: ..., offset: ...} or {gtid_set: ...}.",
    )


def _by_gtid_set(server: Server, text: str) -> BinlogPosition:
    try:
        asked = parse_gtid_set(text)
    except ValueError as error:
        raise ConfigError(
            f"`source.start.gtid_set` is not valid: {error}.",
            hint="Copy the set from the server: gtid_executed of MySQL, gtid_binlog_pos of MariaDB.",
        ) from error
    if not server.gtids:
        raise ConfigError(
            "The server has no GTIDs, so the job cannot start at `source.start.gtid_set`.",
            hint="Set gtid_mode=ON on the server, or start at {file: ..., offset: ...}.",
            server=server.endpoint,
        )
    position = BinlogPosition("", 0, server.identity, str(asked or ""))
    return resume_point(server, position).position


def _by_file(server: Server, position: BinlogPosition, identity: ReaderIdentity) -> BinlogPosition:
    size = server.files().get(position.file)
    if size is None or position.offset > size or position.offset < FIRST_EVENT:
        raise PositionLost(
            f"Position {position} does not exist in the server's binlog"
            + (f"; {position.file} ends at {size}." if size else "."),
            hint="Correct `source.start`; SHOW BINARY LOGS lists the files and their sizes.",
            server=server.endpoint,
        )
    _check_boundary(server, position, identity)
    if server.mariadb:
        return replace(position, gtid_set=server.gtids_at(position.file, position.offset) or "")
    return _with_gtids(server, position, identity)


def _gtids_before(server: Server, first_file: str) -> str:
    if not server.gtids:
        return ""
    return (server.gtids_at(first_file, FIRST_EVENT) or "") if server.mariadb else server.purged()


def resume_point(
    server: Server, position: BinlogPosition, *, accept_server: bool = False, accept_gap: bool = False
) -> ResumePoint:
    """Return how reading continues after ``position`` at ``server``.

    The same server continues by file and offset, up to 4 GiB. After 4 GiB, and at another server, reading continues by
    GTID: the server must have executed every transaction that the job has read, and still have every later one. A file
    of the same name that was created at another time belongs to another log (RESET, a restored backup). Nothing of it
    is read from the old offset.
    Raises: ServerMismatch - the server lacks transactions of the job; with ``accept_server`` reading continues if the
    binlog allows it. PositionLost - later transactions were deleted, or the log was replaced; with ``accept_gap``
    reading continues with the oldest transaction that the server has.
    """
    try:
        return _resume_point(server, position, accept_server)
    except PositionLost as lost:
        if not accept_gap:
            raise
        first = resolve_start(server, "earliest", ReaderIdentity(0, "", ""))
        log.warning("continuing after a gap: %s Reading continues at %s.", lost.message, first)
        return ResumePoint(first, by_gtid=False, gap=True)


def _resume_point(server: Server, position: BinlogPosition, accept_server: bool) -> ResumePoint:
    same = position.server in ("", server.identity)
    by_gtid = server.gtids and bool(position.gtid_set or not position.file)
    here = replace(position, server=server.identity)
    if accept_server and not server.mariadb:
        here = replace(here, gtid_set=_seen_there(server, position))
    if same and position.file and not _follows_purged(server, position):
        here = replace(here, created=_check_log(server, position))
        if not by_gtid or position.offset < BEYOND_DUMP:
            return _by_offset(server, here)
    if not by_gtid:
        if not accept_server or not position.file:
            raise ServerMismatch(
                "Another server answers, and without GTIDs on both sides the job's position in its binlog is unknown.",
                hint="Set `source.host` to the server that the job has read so far, or run "
                "`cdc resume NAME --accept-server` if this is the same data folder with a new server_uuid.",
                server=server.endpoint,
                expected=position.server,
                found=server.identity,
            )
        # A copied data folder has the same files under a new server_uuid.
        return ResumePoint(replace(here, created=_check_file(server, position)), by_gtid=False)
    if not same:
        log.warning("another server answers at %s: %s, was %s", server.endpoint, server.identity, position.server)
    if not accept_server:
        _check_executed(server, position)
    _check_purged(server, position)
    return ResumePoint(replace(here, file="", offset=0, created=0, by_gtid=True), by_gtid=True)


def _by_offset(server: Server, here: BinlogPosition) -> ResumePoint:
    """Continue in a file. If the job began before the server had GTIDs, read the GTID set at this position now."""
    if here.gtid_set or not server.gtids or not FIRST_EVENT < here.offset < BEYOND_DUMP:
        return ResumePoint(here, by_gtid=False)
    if server.mariadb:
        gtids = server.gtids_at(here.file, here.offset) or ""
    else:
        gtids = _with_gtids(server, here, ReaderIdentity(0, "", "")).gtid_set
    return ResumePoint(replace(here, gtid_set=gtids), by_gtid=False, gtids_known=True)


def _follows_purged(server: Server, position: BinlogPosition) -> bool:
    """Return whether a MariaDB server purged the file of ``position`` and still has every later transaction.

    The oldest remaining file then begins with exactly the GTIDs that the job has read. After RESET MASTER it does not.
    """
    files = server.files()
    if not server.mariadb or not position.gtid_set or position.file in files or not files:
        return False
    first = next(iter(files))
    now, before = file_number(first), file_number(position.file)
    if not now or not before or now[0] != before[0] or now[1] < before[1]:
        return False
    return parse_gtid_set(_gtids_before(server, first)) == parse_gtid_set(position.gtid_set)


def _check_log(server: Server, position: BinlogPosition) -> int:
    """Return when the file of ``position`` was created. Raises: PositionLost - its log has another history."""
    created = _check_file(server, position)
    if _diverged(server, position) or not (server.mariadb or server.has_done(_gtids(position))):
        raise _replaced(server, position, "The server does not have the transactions that the job has read from it")
    return created


def _gtids(position: BinlogPosition) -> AnyGtidSet:
    return parse_gtid_set(position.gtid_set) or GtidSet.empty()


def _replaced(server: Server, position: BinlogPosition, what: str) -> PositionLost:
    return PositionLost(
        f"{what}: the binary logs were reset, or the server was restored from a backup or replaced.",
        hint=GAP_OLDEST_HINT,
        server=server.endpoint,
        position=position,
    )


def _check_file(server: Server, position: BinlogPosition) -> int:
    """Return when the file of ``position`` was created. Raises: PositionLost - it is deleted, truncated or replaced."""
    size = server.files().get(position.file)
    if size is None or position.offset > size:
        raise PositionLost(
            f"Binlog file {position.file} does not exist on the server."
            if size is None
            else f"Binlog file {position.file} ends at {size}, before the job's position: it was cut or replaced.",
            hint=_RETENTION,
            server=server.endpoint,
            position=position,
        )
    created = created_at(server, position.file)
    if position.created and created != position.created:
        raise _replaced(
            server, position, f"Binlog file {position.file} was created at another time than the file read so far"
        )
    return created


def created_at(server: Server, file: str) -> int:
    """Return when ``file`` was created: the header timestamp of its format description event, seconds since 1970.

    Reads the first packets of a dump on a separate connection, which takes a few milliseconds. It cannot distinguish
    two logs that begin within the same second; GTIDs can.
    Raises: SourceUnavailable; PositionLost - the file does not exist.
    """
    head = BinlogPosition(file, FIRST_EVENT, server.identity)
    sent = first_event(server, head, ReaderIdentity(0, "", ""), lambda kind: kind == events.FORMAT_DESCRIPTION)
    if sent is None:
        raise SourceUnavailable(
            f"The server sends no format description event for binlog file {file}.",
            hint="Check the file on the server with mysqlbinlog. The job reconnects automatically.",
            server=server.endpoint,
        )
    return sent[0]


def _diverged(server: Server, position: BinlogPosition) -> bool:
    """Return whether a MariaDB server has other transactions before this position than the job has read."""
    if not server.mariadb or not position.gtid_set:
        return False
    there = parse_gtid_set(server.gtids_at(position.file, position.offset) or "")
    seen = parse_gtid_set(position.gtid_set)
    if not isinstance(there, MariadbGtidSet) or not isinstance(seen, MariadbGtidSet):
        return True
    # FLUSH BINARY LOGS DELETE_DOMAIN_ID removes a domain from the log and from the state of the server
    left = {int(gtid.partition("-")[0]) for gtid in server.executed().split(",") if gtid}
    return there.domains != {domain: last for domain, last in seen.domains.items() if domain in left | {*there.domains}}


def _seen_there(server: Server, position: BinlogPosition) -> str:
    """Return the job's GTID set without transactions that the server never had: the server would refuse the set."""
    seen = parse_gtid_set(position.gtid_set)
    if not isinstance(seen, GtidSet):
        return position.gtid_set
    return str(seen.intersection(GtidSet.parse(server.executed())))


def _check_executed(server: Server, position: BinlogPosition) -> None:
    seen = parse_gtid_set(position.gtid_set)
    if seen and not server.has_done(seen):
        raise ServerMismatch(
            "The server lacks transactions that the job has read: it is another server, lost data, or was reset.",
            hint="Set `source.host` to a server that has them, or run `cdc resume NAME --accept-server`, then "
            "`cdc snapshot` for the job's tables.",
            server=server.endpoint,
            position=position,
            executed=server.executed(),
        )


def _check_purged(server: Server, position: BinlogPosition) -> None:
    seen, purged = parse_gtid_set(position.gtid_set), parse_gtid_set(_gtids_before(server, next(iter(server.files()))))
    if purged and (not seen or not seen.contains(purged)):  # type: ignore[arg-type]
        raise PositionLost(
            "The server has deleted transactions after the job's GTID set.",
            hint=_RETENTION,
            server=server.endpoint,
            position=position,
            purged=purged,
        )


def _with_gtids(server: Server, position: BinlogPosition, identity: ReaderIdentity) -> BinlogPosition:
    """Return ``position`` with the GTID set executed there: the set of the file's head and the GTIDs after it.

    The head of a file lacks the transactions that the server has from a backup: they were never in its own binlog, and
    only gtid_purged has them. Without them, another server would send them after newer ones.
    Source: mysql-server sql/binlog.cc, ``open_binlog`` (gtids_only_in_table).
    """
    if not server.gtids:
        return position
    # Before the scan: what is purged now is in older files than that of ``position``.
    purged = GtidSet.parse(server.purged())
    head = BinlogPosition(position.file, FIRST_EVENT, position.server)
    reached = scan(server, head, position, identity)
    tries = 1
    while not reached.reached(position):  # the server reports bytes as written that it sends only after a sync
        if tries == _SCANS_MOST:
            raise SourceUnavailable(
                f"The server does not send its binlog up to {position}, which it reports as written.",
                hint="Check the server's disk: it may be full or slow. The job retries automatically.",
                server=server.endpoint,
                position=reached,
            )
        tries += 1
        time.sleep(_SCAN_PAUSE_S)
        reached = scan(server, head, position, identity)
    if reached.offset != (position.offset if reached.file == position.file else FIRST_EVENT):  # or after the last event
        # with a larger GTID set, another server would not send transactions that the job has not read
        raise SourceUnavailable(
            f"The GTID set at {position} cannot be read: no transaction of the binlog ends there.",
            hint="The job retries automatically. If the error remains, set `source.start` to the end of a transaction; "
            "SHOW BINLOG EVENTS lists the positions.",
            server=server.endpoint,
            position=reached,
        )
    logged = parse_gtid_set(reached.gtid_set)
    return replace(position, gtid_set=str(purged.union(logged) if isinstance(logged, GtidSet) else purged))


def _check_boundary(server: Server, position: BinlogPosition, identity: ReaderIdentity) -> None:
    """Raise ConfigError if ``position`` is inside a transaction: the server sends the event that follows it.

    Raises: PositionLost - no event begins at ``position``, or the binlog file is damaged.
    """
    hint = "Set `source.start` to the end of a transaction; SHOW BINLOG EVENTS lists the positions."
    try:
        first = first_event(server, position, identity, lambda kind: kind not in _HEADS)
    except PositionLost as error:
        # an offset in the job file is more often wrong than the binlog is damaged, and no change is lost yet
        raise PositionLost(
            f"The server cannot read its binlog at position {position}: {error.message}", hint=hint, **error.context
        ) from error
    if first is not None and first[1] in _INSIDE:
        raise ConfigError(
            f"Position {position} is inside a transaction: the next event is {events.name_of(first[1])}.", hint=hint
        )
