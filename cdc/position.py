"""Places in the source between two transactions, and sets of transactions already seen.

Two kinds of GTID set exist and never meet in one source: MySQL's (server uuid, optional tag, intervals) and MariaDB's
(the last sequence number per replication domain).

Source: MySQL manual, "GTID Sets"; MariaDB knowledge base, "Global Transaction ID".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Interval = tuple[int, int]  # first and last gno, both included


@dataclass(frozen=True, slots=True)
class GtidSet:
    """Transactions already seen on MySQL: ``(uuid, tag) -> intervals``, intervals sorted and disjoint.

    The tag is "" for plain GTIDs. Sets are values: ``add`` and ``union`` give new ones.
    """

    intervals: Mapping[tuple[str, str], tuple[Interval, ...]]

    @classmethod
    def empty(cls) -> GtidSet:
        """The set of no transaction."""
        return cls({})

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Read ``uuid:1-5:9:tag:1-3, uuid2:...`` as servers print it.

        Raises: ValueError - the text is no GTID set.
        """
        found: dict[tuple[str, str], list[Interval]] = {}
        for group in filter(None, (part.strip() for part in text.replace("\n", "").split(","))):
            uuid, *parts = (part.strip().lower() for part in group.split(":"))
            if not _UUID.fullmatch(uuid) or not parts:
                raise ValueError(f"not a GTID set: {group!r}")
            tag = ""
            for part in parts:
                if _TAG.fullmatch(part):
                    tag = part
                    continue
                first, dash, last = part.partition("-")
                if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
                    raise ValueError(f"not a GTID interval: {part!r} in {group!r}")
                found.setdefault((uuid, tag), []).append((int(first), int(last or first)))
        return cls({name: _merged(intervals) for name, intervals in sorted(found.items())})

    def add(self, uuid: str, tag: str, intervals: Iterable[Interval]) -> GtidSet:
        """This set with ``intervals`` of one origin added."""
        known = self.intervals.get((uuid, tag), ())
        return GtidSet(dict(sorted({**self.intervals, (uuid, tag): _merged([*known, *intervals])}.items())))

    def union(self, other: GtidSet) -> GtidSet:
        """Transactions in either set."""
        result = self
        for (uuid, tag), intervals in other.intervals.items():
            result = result.add(uuid, tag, intervals)
        return result

    def intersection(self, other: GtidSet) -> GtidSet:
        """Transactions in both sets."""
        found = {
            name: tuple(
                (max(one[0], two[0]), min(one[1], two[1]))
                for one in intervals
                for two in other.intervals.get(name, ())
                if max(one[0], two[0]) <= min(one[1], two[1])
            )
            for name, intervals in self.intervals.items()
        }
        return GtidSet({name: intervals for name, intervals in found.items() if intervals})

    def count(self) -> int:
        """How many transactions."""
        return sum(last - first + 1 for intervals in self.intervals.values() for first, last in intervals)

    def contains(self, other: GtidSet) -> bool:
        """Whether every transaction of ``other`` is in this set."""
        return all(
            any(start <= first and last <= end for start, end in self.intervals.get(name, ()))
            for name, intervals in other.intervals.items()
            for first, last in intervals
        )

    def __bool__(self) -> bool:
        return bool(self.intervals)

    def __str__(self) -> str:
        groups: dict[str, str] = {}
        for (uuid, tag), intervals in sorted(self.intervals.items()):
            text = ":".join(str(a) if a == b else f"{a}-{b}" for a, b in intervals)
            groups[uuid] = groups.get(uuid, uuid) + (f":{tag}" if tag else "") + f":{text}"
        return ",".join(groups.values())


