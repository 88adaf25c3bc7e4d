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
        index = entries.index
        spans = index[:, (kernels.FILE_AT, kernels.FILE_AT + 1)].tolist()
        self._entries = entries
        self._files = [entries.body[start : start + size] for start, size in spans]
        self._offsets = index[:, kernels.OFFSET]
        self._numbers, self._back = self._numbered(at)

    def __getitem__(self, entry: int) -> CanalPosition:
        file = self._files[entry].decode("utf-8", "replace")
        return CanalPosition(file, int(self._offsets[entry]), int(self._numbers[entry]))

    def __len__(self) -> int:
        return len(self._files)

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
        files = [at.file.encode(), *self._files]
        other_file = np.array([left != right for left, right in pairwise(files)], np.bool_)
        offsets = np.concatenate(([at.offset], self._offsets))
        begins = self._entries.index[:, kernels.KIND] == kernels.BEGIN
        back = np.diff(offsets) < 0
        for entry in np.flatnonzero(other_file).tolist():
            back[entry] = _number(files[entry + 1]) < _number(files[entry])
        # all entries of a compressed transaction have one offset, and BEGIN is the first of them
        back |= begins & ~other_file & (np.diff(offsets) == 0)
        starts = other_file | (np.diff(offsets) != 0) | back
        order = np.arange(count)
        first = np.maximum.accumulate(np.where(starts, order, -1))
        return np.where(first < 0, order + 1 + at.entry, order - first + 1), back


def _number(file: bytes) -> int:
    """What tells the order of two binlog files of one server; -1 for a name without a number, or none."""
    _, _, number = file.rpartition(b".")
    return int(number) if number.isdigit() else -1
