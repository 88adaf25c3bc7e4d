"""The process of a scenario's job: it injects the faults and reports how it ended."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil
import pyarrow as pa

import cdc.pipeline.consumer
import cdc.pipeline.cycles
import cdc.pipeline.dispatcher
import cdc.retry
from cdc.errors import CdcError, ErrorAction, SinkOwnershipError, action_for
from cdc.model.batch import FENCE_STEP
from cdc.model.schema import DELETED, SEQUENCE
from cdc.model.snapshot import SnapshotState
from cdc.pipeline.flow_control import CommitLimits
from cdc.pipeline.recovery import adopt
from cdc.pipeline.recovery import check_sink_state as compare_with_sink
from cdc.run_context import SnapshotSettings
from channels.chunk_reader import SnapshotResult
from channels.mapping import Mapping
from channels.sinks.base import Sink
from channels.task import RunIdentity
from tests.model.faults import Fault, Faulty, Rewinding, Script, put_in
from tests.model.harness import JOB, Harness
from tests.model.model_server import Endpoint, Tables, served
from tests.model.runner import ThreadRunner
from tests.model.sink import FileSink
from tests.recovery.matrix.sources import Given
from tests.recovery.matrix.targets import Target

# one Task for every few rows, and one cycle for every few Tasks
LIMITS = CommitLimits(interval_s=0.02, min_rows=1, min_bytes=1, max_bytes=600, max_rows=9, task_bytes=100)
# Batches until each rewind of the source, which makes the Consumer call `rollback`: few, since Canal may deliver few
REWINDS = (2, 2, 2)
TIMEOUT_S = 240  # for a run that takes one second on an idle machine
CANCEL_S = 20.0  # a later load stays prepared, and a busy machine is slow
_HANG_S = 0.05  # a hanging job is asked to stop, and hangs for this time longer
POLL_S = 0.005
_WATCH_S = 0.02  # each look costs CPU time of the job that is watched

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["pytest", "tests.recovery.matrix.warm"])


@dataclass(frozen=True)
class Start:
    """The options of a start of the job's process."""

    faults: tuple[Fault, ...] = ()
    adopting: bool = False
    reloading: bool = False  # as `resume --reload-missing` does
    is_exact: bool = True  # no row is read again, so the counts of the job equal those of the source


@dataclass(frozen=True)
class Ended:
    """The end of a process."""

    struck: tuple[tuple[str, str], ...]
    error: str = ""  # its class; "" if the source is finished
    text: str = ""  # message and hint


