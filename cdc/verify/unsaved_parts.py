"""What a verification has compared and not saved: keys that differ, and the states of tables after it.

Progress is saved when nothing about a part is open. What is here is lost in a crash, and its parts are compared again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cdc.model.batch import Batch
from cdc.model.position import Position
from cdc.model.verify import TableVerification, Verification
from cdc.sources.base import ReceiverStatus
from cdc.verify.candidates import MOST_ROUNDS, Candidates
from cdc.verify.result import left_to_show
from channels.chunk_compare import KeyDifferences


@dataclass(slots=True)
class UnsavedParts:
    """The parts of a verification that are not saved. Calls: the Consumer's thread."""

    pending: list[Candidates] = field(default_factory=list)
    confirmed: list[tuple[str, KeyDifferences]] = field(default_factory=list)  # by table
    changing: dict[str, int] = field(default_factory=dict)  # by table: keys that changed during each comparison
    tables: dict[str, TableVerification] = field(default_factory=dict)  # states after these parts

    def note_changes(self, batch: Batch) -> None:
        """Mark candidates that ``batch`` changes."""
        for one in self.pending:
            one.note_changes(batch)

    @property
    def open_keys(self) -> int:
        """The number of keys that differ and are not confirmed."""
        return sum(one.differences.count for one in self.pending)

    def can_continue(self, position: Position, status: ReceiverStatus | None) -> bool:
        """Return whether a step has work at ``position``. Raises: ValueError - see ``Candidates.has_passed``."""
        return not self.pending or any(one.has_passed(position, status) for one in self.pending)

    def due(self, position: Position, status: ReceiverStatus | None) -> list[Candidates]:
        """Return the candidates to compare again now. Raises: ValueError - see ``Candidates.has_passed``."""
        return [one for one in self.pending if one.is_due(position, status)]

    def confirm(self, run: Verification, position: Position, status: ReceiverStatus | None) -> None:
        """Confirm differences of keys that the stream did not change since they were compared again.

        Raises: ValueError - see ``Candidates.has_passed``.
        """
        waiting: list[Candidates] = []
        for one in self.pending:
            if one.is_new or not one.has_passed(position, status):
                waiting.append(one)
                continue
            stayed, changed = one.split()
            if one.lacks_details(stayed, left_to_show(run, self.confirmed)):
                waiting.append(Candidates(one.table, stayed, one.source_key, one.rounds))
            elif stayed.count:
                self.confirmed.append((one.table, stayed))
            if changed.count and one.rounds >= MOST_ROUNDS:
                self.changing[one.table] = self.changing.get(one.table, 0) + changed.count
            elif changed.count:
                waiting.append(Candidates(one.table, changed, one.source_key, one.rounds))
        self.pending = waiting

    def take(self, compared: Collection[KeyDifferences]) -> dict[int, int]:
        """Remove the candidates that were ``compared`` again. Return the rounds of all candidates, by ``id``."""
        rounds = {id(one.differences): one.rounds for one in self.pending}
        done = {id(one) for one in compared}
        self.pending = [one for one in self.pending if id(one.differences) not in done]
        return rounds

    def drop_table(self, name: str) -> None:
        """Forget what is known of a table."""
        self.pending = [one for one in self.pending if one.table != name]
        self.confirmed = [one for one in self.confirmed if one[0] != name]
        self.changing.pop(name, None)
        self.tables.pop(name, None)
