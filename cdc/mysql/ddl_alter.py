"""Determine the effect of ALTER TABLE on the mapped tables.

Source: MySQL manual, "ALTER TABLE Statement"; MariaDB knowledge base, "ALTER TABLE".
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc.model.table_names import table_text
from cdc.mysql.ddl_effect import Effect, EffectKind, MappedTables, phrase
from cdc.mysql.ddl_tokens import Token, TokenCursor, Unreadable, specifications
from cdc.mysql.ddl_words import (
    DATABASE,
    HARMLESS_OPTIONS,
    HARMLESS_PARTITION_WORK,
    INDEX,
    OTHER_OBJECTS,
    ROW_CHANGING_PARTITION_WORK,
    deletes_violating_rows,
    has_engine_without_rows,
    is_other_object,
    skip_wait,
)

_REDEFINES = frozenset(("MODIFY", "CHANGE"))  # different values of a unique key can become equal


class AlterReader:
    """Reads one ALTER statement from its tokens."""

    def __init__(self, tables: MappedTables) -> None:
        self._tables = tables
        self._lookup = tables.lookup

    def effect(self, cursor: TokenCursor) -> Effect:
        """Return the effect of a statement after the word ALTER. Raises: Unreadable."""
        cursor.take("ONLINE") or cursor.take("OFFLINE")
        ignores = cursor.take("IGNORE")
        if not cursor.take("TABLE"):
            if is_other_object(cursor, OTHER_OBJECTS | DATABASE):
                return Effect(EffectKind.NONE)
            raise Unreadable
        cursor.if_exists()
        database, table = self._tables.names.read(cursor)
        skip_wait(cursor)
        if not self._lookup.maps(database, table):
            return self._alter_of_another(cursor)
        found = [self._specification(database, table, part) for part in specifications(cursor.rest())]
        if ignores and (deletes_violating_rows(cursor.rest()) or {token.word for token in cursor.rest()} & _REDEFINES):
            # rows that violate a key or a condition, or have no partition, are deleted without row events
            found.append(Effect(EffectKind.TOUCHES, reason=f"IGNORE {phrase(cursor.rest())}", row_changing=True))
        others = [self._other_table(part) for part in specifications(cursor.rest())]
        mapped = [(database, table), *(one for one in others if one is not None and self._lookup.maps(*one))]
        touching = [effect for effect in found if effect.kind is EffectKind.TOUCHES]
        return Effect(
            EffectKind.TOUCHES if touching else EffectKind.HARMLESS,
            tuple(dict.fromkeys(table_text(*one) for one in mapped)),
            ", ".join(effect.reason for effect in touching or found if effect.reason),
            row_changing=any(effect.row_changing for effect in found),
            reshapes=any(effect.reshapes for effect in found),
            may_rekey=any(effect.may_rekey for effect in found),
        )

    def _alter_of_another(self, cursor: TokenCursor) -> Effect:
        """Return the effect of ALTER on an unmapped table: it may be renamed to a mapped one, or swap rows with one."""
        for part in specifications(cursor.rest()):
            reason, other = phrase(part.tokens), self._other_table(part)
            if other is not None and self._lookup.maps(*other):
                return Effect(EffectKind.TOUCHES, (table_text(*other),), reason, row_changing=True)
        return Effect(EffectKind.NONE)

    def _other_table(self, part: TokenCursor) -> tuple[str, str] | None:
        """Return the second table that a clause of ALTER TABLE names; None if there is none. Raises: Unreadable."""
        if part.take("RENAME"):
            if part.word() in ("COLUMN", "INDEX", "KEY"):
                return None
            part.take("TO") or part.take("AS") or part.take("=")
            return self._tables.names.read(part)
        if part.take("CONVERT", "TABLE"):
            return self._tables.names.read(part)
        if part.take("EXCHANGE", "PARTITION") or part.take("CONVERT", "PARTITION"):
            part.name()
            if not (part.take("WITH", "TABLE") or part.take("TO", "TABLE")):
                raise Unreadable
            return self._tables.names.read(part)
        return None

    def _specification(self, database: str, table: str, part: TokenCursor) -> Effect:
        reason = phrase(part.tokens)
        harmless = Effect(EffectKind.HARMLESS, reason=reason)
        touches = Effect(EffectKind.TOUCHES, reason=reason)
        loses = Effect(EffectKind.TOUCHES, reason=reason, row_changing=True)
        if part.done:
            return harmless
        first = part.word()
        part.at += 1
        if first in ROW_CHANGING_PARTITION_WORK and part.word() in ("PARTITION", "TABLESPACE", "TABLE"):
            return loses
        if first in HARMLESS_PARTITION_WORK and part.word() == "PARTITION":
            return harmless
        if first in ("PARTITION", "REMOVE") and part.word() in ("BY", "PARTITIONING"):
            return harmless
        if first == "ADD":
            return self._add(database, table, part, reason)
        if first == "DROP":
            return self._drop_part(database, table, part, reason)
        if first in ("MODIFY", "CHANGE"):
            part.take("COLUMN")
            part.if_exists()
            named = [part.name()] + ([part.name()] if first == "CHANGE" else [])
            is_read = any(self._lookup.reads_column(database, table, column) for column in named)
            # a generated column may be computed from this one
            if is_read or self._lookup.reads_generated(database, table) or _is_key(part.rest()):
                return loses  # a narrower type truncates stored values without row events
            return Effect(EffectKind.HARMLESS, reason=reason, reshapes=True)
        if first == "ALTER":
            return harmless  # defaults, visibility of columns and indexes, enforcement of checks
        if first == "RENAME":
            if part.take("INDEX") or part.take("KEY"):
                return harmless
            if part.take("COLUMN"):
                part.if_exists()
                old = part.name()
                part.take("TO")
                if any(self._lookup.reads_column(database, table, column) for column in (old, part.name())):
                    return touches
                return Effect(EffectKind.HARMLESS, reason=reason, reshapes=True)
            return loses
        if first == "CONVERT":
            return loses
        if first == "WITH" and part.word() == "SYSTEM":  # MariaDB then logs deletes as updates of row_end
            return loses
        if first in HARMLESS_OPTIONS and not has_engine_without_rows(part.tokens):
            return harmless
        return loses

    def _add(self, database: str, table: str, part: TokenCursor, reason: str) -> Effect:
        harmless = Effect(EffectKind.HARMLESS, reason=reason)
        touches = Effect(EffectKind.TOUCHES, reason=reason)
        if part.take("CONSTRAINT") and part.word() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            part.name()
        if part.word() == "PRIMARY":
            return touches
        if part.word() in INDEX | {"FOREIGN", "CHECK", "PARTITION"}:
            return harmless
        if part.word() == "VECTOR" and part.word(1) in ("INDEX", "KEY"):
            return harmless
        if (part.word(), part.word(1)) in (("PERIOD", "FOR"), ("SYSTEM", "VERSIONING")):
            return Effect(EffectKind.TOUCHES, reason=reason, row_changing=True)
        part.take("COLUMN")
        part.if_exists()
        definitions = list(specifications(part.rest()[1:-1])) if part.word() == "(" else [TokenCursor(part.rest())]
        read = key = filled = False
        for definition in definitions:
            if definition.word() in INDEX | {"PRIMARY", "CONSTRAINT", "FOREIGN", "CHECK"}:
                key |= definition.word() in ("PRIMARY", "CONSTRAINT")
                continue
            column = definition.name()
            key |= _is_key(definition.rest())
            if self._lookup.reads_column(database, table, column):
                read = True
                filled |= _is_filled(definition.rest())
        if read or key:
            return Effect(EffectKind.TOUCHES, reason=reason, row_changing=filled)
        return Effect(EffectKind.HARMLESS, reason=reason, reshapes=True)

    def _drop_part(self, database: str, table: str, part: TokenCursor, reason: str) -> Effect:
        if part.take("PRIMARY"):
            return Effect(EffectKind.TOUCHES, reason=reason)
        if part.take("INDEX") or part.take("KEY") or part.take("CONSTRAINT"):
            part.if_exists()
            return self._tables.drop_index((database, table), part.name())
        if part.word() in ("FOREIGN", "CHECK"):
            return Effect(EffectKind.HARMLESS, reason=reason)
        if (part.word(), part.word(1)) in (("PERIOD", "FOR"), ("SYSTEM", "VERSIONING")):
            return Effect(EffectKind.TOUCHES, reason=reason, row_changing=True)
        part.take("COLUMN")
        part.if_exists()
        if self._lookup.reads_column(database, table, part.name()):
            return Effect(EffectKind.TOUCHES, reason=reason)
        return Effect(EffectKind.HARMLESS, reason=reason, reshapes=True)


def _is_key(definition: Sequence[Token]) -> bool:
    """Return whether a definition makes its column the primary key: [PRIMARY] KEY, but not UNIQUE KEY."""
    words = [token.word for token in definition]
    return any(
        word == "PRIMARY" or (word == "KEY" and (index == 0 or words[index - 1] != "UNIQUE"))
        for index, word in enumerate(words)
    )


def _is_filled(definition: Sequence[Token]) -> bool:
    """Return whether a new column has a value other than NULL in existing rows."""
    words = [token.word for token in definition]
    if "AS" in words or "AUTO_INCREMENT" in words or "SERIAL" in words:
        return True
    if "DEFAULT" in words:
        after = words.index("DEFAULT") + 1
        return after >= len(words) or words[after] != "NULL"
    return any(words[index : index + 2] == ["NOT", "NULL"] for index in range(len(words)))
