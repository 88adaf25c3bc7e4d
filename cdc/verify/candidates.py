"""Keys that differed once. They are compared again, and only what differs without a change in between is reported.

A chunk is read at a position P or later, and the target at P. A row that differs may therefore be in flight. Its key is
compared again, at a later position Q. The source has its row as of some position between Q and H, the end of the source
after the comparison. If the stream has no change of the key between Q and H, the source had the same row at Q. Then the
difference is real, because the target has everything up to Q. Otherwise the key is compared once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.model.batch import Batch
from cdc.model.position import Position
from cdc.model.row_keys import KeyIndex
from cdc.sources.base import ReceiverStatus
from cdc.verify.planner import ComparedTable
from channels.chunk_compare import KeyDifferences

MOST_ROUNDS = 6  # comparisons of a key that changes during each of them


@dataclass(slots=True)
class Candidates:
    """Keys of one table that differed at their last comparison."""

    table: str
    differences: KeyDifferences
    source_key: tuple[str, ...]  # source columns of the key
    rounds: int = 0  # comparisons of these keys after the one of their chunk
    high: Position | None = None  # position of the source after the last comparison; None: compare them at once
    compared_at: float = 0.0  # monotonic time at which ``high`` was queried
    changed: npt.NDArray[np.bool_] = field(init=False)  # by key: the stream had a change since the last comparison
    _index: KeyIndex = field(init=False)

    def __post_init__(self) -> None:
        self._index = KeyIndex(self.differences.keys.columns)
        self.changed = np.zeros(self._index.count, np.bool_)

    def note_changes(self, batch: Batch) -> None:
        """Mark the keys that ``batch`` changes."""
        for changes in batch.changes:
            if changes.schema.name == self.table and changes.rows.num_rows:
                self._note_rows(changes.rows)

    def _note_rows(self, rows: pa.RecordBatch) -> None:
        types = self.differences.keys.schema.types
        if any(name not in rows.schema.names for name in self.source_key):
            self.changed[:] = True  # the key was renamed
            return
        columns = [rows.column(name).cast(kind) for name, kind in zip(self.source_key, types, strict=True)]
        found = self._index.find(columns)
        self.changed[found[found >= 0]] = True

    def has_passed(self, position: Position, status: ReceiverStatus | None) -> bool:
        """Return whether the stream has everything up to the last comparison.

        ``status``: of the receiver, if everything that it has returned is before ``position``. Raises: ValueError -
        after a failover positions cannot be compared.
        """
        if self.high is None or position.reached(self.high):
            return True
        # the end of the source may move without a change of a row, as by a new binlog file
        return status is not None and status.has_returned(self.high, self.compared_at)

    @property
    def is_new(self) -> bool:
        """Whether these keys must be compared again before anything is known about them."""
        return self.rounds == 0 or self.high is None

    def is_due(self, position: Position, status: ReceiverStatus | None) -> bool:
        """Return whether these keys can be compared again at ``position``. See ``has_passed``."""
        return self.is_new and self.has_passed(position, status)

    def split(self) -> tuple[KeyDifferences, KeyDifferences]:
        """Return the keys that the stream did not change, and the others."""
        changed = self.changed[self._index.numbers]
        return self.differences.only(~changed), self.differences.only(changed)

    def lacks_details(self, stayed: KeyDifferences, shown: int) -> bool:
        """Return whether these keys must be compared once more before ``stayed`` is confirmed, to read its values.

        The first keys of a comparison, of which the values are read, may have been rows in flight. ``shown``: most rows
        whose values are needed.
        """
        return self.rounds < MOST_ROUNDS and len(stayed.details) < min(stayed.count, shown)


def candidates_of(planned: ComparedTable, differences: KeyDifferences, rounds: int = 0) -> Candidates:
    """Return the candidates of a comparison of ``planned``."""
    key = tuple(column.name for column in planned.compare.key_columns)
    return Candidates(planned.name, differences, key, rounds)
