"""All benchmarks: ``python -m benchmarks [NAME ...] [--runs N] [--quick]`` (``make bench``).

Writes JSON and a chart for each into ``benchmarks/results``; one table is written there (``bench.md``) and printed.
Exit code 1 where a run crashed or its parity check did not hold; a figure that misses its goal is no fault of the run.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import chart, summary
from benchmarks.harness import RESULTS
from benchmarks.suite import WARM_UPS, Outcome, chosen, measure, write


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
    results = RESULTS / "quick" if given.quick else RESULTS  # no figures, and not to be mixed with such
    results.mkdir(parents=True, exist_ok=True)
    if not given.no_warm_up:
        for name, warm_up in WARM_UPS.items():
            if any(each.name.startswith(name) for each in benchmarks):
                measure(warm_up, 1, results)
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    outcomes: list[Outcome] = []
    for benchmark in benchmarks:
        outcomes.append(measure(benchmark, given.runs or benchmark.runs, results, quick=given.quick))
        # after each one, so that an interrupted evening still leaves what it has measured
        write(outcomes, results, command)
        summary.write(outcomes, results, command)
        chart.draw(outcomes[-1], results)
    summary.show(outcomes)
    print(f"Written: {results}/bench.md, bench.json, and JSON and SVG for each")
    sys.exit(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    main()
