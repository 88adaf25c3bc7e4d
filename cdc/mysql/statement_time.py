"""The value of CURRENT_TIMESTAMP in a statement: existing rows have it in a column that the statement adds.

TIMESTAMP is in UTC. DATETIME and DATE are in the time zone of the session that ran the statement. A value that is not
certain stays unknown: the rows are then read again.

Source: MySQL manual, "MySQL Server Time Zone Support"; MySQL and MariaDB, ``tztime.cc``: a zone is loaded at its first
use and stays as it is until the server stops.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from cdc.model.schema import Column, Kind
from cdc.model.schema_change import ColumnChange, Fill, FillKind, TableChange
from cdc.mysql.server import Server

_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)", re.ASCII)
_LATEST_S = (1 << 31) - 1  # CONVERT_TZ of MariaDB returns later times as they are


@dataclass(frozen=True, slots=True)
class StatementTime:
    """When a statement began, as its event has it."""

    seconds: int  # since 1970, UTC
    microseconds: int | None = None  # None: not known
    time_zone: str = ""  # of the session: "SYSTEM", "+02:00" or a name; "": not known


def with_time(
    changes: list[TableChange], time: StatementTime, connect: Callable[[], AbstractContextManager[Server]] | None
) -> list[TableChange]:
    """Return ``changes`` with the time of the statement as the value of added columns, where it is certain.

    ``connect``: connects to the server that ran the statement; None: there is no server.
    Raises: SourceUnavailable.
    """
    added = [one for change in changes for one in change.columns if one.fill.kind is FillKind.STATEMENT_TIME]
    if not added:
        return changes
    local = None
    if any(one.new is not None and one.new.kind is not Kind.TIMESTAMP for one in added):
        local = _local_time(time, connect)
    return [replace(one, columns=tuple(_timed(column, time, local) for column in one.columns)) for one in changes]


def offset_of(time_zone: str) -> datetime.timedelta | None:
    """Return the offset from UTC of a zone such as "+02:00"; None for a zone with a name."""
    found = _OFFSET.fullmatch("+00:00" if time_zone == "UTC" else time_zone)
    if found is None:
        return None
    offset = datetime.timedelta(hours=int(found[2]), minutes=int(found[3]))
    return offset if found[1] == "+" else -offset


def _local_time(
    time: StatementTime, connect: Callable[[], AbstractContextManager[Server]] | None
) -> datetime.datetime | None:
    """Return the time in the session's zone, in whole seconds; None: it is not certain."""
    offset = offset_of(time.time_zone)
    if offset is not None:
        return _utc(time) + offset
    if not time.time_zone or connect is None or not 0 < time.seconds < _LATEST_S:
        return None
    with connect() as server:
        began, text = _asked(server, time)
    # a server that was started after the statement can have another zone of its host, or newer rules of a zone
    return datetime.datetime.fromisoformat(text) if text is not None and began < time.seconds else None


def _asked(server: Server, time: StatementTime) -> tuple[int, str | None]:
    """Return the second after the server's start, and the time in the session's zone; None: no such zone."""
    (found,) = server.ask(
        "SELECT UNIX_TIMESTAMP() AS now, CAST(CONVERT_TZ(%s, '+00:00', %s) AS CHAR) AS local",
        (f"{_utc(time):%Y-%m-%d %H:%M:%S}", time.time_zone),
    )
    (uptime,) = server.ask("SHOW GLOBAL STATUS LIKE 'Uptime'")
    text = found["local"].decode() if isinstance(found["local"], bytes) else found["local"]
    return int(found["now"]) - int(uptime["Value"]) + 1, text


def _utc(time: StatementTime) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time.seconds, datetime.UTC).replace(tzinfo=None)


def _timed(change: ColumnChange, time: StatementTime, local: datetime.datetime | None) -> ColumnChange:
    column = change.new
    if change.fill.kind is not FillKind.STATEMENT_TIME or column is None:
        return change
    moment = _utc(time) if column.kind is Kind.TIMESTAMP else local
    if moment is None or (column.fsp and time.microseconds is None):
        return change
    return replace(change, fill=Fill(FillKind.LITERAL, _text(moment, time.microseconds or 0, column).encode()))


def _text(moment: datetime.datetime, microseconds: int, column: Column) -> str:
    if column.kind is Kind.DATE:
        return f"{moment:%Y-%m-%d}"
    fraction = f".{microseconds:06}"[: column.fsp + 1] if column.fsp else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction}"
