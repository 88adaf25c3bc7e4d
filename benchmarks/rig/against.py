"""Compare this checkout with another one (``--against``): run both in turns, and print the ratios of CPU time."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rig.results import ROOT, number
from benchmarks.rig.suite import WARM_UP_ROWS, Case, command_of, run_once

Figures = dict[str, dict[str, Any]]  # results by name


def compare(case: Case, other: Path, template: str | None, pairs: int, results: Path) -> None:
    """Run other, this, other, this, ... and print the medians of both and their ratio.

    ``template`` is the command in the other checkout, run in its folder; ``{rows}`` stands for the number of rows.
    Without a template, the command is that of this checkout with the Python interpreter of the other one.
    Raises: SystemExit - a run failed, or no figure has the same name on both sides.
    """
    _pair(case, other, template, min(case.options.rows, WARM_UP_ROWS))  # kernels and class archives are made here
    runs = []
    for pair in range(1, pairs + 1):
        print(f"-- {case.title}, pair {pair} of {pairs}", flush=True)
        runs.append(_pair(case, other, template, case.options.rows))
    table = Table("figure", "quantity", "other", "this", "this / other", title=f"{case.title}: median (min - max)")
    found = summarize(runs)
    if not found:
        raise SystemExit("No figure has the same name in both checkouts.")
    for name, (quantity, old, new) in found.items():
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        table.add_row(name, quantity, _spread(old), _spread(new), _spread(ratios))
    Console(width=150).print(table)
    text = json.dumps({"other": str(other), "pairs": runs}, indent=1)
    (results / f"against.{case.name}.json").write_text(text + "\n")


def summarize(pairs: Sequence[tuple[Figures, Figures]]) -> dict[str, tuple[str, list[float], list[float]]]:
    """Return, for each figure that all runs have, the compared quantity and its values in the other and this checkout.

    The quantity is CPU seconds per million rows; of a figure without rows CPU seconds, or else its value.
    """
    found = {}
    for name in pairs[0][1]:
        for quantity in ("cpu_s_per_million", "cpu_s", "value"):
            values = [[_value(side.get(name, {}), quantity) for side in pair] for pair in pairs]
            complete = [(old, new) for old, new in values if old and new]
            if len(complete) == len(pairs):
                found[name] = (quantity, [old for old, _ in complete], [new for _, new in complete])
                break
    return found


def _value(result: dict[str, Any], quantity: str) -> float | None:
    if quantity == "cpu_s_per_million" and result.get("rows_per_cpu_s"):  # of a decoder
        return 1e6 / float(result["rows_per_cpu_s"])
    return result.get(quantity)


def _pair(case: Case, other: Path, template: str | None, rows: int) -> tuple[Figures, Figures]:
    command = command_of(case.with_rows(rows))
    same = [str(other / ".venv/bin/python"), *command[1:]]
    return _run(shlex.split(template.format(rows=rows)) if template else same, other), _run(command, ROOT)


def _run(command: Sequence[str], folder: Path) -> Figures:
    code, results = run_once(command, folder=folder)
    if code:
        sys.exit(f"{shlex.join(command)} in {folder} ended with exit code {code}.")
    # before the programs were merged, the decoder wrote all its figures into one file
    return {each["name"]: each for result in results for each in result.get("figures", [result])}


def _spread(values: Sequence[float]) -> str:
    return f"{number(statistics.median(values))} ({number(min(values))} - {number(max(values))})"
