"""XA transactions that are prepared and not decided yet. Their decoded rows stay in memory until XA COMMIT."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from cdc.model.batch import Changes
from cdc.model.position import BinlogPosition
from cdc.model.schema import SEQUENCE


@dataclass(slots=True)
class PreparedPiece:
    """The rows of one cut. Sequences are counted from the begin of the XA transaction, until ``renumbered``."""

    changes: tuple[Changes, ...]
    rows: int
    bytes: int
    entries: int


@dataclass(slots=True)
class OpenXa:
    """An XA transaction that was read and is not decided yet."""

    since: BinlogPosition  # position before it; nothing after this position may be acked while it has rows
    started_us: int  # time of its XA PREPARE, microseconds since 1970, UTC
    xid: str = ""  # "" until it is prepared
    pieces: list[PreparedPiece] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0  # of memory


def renumbered(changes: Changes, base: int) -> Changes:
    """Return ``changes`` with ``base`` added to every sequence."""
    rows = changes.rows
    offset = rows.schema.get_field_index(SEQUENCE)
    numbers = pa.array(rows.column(offset).to_numpy() + base, pa.int64())
    return Changes(changes.schema, rows.set_column(offset, SEQUENCE, numbers))
