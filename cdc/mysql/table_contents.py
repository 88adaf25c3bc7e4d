"""Which table each name means after a statement that renames, drops or creates tables.

``read_changes`` describes such a statement step by step: ``t -> old``, ``new -> t``. A job loads a target for each
name, so it needs the result for each name: t has other rows, old exists, new does not exist.

Source: MySQL manual, "RENAME TABLE Statement"; MariaDB knowledge base, "RENAME TABLE" and "CREATE TABLE".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from cdc.model.schema import TableSchema
from cdc.model.schema_change import ChangeKind, ColumnChange, Fill, FillKind, TableChange
from cdc.mysql.value_changes import is_same_type

Name = tuple[str, str]  # database and table
TABLE_KINDS = frozenset(
    (ChangeKind.CREATE_TABLE, ChangeKind.RENAME_TABLE, ChangeKind.DROP_TABLE, ChangeKind.DROP_DATABASE)
)
_DROPS = frozenset((ChangeKind.DROP_TABLE, ChangeKind.DROP_DATABASE))


@dataclass(frozen=True, slots=True)
class Content:
    """The table that a name means after a statement."""

    kind: ChangeKind
    schema: TableSchema | None  # None: no table has the name; without columns: they are not known
    origin: Name | None = None  # its name before the statement; None: it was created


def contents_of(changes: Iterable[TableChange]) -> dict[Name, Content]:
    """Return what each name of a statement means after it, from the changes in their order."""
    found: dict[Name, Content] = {}
    for change in changes:
        if change.rows not in TABLE_KINDS or change.rows is None:
            continue
        old, new = _name(change.before), _name(change.after)
        if change.rows in _DROPS:
            found[old] = Content(change.rows, None)
        elif change.rows is ChangeKind.CREATE_TABLE:
            # CREATE OR REPLACE drops the table first
            replaces = new in found and found[new].kind in _DROPS
            found[new] = Content(ChangeKind.DROP_TABLE if replaces else change.rows, change.after)
        else:
            origin = found[old].origin if old in found else old
            found[old] = Content(change.rows, None)
            found[new] = Content(change.rows, change.after, origin)
    return {name: one for name, one in found.items() if one.schema is None or one.origin != name}


def changes_by_name(
    contents: Iterable[tuple[Name, Content]],
    before_of: Callable[[str, str], TableSchema | None],
    complete: Callable[[Name, Content, TableSchema | None], TableSchema],
) -> Iterator[TableChange]:
    """Yield the change of each name. Both tables of it have that name.

    ``before_of``: the table of a name before the statement, or its columns if it was dropped earlier; None if the job
    has loaded no table of this name; without columns: they are not known. ``complete``: the columns of a name after
    the statement.
    """
    for name, content in contents:
        before = before_of(*name)
        if content.schema is None:
            if before is not None and not before.is_dropped:
                yield TableChange(before, replace(before, is_dropped=True, since=None), rows=content.kind)
            continue
        after = replace(complete(name, content, before), database=name[0], table=name[1], since=None)
        if before is None or not before.columns or not after.columns:
            yield TableChange(before or TableSchema(*name, (), ()), after, rows=content.kind)
        else:
            yield replaced(before, after, content.kind)


def replaced(before: TableSchema, after: TableSchema, kind: ChangeKind) -> TableChange:
    """Return the change of a name that means another table, with other rows: its columns are compared by name."""
    key, other_key = ([name.casefold() for name in schema.key] for schema in (before, after))
    return TableChange(before, after, tuple(_compared(before, after)), kind, key_changed=key != other_key)


def _compared(before: TableSchema, after: TableSchema) -> Iterator[ColumnChange]:
    olds = {column.name.casefold(): column for column in before.columns}
    news = {column.name.casefold(): column for column in after.columns}
    for name, old in olds.items():
        if name not in news:
            yield ColumnChange(ChangeKind.DROP_COLUMN, old)
    kept = [(old, news[name]) for name, old in olds.items() if name in news]
    for old, new in kept:
        if old.name != new.name:
            yield ColumnChange(ChangeKind.RENAME_COLUMN, old, replace(old, name=new.name))
    for old, new in kept:
        if not is_same_type(old, new):
            renamed = replace(old, name=new.name)
            yield ColumnChange(ChangeKind.ALTER_TYPE, renamed, new, changes_values=True)
    for name, new in news.items():
        if name not in olds:
            yield ColumnChange(ChangeKind.ADD_COLUMN, None, new, Fill(FillKind.BY_ROW))


def _name(schema: TableSchema) -> Name:
    return schema.database, schema.table
