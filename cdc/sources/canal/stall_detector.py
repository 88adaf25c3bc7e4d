"""Detect a Canal server that no longer reads MySQL: it retries for ever and reports no error to its clients.

The detector compares the end of MySQL's binlog with the arrival of entries. It needs ``source.mysql``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cdc.errors import CdcError, SourceUnavailable
from cdc.model.position import BinlogPosition
from cdc.mysql.server import Server

log = logging.getLogger(__name__)

ASK_EVERY_S = 10.0  # Canal sends an empty transaction every 5 s if MySQL writes, so entries arrive within this time


class StallDetector:
    """Check whether entries arrive from Canal while MySQL writes to its binlog.

    Canal is stalled if the end of MySQL's binlog moved more than ``every_s`` ago and no entry has arrived since. Tables
    that Canal filters do not cause a false alarm: Canal sends an empty transaction every few seconds.
    """

    def __init__(self, ask: Callable[[], Server] | None, *, every_s: float = ASK_EVERY_S) -> None:
        """``ask``: opens a connection to the MySQL server; None: a stall cannot be detected."""
        self.warning: CdcError | None = None
        self._ask = ask
        self._every_s = every_s
        self._came_at = 0.0
        self._asked_at = 0.0
        self._end: BinlogPosition | None = None  # end of the binlog at the first query after the newest entry
        self._moved_at: float | None = None  # when a query first returned another end

    def check(self, came_at: float) -> None:
        """Query MySQL if ``every_s`` has passed. ``came_at``: when the newest entry arrived, monotonic seconds."""
        now = time.monotonic()
        if came_at != self._came_at:
            if self.warning is not None:
                log.info("entries arrive from Canal again")
            self._came_at = self._asked_at = came_at
            self._end = self._moved_at = self.warning = None
        if self._ask is None or now - self._asked_at < self._every_s:
            return
        self._asked_at = now
        end = self._ended(self._ask)
        if end is None:
            return
        first = self._end = self._end or end
        if self._moved_at is None:
            self.warning = None  # MySQL may have been unreachable
            self._moved_at = now if (end.file, end.offset) != (first.file, first.offset) else None
        elif self.warning is None:
            self._warn(end)

    def _ended(self, ask: Callable[[], Server]) -> BinlogPosition | None:
        try:
            with ask() as server:
                return server.position()
        except CdcError as error:
            if isinstance(error, SourceUnavailable) and "privilege" not in error.message:
                self.warning = error  # Canal cannot read MySQL either
            else:
                log.warning("cannot detect whether Canal stalls: %s", error)
                self._ask = None
            return None

    def _warn(self, end: BinlogPosition) -> None:
        silent_s = round(time.monotonic() - self._came_at)
        self.warning = SourceUnavailable(
            "Canal is stalled: the source's binlog grows, but no entries arrive from Canal.",
            hint="Read the Canal server's log. A purged binlog, a refused login or a statement that it cannot parse "
            "stops its reading, and it does not report this to its clients.",
            binlog_at=end,
            silent_for=f"{silent_s} s",
        )
        log.warning("%s", self.warning)
