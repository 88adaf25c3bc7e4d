"""The window of `source.bad_rows`: how many of the last messages were bad."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_PARTS = 10  # of a window; the oldest one leaves it as a whole
_ENOUGH = 1000  # messages from which a ratio says something


@dataclass(frozen=True, slots=True)
class BadLimits:
    """How many messages may be bad before the job stops."""

    max_rows: int  # in the window
    window_rows: int = 2_000_000  # messages
    max_ratio: float = 1.0  # of the messages in the window


class BadWindow:
    """Counts the last messages, in parts. Calls: one thread."""

    def __init__(self, limits: BadLimits, parts: Iterable[tuple[int, int]] = ()) -> None:
        """``parts``: those that ``parts`` returned."""
        self._limits = limits
        self._size = -(-limits.window_rows // _PARTS)  # messages of a part
        self._most = -(-limits.window_rows // self._size)  # parts
        self._parts = [list(part) for part in parts]

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The parts, oldest first: messages, bad ones of them."""
        return tuple((messages, bad) for messages, bad in self._parts)

    def skip(self, messages: int) -> None:
        """Count messages that are not bad."""
        whole = messages // self._size - self._most  # parts that would leave the window again
        messages -= max(0, whole) * self._size
        while messages > 0:
            if not self._parts or self._parts[-1][0] >= self._size:
                self._parts.append([0, 0])
            taken = min(messages, self._size - self._parts[-1][0])
            self._parts[-1][0] += taken
            messages -= taken
            del self._parts[: max(0, len(self._parts) - self._most)]

    def add_bad(self) -> str:
        """Count a bad message. Return which limit it exceeds, "" if it exceeds none."""
        self.skip(1)
        self._parts[-1][1] += 1
        messages, bad = (sum(part[n] for part in self._parts) for n in (0, 1))
        if bad > self._limits.max_rows:
            return f"{bad:,} of the last {messages:,} messages are bad, more than `source.bad_rows.max_rows`"
        if messages < min(_ENOUGH, self._limits.window_rows):
            return ""
        if bad > messages * self._limits.max_ratio:
            return f"{bad:,} of the last {messages:,} messages are bad, more than `source.bad_rows.max_ratio`"
        return f"all of the last {messages:,} messages are bad" if bad == messages else ""
