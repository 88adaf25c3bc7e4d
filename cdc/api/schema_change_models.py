"""Schema changes in the status of a job."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.model.change_record import ChangeCount, ChangeRecord, ChangeSummary, cut_statement
from cdc.model.schema_change import ChangePlan


@dataclass(frozen=True, slots=True)
class CurrentChange:
    """A schema change whose steps are being taken."""

    statement: str  # the first 4 KiB of it
    step: int  # steps that are done
    steps: int  # over all tables; 0: no target changes
    progress: float | None = None  # of the current step, from 0 to 1; null: the sink does not know it

    @classmethod
    def of(cls, plan: ChangePlan, progress: float | None) -> CurrentChange:
        """Return the status of ``plan``."""
        return cls(cut_statement(plan.statement), plan.done, sum(len(table.steps) for table in plan.tables), progress)


@dataclass(frozen=True, slots=True)
class LastChange:
    """The newest schema change that is done. `cdc changes NAME` shows its steps, and all earlier ones."""

    checkpoint: int
    committed_at: str | None
    statement: str  # the first 4 KiB of it
    tables: tuple[str, ...]  # source tables
    seconds: float = 0.0  # duration of the steps

    @classmethod
    def of(cls, record: ChangeRecord) -> LastChange:
        """Return the status of ``record``."""
        tables = tuple(table.source for table in record.tables)
        return cls(record.checkpoint, record.committed_at, record.statement, tables, record.seconds)


@dataclass(frozen=True, slots=True)
class SchemaChangeStatus:
    """The schema changes that the job has followed."""

    applied: int = 0  # statements that the job has followed since its first start
    last: LastChange | None = None
    current: CurrentChange | None = None  # null: no change is being made
    counts: tuple[ChangeCount, ...] = ()  # by kind and action

    @classmethod
    def of(cls, summary: ChangeSummary, progress: float | None = None) -> SchemaChangeStatus:
        """Return the status of ``summary``. ``progress``: of the step that the sink takes now."""
        last = LastChange.of(summary.last) if summary.last else None
        current = CurrentChange.of(summary.current, progress) if summary.current else None
        return cls(summary.applied, last, current, summary.counts)
