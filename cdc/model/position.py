"""Positions in the source between two transactions.

Source: MySQL manual, "GTID Sets"; MariaDB knowledge base, "Global Transaction ID".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from cdc.model.gtid import AnyGtidSet, GtidSet, MariadbGtidSet, parse_gtid_set
from cdc.model.kafka_position import KafkaPosition


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """A position in a binlog."""

    file: str  # name without folder; "" if only the GTID set is known (a start by GTID)
    offset: int  # of the first byte of the next event
    server: str = ""  # server_uuid (MySQL), "mariadb-<server_id>" (MariaDB), "" for files on disk
    gtid_set: str = ""  # executed up to here, canonical text; "" without GTIDs
    # Time at which the server created the file, in seconds since 1970: the header timestamp of its format description
    # event. MySQL and MariaDB send it in a dump from any offset, but they set `created` in the body of the event to
    # zero, except from offset 4. It identifies the log, not the offset, so it is not compared. 0: unknown.
    created: int = field(default=0, compare=False)
    # The stream that was read up to here was opened by GTID: the server did not send transactions that the job had
    # already. From the same offset on, it sends them.
    by_gtid: bool = field(default=False, compare=False)
    kind: Literal["binlog"] = "binlog"

    def reached(self, other: Position) -> bool:
        """Return whether this position is at ``other`` or after it.

        Positions of one server are compared by file number and offset, others by GTID sets.

        Raises: ValueError - the positions cannot be compared (different sources without common GTIDs).
        """
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
        """Return the fields as JSON-ready values."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}" if self.file else self.gtid_set


@dataclass(frozen=True, slots=True)
class CanalPosition:
    """A position in the stream of a Canal server: binlog file and offset of the source, as in Canal's entries.

    It is inside a transaction only if this transaction alone filled the server's ring buffer. Without a file it is the
    position of the server's own cursor, which is before everything that the server sends.
    """

    file: str  # "" for the server's cursor
    offset: int  # between transactions: of the first byte of the next event; inside one: of the last entry's event
    entry: int = 0  # inside a transaction: number of entries of that event already seen; 0 between transactions
    gtid_set: str = ""  # executed up to here, as reported by Canal; "" unless it reads by GTIDs
    newest_ms: int = 0  # newest event time of the rows seen so far: rows that are delivered again cannot be newer
    splits: int = 0  # number of transactions that were split, because each filled the server's ring buffer alone
    marker_batch: bool = False  # the server batch that ends here is not acked: the next session starts with this batch
    xid: str = ""  # inside an XA transaction, whose rows are omitted because the user accepted that
    begin: int = field(default=0, compare=False)  # inside a transaction: offset of its BEGIN entry; 0: unknown
    kind: Literal["canal"] = "canal"

    def reached(self, other: Position) -> bool:
        """Return whether this position is at ``other`` or after it.

        Positions are compared by GTID sets, because Canal may have changed its server. Without GTIDs they are compared
        by file, offset and entry.

        Raises: ValueError - the positions cannot be compared (different sources without common GTIDs).
        """
        if not isinstance(other, CanalPosition):
            raise ValueError(f"{self} and {other} are of different sources")
        if not other.file:
            return True
        if not self.file:
            return False
        seen, asked = parse_gtid_set(self.gtid_set), parse_gtid_set(other.gtid_set)
        contained = _both_ways(seen, asked)
        if contained is not None and contained != (True, True):
            return contained[0]
        # equal GTID sets or none: compare the offsets
        mine, theirs = file_number(self.file), file_number(other.file)
        if mine and theirs and mine[0] == theirs[0]:
            return (mine[1], self.offset, self.entry) >= (theirs[1], other.offset, other.entry)
        if contained is not None:
            return not self.entry
        raise ValueError(f"{self} and {other} have neither file name nor GTIDs in common")

    def is_followed_by(self, other: CanalPosition) -> bool:
        """Return whether ``other``, the position of an entry, directly follows this one; False if this is unknown."""
        if (self.file, self.offset) == (other.file, other.offset):
            return True
        return not self.entry and _is_one_more(self.gtid_set, other.gtid_set)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"{self.file}:{self.offset}" if self.file else "the Canal server's cursor"
        return f"{text}+{self.entry}" if self.entry else text


# A position in the source between two transactions: one class for each kind of source, named by its field ``kind``.
Position: TypeAlias = BinlogPosition | CanalPosition | KafkaPosition
_CLASSES: dict[str, Callable[[Mapping[str, Any]], Position]] = {
    "binlog": lambda data: BinlogPosition(**data),
    "canal": lambda data: CanalPosition(**data),
    "kafka": KafkaPosition.from_json,
}


def position_from_json(data: Mapping[str, Any]) -> Position:
    """Return the Position of ``to_json``. Raises: ValueError - this version does not know its kind."""
    found = _CLASSES.get(str(data.get("kind")))
    if found is None:
        raise ValueError(f"a position of kind {data.get('kind')!r} is not known to this version")
    return found(data)


def _is_one_more(before: str, after: str) -> bool:
    """Return whether the GTID set ``after`` has exactly one transaction more than ``before``."""
    seen, now = parse_gtid_set(before), parse_gtid_set(after)
    if isinstance(seen, GtidSet) and isinstance(now, GtidSet):
        return now.contains(seen) and now.count() == seen.count() + 1
    if isinstance(seen, MariadbGtidSet) and isinstance(now, MariadbGtidSet):
        steps = [last - seen.domains.get(domain, (0, 0))[1] for domain, (_, last) in now.domains.items()]
        return now.contains(seen) and sum(steps) == 1
    return False


def _both_ways(one: AnyGtidSet | None, other: AnyGtidSet | None) -> tuple[bool, bool] | None:
    """Return whether each set contains the other; None if they cannot be compared."""
    if isinstance(one, GtidSet) and isinstance(other, GtidSet):
        return one.contains(other), other.contains(one)
    if isinstance(one, MariadbGtidSet) and isinstance(other, MariadbGtidSet):
        return one.contains(other), other.contains(one)
    return None


def file_number(name: str) -> tuple[str, int] | None:
    """Return base name and number of a binlog file name; None if it has no number."""
    base, _, number = name.rpartition(".")
    return (base, int(number)) if number.isdecimal() else None
