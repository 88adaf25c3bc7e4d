"""Parsers of control events, which are rare enough to be parsed one at a time in Python, and the names of event types.

The kernel in ``framing`` handles the frequent ones: GTID, BEGIN, table maps, rows, XID. ``control_events`` acts on what
is parsed here.

Source: MySQL source, libs/mysql/binlog/event; MariaDB source, sql/log_event.h.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from cdc.model.gtid import GtidSet
from cdc.model.position import BinlogPosition
from cdc.model.xid import xid_text

HEADER_BYTES = 19
CHECKSUM_BYTES = 4
IN_USE_FLAG = 0x01
ARTIFICIAL_FLAG = 0x20
IGNORABLE_FLAG = 0x80
FIRST_TYPE_TO_STEP_OVER = 43  # new event types have larger numbers and are skipped; an unknown smaller one is an error

QUERY, STOP, ROTATE, INTVAR, RAND, USER_VAR = 2, 3, 4, 5, 13, 14
APPEND_BLOCK, DELETE_FILE, BEGIN_LOAD_QUERY, EXECUTE_LOAD_QUERY = 9, 11, 17, 18
FORMAT_DESCRIPTION, XID, TABLE_MAP = 15, 16, 19
WRITE_V1, UPDATE_V1, DELETE_V1, INCIDENT, HEARTBEAT, IGNORABLE, ROWS_QUERY = 23, 24, 25, 26, 27, 28, 29
WRITE_V2, UPDATE_V2, DELETE_V2, GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS = 30, 31, 32, 33, 34, 35
XA_PREPARE, PARTIAL_UPDATE, TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED = 38, 39, 40, 41, 42
ANNOTATE_ROWS, BINLOG_CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION, QUERY_COMPRESSED = range(160, 166)
COMPRESSED_ROWS = range(166, 172)
PARTIAL_ROW_DATA = 172

NAMES = {
    2: "QUERY", 3: "STOP", 4: "ROTATE", 5: "INTVAR", 9: "APPEND_BLOCK", 11: "DELETE_FILE", 13: "RAND", 14: "USER_VAR",
    15: "FORMAT_DESCRIPTION", 16: "XID", 17: "BEGIN_LOAD_QUERY", 18: "EXECUTE_LOAD_QUERY", 19: "TABLE_MAP",
    20: "PRE_GA_WRITE_ROWS", 21: "PRE_GA_UPDATE_ROWS", 22: "PRE_GA_DELETE_ROWS", 23: "WRITE_ROWS_V1",
    24: "UPDATE_ROWS_V1", 25: "DELETE_ROWS_V1", 26: "INCIDENT", 27: "HEARTBEAT", 28: "IGNORABLE", 29: "ROWS_QUERY",
    30: "WRITE_ROWS", 31: "UPDATE_ROWS", 32: "DELETE_ROWS", 33: "GTID", 34: "ANONYMOUS_GTID", 35: "PREVIOUS_GTIDS",
    36: "TRANSACTION_CONTEXT", 37: "VIEW_CHANGE", 38: "XA_PREPARE", 39: "PARTIAL_UPDATE_ROWS",
    40: "TRANSACTION_PAYLOAD", 41: "HEARTBEAT_V2", 42: "GTID_TAGGED", 160: "ANNOTATE_ROWS", 161: "BINLOG_CHECKPOINT",
    162: "GTID (MariaDB)", 163: "GTID_LIST", 164: "START_ENCRYPTION", 165: "QUERY_COMPRESSED",
    166: "WRITE_ROWS_COMPRESSED_V1", 167: "UPDATE_ROWS_COMPRESSED_V1", 168: "DELETE_ROWS_COMPRESSED_V1",
    169: "WRITE_ROWS_COMPRESSED", 170: "UPDATE_ROWS_COMPRESSED", 171: "DELETE_ROWS_COMPRESSED", 172: "PARTIAL_ROW_DATA",
}  # fmt: skip


def name_of(event_type: int) -> str:
    """Return the event type's name for messages."""
    return NAMES.get(event_type, f"type {event_type}")


