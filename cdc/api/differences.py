"""Columns and rows in which a target differs, because schema changes were not applied, and positions as shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdc.model.position import Position
from cdc.model.schema_change import ChangeKind, ColumnMap, DifferenceStart
from cdc.model.snapshot import TableSnapshot

_HIDDEN = {
    "kind",
    "server",
    "splits",
    "marker_batch",
    "begin",
    "statement",
    "kept",
    "by_gtid",
}  # fields of a position that only the job needs


@dataclass(frozen=True, slots=True)
class DifferenceSince:
    """Since when a target differs."""

    position: Mapping[str, Any]  # after the statement
    time: str  # when the job left the target as it was


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """A column or rows in which a target differs from its source table, because a schema change was not applied."""

    kind: ChangeKind  # of the change; drop.table and rename.table: the target keeps rows without a source table
    column: str  # source column; of drop.column, the column that only the target has; "" for rows that only it has
    target: str | None  # its target column; null: the target has none
    since: DifferenceSince | None = None  # null: not known

    @classmethod
    def of(cls, columns: ColumnMap, snapshot: TableSnapshot | None) -> tuple[ColumnDifference, ...]:
        """Return the differences that ``columns`` has. A later snapshot can have deleted rows that were kept."""
        rows = [kind for kind, since in columns.kept_rows.items() if not (snapshot and snapshot.has_removed(since))]
        renamed, added = ChangeKind.RENAME_COLUMN, ChangeKind.ADD_COLUMN
        found = [
            cls(renamed if target else added, name, target, _since(columns.names_since.get(name)))
            for name, target in sorted(columns.names.items())
        ]
        found += [
            cls(ChangeKind.DROP_COLUMN, name, name, _since(columns.kept_since.get(name)))
            for name in sorted(columns.kept)
        ]
        kept = [cls(ChangeKind(kind), "", None, _since(columns.rows_since.get(kind))) for kind in sorted(rows)]
        return (*found, *kept)


def _since(start: DifferenceStart | None) -> DifferenceSince | None:
    return DifferenceSince(shown_position(start.position), start.time) if start is not None else None


def shown_position(position: Position) -> dict[str, Any]:
    """Return ``position`` as the status shows it."""
    return {name: value for name, value in position.to_json().items() if name not in _HIDDEN}
