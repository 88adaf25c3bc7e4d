"""The values that a run saves for other hosts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.job import lease
from cdc.job.lease import RunSummary
from cdc.manager.rest.history import SERIES, JobHistory
from cdc.state.base import JobState


def test_summary_has_everything_that_another_host_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(lease.time, "monotonic", lambda: now[0])
    counts = SimpleNamespace(upserts=100, deletes=10, bytes=4000, last_committed_at="2026-01-01T00:00:05Z")
    seconds = {"buffer": 0.9, "prepare": 0.3, "commit": 0.2, "save": 0.1}
    progress = SimpleNamespace(
        channels=[SimpleNamespace(counts=counts)],
        lag_s=0.5,
        window_bytes=70,
        checkpoint=SimpleNamespace(seconds=seconds),
    )
    runner = SimpleNamespace(progress=lambda: progress, is_running=True)
    summary = RunSummary(cast(Any, runner), cast(Any, SimpleNamespace(now=SimpleNamespace(state=JobState.RUNNING))))
    first = summary()
    assert (first["rows"], first["rows_per_s"], first["bytes_per_s"]) == (110, None, None)
    now[0] += 2
    counts.upserts, counts.bytes = 140, 6000
    history = JobHistory()
    history.add_summary(1.0, summary())
    times, series = history.since(0)
    assert times == [1.0] and {name: values[0] for name, values in series.items()} == {
        "lag_seconds": 0.5, "rows_per_second": 20.0, "bytes_per_second": 1000.0, "window_bytes": 70.0, **seconds
    }  # fmt: skip
    counts.upserts = 0  # the job was declared again
    now[0] += 2
    assert summary()["rows_per_s"] is None
    history.add_summary(3.0, {"lag_s": 1.0})  # of an older version
    assert history.newest("lag_seconds") == 1.0 and all(name in SERIES for name in series)
