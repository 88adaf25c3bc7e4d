"""Every seam x every fault x every receiver x every sink; start again; both sides agree, and nothing came twice.

`make recovery` runs all cells; else it is a sample in which every pair of seam, fault and way (receiver to sink) is
met. CDC_TEST_SEED repeats a sample, and the histories and calls that its cells had.
"""

from __future__ import annotations

import pytest

from tests.conftest import unavailable
from tests.receiving import endpoint, position
from tests.recovery.matrix import SUMMARY, report
from tests.recovery.matrix.axes import all_cells, pairs, possible_cells, sample
from tests.recovery.matrix.lanes import Lanes
from tests.recovery.matrix.sources import Servers, write_binlogs
from tests.seeds import again, seed_of

SEED = seed_of()
SAMPLE = frozenset(sample(SEED))


def _param(cell):
    marks = [] if cell in SAMPLE else [pytest.mark.matrix]
    if cell.receiver == "canal":
        marks.append(pytest.mark.canal)
    return pytest.param(cell, id=str(cell), marks=marks)


@pytest.fixture(scope="module")
def lanes(request, tmp_path_factory):
    chosen = [item for item in request.session.items if getattr(item, "originalname", "") == test_a_cell.__name__]
    cells = [item.callspec.params["cell"] for item in chosen]
    servers = _servers(request, {cell.receiver for cell in cells})
    cells = [cell for cell in cells if cell.receiver != "canal" or servers.canal]
    with Lanes(cells, SEED, servers, tmp_path_factory.mktemp("matrix")) as lanes:
        yield lanes.outcomes
    done = [future.result() for future in lanes.outcomes.values() if future.done() and not future.exception()]
    name = "matrix" if len(cells) > len(SAMPLE) else "matrix-sample"
    summary = report.write(done, SEED, name)
    request.config.stash[SUMMARY] = summary
    if hasattr(request.config, "workeroutput"):
        request.config.workeroutput["summary"] = summary


def _servers(request, receivers):
    """Those that the cells chosen need."""
    if receivers == {"memory"}:
        return Servers(None, (), None)
    server = request.getfixturevalue("mysql")
    mysql, canal = endpoint(server), None
    if "canal" in receivers:
        try:
            canal = request.getfixturevalue("canal").address
        except pytest.skip.Exception:
            canal = None  # its cells say so, the others run
    return Servers(mysql, write_binlogs(mysql, SEED, lambda: position(server)), canal)


@pytest.mark.parametrize("cell", [_param(cell) for cell in possible_cells()])
def test_a_cell(lanes, cell):
    if cell not in lanes:
        unavailable("there is no Canal server")
    outcome = lanes[cell].result()
    if outcome.failure is not None:
        pytest.fail(f"{cell}, {again()}\n{outcome.failure}", pytrace=False)


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_meets_every_pair(seed):
    met = {pair for cell in sample(seed) for pair in pairs(cell)}
    assert met == {pair for cell in possible_cells() for pair in pairs(cell)}


def test_a_seed_always_gives_the_same_sample():
    assert sample(7) == sample(7) != sample(8)


def test_a_cell_that_cannot_be_says_why():
    impossible = [cell for cell in all_cells() if cell not in set(possible_cells())]
    assert impossible and all(cell.impossible for cell in impossible)
