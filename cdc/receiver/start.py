"""Where reading begins: a job's start made into a real Position, and whether a server continues a Position.

Source: MySQL manual, "Replication with GTID Auto-Positioning"; MariaDB knowledge base, "Global Transaction ID".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cdc.batch import Reads
from cdc.binlog import events
from cdc.binlog.connection import BEYOND_DUMP, BinlogStream, Endpoint, ReaderIdentity, translated
from cdc.binlog.decoder import BinlogDecoder
from cdc.binlog.events import ServerError, Statement
from cdc.binlog.server import Server
from cdc.errors import READ_OLDEST, CdcError, ConfigError, PositionLost, SourceUnavailable, WrongServer
from cdc.position import AnyGtidSet, BinlogPosition, GtidSet, file_number, parse_gtid_set
from cdc.schema import TableSchema

log = logging.getLogger(__name__)

FIRST_EVENT = 4  # behind the magic number of a binlog file
_FIRST_OF_TRANSACTION_WAIT_S = 10.0
_HEADS = frozenset({events.ROTATE, events.FORMAT_DESCRIPTION, events.GTID_LIST, events.START_ENCRYPTION})
_PACKET_HEAD = 5  # length, number and status before each event in the stream
_RETENTION = f"{READ_OLDEST} Set binlog_expire_logs_seconds above the longest stop you expect."
_INSIDE = frozenset(
    {events.XID, events.TABLE_MAP, events.PARTIAL_UPDATE, events.XA_PREPARE}
    | {events.BEGIN_LOAD_QUERY, events.APPEND_BLOCK, events.EXECUTE_LOAD_QUERY}
    | set(range(events.WRITE_V1, events.DELETE_V1 + 1))
    | set(range(events.WRITE_V2, events.DELETE_V2 + 1))
    | set(events.COMPRESSED_ROWS)
)


@dataclass(frozen=True, slots=True)
class Continuation:
    """How to go on from a Position at the server that answers now."""

    position: BinlogPosition
    by_gtid: bool  # by the GTID set alone, since file and offset mean nothing there
    gtids_known: bool = False  # an empty GTID set is the set executed at the position, not an unknown one
    gap: bool = False  # changes between the position asked for and this one are left out


def resolve_start(server: Server, start: str | Mapping[str, object], identity: ReaderIdentity) -> BinlogPosition:
    """The Position that ``start`` means now: latest, earliest, {file, offset} or {gtid_set}.

    ``latest`` is also where a snapshot begins. The GTID set of the Position is exact, so that a failover can go by it.
    Calls: once in a job's life; may read one binlog file.
    Raises: SourceUnavailable, PositionLost, ConfigError - no such start.
    """
    found = _resolved(server, start, identity)
    return replace(found, created=created_at(server, found.file)) if found.file else found


def _resolved(server: Server, start: str | Mapping[str, object], identity: ReaderIdentity) -> BinlogPosition:
    if start == "latest":
        return server.locked_position() or _with_gtids(server, server.position(), identity)
    if start == "earliest":
        file = next(iter(server.files()), None)
        if file is None:
            raise SourceUnavailable("The server has no binlog file.", mend="Set log_bin.", server=server.endpoint)
        return BinlogPosition(file, FIRST_EVENT, server.identity, _gtids_before(server, file))
    if isinstance(start, Mapping) and "gtid_set" in start:
        return _by_gtid_set(server, str(start["gtid_set"]))
    if isinstance(start, Mapping) and "file" in start:
        offset = int(str(start.get("offset", FIRST_EVENT)))
        return _by_file(server, BinlogPosition(str(start["file"]), offset, server.identity), identity)
    raise ConfigError(
        f"`start: {start}` is no place in a binlog.",
        mend="Write latest, earliest, {file: ..., offset: ...} or {gtid_set: ...}.",
    )


def _by_gtid_set(server: Server, text: str) -> BinlogPosition:
    try:
        asked = parse_gtid_set(text)
    except ValueError as error:
        raise ConfigError(f"`start.gtid_set`: {error}.", mend="Copy it from gtid_executed of the server.") from error
    if not server.gtids:
        raise ConfigError(
            "The server has no GTIDs, so a start by GTID set means nothing to it.",
            mend="Set gtid_mode=ON, or start by {file: ..., offset: ...}.",
            server=server.endpoint,
        )
    position = BinlogPosition("", 0, server.identity, str(asked or ""))
    return continuation(server, position).position


def _by_file(server: Server, position: BinlogPosition, identity: ReaderIdentity) -> BinlogPosition:
    size = server.files().get(position.file)
    if size is None or position.offset > size or position.offset < FIRST_EVENT:
        raise PositionLost(
            f"The server has no place {position} in its binlog"
            + (f"; {position.file} ends at {size}." if size else "."),
            mend="Correct `source.start`; SHOW BINARY LOGS lists what there is.",
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


def continuation(
    server: Server, position: BinlogPosition, *, accept_server: bool = False, accept_gap: bool = False
) -> Continuation:
    """How ``server`` continues ``position``.

    The same server goes on by file and offset, up to 4 GiB. Beyond, and at another one, it goes on by GTID where the
    server has done all that we have seen and still has all that comes after. A file of the same name that was created
    at another time belongs to another log (RESET, a restored backup): nothing of it is read from the old offset.
    Raises: WrongServer - it has not; ``accept_server`` goes on regardless where the binlog allows it.
    PositionLost - what comes next is gone, or the log was replaced; ``accept_gap`` goes on with the oldest that is
    left.
    """
    try:
        return _continuation(server, position, accept_server)
    except PositionLost as lost:
        if not accept_gap:
            raise
        first = resolve_start(server, "earliest", ReaderIdentity(0, "", ""))
        log.warning("going on over a gap: %s Reading goes on from %s.", lost.message, first)
        return Continuation(first, by_gtid=False, gap=True)


def _continuation(server: Server, position: BinlogPosition, accept_server: bool) -> Continuation:
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
            raise WrongServer(
                "Another server answers, and without GTIDs on both sides nothing tells where our position is in it.",
                mend="Point `source.host` at the server that the job has read so far, or run "
                "`cdc resume --accept-server` if this is the same data under a new name.",
                server=server.endpoint,
                expected=position.server,
                found=server.identity,
            )
        # a copied data folder has the same files under a new server_uuid
        return Continuation(replace(here, created=_check_file(server, position)), by_gtid=False)
    if not same:
        log.warning("another server answers at %s: %s, was %s", server.endpoint, server.identity, position.server)
    if not accept_server:
        _check_executed(server, position)
    _check_purged(server, position)
    return Continuation(replace(here, file="", offset=0, created=0), by_gtid=True)


def _by_offset(server: Server, here: BinlogPosition) -> Continuation:
    """Go on in a file. A job that began before the first GTID gets its set from the file, as soon as there is one."""
    if here.gtid_set or not server.gtids or not FIRST_EVENT < here.offset < BEYOND_DUMP:
        return Continuation(here, by_gtid=False)
    if server.mariadb:
        gtids = server.gtids_at(here.file, here.offset) or ""
    else:
        gtids = _with_gtids(server, here, ReaderIdentity(0, "", "")).gtid_set
    return Continuation(replace(here, gtid_set=gtids), by_gtid=False, gtids_known=True)


def _follows_purged(server: Server, position: BinlogPosition) -> bool:
    """Return whether a MariaDB server purged the file of ``position`` and still has all that comes after.

    The first file that is left begins with exactly the GTIDs seen. After RESET MASTER it does not.
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
        mend=READ_OLDEST,
        server=server.endpoint,
        position=position,
    )


