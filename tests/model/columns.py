"""Columns of the tables of a Source: they are added, dropped, renamed, exchanged and widened between transactions.

The value of a column is computed from the change that wrote the row and from the number of the column, so a value that
is lost, or that is in another column, differs from the source.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ChangeKind, ColumnChange, Fill, FillKind

KINDS = ("add", "add by row", "drop", "rename", "exchange", "widen", "replace")
_NAMES = ("c0", "c1", "c2", "c3")  # few, so that a dropped name is used again
_PLAIN = (Column("id", Kind.INT, "int", nullable=False), Column("op", Kind.BIGINT, "bigint", nullable=False))


class Alter(NamedTuple):
    """A statement that changes columns. It has a position of its own in the source."""

    table: str
    before: tuple[Column, ...]  # without id and op
    after: tuple[Column, ...]
    changes: tuple[ColumnChange, ...]


def schema_with(name: str, columns: tuple[Column, ...]) -> TableSchema:
    database, table = name.split(".")
    return TableSchema(database, table, (*_PLAIN, *columns), ("id",))


def draw_alter(table, columns, kinds, number, draw) -> Alter:
    """Return a statement with clauses of ``kinds``, as far as ``columns`` allow them. ``number``: of the next column."""
    found, free, changes = list(columns), list(columns), []  # free: columns without a clause
    for kind in kinds:
        names = [name for name in _NAMES if name not in {one.name for one in (*columns, *found)}]
        if kind.startswith("add") and names:
            number += 1
            changes.append(_add(found, _new(draw.choice(names), number, kind == "add by row")))
        elif kind == "rename" and free and names:
            _rename(found, changes, _taken(free, draw), draw.choice(names))
        elif kind == "exchange" and len(free) > 1:
            one, other = _taken(free, draw), _taken(free, draw)
            places = found.index(one), found.index(other)
            for column, name, place in ((one, other.name, places[0]), (other, one.name, places[1])):
                found[place] = replace(column, name=name)
                changes.append(ColumnChange(ChangeKind.RENAME_COLUMN, column, found[place]))
        elif kind == "widen" and (narrow := [one for one in free if one.kind is Kind.INT]):
            old = _taken(free, draw, narrow)
            found[found.index(old)] = new = replace(old, kind=Kind.BIGINT, type="bigint")
            changes.append(ColumnChange(ChangeKind.ALTER_TYPE, old, new))
        elif kind in ("drop", "replace") and free:
            old = _taken(free, draw)
            found.remove(old)
            changes.append(ColumnChange(ChangeKind.DROP_COLUMN, old))
            if kind == "replace":
                number += 1
                changes.append(_add(found, _new(old.name, number, False)))
    return Alter(table, tuple(columns), tuple(found), tuple(changes))


def _taken(free, draw, among=None):
    one = draw.choice(among or free)
    free.remove(one)
    return one


def _new(name, number, by_row):
    return Column(name, Kind.INT, "int", nullable=not number % 2, comment=str(number), generated=by_row)


def _add(found, column):
    found.append(column)
    kind = FillKind.NULL if column.nullable else FillKind.LITERAL
    fill = fill_of(column)
    text = None if fill is None else str(fill).encode()
    return ColumnChange(
        ChangeKind.ADD_COLUMN, None, column, Fill(FillKind.BY_ROW) if column.generated else Fill(kind, text)
    )


def _rename(found, changes, old, name):
    new = replace(old, name=name)
    found[found.index(old)] = new
    changes.append(ColumnChange(ChangeKind.RENAME_COLUMN, old, new))


def number_of(column: Column) -> int:
    """Return the number of a column, which it keeps under every name and type."""
    return int(column.comment)


def fill_of(column: Column) -> int | None:
    """Return the value of rows that existed before the column, unless it differs by row."""
    return None if column.nullable else -number_of(column)


def value_of(op: int, column: Column) -> int:
    """Return the value that the change ``op`` writes."""
    return 1000 * op + number_of(column)


def arrays_of(rows, columns):
    """Return the values of changes. None of the columns is added after these changes."""
    return {column.name: pa.array([value_of(row.op, column) for row in rows], column.arrow) for column in columns}
