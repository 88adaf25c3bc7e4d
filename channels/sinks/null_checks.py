"""Refuse NULL in NOT NULL columns of a target, with table, column and the first keys."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import LoadRejected
from cdc.model.schema import DELETED
from channels.sinks.base import TargetTable

_KEYS_SHOWN = 5


def check_nulls(target: TargetTable, rows: pa.Table) -> None:
    """Check ``rows``. Raises: LoadRejected - NULL in a NOT NULL column; with table, column and the first keys."""
    for column in target.columns:
        is_key = column.name in target.key
        if (column.nullable and not is_key) or not rows.column(column.name).null_count:
            continue
        bad = pc.is_null(rows.column(column.name))
        if not is_key:
            bad = pc.and_not(bad, rows.column(DELETED))
        found = rows.filter(bad)
        if not found.num_rows:
            continue
        keys = found.select(list(target.key)).slice(0, _KEYS_SHOWN).to_pylist()
        what = "key column" if is_key else "column"
        raise LoadRejected(
            f"NULL for {what} {column.name}, which is NOT NULL in the target ({found.num_rows} rows).",
            hint="Correct the rows in the source (zero dates become NULL), or map the column to an expression that is "
            "never NULL; then run `cdc resume`.",
            table=target.name,
            column=column.name,
            keys=keys,
        )
