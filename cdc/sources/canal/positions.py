"""The positions of a server batch's entries in the source's binlog, and the entries at which they move back.

Positions move back when the server sends entries again: it has lost its connection to MySQL, or another client has
requested a rollback.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from cdc.model.position import CanalPosition
from cdc.sources.canal import kernels
from cdc.sources.canal.entries import Entries


class EntryPositions:
    """The position of each entry of a batch. Entries with the same offset are numbered from 1."""

    def __init__(self, entries: Entries, at: CanalPosition) -> None:
        """``at``: the position of the entry before the first one."""
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
        """Return the position of the last entry."""
        return self[len(self) - 1]

    def ranges(self) -> Iterator[tuple[int, int, bool]]:
        """Yield ranges of entries without a move back: first, end (not included), whether the first one moves back."""
        back = np.flatnonzero(self._back).tolist()
        cuts = [0, *(entry for entry in back if entry), len(self)]
        for first, last in pairwise(cuts):
            yield first, last, bool(self._back[first])

    def _numbered(self, at: CanalPosition) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each entry among those of its event, and whether its position moves back."""
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
        # All entries of a compressed transaction have one offset, and BEGIN is the first of them.
        back |= begins & ~other_file & (np.diff(offsets) == 0)
        starts = other_file | (np.diff(offsets) != 0) | back
        order = np.arange(count)
        first = np.maximum.accumulate(np.where(starts, order, -1))
        return np.where(first < 0, order + 1 + at.entry, order - first + 1), back


def _number(file: str) -> int:
    """Return the number of a binlog file, which gives the order of the files; -1: the name has no number."""
    _, _, number = file.rpartition(".")
    return int(number) if number.isdecimal() else -1
