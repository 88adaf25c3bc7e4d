"""XA transactions that are prepared and not yet decided: their rows wait here, decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pyarrow as pa

from cdc.batch import Changes
from cdc.binlog.events import xid_text
from cdc.position import BinlogPosition
from cdc.schema import SEQUENCE

_XID = re.compile(r"(?:X'([0-9a-f]*)'|'([^']*)'),(?:X'([0-9a-f]*)'|'([^']*)'),(\d+)", re.IGNORECASE)


@dataclass(slots=True)
class PreparedPiece:
    """Rows of one scan, with sequences from 0 on over the whole transaction."""

    changes: tuple[Changes, ...]
    rows: int
    bytes: int
    entries: int


@dataclass(slots=True)
class OpenXa:
    """An XA transaction seen and not yet decided."""

    since: BinlogPosition  # before it; nothing behind may be acked while it has rows
    started_us: int  # when it was prepared, microseconds since 1970, UTC
    xid: str = ""  # "" until it is prepared
    pieces: list[PreparedPiece] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0  # of memory


def xid_of(sql: str) -> str | None:
    """The xid that XA COMMIT or XA ROLLBACK names, in one spelling."""
    match = _XID.search(sql)
    if match is None:
        return None
    gtrid_hex, gtrid, bqual_hex, bqual, format_id = match.groups()
    return xid_text(
        bytes.fromhex(gtrid_hex) if gtrid is None else gtrid.encode(),
        bytes.fromhex(bqual_hex) if bqual is None else bqual.encode(),
        int(format_id),
    )


def renumbered(changes: Changes, base: int) -> Changes:
    """``changes`` with ``base`` added to every sequence."""
    rows = changes.rows
    place = rows.schema.get_field_index(SEQUENCE)
    numbers = pa.array(rows.column(place).to_numpy() + base, pa.int64())
    return Changes(changes.schema, rows.set_column(place, SEQUENCE, numbers))
