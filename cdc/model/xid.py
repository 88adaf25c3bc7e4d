"""Names of XA transactions."""

from __future__ import annotations

import re


def xid_text(gtrid: bytes, bqual: bytes, format_id: int) -> str:
    """Return the canonical text of an xid: ``X'gtrid',X'bqual',format``."""
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id}"


_XID = re.compile(r"(?:X'([0-9a-f]*)'|'([^']*)'),(?:X'([0-9a-f]*)'|'([^']*)'),(\d+)", re.IGNORECASE)


def xid_of(sql: str) -> str | None:
    """Return the canonical text of the xid in XA COMMIT or XA ROLLBACK; None if ``sql`` has no xid."""
    match = _XID.search(sql)
    if match is None:
        return None
    gtrid_hex, gtrid, bqual_hex, bqual, format_id = match.groups()
    return xid_text(
        bytes.fromhex(gtrid_hex) if gtrid is None else gtrid.encode(),
        bytes.fromhex(bqual_hex) if bqual is None else bqual.encode(),
        int(format_id),
    )
