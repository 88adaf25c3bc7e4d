"""What the soak makes of its numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.sampling import Sample, Sampler, growing, grown

SAMPLE = Sample(
    second=0, age=60, driver_mib=300, java_mib=200, worker_mib=100, processes=5, handles=50, threads=30, java_handles=300,
    java_threads=200, strays=0,
    table_files=100, log_files=10, staging_files=0, aborted_marks=0, temporary_files=0, state_kib=100, lag_bytes=0,
    lag_s=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("last", "holds"),
    [({}, True), ({"driver_mib": 400}, True), ({"driver_mib": 900}, False), ({"java_mib": 600}, False)],
)
def test_what_has_grown_beyond_its_limit_does_not_hold(last: dict[str, float], holds: bool):
    samples = [SAMPLE] * 20 + [replace(SAMPLE, **last)] * 10
    assert grown("memory", samples, "memory_mib").holds is holds


def test_what_grows_by_the_hour_is_told_though_it_stays_below_the_limit_of_medians():
    def growing_by(mib_an_hour: float) -> bool:
        samples = [replace(SAMPLE, second=5.0 * n, driver_mib=300 + mib_an_hour * n * 5 / 3600) for n in range(200)]
        assert grown("memory", samples, "memory_mib").holds
        return growing("driver_mib", samples).holds

    assert growing_by(400) and growing_by(-400) and not growing_by(600)


def test_a_sampler_that_fails_fails_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tests.soak.sampling.EVERY_S", 0.01)
    monkeypatch.setattr(Sampler, "_sample", lambda self: [][0])
    with pytest.raises(IndexError), Sampler(None, tmp_path, None) as sampler:  # type: ignore[arg-type]
        sampler._thread.join()


def test_a_single_peak_is_no_growth():
    assert grown("memory", [SAMPLE] * 28 + [replace(SAMPLE, java_mib=5000)] * 2, "memory_mib").holds
