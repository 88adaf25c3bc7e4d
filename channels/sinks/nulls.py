"""NULL where a target has none: refused by the sinks themselves, with table, column and the first keys."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import LoadRejected
from cdc.schema import DELETED
from channels.sinks.base import TargetTable

_KEYS_SHOWN = 5


def check_nulls(target: TargetTable, rows: pa.Table) -> None:
    """Raises: LoadRejected - a NULL where the target has none; names table, column and the first keys."""
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
            f"NULL for {what} {column.name}, which the target holds to be NOT NULL ({found.num_rows} rows).",
            mend="Mend the rows at the source (zero dates come as NULL), or map the column to an expression that is "
            "never NULL; then `cdc resume`.",
            table=target.name,
            column=column.name,
            keys=keys,
        )
