"""A chart for each benchmark: a bar for each figure and for each baseline, a dot for each run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import matplotlib as mpl

from benchmarks.rig.results import Figure, Outcome, number

mpl.use("svg")
from matplotlib import pyplot


def draw(outcome: Outcome, folder: Path) -> None:
    """Write ``NAME.svg`` with a panel for each unit, if anything was measured."""
    by_unit = {unit: [*_bars(found)] for unit, found in groupby(sorted(outcome.figures, key=_unit), key=_unit)}
    if not by_unit:
        return
    heights = [0.6 + 0.35 * len(bars) for bars in by_unit.values()]
    figure, axes = pyplot.subplots(
        len(by_unit), 1, figsize=(9, sum(heights) + 0.6), layout="constrained", squeeze=False, height_ratios=heights
    )
    for axis, (unit, bars) in zip(axes[:, 0], by_unit.items(), strict=True):
        for y, (label, value, values, color) in enumerate(bars):
            axis.barh(y, value, color=color, height=0.6)
            axis.plot(values, [y] * len(values), "k.", markersize=4)
            axis.annotate(f" {number(value)}", (max([value, *values]), y), va="center", fontsize=8)
            axis.annotate(f"{label}  ", (0, y), va="center", ha="right", fontsize=8, annotation_clip=False)
        axis.set_yticks([])
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.set_xlim(left=0)
        axis.set_xlabel(unit, fontsize=8)
        axis.tick_params(labelsize=7)
    figure.suptitle(outcome.case.title, fontsize=10)
    figure.savefig(folder / f"{outcome.case.title.replace(' ', '.')}.svg", bbox_inches="tight")
    pyplot.close(figure)


def _unit(figure: Figure) -> str:
    return figure.unit


def _bars(figures: Iterable[Figure]) -> Iterator[tuple[str, float, list[float], str]]:
    for figure in figures:
        yield figure.name, figure.median, figure.values, "tab:blue"
        for name, value in figure.baselines().items():
            yield name, value, [], "tab:gray"
