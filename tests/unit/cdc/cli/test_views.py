"""Text of jobs on a terminal: numbers, ages, status."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from cdc.api.log_page import LogPage
from cdc.api.models import (
    BadRowsStatus,
    ChannelStatus,
    CheckpointStatus,
    JobStatus,
    SinkStatus,
    SnapshotStatus,
    SourceStatus,
)
from cdc.cli.logs import show_log
from cdc.cli.views import age, count, error_view, finding_view, list_view, seconds, size, status_view
from cdc.job.status_builder import with_requests
from cdc.model.snapshot import SnapshotRequest, SnapshotState, TableSnapshot
from cdc.state.base import CloseReason
from channels.sinks.base import Finding

NOW = datetime(2026, 1, 1, 0, 1, 0, tzinfo=UTC)
STATUS = JobStatus(
    job="shop",
    state="PAUSED",
    reason="TRUNCATE of [shop].orders is the next statement.",
    hint="Run `cdc resume shop --past-ddl`.",
    resume="manual",
    source=SourceStatus("binlog", "127.0.0.1:3306"),
    sink=SinkStatus("delta", "./warehouse"),
    position={"file": "mysql-bin.000002", "offset": 1234, "gtid_set": "x" * 100, "created": 1795740305},
    lag_seconds=75.0,
    checkpoint=CheckpointStatus(
        42, "COMMITTED", "2026-01-01T00:00:57Z", CloseReason.INTERVAL, 12_345, 9000, {"buffer": 5.0}
    ),
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
def test_count_keeps_three_digits(number: int, text: str) -> None:
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
def test_size_uses_binary_units(number: int, text: str) -> None:
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
def test_seconds_shows_two_largest_units(value: float, text: str) -> None:
    assert seconds(value) == text


def test_age_is_relative_to_now_or_never() -> None:
    assert age("2026-01-01T00:00:57Z", NOW) == "3.0 s ago"
    assert age("2026-01-01T00:02:00Z", NOW) == "0.0 s ago"
    assert age(None, NOW) == "never"


def test_status_view_shows_state_reason_hint_and_channels() -> None:
    text = shown(status_view(STATUS, NOW))
    for part in (
        "PAUSED (manual)",
        "TRUNCATE of [shop].orders is the next statement.",
        "Run `cdc resume shop --past-ddl`.",
        "binlog 127.0.0.1:3306 -> delta ./warehouse",
        "mysql-bin.000002:1234  gtids " + "x" * 60 + "...",
        "75 s",
        "42 COMMITTED  3.0 s ago  12.3k rows, 8.8 KiB  closed by interval  buffer 5.00 s",
        "1.23M",
    ):
        assert part in text


def test_status_view_shows_kept_messages() -> None:
    bad = BadRowsStatus(kept=1234, window_messages=2_000_000, window_bad=7, replays=1, loaded=3)
    text = shown(status_view(replace(STATUS, bad_rows=bad), NOW))
    assert "1,234 messages are kept as files, 3 were loaded later; 7 of the last 2,000,000 messages are bad" in text


def test_list_view_has_line_per_job() -> None:
    lines = shown(list_view([STATUS, STATUS], NOW)).splitlines()
    assert len(lines) == 3
    assert "TRUNCATE of [shop].orders" in lines[1]


def test_finding_view_shows_hint_and_escapes_markup() -> None:
    console = Console(file=io.StringIO(), width=140, color_system=None)
    finding_view([Finding("[red]orders has no key.", "Add one."), Finding("Keys cascade.", "Mind.", False)], console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.splitlines() == [
        "refused [red]orders has no key.",
        "  hint: Add one.",
        "warning Keys cascade.",
        "  hint: Mind.",
    ]


def test_status_view_running_shows_window() -> None:
    status = replace(STATUS, state="RUNNING", window_bytes=3 << 20, window_limit_bytes=256 << 20)
    assert "3.0 MiB of 256 MiB in memory" in shown(status_view(status))
    assert "in memory" not in shown(status_view(STATUS))


def _with_snapshots(*snapshots: TableSnapshot) -> JobStatus:
    names = [f"shop.t{number}" for number in range(len(snapshots))]
    channels = (
        ChannelStatus(name, name, "RUNNING", snapshot=SnapshotStatus.of(one))
        for name, one in zip(names, snapshots, strict=True)
    )
    return replace(STATUS, channels=tuple(channels))


def test_status_view_shows_snapshot_progress() -> None:
    waiting, done = TableSnapshot(), TableSnapshot(SnapshotState.CONSISTENT, chunks=2, done=2, rows=2500)
    reading = TableSnapshot(SnapshotState.READING, chunks=4, done=1, rows=12_000, estimated_rows=40_000)
    text = shown(status_view(_with_snapshots(waiting, waiting), NOW))
    assert "waiting to start, 0 of 2 tables done, 0 rows loaded" in text
    text = shown(status_view(_with_snapshots(waiting, reading, done), NOW))
    assert "1 of 3 tables done, 3 of 6 chunks, 14.5k rows loaded" in text
    assert "12.0k of about 40.0k rows" in text and "waiting to start" in text
    text = shown(status_view(_with_snapshots(done, done), NOW))
    assert "1 table, 2,500 rows loaded" in shown(status_view(_with_snapshots(done), NOW))
    assert "2 tables, 5,000 rows loaded" in text and text.count("2,500") == 2, "after the initial load, too"


def test_with_requests_shows_snapshot_as_waiting() -> None:
    channels = _with_snapshots(TableSnapshot(SnapshotState.CONSISTENT, rows=5), TableSnapshot()).channels
    found = with_requests(channels, [SnapshotRequest("shop.t0", "id > 5", 1)])
    assert found[0].snapshot == SnapshotStatus.of(TableSnapshot(where="id > 5")) and found[1] == channels[1]


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A name of the source may contain them, and errors and log lines contain names."""
    name = "shop.\x1b]0;owned\x07\x1b[2Jorders\r\x9b31m"
    text = f"The table {name} is missing.\nA second line.\tend"
    console = Console(file=io.StringIO(), width=400, color_system=None)
    error_view(text, text, text, console)
    finding_view([Finding(text, text, fatal=True)], console)
    channel = replace(STATUS.channels[0], source=name, target=name)
    status = replace(STATUS, reason=text, hint=text, channels=(channel,))
    console.print(status_view(status, NOW))
    console.print(list_view([status], NOW))
    show_log(lambda **_: LogPage([text], 0, "a", "x"), 1, follow=False, is_over=lambda: True)
    printed = console.file.getvalue() + capsys.readouterr().out  # type: ignore[attr-defined]
    assert printed.count("A second line.") == 9 and printed.count("shop.?") >= 11
    assert not [character for character in printed if not character.isprintable() and character != "\n"]
