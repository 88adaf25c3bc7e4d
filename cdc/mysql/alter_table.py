"""Apply the clauses of ALTER TABLE to the columns and the key of a table.

All clauses name the old columns, except AFTER, which names new ones. The server first drops and changes columns in
their old order, and then places added and moved columns in the order of the clauses.

Source: MySQL manual, "ALTER TABLE Statement"; MariaDB knowledge base, "ALTER TABLE"; observed with both servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ChangeKind, ColumnChange, TableChange
from cdc.mysql.column_default import fill_of, without_brackets
from cdc.mysql.column_definition import (
    LEAST_BYTES,
    MOST_BYTES,
    TEXT_BYTES,
    TEXTS,
    ColumnDefinition,
    Dialect,
    may_be_not_null,
)
from cdc.mysql.create_table import Index
from cdc.mysql.ddl_tokens import refuse
from cdc.mysql.value_changes import can_change_values, can_merge_values, is_same_type


@dataclass(slots=True)
class NewColumn:
    """A column as the changed table has it, with the one that it was before."""

    column: Column
    old: Column | None = None
    definition: ColumnDefinition | None = None  # of ADD, MODIFY and CHANGE


class Alteration:
    """The clauses of one ALTER TABLE statement, and their result."""

    def __init__(self, before: TableSchema, dialect: Dialect) -> None:
        """``before``: the table as it was before the statement."""
        self.before = before
        self.charset = before.charset
        self.comment = before.comment
        self.converts = ""  # the charset of CONVERT TO
        self.rows: ChangeKind | None = None
        self.gets_rows = False  # partition work brings rows
        self.name = (before.database, before.table)
        self.drops_primary = False
        self.may_drop_key = False  # an index was dropped, whose columns are not known
        self.indexes: list[Index] = []
        self.defaults: set[str] = set()  # casefolded names of columns with ALTER COLUMN
        self._dialect = dialect
        self._drops: set[str] = set()
        self._changes: dict[str, tuple[NewColumn, str | None]] = {}  # old name -> column, and its position
        self._placed: list[tuple[NewColumn, str | None]] = []  # added and moved columns, in order

    # --- clauses ---

    def has(self, name: str) -> bool:
        """Return whether the table had this column before the statement."""
        return any(column.name.casefold() == name.casefold() for column in self.before.columns)

    def add(self, definition: ColumnDefinition, position: str | None) -> None:
        """ADD COLUMN. ``position``: the column before it, "" for FIRST, None for the end."""
        self._note_indexes(definition)
        self._placed.append((NewColumn(definition.described, None, definition), position))

    def add_missing(self, definition: ColumnDefinition, position: str | None) -> None:
        """ADD COLUMN IF NOT EXISTS."""
        name = definition.name.casefold()
        known = {new.column.name.casefold() for new, _ in self._placed} | set(self._changes) | self._drops
        if name in known or any(new.column.name.casefold() == name for new, _ in self._changes.values()):
            refuse(f"it is not clear whether column {definition.name} exists when it is added")
        if not self.has(name):
            self.add(definition, position)

    def drop(self, name: str) -> None:
        """DROP COLUMN."""
        self._column(name)
        self._drops.add(name.casefold())

    def change(self, name: str, definition: ColumnDefinition, position: str | None) -> None:
        """CHANGE and MODIFY."""
        self._note_indexes(definition)
        self._replace(name, NewColumn(definition.described, self._column(name), definition), position)

    def rename(self, name: str, new_name: str) -> None:
        """RENAME COLUMN."""
        old = self._column(name)
        self._replace(name, NewColumn(replace(old, name=new_name), old), None)

    def show(self, name: str, visible: bool) -> None:
        """ALTER COLUMN .. SET VISIBLE and INVISIBLE."""
        old = self._column(name)
        self._replace(name, NewColumn(replace(old, visible=visible), old), None)

    def _note_indexes(self, definition: ColumnDefinition) -> None:
        if definition.period:
            refuse("it changes a column of system versioning")
        if definition.primary:
            self.indexes.append(Index("PRIMARY", (definition.name,), partial=False, primary=True))
        if definition.unique:
            self.indexes.append(Index(definition.name, (definition.name,), partial=False))

    def _column(self, name: str) -> Column:
        try:
            return self.before.column(name)
        except KeyError:
            refuse(f"the table has no column {name}")

    def _replace(self, name: str, new: NewColumn, position: str | None) -> None:
        if name.casefold() in self._changes:
            refuse(f"it changes column {name} twice")
        self._changes[name.casefold()] = (new, position)
        if position is not None:
            self._placed.append((new, position))

    def can_merge_values(self) -> bool:
        """Return whether values of existing columns can become equal. See ``cdc.mysql.value_changes``."""
        for new, _ in self._changes.values():
            if new.old is None or new.definition is None:
                continue
            if can_merge_values(new.old, new.column) or _replaces_nulls(new.old, new, self._dialect):
                return True
        texts = [one for one in self.before.columns if self.converts and one.kind in TEXTS]
        return any(can_merge_values(one, one) for one in texts)

    # --- the result ---

    def result(self) -> TableChange:
        """Return what the statement does. Raises: Unreadable."""
        news = self._in_order()
        if self.converts and (self.charset != self.converts or any(map(_redefines_text, news))):
            refuse("it converts the table and also defines a text column or another default character set")
        names = [new.column.name.casefold() for new in news]
        if len(set(names)) < len(names) or not names:
            refuse("the changed table has a column twice, or has no columns")
        if any(new.old is None and new.column.name.casefold() in self.defaults for new in news):
            refuse("it adds a column and also changes its default")  # MariaDB: existing rows get the changed one
        for new in news:
            if new.definition is not None:
                _check_default(new.definition, names, self._dialect)
            self._complete(new)
        key, is_certain = self._key(news)
        database, table = self.name
        columns = tuple(new.column for new in news)
        after = TableSchema(database, table, columns, key, self.comment, charset=self.charset)
        renamed = {new.old.name: new.column.name for new in news if new.old is not None}
        return TableChange(
            self.before,
            after,
            tuple(self._column_changes(news)),
            self.rows,
            key_changed=tuple(renamed.get(name, "") for name in self.before.key) != key,
            key_is_certain=is_certain,
            values_differ=self.gets_rows,
        )

    def _in_order(self) -> list[NewColumn]:
        if self._drops & set(self._changes):
            refuse("it changes a column that it drops")
        news = []
        for old in self.before.columns:
            if old.name.casefold() not in self._drops:
                changed = self._changes.get(old.name.casefold())
                news.append(changed[0] if changed else NewColumn(old, old))
        for new, position in self._placed:
            if new.old is not None:
                news = [other for other in news if other is not new]
            news.insert(_index(news, position), new)
        return news

    def _complete(self, new: NewColumn) -> None:
        """Apply CONVERT TO CHARACTER SET, and the NOT NULL of a primary key."""
        if self.converts and new.definition is None and new.column.kind in TEXTS:
            new.column = _converted(new.column, self.converts)
        name = new.column.name.casefold()
        is_primary = any(index.primary and name in map(str.casefold, index.columns) for index in self.indexes)
        was_key = new.old is not None and new.old.name in self.before.key and not new.old.nullable
        stays = was_key and not self.drops_primary and new.definition is not None and new.definition.sets_null is None
        if is_primary or stays:  # a column of a primary key is NOT NULL, even if the statement does not say so
            new.column = replace(new.column, nullable=False)

    def _key(self, news: Sequence[NewColumn]) -> tuple[tuple[str, ...], bool]:
        """Return the key of the changed table, and whether it is certain: other indexes are not known."""
        columns = {new.column.name.casefold(): new.column for new in news}
        for index in self.indexes:
            if any(name.casefold() not in columns for name in index.columns):
                refuse("a key names a column that the table does not have")
        primary = [index for index in self.indexes if index.primary]
        if primary:
            if primary[0].partial or len(primary) > 1:
                refuse("a primary key is over prefixes, or there are two")
            return tuple(columns[name.casefold()].name for name in primary[0].columns), True
        kept = [new for new in news if new.old is not None and new.old.name in self.before.key]
        usable = [
            index
            for index in self.indexes
            if index.columns and not any(columns[name.casefold()].nullable for name in index.columns)
        ]
        is_certain = not (self.drops_primary or self.may_drop_key or (usable and self.before.key) or len(usable) > 1)
        is_certain = is_certain and not any(index.partial for index in usable) and not any(map(_may_make_key, news))
        is_certain = is_certain and len(kept) == len(self.before.key) and not any(map(self._may_end_key, kept))
        if self.drops_primary or any(new.column.nullable for new in kept):
            kept = []
        by_name = {new.old.name: new.column.name for new in kept if new.old is not None}
        key = tuple(by_name[name] for name in self.before.key if name in by_name)
        if not key and usable:
            key = tuple(columns[name.casefold()].name for name in usable[0].columns)
        return key, is_certain

    def _may_end_key(self, new: NewColumn) -> bool:
        """Return whether a key column may now be nullable: it is not known whether the key is a primary key."""
        return (
            new.definition is not None and new.definition.sets_null is not False and not new.definition.auto_increment
        )

    def _column_changes(self, news: Sequence[NewColumn]) -> Iterator[ColumnChange]:
        for old in self.before.columns:
            if old.name.casefold() in self._drops:
                yield ColumnChange(ChangeKind.DROP_COLUMN, old)
        yield from _renames(news)
        yield from _type_changes(news, self._dialect)
        for new in news:
            if new.old is None and new.definition is not None:
                fill = fill_of(new.definition, new.column, self._dialect)
                yield ColumnChange(ChangeKind.ADD_COLUMN, None, new.column, fill)


def _check_default(definition: ColumnDefinition, columns: Sequence[str], dialect: Dialect) -> None:
    """Refuse a default that cannot be the name of a column. ``columns``: the casefolded names of the new columns.

    In brackets it is an expression over the columns of the table. Only MariaDB has names without brackets.
    """
    default = definition.default or ()
    inside = without_brackets(default)
    if len(inside) != 1 or not inside[0].name or inside[0].word:
        return
    if inside[0].text.casefold() not in columns or (dialect.mariadb is False and len(default) == 1):
        refuse(f"the default of column {definition.name} is a name, but not that of a column that it can have")


def _index(news: Sequence[NewColumn], position: str | None) -> int:
    if position is None:
        return len(news)
    if position == "":
        return 0
    for index, new in enumerate(news):
        if new.column.name.casefold() == position.casefold():
            return index + 1
    refuse(f"there is no column {position} after which a column is placed")


def _redefines_text(new: NewColumn) -> bool:
    """Return whether an existing column gets a text type. With CONVERT TO, MySQL 9.7 may make it TINYTEXT."""
    return new.old is not None and new.definition is not None and new.column.kind in TEXTS


def _may_make_key(new: NewColumn) -> bool:
    """Return whether an existing column is NOT NULL now, so that a unique index on it may have become the key."""
    return new.old is not None and new.old.nullable and not new.column.nullable


def _converted(column: Column, charset: str) -> Column:
    """Return the column after CONVERT TO CHARACTER SET. TEXT becomes longer if its characters need more bytes."""
    if not charset:
        return replace(column, charset="")
    if column.kind is not Kind.TEXT:
        return replace(column, charset=charset)
    size = column.type.split(" ")[0].removesuffix("text")
    if size not in TEXT_BYTES:
        refuse(f"the size of column {column.name} is not known")
    old_most, new_most = MOST_BYTES.get(column.charset, 1), MOST_BYTES.get(charset, 1)
    if new_most > old_most:
        needed = min(TEXT_BYTES[size] // old_most * new_most, TEXT_BYTES["long"])
        size = next(each for each, most in TEXT_BYTES.items() if most >= needed)
    length = TEXT_BYTES[size] // LEAST_BYTES.get(charset, 1)
    rest = column.type.partition(" ")[2]
    return replace(column, charset=charset, length=length, type=f"{size}text{' ' if rest else ''}{rest}")


def _renames(news: Sequence[NewColumn]) -> Iterator[ColumnChange]:
    """Yield the renames in an order without a duplicate name, as far as there is one: ``a<->b`` has none."""
    pending = [new for new in news if new.old is not None and new.old.name != new.column.name]
    while pending:
        taken = {new.old.name.casefold() for new in pending if new.old is not None}
        free = [
            new
            for new in pending
            if new.column.name.casefold() not in taken
            or (new.old is not None and new.column.name.casefold() == new.old.name.casefold())
        ]
        for new in free or pending:
            assert new.old is not None
            yield ColumnChange(ChangeKind.RENAME_COLUMN, new.old, replace(new.old, name=new.column.name))
        pending = [new for new in pending if new not in free] if free else []


def _type_changes(news: Sequence[NewColumn], dialect: Dialect) -> Iterator[ColumnChange]:
    """Yield the changes of types. The server computes generated columns again from the new types of other columns."""
    found = {
        id(new): change
        for new in news
        if new.old is not None and (change := _type_change(new.old, new, dialect)) is not None
    }
    for new in news:
        if (change := found.get(id(new))) is not None:
            yield change
        elif found and new.old is not None and new.column.generated:
            renamed = replace(new.old, name=new.column.name)
            yield ColumnChange(ChangeKind.ALTER_TYPE, renamed, new.column, changes_values=True)


def _replaces_nulls(old: Column, new: NewColumn, dialect: Dialect) -> bool:
    """Return whether the server can replace NULL by a time, because the column becomes NOT NULL without such words."""
    return old.nullable and new.definition is not None and may_be_not_null(new.definition, dialect)


def _type_change(old: Column, new: NewColumn, dialect: Dialect) -> ColumnChange | None:
    renamed = replace(old, name=new.column.name)
    definition = new.definition
    # a new expression, or numbers in place of zeros in a column that was not AUTO_INCREMENT before
    numbers_zeros = new.column.auto_increment and not old.auto_increment
    is_computed = definition is not None and (definition.generated or numbers_zeros)
    is_computed = is_computed or _replaces_nulls(old, new, dialect)
    if is_same_type(old, new.column) and not is_computed:
        return None
    changes_values = is_computed or can_change_values(old, new.column)
    return ColumnChange(ChangeKind.ALTER_TYPE, renamed, new.column, changes_values=changes_values)
