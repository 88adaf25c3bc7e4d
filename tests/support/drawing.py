"""Cases that ``make test`` draws: slow tests run with some of their parameters, others with each seed.

``@pytest.mark.drawn(2)`` on a test with parameters: two of its cases run, which together have as many values of each
parameter as possible. ``--all-cases`` (``make test-all``) runs all of them, and so does ``-k`` or a case that is named
on the command line.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

import pytest

from tests.support.seeds import VARIABLE

T = TypeVar("T")


def keep_drawn(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases that were not drawn. All workers of a run draw the same ones."""
    is_chosen = config.getoption("keyword") or any("::" in argument for argument in config.args)
    if is_chosen or config.getoption("--all-cases"):
        return
    cases: dict[tuple[str, int], list[pytest.Function]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("drawn")
        if mark is not None and isinstance(item, pytest.Function):
            cases[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    left_out: set[pytest.Item] = set()
    for (name, count), found in cases.items():
        draw = random.Random(f"{os.environ[VARIABLE]} {name}")
        # not their indices, which are those of the case
        values = [{name: repr(value) for name, value in item.callspec.params.items()} for item in found]
        taken = drawn(draw, values, count)
        left_out.update(item for number, item in enumerate(found) if number not in taken)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def drawn(draw: random.Random, cases: Sequence[Mapping[str, T]], count: int) -> set[int]:
    """Return the numbers of ``count`` cases. Each drawn one adds as many new values of parameters as possible."""
    waiting, taken, seen = [*range(len(cases))], set[int](), set[tuple[str, T]]()
    draw.shuffle(waiting)
    while waiting and len(taken) < count:
        best = max(waiting, key=lambda number: len(cases[number].items() - seen))
        waiting.remove(best)
        taken.add(best)
        seen.update(cases[best].items())
    return taken
