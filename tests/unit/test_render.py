"""What people read: numbers, ages, and a status at a glance."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from cdc.render import age, count, finding_view, list_view, seconds, size, status_view
from cdc.status import ChannelStatus, CheckpointStatus, JobStatus, SinkStatus, SourceStatus
from channels.sinks.base import Finding

NOW = datetime(2026, 1, 1, 0, 1, 0, tzinfo=UTC)
STATUS = JobStatus(
    job="shop",
    state="PAUSED",
    reason="TRUNCATE of [shop].orders lies ahead.",
    mend="Run `cdc resume shop --past-ddl`.",
    resume="manual",
    source=SourceStatus("binlog", "127.0.0.1:3306"),
    sink=SinkStatus("delta", "./warehouse"),
    position={"file": "mysql-bin.000002", "offset": 1234, "gtid_set": "x" * 100},
    lag_seconds=75.0,
    checkpoint=CheckpointStatus(42, "COMMITTED", "2026-01-01T00:00:57Z", "interval", 12_345, 9000, {"gather": 5.0}),
    channels=(ChannelStatus("shop.orders", "ods.orders", "PAUSED", 1_234_567, 10, 90_000, 3, "2026-01-01T00:00:57Z"),),
)


def shown(view: object) -> str:
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(view)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (1_234_567, "1.23M"),
        (5 * 10**12, "5000G"),
    ],
)
def test_counts_keep_three_figures(number: int, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (64 << 20, "64.0 MiB"),
        (300 << 30, "300 GiB"),
    ],
)
def test_sizes_are_binary(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (42, "42 s"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_durations_are_told_in_the_two_units_that_matter(value: float, text: str) -> None:
    assert seconds(value) == text


def test_ages_count_from_now_and_never_is_a_word() -> None:
    assert age("2026-01-01T00:00:57Z", NOW) == "3.0 s ago"
    assert age("2026-01-01T00:02:00Z", NOW) == "0.0 s ago"
    assert age(None, NOW) == "never"


def test_a_status_shows_state_reason_mend_place_and_channels() -> None:
    text = shown(status_view(STATUS, NOW))
    for part in (
        "PAUSED (manual)",
        "TRUNCATE of [shop].orders lies ahead.",
        "Run `cdc resume shop --past-ddl`.",
        "binlog 127.0.0.1:3306 -> delta ./warehouse",
        "mysql-bin.000002:1234  gtids " + "x" * 60 + "...",
        "75 s",
        "42 COMMITTED  3.0 s ago  12.3k rows, 8.8 KiB  closed by interval  gather 5.00 s",
        "1.23M",
    ):
        assert part in text


def test_a_list_has_a_line_per_job() -> None:
    lines = shown(list_view([STATUS, STATUS], NOW)).splitlines()
    assert len(lines) == 3
    assert "TRUNCATE of [shop].orders" in lines[1]


def test_findings_come_with_their_mend_and_names_are_no_markup() -> None:
    console = Console(file=io.StringIO(), width=140, color_system=None)
    finding_view([Finding("[red]orders has no key.", "Add one."), Finding("Keys cascade.", "Mind.", False)], console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.splitlines() == [
        "refused [red]orders has no key.",
        "  mend: Add one.",
        "warning Keys cascade.",
        "  mend: Mind.",
    ]


def test_the_window_is_shown_while_a_driver_runs() -> None:
    status = replace(STATUS, state="RUNNING", window_bytes=3 << 20, window_limit_bytes=256 << 20)
    assert "3.0 MiB of 256 MiB in memory" in shown(status_view(status))
    assert "in memory" not in shown(status_view(STATUS))
