"""Every fault point x every fault x every receiver x every sink: start again, compare both sides, no row twice.

`make recovery` runs all scenarios. Otherwise a sample runs that contains every pair of values of two dimensions, and
so every route from a receiver to a sink. CDC_TEST_SEED repeats a sample and its histories and calls.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from tests.conftest import unavailable
from tests.model import faults
from tests.recovery.matrix import SUMMARY, environment, report
from tests.recovery.matrix.dimensions import RECEIVERS, SINKS, Cell, all_cells, pairs, possible_cells, sample
from tests.recovery.matrix.routes import Lanes
from tests.recovery.matrix.sources import Servers, copy_files, write_binlogs, write_topics
from tests.support.receiving import endpoint, position
from tests.support.seeds import again, seed_of

SEED = seed_of()
SAMPLE = frozenset(sample(SEED))


def _param(cell):
    marks = [] if cell in SAMPLE else [pytest.mark.matrix]
    if cell.receiver == "canal":
        marks.append(pytest.mark.canal)
    return pytest.param(cell, id=str(cell), marks=marks)


@pytest.fixture(scope="module")
def lanes(request, tmp_path_factory):
    chosen = [
        item for item in request.session.items if getattr(item, "originalname", "") == test_matrix_scenario.__name__
    ]
    cells = [item.callspec.params["cell"] for item in chosen]
    servers, missing = _servers(request, {cell.receiver for cell in cells}, tmp_path_factory)
    if any(cell.sink == "delta-s3" for cell in cells):
        servers = replace(servers, s3=request.getfixturevalue("s3_server").wait())
    not_run = {cell: missing[cell.receiver] for cell in cells if cell.receiver in missing}
    # many scenarios wait most of their time; beside other tests, few of them run at once
    count = None
    if len(cells) > len(SAMPLE):
        if hasattr(request.config, "workerinput"):
            pytest.fail("Each worker would run the whole matrix: run it without -n.")
        count = min(8, 3 * (os.cpu_count() or 2))
    can_run = [cell for cell in cells if cell not in not_run]
    with Lanes(can_run, SEED, servers, tmp_path_factory.mktemp("cells"), count) as lanes:
        yield lanes.outcomes, not_run
    done = [future.result() for future in lanes.outcomes.values() if future.done()]
    not_run |= {cell: "the run ended before" for cell, future in lanes.outcomes.items() if not future.done()}
    name = "matrix" if len(cells) > len(SAMPLE) else "matrix-sample"
    summary = report.write(done, SEED, name, not_run)
    request.config.stash[SUMMARY] = summary
    if hasattr(request.config, "workeroutput"):
        request.config.workeroutput["summary"] = summary


def _servers(request, receivers, folders):
    """Start the servers that the scenarios need. Return them, and the receivers without a server with the reason."""
    missing: dict[str, str] = {}

    def server(fixture, *receivers_of):
        try:
            return request.getfixturevalue(fixture)
        except pytest.skip.Exception as skipped:
            missing.update(dict.fromkeys(receivers_of, skipped.msg))
            return None

    servers = Servers(None, (), None, None)
    if "kafka" in receivers and (broker := server("kafka", "kafka")) is not None:
        servers = replace(servers, topics=write_topics(broker, SEED))
    if receivers <= {"memory", "kafka"} or (mysql := server("mysql", "binlog", "binlog_files", "canal")) is None:
        return servers, missing
    if "canal" in receivers and (found := server("canal", "canal")) is not None:
        servers = replace(servers, canal=found.address, canal_log=found.log)
    binlogs = write_binlogs(endpoint(mysql), SEED, lambda: position(mysql))
    files = copy_files(binlogs, mysql.data, folders.mktemp("archive"))
    return replace(servers, mysql=endpoint(mysql), binlogs=binlogs, files=files), missing


@pytest.mark.parametrize("cell", [_param(cell) for cell in possible_cells()])
def test_matrix_scenario(lanes, cell):
    outcomes, not_run = lanes
    if cell in not_run:
        unavailable(not_run[cell])
    outcome = outcomes[cell].result()
    if outcome.failure is not None:
        pytest.fail(f"{cell}, {again()}\n{outcome.failure}", pytrace=False)


@pytest.mark.parametrize("seed", range(3))
def test_matrix_sample_contains_every_pair(seed):
    taken = [cell for cell in sample(seed) if cell.kind in faults.KINDS]
    cells = [cell for cell in possible_cells() if cell.kind in faults.KINDS]
    met = Counter(pair for cell in taken for pair in pairs(cell))
    possible = Counter(pair for cell in cells for pair in pairs(cell))
    assert met.keys() == possible.keys()
    # no sample is smaller than the number of pairs of the two largest dimensions
    least = max(Counter(tuple(name for name, _ in pair) for pair in possible).values())
    assert least <= len(taken) <= 1.2 * least


@pytest.mark.parametrize("seed", range(3))
def test_matrix_sample_contains_each_environment_fault(seed):
    taken = [cell for cell in sample(seed) if cell.kind in environment.KINDS]
    assert {(cell.kind, cell.receiver) for cell in taken} == set(product(environment.KINDS, RECEIVERS))
    assert {(cell.sink, cell.receiver) for cell in taken} == set(product(SINKS, RECEIVERS))
    assert len(taken) <= 1.2 * len(RECEIVERS) * max(len(environment.KINDS), len(SINKS))


def test_matrix_sample_is_deterministic():
    assert sample(7) == sample(7) != sample(8)


def test_matrix_impossible_scenario_has_a_reason():
    possible = set(possible_cells())
    impossible = [cell for cell in all_cells() if cell not in possible]
    assert impossible and all(cell.impossible for cell in impossible)


def test_matrix_broken_route_fails_its_scenario(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    broken, absent = Cell("get", "hang", "memory", "file"), Cell("get", "hang", "canal", "file")
    unpicklable = lambda: None  # noqa: E731 - a route cannot send it to its process
    with Lanes([broken], 1, unpicklable, tmp_path, lanes=1) as lanes:
        outcome = lanes.outcomes[broken].result()
    assert outcome.failure.startswith("its route broke")
    summary = report.write([outcome], 1, "matrix", {absent: "there is no Maven"})
    assert "1 of 2 scenarios run, 1 failed" in summary
    assert "NOT RUN: 1 scenarios of canal, because there is no Maven" in summary
    assert "there is no Maven" in (tmp_path / "matrix.md").read_text()
