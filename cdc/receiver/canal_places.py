"""Where the entries of a server batch lie in the source's binlog, and where they go back in it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from cdc.canal import kernels
from cdc.canal.entries import Entries
from cdc.position import CanalPosition


class Places:
    """The places of a batch's entries, inside their transactions: all entries with one offset are numbered.

    A server that has lost its own connection to MySQL, or whose other client has rolled back, sends again what it
    has sent: then places go back within one session.
    """

    def __init__(self, entries: Entries, at: CanalPosition) -> None:
        """``at``: the place of the entry before the first one."""
        self._entries = entries
        self._offsets = entries.index[:, kernels.OFFSET]
        self._numbers, self._back = self._numbered(at)

    def __getitem__(self, entry: int) -> CanalPosition:
        file, gtid_set = self._entries.text(entry, kernels.FILE_AT), self._entries.text(entry, kernels.GTID_AT)
        return CanalPosition(file, int(self._offsets[entry]), int(self._numbers[entry]), gtid_set)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> CanalPosition:
        """Of the last entry."""
        return self[len(self) - 1]

    def stretches(self) -> Iterator[tuple[int, int, bool]]:
        """First and last entry, this one not with it, between which places only go on; whether the first goes back."""
        back = np.flatnonzero(self._back).tolist()
        cuts = [0, *(entry for entry in back if entry), len(self)]
        for first, last in pairwise(cuts):
            yield first, last, bool(self._back[first])

    def _numbered(self, at: CanalPosition) -> tuple[np.ndarray, np.ndarray]:
        """The number of each entry among those of its event, and whether it lies before the entry before it."""
        count = len(self)
        other_file = np.empty(count, np.bool_)
        other_file[0] = self._entries.text(0, kernels.FILE_AT) != at.file
        kernels.file_changes(self._entries.data, self._entries.index, other_file)
        offsets = np.concatenate(([at.offset], self._offsets))
        begins = self._entries.index[:, kernels.KIND] == kernels.BEGIN
        back = np.diff(offsets) < 0
        for entry in np.flatnonzero(other_file).tolist():
            before = self._entries.text(entry - 1, kernels.FILE_AT) if entry else at.file
            back[entry] = _number(self._entries.text(entry, kernels.FILE_AT)) < _number(before)
        # all entries of a compressed transaction have one offset, and BEGIN is the first of them
        back |= begins & ~other_file & (np.diff(offsets) == 0)
        starts = other_file | (np.diff(offsets) != 0) | back
        order = np.arange(count)
        first = np.maximum.accumulate(np.where(starts, order, -1))
        return np.where(first < 0, order + 1 + at.entry, order - first + 1), back


def _number(file: str) -> int:
    """What tells the order of two binlog files of one server; -1 for a name without a number, or none."""
    _, _, number = file.rpartition(".")
    return int(number) if number.isdecimal() else -1
