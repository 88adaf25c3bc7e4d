"""The contract of sinks whose rows can be read: the rows of a key range, or those of given keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import pyarrow as pa

from channels.sinks.base import TargetTable


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows whose values of ``columns`` are greater than ``above`` and not greater than ``upto``.

    Rows are ordered by the first column, then by the second, and so on. ``above``, ``upto``: one value per column, of
    its type; None: no limit on this side.
    """

    columns: tuple[str, ...]
    above: tuple[pa.Scalar, ...] | None
    upto: tuple[pa.Scalar, ...] | None


class RowReader(Protocol):
    """Reads some columns of one target. Calls: one thread at a time."""

    rounds_floats: bool  # floating-point numbers are read from rounded texts

    def has_order_of(self, columns: Sequence[str]) -> bool:
        """Return whether the target orders these columns by the values of their Arrow types."""

    def between(self, range: KeyRange) -> pa.Table:
        """Return the rows of ``range``, in any order, with the types that the target stores.

        Raises: SinkUnavailable; TargetMismatch - a value is not exactly a value of its type.
        """

    def of_keys(self, keys: pa.Table) -> pa.Table:
        """Return the rows with one of ``keys``, the key columns of the target. Raises: see ``between``."""


class RowSource(Protocol):
    """A sink whose committed rows can be read."""

    def row_reader(self, table: TargetTable, columns: Sequence[str]) -> RowReader:
        """Return a reader of ``columns``. It sees everything that is committed when it is created.

        ``columns`` include the key. Raises: SinkUnavailable.
        """


def can_read_rows(sink: object) -> TypeGuard[RowSource]:
    """Return whether ``sink`` is a ``RowSource``."""
    return callable(getattr(sink, "row_reader", None))
