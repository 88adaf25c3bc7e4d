"""Schema changes that are done, as the state keeps them for ever and `cdc changes` shows them."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.model.position import Position
from cdc.model.schema_change import ChangeAction, ChangeKind, ChangePlan, PlannedTable

STATEMENT_BYTES = 4096  # a longer statement is cut: migrations of 1 MB exist, and all of them are kept


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """What the job did with one change of a table."""

    kind: ChangeKind
    column: str  # "old -> new" of a rename; "" if the change is not one of a column
    action: ChangeAction


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One change of one column of a target. It has no values of rows, and neither has anything else here."""

    action: str  # a value of ``channels.sinks.base.AlterAction``
    old: str | None  # target column before the step; None: the column was added
    new: str | None  # target column after the step; None: the column was dropped


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """What a change did to the target of one source table."""

    source: str
    target: str
    actions: tuple[RecordedAction, ...]
    steps: tuple[RecordedStep, ...]
    is_reloaded: bool  # a snapshot loaded the table again after the change

    @classmethod
    def of(cls, table: PlannedTable) -> RecordedTable:
        """Return the record of ``table``."""
        return cls(
            table.source,
            table.target,
            tuple(RecordedAction(*one) for one in table.actions),
            tuple(RecordedStep(step.action, step.old_name, step.new_name) for step in table.steps),
            table.is_reloaded,
        )


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A schema change that is done."""

    checkpoint: int
    position: Position  # after the statement
    committed_at: str | None  # ISO 8601, UTC
    statement: str  # the first 4 KiB of it
    tables: tuple[RecordedTable, ...]
    seconds: float  # duration of the steps, in the run that finished them

    @classmethod
    def of(
        cls, checkpoint: int, position: Position, committed_at: str | None, plan: ChangePlan, seconds: float
    ) -> ChangeRecord:
        """Return the record of a change with this ``plan``."""
        tables = tuple(RecordedTable.of(table) for table in plan.tables)
        return cls(checkpoint, position, committed_at, cut_statement(plan.statement), tables, seconds)


@dataclass(frozen=True, slots=True)
class ChangeCount:
    """How many changes of a kind were handled with an action."""

    kind: ChangeKind
    action: ChangeAction
    number: int


@dataclass(frozen=True, slots=True)
class ChangeSummary:
    """The schema changes of a job in brief."""

    applied: int = 0  # all changes that are done
    last: ChangeRecord | None = None
    counts: tuple[ChangeCount, ...] = ()
    current: ChangePlan | None = None  # its steps are being taken


def cut_statement(statement: str) -> str:
    """Return the first 4 KiB of ``statement``, without a part of a character."""
    return statement.encode(errors="replace")[:STATEMENT_BYTES].decode(errors="ignore")
