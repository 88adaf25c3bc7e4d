"""Chunks: key ranges of a table, and how far its snapshot has come. Saved with every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from cdc.position import Position, position_from_json

Bound = tuple[str, ...]  # a value per key column, as text that the server reads back without loss


class SnapshotState(Enum):
    """How far a table has come."""

    WAITING = "waiting"  # not a row was read
    READING = "reading"
    SWEEPING = "sweeping"  # all rows are read; those that the source no longer has leave the target
    CATCHING_UP = "catching_up"  # the stream has not yet passed the end of the last chunk
    CONSISTENT = "consistent"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows whose key is greater than ``above`` and not greater than ``upto``; None: no such end."""

    number: int  # within its table, in key order
    above: Bound | None
    upto: Bound | None
    estimated_rows: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Chunk:
        """The chunk that ``asdict`` gave, read from JSON."""
        above, upto = (None if data[end] is None else tuple(data[end]) for end in ("above", "upto"))
        return cls(data["number"], above, upto, data["estimated_rows"])


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One table's snapshot. A changed one is a new value."""

    state: SnapshotState = SnapshotState.WAITING
    where: str | None = None  # rows that are wanted, in the source's SQL; None: all
    sweeps: bool = False  # whether rows that the source no longer has leave the target
    open: tuple[Chunk, ...] = ()  # what is not read yet; a chunk read in part begins behind what was read
    chunks: int = 0
    done: int = 0
    rows: int = 0
    bytes: int = 0
    estimated_rows: int = 0
    last_key: Bound | None = None  # of the last chunk; None: it has no end
    counted_rows: int | None = None  # COUNT(*) up to the last key before the first chunk; None: it took too long
    seconds: float = 0.0  # spent in turns
    low: Position | None = None  # low watermark: the stream stood there when the first chunk was read
    high: Position | None = None  # high watermark: the source stood there when the last chunk was read
    consistent_since: str | None = None  # ISO 8601, UTC

    @property
    def is_due(self) -> bool:
        """Whether there is something left to read."""
        return self.state in (SnapshotState.WAITING, SnapshotState.READING, SnapshotState.SWEEPING)

    def passed(self, position: Position, now: str, *, caught_up: bool) -> TableSnapshot:
        """The same after the stream has reached ``position``; ``caught_up``: it has passed the end in any case."""
        if self.state is not SnapshotState.CATCHING_UP or self.high is None:
            return self
        try:
            if not caught_up and not position.reached(self.high):
                return self
        except ValueError:
            return self  # another server took over, whose places cannot be compared: the stream's end tells
        return replace(self, state=SnapshotState.CONSISTENT, consistent_since=now)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            **asdict(replace(self, low=None, high=None, open=())),
            "state": self.state.value,
            "open": [asdict(chunk) for chunk in self.open],
            "low": self.low.to_json() if self.low else None,
            "high": self.high.to_json() if self.high else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableSnapshot:
        """The snapshot that ``to_json`` wrote."""
        return cls(
            **{
                **data,
                "state": SnapshotState(data["state"]),
                "last_key": tuple(data["last_key"]) if data.get("last_key") is not None else None,
                "open": tuple(Chunk.from_json(chunk) for chunk in data["open"]),
                "low": position_from_json(data["low"]) if data["low"] else None,
                "high": position_from_json(data["high"]) if data["high"] else None,
            }
        )
