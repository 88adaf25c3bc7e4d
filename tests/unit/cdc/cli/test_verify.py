"""The result of a verification on a terminal."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from cdc.api.verify_models import VerifySummary
from cdc.cli.verify import show, verification_view
from cdc.cli.views import status_view
from cdc.model.position import BinlogPosition
from cdc.model.verify import (
    DifferenceKind,
    RowDifference,
    TableVerification,
    ValueDifference,
    Verification,
    VerifyRequest,
    VerifyState,
)
from tests.unit.cdc.cli.test_views import NOW, STATUS

EQUAL = Verification(
    3, VerifyRequest(sample=0.01), "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:09Z",
    {"shop.orders": TableVerification(VerifyState.DONE, rows=1234567, changing=2)},
    position=BinlogPosition("mysql-bin.000002", 1234, "server"), seconds=8.25,
)  # fmt: skip
DIFFERENT = replace(
    EQUAL,
    tables={
        "shop.orders": TableVerification(VerifyState.DONE, rows=10, missing=1, different=1, repaired=2),
        "shop.no\x1b[31mkey": TableVerification(VerifyState.SKIPPED, note="no index orders the rows"),
    },
    differences=(
        RowDifference("shop.orders", DifferenceKind.MISSING, {"id": "7"}),
        RowDifference(
            "shop.orders", DifferenceKind.DIFFERENT, {"id": "8"},
            (ValueDifference("note", "a\x1b[2Jb", None), ValueDifference("[bold]n", "1", "2")),
        ),
    ),
)  # fmt: skip


SKIPPED = replace(
    EQUAL, tables={"shop.orders": TableVerification(VerifyState.SKIPPED, note="the target has no column nope")}
)


def shown(view: object) -> str:
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(view)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_equal_verification_shows_rows_and_position() -> None:
    text = shown(verification_view(EQUAL))
    assert "source and target are equal" in text and "1,234,567 rows" in text and "sample of 1.00%" in text
    assert "mysql-bin.000002" in text and "8.2 s" in text
    assert EQUAL.is_equal


def test_verification_with_a_skipped_table_reports_it() -> None:
    text = shown(verification_view(SKIPPED))
    assert "some tables were not compared" in text and "rows differ" not in text and not SKIPPED.is_equal


@pytest.mark.parametrize("number", [0, 1, 2])
def test_history_as_json_is_always_a_list(capsys: pytest.CaptureFixture[str], number: int) -> None:
    show([EQUAL] * number, "json", is_list=True)
    assert len(json.loads(capsys.readouterr().out)) == number
    show([EQUAL], "json", is_list=False)
    assert json.loads(capsys.readouterr().out)["equal"] is True


def test_different_verification_shows_values_without_control_characters() -> None:
    text = shown(verification_view(DIFFERENT))
    assert "2 rows differ" in text and "skipped: no index orders the rows" in text
    assert "shop.orders missing" in text and "id=7" in text and "NULL" in text and "[bold]n" in text
    assert "\x1b" not in text
    assert not DIFFERENT.is_equal


def test_verification_is_equal_only_if_it_ended_and_compared_every_table() -> None:
    assert not replace(EQUAL, ended_at=None).is_equal
    assert not replace(EQUAL, error="the sink is gone").is_equal
    assert not replace(EQUAL, tables={"a.b": TableVerification(VerifyState.SKIPPED)}).is_equal
    assert not replace(EQUAL, tables={"a.b": TableVerification(VerifyState.DONE, extra=1)}).is_equal
    assert "ended early. the sink is gone" in shown(verification_view(replace(EQUAL, error="the sink is gone")))
    assert "not complete" in shown(verification_view(replace(EQUAL, ended_at=None)))


def test_status_has_a_line_of_the_verification() -> None:
    last = shown(status_view(replace(STATUS, verify=VerifySummary.of([DIFFERENT], None)), NOW))
    assert "different" in last and "2 of 10 rows differ, 2 repaired" in last
    running = replace(EQUAL, ended_at=None, number=4)
    both = shown(status_view(replace(STATUS, verify=VerifySummary.of([running, DIFFERENT], running)), NOW))
    assert "running: 100% of 1.23M rows compared, 0 differ" in both