def _check_file(server: Server, position: BinlogPosition) -> int:
    """Return when the file of ``position`` was created. Raises: PositionLost - it is gone, cut or another one."""
    size = server.files().get(position.file)
    if size is None or position.offset > size:
        raise PositionLost(
            f"Binlog {position.file} is gone from the server."
            if size is None
            else f"Binlog {position.file} ends at {size}, before our position: it was cut or replaced.",
            mend=_RETENTION,
            server=server.endpoint,
            position=position,
        )
    created = created_at(server, position.file)
    if position.created and created != position.created:
        raise _replaced(
            server, position, f"Binlog {position.file} was created at another time than the one read so far"
        )
    return created


def created_at(server: Server, file: str) -> int:
    """Return when ``file`` was created: the header timestamp of its format description event, seconds since 1970.

    Reads the first packets of a dump on a connection of its own, a few milliseconds. Two logs that begin within the
    same second are not told apart by it; GTIDs are.
    Raises: SourceUnavailable, PositionLost - there is no such file.
    """
    head = BinlogPosition(file, FIRST_EVENT, server.identity)
    sent = _first_event(server, head, ReaderIdentity(0, "", ""), lambda kind: kind == events.FORMAT_DESCRIPTION)
    if sent is None:
        raise SourceUnavailable(
            f"The server sends no head of binlog {file}.",
            mend="Check the file on the server with mysqlbinlog; the job connects again.",
            server=server.endpoint,
        )
    return sent[0]


