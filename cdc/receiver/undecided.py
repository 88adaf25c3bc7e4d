"""XA transactions that were prepared before the place a run starts at: which tables did they change?

Rows of an XA transaction lie in the binlog where it was prepared. One that a run has read itself holds the run's
position back as long as it has rows of mapped tables; so what is left are those prepared before the job began to read,
and those of other tables. The server's own listing of its binlog tells the two apart.

Source: MySQL manual, "XA Transaction States", "SHOW BINLOG EVENTS Statement"; MariaDB knowledge base, "XA RECOVER".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from cdc.binlog.events import xid_text
from cdc.binlog.server import Server
from cdc.binlog.xa import xid_of
from cdc.errors import CdcError, SourceBlocked
from cdc.position import BinlogPosition

log = logging.getLogger(__name__)

_FILES_MOST = 4  # looked through, newest first: most XA transactions are decided within a second
_EVENTS_AT_ONCE = 50_000  # a page of the server's listing; some tens of megabytes
_FIRST_EVENT = 4
_TABLE = re.compile(r"table_id: \d+ \((.*)\)")
_ANYTHING = frozenset({"?"})  # tables that the listing hides


def prepared_tables(server: Server, xid: str, before: BinlogPosition) -> frozenset[str] | None:
    """Tables that the XA transaction ``xid`` changed, as it was last prepared before ``before``; None: not to be found.

    A name "?" stands for tables that the server does not list. Calls: rarely; reads up to four binlog files.
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
            at, kind, told = event["End_log_pos"], event["Event_type"], str(event["Info"])
            if "XA START" in told or kind in ("Gtid", "Anonymous_Gtid"):
                tables = frozenset()
            elif match := _TABLE.match(told):
                tables |= {match[1]}
            elif kind == "Transaction_payload":
                tables |= _ANYTHING
            elif kind == "XA_prepare" and xid_of(told) == xid:
                found = tables
        if len(page) < _EVENTS_AT_ONCE:
            return found


def refuse_unknown(
    xid: str,
    before: BinlogPosition,
    place: BinlogPosition,
    ask: Callable[[], Server] | None,
    maps: Callable[[str, str], bool],
) -> None:
    """Look at an XA COMMIT at ``place`` of a transaction that was prepared before ``before``, where reading began.

    Raises: SourceBlocked - it changed mapped tables, or may have.
    """
    found = None
    if ask is not None and before.file:
        try:
            with ask() as server:
                found = prepared_tables(server, xid, before)
        except CdcError as error:
            log.warning("the binlog cannot be looked through for XA transaction %s: %s", xid, error)
    mapped = None if found is None or found & _ANYTHING else sorted(name for name in found if _maps(name, maps))
    if mapped == []:
        return
    rows = f"its rows of {', '.join(mapped)}" if mapped else "rows of mapped tables, if it has any,"
    raise SourceBlocked(
        f"XA transaction {xid} is committed here, and was prepared before the place where this job began to read: "
        f"{rows} lie behind us.",
        mend="`cdc resume NAME --accept-gap` goes on without them; then load the tables that it changed again with "
        "`cdc snapshot`.",
        xid=xid,
        position=place,
    )


def prepared_now(server: Server) -> tuple[str, ...]:
    """Xids of what is prepared and not decided at the server; empty where this account may not ask."""
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
    """Return whether a table is mapped that the server lists so: without quotes, whatever dot ends its database."""
    return any(maps(listed[:at], listed[at + 1 :]) for at, character in enumerate(listed) if character == ".")
