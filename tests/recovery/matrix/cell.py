"""Runs a cell: a job in a process of its own meets its fault, is started again where it died, and both sides agree."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cdc.commit
import cdc.consumer
import cdc.gather
from cdc.errors import Answer, decide
from cdc.parts import Limits
from channels.mapping import Mapping
from channels.sinks.base import Sink
from tests.flow.faults import Fault, Rewinding, Script, put_in
from tests.flow.harness import JOB, Harness
from tests.flow.sink import FileSink
from tests.recovery.matrix import sources
from tests.recovery.matrix.axes import Cell
from tests.recovery.matrix.sources import Given, Servers
from tests.recovery.matrix.targets import TARGETS, Seen, Target

# a Task for every few rows, and a cycle for every few Tasks
LIMITS = Limits(interval_s=0.02, min_rows=1, min_bytes=1, max_bytes=600, max_rows=9, task_bytes=100)
REWINDS = (3, 4, 5)  # Batches until the source rewinds, again and again: what makes the Consumer call `rollback`
TIMEOUT_S = 120  # of a run that takes a second where nothing else is at work
_HANG_S = 0.05  # a job that hangs is asked to stop, and hangs on for so long

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["pytest", "tests.recovery.matrix.warm"])


@dataclass(frozen=True)
class Outcome:
    """What came of a cell."""

    cell: Cell
    seed: int
    number: int  # which call had the fault
    seconds: float
    failure: str | None


def run(cell: Cell, seed: int, servers: Servers, folder: Path, place: int) -> Outcome:
    """Run ``cell``. ``place``: its number, which no other cell has."""
    draw, began = random.Random(f"{seed} {cell}"), time.monotonic()
    number = draw.choice(cell.number)
    folder = folder / str(cell)
    folder.mkdir(parents=True)
    try:
        with (
            _given(cell, draw.randrange(1 << 30), servers, place) as given,
            TARGETS[cell.sink](folder) as target,
        ):
            _run(cell, number, folder, given, target)
        failure = None
        shutil.rmtree(folder)  # a thousand of them
    except Exception:
        failure = f"{traceback.format_exc()}\nseed {seed}, call {number} at the seam\n{_told(folder)}"
    return Outcome(cell, seed, number, time.monotonic() - began, failure)


@contextmanager
def _given(cell: Cell, seed: int, servers: Servers, place: int):
    if cell.receiver == "memory":
        yield sources.in_memory(seed)
    elif cell.receiver == "binlog":
        yield sources.one_of(servers.binlogs, seed, str(cell))
    elif cell.receiver == "binlog_files":
        yield sources.in_files(servers, seed)
    else:
        given = sources.behind_canal(servers, seed, place)
        yield given
        sources.drop(servers, given)


def _run(cell: Cell, number: int, folder: Path, given: Given, target: Target) -> None:
    fault = Fault(cell.seam, cell.kind, number)
    code, struck = _in_process(folder, given, target, fault)
    if cell.kind.startswith("kill"):
        assert code == -signal.SIGKILL, f"the fault never struck: the job's process ended with {code}"
        code, _ = _in_process(folder, given, target, None)
        assert code == 0, f"started again, the job's process ended with {code}"
    else:
        assert code == 0, f"the job's process ended with {code}"
        assert struck == [[cell.seam, cell.kind]], "the fault never struck"
    compare(given, target, target.look())


def compare(given: Given, target: Target, seen: Seen) -> None:
    """Source equals target row for row; nothing is left behind, and nothing came twice or in another order."""
    model = given.model
    expected = {name.partition(".")[2]: rows for name, rows in model.state().items()}
    assert seen.rows == expected, f"target {seen.rows}, source {expected}"
    changes = [
        (row.table.partition(".")[2], row.key, row.op, row.deleted) for each in model.transactions for row in each
    ]
    place = {change: index for index, change in enumerate(changes)}
    assert not (strange := set(seen.shown) - set(changes)), f"the source never had what was seen: {strange}"
    assert not seen.committed_twice, f"committed twice into a Delta table: {seen.committed_twice}"
    assert not seen.left, f"still prepared: {seen.left}"
    if target.shows_once:
        repeated = [change for change, count in Counter(seen.shown).items() if count > 1]
        assert not repeated, f"became visible twice: {repeated}"
        newest: dict[tuple[str, int], int] = {}
        for change in seen.shown:
            assert newest.get(change[:2], -1) < place[change], f"{change} came after a newer one of its key"
            newest[change[:2]] = place[change]


# the job's process


class CellHarness(Harness):
    """The job of a cell."""

    def __init__(self, folder: Path, given: Given, make: Callable[[], Sink]):
        self.given, self.make = given, make
        super().__init__(folder, given.model, limits=LIMITS, mappings=(Mapping(f"{given.database}.*", "ods.*"),))
        self.runner.every_row = isinstance(self.sink, FileSink)

    def new_sink(self, folder):
        return self.make()

    def new_receiver(self):
        return self.given.receiver(self.routes)

    def first_place(self):
        return self.given.start

    def verify_state(self) -> None:
        """What the job itself says at the end."""
        assert self.store.unfinished() == ()
        committed, mark = self.store.last_committed(JOB), self.sink.last_checkpoint(JOB)
        assert mark.incarnation == self.run.incarnation and mark.checkpoint <= committed.id
        told = {name: (counts.upserts, counts.deletes) for name, counts in committed.counts.items()}
        rows = [row for transaction in self.source.transactions for row in transaction]
        deletes = Counter(row.table for row in rows if row.deleted)
        upserts = Counter(row.table for row in rows if not row.deleted)
        expected = {table: (upserts[table], deletes[table]) for table in {row.table for row in rows}}
        assert told == expected, f"counts told {told}, of the source {expected}"


def _in_process(folder: Path, given: Given, target: Target, fault: Fault | None) -> tuple[int | None, object]:
    """Run the job until its source is finished: the exit code, and which faults have struck."""
    struck = folder / "struck.json"
    process = _PROCESSES.Process(target=_job, args=(folder, given, target.make, target.one_commit, fault, struck))
    process.start()
    process.join(TIMEOUT_S)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"the job was not done after {TIMEOUT_S} s")
    code = process.exitcode
    process.close()
    return code, json.loads(struck.read_text()) if struck.exists() else None


def _job(
    folder: Path, given: Given, make: Callable[[], Sink], one_commit: str | None, fault: Fault | None, struck: Path
) -> None:
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(threadName)s %(message)s", force=True)
    cdc.commit.FIRST_DELAY_S, cdc.consumer.WIND_UP_S = 0.01, 0.3
    cdc.gather._CANCEL_S = 20.0  # a load that comes later than that stays prepared, and a busy machine is late
    harness = CellHarness(folder, given, make)
    script = put_in(harness, Script(*[fault] if fault else []), one_commit)
    given.put_in(script)
    if fault is not None and fault.seam == "rollback":
        wrap, left = harness.wrap_receiver, list(REWINDS)
        harness.wrap_receiver = lambda inner: Rewinding(wrap(inner), left)
    if fault is not None and fault.kind == "hang":
        _hang(harness, script)
    errors = harness.until_finished()
    logging.info("finished, with %s on the way", [str(error) for error in errors])
    harness.verify_state()
    harness.close()
    struck.write_text(json.dumps(script.done))


def _hang(harness: Harness, script: Script) -> None:
    """A run that hangs is stopped as a person would; what hangs fails in the end."""
    run = harness.in_background()
    assert script.hanging.wait(TIMEOUT_S / 2), "the fault never struck"
    harness.consumer.stop()
    time.sleep(_HANG_S)
    script.released.set()
    run.join(TIMEOUT_S / 4)
    assert not run.is_alive(), "the run did not end"
    assert run.error is None or decide(run.error) is Answer.RETRY, run.error
    harness.sequence = harness.consumer.sequence


def _told(folder: Path) -> str:
    log = folder / "log.txt"
    return log.read_text()[-6000:] if log.exists() else ""
