"""Whether a new type of a column can change values of existing rows, for which the servers log no row events.

It is a list of changes that certainly keep every value. With every other change the rows must be read again.

Source: MySQL manual, "ALTER TABLE Statement"; observed with MySQL 9.7 and MariaDB 10.11.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cdc.model.schema import Column, Kind
from cdc.model.schema_change import ChangeKind, ColumnChange, Fill, FillKind, TableChange
from cdc.mysql.column_definition import LEAST_BYTES, MOST_BYTES, TEXTS

_INTEGERS = (Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT)
_STRINGS = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT)
_CONTAINED = {
    "ascii": ("latin1", "utf8mb3", "utf8mb4"),
    "latin1": ("utf8mb3", "utf8mb4"),
    "utf8mb3": ("utf8mb4",),
}  # charset -> charsets that have all its characters
_MOST_DIGITS = 38  # a DECIMAL with more digits is loaded as text, in which the number of zeros is visible


def is_same_type(old: Column, new: Column) -> bool:
    """Return whether the columns differ at most in name, comment, visibility and display width."""
    other = replace(new, name=old.name, type=old.type, comment=old.comment, visible=old.visible)
    return old == other and _float_digits(old) == _float_digits(new)


def can_change_values(old: Column, new: Column) -> bool:
    """Return whether values of existing rows can differ after the column has changed from ``old`` to ``new``."""
    if new.generated or old.generated:
        return True
    if old.nullable and not new.nullable:
        return True
    return not _keeps_values(old, new)


def can_merge_values(old: Column, new: Column) -> bool:
    """Return whether different values of existing rows can be equal after the change, so that a unique key loses rows.

    A text can have another collation, because a definition without one sets the default of the table. A ``Column`` does
    not have its collation.
    """
    if old.nullable and not new.nullable:
        return True
    if old.kind is new.kind and old.kind in (Kind.ENUM, Kind.SET):
        return not {*old.labels} <= {*new.labels}
    return old.kind in _STRINGS or can_change_values(old, new)


def with_kept_nulls(change: TableChange) -> TableChange:
    """Return a confirmed change, as it is for a TIMESTAMP column that allows NULL after the statement: NULL stays NULL.

    Calls: only if no later statement has changed the table.
    """
    return replace(change, columns=tuple(_with_kept_nulls(change.columns)))


def _with_kept_nulls(changes: Iterable[ColumnChange]) -> Iterator[ColumnChange]:
    for change in changes:
        old, new = change.old, change.new
        if change.fill.kind is FillKind.NULL_OR_TIME and new is not None and new.nullable:
            yield replace(change, fill=Fill())
        elif change.kind is not ChangeKind.ALTER_TYPE or old is None or new is None or new.kind is not Kind.TIMESTAMP:
            yield change
        elif can_change_values(old, new) or not is_same_type(old, new):
            yield replace(change, changes_values=can_change_values(old, new))


def _keeps_values(old: Column, new: Column) -> bool:
    if is_same_type(replace(old, nullable=True), replace(new, nullable=True)):
        return old.kind not in TEXTS or bool(new.charset)
    kinds = (old.kind, new.kind)
    if old.kind in _INTEGERS and new.kind in _INTEGERS:
        return old.unsigned == new.unsigned and _INTEGERS.index(new.kind) >= _INTEGERS.index(old.kind)
    if kinds == (Kind.DECIMAL, Kind.DECIMAL):
        return _keeps_decimals(old, new)
    if kinds == (Kind.FLOAT, Kind.DOUBLE):
        return old.unsigned == new.unsigned and _float_digits(new) == ""
    if old.kind in _STRINGS and new.kind in _STRINGS:
        return _keeps_text(old, new)
    if old.kind in (Kind.VARBINARY, Kind.BLOB) and new.kind in (Kind.VARBINARY, Kind.BLOB):
        return new.length >= old.length
    if old.kind is new.kind and old.kind in (Kind.ENUM, Kind.SET):
        return _keeps_labels(old, new)
    if old.kind is new.kind and old.kind in (Kind.DATETIME, Kind.TIMESTAMP):
        return new.fsp >= old.fsp
    return False


def _keeps_decimals(old: Column, new: Column) -> bool:
    is_wider = new.precision - new.scale >= old.precision - old.scale and new.scale >= old.scale
    is_text = new.precision > _MOST_DIGITS and new.scale != old.scale
    return is_wider and old.unsigned == new.unsigned and not is_text


def _keeps_text(old: Column, new: Column) -> bool:
    if not _keeps_charset(old, new):
        return False
    if new.kind is not Kind.TEXT:  # both lengths are characters
        return old.kind is not Kind.TEXT and new.length >= old.length and new.kind in (old.kind, Kind.VARCHAR)
    most_bytes = MOST_BYTES.get(new.charset, 1)
    if old.kind is not Kind.TEXT:
        needed = old.length * most_bytes
    elif old.charset == new.charset or (old.charset, new.charset) == ("utf8mb3", "utf8mb4"):
        needed = old.length * LEAST_BYTES.get(old.charset, 1)
    else:
        needed = old.length * most_bytes
    return new.length * LEAST_BYTES.get(new.charset, 1) >= needed


def _keeps_charset(old: Column, new: Column) -> bool:
    return bool(new.charset) and (old.charset == new.charset or new.charset in _CONTAINED.get(old.charset, ()))


def _keeps_labels(old: Column, new: Column) -> bool:
    if not _keeps_charset(old, new):
        return False
    kept = tuple(label for label in new.labels if label in old.labels)
    if old.kind is Kind.SET:  # the text of a value has its members in the order of the type
        return kept == old.labels
    return len(kept) == len(old.labels)


def _float_digits(column: Column) -> str:
    """Return "(7,3)" of FLOAT(7,3), whose values are rounded; "" for other types."""
    if column.kind not in (Kind.FLOAT, Kind.DOUBLE):
        return ""
    found = re.search(r"\(\d+,\d+\)", column.type)
    return found[0] if found else ""
