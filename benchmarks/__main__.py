"""Run benchmarks: ``python -m benchmarks [PROGRAM | PROGRAM.WORK ...]`` (``make bench``).

Each run has a process of its own and checks its result. ``bench.json``, the table ``bench.md`` and charts are written
to ``benchmarks/results``. The exit code is 1 if a run crashed or its check failed, not if a figure misses its goal.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.rig.measure import RESULTS
from benchmarks.rig.suite import RECEIVERS, SINKS, WARM_UP_ROWS, Case, cases


def main() -> None:
    """Measure, write and print."""
    given = _arguments()
    if given.in_process:  # before imports that would change what a benchmark of memory measures
        for case in _selected(given):
            case.measure(case.options)
        return
    if given.list:
        for case in _selected(given):
            print(f"{case.title:44} {case.options.rows:>11,} rows, {case.runs} runs".replace(" 0 rows,", "       "))
        return
    _measure(given, RESULTS / "quick" if given.quick else RESULTS)  # quick results are no figures


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="PROGRAM or PROGRAM.WORK; default: all")
    parser.add_argument("--list", action="store_true", help="list the selected benchmarks, their rows and runs")
    parser.add_argument("--runs", type=int, help="runs of each; default: 3, or 1 of those that take many minutes")
    parser.add_argument("--rows", type=int, help="of the backlog, the table or the load")
    parser.add_argument("--receiver", choices=RECEIVERS, help="what the job reads: the binlog, its files, or Canal")
    parser.add_argument("--sink", choices=SINKS, help="where the job writes; null counts and discards rows")
    parser.add_argument("--quick", action="store_true", help="fewer rows, to see that a benchmark works")
    parser.add_argument("--profile", action="store_true", help="show the functions that use the CPU, for a backlog")
    parser.add_argument("--no-warm-up", action="store_true", help="the first run includes what a machine does once")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="compare with another checkout, in turns")
    parser.add_argument("--other-command", metavar="TEXT", help="the command there; {rows} stands for the rows")
    parser.add_argument("--in-process", action="store_true", help="run once in this process, without a summary")
    return parser.parse_args()


def _selected(given: argparse.Namespace) -> list[Case]:
    return cases(
        given.names, receiver=given.receiver, sink=given.sink, rows=given.rows, quick=given.quick,
        profile=given.profile,
    )  # fmt: skip


def _measure(given: argparse.Namespace, folder: Path) -> None:
    from rich.console import Console

    from benchmarks.rig import against, chart, results

    selected = _selected(given)
    folder.mkdir(parents=True, exist_ok=True)
    if given.against:
        for case in selected:
            against.compare(case, given.against.resolve(), given.other_command, given.runs or case.runs, folder)
        return
    if not given.no_warm_up:
        for case in _warm_ups(selected):
            results.measure(case, 1, folder)
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    outcomes: list[results.Outcome] = []
    for case in selected:
        outcomes.append(results.measure(case, given.runs or case.runs, folder))
        results.write(outcomes, folder, command)  # after each one, so that an interrupted run keeps its figures
        chart.draw(outcomes[-1], folder)
    results.show(outcomes, Console(width=230))
    print(f"Written: bench.json, bench.md and charts, in {folder}")
    sys.exit(any(outcome.failures for outcome in outcomes))


def _warm_ups(selected: list[Case]) -> list[Case]:
    """Return short runs that do what a machine does once: unpack servers, compile kernels, archive Java classes."""
    receivers = {"binlog", *(case.options.receiver for case in selected)}
    found: list[Case] = []
    for name in sorted(receivers):
        found += cases(["end_to_end.catch_up"], receiver=name, sink="null", rows=WARM_UP_ROWS)
    if any(case.name.startswith("snapshot.") for case in selected):
        found += cases(["snapshot.delta"], rows=WARM_UP_ROWS)
    return found


if __name__ == "__main__":
    main()
