"""Apply steps to the columns of a table, for sinks that write all rows of a table again.

The plan says for each new column which old column or which value it has. It is computed from the columns that the table
has now, so that a step that is done already is recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import TargetMismatch
from cdc.model.arrow_types import widens
from channels.sinks.base import AlterAction, AlterStep, TargetColumn

_BATCH_ROWS, _BATCH_BYTES = 1 << 17, 16 << 20  # of the values of added columns: a fill can be a long text


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column after the steps. ``source``: the old column with its values; None: an added column, of ``fill``."""

    column: TargetColumn
    source: str | None
    fill: pa.Scalar | None = None


@dataclass(slots=True)
class AlterPlan:
    """The columns of a table after steps."""

    columns: list[PlannedColumn]  # in the table's order, added columns last
    filled: list[tuple[str, pa.Scalar]] = field(default_factory=list)  # columns that must have this value in all rows
    changed: bool = False  # some step is not done yet
    rewrites: bool = False  # the values of existing rows change, or the names or types of their columns
    empties: bool = False  # all existing rows are removed

    def rows(self, old: pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of ``old`` with the columns of ``schema``, in slices that bound the memory of fills."""
        if self.empties:
            return
        fill_bytes = sum(pa.repeat(one.fill, 1).nbytes for one in self.columns if one.fill is not None)
        step = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, fill_bytes)))
        for first in range(0, old.num_rows, step):
            rows = old.slice(first, step)
            columns = [_values(one, rows, kind.type) for one, kind in zip(self.columns, schema, strict=True)]
            yield pa.Table.from_arrays(columns, schema=schema)

    def check_filled(self, table: str, old: pa.Table) -> None:
        """Check columns that exist although a step adds them. Raises: TargetMismatch - one has another value."""
        for name, fill in self.filled:
            values = old.column(name)
            if values.null_count or not all(_is_constant(chunk, fill) for chunk in values.chunks):
                raise _mismatch(
                    table,
                    f"Column {name} exists, but not all of its rows have the value that the source gives to them.",
                    f"Drop the column {name} from the target, then run `cdc resume`.",
                    name,
                )


def alter_plan(
    table: str, columns: Sequence[TargetColumn], key: Sequence[str], steps: Sequence[AlterStep]
) -> AlterPlan:
    """Return the plan of ``steps`` for a table that has ``columns`` now.

    Raises: TargetMismatch - a column is neither as before nor as after its step, or the step cannot be done.
    """
    plan = AlterPlan([PlannedColumn(column, column.name) for column in columns])
    for step in steps:
        _Planner(table, {name.casefold() for name in key}, plan).apply(step)
    return plan


def can_widen(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether each value of ``old`` is exactly one value of ``new``."""
    if old == new:
        return True
    types = pa.types
    if types.is_signed_integer(old):
        digits = {8: 3, 16: 5, 32: 10, 64: 19}[old.bit_width]
        return bool(
            (types.is_signed_integer(new) and new.bit_width >= old.bit_width)
            or (types.is_decimal128(new) and new.precision - new.scale >= digits)
            or (types.is_float64(new) and old.bit_width <= 32)
            or (types.is_float32(new) and old.bit_width <= 16)
        )
    if types.is_decimal128(old) and types.is_decimal128(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    if types.is_date32(old):
        return bool(new == pa.timestamp("us"))
    return bool(types.is_float32(old) and types.is_float64(new))


@dataclass(slots=True)
class _Planner:
    table: str
    key: set[str]  # names without case
    plan: AlterPlan

    def apply(self, step: AlterStep) -> None:
        """Apply ``step`` to the plan."""
        if step.action is AlterAction.ADD:
            self._add(step)
        elif step.action is AlterAction.DROP:
            self._drop(step)
        elif step.action is AlterAction.RENAME:
            self._rename(step)
        elif step.action is AlterAction.TRUNCATE:
            self.plan.empties = True
            self._note(rewrites=True)
        else:
            self._change(step)

    def _add(self, step: AlterStep) -> None:
        after, fill = _present(step.after), step.fill if step.fill is not None and step.fill.is_valid else None
        position = self._find(after.name)
        if position is None:
            self.plan.columns.append(PlannedColumn(replace(after, nullable=True), None, fill))
            self._note(rewrites=fill is not None)
            return
        found = self.plan.columns[position]
        self._require_type(found, after)
        if after.nullable and not found.column.nullable:
            self._refuse_key(after, "made nullable")
            self.plan.columns[position] = replace(found, column=replace(found.column, nullable=True))
            self._note(rewrites=False)
        if fill is not None and found.source is not None:
            self.plan.filled.append((found.source, fill))

    def _drop(self, step: AlterStep) -> None:
        before = _present(step.before)
        self._refuse_key(before, "dropped")
        position = self._find(before.name)
        if position is None:
            return
        self._require_type(self.plan.columns[position], before)
        del self.plan.columns[position]
        self._note(rewrites=True)

    def _rename(self, step: AlterStep) -> None:
        before, after = _present(step.before), _present(step.after)
        self._refuse_key(before, "renamed")
        names = [one.column.name for one in self.plan.columns]
        if before.name not in names and after.name in names:
            self._require_type(self.plan.columns[names.index(after.name)], after)
            return
        same = before.name.casefold() == after.name.casefold()
        position = self._require(before.name)
        if not same and self._find(after.name) is not None:
            raise self._error(after.name, f"Column {before.name} cannot be renamed: a column {after.name} exists.")
        found = self.plan.columns[position]
        self._require_type(found, before)
        self.plan.columns[position] = replace(found, column=replace(found.column, name=after.name))
        self._note(rewrites=True)

    def _change(self, step: AlterStep) -> None:
        """Apply WIDEN or MAKE_NULLABLE. Nothing becomes NOT NULL."""
        before, after = _present(step.before), _present(step.after)
        position = self._require(after.name)
        found = self.plan.columns[position]
        arrow = found.column.arrow
        is_wider = not _holds(arrow, after.arrow)
        relaxes = after.nullable and not found.column.nullable
        for old in (before.arrow, arrow) if is_wider else (before.arrow,):
            if not can_widen(old, after.arrow):
                raise self._error(after.name, f"Column {after.name} cannot be changed from {old} to {after.arrow}.")
        if is_wider:
            self._require_type(found, before)
            arrow = after.arrow
        if relaxes:
            self._refuse_key(after, "made nullable")
        nullable = found.column.nullable or after.nullable
        # a fill that an earlier step of this plan added becomes a value of the new type
        fill = found.fill.cast(arrow) if found.fill is not None else None
        self.plan.columns[position] = replace(
            found, column=replace(found.column, arrow=arrow, nullable=nullable), fill=fill
        )
        if is_wider or relaxes:
            self._note(rewrites=is_wider and (found.source is not None or fill is not None))

    def _note(self, *, rewrites: bool) -> None:
        self.plan.changed = True
        self.plan.rewrites = self.plan.rewrites or rewrites

    def _find(self, name: str) -> int | None:
        """Return the position of column ``name``. Raises: TargetMismatch - it has another spelling."""
        for position, one in enumerate(self.plan.columns):
            if one.column.name == name:
                return position
        for one in self.plan.columns:
            if one.column.name.casefold() == name.casefold():
                raise self._error(name, f"Column {name} has the spelling {one.column.name} in the table.")
        return None

    def _require(self, name: str) -> int:
        position = self._find(name)
        if position is None:
            raise self._error(name, f"The table does not have the column {name}.")
        return position

    def _require_type(self, found: PlannedColumn, expected: TargetColumn) -> None:
        if not _holds(found.column.arrow, expected.arrow):
            problem = f"Column {expected.name} is {found.column.arrow} in the table, but {expected.arrow} is expected."
            raise self._error(expected.name, problem)

    def _refuse_key(self, column: TargetColumn, change: str) -> None:
        if column.name.casefold() in self.key:
            raise self._error(column.name, f"The key column {column.name} cannot be {change}.")

    def _error(self, column: str, problem: str) -> TargetMismatch:
        hint = "Alter the target by hand, or load it again into another `target`; then run `cdc resume`."
        return _mismatch(self.table, problem, hint, column)


def _holds(found: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether a column has the expected type, or a wider one that it kept when the source became narrower."""
    return found == expected or widens(expected, found)


def _mismatch(table: str, problem: str, hint: str, column: str) -> TargetMismatch:
    return TargetMismatch(problem, hint=hint, table=table, column=column)


def _present(column: TargetColumn | None) -> TargetColumn:
    if column is None:
        raise ValueError("a step lacks the column that its action needs")
    return column


def _values(one: PlannedColumn, rows: pa.Table, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    if one.source is not None:
        return rows.column(one.source).cast(kind)
    if one.fill is None:
        return pa.nulls(rows.num_rows, kind)
    return pa.repeat(one.fill, rows.num_rows).cast(kind)


def _is_constant(values: pa.Array, fill: pa.Scalar) -> bool:
    """Return whether all ``values`` equal ``fill``. Lists cannot be compared by a kernel."""
    if pa.types.is_nested(values.type):
        expected = fill.as_py()
        return all(value.as_py() == expected for value in values)
    return bool(pc.all(pc.equal(values, fill.cast(values.type)), min_count=0).as_py())
