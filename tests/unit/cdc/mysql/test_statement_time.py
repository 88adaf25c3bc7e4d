"""The time of a statement as the value of an added column."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ChangeKind, ColumnChange, Fill, FillKind, TableChange
from cdc.mysql.statement_time import StatementTime, with_time

NOON = 1_714_996_800  # 2024-05-06 12:00:00 UTC
TIMED = Fill(FillKind.STATEMENT_TIME)
TABLE = TableSchema("shop", "orders", (), ())


class Answers:
    """A server that has run for ``uptime`` seconds at a time 100 s after noon."""

    def __init__(self, local: object, uptime: int = 200) -> None:
        self.local, self.uptime, self.zones = local, uptime, list[object]()

    def ask(self, sql: str, arguments: tuple[object, ...] = ()) -> list[dict[str, Any]]:
        if "Uptime" in sql:
            return [{"Value": str(self.uptime)}]
        self.zones.append(arguments)
        return [{"now": NOON + 100, "local": self.local}]


def filled(time: StatementTime, kind: Kind, fsp: int = 0, server: Answers | None = None) -> bytes | None:
    change = ColumnChange(ChangeKind.ADD_COLUMN, None, Column("a", kind, kind.value, fsp=fsp), TIMED)
    connect: Any = None if server is None else lambda: nullcontext(server)
    (found,) = with_time([TableChange(TABLE, TABLE, (change,))], time, connect)
    return found.columns[0].fill.text


@pytest.mark.parametrize(
    ("kind", "fsp", "expected"),
    [
        (Kind.TIMESTAMP, 0, b"2024-05-06 12:00:00"),
        (Kind.TIMESTAMP, 6, b"2024-05-06 12:00:00.001999"),
        (Kind.DATETIME, 3, b"2024-05-06 01:30:00.001"),
        (Kind.DATE, 0, b"2024-05-06"),
    ],
)
def test_fill_is_cut_to_the_digits_of_the_column(kind: Kind, fsp: int, expected: bytes) -> None:
    assert filled(StatementTime(NOON, 1999, "-10:30"), kind, fsp) == expected


def test_fill_without_microseconds_is_known_only_without_digits() -> None:
    assert filled(StatementTime(NOON), Kind.TIMESTAMP) == b"2024-05-06 12:00:00"
    assert filled(StatementTime(NOON), Kind.TIMESTAMP, 1) is None


def test_fill_in_a_named_zone_is_the_answer_of_the_server() -> None:
    server = Answers(b"2024-05-06 14:00:00")
    assert filled(StatementTime(NOON, 0, "Europe/Berlin"), Kind.DATETIME, 1, server) == b"2024-05-06 14:00:00.0"
    assert server.zones == [("2024-05-06 12:00:00", "Europe/Berlin")]
    assert filled(StatementTime(NOON, 0, "SYSTEM"), Kind.DATE, 0, Answers("2024-05-07 01:00:00")) == b"2024-05-07"


@pytest.mark.parametrize(
    ("zone", "server"),
    [
        ("", Answers("2024-05-06 14:00:00")),  # the event has no zone
        ("SYSTEM", None),  # there is no server
        ("No/Zone", Answers(None)),
        ("SYSTEM", Answers("2024-05-06 14:00:00", uptime=101)),  # the server may have been started afterwards
    ],
)
def test_fill_in_a_zone_that_is_not_certain_is_not_known(zone: str, server: Answers | None) -> None:
    assert filled(StatementTime(NOON, 0, zone), Kind.DATETIME, 0, server) is None
    assert filled(StatementTime(NOON, 0, zone), Kind.TIMESTAMP, 0, server) == b"2024-05-06 12:00:00"


def test_changes_without_a_time_ask_nobody() -> None:
    change = TableChange(TABLE, TABLE, (ColumnChange(ChangeKind.DROP_COLUMN, Column("a", Kind.INT, "int")),))

    def connect() -> Any:
        raise AssertionError("no value depends on the server")

    assert with_time([change], StatementTime(NOON), connect) == [change]
