"""A run of the Consumer on one thread, with durable things in memory and a fault at any step.

A step is a call of receiver, sink, store or server that a crash can come before or behind. What runs on threads in a
real job (Tasks, chunks, the commit, housekeeping) is lazy work here: it makes its steps after a drawn number of looks at
it, so that Tasks, the commit of cycle N and the gathering of N+1 mix in every order, and the same draws give the same
run. Two processes have a thread each, of which one goes on at a time, until a drawn step.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

from cdc.batch import FENCE_STEP, LoadName
from cdc.checkpoint import CheckpointState, JobRecord, JobState
from cdc.consumer import Consumer
from cdc.errors import (
    Answer,
    CheckpointError,
    LeaseLost,
    LoadRejected,
    SinkUnavailable,
    SourceRewound,
    decide,
)
from cdc.parts import Limits, Parts, SnapshotSettings
from cdc.recovery import adopt, compare
from cdc.snapshot.chunks import SnapshotState
from cdc.turns import Request
from channels.mapping import Routes
from channels.task import RunIdentity
from spark.chunks import TurnOutcome
from tests.flow.harness import JOB, MAPPINGS
from tests.flow.model_server import AWAY, Endpoint, Tables, now, served
from tests.flow.model_sinks import KINDS_OF_SINK, SteppedSink
from tests.flow.source import Source, SourceReceiver, place

TABLES = ("shop.orders", "shop.items")
LIMITS = Limits(interval_s=0.02, min_rows=2, min_bytes=1, max_bytes=80, max_rows=8, task_bytes=1)
KINDS = ("crash", "crash behind", "reject", "fail behind", "stop", "lose", "rewind", "request")
MOST_STEPS = 20_000  # a run that makes more has no end


class Crash(BaseException):
    """The process is gone: nothing of it happens any more."""


class Steps:
    """Counts steps of one process and does what its schedule says."""

    def __init__(self, schedule, world, beside=None):
        self.schedule = dict(schedule)
        self.world = world
        self.draw = world.draw
        self.beside = beside  # where a second process comes in
        self.count = 0
        self.is_alive, self.is_dead, self.is_stopped = True, False, False
        self.is_committing = False
        self.loses = False  # the sink loses loads before the next commit
        self.stop = self.request = lambda: None
        self.told = []  # what was done, for the reader of a failure

    def step(self, name, work, reject=None, behind=None, rewind=None):
        """One step: ``reject`` is raised before the work, ``behind`` behind it."""
        if self.is_dead:
            raise Crash
        self.count += 1
        if self.count > MOST_STEPS:
            self.world.blame("a run makes no progress")
            self.is_dead = True
            raise Crash
        if self.beside is not None:
            self.beside.step(self)
        self.world.somebody_writes()
        kind = self.schedule.get(self.count)
        if kind is not None:
            self.told.append((self.count, name, kind))
        if kind == "crash":
            self.is_dead = True
            raise Crash
        if kind == "reject" and reject is not None:
            raise reject
        if kind == "lose":
            self.loses = True
        if kind == "rewind" and rewind is not None:
            raise rewind
        if kind == "stop":
            self.is_stopped = True
            self.stop()
        if kind == "request":
            self.request()
        result = work()
        if kind == "crash behind":
            self.is_dead = True
            raise Crash
        if kind == "fail behind" and (behind or reject) is not None:
            raise behind or reject
        return result


class Beside:
    """Two processes of a job: the second begins at a step of the first, and each goes on while the other stands."""

    def __init__(self, draw, at, second, beside_commits):
        self.draw, self.at, self.beside_commits = draw, at, beside_commits
        self.second = second  # runs the second one
        self.rate = draw.choice([0.01, 0.1, 0.5])
        self.outcome = None
        self._go = {True: threading.Semaphore(0), False: threading.Semaphore(0)}
        self._thread = None
        self._is_over = False  # one of the two has ended
        self._first = threading.current_thread()

    def step(self, steps):
        if steps.is_committing and not self.beside_commits:
            return
        is_first = threading.current_thread() is self._first
        if is_first and self._thread is None and steps.count >= self.at:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
            self._go[True].acquire()
        elif self._thread is not None and not self._is_over and self.draw.random() < self.rate:
            self._go[not is_first].release()
            self._go[is_first].acquire()

    def _run(self):
        self.outcome = self.second(self)
        self._is_over = True
        self._go[True].release()

    def end(self):
        """The first one has ended; the second goes on to its end."""
        if self._thread is not None:
            self._is_over = True
            self._go[False].release()
            self._thread.join()


class Lazy(Future):
    """Work that is done when it was looked at often enough, or when its result is wanted."""

    made = 0

    def __init__(self, work, looks, before=()):
        super().__init__()
        Lazy.made += 1
        self.number = Lazy.made
        self.work = work
        self.looks = looks
        self.before = before  # a list of earlier work of the same thread

    def look(self):
        self.looks -= 1
        if self.looks < 0:
            self.settle()

    def settle(self):
        while self.before and self.before[0] is not self and not self.is_settled:
            self.before[0].settle()
        if not self.is_settled:
            try:
                self.set_result(self.work())
            except Exception as error:
                self.set_exception(error)
            if self.before:
                self.before.remove(self)

    @property
    def is_settled(self):
        return super().done()

    def done(self):
        self.look()
        return self.is_settled

    def running(self):
        return not self.is_settled and self.looks < 2

    def result(self, timeout=None):
        self.settle()
        return super().result(0)

    def exception(self, timeout=None):
        self.settle()
        return super().exception(0)


def wait(futures, timeout=None, return_when=None):
    lazy = sorted((future for future in futures if isinstance(future, Lazy)), key=lambda future: future.number)
    for future in lazy:
        future.look()
    done = {future for future in futures if future not in lazy or future.is_settled}
    return done, set(futures) - done


class LazyExecutor:
    """Stands for the commit thread: one piece of work after the other."""

    def __init__(self, draw):
        self.draw = draw
        self.queue = []

    def submit(self, work, *arguments):
        lazy = Lazy(lambda: work(*arguments), self.draw.randrange(12), self.queue)
        self.queue.append(lazy)
        return lazy

    def shutdown(self, wait=True, cancel_futures=False):
        if cancel_futures:
            self.queue.clear()


class Write(NamedTuple):
    """A load that an executor makes."""

    name: LoadName
    rows: list


class LazyRunner:
    """Implements TaskRunner. What was cancelled or orphaned may still write, later: executors outlive their driver."""

    is_warming = False

    def __init__(self, sink, steps, late):
        self.sink, self.steps, self.late = sink, steps, late
        self.open = []  # futures, and what is left to be written for each
        self.queues = {}  # by channel and checkpoint, for a sink that wants Tasks in order

    def warm_up(self):
        pass

    def trouble(self):
        return None

    def submit(self, tasks):
        return [self._begin(self._write_task, [_write_of(task)]) for task in tasks]

    def submit_reading(self, reading):
        return self._begin(lambda left: self._read(reading, left), [])

    def _begin(self, work, left):
        before = ()
        if self.sink.tasks_in_order and left:
            name = left[0].name
            before = self.queues.setdefault((name.channel, name.checkpoint, name.attempt), [])
        future = Lazy(lambda: work(left), self.steps.draw.randrange(6), before)
        if before != ():
            before.append(future)
        self.open.append((future, left))
        return future

    def _write_task(self, left):
        return (self._write(left),)

    def _read(self, reading, left):
        loads, chunks = [], []
        for outcome, parts in reading.endpoint.read_chunks(reading):
            chunks.append(outcome)
            left += [Write(*part) for part in parts]
            while left:
                loads.append(self._write(left))
        return TurnOutcome(tuple(loads), tuple(chunks))

    def _write(self, left):
        name, rows = left[0]
        gone = SinkUnavailable("prepare failed.", mend="It passes.")
        load = self.steps.step("prepare", lambda: self.sink.write(name, rows), reject=gone)
        left.pop(0)
        return load

    def cancel(self, patience_s):
        for future, left in self.open:
            if not future.is_settled:
                future.set_exception(CancelledError())
                self.late += left
        self.open, self.queues = [], {}

    def orphan(self):
        self.late += [write for future, left in self.open if not future.is_settled for write in left]
        self.open = []

    def close(self):
        pass


def _write_of(task):
    return Write(task.name, [row for batch in task.rows for row in batch.to_pylist()])


class ModelStore:
    """What is in the state file."""

    def __init__(self, draw, blame):
        self.blame = blame
        self.record = JobRecord(JOB, f"{draw.randrange(1 << 32):08x}", 0, JobState.PENDING, "shop.yaml")
        self.checkpoints = {}
        self.highest = -1


class SteppedStore:
    """One process' view of the ModelStore. Implements what a run needs of CheckpointStore."""

    def __init__(self, model, steps):
        self.model, self.steps, self.fence = model, steps, 0

    def acquire(self):
        self.model.record = replace(self.model.record, fence=self.model.record.fence + 1)
        self.fence = self.model.record.fence
        return self.model.record

    def save_job(self, record):
        self.model.record, self.fence = record, record.fence

    def check_fence(self):
        if self.model.record.fence != self.fence:
            raise LeaseLost("Another process runs the job.", mend="Nothing is to be done.")

    def next_id(self):
        return self.model.highest + 1

    def save(self, checkpoint):
        self.check_fence()
        kept = replace(checkpoint, seconds={})
        self.steps.step(f"save {checkpoint.state.value}", lambda: self._put(kept), reject=_full())

    def _put(self, checkpoint):
        self.check_fence()
        model, order = self.model, list(CheckpointState)
        known, others = model.checkpoints.get(checkpoint.id), model.checkpoints.values()
        if known is not None and order.index(known.state) > order.index(checkpoint.state):
            model.blame("a state went back")
        if checkpoint.state is not CheckpointState.OPEN and any(
            one.state is CheckpointState.COMMITTED and one.id > checkpoint.id for one in others
        ):
            model.blame("an older checkpoint came after a newer one")
        if checkpoint.state is CheckpointState.COMMITTED and any(
            one.state is CheckpointState.PREPARED and one.id < checkpoint.id for one in others
        ):
            model.blame("N+1 was committed before N")
        model.checkpoints[checkpoint.id] = checkpoint
        model.highest = max(model.highest, checkpoint.id)

    def discard(self, number):
        self.check_fence()
        self.steps.step("discard", lambda: self._drop(number), reject=_full())

    def _drop(self, number):
        self.check_fence()
        self.model.checkpoints.pop(number, None)

    def unfinished(self):
        found = [one for one in self.model.checkpoints.values() if one.state is not CheckpointState.COMMITTED]
        return tuple(sorted(found, key=lambda one: one.id))

    def last_committed(self, job):
        found = [one for one in self.model.checkpoints.values() if one.state is CheckpointState.COMMITTED]
        return max(found, key=lambda one: one.id, default=None)