class Malformed(Exception):
    """The bytes of an event do not follow the format. The decoder adds file and offset, and raises DecodeError."""

    @property
    def sentence(self) -> str:
        """Return the message as a sentence."""
        text = str(self)
        return f"{text[:1].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in the binlog that is not transaction control: DDL, or DML logged as text."""

    database: str  # the session's default database, "" for none
    sql: str  # decoded from the client's charset
    before: BinlogPosition  # before the statement's transaction
    after: BinlogPosition  # after the statement; reading can continue there only if the transaction has no other one
    timestamp: int  # s since 1970, UTC
    ansi_quotes: bool  # the session's sql_mode has ANSI_QUOTES: "x" is a name
    dml: bool  # rows logged as text (STATEMENT format) inside a transaction
    mariadb: bool = True  # the server executes ``/*M! */`` comments
    sql_mode: int | None = None  # the session's, as bits; None: not known
    is_part: bool = False  # its transaction has other events, such as the rows of CREATE TABLE .. SELECT
    microseconds: int | None = None  # of the statement's time, after ``timestamp``; None: not in the event
    time_zone: str = ""  # the session's: "SYSTEM", "+02:00", "Europe/Berlin"; "": not in the event
    explicit_timestamps: bool | None = None  # explicit_defaults_for_timestamp; None: not in the event, as of MariaDB


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """The format of all events of a file, from its first event."""

    server_version: str
    checksum: bool
    mariadb: bool


@dataclass(frozen=True, slots=True)
class Query:
    """The body of a QUERY event."""

    database: str
    sql: bytes
    client_collation: int  # 0: not in the event
    ansi_quotes: bool
    sql_mode: int
    takes_effect: bool  # False: START ALTER or ROLLBACK ALTER of MariaDB; only COMMIT ALTER changes the table
    microseconds: int | None = None  # see ``Statement``
    time_zone: str = ""
    explicit_timestamps: bool | None = None


@dataclass(frozen=True, slots=True)
class Payload:
    """The header of a TRANSACTION_PAYLOAD: offset, number and compression of its bytes."""

    offset: int
    size: int
    zstd: bool


class ByteCursor:
    """Read little-endian fields from bytes. Raises: Malformed - the bytes end before the field does."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self.data = data
        self.offset = offset

    @property
    def left(self) -> int:
        """Return the number of bytes that were not read yet."""
        return len(self.data) - self.offset

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        if count > self.left:
            raise Malformed(f"a field at {self.offset} needs {count} bytes, {self.left} are left")
        self.offset += count
        return self.data[self.offset - count : self.offset]

    def uint(self, count: int) -> int:
        """Return the next ``count`` bytes as an unsigned number."""
        return int.from_bytes(self.take(count), "little")

    def skip_text(self) -> None:
        """Skip a text that ends with a zero byte."""
        size = self.data.find(b"\0", self.offset) + 1 - self.offset
        self.take(size if size > 0 else self.left + 1)

    def pint(self) -> int:
        """Return a packed (length-encoded) number."""
        first = self.uint(1)
        if first < 0xFB:
            return first
        width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
        if width is None:
            raise Malformed(f"a packed number cannot begin with {first:#x}")
        return self.uint(width)

    def vint(self) -> int:
        """Return an unsigned number of MySQL's serialization library."""
        first = self.uint(1)
        width = (first ^ 0xFF) & -(first ^ 0xFF)  # lowest zero bit
        extra = width.bit_length() - 1 if width else 8
        rest = self.uint(extra)
        return rest if extra == 8 else (first | rest << 8) >> (extra + 1)


def parse_format_description(event: bytes) -> FormatDescription:
    """Read a FORMAT_DESCRIPTION event, header included, and check its checksum."""
    body = event[HEADER_BYTES:]
    if len(body) < 57 + CHECKSUM_BYTES + 1 or struct.unpack_from("<H", body)[0] != 4:
        raise Malformed("the binlog version is not 4")
    version = body[2:52].split(b"\0")[0].decode("ascii", "replace")
    if body[56] != HEADER_BYTES:
        raise Malformed(f"event headers have {body[56]} bytes instead of {HEADER_BYTES}")
    # One length per event type follows. Only MariaDB has types above 160; its version may be any text.
    mariadb = len(body) - 57 > ANNOTATE_ROWS
    if not mariadb and not _has_checksum_field(version):
        return FormatDescription(version, False, False)
    algorithm = body[-5]
    if algorithm not in (0, 1):
        raise Malformed(f"checksum algorithm {algorithm} is unknown")
    if algorithm:
        flags = struct.unpack_from("<H", event, 17)[0] & ~IN_USE_FLAG  # the server sets it after the checksum
        clean = event[:17] + struct.pack("<H", flags) + event[19:-4]
        if zlib.crc32(clean) != struct.unpack("<I", event[-4:])[0]:
            raise Malformed("the checksum of the format description is wrong")
    return FormatDescription(version, bool(algorithm), mariadb)


def _has_checksum_field(version: str) -> bool:
    numbers = []
    for part in version.split(".")[:3]:
        digits = "".join(c for c in part if c.isdigit()) if part.isdigit() else part.split("-")[0]
        numbers.append(int("".join(c for c in digits if c.isdigit()) or 0))
    return tuple(numbers) >= (5, 6, 1)


