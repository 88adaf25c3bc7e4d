"""Rows of a Delta table, read by deltalake's engine, which knows deletion vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return all rows of the table in the folder ``path``."""
    reader = QueryBuilder().register("t", DeltaTable(str(path)))
    return pa.table(reader.execute("SELECT * FROM t").read_all()).to_pylist()
