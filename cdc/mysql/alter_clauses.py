"""Read the clauses of ALTER TABLE into an Alteration.

Source: MySQL manual, "ALTER TABLE Statement"; MariaDB knowledge base, "ALTER TABLE".
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc.model.schema import TableSchema
from cdc.model.schema_change import ChangeKind
from cdc.mysql.alter_table import Alteration
from cdc.mysql.column_definition import Dialect, charset_name, charset_of_collation, read_column
from cdc.mysql.create_table import is_index, read_index, read_options
from cdc.mysql.ddl_tokens import Token, TokenCursor, bracketed, refuse, specifications
from cdc.mysql.ddl_words import (
    HARMLESS_OPTIONS,
    HARMLESS_PARTITION_WORK,
    ROW_CHANGING_PARTITION_WORK,
    TableNames,
    deletes_violating_rows,
    has_engine_without_rows,
)

_VERSIONING = (("PERIOD", "FOR"), ("SYSTEM", "VERSIONING"))
_COLLATIONS = ("CHARSET", "CHARACTER", "COLLATE")
_NOT_COLUMNS = ("INDEX", "KEY", "CHECK", "CONSTRAINT")


class ClauseReader:
    """Read the clauses of one statement."""

    def __init__(self, before: TableSchema, names: TableNames, dialect: Dialect) -> None:
        self.alteration = Alteration(before, dialect)
        # other tables of partition work, what happens to their rows, and whether they get rows
        self.exchanged: list[tuple[tuple[str, str], ChangeKind, bool]] = []
        self._names = names
        self._dialect = dialect

    def read(self, tokens: Sequence[Token], *, ignores: bool) -> None:
        """Read all clauses. ``ignores``: it is ALTER IGNORE. Raises: Unreadable."""
        parts = [_without_partitions(part) for part in specifications(tokens) if not part.done]
        for part in parts:  # the default of new columns, wherever the statement sets it
            self._charset(part)
            part.at = 0
        if self.alteration.converts and any(map(self._sets_charset, parts)):
            refuse("it converts the table and also defines another default character set")
        for part in parts:
            self._clause(part)
        if ignores and (self.alteration.can_merge_values() or deletes_violating_rows(tokens)):
            self._changes_rows(ChangeKind.DROP_PARTITION)

    def _changes_rows(self, kind: ChangeKind) -> None:
        if self.alteration.rows not in (None, kind):
            refuse("it renames the table and removes rows")
        self.alteration.rows = kind

    def read_tables(self, tokens: Sequence[Token]) -> None:
        """Read only RENAME TO and the tables of partition work, for a table that is not known. Raises: Unreadable."""
        for part in specifications(tokens):
            if part.word() in ROW_CHANGING_PARTITION_WORK and part.word(1) in ("PARTITION", "TABLE"):
                self._partition(part)
            elif part.word() == "RENAME" and part.word(1) not in ("COLUMN", "INDEX", "KEY"):
                part.at += 1
                self._rename(part)

    def _charset(self, part: TokenCursor) -> None:
        if part.take("CONVERT", "TO"):
            part.take("CHARACTER", "SET") or part.take("CHARSET") or refuse("CONVERT TO has an unknown form")
            if part.take("DEFAULT"):
                refuse("the default character set of the database is not known")
            charset = charset_name(part.name())
            if part.take("COLLATE"):
                charset_of_collation(part.name(), charset)
            if charset == "binary":
                refuse("it converts texts to binaries")
            self.alteration.charset = self.alteration.converts = charset
            self._options(part)
        elif self._is_options(part):
            self._options(part)

    def _is_options(self, part: TokenCursor) -> bool:
        return part.word() in HARMLESS_OPTIONS and part.word() != "ORDER"

    def _sets_charset(self, part: TokenCursor) -> bool:
        return self._is_options(part) and any(token.word in _COLLATIONS for token in part.tokens)

    def _options(self, part: TokenCursor) -> None:
        options = read_options(part, self.alteration.charset)
        if options.versioned:
            refuse("it adds system versioning")
        self.alteration.charset = options.charset
        if any(token.word == "COMMENT" for token in part.tokens):
            self.alteration.comment = options.comment

    def _clause(self, part: TokenCursor) -> None:
        first, second = part.word(), part.word(1)
        if first in ROW_CHANGING_PARTITION_WORK and second in ("PARTITION", "TABLESPACE", "TABLE"):
            self._partition(part)
        elif (
            (first in HARMLESS_PARTITION_WORK and second == "PARTITION")
            or (first in ("PARTITION", "REMOVE") and second in ("BY", "PARTITIONING"))
            or first == "ORDER"
        ):
            return
        elif first in _CLAUSES:
            part.at += 1
            _CLAUSES[first](self, part)
        elif has_engine_without_rows(part.tokens):
            refuse("its engine keeps no rows")
        elif not self._is_options(part):
            refuse(f"{part.rest()[0].text} is not known")

    def _partition(self, part: TokenCursor) -> None:
        self._changes_rows(ChangeKind.DROP_PARTITION)
        converts_table = part.word(1) == "TABLE"  # CONVERT TABLE: the other table does not exist after it
        self.alteration.gets_rows |= part.word() in ("EXCHANGE", "IMPORT") or converts_table
        kind = ChangeKind.DROP_TABLE if converts_table else ChangeKind.DROP_PARTITION
        for index, token in enumerate(part.tokens):
            if token.word == "TABLE":
                name = self._names.read(TokenCursor(part.tokens[index + 1 :]))
                self.exchanged.append((name, kind, not converts_table))

    # --- clauses with columns ---

    def _add(self, part: TokenCursor) -> None:
        if part.word() == "PARTITION":
            return
        if (part.word(), part.word(1)) in _VERSIONING:
            refuse("it adds system versioning")
        if is_index(part):
            self._index(part)
            return
        part.take("COLUMN")
        only_missing = part.if_exists()
        if part.word() == "(":
            definitions = list(specifications(bracketed(part)))
            if not part.done:
                refuse(f"{part.rest()[0].text} is not known")
        else:
            definitions = [part]
        for each in definitions:
            if is_index(each):
                self._index(each)
                continue
            found = read_column(each, charset=self.alteration.charset, dialect=self._dialect)
            position = self._position(each)
            if not only_missing:
                self.alteration.add(found, position)
            else:
                self.alteration.add_missing(found, position)

    def _index(self, part: TokenCursor) -> None:
        if part.word() not in ("PERIOD", "VECTOR") and (found := read_index(part)) is not None:
            self.alteration.indexes.append(found)
        elif part.word() == "PERIOD":
            refuse("it adds a period")

    def _position(self, part: TokenCursor) -> str | None:
        """Consume FIRST or AFTER. Return the name of the column before this one, "" for FIRST, None for no position."""
        position = None
        if part.take("FIRST"):
            position = ""
        elif part.take("AFTER"):
            position = part.name()
        if not part.done:
            refuse(f"{part.rest()[0].text} is not known")
        return position

    def _drop(self, part: TokenCursor) -> None:
        alteration = self.alteration
        if part.take("PRIMARY", "KEY"):
            alteration.drops_primary = True
        elif part.word() in _NOT_COLUMNS or part.word() == "FOREIGN":
            if part.take("INDEX") or part.take("KEY"):
                part.if_exists()
                alteration.drops_primary |= part.name().upper() == "PRIMARY"
            alteration.may_drop_key |= part.word() not in ("FOREIGN", "CHECK")
        elif (part.word(), part.word(1)) in _VERSIONING:
            refuse("it drops system versioning")
        else:
            part.take("COLUMN")
            only_existing = part.if_exists()
            name = part.name()
            part.take("RESTRICT") or part.take("CASCADE")
            if not part.done:
                refuse(f"{part.rest()[0].text} is not known")
            if not only_existing or alteration.has(name):
                alteration.drop(name)

    def _modify(self, part: TokenCursor) -> None:
        self._redefine(part, new_name=False)

    def _change(self, part: TokenCursor) -> None:
        self._redefine(part, new_name=True)

    def _redefine(self, part: TokenCursor, *, new_name: bool) -> None:
        part.take("COLUMN")
        only_existing = part.if_exists()
        start = part.at
        old = part.name()
        part.at = part.at if new_name else start
        found = read_column(part, charset=self.alteration.charset, dialect=self._dialect)
        position = self._position(part)
        if not only_existing or self.alteration.has(old):
            self.alteration.change(old, found, position)

    def _alter(self, part: TokenCursor) -> None:
        if part.word() in _NOT_COLUMNS:
            return
        part.take("COLUMN")
        only_existing = part.if_exists()
        name = part.name()
        self.alteration.defaults.add(name.casefold())
        if only_existing and not self.alteration.has(name):
            return
        if part.take("SET", "VISIBLE") or part.take("SET", "INVISIBLE"):
            self.alteration.show(name, part.tokens[part.at - 1].word == "VISIBLE")

    def _rename(self, part: TokenCursor) -> None:
        if part.word() in ("INDEX", "KEY"):
            return
        if part.take("COLUMN"):
            only_existing = part.if_exists()
            old = part.name()
            if not part.take("TO"):
                refuse("RENAME COLUMN has an unknown form")
            if not only_existing or self.alteration.has(old):
                self.alteration.rename(old, part.name())
            return
        part.take("TO") or part.take("AS") or part.take("=")
        self.alteration.name = self._names.read(part)
        self._changes_rows(ChangeKind.RENAME_TABLE)

    def _convert(self, part: TokenCursor) -> None:
        if not part.take("TO"):
            refuse("CONVERT has an unknown form")


def _without_partitions(part: TokenCursor) -> TokenCursor:
    """Return the clause without a PARTITION BY after it, which needs no comma and changes no rows."""
    depth = 0
    for index, token in enumerate(part.tokens):
        depth += (token.word == "(") - (token.word == ")")
        if index and depth == 0 and token.word == "PARTITION" and part.word(index + 1) == "BY":
            return TokenCursor(part.tokens[:index])
    return part


_CLAUSES = {
    "ADD": ClauseReader._add,
    "DROP": ClauseReader._drop,
    "MODIFY": ClauseReader._modify,
    "CHANGE": ClauseReader._change,
    "ALTER": ClauseReader._alter,
    "RENAME": ClauseReader._rename,
    "CONVERT": ClauseReader._convert,
}
