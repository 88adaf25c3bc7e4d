"""Lines of the log of a job, as a host returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines of a log, and the offset after them. After a move, the log of a job is another file on another host."""

    lines: Sequence[str]
    offset: int  # valid in the log ``log_id`` only
    host: str
    log_id: str  # random, of ``$CDC_HOME`` on this host; "": a host with an older version does not return it

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the lines of an answer."""
        lines = [str(line) for line in data["lines"]]
        return cls(lines, int(data["offset"]), str(data.get("host") or ""), str(data.get("log_id") or ""))
