"""Consumer, checkpoint store and recovery as a state machine: crashes, errors and losses at any step, in any order.

``make stress-long`` runs millions of steps. Each round prints its seed; CDC_TEST_SEED=n starts with that one.
"""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cdc.errors import (
    CdcError,
    DdlStop,
    ErrorAction,
    LeaseLost,
    LoadRejected,
    SinkOwnershipError,
    TargetLost,
    TargetMismatch,
    action_for,
)
from cdc.pipeline.consumer import Ended
from tests.model import columns
from tests.model.model import KINDS, TABLES, Crash, Statement, World, model_environment
from tests.support.seeds import VARIABLE, seed_of

ROWS = st.lists(st.tuples(st.sampled_from(TABLES), st.integers(0, 5), st.booleans()), max_size=7)
CLAUSES = st.lists(st.sampled_from(columns.KINDS), min_size=1, max_size=3)
SCHEDULES = st.dictionaries(st.integers(1, 120), st.sampled_from(KINDS), max_size=6)

SEED = seed_of()

steps_made = 0


class Flow(RuleBasedStateMachine):
    """A source that is written to, a sink, a state file, and processes that start and end."""

    @initialize(world=st.integers(0, 1 << 32))
    def begin(self, world):
        self.world = World(world)

    @rule(transactions=st.lists(ROWS, min_size=1, max_size=8))
    def write(self, transactions):
        for rows in transactions:
            self.world.source.write(*rows)

    @rule(table=st.sampled_from(TABLES), key=st.integers(0, 5), deleted=st.booleans())
    def write_without_log(self, table, key, deleted):
        if self.world.sink.is_hidden and not (deleted and not self.world.sink.lists_keys):
            self.world.write_unlogged(table, key, deleted)

    @rule(transactions=st.lists(ROWS, min_size=1, max_size=8))
    def write_during_the_next_run(self, transactions):
        self.world.pending += transactions

    @rule(table=st.sampled_from(TABLES), kinds=CLAUSES)
    def change_columns(self, table, kinds):
        self.world.alter(table, kinds)

    @rule(table=st.sampled_from(TABLES), kinds=CLAUSES)
    def change_columns_during_the_next_run(self, table, kinds):
        self.world.pending.append(Statement(table, kinds))

    @rule(schedule=SCHEDULES)
    def run_with_faults(self, schedule):
        self.check_outcome(self.world.run(schedule))

    @rule(at=st.integers(5, 60), faults=st.lists(st.integers(1, 25), min_size=1, max_size=3))
    def run_with_replays_that_fail(self, at, faults):
        """The sink loses loads several times, and each replay may end in the middle."""
        schedule = {at + 20 * number: "lose" for number in range(4)}
        self.check_outcome(self.world.run({**{at + later: "reject" for later in faults}, **schedule}))

    @rule(schedule=SCHEDULES, at=st.integers(0, 30), inside=st.booleans())
    def run_until_ddl(self, schedule, at, inside):
        source = self.world.source
        stop = DdlStop("DDL.", hint="Resume.")
        if inside and at < len(source.transactions) and len(source.transactions[at]) > 2:  # more than one piece
            source.stops_inside = {at: stop}
        else:
            source.stops = {at: stop}
        self.check_outcome(self.world.run(schedule), DdlStop)
        source.stops, source.stops_inside = {}, {}

    @rule(schedule=SCHEDULES, step=st.integers(20, 200))
    def run_until_stopped(self, schedule, step):
        self.check_outcome(self.world.run({**schedule, step: "stop"}, endless=True))

    @rule(first=SCHEDULES, second=SCHEDULES, at=st.integers(1, 120))
    def run_two_with_takeover(self, first, second, at):
        older, newer = self.world.run_two(first, second, at)
        self.check_outcome(older, LeaseLost, SinkOwnershipError, LoadRejected)
        if newer is not None:
            self.check_outcome(newer, *[SinkOwnershipError] * self.world.sink.is_claimed_by_file)

    @precondition(lambda self: self.world.sink.mark is not None and self.world.knows_columns)
    @rule(first=SCHEDULES, second=SCHEDULES, at=st.integers(1, 120))
    def run_two_with_adoption(self, first, second, at):
        before = self.world.store
        older, newer = self.world.run_two(first, second, at, adopting=True)
        self.check_outcome(older, SinkOwnershipError)
        if newer is not None:
            self.check_outcome(newer, SinkOwnershipError)
        # both may have committed before one of them owned the sink, whose newest checkpoint can be that of the other one
        if self.world.store is before and self.world.sink.mark.incarnation != before.record.incarnation:
            assert isinstance(self.world.run(), SinkOwnershipError)
            self.world.lose_state()
        if self.world.store is not before:
            assert (outcome := self.world.run(adopting=True)) is Ended.FINISHED, outcome

    @rule()
    def dead_executors_write(self):
        self.world.write_late()

    @rule()
    def sink_loses_loads(self):
        self.world.sink.lose(self.world.draw)

    @precondition(lambda self: self.world.sink.mark is not None and self.world.knows_columns)
    @rule()
    def lose_and_adopt_state(self):
        self.world.lose_state()
        outcome = self.world.run(adopting=True)
        assert outcome is Ended.FINISHED, outcome

    @rule(table=st.sampled_from(TABLES))
    def copy_target_table(self, table):
        self.world.copy_target(table)

    @precondition(lambda self: self.world.loses_targets)
    @rule(table=st.sampled_from(TABLES), kind=st.sampled_from(["removed", "replaced", "older"]), schedule=SCHEDULES)
    def lose_and_reload_target(self, table, kind, schedule):
        columns = self.world.sink.columns.get(f"ods.{table.split('.')[1]}")
        is_known = self.world.lose_target(table, kind)
        outcome = self.world.run()
        if kind == "older" and isinstance(outcome, TargetMismatch):
            assert not is_known, "a copy from before a change was not noticed"
            self.world.remove_older(table, columns)
            outcome = self.world.run()
        if isinstance(outcome, TargetLost):
            assert f"ods.{table.split('.')[1]}" in str(outcome)
            assert isinstance(self.world.run(), TargetLost), "a rejected run created the missing target"
            if kind == "older":
                self.world.remove_older(table, columns)
            self.check_outcome(self.world.run(schedule, reloading=True), TargetLost)
            self.finish(reloading=True)
        else:
            assert not is_known, f"the loss of {table} ({kind}) was not reported"
            self.check_outcome(outcome)

    @invariant()
    def visible_rows_equal_commits(self):
        self.world.check()

    def check_outcome(self, outcome, *expected):
        if not isinstance(outcome, (Ended, Crash, *expected)):
            passes = isinstance(outcome, CdcError) and action_for(outcome) not in (ErrorAction.PAUSE, ErrorAction.EXIT)
            assert passes, repr(outcome)

    def teardown(self):
        global steps_made
        if not hasattr(self, "world"):
            return
        self.world.write_rest()
        self.finish()
        if self.world.unlogged_tables:  # loaded again after the stream has passed them
            self.finish(self.world.unlogged_tables)
        self.world.check_whole()
        steps_made += self.world.steps

    def finish(self, wanted=(), reloading=False):
        for _ in range(3):
            outcome = self.world.run(wanted=wanted, reloading=reloading)
            if outcome is Ended.FINISHED:
                return
        raise AssertionError(outcome)


def machine(examples, steps, number):
    print(f"{VARIABLE}={number}")
    checks = list(HealthCheck)
    bounds = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks, database=None
    )
    with model_environment():
        run_state_machine_as_test(seed(number)(Flow), settings=bounds)


def test_state_machine_thousands_of_steps_lose_nothing():
    machine(130, 25, SEED)
    print(f"{steps_made} steps")
    assert steps_made > 10_000


@pytest.mark.stress
@pytest.mark.timeout(7200)
def test_state_machine_millions_of_steps_lose_nothing():
    for number in count(SEED):
        machine(1000, 40, number)
        print(f"{steps_made} steps")
        if steps_made >= 3_000_000:
            break
