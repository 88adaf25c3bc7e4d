"""The GTID set at the position read up to, updated from arrays of numbers: no Python work per transaction."""

from __future__ import annotations

import numpy as np

from cdc.model.gtid import AnyGtidSet, GtidSet, MariadbGtidSet, parse_gtid_set
from cdc.sources.binlog.decoder.event_fields import ORIGIN_BYTES
from cdc.sources.binlog.decoder.events import uuid_text
from cdc.sources.binlog.decoder.framing import GNO, ORIGIN

_MARIADB = 255


class Gtids:
    """The GTID set. The kernel writes to ``origins``: 64 bytes per source of GTIDs (see ``framing``)."""

    def __init__(self, known: str, origins: int, *, is_complete: bool = False) -> None:
        """``is_complete``: an empty ``known`` means that nothing was executed, not that the set is unknown."""
        self.origins = np.zeros(origins * ORIGIN_BYTES + 64, np.uint8)[: origins * ORIGIN_BYTES]
        # None: the set executed before the start is not known
        self._set: AnyGtidSet | None = parse_gtid_set(known) or (GtidSet.empty() if is_complete else None)
        self._text: str | None = None

    def grow(self) -> None:
        """Make room for twice as many sources."""
        larger = np.zeros(2 * len(self.origins), np.uint8)
        larger[: len(self.origins)] = self.origins
        self.origins = larger

    @property
    def text(self) -> str:
        """Return the set as text; "" if it is not known or the server has no GTIDs."""
        if self._text is None:
            self._text = str(self._set or "")
        return self._text

    def text_with(self, origin: int, number: int) -> str:
        """Return the set with one more transaction, as text."""
        extended = self._with(self._set, origin, np.array([number]))
        return str(extended or "")

    def adopt(self, executed: AnyGtidSet) -> None:
        """Use ``executed``, the transactions before the beginning of a file, if the set is not known or lacks some."""
        if not self._set or self.lacks(executed):
            self._set, self._text = executed, None

    def lacks(self, executed: AnyGtidSet) -> bool:
        """Return whether ``executed`` has transactions that are not in the set. False if the set is not known."""
        known = self._set
        if isinstance(known, GtidSet) and isinstance(executed, GtidSet):
            return bool(known) and not known.contains(executed)
        if isinstance(known, MariadbGtidSet) and isinstance(executed, MariadbGtidSet):
            return bool(known) and not known.contains(executed)
        return False

    def add(self, transactions: np.ndarray) -> None:
        """Add ended transactions, in order."""
        origins = transactions[:, ORIGIN]
        if self._set is None or origins.max(initial=-1) < 0:
            return
        present, last_index = np.unique(origins[::-1], return_index=True)
        # If a MariaDB domain has several servers, the server of the last transaction must be added last.
        for origin in present[np.argsort(-last_index)].tolist():
            self._set = self._with(self._set, origin, transactions[origins == origin, GNO])
        self._text = None

    def _with(self, executed: AnyGtidSet | None, origin: int, numbers: np.ndarray) -> AnyGtidSet | None:
        if executed is None or origin < 0:
            return executed
        raw = self.origins[origin * ORIGIN_BYTES : (origin + 1) * ORIGIN_BYTES].tobytes()
        if raw[16] == _MARIADB:
            known = executed if isinstance(executed, MariadbGtidSet) else MariadbGtidSet.empty()
            domain, server = int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:8], "little")
            return known.add(domain, server, int(numbers[-1]))
        known_set = executed if isinstance(executed, GtidSet) else GtidSet.empty()
        steps = np.diff(numbers)
        if (steps < 1).any():
            numbers = np.sort(numbers)
            numbers = numbers[np.concatenate(([True], np.diff(numbers) > 0))]
            steps = np.diff(numbers)
        breaks = np.flatnonzero(steps != 1)
        first = numbers[np.concatenate(([0], breaks + 1))]
        last = numbers[np.concatenate((breaks, [len(numbers) - 1]))]
        tag = raw[17 : 17 + raw[16]].decode("ascii", "replace")
        intervals = list(zip(first.tolist(), last.tolist(), strict=True))
        return known_set.add(uuid_text(raw[:16]), tag, intervals)
