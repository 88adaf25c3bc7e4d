"""Notices a Canal server whose own reading of MySQL has stopped: it tries again for ever, and tells nobody."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cdc.binlog.server import Server
from cdc.errors import CdcError, SourceUnavailable
from cdc.position import BinlogPosition

log = logging.getLogger(__name__)

ASK_EVERY_S = 10.0  # Canal lets an empty transaction through every 5 s: what MySQL writes shows within that time


class StallWatch:
    """Compares what comes from Canal with what MySQL writes.

    MySQL's binlog that went on twice ``every_s`` ago while nothing has come since is a stall. Transactions of tables
    that Canal filters out are no excuse: it passes one of them on every few seconds.
    """

    def __init__(self, ask: Callable[[], Server] | None, *, every_s: float = ASK_EVERY_S) -> None:
        """``ask``: opens a connection to the MySQL server; None: nothing can be known."""
        self.trouble: CdcError | None = None
        self._ask = ask
        self._every_s = every_s
        self._came_at = 0.0
        self._asked_at = 0.0
        self._end: BinlogPosition | None = None  # of the binlog, when first asked since something came
        self._moved_at: float | None = None  # when it was first seen elsewhere

    def look(self, came_at: float) -> None:
        """Ask, if it is time to. ``came_at``: when the newest entry came, monotonic seconds."""
        now = time.monotonic()
        if came_at != self._came_at:
            if self.trouble is not None:
                log.info("Canal goes on")
            self._came_at = self._asked_at = came_at
            self._end = self._moved_at = self.trouble = None
        if self._ask is None or now - self._asked_at < self._every_s:
            return
        self._asked_at = now
        end = self._ended(self._ask)
        if end is None:
            return
        first = self._end = self._end or end
        if self._moved_at is None:
            self.trouble = None  # MySQL may have been away
            self._moved_at = now if (end.file, end.offset) != (first.file, first.offset) else None
        elif self.trouble is None:
            self._warn(end)

    def _ended(self, ask: Callable[[], Server]) -> BinlogPosition | None:
        try:
            with ask() as server:
                return server.position()
        except CdcError as error:
            if isinstance(error, SourceUnavailable) and "privilege" not in error.message:
                self.trouble = error  # Canal cannot read it either
            else:
                log.warning("a stalled Canal cannot be noticed: %s", error)
                self._ask = None
            return None

    def _warn(self, end: BinlogPosition) -> None:
        silent_s = round(time.monotonic() - self._came_at)
        self.trouble = SourceUnavailable(
            "Canal stands still: the source's binlog goes on, and nothing comes from Canal.",
            mend="Look into the Canal server's log: a purged binlog, a refused login or a statement that it cannot "
            "parse stops its reading, and it tells its clients nothing.",
            binlog_at=end,
            silent_for=f"{silent_s} s",
        )
        log.warning("%s", self.trouble)
