"""Drop the entries that a Canal server sends again, and detect entries that are missing between two sessions.

A session is a connection, or a rollback on it: the server then sends all unacked batches again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdc.errors import PositionLost, ServerMismatch
from cdc.model.position import CanalPosition
from cdc.sources.canal import kernels
from cdc.sources.canal.entries import Entries, EntryDecoder
from cdc.sources.canal.fetcher import Fetched
from cdc.sources.canal.positions import EntryPositions


@dataclass(slots=True)
class AcceptedOnce:
    """What the user accepted for the first entries after the start position."""

    gap: bool
    server: bool

    def end(self) -> None:
        """Accept no later gap and no later server."""
        self.gap = self.server = False


class RepeatFilter:
    """Drop entries that were delivered before, and detect missing ones."""

    def __init__(self, decoder: EntryDecoder, accepted: AcceptedOnce) -> None:
        self._decoder = decoder
        self._accepted = accepted
        self.is_dropping = True  # the next entries may have been delivered before
        self.wrapped_file = ""  # the binlog file in which the user accepted a gap, because its offsets are not unique

    def check_gap(self, fetched: Fetched, positions: EntryPositions, start: CanalPosition) -> bool:
        """Check the first entry of a session: it must be known, or directly follow ``start``.

        If no batch was kept unacked, only the id of a batch shows that the server has lost its cursor, and only to the
        first connection after the loss. After ``--accept-gap`` the id is therefore not required.
        Return whether entries may be missing and the user accepted that. Raises: PositionLost - the user did not.
        """
        first = positions[0]
        if not start.file or not (start.marker_batch or fetched.server_is_new or self._accepted.gap):
            return False
        if start.is_followed_by(first) or self._covers(start, first):
            return False
        if self._accepted.gap:
            return True
        raise PositionLost(
            f"Canal continues at {fetched.entries.position(0)} and not where the job stopped: its cursor was lost "
            "or moved, and entries between the two positions may be missing.",
            hint="`cdc resume NAME --accept-gap` continues here, and loads the tables again if `source.mysql` is "
            "set. Let Canal save its cursor (file-instance.xml or ZooKeeper), without other clients.",
            stopped_at=start,
            resumes_at=fetched.entries.position(0),
        )

    def first_new(
        self, entries: Entries, positions: EntryPositions, first: int, last: int, start: CanalPosition
    ) -> int:
        """Return the first entry from ``first`` on that is after ``start``; ``last`` if none is.

        Raises: ServerMismatch.
        """
        if not self.is_dropping:
            return first
        if not start.file:
            self.is_dropping = False
            return first
        new = first
        while new < last and self._covers(start, positions[new]):
            new += 1
        newer = entries.index[first:new, kernels.TIME_MS] > (start.newest_ms or np.iinfo(np.int64).max)
        for number in (first + np.flatnonzero(newer)).tolist():
            if entries.text(number, kernels.FILE_AT) == self.wrapped_file:
                continue
            if not self._accepted.server and entries.has_rows(number) and self._decoder.maps(entries, number):
                raise ServerMismatch(
                    "Rows before the job's position are newer than all rows that the job has read: Canal reads "
                    "another server, or the source's binlog was reset.",
                    hint="Run `cdc resume NAME --accept-server`, which continues without these rows, then "
                    "`cdc snapshot` for the job's tables.",
                    stopped_at=start,
                    at=entries.position(number),
                )
        if start.entry and not self._accepted.server:
            self._check_edges(entries, positions, first, new, start)
        self.is_dropping = new == last
        return new

    def _check_edges(
        self, entries: Entries, positions: EntryPositions, first: int, new: int, start: CanalPosition
    ) -> None:
        """Check the edges of the transaction that contains ``start``, from ``first`` up to, not including, ``new``.

        These entries are dropped. On the same server, its END is after ``start``, and its BEGIN has a known offset.
        With other offsets, rows that the job has not read would be dropped. Raises: ServerMismatch.
        """
        kinds = entries.index[first:new, kernels.KIND]
        edges = np.flatnonzero((kinds == kernels.BEGIN) | (kinds == kernels.END))
        for number in (first + edges).tolist():
            position, event = positions[number], entries.event(number)
            has_gtid = bool(start.gtid_set) and position.gtid_set == start.gtid_set
            if kinds[number - first] == kernels.BEGIN:
                is_other = has_gtid and start.begin > 0 and event != (start.file, start.begin)
            else:
                is_other = has_gtid or event == (start.file, start.offset)
            if is_other:
                raise ServerMismatch(
                    "The BEGIN or END of a transaction does not match the job's position, which is inside this "
                    "transaction: Canal reads another server, or the position is wrong.",
                    hint="Run `cdc resume NAME --accept-server`, which continues without the other rows of this "
                    "transaction, then `cdc snapshot` for the job's tables.",
                    stopped_at=start,
                    at=entries.position(number),
                )

    def _covers(self, start: CanalPosition, position: CanalPosition) -> bool:
        """Return whether ``start`` is after the entry at ``position``. Raises: ServerMismatch."""
        try:
            return start.reached(position)
        except ValueError as error:
            if self._accepted.server:
                return False
            raise ServerMismatch(
                f"Canal reads another server: its binlog file is {position.file}.",
                hint="Run `cdc resume NAME --accept-server`, and `cdc snapshot` for the job's tables unless only "
                "log_bin was renamed. To follow a failover, let Canal read by GTIDs (canal.instance.gtidon=true).",
                stopped_at=start,
                at=position,
            ) from error
