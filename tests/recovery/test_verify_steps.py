"""Verification steps in the commit cycle: no false alarm, and after any crash each fault is found and repaired once."""

from __future__ import annotations

import random

import pytest

import cdc.pipeline.cycles
import cdc.retry
import cdc.verify.session
from cdc.errors import SchemaMismatch, SinkUnavailable
from cdc.model.verify import VerifyState
from cdc.pipeline.flow_control import CommitLimits
from cdc.state.base import CheckpointState
from tests.model.faults import Fault
from tests.model.process import killed, run_in_process
from tests.model.source import Source
from tests.model.verify import VerifyHarness

LIMITS = CommitLimits(interval_s=0.005, min_rows=1, min_bytes=1, max_bytes=60, max_rows=6, task_bytes=1)
KILLS = [
    (point, kind)
    for point in ("save OPEN", "prepare", "save PREPARED", "commit", "save COMMITTED")
    for kind in ("kill", "kill_after")
]


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.pipeline.cycles, "SHUTDOWN_S", 0.3)


def source_of(seed, transactions, rows=range(100, 112), keys=4):
    """Return a source that changes few keys all the time, and that has ``rows`` which never change."""
    source = Source()
    source.write(*[("shop.orders", key) for key in rows])
    source.write_random(random.Random(seed), transactions, keys=keys)
    return source


def damage(harness):
    """Make one fault of each kind."""
    rows = harness.sink._connection
    rows.execute("DELETE FROM rows WHERE target = 'ods.orders' AND id = 100")
    rows.execute("UPDATE rows SET op = op + 1 WHERE target = 'ods.orders' AND id = 101")
    rows.execute("INSERT INTO rows VALUES ('ods.orders', 1000, 1)")


def loaded(tmp_path, source):
    """Load the first rows, damage them, and request a verification with repair."""
    first = Source(transactions=source.transactions[:1], operations=12)
    harness = VerifyHarness(tmp_path, first, limits=LIMITS)
    harness.until_finished()
    damage(harness)
    harness.request(repair=True)
    harness.close()


def assert_repaired_once(harness):
    found = harness.result
    assert (found.differs, sum(one.repaired for one in found.tables.values())) == (3, 3), found
    orders = found.tables["shop.orders"]
    assert (orders.missing, orders.extra, orders.different) == (1, 1, 1)
    assert sorted(one.key["id"] for one in found.differences) == ["100", "1000", "101"]
    assert harness.sink.rows() == {f"ods.{name.split('.')[1]}": rows for name, rows in harness.source.state().items()}
    shown = [key for _, key, _, _ in harness.sink.shown()]
    assert [shown.count(key) for key in (100, 101, 102, 1000)] == [2, 2, 1, 1], "a row was repaired twice"
    assert harness.store.unfinished() == () and harness.sink.prepared() == []


@pytest.mark.parametrize("number", range(12))
def test_verification_of_hot_keys_reports_no_row_in_flight(tmp_path, number):
    seed = number
    harness = VerifyHarness(tmp_path, source_of(seed, 150), limits=LIMITS, seed=seed, per_batch=1)
    for _ in range(2):
        harness.request()
        harness.until_finished()
        found = harness.result
        assert found.differs == 0 and found.error is None and found.differences == (), found
        assert {one.state for one in found.tables.values()} == {VerifyState.DONE}
    harness.verify()
    harness.close()


@pytest.mark.parametrize("number", range(6))
def test_repair_of_faults_is_committed_once(tmp_path, number):
    source = source_of(number, 60)
    loaded(tmp_path, source)
    harness = VerifyHarness(tmp_path, source, limits=LIMITS, seed=number, per_batch=1)
    harness.until_finished()
    assert_repaired_once(harness)
    harness.close()


@pytest.mark.parametrize("number", range(4))
def test_difference_after_rows_in_flight_is_shown(tmp_path, number, monkeypatch):
    """Rows in flight are before it, and only the first one is shown."""
    source = source_of(number, 150, rows=(5,), keys=5)
    first = Source(transactions=source.transactions[:1], operations=1)
    harness = VerifyHarness(tmp_path, first, limits=LIMITS)
    harness.until_finished()
    harness.sink._connection.execute("UPDATE rows SET op = op + 1 WHERE target = 'ods.orders' AND id = 5")
    harness.request()
    harness.close()
    harness = VerifyHarness(tmp_path, source, limits=LIMITS, seed=number, per_batch=1)
    monkeypatch.setattr("cdc.verify.result.MOST_DIFFERENCES", 1)
    harness.until_finished()
    assert harness.result.differs == 1
    assert [one.key["id"] for one in harness.result.differences] == ["5"]
    harness.close()


