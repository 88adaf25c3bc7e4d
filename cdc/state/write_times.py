"""How long a run waits for its writes to the state store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LIMITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # a write is repeated for some 10 s


def _none() -> dict[str, int]:
    return {str(limit): 0 for limit in LIMITS_S}


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """The writes of a process to the state store, as the histogram ``cdc_store_seconds``. Values: never changed."""

    writes: int = 0  # with those that failed
    seconds: float = 0.0  # all writes together
    within: Mapping[str, int] = field(default_factory=_none)  # by seconds: how many writes took at most so long

    def with_write(self, seconds: float) -> WriteTimes:
        """Return the times with one more write, of ``seconds``."""
        within = {limit: count + (seconds <= float(limit)) for limit, count in self.within.items()}
        return WriteTimes(self.writes + 1, self.seconds + seconds, within)