def _diverged(server: Server, position: BinlogPosition) -> bool:
    """MariaDB: whether other transactions lie at our position."""
    if not server.mariadb or not position.gtid_set:
        return False
    there = parse_gtid_set(server.gtids_at(position.file, position.offset) or "")
    return there != parse_gtid_set(position.gtid_set)


def _seen_there(server: Server, position: BinlogPosition) -> str:
    """Our GTID set without transactions that the server never had: it would be refused for them again and again."""
    seen = parse_gtid_set(position.gtid_set)
    if not isinstance(seen, GtidSet):
        return position.gtid_set
    return str(seen.intersection(GtidSet.parse(server.executed())))


def _check_executed(server: Server, position: BinlogPosition) -> None:
    seen = parse_gtid_set(position.gtid_set)
    if seen and not server.has_done(seen):
        raise WrongServer(
            "The server lacks transactions that this job has read: it is another one, lost data, or was reset.",
            mend="Point `source.host` at a server that has them, or run `cdc resume --accept-server` to go on "
            "regardless, and `cdc snapshot` for the job's tables.",
            server=server.endpoint,
            position=position,
            executed=server.executed(),
        )


def _check_purged(server: Server, position: BinlogPosition) -> None:
    seen, purged = parse_gtid_set(position.gtid_set), parse_gtid_set(_gtids_before(server, next(iter(server.files()))))
    if purged and (not seen or not seen.contains(purged)):  # type: ignore[arg-type]
        raise PositionLost(
            "Transactions after our GTID set are gone from the server.",
            mend=_RETENTION,
            server=server.endpoint,
            position=position,
            purged=purged,
        )


# --- reading control events alone ---


class NoTables:
    """A selection that maps no table, so that a decoder gives control events only."""

    def maps(self, database: str, table: str) -> bool:
        """See ``Selection``."""
        return False

    def reads(self, schema: TableSchema) -> Reads:
        """See ``Selection``."""
        raise AssertionError("no table is mapped")

    def leave_out(self, database: str, table: str, error: CdcError) -> bool:
        """See ``Selection``."""
        raise AssertionError("no table is mapped")

    def schema(self, table_map: object) -> TableSchema:
        """See ``TableSource``."""
        raise AssertionError("no table is mapped")