@dataclass(frozen=True, slots=True)
class MariadbGtidSet:
    """Transactions already seen on MariaDB: ``domain -> (server id, sequence number)`` of the last one."""

    domains: Mapping[int, tuple[int, int]]

    @classmethod
    def empty(cls) -> MariadbGtidSet:
        """The set of no transaction."""
        return cls({})

    @classmethod
    def parse(cls, text: str) -> MariadbGtidSet:
        """Read ``0-1-10,7-2-3``. Raises: ValueError - the text is no MariaDB GTID position."""
        domains = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _MARIADB_GTID.fullmatch(part)
            if match is None:
                raise ValueError(f"not a MariaDB GTID: {part!r}")
            domain, server, sequence = map(int, match.groups())
            domains[domain] = (server, sequence)
        return cls(dict(sorted(domains.items())))

    def add(self, domain: int, server: int, sequence: int) -> MariadbGtidSet:
        """This set with one more transaction; within a domain the latest one stands for all before it."""
        return MariadbGtidSet(dict(sorted({**self.domains, domain: (server, sequence)}.items())))

    def contains(self, other: MariadbGtidSet) -> bool:
        """Whether every transaction of ``other`` is in this set."""
        return all(self.domains.get(domain, (0, -1))[1] >= last for domain, (_, last) in other.domains.items())

    def __bool__(self) -> bool:
        return bool(self.domains)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{last}" for domain, (server, last) in sorted(self.domains.items()))


AnyGtidSet = GtidSet | MariadbGtidSet


@lru_cache(maxsize=64)
def parse_gtid_set(text: str) -> AnyGtidSet | None:
    """The GTID set that ``text`` spells, of the kind its form shows; None for an empty text."""
    if not text.strip():
        return None
    # a MySQL uuid may begin with three groups of nothing but decimal digits
    mariadb = _MARIADB_GTID.fullmatch(text.partition(",")[0].strip())
    return MariadbGtidSet.parse(text) if mariadb else GtidSet.parse(text)


@runtime_checkable
class Position(Protocol):
    """A place in the source between two transactions. Values; printable; kept as JSON.

    Each kind of source has its own class with its own ``kind``; ``position_from_json`` finds it again.
    """

    @property
    def kind(self) -> str:
        """What tells the classes apart in JSON."""

    def reached(self, other: Position) -> bool:
        """Whether this place lies at or behind ``other``.

        Raises: ValueError - the two cannot be compared (different sources without common GTIDs).
        """

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form, with ``kind``."""


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """A place in a binlog."""

    file: str  # name without folder; "" when only the GTID set is known (a start by GTID)
    offset: int  # of the next event's first byte
    server: str = ""  # server_uuid (MySQL), "mariadb-<server_id>" (MariaDB), "" for files on disk
    gtid_set: str = ""  # executed up to here, canonical text; "" without GTIDs
    # When the server created the file, seconds since 1970: the header timestamp of its format description event.
    # MySQL and MariaDB keep it in a dump from any offset, and zero `created` in the event's body except from offset 4.
    # It identifies the log, not the offset in it, so it is not compared. 0: not known.
    created: int = field(default=0, compare=False)

    kind = "binlog"

    def reached(self, other: Position) -> bool:
        """See ``Position``. Same server: by file number and offset; else by GTID sets."""
        if not isinstance(other, BinlogPosition):
            raise ValueError(f"{self} and {other} are of different sources")
        mine, theirs = file_number(self.file), file_number(other.file)
        if self.server == other.server and mine and theirs and mine[0] == theirs[0]:
            return (mine[1], self.offset) >= (theirs[1], other.offset)
        seen, asked = parse_gtid_set(self.gtid_set), parse_gtid_set(other.gtid_set)
        if isinstance(seen, GtidSet) and isinstance(asked, GtidSet):
            return seen.contains(asked)
        if isinstance(seen, MariadbGtidSet) and isinstance(asked, MariadbGtidSet):
            return seen.contains(asked)
        raise ValueError(f"{self} and {other} have neither server nor GTIDs in common")

    def to_json(self) -> dict[str, Any]:
        """See ``Position``."""
        return {
            "kind": self.kind,
            "file": self.file,
            "offset": self.offset,
            "server": self.server,
            "gtid_set": self.gtid_set,
            "created": self.created,
        }

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}" if self.file else self.gtid_set


@dataclass(frozen=True, slots=True)
class CanalPosition:
    """A place in what a Canal server sends: the source's binlog file and offset, as Canal's entries tell them.

    Inside a transaction only where one alone filled the server's ring buffer. Without a file: wherever the server's
    own cursor stands, before everything that it sends.
    """

    file: str  # "" for the server's cursor
    offset: int  # between transactions: of the next event's first byte; inside one: of the last entry's event
    entry: int = 0  # entries of that event already seen, inside a transaction; 0 between two
    gtid_set: str = ""  # executed up to here, as Canal tells it; "" unless it reads by GTIDs
    newest_ms: int = 0  # newest event time of rows seen so far: rows that come again cannot be newer
    splits: int = 0  # transactions so far that had to be cut, since each filled the server's ring alone
    held: bool = False  # the server batch that ends here is not acked: whatever session is next begins with it

    kind = "canal"

    def reached(self, other: Position) -> bool:
        """See ``Position``. By GTID sets, since Canal may read another server now; else by file, offset and entry."""
        if not isinstance(other, CanalPosition):
            raise ValueError(f"{self} and {other} are of different sources")
        if not other.file:
            return True
        if not self.file:
            return False
        seen, asked = parse_gtid_set(self.gtid_set), parse_gtid_set(other.gtid_set)
        told = _both_ways(seen, asked)
        if told is not None and told != (True, True):
            return told[0]
        # the same transactions, or none are told: places beside and inside one
        mine, theirs = file_number(self.file), file_number(other.file)
        if mine and theirs and mine[0] == theirs[0]:
            return (mine[1], self.offset, self.entry) >= (theirs[1], other.offset, other.entry)
        if told is not None:
            return not self.entry
        raise ValueError(f"{self} and {other} have neither file name nor GTIDs in common")

    def is_followed_by(self, other: CanalPosition) -> bool:
        """Whether nothing lies between this place and ``other``, an entry's; False where it cannot be told."""
        if (self.file, self.offset) == (other.file, other.offset):
            return True
        return not self.entry and _is_one_more(self.gtid_set, other.gtid_set)

    def to_json(self) -> dict[str, Any]:
        """See ``Position``."""
        return {
            "kind": self.kind,
            "file": self.file,
            "offset": self.offset,
            "entry": self.entry,
            "gtid_set": self.gtid_set,
            "newest_ms": self.newest_ms,
            "splits": self.splits,
            "held": self.held,
        }

    def __str__(self) -> str:
        place = f"{self.file}:{self.offset}" if self.file else "the Canal server's cursor"
        return f"{place}+{self.entry}" if self.entry else place


