"""All benchmarks: ``python -m benchmarks [NAME ...] [--runs N] [--quick]`` (``make bench``).

Writes JSON and a chart for each into ``benchmarks/results`` and prints one table. Exit code 1 where a run crashed or
its parity check did not hold; a figure that misses its goal is no fault of the run.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from benchmarks import chart
from benchmarks.harness import RESULTS
from benchmarks.suite import WARM_UP, Figure, Outcome, chosen, measure, number, write


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks whose name begins so; all by default")
    parser.add_argument("--runs", type=int, help="of each; default: 3 of most, 1 of those that take many minutes")
    parser.add_argument(
        "--quick", action="store_true", help="less data where a benchmark has that: to see that it works"
    )
    parser.add_argument(
        "--no-warm-up", action="store_true", help="what a new machine does once counts with the first run"
    )
    given = parser.parse_args()
    benchmarks = chosen(given.names)
    if not given.no_warm_up:
        measure(WARM_UP, 1, quick=False)
    outcomes = []
    for benchmark in benchmarks:
        outcomes.append(measure(benchmark, given.runs or benchmark.runs, quick=given.quick))
        # after each one, so that an interrupted evening still leaves what it has measured
        write(outcomes, RESULTS, " ".join(["python -m benchmarks", *sys.argv[1:]]))
        chart.draw(outcomes[-1], RESULTS)
    _show(outcomes)
    sys.exit(any(outcome.failures for outcome in outcomes))


def _show(outcomes: list[Outcome]) -> None:
    table = Table(title="Benchmarks: median, and from lowest to highest")
    for heading in (
        "figure",
        "median",
        "spread",
        "unit",
        "runs",
        "CPU s/million",
        "peak GiB",
        "stolen %",
        "others",
        "goal",
    ):
        table.add_column(heading, justify="left" if heading in ("figure", "unit", "others", "goal") else "right")
    for outcome in outcomes:
        for figure in outcome.figures:
            table.add_row(*_cells(figure))
        for failure in outcome.failures:
            table.add_row(outcome.benchmark.name, "FAILED", failure)
        table.add_section()
    console = Console(width=190)
    console.print(table)
    console.print(f"Written: {RESULTS}/bench.json, and JSON and SVG for each")


def _cells(figure: Figure) -> list[str]:
    aside = figure.aside()
    return [
        figure.name,
        number(figure.median),
        f"{number(min(figure.values))} - {number(max(figure.values))}",
        figure.unit,
        str(len(figure.values)),
        number(aside["cpu_s_per_million"]) if "cpu_s_per_million" in aside else "",
        number(aside["peak_gib"]) if "peak_gib" in aside else "",
        number(aside["stolen_percent"]) if "stolen_percent" in aside else "",
        ", ".join(f"{name}: {number(value)}" for name, value in figure.baselines().items()),
        figure.must,
    ]


if __name__ == "__main__":
    main()
