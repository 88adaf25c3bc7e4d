"""Names of databases, tables and columns in requests to Doris and StarRocks: escaped, or refused with an error.

Names are from the source and untrusted: a table can have the name ``../x`` or contain a line end. ``statements.quoted``
escapes names in SQL and in the ``columns`` header. This module has the other two forms: a segment of a URL path, and
the value of a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from cdc.errors import TargetMismatch
from cdc.mysql.client import shown
from channels.sinks.base import Finding, TargetTable

CHECKPOINTS = "cdc_checkpoints"  # the job's own table; Doris does not create names that begin with an underscore

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_HINT = "Give the channel another `target` (a column: another name in `columns`), or remove the table with `exclude`."


def url_segment(name: str) -> str:
    """Return ``name`` as one segment of a URL path. Raises: TargetMismatch - a path cannot contain it."""
    _refuse(name, _path_problem(name))
    return quote(name, safe="")


def header_value(value: str) -> bytes:
    """Return the value of a header as UTF-8. Raises: TargetMismatch - a header cannot contain it."""
    _refuse(value, _header_problem(value))
    return value.encode()


@dataclass(frozen=True, slots=True)
class NameRules:
    """The names that a product creates. A pattern matches the whole name."""

    product: str
    database: str
    table: str
    column: str
    form: str  # the patterns in words
    unreadable: str = ""  # characters that the product changes in a quoted name
    unicode_databases: bool = True
    table_in_path: bool = False  # the path of a load contains the table's name

    def refused(self, table: TargetTable) -> Iterator[Finding]:
        """Find names of ``table`` that the product does not create."""
        database, _, name = table.name.partition(".")
        parts = [("database", database, self.database), ("table", name, self.table)]
        parts += [("column", column.name, self.column) for column in table.columns]
        for kind, text, pattern in parts:
            if re.fullmatch(pattern, text, re.DOTALL) is None:
                yield Finding(
                    f"{shown(table.name)}: {self.product} does not create a {kind} with the name {text[:100]!r}. "
                    f"{self.form}",
                    _HINT,
                )


def name_findings(table: TargetTable, rules: NameRules) -> Iterator[Finding]:
    """Find names that no request can contain, or that the product would change to other names."""
    database, _, name = table.name.partition(".")
    in_request = _path_problem if rules.table_in_path else _header_problem
    checks = [
        (database, _path_problem(database) or _database_problem(database, rules)),
        (name, in_request(name) or _own_problem(name)),
        *((column.name, _control_problem(column.name)) for column in table.columns),
    ]
    for text, problem in checks:
        if found := problem or _quotes_problem(text, rules):
            yield Finding(f"{shown(table.name)}: the name {text[:100]!r} {found}", _HINT)


def _database_problem(text: str, rules: NameRules) -> str | None:
    if rules.unicode_databases or text.isascii():
        return None
    return f"is not ASCII, and {rules.product} does not find its database when a load is committed"


def _own_problem(text: str) -> str | None:
    return "is the name of the table with the checkpoints of all jobs" if text.casefold() == CHECKPOINTS else None


def _quotes_problem(text: str, rules: NameRules) -> str | None:
    if not set(text) & set(rules.unreadable):
        return None
    return f"has one of the characters {rules.unreadable}, which {rules.product} removes from names"


def _control_problem(text: str) -> str | None:
    return "has control characters, which a request cannot contain" if _CONTROL.search(text) else None


def _header_problem(text: str) -> str | None:
    if text != text.strip():
        return "begins or ends with a space, which servers remove from headers"
    return _control_problem(text)


def _path_problem(text: str) -> str | None:
    if text in ("", ".", "..") or "/" in text or "\\" in text:
        return "is empty, a relative path, or has a slash, which servers interpret in the path of a request"
    return _header_problem(text)


def _refuse(text: str, problem: str | None) -> None:
    if problem:
        raise TargetMismatch(f"The name {text[:100]!r} {problem}.", hint=_HINT)