def scan(
    server: Server,
    start: BinlogPosition,
    end: BinlogPosition,
    identity: ReaderIdentity,
    on_statement: Callable[[Statement], None] = lambda _: None,
) -> BinlogPosition:
    """Read the control events from ``start`` to ``end`` and give the Position reached, with its GTID set.

    Within one file that is exactly ``end``; over several it may lie a little behind. Rows are stepped over unseen.
    No other reader is disturbed. Raises: SourceUnavailable, PositionLost.
    """
    nothing = NoTables()
    decoder = BinlogDecoder(
        selection=nothing, tables=nothing, on_statement=on_statement, start=start, sequence=0, framed=True
    )
    stream = BinlogStream(server.endpoint, identity, mariadb=server.mariadb)
    try:
        stream.dump(start, by_gtid=not start.file, until_end=True)
        fed = 0
        in_one_file = bool(start.file) and start.file == end.file
        while not (decoder.ended or (decoder.position.file and decoder.position.reached(end))):
            if in_one_file and decoder.read_to.offset >= end.offset:
                return decoder.read_to  # `end` lies in the head of a file, before its first transaction
            room = decoder.room()
            if in_one_file:
                # a decoder takes in all that it is fed: never more than up to the end, byte by byte at last
                left = end.offset - start.offset + _PACKET_HEAD * decoder.seen_events - fed
                room = room[: max(left, 1)]
            count = stream.receive(room, 1.0)
            fed += count
            decoder.feed(count)
            while decoder.next() is not None:
                pass
    except ServerError as error:
        raise translated(error, server.endpoint, decoder.position) from error
    finally:
        stream.close()
    return decoder.position


def _with_gtids(server: Server, position: BinlogPosition, identity: ReaderIdentity) -> BinlogPosition:
    """``position`` with the GTID set executed there, which the file's head and the GTIDs up to it tell."""
    if not server.gtids:
        return position
    head = BinlogPosition(position.file, FIRST_EVENT, position.server)
    return replace(position, gtid_set=scan(server, head, position, identity).gtid_set)


def _check_boundary(server: Server, position: BinlogPosition, identity: ReaderIdentity) -> None:
    """Refuse a place inside a transaction or an event. The server says which events follow it."""
    first = _first_event(server, position, identity, lambda kind: kind not in _HEADS)
    if first is not None and first[1] in _INSIDE:
        raise ConfigError(
            f"{position} lies inside a transaction: a {events.name_of(first[1])} event comes next.",
            mend="Give the end of a transaction as `source.start`; SHOW BINLOG EVENTS lists the places.",
        )


def _first_event(
    server: Server, position: BinlogPosition, identity: ReaderIdentity, is_asked_for: Callable[[int], bool]
) -> tuple[int, int] | None:
    """Return timestamp and type of the first event of a kind that a dump from ``position`` sends; None: none came."""
    stream = BinlogStream(server.endpoint, identity, mariadb=server.mariadb)
    data = bytearray()
    room = bytearray(1 << 16)
    deadline = time.monotonic() + _FIRST_OF_TRANSACTION_WAIT_S
    found = None
    try:
        stream.dump(position, by_gtid=False, until_end=True)
        while found is None and time.monotonic() < deadline:
            data += room[: stream.receive(memoryview(room), 1.0)]
            found = _find_event(data, server.endpoint, position, is_asked_for)
    finally:
        stream.close()
    return found if found and found[1] else None


def _find_event(
    data: bytearray, endpoint: Endpoint, position: BinlogPosition, is_asked_for: Callable[[int], bool]
) -> tuple[int, int] | None:
    """Return the event's timestamp and type; type 0 at the end of the binlog, None: not read yet."""
    at = 0
    while at + 4 + 1 <= len(data):
        length = int.from_bytes(data[at : at + 3], "little")
        status = data[at + 4]
        if status == 0xFF and at + 4 + length <= len(data):
            packet = bytes(data[at + 5 : at + 4 + length])
            error = ServerError(
                int.from_bytes(packet[:2], "little"),
                packet[3:8].decode("ascii", "replace"),
                packet[8:].decode("utf-8", "replace"),
            )
            raise translated(error, endpoint, position)
        if status == 0xFE:
            return 0, 0
        if at + 10 > len(data):
            return None
        kind = data[at + 9]  # behind length, sequence number, status and timestamp
        if status == 0 and is_asked_for(kind):
            return int.from_bytes(data[at + 5 : at + 9], "little"), kind
        at += 4 + length
    return None
