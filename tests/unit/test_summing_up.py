"""What benchmarks and soak make of their numbers."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import suite, summary
from tests.stress.sampling import Sample, Sampler, growing, grown

SAMPLE = Sample(
    second=0, age=60, driver_mib=300, java_mib=200, worker_mib=100, processes=5, handles=50, threads=30, java_handles=300,
    java_threads=200, strays=0,
    table_files=100, log_files=10, staging_files=0, aborted_marks=0, temporary_files=0, state_kib=100, lag_bytes=0,
    lag_s=0.0,
)  # fmt: skip


def test_every_benchmark_is_a_program_of_the_package():
    assert len({each.name for each in suite.SUITE}) == len(suite.SUITE)
    for each in (*suite.SUITE, suite.WARM_UP):
        assert importlib.util.find_spec(each.module) is not None, each.module


def test_a_figure_is_the_median_of_its_runs_beside_that_of_its_baselines():
    found: dict[str, suite.Figure] = {}
    for value, theirs in ((10.0, 1.0), (30.0, 3.0), (20.0, 5.0)):
        suite.take(
            found,
            {"name": "a", "unit": "rows/s", "must": "-", "value": value, "peak_gib": value, "baselines": {"b": theirs}},
        )
    told = found["a"].to_json()
    assert (told["value"], told["lowest"], told["highest"]) == (20.0, 10.0, 30.0)
    assert told["baselines"] == {"b": 3.0} and told["peak_gib"] == 20.0


def test_the_decoders_figures_are_taken_one_by_one():
    common = {"must": "-", "mysql_replication": {"rows_per_s": 5}}
    figures = [
        {"name": "a", "unit": "rows/s", "value": 1, "values": [1, 3, 2], **common},
        {"name": "b", "unit": "MB/s", "value": 2, **common},
    ]
    found: dict[str, suite.Figure] = {}
    suite.take(found, {"figures": figures, "flat": []})
    assert (found["a"].median, found["b"].values) == (2, [2])
    assert found["a"].baselines() == {"mysql-replication": 5} and found["b"].baselines() == {}


def test_the_table_tells_every_figure_and_every_run_that_failed(tmp_path: Path):
    figure = suite.Figure(
        "e2e.a", "rows/s", ">= 5", [10.0, 30.0], [{"peak_gib": 1.5, "checked": "row by row", "baselines": {"b": 3}}, {}]
    )
    outcome = suite.Outcome(suite.Benchmark("e2e", "-"), 1.0, ["run 2 ended with exit code 1"], [figure])
    told = summary.write([outcome], tmp_path, "python -m benchmarks e2e").read_text()
    assert told.startswith("`python -m benchmarks e2e`, 20")
    assert "| e2e.a | 20 | 10 - 30 | rows/s | 2 |  | 1.5 |  | b: 3 | row by row | >= 5 |" in told
    assert "| e2e | FAILED | run 2 ended with exit code 1 |" in told


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
    monkeypatch.setattr("tests.stress.sampling.EVERY_S", 0.01)
    monkeypatch.setattr(Sampler, "_sample", lambda self: [][0])
    with pytest.raises(IndexError), Sampler(None, tmp_path, None) as sampler:  # type: ignore[arg-type]
        sampler._thread.join()


def test_a_single_peak_is_no_growth():
    assert grown("memory", [SAMPLE] * 28 + [replace(SAMPLE, java_mib=5000)] * 2, "memory_mib").holds
