"""What all benchmarks came to: a table for the terminal, and ``bench.md`` with machine, versions, date and command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import circumstances
from benchmarks.suite import Figure, Outcome, number

_COLUMNS = {  # and whether it holds text
    "figure": True,
    "median": False,
    "spread": False,
    "unit": True,
    "runs": False,
    "CPU s/million": False,
    "peak GiB": False,
    "stolen %": False,
    "others": True,
    "checked": True,
    "goal": True,
}


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the table."""
    table = Table(title="Benchmarks: median, and from lowest to highest")
    for heading, text in _COLUMNS.items():
        table.add_column(heading, justify="left" if text else "right")
    for outcome in outcomes:
        for row in _rows(outcome):
            table.add_row(*row)
        table.add_section()
    Console(width=230).print(table)


def write(outcomes: Sequence[Outcome], folder: Path, command: str) -> Path:
    """The same as Markdown. Returns its path."""
    known = circumstances()
    machine, versions = known["machine"], ", ".join(f"{name} {version}" for name, version in known["versions"].items())
    lines = [
        f"`{command}`, {known['date']}",
        "",
        f"{machine['cores']} cores, {machine['cpu']}, {machine['memory_gib']} GiB; {versions}",
        "",
        _line(_COLUMNS),
        _line("---" if text else "--:" for text in _COLUMNS.values()),
        *(_line(row) for outcome in outcomes for row in _rows(outcome)),
    ]
    path = folder / "bench.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rows(outcome: Outcome) -> list[list[str]]:
    failed = [[outcome.benchmark.name, "FAILED", failure] for failure in outcome.failures]
    return [*map(_cells, outcome.figures), *(row + [""] * (len(_COLUMNS) - len(row)) for row in failed)]


def _cells(figure: Figure) -> list[str]:
    aside = {name: number(value) for name, value in figure.aside().items()}
    return [
        figure.name,
        number(figure.median),
        f"{number(min(figure.values))} - {number(max(figure.values))}" if len(figure.values) > 1 else "",
        figure.unit,
        str(len(figure.values)),
        aside.get("cpu_s_per_million", ""),
        aside.get("peak_gib", ""),
        aside.get("stolen_percent", ""),
        ", ".join(f"{name}: {number(value)}" for name, value in figure.baselines().items()),
        figure.runs[0].get("checked", ""),
        figure.must,
    ]
