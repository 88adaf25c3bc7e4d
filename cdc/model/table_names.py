"""Names of source tables as text: one grammar for the job file, the command line, the status and the saved state.

The form is ``database.table``. As in MySQL, a part with a space, a dot, a backtick or a star is written in backticks,
and a backtick in it is doubled: ```my db`.`odd.table```. A name with one unquoted ``*`` in its table is a pattern.

Source: MySQL manual, "Schema Object Names".
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

FORM = (
    "must be database.table, or database.* for all tables of a database; write a name with a space, a dot or a * in "
    "backticks: `my db`.`odd.table`"
)

_PART = r"`(?:[^`]|``)+`|[^`.\s]+"
_TABLE = re.compile(rf"(?P<database>{_PART})\.(?P<table>{_PART})")
_SPECIAL = re.compile(r"[`.\s*]")
_GHOST = re.compile(r"_(.+)_gho", re.DOTALL)
_NEW_SUFFIX, _MOST_UNDERSCORES = "_new", 10
_SHADOW = re.compile(r"_.+_(?:gho|ghc|ghk|del|new|old)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table; or a pattern, if ``tail`` is set: all tables whose names begin with ``table`` and end with ``tail``."""

    database: str
    table: str
    tail: str | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether this is a pattern."""
        return self.tail is not None

    def middle(self, database: str, table: str) -> str | None:
        """Return the text that the star matches in the name of a table; None if the pattern does not match it."""
        tail = self.tail or ""
        is_match = database == self.database and table.startswith(self.table) and table.endswith(tail)
        return table[len(self.table) : len(table) - len(tail)] or None if is_match else None

    def with_middle(self, middle: str) -> TableName:
        """Return the table of this pattern in which ``middle`` replaces the star."""
        return self if self.tail is None else TableName(self.database, f"{self.table}{middle}{self.tail}")

    def includes(self, other: TableName) -> bool:
        """Return whether this pattern matches every table that the pattern ``other`` matches."""
        if self.tail is None or other.tail is None or self.database != other.database:
            return False
        return other.table.startswith(self.table) and other.tail.endswith(self.tail)

    @property
    def plain(self) -> str:
        """The two parts with a dot and without backticks: the form of target names in sinks."""
        return f"{self.database}.{self.table}" + ("" if self.tail is None else f"*{self.tail}")

    def __str__(self) -> str:
        if self.tail is None:
            return table_text(self.database, self.table)
        return f"{part_text(self.database)}.{self.table}*{self.tail}"


def parse_table(text: str) -> TableName:
    """Return the table or pattern that ``text`` names. Raises: ValueError - it does not follow the grammar."""
    found = _TABLE.fullmatch(text)
    if found is None:
        raise ValueError(FORM)
    database, table = found["database"], found["table"]
    if not database.startswith("`") and "*" in database:
        raise ValueError(FORM)
    if table.startswith("`") or "*" not in table:
        return TableName(_unquoted(database), _unquoted(table))
    if table.count("*") > 1:
        raise ValueError(FORM)
    head, _, tail = table.partition("*")
    return TableName(_unquoted(database), head, tail)


def parsed_table(value: object) -> TableName | None:
    """Return the result of ``parse_table``; None if ``value`` does not follow the grammar."""
    try:
        return parse_table(value) if isinstance(value, str) else None
    except ValueError:
        return None


def parse_excluded(text: str) -> re.Pattern[str]:
    """Return the regular expression of an entry of ``exclude``: the name of a table, or a pattern with stars.

    Raises: ValueError - it is not the name of a table without a database.
    """
    if not re.fullmatch(_PART, text):
        raise ValueError(
            "must be a table's name without its database, in which * matches any text; write a name with a space, a "
            "dot or a * in backticks"
        )
    return _excluded(text)


@functools.lru_cache(4096)
def _excluded(text: str) -> re.Pattern[str]:
    if text.startswith("`"):
        return re.compile(re.escape(_unquoted(text)))
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


@functools.lru_cache(4096)
def table_text(database: str, table: str) -> str:
    """Return the name of a table as text. ``table_of`` is the reverse."""
    return f"{part_text(database)}.{part_text(table)}"


def table_of(text: str) -> tuple[str, str]:
    """Return the database and table of a name from ``table_text``.

    State that was saved by older versions has names without backticks. In these the first dot ends the database.
    """
    found = _TABLE.fullmatch(text)
    if found is None:
        database, _, table = text.partition(".")
        return database, table
    return _unquoted(found["database"]), _unquoted(found["table"])


def is_shadow(table: str) -> bool:
    """Return whether a table has the name of a temporary table of gh-ost or pt-online-schema-change.

    gh-ost: ``_t_gho`` is the copy of t, ``_t_ghc`` the changelog, ``_t_ghk`` has checkpoints, and ``_t_del`` or
    ``_t_20240102030405_del`` is the old table. pt-online-schema-change: ``_t_new`` and ``_t_old``, with up to ten
    underscores before them.

    Source: gh-ost, "What's in a name?"; Percona Toolkit, "pt-online-schema-change".
    """
    return _SHADOW.fullmatch(table) is not None


def originals_of(table: str) -> tuple[str, ...]:
    """Return the tables that a shadow table with this name can be the copy of: of ``_t_gho`` and ``__t_new``.

    A name that begins with several underscores has several originals. Source: see ``is_shadow``.
    """
    if (found := _GHOST.fullmatch(table)) is not None:
        return (found[1],)
    if not table.endswith(_NEW_SUFFIX):
        return ()
    underscores = min(len(table) - len(table.lstrip("_")), _MOST_UNDERSCORES)
    names = [table[count : -len(_NEW_SUFFIX)] for count in range(1, underscores + 1)]
    return tuple(name for name in names if name)


def part_text(part: str) -> str:
    """Return one part of a name as text, in backticks if needed."""
    return "`" + part.replace("`", "``") + "`" if _SPECIAL.search(part) or not part else part


def _unquoted(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part