class SteppedReceiver(SourceReceiver):
    """The receiver of lists, with steps. It does not hear of what was not logged."""

    def __init__(self, steps, world, **options):
        super().__init__(world.source, world.routes, **options)
        self.steps, self.unlogged = steps, world.unlogged
        self.is_loaded = lambda: True

    def open(self, start, schemas, sequence):
        self.steps.step("open", lambda: SourceReceiver.open(self, start, schemas, sequence), reject=AWAY)

    def get(self, timeout_s):
        rewound = SourceRewound("The line was cut.", mend="It is read again.")
        return self.steps.step("get", lambda: SourceReceiver.get(self, timeout_s), reject=AWAY, rewind=rewound)

    def _batch(self, rows, *places):
        return super()._batch([row for row in rows if row.op not in self.unlogged], *places)

    def ack(self, position):
        self.steps.step("ack", lambda: SourceReceiver.ack(self, position), reject=AWAY)

    def rollback(self, position):
        self.steps.step("rollback", lambda: SourceReceiver.rollback(self, position), reject=AWAY)

    def finished(self):
        return super().finished() and self.is_loaded()


class World:
    """What outlives processes: source, sink, state file. Runs are started on it."""

    running = None  # the one whose processes run

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.source = Source()
        self.tables = Tables(self.source, self.draw)
        self.unlogged = set()  # ops that the stream does not tell of
        self.untold = set()  # tables with such ops that were not loaded again since
        self.coming = []  # transactions that somebody writes while a process runs
        self.sink = self.draw.choice(KINDS_OF_SINK)(self.draw)
        self.store = ModelStore(self.draw, self.blame)
        self.routes = Routes(MAPPINGS)
        self.is_initial = self.draw.random() < 0.5  # all rows, then the stream; else the stream from its beginning
        self.start = 0  # transactions that come through a snapshot alone
        self.late = []  # loads of processes that are gone, whose executors may still write
        self.steps = 0
        self.exact = self.sink.is_hidden  # until a state was lost: repeated rows do no harm, and are repeated rows
        self.is_tidy = True  # until a process went on that had been replaced: its loads may stay, and expire
        self.wrong = []
        self.history = []

    def blame(self, told):
        """What is found inside a process, which would take it for an error of its surroundings."""
        self.wrong.append(told)

    def somebody_writes(self):
        while self.coming and self.draw.random() < 0.05:
            self.source.write(*self.coming.pop(0))

    def write_rest(self):
        while self.coming:
            self.source.write(*self.coming.pop(0))

    def write_unlogged(self, table, key, deleted):
        """As with ``SET sql_log_bin = 0``: the next load of the table mends it."""
        self.source.write((table, key, deleted))
        self.unlogged.add(self.source.operations)
        self.untold.add(table)

    def run(self, schedule=(), *, endless=False, adopting=False, wanted=(), beside=None, store=None):
        """One process from start to its end; what it returned, raised, or the Crash.

        ``wanted``: tables that are loaded again. What passes by itself it may try anew, as a Job does.
        """
        World.running = self
        steps = Steps(schedule, self, beside)
        sink, store = SteppedSink(self.sink, steps), SteppedStore(store or self.store, steps)
        runner = LazyRunner(self.sink, steps, self.late)
        try:
            return self._run(steps, sink, store, runner, endless, adopting, wanted)
        except (Crash, Exception) as error:
            return error
        finally:
            steps.is_alive, steps.is_dead = False, True
            runner.orphan()
            self.steps += steps.count
            self.history.append((steps.count, steps.told))
            if beside is None:
                self.write_rest()

    def _run(self, steps, sink, store, runner, endless, adopting, wanted):
        record, last = store.acquire(), 0
        if adopting:
            record = adopt(record, store, sink)
        compare(record, store, sink)
        run = RunIdentity(JOB, record.incarnation, record.fence)
        settings = SnapshotSettings(
            Endpoint(self.tables, steps), now, initial=self.is_initial, turn_s=self.draw.choice([0.0, 0.02, 0.2])
        )
        for tries_left in (2, 1, 0):
            options = {"per_batch": self.draw.randrange(1, 4), "piece_rows": 2, "endless": endless, "idle_s": 0.0}
            receiver = SteppedReceiver(steps, self, **options)
            parts = Parts(run, receiver, self.routes, runner, sink, store, snapshot=settings)
            consumer = Consumer(parts, LIMITS, sequence=max(record.fence * FENCE_STEP, last), now=_Clock())
            steps.stop = consumer.stop
            steps.request = lambda consumer=consumer: self._request(consumer, self.draw.choice(TABLES))
            receiver.is_loaded = lambda consumer=consumer: _is_loaded(consumer, store)
            try:
                return consumer.run(
                    self._first_place, lambda consumer=consumer: [self._request(consumer, one) for one in wanted]
                )
            except Exception as error:
                ends = decide(error) in (Answer.PAUSE, Answer.EXIT) or steps.is_stopped or not tries_left
                if ends or self.draw.random() < 0.5:
                    raise
                store.check_fence()  # a Job saves that it is PAUSED meanwhile
                last = consumer.sequence
        raise AssertionError

    def _first_place(self):
        self.start = len(self.source.transactions) if self.is_initial else 0
        return place(self.start)

    def _request(self, consumer, table):
        if table in self.tables.names():
            consumer.request_snapshot(Request(table, None if self.sink.tells_keys else "1 = 1"))

    def run_two(self, first, second, at, *, adopting=False):
        """Two processes, of which the second begins at a step of the first; the outcomes of both.

        It has taken over the state file; or it has none, and adopts what the sink holds.
        """
        self.is_tidy = False
        store = self.store
        if adopting:
            store, self.exact = ModelStore(self.draw, self.blame), False

        def begin(beside):
            return self.run(second, beside=beside, adopting=adopting, store=store)

        # a commit that has looked at its claim cannot be stopped any more: of two states the sink keeps either, whole
        beside = Beside(self.draw, at, begin, beside_commits=not adopting)
        outcome = self.run(first, beside=beside)
        beside.end()
        self.write_rest()
        if self.sink.owner == store.record.incarnation:
            self.store = store
        return outcome, beside.outcome

    def lose_state(self):
        """The state file is gone; the next run adopts what the sink holds."""
        self.store = ModelStore(self.draw, self.blame)
        self.exact = self.is_tidy = False

    def write_late(self):
        """Some of what executors of dead runs had under way arrives now."""
        while self.late and self.draw.random() < 0.7:
            write = self.late.pop(self.draw.randrange(len(self.late)))
            with suppress(LoadRejected):
                self.sink.write(*write)

    # what must hold whenever nothing runs

    def check(self):
        assert not self.wrong, self.wrong
        if self.exact:
            self._check_order()
        found = sorted(self.store.checkpoints.values(), key=lambda one: one.id)
        committed = [one for one in found if one.state is CheckpointState.COMMITTED]
        if not committed:
            return
        done = committed[-1].last.offset
        visible = {seen.op for seen in self.sink.log if not seen.is_turn}
        assert self._told(self.start, done) <= visible, "what is COMMITTED is not visible"
        prepared = [one for one in found if one.state is CheckpointState.PREPARED]
        assert len(prepared) <= 1, "two checkpoints are PREPARED"
        end = prepared[-1].last.offset if prepared else done
        if self.exact:
            assert not self._told(end) & visible, "something is visible that was never PREPARED"
            if not prepared:
                self._check_consistent(committed[-1])

    def _told(self, first, last=None):
        """Ops of these transactions that the stream tells of."""
        return {row.op for rows in self.source.transactions[first:last] for row in rows} - self.unlogged

    def _check_consistent(self, committed):
        state = self.source.state(committed.last.offset)
        for table, snapshot in committed.snapshots.items():
            if snapshot.state is SnapshotState.CONSISTENT and table not in self.untold:
                assert self.sink.rows.get(_target(table), {}) == state.get(table, {}), f"{table} is called consistent"

    def _check_order(self):
        """Each change is seen once, in order; but a channel with a lost load is loaded whole again, in its checkpoint."""
        newest, checkpoints = {}, {}
        for seen in self.sink.log:
            if seen.is_turn:
                continue
            assert checkpoints.setdefault(seen.op, seen.checkpoint) == seen.checkpoint, f"{seen} became visible twice"
            before = newest.get((seen.target, seen.key))
            if before is not None:
                now = (seen.checkpoint, seen.attempt, seen.op)
                assert (before.checkpoint, before.attempt, before.op) < now, f"{seen} came behind {before}"
            newest[seen.target, seen.key] = seen

    def check_whole(self):
        """Source equals sink, and nothing is left over."""
        self.check()
        expected = {_target(name): rows for name, rows in self.source.state().items()}
        assert {name: rows for name, rows in self.sink.rows.items() if rows} == expected
        assert all(one.state is CheckpointState.COMMITTED for one in self.store.checkpoints.values())
        if self.is_tidy and self.sink.refuses_aborted:
            assert not self.sink.prepared(), "loads are left at the sink"
        if self.exact and self.store.checkpoints:
            counts = max(self.store.checkpoints.values(), key=lambda one: one.id).counts
            upserts = sum(one.upserts for one in counts.values())
            deletes = sum(one.deletes for one in counts.values())
            rows = [row for rows in self.source.transactions[self.start :] for row in rows]
            rows = [row for row in rows if row.op not in self.unlogged]
            assert (upserts, deletes) == (
                sum(not row.deleted for row in rows),
                sum(row.deleted for row in rows),
            ), "the counts in the checkpoint are wrong"


@contextmanager
def surroundings():
    """Threads, time and the server of tables as they are here, for all runs inside."""
    with (
        served(),
        mock.patch("cdc.consumer.ThreadPoolExecutor", lambda **_: LazyExecutor(World.running.draw)),
        mock.patch("cdc.consumer.wait", wait),
        mock.patch("cdc.cycle.wait", wait),
        mock.patch("cdc.reload.wait", wait),
        mock.patch("cdc.consumer._BUSY_POLL_S", 0.0),
        mock.patch("cdc.consumer.WIND_UP_S", 0.05),
        mock.patch("cdc.commit.FIRST_DELAY_S", 0.0),
    ):
        yield


def _target(table):
    return f"ods.{table.split('.')[1]}"


def _is_loaded(consumer, store):
    """Whether all tables are, and the state says so."""
    snapshots = store.last_committed(JOB).snapshots.values()
    return not consumer._turns.is_due and all(one.state is SnapshotState.CONSISTENT for one in snapshots)


class _Clock:
    """Time goes on when it is looked at."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        self.now += 0.001
        return self.now


def _full():
    return CheckpointError("The disk is full.", mend="Free some space.")