class JobProcess:
    """A process that runs the job of a scenario until its source is finished or an error needs a person."""

    def __init__(self, folder: Path, given: Given, target: Target, start: Start) -> None:
        self._folder = folder / f"process-{random.randrange(1 << 60):015x}"
        self._folder.mkdir()
        self._process = _PROCESSES.Process(
            target=_job, args=(folder, self._folder, given, target.make, target.one_commit, start)
        )
        self._process.start()
        self._stops = 0

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._process.close()

    def wait_until_stopped(self) -> bool:
        """Wait for the next fault "stop". Return False if the process has ended without it."""
        self._stops += 1
        marker = self._folder / f"stop-{self._stops}"
        deadline = time.monotonic() + TIMEOUT_S
        while self._process.is_alive():
            if marker.exists() and self._is_stopped():
                return True
            assert time.monotonic() < deadline, f"the job was neither stopped nor done after {TIMEOUT_S} s"
            time.sleep(_WATCH_S)
        return False

    def let_a_little_on(self, seconds: float = POLL_S) -> None:
        """Continue every thread for a moment except the one with the fault, because another one may hold a lock."""
        psutil.Process(self._process.pid).resume()
        time.sleep(seconds)
        psutil.Process(self._process.pid).suspend()
        deadline = time.monotonic() + TIMEOUT_S
        while not self._is_stopped():
            assert self._process.is_alive(), "the job ended while it was stopped"
            assert time.monotonic() < deadline, f"the job was not stopped again after {TIMEOUT_S} s"
            time.sleep(POLL_S)

    def go_on(self) -> None:
        """Send SIGCONT and release the thread with the fault."""
        (self._folder / f"go-{self._stops}").touch()
        psutil.Process(self._process.pid).resume()

    def waits_for_sink(self) -> bool:
        """Wait until its commit waits for an unavailable sink. Return False if the process has ended without it."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._process.is_alive():
            if " waits: " in (self._folder.parent / "log.txt").read_text():
                return True
            assert time.monotonic() < deadline, f"the job neither waited nor was done after {TIMEOUT_S} s"
            time.sleep(_WATCH_S)
        return False

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._process.kill()
        self._process.join()

    def wait(self) -> tuple[int | None, Ended | None]:
        """Return the exit code, and the report of the process, or None if it wrote no report."""
        self._process.join(TIMEOUT_S)
        assert not self._process.is_alive(), f"the job was not done after {TIMEOUT_S} s"
        report_file = self._folder / "ended.json"
        if not report_file.exists():
            return self._process.exitcode, None
        found = json.loads(report_file.read_text())
        struck = tuple((fault_point, kind) for fault_point, kind in found.pop("struck"))
        return self._process.exitcode, Ended(struck, **found)

    def _is_stopped(self) -> bool:
        return psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED


# in the process


class ScenarioHarness(Harness):
    """The job of a scenario."""

    def __init__(self, folder: Path, given: Given, make: Callable[[], Sink], start: Start):
        self.given, self.make, self.start_options = given, make, start
        super().__init__(folder, given.model, limits=LIMITS, mappings=(Mapping(f"{given.database}.*", "ods.*"),))
        self.runner.close()
        self.runner = CellRunner(self.sink, every_row=isinstance(self.sink, FileSink))
        if start.reloading:
            endpoint = Endpoint(FinalTables(given.model, random.Random(0)), _NoSteps())
            settings = SnapshotSettings(endpoint, lambda _: given.end, initial=False)
            self.more_parts = {"snapshot": settings, "reload_missing": True}

    def compare(self) -> None:
        """Compare state and sink, as a Job does before its first run."""
        try:
            compare_with_sink(self.record, self.store, self.sink)
        except SinkOwnershipError:
            if not self.start_options.adopting:
                raise
            self.record = adopt(self.record, self.store, self.sink, dict)
            self.run = RunIdentity(JOB, self.record.incarnation, self.record.fence)
            self.sequence = self.record.fence * FENCE_STEP

    def start(self):
        consumer = super().start()
        if self.start_options.reloading:
            consumer._receiver = UntilLoaded(consumer._receiver, self.store)
            consumer._context = replace(consumer._context, receiver=consumer._receiver)
        return consumer

    def new_sink(self, folder):
        return self.make()

    def new_receiver(self):
        return self.given.receiver(self.routes)

    def first_position(self):
        return self.given.start

    def verify_state(self) -> None:
        """Check the saved state of the job at the end."""
        assert self.store.unfinished() == ()
        committed, mark = self.store.last_committed(JOB), self.sink.last_checkpoint(JOB)
        assert mark.incarnation == self.run.incarnation and mark.checkpoint <= committed.id
        if not self.start_options.is_exact:
            return
        found = {name: (counts.upserts, counts.deletes) for name, counts in committed.counts.items()}
        rows = [row for transaction in self.source.transactions for row in transaction]
        deletes = Counter(row.table for row in rows if row.deleted)
        upserts = Counter(row.table for row in rows if not row.deleted)
        expected = {table: (upserts[table], deletes[table]) for table in {row.table for row in rows}}
        assert found == expected, f"counts of the job {found}, of the source {expected}"


class CellRunner(ThreadRunner):
    """A runner that also reads chunks, on a thread of this process."""

    def submit_reading(self, reading):
        return self._pool.submit(self._read, reading)

    def _read(self, reading):
        loads, chunks = [], []
        for outcome, parts in reading.endpoint.read_chunks(reading):
            table = reading.tables[outcome.table]
            fields = pa.schema([("id", pa.int32()), ("op", pa.int64()), (DELETED, pa.bool_()), (SEQUENCE, pa.int64())])
            chunks.append(outcome)
            for name, rows in parts:
                loads.append(table.writer(name, iter([pa.RecordBatch.from_pylist(rows, fields)])))
        return SnapshotResult(tuple(loads), tuple(chunks))


class FinalTables(Tables):
    """Tables without concurrent writes: a query sees the end of the history."""

    def rows(self, table):
        self.seen = len(self.source.transactions)
        return self.source.state().get(table, {})

    def is_visible(self, position):
        return True


class _NoSteps:
    """Steps that never fail."""

    def step(self, name, work, **_):
        return work()


class UntilLoaded(Faulty):
    """A receiver whose source ends only after the tables are loaded again."""

    def __init__(self, inner, store):
        super().__init__(inner, None)
        self.store = store

    def status(self):
        status, snapshots = self.inner.status(), self.store.last_committed(JOB).snapshots.values()
        is_loaded = all(one.state is SnapshotState.CONSISTENT for one in snapshots)
        return replace(status, is_finished=status.is_finished and is_loaded)


def _job(folder: Path, own: Path, given: Given, make: Callable[[], Sink], one_commit: str | None, start: Start) -> None:
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    head = f"%(relativeCreated)d {own.name[-4:]} %(threadName)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=head, force=True)
    cdc.retry.FIRST_DELAY_S, cdc.pipeline.cycles.SHUTDOWN_S = 0.01, 0.3
    for module in (cdc.pipeline.dispatcher, cdc.pipeline.consumer):
        assert hasattr(module, "CANCEL_S")
        module.CANCEL_S = CANCEL_S
    script = Script(*start.faults)
    ended = Ended(())
    try:
        with served():
            _run(folder, own, given, make, one_commit, start, script)
    except CdcError as error:
        if action_for(error) is ErrorAction.RETRY:
            raise
        logging.info("ended by %r", error)
        ended = Ended((), type(error).__name__, f"{error} {error.hint}")
    (own / "ended.json").write_text(json.dumps({**asdict(ended), "struck": script.done}))


def _run(
    folder: Path,
    own: Path,
    given: Given,
    make: Callable[[], Sink],
    one_commit: str | None,
    start: Start,
    script: Script,
) -> None:
    harness = ScenarioHarness(folder, given, make, start)
    harness.compare()
    put_in(harness, script, one_commit)
    script.folder = own
    given.put_in(script)
    if any(fault.fault_point == "rollback" for fault in start.faults):
        wrap, left = harness.wrap_receiver, list(REWINDS)
        harness.wrap_receiver = lambda inner: Rewinding(wrap(inner), left)
    if any(fault.kind == "hang" for fault in start.faults):
        _hang(harness, script)
    errors = harness.until_finished()
    logging.info("finished after the errors %s", [str(error) for error in errors])
    harness.verify_state()
    harness.close()


def _hang(harness: Harness, script: Script) -> None:
    """Stop a hanging run as a person would, then let the hanging call fail."""
    run = harness.in_background()
    assert script.hanging.wait(TIMEOUT_S / 2), "the fault was never injected"
    harness.consumer.stop()
    time.sleep(_HANG_S)
    script.released.set()
    run.join(TIMEOUT_S / 2)
    assert not run.is_alive(), "the run did not end"
    assert run.error is None or action_for(run.error) is ErrorAction.RETRY, run.error
    harness.sequence = harness.consumer.sequence
