"""What came of a matrix: a table for the terminal, Markdown for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.flow.faults import SEAMS
from tests.recovery.matrix.axes import FAULTS, RECEIVERS, SINKS, Cell, all_cells
from tests.recovery.matrix.cell import Outcome
from tests.seeds import VARIABLE

FOLDER = Path(__file__).parents[2] / "results"


def write(outcomes: Sequence[Outcome], seed: int, name: str, not_run: Mapping[Cell, str]) -> str:
    """Write ``name``.json and .md; gives what a terminal shows. ``not_run``: why not, of cells that were chosen too."""
    FOLDER.mkdir(exist_ok=True)
    absent = {str(cell): cell.impossible for cell in all_cells() if cell.impossible}
    told = {
        "seed": seed,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cells": [_told(outcome) for outcome in outcomes],
        "not_run": {str(cell): why for cell, why in not_run.items()},
        "impossible": absent,
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(told, indent=1))
    (FOLDER / f"{name}.md").write_text(_markdown(outcomes, seed, not_run))
    lines = [
        f"{_head(outcomes, not_run)} (again: {VARIABLE}={seed})",
        *_holes(not_run),
        *_grid("seam", SEAMS, "seam", tuple(FAULTS), "kind", outcomes),
        "",
        *_grid("receiver", RECEIVERS, "receiver", SINKS, "sink", outcomes),
        "",
        *(f"{len(cells)} cells cannot be: {reason}" for reason, cells in _reasons().items()),
        f"{FOLDER / name}.md has every cell.",
    ]
    return "\n".join(lines)


def _head(outcomes: Sequence[Outcome], not_run: Mapping[Cell, str]) -> str:
    failed = sum(outcome.failure is not None for outcome in outcomes)
    return f"{len(outcomes)} of {len(outcomes) + len(not_run)} cells run, {failed} failed"


def _holes(not_run: Mapping[Cell, str]) -> Iterable[str]:
    for (receiver, why), count in Counter((cell.receiver, why) for cell, why in not_run.items()).items():
        yield f"NOT RUN: {count} cells of {receiver}, because {why}"


def _told(outcome: Outcome) -> dict[str, object]:
    cell = outcome.cell
    return {
        "seam": cell.seam,
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
    """Passed of run, for two axes."""
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
    ways = [(receiver, sink) for receiver in RECEIVERS for sink in SINKS]
    lines = [
        "# Fault matrix",
        "",
        f"{_head(outcomes, not_run)}, seed {seed}. An empty one was not run; a dash cannot be.",
        *(f"- {hole}" for hole in _holes(not_run)),
        "",
        "| Seam | Fault | " + " | ".join(f"{receiver} to {sink}" for receiver, sink in ways) + " |",
        "|---|---|" + "---|" * len(ways),
    ]
    for seam in SEAMS:
        for kind, fault in FAULTS.items():
            cells = [Cell(seam, kind, *way) for way in ways]
            marks = (found.get(cell, "-" if cell.impossible else "") for cell in cells)
            lines.append(f"| {seam} | {fault} | {' | '.join(marks)} |")
    lines += ["", *(f"- {len(cells)} cells cannot be: {reason}." for reason, cells in _reasons().items()), ""]
    return "\n".join(lines)


def _reasons() -> dict[str, list[Cell]]:
    reasons: dict[str, list[Cell]] = {}
    for cell in all_cells():
        if cell.impossible:
            reasons.setdefault(cell.impossible, []).append(cell)
    return reasons
