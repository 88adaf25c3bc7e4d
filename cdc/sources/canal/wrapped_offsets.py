"""Detect where the offsets of Canal's entries may begin at 0 again inside a binlog file.

An event has only the low 32 bits of its offset. MySQL does not split a transaction over two files, so a file with a
large transaction can have more than 4 GiB, and Canal's offsets then begin at 0 again. The offset is also lower if Canal
sends entries again, which must be dropped. Canal hides the events of filtered tables, so the size of the step alone
does not distinguish the two. A step back that is not certainly a repeat therefore stops the job.

After a lost connection to MySQL, Canal continues at the END of the newest transaction. If that is of filtered tables,
Canal may have hidden this END the first time. It is a repeat if the known BEGIN of the open transaction follows it.

Source: alibaba/canal 1.1.8, LogHeader, EventTransactionBuffer and AbstractEventParser.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from cdc.errors import PositionLost
from cdc.model.position import CanalPosition
from cdc.sources.canal import kernels
from cdc.sources.canal.entries import Entries
from cdc.sources.canal.positions import EntryPositions
from cdc.sources.canal.transactions import OpenTransaction

_FAR = 1 << 31  # no more than this is repeated, except from the BEGIN of a transaction on
_EDGES = 8  # after a lost connection to MySQL, Canal continues at one of the last BEGIN or END entries


class WrapDetector:
    """Distinguish entries that are sent again from offsets that may have begun at 0 again."""

    def __init__(self, start: CanalPosition) -> None:
        self._ends = deque([_end(start)] if start.file and not start.entry else [], _EDGES)
        self._begins: deque[tuple[str, int]] = deque(maxlen=_EDGES)
        self._read_to = ("", 0)  # file and offset of the event after the newest entry

    def note(self, entries: Entries, positions: EntryPositions, first: int, last: int) -> None:
        """Remember the BEGIN and END entries from ``first`` up to, not including, ``last``."""
        kinds = entries.index[first:last, kernels.KIND]
        begins = first + np.flatnonzero(kinds == kernels.BEGIN)[-_EDGES:]
        self._begins.extend(entries.event(number) for number in begins.tolist())
        ends = first + np.flatnonzero(kinds == kernels.END)[-_EDGES:]
        self._ends.extend(_end(positions[number], entries, number) for number in ends.tolist())
        self._read_to = _end(positions[last - 1], entries, last - 1)

    def may_wrap(
        self,
        entries: Entries,
        number: int,
        position: CanalPosition,
        before: CanalPosition,
        end: CanalPosition,
        transaction: OpenTransaction,
        batches: Iterable[CanalPosition],
        *,
        begins_session: bool,
    ) -> bool:
        """Return whether an entry, whose offset is lower than that of the entry before it, may be after a wrap.

        ``before``: the entry before it; for the first entry of a session: up to where the job has read.
        ``end``: the end of the newest Batch. ``transaction``: the open one. ``batches``: the first entries of unacked
        batches, where a rollback continues.
        """
        if position.file != before.file or self._is_certain(entries, number, position, before):
            return False
        kind = entries.index[number, kernels.KIND]
        if kind == kernels.BEGIN and (transaction.length or entries.event(number) in self._begins):
            return False  # Canal sends the open transaction, or one of the newest, again
        file, offset = self._read_to
        if kind == kernels.BEGIN and not begins_session and file == end.file and offset < end.offset:
            return False  # an earlier session has read from the entry before it up to ``end``, and checked the offsets
        if kind == kernels.END and number + 1 < len(entries) and begins_at(entries, number + 1, transaction.begin):
            return False
        if any((each.file, each.offset) == (position.file, position.offset) for each in batches):
            return False
        is_inside = transaction.begin is not None and kind in (kernels.ROW_DATA, kernels.END)
        is_unknown = kind == kernels.BEGIN and not begins_session  # a hidden transaction may have more than 4 GiB
        return is_inside or is_unknown or before.offset - position.offset > _FAR

    def needs_next(self, entries: Entries, number: int, position: CanalPosition, transaction: OpenTransaction) -> bool:
        """Return whether only the first entry of the next batch shows whether an END entry is sent again."""
        if number < len(entries) - 1 or entries.index[number, kernels.KIND] != kernels.END or not transaction.begin:
            return False
        file, offset = transaction.begin
        return position.file == file and position.offset < offset and not self.is_known_end(entries, number, position)

    def _is_certain(self, entries: Entries, number: int, position: CanalPosition, before: CanalPosition) -> bool:
        """Return whether GTIDs or a known END entry show that an entry is sent again."""
        if position.gtid_set and before.gtid_set and position.gtid_set != before.gtid_set:
            return True  # another transaction: positions are then compared by GTIDs, not by offsets
        return self.is_known_end(entries, number, position)

    def is_known_end(self, entries: Entries, number: int, position: CanalPosition) -> bool:
        """Return whether an entry is one of the newest END entries."""
        is_end = entries.index[number, kernels.KIND] == kernels.END
        return bool(is_end and _end(position, entries, number) in self._ends)


def begins_at(entries: Entries, number: int, begin: tuple[str, int] | None) -> bool:
    """Return whether an entry is the BEGIN entry at ``begin``."""
    return entries.index[number, kernels.KIND] == kernels.BEGIN and entries.event(number) == begin


def position_unknown(before: CanalPosition, position: CanalPosition) -> PositionLost:
    """Return the error that stops a job at entries whose position is unknown."""
    return PositionLost(
        f"Canal's offset moves back from {before} to {position}: the binlog file may have more than 4 GiB, and Canal's "
        "offsets, which have 32 bits, then begin at 0 again.",
        hint="`cdc resume NAME --accept-gap` omits rows of this file, and loads the tables again if `source.mysql` is "
        "set. To read such transactions, use a binlog source.",
        stopped_at=before,
        resumes_at=position,
    )


def _end(position: CanalPosition, entries: Entries | None = None, number: int = 0) -> tuple[str, int]:
    """Return file and offset of the event after an entry; of ``position`` itself without ``entries``."""
    length = 0 if entries is None else int(entries.index[number, kernels.EVENT_LENGTH])
    return position.file, position.offset + length
