"""Repeat benchmarks, and write what they measured as JSON and as a table in Markdown."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.rig.measure import circumstances
from benchmarks.rig.suite import Case, command_of, run_once

ROOT = Path(__file__).parents[2]
_COLUMNS = (
    "figure", "median", "spread", "unit", "runs", "CPU s/million", "peak GiB", "stolen %", "others", "more", "checked",
    "goal",
)  # fmt: skip
_OWN_COLUMN = {"cpu_s_per_million": "CPU s/million", "peak_gib": "peak GiB", "stolen_percent": "stolen %"}


@dataclass
class Figure:
    """One number of one benchmark, from all its runs."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)  # the results as reported

    @property
    def median(self) -> float:
        """Return the median of all values."""
        return statistics.median(self.values)

    def more(self) -> dict[str, float]:
        """Return the medians of the other numbers in the results."""
        values: dict[str, list[float]] = {}
        for run in self.runs:
            for name, value in run.items():
                if name != "value" and isinstance(value, int | float):
                    values.setdefault(name, []).append(value)
        return {name: statistics.median(found) for name, found in values.items()}

    def baselines(self) -> dict[str, float]:
        """Return the medians of what other programs reached in the same runs."""
        found = [run.get("baselines", {}) for run in self.runs]
        names = sorted({name for each in found for name in each})
        return {name: statistics.median(each[name] for each in found if name in each) for name in names}

    def to_json(self) -> dict[str, Any]:
        """Return the medians and every run."""
        return {
            "name": self.name, "value": self.median, "unit": self.unit, "lowest": min(self.values),
            "highest": max(self.values), "values": self.values, **self.more(), "baselines": self.baselines(),
            "runs": self.runs,
        }  # fmt: skip

    def cells(self) -> list[str]:
        """Return the row of the table."""
        more, first = self.more(), self.runs[0]
        own = {_OWN_COLUMN[name]: number(more.pop(name)) for name in tuple(more) if name in _OWN_COLUMN}
        spread = f"{number(min(self.values))} - {number(max(self.values))}" if len(self.values) > 1 else ""
        texts = {
            "figure": self.name, "median": number(self.median), "spread": spread, "unit": self.unit,
            "runs": str(len(self.values)), "others": _listed(self.baselines()), "more": _listed(more),
            "checked": first.get("checked", ""), "goal": first.get("goal", ""), **own,
        }  # fmt: skip
        return [texts.get(column, "") for column in _COLUMNS]


@dataclass
class Outcome:
    """The figures of one benchmark, and its failed runs."""

    case: Case
    seconds: float
    failures: list[str]
    figures: list[Figure]


def number(value: float) -> str:
    """Return a number with three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{name}: {number(value)}" for name, value in values.items())


def measure(case: Case, runs: int, results: Path) -> Outcome:
    """Run a case ``runs`` times. A failed run, also one whose check failed, is a line of ``failures``."""
    began, failures, found = time.monotonic(), [], dict[str, Figure]()
    for run in range(1, runs + 1):
        print(f"-- {case.title}, run {run} of {runs}", flush=True)
        code, reported = run_once(command_of(case), folder=ROOT, others=results)
        if code:
            failures.append(f"run {run} ended with exit code {code}")
        collect(found, reported)
    return Outcome(case, time.monotonic() - began, failures, [*found.values()])


def collect(figures: dict[str, Figure], results: Iterable[dict[str, Any]]) -> None:
    """Add the results of one run to the figures."""
    for result in results:
        figure = figures.setdefault(result["name"], Figure(result["name"], result["unit"]))
        figure.values += result.get("values", [result["value"]])
        figure.runs.append(result)


def write(outcomes: Sequence[Outcome], folder: Path, command: str) -> None:
    """Write ``bench.json`` with every run, and the table ``bench.md``."""
    everything: dict[str, Any] = {"command": command, **circumstances(), "benchmarks": []}
    for outcome in outcomes:
        everything["benchmarks"].append({
            "name": outcome.case.title, "seconds": round(outcome.seconds), "failures": outcome.failures,
            "figures": [figure.to_json() for figure in outcome.figures],
        })  # fmt: skip
    (folder / "bench.json").write_text(json.dumps(everything, indent=2) + "\n")
    machine = everything["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in everything["versions"].items())
    with (folder / "bench.md").open("w") as file:
        print(f"`{command}`, {everything['date']}\n", file=file)
        print(f"{machine['cores']} cores, {machine['cpu']}, {machine['memory_gib']} GiB; {versions}\n", file=file)
        show(outcomes, Console(file=file, width=10_000))


def show(outcomes: Iterable[Outcome], console: Console) -> None:
    """Print the table, in Markdown."""
    table = Table(*_COLUMNS, box=box.MARKDOWN)
    for outcome in outcomes:
        for figure in outcome.figures:
            table.add_row(*figure.cells())
        for failure in outcome.failures:
            table.add_row(outcome.case.title, "FAILED", failure)
    console.print(table)
