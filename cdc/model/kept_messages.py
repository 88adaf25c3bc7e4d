"""What is known at a position about messages that could not be decoded and were kept as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class KeptMessages:
    """The kept messages up to a position. A part of the position, so every checkpoint has it.

    Two values are equal if as many replays precede them: the rest follows from the position.
    """

    replays: int = 0  # files of messages before the last replay are no longer needed
    loaded: int = field(default=0, compare=False)  # messages that replays have loaded
    tables: tuple[tuple[str, int], ...] = field(default=(), compare=False)  # kept ones by source table; "": not known
    # the parts of the window of `source.bad_rows`, oldest first: messages read, bad ones of them
    window: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    @property
    def count(self) -> int:
        """The number of messages that are kept now."""
        return sum(number for _, number in self.tables)

    def to_json(self) -> list[Any]:
        """Return the fields as JSON-ready values."""
        return [self.replays, self.loaded, dict(self.tables), [list(part) for part in self.window]]

    @classmethod
    def from_json(cls, data: Any) -> KeptMessages:
        """Return the value of ``to_json``; of None the one of an older version, which kept nothing."""
        if data is None:
            return NOTHING_KEPT
        replays, loaded, tables, window = data
        return cls(replays, loaded, by_table(tables), tuple((messages, bad) for messages, bad in window))


NOTHING_KEPT = KeptMessages()


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How much of the topics was read again, to load kept messages. A topic with deleted messages ends early."""

    read: int = 0  # messages
    total: int = 0


def by_table(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return ``KeptMessages.tables`` of counts by source table."""
    return tuple(sorted((table, number) for table, number in counts.items() if number))
