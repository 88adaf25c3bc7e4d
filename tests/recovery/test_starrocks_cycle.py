"""The commit cycle with the StarRocks sink in both modes: faults of StarRocks, repeated kills, lost loads."""

from __future__ import annotations

import multiprocessing
import random
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cdc.pipeline.cycles
import cdc.retry
from cdc.pipeline.flow_control import CommitLimits
from channels.sinks.base import TargetTable
from channels.sinks.starrocks.sink import StarrocksSink
from channels.sinks.stream_load.http import ClusterAddress
from tests.emulators.cases import USER
from tests.emulators.faults import Fault
from tests.emulators.starrocks.cases import MODES, emulator, sink_on
from tests.emulators.starrocks.emulator import StarrocksEmulator
from tests.model.faults import CONTRACT_FAULT_POINTS, Script, put_in
from tests.model.faults import Fault as FaultAtPoint
from tests.model.harness import JOB, Harness
from tests.model.process import killed
from tests.model.source import Source, schema_of
from tests.support.seeds import seed_of

FAULTS = {
    "begin": [Fault.DROP_ANSWER, Fault.HTTP_500],
    "load": [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.ERROR_DONE],
    "prepare": [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.ERROR_DONE, Fault.ERROR],
    "commit": [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.ERROR_DONE, Fault.ERROR, Fault.PUBLISH_TIMEOUT],
    "rollback": [Fault.DROP_ANSWER, Fault.HTTP_500],
    "state": [Fault.DROP_ANSWER, Fault.HTTP_500],
}
TASKS_AT_ONCE = CommitLimits(interval_s=0.02, min_rows=1, min_bytes=1, max_bytes=60, max_rows=6, task_bytes=1)

both_modes = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.pipeline.cycles, "SHUTDOWN_S", 0.3)


class StarrocksHarness(Harness):
    """A job into an emulator, in this or another process."""

    def __init__(self, folder: Path, source: Source, sink: StarrocksSink, **options: Any):
        super().__init__(folder, source, **options)
        self.sink.close()
        self.sink = sink
        for table in ("orders", "items"):
            self.sink.ensure_table(self.target(table))

    def target(self, table: str) -> TargetTable:
        return self.routes.mapping_for("shop", table).target_table(schema_of(f"shop.{table}"))

    def verify_on(self, starrocks: StarrocksEmulator) -> None:
        expected = self.source.state()
        for table in ("orders", "items"):
            rows = dict(starrocks.execute(f"SELECT id, op FROM ods.{table}")[1])
            assert rows == expected.get(f"shop.{table}", {})
        visible = [load["label"] for load in starrocks.loads() if load["status"] == "VISIBLE"]
        assert len(visible) == len(set(visible)), "a label was committed twice"
        assert self.store.unfinished() == ()
        committed, mark = self.store.last_committed(JOB), self.sink.last_checkpoint(JOB)
        assert mark is not None
        assert (mark.incarnation, mark.checkpoint <= committed.id) == (self.run.incarnation, True)


def harness_on(folder: Path, source: Source, starrocks: StarrocksEmulator, mode: str, **options: Any) -> Any:
    return StarrocksHarness(folder, source, sink_on(starrocks, mode, tries=3), **options)


@both_modes
@pytest.mark.parametrize("seed", [1, 2])
def test_starrocks_job_with_random_faults_equals_source(tmp_path: Path, mode: str, seed: int) -> None:
    source = Source.random(seed, transactions=40)
    with emulator() as starrocks:
        harness = harness_on(tmp_path, source, starrocks, mode)
        starrocks.faults = type(starrocks.faults)(seed)
        for place, faults in FAULTS.items():
            for fault in faults:
                starrocks.faults.order(place, fault, times=10**6, chance=0.02)
        harness.until_finished(runs=100)
        assert len(starrocks.faults.struck) > 5
        harness.verify_on(starrocks)
        harness.close()


@both_modes
@pytest.mark.parametrize("loss", ["expire", "forget", "restart"])
def test_starrocks_job_replays_lost_loads(tmp_path: Path, mode: str, loss: str) -> None:
    source = Source.random(3, transactions=30)
    with emulator() as starrocks:
        harness = harness_on(tmp_path, source, starrocks, mode)
        commit, seen, lost = harness.sink.commit, set(), []

        def lose_then_commit(loads: Any, checkpoint: Any) -> None:
            seen.add(checkpoint.checkpoint)
            if len(seen) in (2, 4) and len(seen) not in lost:
                lost.append(len(seen))
                if loss == "restart":
                    starrocks.restart_frontend()
                    starrocks.restart_backend(0)
                    starrocks.restart_backend(1)
                else:
                    getattr(starrocks.transactions, loss)(loads[0].detail["label"])
            commit(loads, checkpoint)

        harness.sink.commit = lose_then_commit
        harness.until_finished()
        assert lost == [2, 4]
        harness.verify_on(starrocks)
        harness.close()


def test_starrocks_wrong_replies_of_old_versions_are_verified(tmp_path: Path) -> None:
    """Versions that reply OK to a failed commit and do not know a transaction before its commit."""
    source = Source.random(5, transactions=30)
    with emulator(false_ok=True, unknown_before_commit=True, version=(4, 0, 7)) as starrocks:
        harness = harness_on(tmp_path, source, starrocks, "multi")
        commit, broken = harness.sink.commit, []

        def break_then_commit(loads: Any, checkpoint: Any) -> None:
            if checkpoint.checkpoint >= 3 and not broken:
                broken.append(4)
                starrocks.restart_backend(0)
                starrocks.restart_backend(1)
            commit(loads, checkpoint)

        harness.sink.commit = break_then_commit
        harness.until_finished()
        assert broken
        harness.verify_on(starrocks)
        harness.close()


