"""XA transactions that were prepared before the start position: find the tables that they changed.

The binlog has the rows of an XA transaction at its XA PREPARE, not at its XA COMMIT. A job that reads the XA PREPARE
keeps its position there until the transaction is decided. An XA COMMIT without a known XA PREPARE therefore belongs to
a transaction that was prepared before the job began to read, or that changed no mapped table. SHOW BINLOG EVENTS shows
which one it is. Both receivers call ``refuse_unknown`` at such an XA COMMIT.

Source: MySQL manual, "XA Transaction States", "SHOW BINLOG EVENTS Statement"; MariaDB knowledge base, "XA RECOVER".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from cdc.errors import CdcError, SourceActionRequired
from cdc.model.position import BinlogPosition
from cdc.model.xid import xid_of, xid_text
from cdc.mysql.server import Server

log = logging.getLogger(__name__)

_FILES_MOST = 4  # binlog files that are searched, newest first: most XA transactions are decided within a second
_EVENTS_AT_ONCE = 50_000  # events per SHOW BINLOG EVENTS; some tens of megabytes
_FIRST_EVENT = 4
_TABLE = re.compile(r"table_id: \d+ \((.*)\)")
_ANYTHING = frozenset({"?"})  # tables that SHOW BINLOG EVENTS does not name


def prepared_tables(server: Server, xid: str, before: BinlogPosition) -> frozenset[str] | None:
    """Return the tables that XA transaction ``xid`` changed, by its last XA PREPARE before ``before``; None: not found.

    The name "?" stands for tables that the server does not list. Calls: rarely; reads up to four binlog files.
    Raises: SourceUnavailable.
    """
    names = list(server.files())
    if before.file not in names:
        return None
    newest = names.index(before.file)
    for number in range(newest, max(-1, newest - _FILES_MOST), -1):
        end = before.offset if number == newest else None
        found = _in_file(server, names[number], end, xid)
        if found is not None:
            return found
    return None


def _in_file(server: Server, file: str, end: int | None, xid: str) -> frozenset[str] | None:
    tables: frozenset[str] = frozenset()
    found = None
    at = _FIRST_EVENT
    while True:
        page = server.ask(f"SHOW BINLOG EVENTS IN '{file}' FROM {at} LIMIT {_EVENTS_AT_ONCE}")
        for event in page:
            if end is not None and event["Pos"] >= end:
                return found
            at, kind, info = event["End_log_pos"], event["Event_type"], str(event["Info"])
            if "XA START" in info or kind in ("Gtid", "Anonymous_Gtid"):
                tables = frozenset()
            elif match := _TABLE.match(info):
                tables |= {match[1]}
            elif kind == "Transaction_payload":
                tables |= _ANYTHING
            elif kind == "XA_prepare" and xid_of(info) == xid:
                found = tables
        if len(page) < _EVENTS_AT_ONCE:
            return found


def refuse_unknown(
    xid: str,
    before: BinlogPosition,
    position: BinlogPosition,
    ask: Callable[[], Server] | None,
    maps: Callable[[str, str], bool],
) -> None:
    """Check an XA COMMIT at ``position`` of a transaction that was prepared before ``before``, where reading began.

    ``before`` has no file if reading began by GTIDs, at another server: its XA PREPARE is then anywhere before its end.
    Raises: SourceActionRequired - the transaction changed mapped tables, or may have changed them.
    """
    found = None
    searched = before if before.file else position
    if ask is not None and searched.file:
        try:
            with ask() as server:
                found = prepared_tables(server, xid, searched)
        except CdcError as error:
            log.warning("cannot search the binlog for XA transaction %s: %s", xid, error)
    mapped = None if found is None or found & _ANYTHING else sorted(name for name in found if _maps(name, maps))
    if mapped == []:
        return
    rows = f"its rows of {', '.join(mapped)} are" if mapped else "its rows of mapped tables, if it has any, are"
    raise SourceActionRequired(
        f"XA transaction {xid} was prepared before the position where this job began to read: {rows} missing.",
        hint="Run `cdc resume NAME --accept-gap` to continue without these rows, then `cdc snapshot` for the tables "
        "that the transaction changed.",
        xid=xid,
        position=position,
    )


def prepared_now(server: Server) -> tuple[str, ...]:
    """Return the xids of transactions that are prepared and not decided; none if this account may not list them."""
    try:
        rows = server.ask("XA RECOVER")
    except CdcError:
        return ()
    return tuple(_xid(row) for row in rows)


def _xid(row: dict[str, object]) -> str:
    data = row["data"]
    text = data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogateescape")
    length = int(str(row["gtrid_length"]))
    return xid_text(text[:length], text[length:], int(str(row["formatID"])))


def _maps(listed: str, maps: Callable[[str, str], bool]) -> bool:
    """Return whether a listed table is mapped. The server lists it without quotes, so any dot may end the database."""
    return any(maps(listed[:at], listed[at + 1 :]) for at, character in enumerate(listed) if character == ".")
