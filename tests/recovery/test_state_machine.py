"""Consumer, checkpoint store and recovery as a state machine: crashes, refusals and losses at any step, in any order.

``make stress-long`` makes millions of steps of it. Each round prints its seed; CDC_TEST_SEED=n begins with that one.
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

from cdc.consumer import Ended
from cdc.errors import Answer, CdcError, LeaseLost, LoadRejected, SchemaChanged, SinkForeign, decide
from tests.flow.model import KINDS, TABLES, Crash, World, surroundings
from tests.seeds import VARIABLE, seed_of

ROWS = st.lists(st.tuples(st.sampled_from(TABLES), st.integers(0, 5), st.booleans()), max_size=7)
SCHEDULES = st.dictionaries(st.integers(1, 120), st.sampled_from(KINDS), max_size=6)

SEED = seed_of()

steps_made = 0


class Flow(RuleBasedStateMachine):
    """A source that is written to, a sink, a state file, and processes that come and go."""

    @initialize(world=st.integers(0, 1 << 32))
    def begin(self, world):
        self.world = World(world)

    @rule(transactions=st.lists(ROWS, min_size=1, max_size=8))
    def write(self, transactions):
        for rows in transactions:
            self.world.source.write(*rows)

    @rule(table=st.sampled_from(TABLES), key=st.integers(0, 5), deleted=st.booleans())
    def write_what_the_stream_does_not_tell(self, table, key, deleted):
        if self.world.sink.is_hidden and not (deleted and not self.world.sink.tells_keys):
            self.world.write_unlogged(table, key, deleted)

    @rule(transactions=st.lists(ROWS, min_size=1, max_size=8))
    def write_during_the_next_run(self, transactions):
        self.world.coming += transactions

    @rule(schedule=SCHEDULES)
    def run_with_faults(self, schedule):
        self.went(self.world.run(schedule))

    @rule(schedule=SCHEDULES, at=st.integers(0, 30), inside=st.booleans())
    def run_into_a_statement(self, schedule, at, inside):
        source = self.world.source
        stop = SchemaChanged("DDL.", mend="Resume.")
        if inside and at < len(source.transactions) and len(source.transactions[at]) > 2:  # more than a piece
            source.stops_inside = {at: stop}
        else:
            source.stops = {at: stop}
        self.went(self.world.run(schedule), SchemaChanged)
        source.stops, source.stops_inside = {}, {}

    @rule(schedule=SCHEDULES, step=st.integers(20, 200))
    def run_until_it_is_told_to_stop(self, schedule, step):
        self.went(self.world.run({**schedule, step: "stop"}, endless=True))

    @rule(first=SCHEDULES, second=SCHEDULES, at=st.integers(1, 120))
    def run_beside_another_that_takes_over(self, first, second, at):
        older, newer = self.world.run_two(first, second, at)
        self.went(older, LeaseLost, SinkForeign, LoadRejected)
        if newer is not None:
            self.went(newer, *[SinkForeign] * self.world.sink.is_claimed_by_file)

    @precondition(lambda self: self.world.sink.mark is not None)
    @rule(first=SCHEDULES, second=SCHEDULES, at=st.integers(1, 120))
    def run_beside_another_that_adopts_the_sink(self, first, second, at):
        before = self.world.store
        older, newer = self.world.run_two(first, second, at, adopting=True)
        self.went(older, SinkForeign)
        if newer is not None:
            self.went(newer, SinkForeign)
        if self.world.store is not before:  # both may have committed before one of them had the sink
            assert (outcome := self.world.run(adopting=True)) is Ended.FINISHED, outcome

    @rule()
    def executors_of_dead_runs_write(self):
        self.world.write_late()

    @rule()
    def the_sink_forgets(self):
        self.world.sink.lose(self.world.draw)

    @precondition(lambda self: self.world.sink.mark is not None)
    @rule()
    def the_state_is_lost_and_adopted(self):
        self.world.lose_state()
        outcome = self.world.run(adopting=True)
        assert outcome is Ended.FINISHED, outcome

    @invariant()
    def what_is_visible_is_what_was_committed(self):
        self.world.check()

    def went(self, outcome, *expected):
        if not isinstance(outcome, (Ended, Crash, *expected)):
            passes = isinstance(outcome, CdcError) and decide(outcome) not in (Answer.PAUSE, Answer.EXIT)
            assert passes, repr(outcome)

    def teardown(self):
        global steps_made
        if not hasattr(self, "world"):
            return
        self.world.write_rest()
        self.finishes()
        if self.world.untold:  # loaded again where the stream has passed them
            self.finishes(self.world.untold)
        self.world.check_whole()
        steps_made += self.world.steps

    def finishes(self, wanted=()):
        for _ in range(3):
            outcome = self.world.run(wanted=wanted)
            if outcome is Ended.FINISHED:
                return
        raise AssertionError(outcome)


def machine(examples, steps, number):
    print(f"{VARIABLE}={number}")
    checks = list(HealthCheck)
    bounds = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks, database=None
    )
    with surroundings():
        run_state_machine_as_test(seed(number)(Flow), settings=bounds)


def test_thousands_of_steps_lose_nothing_and_double_nothing():
    machine(130, 25, SEED)
    print(f"{steps_made} steps")
    assert steps_made > 10_000


@pytest.mark.stress
@pytest.mark.timeout(7200)
def test_millions_of_steps_lose_nothing_and_double_nothing():
    for number in count(SEED):
        machine(1000, 40, number)
        print(f"{steps_made} steps")
        if steps_made >= 3_000_000:
            break
