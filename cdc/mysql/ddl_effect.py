"""What a statement does to the mapped tables, as ``ddl`` reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from cdc.model.table_names import table_of, table_text
from cdc.mysql.ddl_tokens import Token
from cdc.mysql.ddl_words import TableNames


class EffectKind(Enum):
    """The kinds of effects on mapped tables."""

    NONE = "none"  # it affects no mapped table
    HARMLESS = "harmless"  # it changes neither rows nor columns that the mapping reads
    TOUCHES = "touches"  # it changes a mapped table: the job pauses before it
    CREATES = "creates"  # it creates a mapped table
    WRITES = "writes"  # it writes rows as a statement, without row events


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one statement."""

    kind: EffectKind
    tables: tuple[str, ...] = ()  # mapped ones, "database.table"; of WRITES: every written table, mapped or not
    reason: str = ""  # "DROP COLUMN price"
    row_changing: bool = False  # rows may have been changed or deleted without row events
    reshapes: bool = False  # columns that the mapping does not read were changed: the schema must be read again
    may_rekey: bool = False  # an index was dropped that may have been the table's key
    columns_stay: bool = False  # only rows were deleted
    is_new: bool = False  # of CREATES: the table did not exist before, so that rows follow in the binlog only


_STRENGTH = (EffectKind.NONE, EffectKind.HARMLESS, EffectKind.CREATES, EffectKind.TOUCHES, EffectKind.WRITES)


def strongest(effects: Sequence[Effect]) -> Effect:
    """Return the effect of a statement with several readings: the strongest kind, on all tables that it can mean.

    TOUCHES also counts for tables of harmless readings: their columns or their key may be others after the statement.
    """
    kind = max((one.kind for one in effects), key=_STRENGTH.index)
    found = [one for one in effects if one.kind is kind]
    if kind is EffectKind.TOUCHES:
        found += [one for one in effects if one.kind not in (kind, EffectKind.NONE)]
    tables = dict.fromkeys(table for one in found for table in one.tables)
    is_unknown = kind is EffectKind.WRITES and not all(one.tables for one in found)
    return Effect(
        kind,
        () if is_unknown else tuple(tables),
        found[0].reason,
        row_changing=any(one.row_changing for one in found),
        reshapes=any(one.reshapes for one in effects),
        may_rekey=any(one.may_rekey for one in effects),
        columns_stay=all(one.columns_stay for one in found),
        is_new=all(one.is_new and one.tables == found[0].tables for one in found),  # else one of them may be older
    )


class TableLookup(Protocol):
    """The tables of the job."""

    def maps(self, database: str, table: str) -> bool:
        """Return whether a channel would read a table of this name, which may not exist."""

    def known(self, database: str, table: str | None = None) -> tuple[str, ...]:
        """Return the mapped tables seen so far: of this name, or of the whole database."""

    def reads_column(self, database: str, table: str, column: str) -> bool:
        """Return whether the channel reads this column, even if the column does not exist yet."""

    def reads_generated(self, database: str, table: str) -> bool:
        """Return whether the channel reads a column that is known to be generated."""


@dataclass(frozen=True, slots=True)
class MappedTables:
    """The mapped tables, and the effects of common operations on them."""

    names: TableNames
    lookup: TableLookup

    def named(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Return the mapped tables that names in ``tokens`` may mean."""
        found = {}
        for index, token in enumerate(tokens):
            if not token.name:
                continue
            is_qualified = index >= 2 and tokens[index - 1].word == "." and tokens[index - 2].name
            database, table = self.names.stored(
                tokens[index - 2].text if is_qualified else self.names.database, token.text
            )
            if self.lookup.maps(database, table):
                found[table_text(database, table)] = True
        return tuple(found)

    def delete_rows(self, reason: str, named: Sequence[tuple[str, str]]) -> Effect:
        """Return the effect of a statement that removes the rows of these tables."""
        affected = tuple(dict.fromkeys(table_text(db, table) for db, table in named if self.lookup.maps(db, table)))
        if not affected:
            return Effect(EffectKind.NONE)
        return Effect(EffectKind.TOUCHES, affected, reason, row_changing=True)

    def drop_database(self, database: str, reason: str) -> Effect:
        """Return the effect of DROP DATABASE."""
        affected = tuple(one for one in self.lookup.known(database) if self.lookup.maps(*table_of(one)))
        return Effect(EffectKind.TOUCHES, affected, reason, row_changing=True) if affected else Effect(EffectKind.NONE)

    def drop_index(self, name: tuple[str, str], index: str) -> Effect:
        """Return the effect of a dropped index, which may have been the key."""
        if not self.lookup.maps(*name):
            return Effect(EffectKind.NONE)
        reason = f"DROP INDEX {index}"
        if index.upper() == "PRIMARY":
            return Effect(EffectKind.TOUCHES, (table_text(*name),), reason)
        return Effect(EffectKind.HARMLESS, (table_text(*name),), reason, may_rekey=True)

    def unreadable(self, tokens: Sequence[Token], sql: str) -> Effect:
        """Return the effect of a statement that cannot be read: on each mapped table that it may name."""
        affected = self.named(tokens)
        if not affected:
            return Effect(EffectKind.NONE)
        return Effect(EffectKind.TOUCHES, affected, f"unreadable statement {sql[:80]!r}", row_changing=True)


def phrase(tokens: Sequence[Token]) -> str:
    """Return the beginning of a clause, for messages."""
    text = " ".join(token.text for token in tokens[:6])
    return text + (" ..." if len(tokens) > 6 else "")
