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


@dataclass(frozen=True, slots=True)
class RangeChecksum:
    """A checksum of rows. It does not depend on their order."""

    rows: int
    sums: tuple[int, int]  # over the MD5 of each row, see ``digest_sums``


class RangeChecksums(Protocol):
    """Computes checksums of rows in the target. Equal checksums mean equal values. Others mean nothing."""

    columns: tuple[str, ...]  # that are part of the checksums, the key included

    def of_range(self, range: KeyRange) -> RangeChecksum | None:
        """Return the checksum of the rows of ``range``, computed by the target; None: it refuses to.

        Raises: SinkUnavailable.
        """

    def of_rows(self, rows: pa.Table) -> RangeChecksum | None:
        """Return the checksum that the target has if it has ``rows``; None: it has no type for one of their values."""


class RowReader(Protocol):
    """Reads some columns of one target. Calls: one thread at a time."""

    rounds_floats: bool  # floating-point numbers are read from rounded texts
    checksums: RangeChecksums | None  # None: the target computes none

    def has_order_of(self, columns: Sequence[str]) -> bool:
        """Return whether the target orders these columns by the values of their Arrow types."""

    def between(self, range: KeyRange, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of ``range``, in any order, with the types that the target stores.

        ``columns``: those to return, the key included; None: all. Raises: SinkUnavailable; TargetMismatch - a value is
        not exactly a value of its type.
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
