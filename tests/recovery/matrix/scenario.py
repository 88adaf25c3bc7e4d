"""Run a scenario: a job in a separate process meets its fault and is started again; both sides are compared."""

from __future__ import annotations

import random
import shutil
import signal
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.model.faults import Fault
from tests.recovery.matrix import environment as surroundings
from tests.recovery.matrix import sources
from tests.recovery.matrix.dimensions import Cell
from tests.recovery.matrix.process import JobProcess, Start
from tests.recovery.matrix.sources import Given, Servers
from tests.recovery.matrix.targets import TARGETS, Seen, Target, delta_s3
from tests.support.object_stores import create_bucket


@dataclass(frozen=True)
class Outcome:
    """The result of a scenario."""

    cell: Cell
    seed: int
    number: int  # the call with the fault
    seconds: float
    failure: str | None


def run(cell: Cell, seed: int, servers: Servers, folder: Path, place: int) -> Outcome:
    """Run ``cell``. ``place``: its number, which is unique."""
    draw, began = random.Random(f"{seed} {cell}"), time.monotonic()
    number = draw.choice(cell.number)
    folder = folder / str(cell)
    folder.mkdir(parents=True)
    try:
        with (
            _given(cell, draw.randrange(1 << 30), servers, place) as given,
            _target(cell, f"{seed} {cell}", servers, folder, place) as target,
        ):
            _run(cell, number, folder, given, target)
        failure = None
        shutil.rmtree(folder)  # there can be a thousand of them
    except Exception:
        failure = f"{traceback.format_exc()}\nseed {seed}, call {number} at the fault point\n{_end(folder / 'log.txt')}"
        if cell.receiver == "canal":
            failure += f"\nCanal server:\n{_end(servers.canal_log)}"
    return Outcome(cell, seed, number, time.monotonic() - began, failure)


@contextmanager
def _given(cell: Cell, seed: int, servers: Servers, place: int):
    if cell.receiver == "memory":
        yield sources.in_memory(seed)
    elif cell.receiver == "binlog":
        yield sources.one_of(servers.binlogs, seed, str(cell))
    elif cell.receiver == "kafka":
        yield servers.topics[seed % len(servers.topics)]
    elif cell.receiver == "binlog_files":
        yield sources.in_files(servers, seed)
    else:
        given = sources.behind_canal(servers, seed, place)
        yield given
        sources.drop(servers, given)


def _target(cell: Cell, seed: str, servers: Servers, folder: Path, place: int):
    if cell.sink == "delta-s3":
        return delta_s3(folder, create_bucket(servers.s3, f"matrix-{place}"), seed)
    return TARGETS[cell.sink](folder)


def _run(cell: Cell, number: int, folder: Path, given: Given, target: Target) -> None:
    if cell.kind in surroundings.KINDS:
        if surroundings.run(cell, number, folder, given, target):
            is_exact = surroundings.is_exact(cell.kind)
            # the loads of a table are committed one by one: if the rest expires, the whole table is replayed
            is_partly_committed = cell.kind == "expired" and cell.fault_point == "single commit"
            compare(given, target, target.look(), is_exact=is_exact, shows_once=not is_partly_committed)
        return
    code, ended = _ended(folder, given, target, Start((Fault(cell.fault_point, cell.kind, number),)))
    if cell.kind.startswith("kill"):
        assert code == -signal.SIGKILL, f"the fault was never injected: the job's process ended with {code}"
        code, ended = _ended(folder, given, target, Start())
        assert code == 0, f"started again, the job's process ended with {code}"
    else:
        assert code == 0, f"the job's process ended with {code}"
        assert ended is not None and ended.struck == ((cell.fault_point, cell.kind),), "the fault was never injected"
    assert ended is not None and not ended.error, f"it ended with {ended}"
    compare(given, target, target.look())


def _ended(folder: Path, given: Given, target: Target, start: Start):
    with JobProcess(folder, given, target, start) as process:
        return process.wait()


def compare(given: Given, target: Target, seen: Seen, *, is_exact: bool = True, shows_once: bool = True) -> None:
    """Check that source equals target, that nothing is left behind, and that no row came twice or out of order.

    ``is_exact``: no row was read again, and no two processes overlapped. Otherwise compare only rows.
    """
    model = given.model
    expected = {name.partition(".")[2]: rows for name, rows in model.state().items()}
    assert not seen.missing, f"files of a version of a Delta table that do not exist: {seen.missing}"
    assert seen.rows == expected, f"target {seen.rows}, source {expected}"
    changes = [
        (row.table.partition(".")[2], row.key, row.op, row.deleted) for each in model.transactions for row in each
    ]
    place = {change: index for index, change in enumerate(changes)}
    assert not seen.committed_twice, f"committed twice into a Delta table: {seen.committed_twice}"
    if not is_exact:
        return
    assert not (strange := set(seen.shown) - set(changes)), f"changes that the source never had: {strange}"
    assert not seen.left, f"still prepared: {seen.left}"
    if target.shows_once and shows_once:
        repeated = [change for change, count in Counter(seen.shown).items() if count > 1]
        assert not repeated, f"became visible twice: {repeated}"
        newest: dict[tuple[str, int], int] = {}
        for change in seen.shown:
            assert newest.get(change[:2], -1) < place[change], (
                f"{change} became visible after a newer change of its key"
            )
            newest[change[:2]] = place[change]


def _end(log: Path | None) -> str:
    return log.read_text(errors="replace")[-6000:] if log is not None and log.exists() else ""
