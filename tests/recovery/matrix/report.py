"""The results of the matrix: a table for the terminal, Markdown for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.model.faults import FAULT_POINTS
from tests.recovery.matrix.dimensions import FAULTS, RECEIVERS, SINKS, Cell, all_cells
from tests.recovery.matrix.scenario import Outcome
from tests.support.seeds import VARIABLE

FOLDER = Path(__file__).parents[2] / "results"


def write(outcomes: Sequence[Outcome], seed: int, name: str, not_run: Mapping[Cell, str]) -> str:
    """Write ``name``.json and .md. Return the text for the terminal. ``not_run``: scenario -> reason."""
    FOLDER.mkdir(exist_ok=True)
    absent = {str(cell): cell.impossible for cell in all_cells() if cell.impossible}
    data = {
        "seed": seed,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cells": [_to_json(outcome) for outcome in outcomes],
        "not_run": {str(cell): why for cell, why in not_run.items()},
        "impossible": absent,
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(data, indent=1))
    (FOLDER / f"{name}.md").write_text(_markdown(outcomes, seed, not_run))
    lines = [
        f"{_head(outcomes, not_run)} (repeat with {VARIABLE}={seed})",
        *_missing(not_run),
        *_grid("fault point", FAULT_POINTS, "fault_point", tuple(FAULTS), "kind", outcomes),
        "",
        *_grid("receiver", RECEIVERS, "receiver", SINKS, "sink", outcomes),
        "",
        *(f"{len(cells)} scenarios are impossible: {reason}" for reason, cells in _reasons().items()),
        f"{FOLDER / name}.md has every scenario.",
    ]
    return "\n".join(lines)


def _head(outcomes: Sequence[Outcome], not_run: Mapping[Cell, str]) -> str:
    failed = sum(outcome.failure is not None for outcome in outcomes)
    return f"{len(outcomes)} of {len(outcomes) + len(not_run)} scenarios run, {failed} failed"


def _missing(not_run: Mapping[Cell, str]) -> Iterable[str]:
    for (receiver, why), count in Counter((cell.receiver, why) for cell, why in not_run.items()).items():
        yield f"NOT RUN: {count} scenarios of {receiver}, because {why}"


def _to_json(outcome: Outcome) -> dict[str, object]:
    cell = outcome.cell
    return {
        "fault_point": cell.fault_point,
        "fault": FAULTS[cell.kind],
        "receiver": cell.receiver,
        "sink": cell.sink,
        "call": outcome.number,
        "seconds": round(outcome.seconds, 2),
        "passed": outcome.failure is None,
        "failure": outcome.failure,
    }


def _grid(
    title: str, rows: Iterable[str], row: str, columns: Sequence[str], column: str, outcomes: Sequence[Outcome]
) -> Iterable[str]:
    """Yield "passed/run" for each pair of values of two dimensions."""
    heads = [FAULTS.get(name, name) for name in columns]
    yield title.ljust(14) + "".join(head.rjust(17) for head in heads)
    for value in rows:
        line = value.ljust(14)
        for name in columns:
            mine = [each for each in outcomes if (getattr(each.cell, row), getattr(each.cell, column)) == (value, name)]
            passed = sum(each.failure is None for each in mine)
            line += (f"{passed}/{len(mine)}" if mine else "-").rjust(17)
        yield line


def _markdown(outcomes: Sequence[Outcome], seed: int, not_run: Mapping[Cell, str]) -> str:
    found = {outcome.cell: "ok" if outcome.failure is None else "**failed**" for outcome in outcomes}
    routes = [(receiver, sink) for receiver in RECEIVERS for sink in SINKS]
    lines = [
        "# Fault matrix",
        "",
        f"{_head(outcomes, not_run)}, seed {seed}. An empty cell was not run; a dash is impossible.",
        *(f"- {hole}" for hole in _missing(not_run)),
        "",
        "| Fault point | Fault | " + " | ".join(f"{receiver} to {sink}" for receiver, sink in routes) + " |",
        "|---|---|" + "---|" * len(routes),
    ]
    for fault_point in FAULT_POINTS:
        for kind, fault in FAULTS.items():
            cells = [Cell(fault_point, kind, *way) for way in routes]
            marks = (found.get(cell, "-" if cell.impossible else "") for cell in cells)
            lines.append(f"| {fault_point} | {fault} | {' | '.join(marks)} |")
    lines += ["", *(f"- {len(cells)} scenarios are impossible: {reason}." for reason, cells in _reasons().items()), ""]
    return "\n".join(lines)


def _reasons() -> dict[str, list[Cell]]:
    reasons: dict[str, list[Cell]] = {}
    for cell in all_cells():
        if cell.impossible:
            reasons.setdefault(cell.impossible, []).append(cell)
    return reasons
