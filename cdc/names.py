"""Names of source tables as text: one grammar for the job file, the command line, the status and the saved state.

``database.table``. A part that holds a space, a dot, a backtick or a star is written in backticks, as in MySQL, and a
backtick in it is doubled: ```my db`.`odd.table```. One unquoted ``*`` in the table's part makes a pattern.

Source: MySQL manual, "Schema Object Names".
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

FORM = (
    "must be database.table, or database.* for all tables of a database; write a name that holds a space, a dot or a * "
    "in backticks: `my db`.`odd.table`"
)

_PART = r"`(?:[^`]|``)+`|[^`.\s]+"
_TABLE = re.compile(rf"(?P<database>{_PART})\.(?P<table>{_PART})")
_SPECIAL = re.compile(r"[`.\s*]")
_SHADOW = re.compile(r"_.+_(?:gho|ghc|del|new|old)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, or with ``tail`` a pattern: every table whose name begins with ``table`` and ends with ``tail``."""

    database: str
    table: str
    tail: str | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether this is a pattern."""
        return self.tail is not None

    def middle(self, database: str, table: str) -> str | None:
        """Return what the star stands for in a table that this pattern matches; None if it matches not."""
        tail = self.tail or ""
        is_match = database == self.database and table.startswith(self.table) and table.endswith(tail)
        return table[len(self.table) : len(table) - len(tail)] or None if is_match else None

    def with_middle(self, middle: str) -> TableName:
        """Return the one table of this pattern in which the star stands for ``middle``."""
        return self if self.tail is None else TableName(self.database, f"{self.table}{middle}{self.tail}")

    def includes(self, other: TableName) -> bool:
        """Return whether this pattern matches every table that the pattern ``other`` matches."""
        if self.tail is None or other.tail is None or self.database != other.database:
            return False
        return other.table.startswith(self.table) and other.tail.endswith(self.tail)

    @property
    def plain(self) -> str:
        """The two parts and a dot, without quotes: the form that sinks take for a target."""
        return f"{self.database}.{self.table}" + ("" if self.tail is None else f"*{self.tail}")

    def __str__(self) -> str:
        if self.tail is None:
            return table_text(self.database, self.table)
        return f"{part_text(self.database)}.{self.table}*{self.tail}"


def parse_table(text: str) -> TableName:
    """Return the table or pattern that ``text`` names. Raises: ValueError - it follows not the grammar."""
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
    """Return what ``parse_table`` returns; None if ``value`` names no table."""
    try:
        return parse_table(value) if isinstance(value, str) else None
    except ValueError:
        return None


def parse_excluded(text: str) -> re.Pattern[str]:
    """Return what matches the tables that an entry of ``exclude`` names: one name, or a pattern with stars.

    Raises: ValueError - it is not the name of a table alone.
    """
    if not re.fullmatch(_PART, text):
        raise ValueError(
            "must be a table's name without its database, in which * stands for anything; write a name that holds a "
            "space, a dot or a * in backticks"
        )
    return _excluded(text)


@functools.lru_cache(4096)
def _excluded(text: str) -> re.Pattern[str]:
    if text.startswith("`"):
        return re.compile(re.escape(_unquoted(text)))
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


@functools.lru_cache(4096)
def table_text(database: str, table: str) -> str:
    """Return the text that names this table. ``table_of`` reads it back."""
    return f"{part_text(database)}.{part_text(table)}"


def table_of(text: str) -> tuple[str, str]:
    """Return the database and table of a name in ``table_text``'s form.

    States saved before names were quoted hold plain ones: the first dot ends their database.
    """
    found = _TABLE.fullmatch(text)
    if found is None:
        database, _, table = text.partition(".")
        return database, table
    return _unquoted(found["database"]), _unquoted(found["table"])


def is_shadow(table: str) -> bool:
    """Return whether a table has the name of a copy that gh-ost or pt-online-schema-change works on.

    Source: gh-ost, "What's in a name?"; Percona Toolkit, "pt-online-schema-change".
    """
    return _SHADOW.fullmatch(table) is not None


def part_text(part: str) -> str:
    """Return one part of a name as text, in backticks where it must be."""
    return "`" + part.replace("`", "``") + "`" if _SPECIAL.search(part) or not part else part


def _unquoted(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part
