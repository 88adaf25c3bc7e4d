"""The commit cycle with the Doris sink and random faults of Doris: source equals target, each label is used once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

import cdc.pipeline.cycles
import cdc.retry
from cdc.errors import SinkBusy, TargetMismatch
from cdc.pipeline.flow_control import CommitLimits
from channels.sinks.base import TargetTable
from tests.emulators.doris.cases import emulator, sink_on
from tests.emulators.doris.emulator import DorisEmulator
from tests.emulators.faults import Fault
from tests.model.harness import JOB, SMALL, Harness
from tests.model.source import Source, schema_of

FAULTS = {
    "load": [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.ERROR_DONE],
    "commit": [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.ERROR_DONE, Fault.ERROR],
    "abort": [Fault.DROP_ANSWER, Fault.HTTP_500],
    "state": [Fault.DROP_ANSWER, Fault.HTTP_500],
}


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.pipeline.cycles, "SHUTDOWN_S", 0.3)


class DorisHarness(Harness):
    """A job into an emulator. Every run has a separate sink, as a process has."""

    def __init__(self, folder: Path, source: Source, doris: DorisEmulator, *, two_phase: bool, **options: Any):
        super().__init__(folder, source, **options)
        self.sink.close()
        self.doris = doris
        self.sink = sink_on(doris, two_phase_commit=two_phase, tries=3)
        for table in ("orders", "items"):
            self.sink.ensure_table(self.target(table))

    def target(self, table: str) -> TargetTable:
        return self.routes.mapping_for("shop", table).target_table(schema_of(f"shop.{table}"))

    def verify(self) -> None:
        expected = self.source.state()
        for table in ("orders", "items"):
            assert dict(self.doris.execute(f"SELECT id, op FROM ods.{table}")[1]) == expected.get(f"shop.{table}", {})
        visible = [load["label"] for load in self.doris.loads() if load["status"] == "VISIBLE"]
        assert len(visible) == len(set(visible)), "a label was committed twice"
        assert all(each.status.final for each in self.doris.transactions.listed("ods")), (
            "a transaction is still prepared"
        )
        assert self.store.unfinished() == ()
        committed, mark = self.store.last_committed(JOB), self.sink.last_checkpoint(JOB)
        assert mark is not None
        assert (mark.incarnation, mark.checkpoint <= committed.id) == (self.run.incarnation, True)


@pytest.mark.parametrize("two_phase", [True, False], ids=["two_phase", "plain"])
@pytest.mark.parametrize("seed", [1, 2])
def test_doris_job_with_random_faults_equals_source(tmp_path: Path, two_phase: bool, seed: int) -> None:
    source = Source.random(seed, transactions=40)
    with emulator(backends=2) as doris:
        harness = DorisHarness(tmp_path, source, doris, two_phase=two_phase)
        doris.faults = type(doris.faults)(seed)
        for place, faults in FAULTS.items():
            for fault in faults:
                doris.faults.order(place, fault, times=10**6, chance=0.05)
        harness.until_finished(runs=60)
        assert len(doris.faults.struck) > 5
        harness.verify()
        harness.close()


@pytest.mark.parametrize("loss", ["expire", "forget"])
def test_doris_job_replays_lost_loads(tmp_path: Path, loss: str) -> None:
    source = Source.random(3, transactions=30)
    with emulator() as doris:
        harness = DorisHarness(tmp_path, source, doris, two_phase=True)
        commit, lost = harness.sink.commit, []

        def lose_then_commit(loads, checkpoint):  # type: ignore[no-untyped-def]
            if checkpoint.checkpoint in (3, 6) and checkpoint.checkpoint not in lost:
                lost.append(checkpoint.checkpoint)
                getattr(doris.transactions, loss)(loads[0].detail["label"])
            return commit(loads, checkpoint)

        harness.sink.commit = lose_then_commit
        harness.until_finished()
        assert lost == [3, 6]
        harness.verify()
        harness.close()


def test_doris_replay_that_is_repeated_loads_all_rows(tmp_path: Path) -> None:
    """The second replay divides the rows into larger Tasks, so it must not use the labels of the first one."""
    source = Source.random(3, transactions=60, keys=30)
    limits = CommitLimits(interval_s=60.0, min_rows=10**6, min_bytes=1 << 30, max_bytes=4000, task_bytes=200)
    with emulator() as doris:
        harness = DorisHarness(tmp_path, source, doris, two_phase=True, limits=limits)
        sink, commit, part_writer = harness.sink, harness.sink.commit, harness.sink.part_writer
        lost, failed, again = [], [], []  # type: ignore[var-annotated]

        def lose_then_commit(loads, checkpoint):  # type: ignore[no-untyped-def]
            if not lost:
                lost.append(checkpoint.checkpoint)
                for load in loads:
                    doris.transactions.expire(load.detail["label"])
            return commit(loads, checkpoint)

        def fail_once(target):  # type: ignore[no-untyped-def]
            write = part_writer(target)

            def write_part(name, rows):  # type: ignore[no-untyped-def]
                if name.attempt and name.task and not failed:
                    failed.append(name)
                    raise SinkBusy("Too many versions.", hint="The job retries.", after_s=0.0)
                if name.attempt:
                    again.append(name)
                return write(name, rows)

            return write_part

        sink.commit, sink.part_writer = lose_then_commit, fail_once
        errors = harness.until_finished()
        assert lost and failed and any(isinstance(error, SinkBusy) for error in errors)
        assert {name.attempt for name in again} == {1, 2} and len(again) == len(set(again))
        harness.verify()
        harness.close()


def test_doris_changes_after_a_replay_replace_its_rows(tmp_path: Path) -> None:
    """The replayed rows have new sequences. Doris ignores later changes of their keys unless they have higher ones."""
    source = Source.random(3, transactions=60, keys=30)
    with emulator() as doris:
        harness = DorisHarness(tmp_path, source, doris, two_phase=True)
        commit, commits = harness.sink.commit, []  # type: ignore[var-annotated]

        def commit_third(loads, checkpoint):  # type: ignore[no-untyped-def]
            if checkpoint.checkpoint != 3:
                return commit(loads, checkpoint)
            commits.append(loads)
            if len(commits) == 1:  # the run ends, and the next one recovers
                raise RuntimeError("a fault of the program")
            if len(commits) == 2:
                for load in loads:
                    doris.transactions.expire(load.detail["label"])
            if len(commits) == 3:
                harness.consumer.stop()  # before this run starts a Task
            return commit(loads, checkpoint)

        harness.sink.commit = commit_third
        while not (committed := harness.store.last_committed(JOB)) or committed.id < 3:
            with suppress(RuntimeError):
                harness.once()
        assert len(commits) == 3 and committed.replays == 1
        harness.until_finished()
        harness.verify()
        harness.close()


@pytest.mark.parametrize("is_prepared", [False, True], ids=["before_loads", "before_commit"])
def test_doris_renamed_column_gets_its_values_after_rename_back(tmp_path: Path, is_prepared: bool) -> None:
    """Doris accepts loads that name a missing column. Its rows would keep NULL in that column forever."""
    source = Source.random(5, transactions=30)
    with emulator() as doris:
        harness = DorisHarness(tmp_path, source, doris, two_phase=True)
        table, hooked = doris.storage.tables["ods", "orders"], harness.sink
        table.columns = tuple(replace(column, nullable=column.name != "id") for column in table.columns)
        commit, part_writer, renamed, once = hooked.commit, hooked.part_writer, [], Lock()

        def rename() -> None:
            with once:  # Tasks write in parallel
                if not renamed:
                    doris.storage.rename_column(table, "op", "op_before")
                    renamed.append(1)

        def commit_after(loads, checkpoint):  # type: ignore[no-untyped-def]
            if is_prepared and checkpoint.checkpoint >= 3 and any(load.table == "ods.orders" for load in loads):
                rename()
            return commit(loads, checkpoint)

        def write_after(target):  # type: ignore[no-untyped-def]
            if not is_prepared and (done := harness.store.last_committed(JOB)) and done.id >= 2:
                rename()
            return part_writer(target)

        hooked.commit, hooked.part_writer = commit_after, write_after
        for _ in range(3):
            with pytest.raises(TargetMismatch, match="column op is missing"):
                harness.once()
        doris.storage.rename_column(table, "op_before", "op")
        harness.until_finished()
        assert renamed
        harness.verify()
        harness.close()


def test_doris_transaction_limit_makes_fewer_loads(tmp_path: Path) -> None:
    source = Source()
    source.write(*[("shop.orders", key) for key in range(3000)])  # 750 pieces of the size of a Task
    with emulator(backends=2, max_running_txn_num_per_db=40) as doris:
        limits = replace(SMALL, task_bytes=80)
        harness = DorisHarness(tmp_path, source, doris, two_phase=True, limits=limits)
        errors = harness.until_finished()
        assert errors and {type(error) for error in errors} == {SinkBusy}
        assert len([load for load in doris.loads() if load["status"] == "VISIBLE"]) <= 41  # and the record of the sink
        harness.verify()
        harness.close()
