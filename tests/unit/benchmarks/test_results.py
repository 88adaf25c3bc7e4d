"""The summary of the runs of a benchmark."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.rig import results
from benchmarks.rig.suite import Case


def _figures(*runs: dict) -> dict[str, results.Figure]:
    found: dict[str, results.Figure] = {}
    for run in runs:
        results.collect(found, [{"name": "a", "unit": "rows/s", **run}])
    return found


def test_figure_is_the_median_of_its_runs_and_of_its_baselines():
    figure = _figures(
        {"value": 10.0, "peak_gib": 1.0, "baselines": {"b": 1.0}},
        {"value": 30.0, "peak_gib": 3.0, "baselines": {"b": 3.0}},
        {"value": 20.0, "peak_gib": 2.0, "baselines": {"b": 5.0, "c": 7.0}},
    )["a"].to_json()
    assert (figure["value"], figure["lowest"], figure["highest"]) == (20.0, 10.0, 30.0)
    assert figure["baselines"] == {"b": 3.0, "c": 7.0} and figure["peak_gib"] == 2.0
    assert len(figure["runs"]) == 3


def test_figure_of_a_run_that_repeats_has_all_its_values():
    figure = _figures({"value": 2, "values": [1, 3, 2], "checked": "count of rows", "each": [1]})["a"]
    assert (figure.median, figure.values, figure.more()) == (2, [1, 3, 2], {})


def test_table_has_every_figure_and_every_failed_run(tmp_path: Path):
    figure = _figures(
        {"value": 10.0, "peak_gib": 1.5, "p50": 3, "checked": "row by row", "goal": ">= 5", "baselines": {"b": 3}},
        {"value": 30.0},
    )["a"]
    case = Case("end_to_end.a", lambda _: None, has_route=True)
    outcome = results.Outcome(case, 1.0, ["run 2 ended with exit code 1"], [figure])
    results.write([outcome], tmp_path, "python -m benchmarks end_to_end")
    text = (tmp_path / "bench.md").read_text()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if "|" in line]
    assert text.startswith("`python -m benchmarks end_to_end`, 20")
    assert ["a", "20", "10 - 30", "rows/s", "2", "", "1.5", "", "b: 3", "p50: 3", "row by row", ">= 5"] in rows
    assert ["end_to_end.a binlog-delta", "FAILED", "run 2 ended with exit code 1"] in [row[:3] for row in rows]
    (written,) = json.loads((tmp_path / "bench.json").read_text())["benchmarks"]
    assert written["figures"] == [figure.to_json()] and written["failures"]