@pytest.mark.parametrize(("point", "kind"), KILLS)
def test_verification_killed_at_any_step_repairs_once(tmp_path, point, kind):
    source = source_of(7, 40)
    loaded(tmp_path, source)
    kills = 0
    for number in (1, 3, 6, 10):
        faults = (Fault(point, kind, number),)
        kills += killed(
            run_in_process(tmp_path, source, faults, harness=VerifyHarness, limits=LIMITS, seed=number, per_batch=1)
        )
    assert kills >= 2
    harness = VerifyHarness(tmp_path, source, limits=LIMITS, seed=99, per_batch=1)
    harness.until_finished()
    assert_repaired_once(harness)
    harness.close()


def test_repair_of_a_table_that_was_changed_meanwhile_is_not_committed(tmp_path, monkeypatch):
    """As after RENAME COLUMN a TO b, b TO a: the rows that were read have their values in other columns."""
    source = source_of(3, 20)
    loaded(tmp_path, source)
    harness = VerifyHarness(tmp_path, source, limits=LIMITS, per_batch=1)
    refused = []

    def refuse_changed(_, planned):
        opened = any(one.state is CheckpointState.OPEN for one in harness.store.unfinished())
        if opened and not refused:  # the first repair
            refused.append({key for _, key, _, _ in harness.sink.shown()})
            raise SchemaMismatch("The table was changed while it was compared.", hint="")

    monkeypatch.setattr("cdc.verify.session.refuse_changed", refuse_changed)
    harness.until_finished()
    assert refused and 1000 not in refused[0], "the rows of the first repair are not visible"
    assert_repaired_once(harness)
    harness.close()


def test_repair_from_a_server_that_was_replaced_meanwhile_is_not_committed(tmp_path, monkeypatch):
    """After a failover, the new server can lack transactions that the target has: their rows would be deleted."""
    source = source_of(3, 20)
    loaded(tmp_path, source)
    harness = VerifyHarness(tmp_path, source, limits=LIMITS, per_batch=1)
    connect, commit, replaced, committed = cdc.verify.session.Server, harness.sink.commit, set(), set()

    def connected(endpoint):
        server = connect(endpoint)
        opened = {one.id for one in harness.store.unfinished() if one.state is CheckpointState.OPEN}
        replaced.update(opened if not replaced else ())
        server.__enter__.return_value.identity = "two" if opened & replaced else "one"
        return server

    def committing(loads, checkpoint):
        committed.add(checkpoint.checkpoint)
        commit(loads, checkpoint)

    monkeypatch.setattr("cdc.verify.session.Server", connected)
    monkeypatch.setattr(harness.sink, "commit", committing)
    harness.until_finished()
    assert replaced and not replaced & committed
    assert_repaired_once(harness)
    harness.close()


def test_repair_whose_loads_are_lost_is_repeated(tmp_path, monkeypatch):
    source = source_of(3, 20)
    loaded(tmp_path, source)
    harness = VerifyHarness(tmp_path, source, limits=LIMITS, per_batch=1)
    commit, lost = harness.sink.commit, []

    def losing(loads, checkpoint):
        if checkpoint.first == checkpoint.position and not lost:
            lost.extend(loads)
            for load in loads:
                harness.sink.lose(load)
        commit(loads, checkpoint)

    monkeypatch.setattr(harness.sink, "commit", losing)
    harness.until_finished()
    assert lost
    assert_repaired_once(harness)
    harness.close()


def test_verification_with_failing_steps_ends_with_the_error(tmp_path, monkeypatch):
    monkeypatch.setattr("cdc.pipeline.verify_steps.Backoff", lambda *_: cdc.retry.Backoff(0.001, 0.002))
    source = source_of(4, 20)
    harness = VerifyHarness(tmp_path, source, limits=LIMITS)
    harness.request()

    def refuse(request):
        raise SinkUnavailable("The sink does not answer.", hint="Check it.")

    monkeypatch.setattr(harness.runner, "submit_reading", refuse)
    harness.until_finished()
    assert harness.result.error is not None and "does not answer" in harness.result.error
    assert not harness.result.is_equal
    harness.verify()
    harness.close()