def parse_rotate(body: bytes) -> tuple[str, int]:
    """Return the file and offset of a ROTATE event."""
    cursor = ByteCursor(body)
    offset = cursor.uint(8)
    return cursor.take(cursor.left).decode("utf-8", "replace"), offset


_STATUS_WIDTHS = {0: 4, 3: 4, 7: 2, 8: 2, 9: 8, 10: 4, 17: 8, 18: 2, 19: 1, 20: 1, 129: 8}
_ANSI_QUOTES = 4
_TOO_MANY_DATABASES = 254  # the names of the changed ones are not listed
_MICROSECONDS = (13, 128)  # of MySQL, and of MariaDB
_START_ALTER, _COMMIT_ALTER, _ROLLBACK_ALTER = 2, 4, 8


def parse_query(body: bytes, *, extra_header: int = 0, compressed: bool = False) -> Query:
    """Read the body of a QUERY event. EXECUTE_LOAD_QUERY has ``extra_header`` more bytes, MariaDB may compress SQL."""
    cursor = ByteCursor(body)
    cursor.take(8)
    database_length = cursor.uint(1)
    cursor.take(2)
    status_length = cursor.uint(2)
    cursor.take(extra_header)
    found = _status_variables(cursor.take(status_length))
    database = cursor.take(database_length).decode("utf-8", "replace")
    cursor.take(1)
    sql = cursor.take(cursor.left)
    return Query(
        database,
        uncompress(sql) if compressed else sql,
        found.collation,
        bool(found.sql_mode & _ANSI_QUOTES),
        found.sql_mode,
        not found.phase & (_START_ALTER | _ROLLBACK_ALTER),
        found.microseconds,
        found.time_zone,
        found.explicit_timestamps,
    )


@dataclass(slots=True)
class _StatusVariables:
    """The session of a statement, as far as the event has it."""

    collation: int = 0  # the client's
    sql_mode: int = 0
    phase: int = 0  # of an ALTER that MariaDB logs in two phases
    microseconds: int | None = None
    time_zone: str = ""
    explicit_timestamps: bool | None = None


def _status_variables(data: bytes) -> _StatusVariables:
    cursor, found = ByteCursor(data), _StatusVariables()
    while cursor.left:
        kind = cursor.uint(1)
        if kind == 1:
            found.sql_mode = cursor.uint(8)
        elif kind == 4:
            found.collation = cursor.uint(2)
            cursor.take(4)
        elif kind in _MICROSECONDS:
            found.microseconds = cursor.uint(3)
        elif kind == 5:
            found.time_zone = cursor.take(cursor.uint(1)).decode("utf-8", "replace")
        elif kind == 16:
            found.explicit_timestamps = {0: False, 1: True}.get(cursor.uint(1))  # another value: not set
        elif kind in _STATUS_WIDTHS:
            cursor.take(_STATUS_WIDTHS[kind])
        elif kind == 2:
            cursor.take(cursor.uint(1) + 1)
        elif kind == 6:
            cursor.take(cursor.uint(1))
        elif kind == 11:
            cursor.take(cursor.uint(1))
            cursor.take(cursor.uint(1))
        elif kind == 12:
            count = cursor.uint(1)
            for _ in range(count if count != _TOO_MANY_DATABASES else 0):
                cursor.skip_text()
        elif kind == 130:
            found.phase = cursor.uint(1)
            cursor.take(8 if found.phase & (_COMMIT_ALTER | _ROLLBACK_ALTER) else 0)
        elif kind == 131:
            cursor.take(4 * cursor.uint(1))
        else:
            break  # an unknown id: nothing that is needed here follows it
    return found


def uncompress(data: bytes) -> bytes:
    """Unpack a compressed event body of MariaDB: 0x80 | length bytes, big-endian length, zlib stream.

    Raises: Malformed - another algorithm, or the unpacked length differs from the given one.
    """
    cursor = ByteCursor(data)
    head = cursor.uint(1)
    width = head & 0x07
    if not head & 0x80 or head & 0x70 or not 1 <= width <= 4:
        raise Malformed(f"compression header {head:#x} is unknown")
    size = int.from_bytes(cursor.take(width), "big")
    if size > 1 << 30:
        raise Malformed(f"a compressed body of {size} bytes is larger than an event can be")
    engine = zlib.decompressobj()
    try:
        plain = engine.decompress(cursor.take(cursor.left), size + 1)
    except zlib.error as error:
        raise Malformed(f"the compressed body cannot be unpacked: {error}") from error
    if len(plain) != size:
        raise Malformed(f"a compressed body has {len(plain)} bytes instead of {size}")
    return plain


