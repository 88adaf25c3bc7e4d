"""Decide which batches of a Canal server are acked.

The newest committed batch is not acked until a part of the next batch is committed. The next session then begins with a
known entry; if it does not, rows are missing. ``CanalPosition.marker_batch`` records that a batch is kept for this
purpose (the marker batch). The first batch of a new server is acked at once, because the server saves a cursor only
after an ack.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import NamedTuple

from cdc.model.position import CanalPosition
from cdc.sources.canal.fetcher import Fetched, Fetcher
from cdc.sources.canal.positions import EntryPositions

HELD_MOST = 1 / 4  # part of ring or window; a larger batch, such as one with a huge row, is not kept


class _Unacked(NamedTuple):
    """A server batch that is not acked, and the positions of its first and last entry."""

    fetched: Fetched
    first: CanalPosition
    last: CanalPosition


class AckTracker:
    """Ack each server batch that is committed as a whole, except the one that is kept for the next session."""

    def __init__(self, start: CanalPosition) -> None:
        self.committed = start
        self.unacked: deque[_Unacked] = deque()
        self.keeps_marker = False  # the batch that is read now may be kept
        self._may_keep_marker = start.marker_batch
        self._session_start = start  # what was read when the session's first batch arrived

    def begin_session(self, fetched: Fetched, read_to: CanalPosition) -> None:
        """Begin a session: all unacked batches arrive again. ``read_to``: the position read up to."""
        self.unacked.clear()
        self._session_start = read_to
        self._may_keep_marker &= not fetched.server_is_new  # a new server may have no cursor yet

    def add(self, fetched: Fetched, positions: EntryPositions, part: float, read_to: CanalPosition) -> None:
        """Track a batch that takes ``part`` of the ring."""
        self._may_keep_marker |= read_to != self._session_start
        self.keeps_marker = self._may_keep_marker and part <= HELD_MOST
        self.unacked.append(_Unacked(fetched, positions[0], positions.last))

    def withdraw(self) -> None:
        """Do not ack the newest batch: the job stops at its entries, and reads them again after a resume."""
        self.unacked.pop()

    def hold(self, end: CanalPosition) -> None:
        """Ack the newest batch, and those after it, only when ``end`` is committed."""
        self.unacked[-1] = self.unacked[-1]._replace(last=end)

    def drop_copies(self, end: CanalPosition) -> None:
        """Ack the batches after ``end``, except the newest, as soon as ``end`` is committed.

        Their entries arrive again in later batches, for which they would leave no room in the ring. The newest batch
        can begin with such entries, so it is treated as if it began at ``end``.
        """
        for number, each in enumerate(self.unacked):
            with suppress(ValueError):
                if not end.reached(each.first):
                    self.unacked[number] = each = each._replace(first=end)
                if number < len(self.unacked) - 1 and not end.reached(each.last):
                    self.unacked[number] = each._replace(last=end)

    def release(self, fetcher: Fetcher | None) -> None:
        """Ack the batches that end at or before the committed position, except the one that is kept."""
        while self.unacked and self.committed.file and self._is_oldest_committed() and not self._is_oldest_kept():
            fetched = self.unacked.popleft().fetched
            if fetcher is not None:
                fetcher.ack(fetched)

    def covers(self, end: CanalPosition) -> bool:
        """Return whether everything up to ``end`` is committed; False if the two cannot be compared."""
        try:
            return self.committed.reached(end)
        except ValueError:
            return False

    def _is_oldest_committed(self) -> bool:
        """Return whether the oldest batch is committed. If its binlog name cannot be compared, the next one decides."""
        for each in self.unacked:
            with suppress(ValueError):
                return self.committed.reached(each.last)
        return False

    def _is_oldest_kept(self) -> bool:
        """Return whether the oldest batch is the only one that the next session would recognise."""
        return self.committed.marker_batch and not (len(self.unacked) > 1 and self.covers(self.unacked[1].first))
