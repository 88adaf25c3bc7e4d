"""Limits for undecided XA transactions. Their rows block the commit of all later transactions.

The decoder keeps the rows of a prepared XA transaction until its XA COMMIT or XA ROLLBACK, and the job's position stays
before it. ``reader`` checks the limits after each read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from cdc.errors import CdcError, SourceActionRequired
from cdc.model.position import BinlogPosition
from cdc.sources.binlog.decoder.xa import OpenXa

HELD_S = 30.0  # the status warns if XA transactions have blocked commits for longer


class XaWatch:
    """Watch how long XA transactions with rows of mapped tables stay undecided.

    Calls: the reading thread; ``warning`` from any thread.
    """

    def __init__(self, limit_s: float, limit_bytes: int) -> None:
        """``limit_s``, ``limit_bytes``: how long a transaction may stay open, and how many bytes its rows may take."""
        self._limit_s = limit_s
        self._limit_bytes = limit_bytes
        self._seen: dict[BinlogPosition, float] = {}  # when this process read its first row, by start position
        self._held_since: float | None = None  # since then some transaction has always been undecided

    def note_released(self) -> None:
        """Record that commits are not blocked at this moment."""
        self._held_since = None

    def check(self, undecided: Sequence[OpenXa]) -> None:
        """Raise SourceActionRequired if one of these transactions exceeds a limit."""
        now = time.monotonic()
        if not undecided:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = now
        self._seen = {xa.since: self._seen.get(xa.since, now) for xa in undecided}
        for xa in undecided:
            # In an old log only the time since this process read it counts: the next event may be its decision.
            age_s = min(time.time() - xa.started_us / 1e6, now - self._seen[xa.since])
            if age_s <= self._limit_s and xa.bytes <= self._limit_bytes:
                continue
            raise SourceActionRequired(
                f"XA transaction {xa.xid or '(not yet prepared)'} has {xa.bytes >> 20} MiB of rows of mapped tables "
                f"and has been undecided for {age_s:.0f} s.",
                hint="Decide it with XA COMMIT or XA ROLLBACK (XA RECOVER lists it)"
                + (", or raise memory.window." if xa.bytes > self._limit_bytes else "."),
                xid=xa.xid,
                position=xa.since,
            )

    def warning(self, position: BinlogPosition) -> CdcError | None:
        """Return a warning if commits have been blocked at ``position`` for longer than ``HELD_S``."""
        held_since = self._held_since
        held_s = time.monotonic() - held_since if held_since is not None else 0.0
        if held_s <= HELD_S:
            return None
        return SourceActionRequired(
            f"Undecided XA transactions with rows of mapped tables have blocked all commits for {held_s:.0f} s.",
            hint="Decide them with XA COMMIT or XA ROLLBACK (XA RECOVER lists them), and sooner if they overlap.",
            position=position,
        )


def refuse_undecided(undecided: Sequence[OpenXa]) -> None:
    """Raise SourceActionRequired if the files end while a transaction is undecided."""
    for xa in undecided:
        raise SourceActionRequired(
            f"The files end before XA transaction {xa.xid or '(not yet prepared)'} is decided. It has rows of mapped "
            "tables.",
            hint="Add the next binlog files, up to its XA COMMIT or XA ROLLBACK, then run `cdc resume NAME`.",
            xid=xa.xid,
            position=xa.since,
        )
