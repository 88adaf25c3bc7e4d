"""Verifications: what was compared, what differs, and how far a running one is. Saved with every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cdc.model.position import Position
from cdc.model.snapshot import Chunk

MOST_DIFFERENCES = 100  # of one verification that are saved with their values; all are counted


class VerifyState(StrEnum):
    """The states of one table in a verification."""

    WAITING = "waiting"
    COMPARING = "comparing"
    SEARCHING = "searching"  # all source rows are compared; keys that only the target has are searched
    DONE = "done"
    SKIPPED = "skipped"  # it cannot be compared; see ``TableVerification.note``


class DifferenceKind(StrEnum):
    """How a row differs."""

    MISSING = "missing"  # the target does not have it
    EXTRA = "extra"  # only the target has it
    DIFFERENT = "different"  # some of its values differ


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """A request to compare source and target."""

    tables: tuple[str, ...] = ()  # source tables; (): all
    sample: float | None = None  # fraction of the rows, from 0 to 1; None: all
    columns: tuple[str, ...] = ()  # target columns to compare besides the key; (): all
    repair: bool = False  # load rows that differ again, and delete rows that only the target has
    token: str = ""  # random, chosen by the client, which finds its verification by it
    scheduled: bool = False  # by `verify.every` of the job file


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A value that differs. Values are texts of limited length; None is NULL."""

    column: str  # of the target
    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs."""

    table: str  # source table
    kind: DifferenceKind
    key: Mapping[str, str]  # by target column
    values: tuple[ValueDifference, ...] = ()  # of DIFFERENT rows


@dataclass(frozen=True, slots=True)
class TableVerification:
    """The verification of one table. A changed one is a new value."""

    state: VerifyState = VerifyState.WAITING
    open: tuple[Chunk, ...] = ()  # chunks that are not compared yet; one that is compared in part starts after its key
    chunks: int = 0
    done: int = 0
    estimated_rows: int = 0
    rows: int = 0  # compared rows of the source
    missing: int = 0
    extra: int = 0
    different: int = 0
    changing: int = 0  # rows that changed at each comparison, so that nothing is known about them
    repaired: int = 0
    compared_key: str | None = None  # while SEARCHING: last compared key (``cdc.snapshot.orphan_rows.key_text``)
    order: str | None = None  # ``KeyOrder.text`` of the chunks; None: it is not known
    note: str = ""  # why it is SKIPPED, or what is not compared

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to compare."""
        return self.state in (VerifyState.DONE, VerifyState.SKIPPED)

    @property
    def differs(self) -> int:
        """Return the number of rows that differ."""
        return self.missing + self.extra + self.different


@dataclass(frozen=True, slots=True)
class Verification:
    """One verification: waiting, running or ended. A changed one is a new value."""

    number: int  # increasing within the state file
    request: VerifyRequest
    requested_at: str  # ISO 8601, UTC, as all times
    began_at: str | None = None
    ended_at: str | None = None
    tables: Mapping[str, TableVerification] = field(default_factory=dict)  # by source table
    differences: tuple[RowDifference, ...] = ()  # the first ``MOST_DIFFERENCES``
    position: Position | None = None  # of the stream at the last comparison
    seconds: float = 0.0  # duration of its steps
    error: str | None = None  # why it ended early

    @property
    def differs(self) -> int:
        """Return the number of rows that differ, over all tables."""
        return sum(one.differs for one in self.tables.values())

    @property
    def rows(self) -> int:
        """Return the number of compared rows, over all tables."""
        return sum(one.rows for one in self.tables.values())

    @property
    def is_equal(self) -> bool:
        """Whether it has ended, every table was compared, and no row differs."""
        return (
            self.ended_at is not None
            and self.error is None
            and all(one.state is VerifyState.DONE and not one.differs for one in self.tables.values())
        )
