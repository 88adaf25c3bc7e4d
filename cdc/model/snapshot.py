"""Snapshots: chunks of a table, and the progress of its snapshot. Saved with every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from cdc.model.position import Position

Bound = tuple[str, ...]  # one value per key column, as text that the server converts back without loss


class SnapshotState(StrEnum):
    """The states of a table's snapshot."""

    WAITING = "waiting"  # no row was read yet
    READING = "reading"
    DELETING_ORPHANS = "deleting_orphans"  # all rows are read; orphan rows are deleted from the target
    CATCHING_UP = "catching_up"  # the stream has not reached the high watermark yet
    CONSISTENT = "consistent"


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows whose key is greater than ``above`` and not greater than ``upto``; None: no limit on this side."""

    number: int  # within its table, in key order
    above: Bound | None
    upto: Bound | None
    estimated_rows: int = 0
    is_slow: bool = False  # a whole step found no row of it: it is split, or read up to its first row without a limit


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A request to load a table again. It is saved until a COMMITTED checkpoint contains it."""

    table: str
    where: str | None = None  # condition of the rows to load, in the source's SQL; None: all
    number: int = 0  # of a saved request: increasing, never used again; 0: it is not saved


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The snapshot of one table. A changed one is a new value."""

    state: SnapshotState = SnapshotState.WAITING
    where: str | None = None  # condition of the rows to load, in the source's SQL; None: all
    deletes_orphans: bool = False  # whether it deletes orphan rows
    open: tuple[Chunk, ...] = ()  # chunks that are not read yet; one that was read in part starts after its last key
    chunks: int = 0
    done: int = 0
    rows: int = 0
    bytes: int = 0
    estimated_rows: int = 0
    last_key: Bound | None = None  # upper end of the last chunk; None: it has no end
    counted_rows: int | None = None  # COUNT(*) up to the last key, at the first chunk; None: it failed or took too long
    seconds: float = 0.0  # duration of its snapshot steps
    low: Position | None = None  # low watermark: position of the stream when the first chunk was read
    high: Position | None = None  # high watermark: position of the source when the last chunk was read
    consistent_since: str | None = None  # ISO 8601, UTC
    compared_key: str | None = (
        None  # last compared key of the target (``cdc.snapshot.orphan_rows.key_text``); None: none yet
    )
    request: int = 0  # number of the newest saved request that it carries out; 0: none
    order: str | None = None  # ``KeyOrder.text`` of the chunks; None: it is not known
    is_second_reading: bool = False  # the first one lacked most rows of the table

    @property
    def is_due(self) -> bool:
        """Whether rows must be read or orphan rows deleted."""
        return self.state in (SnapshotState.WAITING, SnapshotState.READING, SnapshotState.DELETING_ORPHANS)

    def again(self) -> TableSnapshot:
        """Return the snapshot before its second reading, with no row read."""
        return TableSnapshot(
            where=self.where, deletes_orphans=self.deletes_orphans, request=self.request, is_second_reading=True
        )

    def has_removed(self, position: Position) -> bool:
        """Return whether it has deleted all rows that the source did not have any more at ``position``."""
        if self.state is not SnapshotState.CONSISTENT or not self.deletes_orphans or self.low is None:
            return False
        try:
            return self.low.reached(position)
        except ValueError:
            return False  # after a failover positions cannot be compared

    def advance(self, position: Position, now: str, *, caught_up: bool) -> TableSnapshot:
        """Return the snapshot after the stream has reached ``position``; ``caught_up``: at the end of the source."""
        if self.state is not SnapshotState.CATCHING_UP or self.high is None:
            return self
        try:
            if not caught_up and not position.reached(self.high):
                return self
        except ValueError:
            return self  # after a failover positions cannot be compared: wait for the end of the source
        return replace(self, state=SnapshotState.CONSISTENT, consistent_since=now)
