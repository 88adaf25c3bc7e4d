"""Every seam x every fault x every receiver x every sink; start again; both sides agree, and nothing came twice.

`make recovery` runs all cells; else it is a sample in which every pair of two axes' values is met twice, every way from
a receiver to a sink among them. CDC_TEST_SEED repeats a sample, and the histories and calls that its cells had.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conftest import unavailable
from tests.receiving import endpoint, position
from tests.recovery.matrix import SUMMARY, report
from tests.recovery.matrix.axes import RECEIVERS, Cell, all_cells, pairs, possible_cells, sample
from tests.recovery.matrix.lanes import Lanes
from tests.recovery.matrix.sources import Servers, copy_files, write_binlogs
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
    servers, missing = _servers(request, {cell.receiver for cell in cells}, tmp_path_factory)
    not_run = {cell: missing[cell.receiver] for cell in cells if cell.receiver in missing}
    with Lanes(
        [cell for cell in cells if cell not in not_run], SEED, servers, tmp_path_factory.mktemp("cells")
    ) as lanes:
        yield lanes.outcomes, not_run
    done = [future.result() for future in lanes.outcomes.values() if future.done()]
    not_run |= {cell: "the run was ended before" for cell, future in lanes.outcomes.items() if not future.done()}
    name = "matrix" if len(cells) > len(SAMPLE) else "matrix-sample"
    summary = report.write(done, SEED, name, not_run)
    request.config.stash[SUMMARY] = summary
    if hasattr(request.config, "workeroutput"):
        request.config.workeroutput["summary"] = summary


def _servers(request, receivers, folders):
    """Those that the cells chosen need; and receivers whose server is not to be had, with the reason."""
    if receivers == {"memory"}:
        return Servers(None, (), None, None), {}
    try:
        server = request.getfixturevalue("mysql")
    except pytest.skip.Exception as skipped:
        return Servers(None, (), None, None), dict.fromkeys(set(RECEIVERS) - {"memory"}, skipped.msg)
    mysql, canal, missing = endpoint(server), None, {}
    if "canal" in receivers:
        try:
            canal = request.getfixturevalue("canal").address
        except pytest.skip.Exception as skipped:
            missing["canal"] = skipped.msg
    binlogs = write_binlogs(mysql, SEED, lambda: position(server))
    return Servers(mysql, binlogs, copy_files(binlogs, server.data, folders.mktemp("archive")), canal), missing


@pytest.mark.parametrize("cell", [_param(cell) for cell in possible_cells()])
def test_a_cell(lanes, cell):
    outcomes, not_run = lanes
    if cell in not_run:
        unavailable(not_run[cell])
    outcome = outcomes[cell].result()
    if outcome.failure is not None:
        pytest.fail(f"{cell}, {again()}\n{outcome.failure}", pytrace=False)


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_meets_every_pair_twice_and_is_hardly_larger_than_it_must_be(seed):
    met = Counter(pair for cell in sample(seed) for pair in pairs(cell))
    possible = Counter(pair for cell in possible_cells() for pair in pairs(cell))
    assert all(met[pair] >= min(2, count) for pair, count in possible.items())
    least = 2 * len({(cell.seam, cell.kind) for cell in possible_cells()})
    assert least <= len(sample(seed)) <= 1.2 * least


def test_a_seed_always_gives_the_same_sample():
    assert sample(7) == sample(7) != sample(8)


def test_a_cell_that_cannot_be_says_why():
    possible = set(possible_cells())
    impossible = [cell for cell in all_cells() if cell not in possible]
    assert impossible and all(cell.impossible for cell in impossible)


def test_a_lane_that_broke_fails_its_cell_and_what_was_not_run_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    broken, absent = Cell("get", "hang", "memory", "file"), Cell("get", "hang", "canal", "file")
    unpicklable = lambda: None  # noqa: E731 - what a lane cannot hand to its process
    with Lanes([broken], 1, unpicklable, tmp_path, lanes=1) as lanes:
        outcome = lanes.outcomes[broken].result()
    assert outcome.failure.startswith("its lane broke")
    summary = report.write([outcome], 1, "matrix", {absent: "there is no Maven"})
    assert "1 of 2 cells run, 1 failed" in summary
    assert "NOT RUN: 1 cells of canal, because there is no Maven" in summary
    assert "there is no Maven" in (tmp_path / "matrix.md").read_text()
