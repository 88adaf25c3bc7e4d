"""Pages of the keys of a target: the smallest keys after a given key, in Arrow's order."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def key_page(keys: pa.Table, after: pa.Table | None, limit: int) -> pa.Table:
    """Return the ``limit`` smallest rows of ``keys`` that are greater than the one row of ``after``, in order."""
    if after is not None and keys.num_rows:
        keys = keys.filter(is_greater(keys.columns, [column[0] for column in after.columns]))
    return keys.sort_by([(name, "ascending") for name in keys.schema.names]).slice(0, limit)


def is_greater(columns: Sequence[pa.ChunkedArray], values: Sequence[pa.Scalar]) -> pa.ChunkedArray:
    """Return the mask of the rows of ``columns`` that are greater than ``values``, by column from left to right."""
    first = pc.greater(columns[0], values[0])
    if len(columns) == 1:
        return first
    return pc.or_(first, pc.and_(pc.equal(columns[0], values[0]), is_greater(columns[1:], values[1:])))