def parse_xa_prepare(body: bytes) -> tuple[bool, str]:
    """Return whether an XA_PREPARE event commits in one phase, and its xid as XA COMMIT writes it."""
    cursor = ByteCursor(body)
    one_phase = bool(cursor.uint(1))
    format_id, gtrid_length, bqual_length = cursor.uint(4), cursor.uint(4), cursor.uint(4)
    gtrid, bqual = cursor.take(gtrid_length), cursor.take(bqual_length)
    return one_phase, xid_text(gtrid, bqual, format_id)


def parse_payload(event: bytes) -> Payload:
    """Read the header of a TRANSACTION_PAYLOAD body."""
    cursor = ByteCursor(event)
    compression, size = 255, -1
    while (field := cursor.pint()) != 0:
        value = ByteCursor(cursor.take(cursor.pint()))
        if field == 1:
            size = value.pint()
        elif field == 2:
            compression = value.pint()
    if compression not in (0, 255):
        raise Malformed(f"compression type {compression} is unknown")
    if size < 0:
        size = cursor.left
    if size > cursor.left:
        raise Malformed(f"a payload of {size} bytes is in an event with {cursor.left} bytes left")
    return Payload(cursor.offset, size, compression == 0)


def parse_heartbeat_v2(body: bytes) -> int | None:
    """Return the offset of a HEARTBEAT_V2 event, or None."""
    cursor = ByteCursor(body)
    while cursor.left and (kind := cursor.uint(1)) != 0:
        value = cursor.take(cursor.uint(1))
        if kind == 2:
            return ByteCursor(value).pint()
    return None


def parse_long_heartbeat(body: bytes, file: str) -> int:
    """Return the offset before the name of ``file``, which MariaDB sends from 4 GiB on; 0: there is none."""
    name = file.encode()
    return int.from_bytes(body[:8], "little") if name and body[8:].startswith(name) else 0


def parse_incident(body: bytes) -> str:
    """Return number and message of an INCIDENT event, as text."""
    cursor = ByteCursor(body)
    kind = cursor.uint(2)
    text = cursor.take(cursor.uint(1)).decode("utf-8", "replace") if cursor.left else ""
    return f"incident {kind}: {text or 'no message'}"


def parse_gtid_set(body: bytes) -> GtidSet:
    """Read a GTID set as PREVIOUS_GTIDS and the dump command write it, with or without tags."""
    cursor = ByteCursor(body)
    head = cursor.uint(8)
    tagged = head >> 56 == 1
    count = (head >> 8) & 0xFFFFFFFFFFFF if tagged else head
    result = GtidSet.empty()
    for _ in range(count):
        uuid = uuid_text(cursor.take(16))
        tag = cursor.take(cursor.vint()).decode("ascii", "replace") if tagged else ""
        intervals = [(cursor.uint(8), cursor.uint(8) - 1) for _ in range(_bounded(cursor.uint(8), cursor))]
        result = result.add(uuid, tag, intervals)
    return result


def encode_gtid_set(gtid_set: GtidSet) -> bytes:
    """Return the bytes of a GTID set for the dump command. Servers before 8.3 need the form without tags."""
    tagged = any(tag for _, tag in gtid_set.intervals)
    count = len(gtid_set.intervals)
    parts = [struct.pack("<Q", 1 | count << 8 | 1 << 56 if tagged else count)]
    for (uuid, tag), intervals in gtid_set.intervals.items():
        parts.append(bytes.fromhex(uuid.replace("-", "")))
        if tagged:
            parts.append(bytes([len(tag) << 1]) + tag.encode("ascii"))
        parts.append(struct.pack("<Q", len(intervals)))
        parts.extend(struct.pack("<QQ", first, last + 1) for first, last in intervals)
    return b"".join(parts)


def parse_gtid_list(body: bytes) -> list[tuple[int, int, int]]:
    """Return domain, server id and sequence number of each entry of a MariaDB GTID_LIST."""
    cursor = ByteCursor(body)
    count = cursor.uint(4) & 0x0FFFFFFF
    return [(cursor.uint(4), cursor.uint(4), cursor.uint(8)) for _ in range(_bounded(count, cursor))]


def uuid_text(raw: bytes) -> str:
    """Return the UUID as text, with ``8-4-4-4-12`` hex digits."""
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _bounded(count: int, cursor: ByteCursor) -> int:
    if count * 16 > cursor.left:
        raise Malformed(f"a list of {count} entries cannot be in {cursor.left} bytes")
    return count