def position_from_json(data: Mapping[str, Any]) -> Position:
    """The Position that ``to_json`` wrote. Raises: ValueError - a kind this version does not know."""
    if data.get("kind") == CanalPosition.kind:
        fields = ("file", "offset", "entry", "gtid_set", "newest_ms", "splits", "held")
        return CanalPosition(*(data[field] for field in fields))
    if data.get("kind") == BinlogPosition.kind:
        # positions saved by older versions have no "created"
        return BinlogPosition(
            data["file"], data["offset"], data["server"], data["gtid_set"], created=data.get("created", 0)
        )
    raise ValueError(f"a position of kind {data.get('kind')!r} is not known to this version")


def _is_one_more(before: str, after: str) -> bool:
    """Whether the GTID set ``after`` is the set ``before`` and a single transaction more."""
    seen, now = parse_gtid_set(before), parse_gtid_set(after)
    if isinstance(seen, GtidSet) and isinstance(now, GtidSet):
        return now.contains(seen) and now.count() == seen.count() + 1
    if isinstance(seen, MariadbGtidSet) and isinstance(now, MariadbGtidSet):
        steps = [last - seen.domains.get(domain, (0, 0))[1] for domain, (_, last) in now.domains.items()]
        return now.contains(seen) and sum(steps) == 1
    return False


def _both_ways(one: AnyGtidSet | None, other: AnyGtidSet | None) -> tuple[bool, bool] | None:
    """Whether each contains the other; None where they cannot be compared."""
    if isinstance(one, GtidSet) and isinstance(other, GtidSet):
        return one.contains(other), other.contains(one)
    if isinstance(one, MariadbGtidSet) and isinstance(other, MariadbGtidSet):
        return one.contains(other), other.contains(one)
    return None


def file_number(name: str) -> tuple[str, int] | None:
    """Return base name and number of a binlog file name, or None where it has no number."""
    base, _, number = name.rpartition(".")
    return (base, int(number)) if number.isdecimal() else None


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    return tuple(_merge(sorted(intervals)))


def _merge(intervals: list[Interval]) -> Iterator[Interval]:
    if not intervals:
        return
    start, end = intervals[0]
    for first, last in intervals[1:]:
        if first > end + 1:
            yield start, end
            start, end = first, last
        else:
            end = max(end, last)
    yield start, end
