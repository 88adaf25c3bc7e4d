"""GTID sets of MySQL and MariaDB."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
Interval = tuple[int, int]  # first and last gno, both included


@dataclass(frozen=True, slots=True)
class GtidSet:
    """A GTID set of MySQL: ``(uuid, tag) -> intervals``, sorted and disjoint. The tag is "" for GTIDs without one."""

    intervals: Mapping[tuple[str, str], tuple[Interval, ...]]

    @classmethod
    def empty(cls) -> GtidSet:
        """Return the empty set."""
        return cls({})

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Return the set of ``uuid:1-5:9:tag:1-3, uuid2:...``, as servers print it. Raises: ValueError."""
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
        """Return a new set with ``intervals`` of one server and tag added."""
        known = self.intervals.get((uuid, tag), ())
        return GtidSet(dict(sorted({**self.intervals, (uuid, tag): _merged([*known, *intervals])}.items())))

    def union(self, other: GtidSet) -> GtidSet:
        """Return the transactions in either set."""
        result = self
        for (uuid, tag), intervals in other.intervals.items():
            result = result.add(uuid, tag, intervals)
        return result

    def intersection(self, other: GtidSet) -> GtidSet:
        """Return the transactions in both sets."""
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
        """Return the number of transactions."""
        return sum(last - first + 1 for intervals in self.intervals.values() for first, last in intervals)

    def contains(self, other: GtidSet) -> bool:
        """Return whether every transaction of ``other`` is in this set."""
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
    """A GTID position of MariaDB: ``domain -> (server id, sequence number)`` of the last transaction."""

    domains: Mapping[int, tuple[int, int]]

    @classmethod
    def empty(cls) -> MariadbGtidSet:
        """Return the empty set."""
        return cls({})

    @classmethod
    def parse(cls, text: str) -> MariadbGtidSet:
        """Return the position of ``0-1-10,7-2-3``. Raises: ValueError."""
        domains = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _MARIADB_GTID.fullmatch(part)
            if match is None:
                raise ValueError(f"not a MariaDB GTID: {part!r}")
            domain, server, sequence = map(int, match.groups())
            domains[domain] = (server, sequence)
        return cls(dict(sorted(domains.items())))

    def add(self, domain: int, server: int, sequence: int) -> MariadbGtidSet:
        """Return a new position with one more transaction. It replaces the older one of its domain."""
        return MariadbGtidSet(dict(sorted({**self.domains, domain: (server, sequence)}.items())))

    def contains(self, other: MariadbGtidSet) -> bool:
        """Return whether every transaction of ``other`` is in this set."""
        return all(self.domains.get(domain, (0, -1))[1] >= last for domain, (_, last) in other.domains.items())

    def __bool__(self) -> bool:
        return bool(self.domains)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{last}" for domain, (server, last) in sorted(self.domains.items()))


AnyGtidSet = GtidSet | MariadbGtidSet


@lru_cache(maxsize=64)
def parse_gtid_set(text: str) -> AnyGtidSet | None:
    """Return the GTID set of ``text``, of MySQL or MariaDB by its form; None for an empty text. Raises: ValueError."""
    if not text.strip():
        return None
    # match the whole GTID, because a MySQL uuid may begin with three groups of decimal digits
    mariadb = _MARIADB_GTID.fullmatch(text.partition(",")[0].strip())
    return MariadbGtidSet.parse(text) if mariadb else GtidSet.parse(text)


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