# kills: the job runs in a separate process, and the StarRocks emulator survives in this one

_CONTEXT = multiprocessing.get_context("forkserver")


def _run(folder: Path, source: Source, fe: list[str], sql_port: int, mode: str, faults: Any) -> None:
    cdc.retry.FIRST_DELAY_S = 0.01
    address = ClusterAddress(tuple(fe), *USER, sql_port=sql_port)
    sink = StarrocksSink(address, databases=["ods"], multi_table=MODES[mode], tries=3, pause_s=0.01)
    harness = StarrocksHarness(folder, source, sink, limits=TASKS_AT_ONCE, piece_rows=3)
    put_in(harness, Script(*faults))
    harness.until_finished(runs=1000)  # a run ends at each fault of StarRocks, and kills leave long backlogs
    harness.close()


def run_in_process(
    folder: Path, source: Source, starrocks: StarrocksEmulator, mode: str, *faults: FaultAtPoint, timeout_s: float = 240
) -> int:
    _CONTEXT.set_forkserver_preload(["tests.model.harness", "tests.model.faults", "channels.sinks.starrocks.sink"])
    given = (folder, source, starrocks.fe, starrocks.sql_port, mode, faults)
    process = _CONTEXT.Process(target=_run, args=given)
    process.start()
    process.join(timeout_s)
    if process.is_alive():
        process.kill()
        raise AssertionError("the run did not end")
    return process.exitcode or 0


@both_modes
@pytest.mark.parametrize("number", [1, 4])
def test_starrocks_sigkill_with_prepared_and_open_recovers(tmp_path: Path, mode: str, number: int) -> None:
    source = Source.random(number, transactions=40)
    with emulator() as starrocks:
        fault = FaultAtPoint("commit", "kill_with_next_open", number)
        assert run_in_process(tmp_path, source, starrocks, mode, fault) == -signal.SIGKILL
        assert run_in_process(tmp_path, source, starrocks, mode) == 0
        harness = harness_on(tmp_path, source, starrocks, mode)
        harness.verify_on(starrocks)
        harness.close()


def many_kills(folder: Path, mode: str, *, kills: int, seed: int) -> int:
    """Send SIGKILL at random fault points, with faults of StarRocks and a growing source. Return their number."""
    draw, source, done = random.Random(seed), Source(), 0
    with emulator() as starrocks:
        starrocks.faults = type(starrocks.faults)(seed)
        for place, faults in FAULTS.items():
            for fault in faults:
                starrocks.faults.order(place, fault, times=10**6, chance=0.01)
        for _ in range(10 * kills):
            source.write_random(draw, 30)
            point = draw.choice([point for point in CONTRACT_FAULT_POINTS if point != "rollback"])
            fault = FaultAtPoint(point, draw.choice(["kill", "kill_after"]), draw.randrange(1, 9))
            # an overloaded sink makes few cycles, so a run may finish before its fault
            done += killed(run_in_process(folder, source, starrocks, mode, fault))
            if done == kills:
                break
        starrocks.faults.clear()
        # finish all checkpoints that the kills have left
        assert run_in_process(folder, source, starrocks, mode, timeout_s=900) == 0
        harness = harness_on(folder, source, starrocks, mode)
        harness.verify_on(starrocks)
        harness.close()
    return done


@both_modes
def test_starrocks_repeated_kills_with_faults_equal_source(tmp_path: Path, mode: str) -> None:
    assert many_kills(tmp_path, mode, kills=5, seed=seed_of()) == 5


@pytest.mark.stress  # takes minutes: make stress-long
@pytest.mark.timeout(3600)
@both_modes
def test_starrocks_hundred_kills_with_faults_equal_source(tmp_path: Path, mode: str) -> None:
    assert many_kills(tmp_path, mode, kills=100, seed=seed_of()) == 100


# visibility of whole transactions


@both_modes
def test_starrocks_multi_mode_shows_only_whole_transactions(tmp_path: Path, mode: str) -> None:
    """Each transaction changes the same number of rows in both tables."""
    source = Source()
    for number in range(60):
        rows = [("shop.orders", number), ("shop.items", number)]
        old = (
            [("shop.items", number - 9, True), ("shop.orders", number - 9, True)]
            if number % 3 == 0 < number - 9
            else []
        )
        source.write(*rows, *old)
    with (
        emulator() as starrocks,
        closing(harness_on(tmp_path, source, starrocks, mode, limits=TASKS_AT_ONCE)) as harness,
    ):
        starrocks.faults.order("load", Fault.SLOW, times=10**6, chance=0.3, seconds=0.02)
        starrocks.faults.order("commit", Fault.SLOW, times=10**6, chance=0.5, seconds=0.03)
        seen, ended = set(), threading.Event()

        def watch() -> None:
            sql = "SELECT (SELECT count(*) FROM ods.orders), (SELECT count(*) FROM ods.items)"
            while not ended.is_set():
                seen.add(tuple(starrocks.execute(sql)[1][0]))
                time.sleep(0.002)

        reader = threading.Thread(target=watch)
        reader.start()
        try:
            harness.until_finished()
        finally:
            ended.set()
            reader.join()
        assert len(seen) > 5, "fewer than six states were seen"
        assert all(orders == items for orders, items in seen) is (mode == "multi"), seen
        harness.verify_on(starrocks)
