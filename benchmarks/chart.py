"""A chart for each benchmark: a bar for each figure and its baselines, a dot for each run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import matplotlib as mpl

from benchmarks.suite import Figure, Outcome, number

mpl.use("svg")
from matplotlib import pyplot

_OURS, _THEIRS = "tab:blue", "tab:gray"


def draw(outcome: Outcome, folder: Path) -> Path | None:
    """Write ``NAME.svg``: a panel for each unit. None where nothing was measured."""
    by_unit = {unit: list(found) for unit, found in groupby(sorted(outcome.figures, key=_unit), key=_unit)}
    if not by_unit:
        return None
    heights = [0.6 + 0.35 * len(list(_bars(found))) for found in by_unit.values()]
    figure, axes = pyplot.subplots(
        len(by_unit), 1, figsize=(9, sum(heights) + 0.6), layout="constrained", squeeze=False, height_ratios=heights
    )
    for axis, (unit, found) in zip(axes[:, 0], by_unit.items(), strict=True):
        for place, (label, value, values, color) in enumerate(_bars(found)):
            axis.barh(place, value, color=color, height=0.6)
            axis.plot(values, [place] * len(values), "k.", markersize=4)
            axis.annotate(f" {number(value)}", (max([value, *values]), place), va="center", fontsize=8)
            axis.annotate(f"{label}  ", (0, place), va="center", ha="right", fontsize=8, annotation_clip=False)
        axis.set_yticks([])
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.set_xlim(left=0)
        axis.set_xlabel(unit, fontsize=8)
        axis.tick_params(labelsize=7)
    figure.suptitle(outcome.benchmark.name, fontsize=10)
    path = folder / f"{outcome.benchmark.name}.svg"
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
    return path


def _unit(figure: Figure) -> str:
    return figure.unit


def _bars(figures: Iterable[Figure]) -> Iterable[tuple[str, float, list[float], str]]:
    for figure in figures:
        yield figure.name, figure.median, figure.values, _OURS
        for name, value in figure.baselines().items():
            yield name, value, [], _THEIRS
