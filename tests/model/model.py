"""A run of the Consumer on one thread, with durable parts in memory and a fault at any step.

A step is a call of receiver, sink, store or server; a crash can happen before or after it. Work that runs on threads in
a real job (Tasks, chunks, the commit, maintenance) is lazy here: it makes its steps after a random number of polls. So
Tasks, the commit of cycle N and the open cycle N+1 mix in every order, and the same seed gives the same run. Two
processes have one thread each; one of them runs at a time, until a random step.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

from cdc.errors import (
    CheckpointError,
    ErrorAction,
    LeaseLost,
    LoadRejected,
    SinkUnavailable,
    SourceRewound,
    action_for,
)
from cdc.model.batch import FENCE_STEP, LoadName
from cdc.model.schema_change import ChangeKind, ChangeMode, ChangePolicy, ColumnMap
from cdc.model.snapshot import SnapshotRequest, SnapshotState
from cdc.pipeline.consumer import Consumer, Ended
from cdc.pipeline.flow_control import CommitLimits
from cdc.pipeline.recovery import adopt, check_sink_state
from cdc.run_context import RunContext, SnapshotSettings
from cdc.state.base import CheckpointState, JobRecord, JobState
from channels.chunk_reader import SnapshotResult
from channels.routes import Routes
from channels.task import RunIdentity
from tests.model.harness import JOB, MAPPINGS
from tests.model.model_server import AWAY, Endpoint, Tables, now, served
from tests.model.model_sinks import KINDS_OF_SINK, SteppedSink
from tests.model.source import Source, SourceReceiver, position_at

TABLES = ("shop.orders", "shop.items")
LIMITS = CommitLimits(interval_s=0.02, min_rows=2, min_bytes=1, max_bytes=80, max_rows=8, task_bytes=1)
KINDS = ("crash", "crash after", "reject", "fail after", "stop", "lose", "rewind", "request")
MAX_STEPS = 20_000  # a run with more steps never ends


class Crash(BaseException):
    """The process is dead: it does nothing more."""


class Steps:
    """Count the steps of one process and follow its schedule."""

    def __init__(self, schedule, world, second_process=None):
        self.schedule = dict(schedule)
        self.world = world
        self.draw = world.draw
        self.second_process = second_process  # starts a second process
        self.count = 0
        self.is_alive, self.is_dead, self.is_stopped = True, False, False
        self.is_committing = False
        self.holds_lock = False  # no other process runs before this one is dead
        self.loses = False  # the sink loses loads before the next commit
        self.stop = self.request = lambda: None
        self.events = []  # what was done, for the reader of a failure

    def step(self, name, work, reject=None, error_after=None, rewind=None):
        """Run one step: raise ``reject`` before the work, or ``error_after`` after it."""
        if self.is_dead:
            raise Crash
        self.count += 1
        if self.count > MAX_STEPS:
            self.world.report("a run makes no progress")
            self.is_dead = True
            raise Crash
        if self.second_process is not None:
            self.second_process.step(self)
        self.world.write_concurrently()
        kind = self.schedule.get(self.count)
        if kind is not None:
            self.events.append((self.count, name, kind))
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
        if kind == "crash after":
            self.is_dead = True
            raise Crash
        if kind == "fail after" and (error_after or reject) is not None:
            raise error_after or reject
        return result


class SecondProcess:
    """Two processes of a job: the second starts at a step of the first, and only one runs at a time."""

    def __init__(self, draw, at, second, during_commits):
        self.draw, self.at, self.during_commits = draw, at, during_commits
        self.second = second  # runs the second one
        self.rate = draw.choice([0.01, 0.1, 0.5])
        self.outcome = None
        self._go = {True: threading.Semaphore(0), False: threading.Semaphore(0)}
        self._thread = None
        self._is_over = False  # one of the two has ended
        self._first = threading.current_thread()

    def step(self, steps):
        if steps.holds_lock or (steps.is_committing and not self.during_commits):
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
        """The first process has ended. Run the second one to its end."""
        if self._thread is not None:
            self._is_over = True
            self._go[False].release()
            self._thread.join()


class Lazy(Future):
    """Work that is done after enough polls, or when its result is read."""

    made = 0

    def __init__(self, work, polls, before=()):
        super().__init__()
        Lazy.made += 1
        self.number = Lazy.made
        self.work = work
        self.polls = polls
        self.before = before  # earlier work of the same thread

    def poll(self):
        self.polls -= 1
        if self.polls < 0:
            self.finish()

    def finish(self):
        while self.before and self.before[0] is not self and not self.is_finished_work:
            self.before[0].finish()
        if not self.is_finished_work:
            try:
                self.set_result(self.work())
            except Exception as error:
                self.set_exception(error)
            if self.before:
                self.before.remove(self)

    @property
    def is_finished_work(self):
        return super().done()

    def done(self):
        self.poll()
        return self.is_finished_work

    def running(self):
        return not self.is_finished_work and self.polls < 2

    def result(self, timeout=None):
        self.finish()
        return super().result(0)

    def exception(self, timeout=None):
        self.finish()
        return super().exception(0)


def wait(futures, timeout=None, return_when=None):
    lazy = sorted((future for future in futures if isinstance(future, Lazy)), key=lambda future: future.number)
    for future in lazy:
        future.poll()
    done = {future for future in futures if future not in lazy or future.is_finished_work}
    return done, set(futures) - done


class LazyExecutor:
    """Replace a thread of a run: run one piece of work after the other."""

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
    """Implements TaskRunner. Cancelled or orphaned work may write later: executors outlive their driver."""

    is_warming = False

    def __init__(self, sink, steps, late):
        self.sink, self.steps, self.late = sink, steps, late
        self.open = []  # futures, and the remaining writes of each
        self.queues = {}  # by channel and checkpoint, for a sink that needs Tasks in order

    def warm_up(self):
        pass

    def warning(self):
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
        return SnapshotResult(tuple(loads), tuple(chunks))

    def _write(self, left):
        name, rows = left[0]
        gone = SinkUnavailable("prepare failed.", hint="It is retried.")
        load = self.steps.step("prepare", lambda: self.sink.write(name, rows), reject=gone)
        left.pop(0)
        return load

    def cancel(self, timeout_s):
        for future, left in self.open:
            if not future.is_finished_work:
                future.set_exception(CancelledError())
                self.late += left
        self.open, self.queues = [], {}

    def orphan(self):
        self.late += [write for future, left in self.open if not future.is_finished_work for write in left]
        self.open = []

    def close(self):
        pass


def _write_of(task):
    return Write(task.name, [row for batch in task.copied_rows() for row in batch.to_pylist()])


class Statement(NamedTuple):
    """A change of columns that is written while a process runs."""

    table: str
    kinds: list


class ModelStore:
    """The content of the state file."""

    def __init__(self, draw, report):
        self.report = report
        self.record = JobRecord(JOB, f"{draw.randrange(1 << 32):08x}", 0, JobState.PENDING, "shop.yaml")
        self.checkpoints = {}
        self.highest = -1
        self.requests, self.requested = {}, 0
        self.followed = []  # positions after the statements that were followed


class SteppedStore:
    """The view of one process on the ModelStore. Implements what a run needs of CheckpointStore."""

    def __init__(self, model, steps):
        self.model, self.steps, self.fence = model, steps, 0

    def acquire(self):
        self.model.record = replace(self.model.record, fence=self.model.record.fence + 1)
        self.fence = self.model.record.fence
        return self.model.record

    def save_job(self, record):
        self.model.record, self.fence = record, record.fence

    def save_adoption(self, record, start):
        self.check_fence()
        kept = replace(start, seconds={})
        self.steps.step("save adoption", lambda: self._adopt(record, kept), reject=_full())

    def _adopt(self, record, start):
        self._put(start)
        self.save_job(record)

    def check_fence(self):
        if self.model.record.fence != self.fence:
            raise LeaseLost("Another process runs the job.", hint="Do nothing.")

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
            model.report("a state moved backwards")
        if checkpoint.state is not CheckpointState.OPEN and any(
            one.state is CheckpointState.COMMITTED and one.id > checkpoint.id for one in others
        ):
            model.report("an older checkpoint was saved after a newer one")
        if checkpoint.state is CheckpointState.COMMITTED and any(
            one.state is CheckpointState.PREPARED and one.id < checkpoint.id for one in others
        ):
            model.report("N+1 was committed before N")
        if checkpoint.change is not None and checkpoint.state is CheckpointState.COMMITTED:
            model.followed.append(checkpoint.last.offset)
        model.checkpoints[checkpoint.id] = checkpoint
        model.highest = max(model.highest, checkpoint.id)

    def discard(self, number):
        self.check_fence()
        self.steps.step("discard", lambda: self._drop(number), reject=_full())

    def _drop(self, number):
        self.check_fence()
        self.model.checkpoints.pop(number, None)

    def verifications(self, job, limit):
        return ()  # tests/model/verify.py has verifications

    def add_request(self, job, request):
        self.model.requested += 1
        self.model.requests[self.model.requested] = replace(request, number=self.model.requested)

    def requests(self, job):
        return tuple(self.model.requests.values())

    def drop_requests(self, numbers):
        self.check_fence()
        self.steps.step(
            "drop requests", lambda: [self.model.requests.pop(one, None) for one in numbers], reject=_full()
        )

    def unfinished(self):
        found = [one for one in self.model.checkpoints.values() if one.state is not CheckpointState.COMMITTED]
        return tuple(sorted(found, key=lambda one: one.id))

    def last_committed(self, job):
        found = [one for one in self.model.checkpoints.values() if one.state is CheckpointState.COMMITTED]
        return max(found, key=lambda one: one.id, default=None)


class SteppedReceiver(SourceReceiver):
    """The receiver of lists, with steps. It does not deliver rows without log coverage."""

    def __init__(self, steps, world, routes, **options):
        super().__init__(world.source, routes, **options)
        self.steps, self.unlogged = steps, world.unlogged
        self.is_loaded = lambda: True

    def open(self, start, schemas, sequence):
        self.steps.step("open", lambda: SourceReceiver.open(self, start, schemas, sequence), reject=AWAY)

    def get(self, timeout_s):
        rewound = SourceRewound("The connection was cut.", hint="It is read again.")
        return self.steps.step("get", lambda: SourceReceiver.get(self, timeout_s), reject=AWAY, rewind=rewound)

    def _batch(self, rows, *places):
        return super()._batch([row for row in rows if row.op not in self.unlogged], *places)

    def ack(self, position):
        self.steps.step("ack", lambda: SourceReceiver.ack(self, position), reject=AWAY)

    def rollback(self, position):
        self.steps.step("rollback", lambda: SourceReceiver.rollback(self, position), reject=AWAY)

    def status(self):
        status = super().status()
        return replace(status, is_finished=status.is_finished and self.is_loaded())


class World:
    """Everything that outlives processes: source, sink, state file. Runs start here."""

    running = None  # the World whose processes run

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.source = Source()
        self.tables = Tables(self.source, self.draw)
        self.unlogged = set()  # ops that are not in the stream
        self.unlogged_tables = set()  # tables with such ops that were not loaded again since
        self.given_up = set()  # ops of a lost table that were PREPARED: only the snapshot delivers them
        self.pending = []  # transactions that are written while a process runs
        self.sink = self.draw.choice(KINDS_OF_SINK)(self.draw)
        self.store = ModelStore(self.draw, self.report)
        self.mode = self.draw.choice([ChangeMode.EVOLVE, ChangeMode.EVOLVE, ChangeMode.LENIENT, ChangeMode.IGNORE])
        self.is_initial = self.draw.random() < 0.5  # all rows, then the stream; otherwise the stream from its start
        self.start = 0  # transactions that only a snapshot reads
        self.copies = {}  # of tables of the sink
        self.loses_targets = self.draw.random() < 0.3  # fewer checks are possible after a target was loaded again
        self.late = []  # loads of dead processes whose executors may still write
        self.steps = 0
        self.exact = self.sink.is_hidden  # until a state was lost: repeated rows are harmless, but they are repeated
        self.is_clean = True  # until a replaced process continued: its loads may stay, and expire
        self.wrong = []
        self.history = []

    def report(self, fault):
        """Record an error inside a process, which the process itself would treat as an error of its environment."""
        self.wrong.append(fault)

    @property
    def routes(self):
        """Return what a new process knows of the job file."""
        return Routes([replace(one, changes=ChangePolicy(self.mode)) for one in MAPPINGS])

    def write_concurrently(self):
        while self.pending and self.draw.random() < 0.05:
            self._write(self.pending.pop(0))

    def write_rest(self):
        while self.pending:
            self._write(self.pending.pop(0))

    def _write(self, transaction):
        if isinstance(transaction, Statement):
            self.alter(*transaction)
        else:
            self.source.write(*transaction)

    def alter(self, table, kinds):
        """Change columns of a table of the source, as far as the job can follow it."""
        if self.mode is ChangeMode.IGNORE:
            kinds = [kind for kind in kinds if kind != "widen"]
        if self.mode is ChangeMode.LENIENT and self._keeps_columns(table, kinds):
            # values that differ by row need a new load, which would erase kept columns: the job pauses for its user
            kinds = ["add" if kind == "add by row" else kind for kind in kinds]
        if table in self.tables.names():
            self.source.alter(table, kinds, self.draw)

    def _keeps_columns(self, table, kinds):
        changes = [change for one in self.source.alters.values() if one.table == table for change in one.changes]
        return {"drop", "replace"} & {*kinds} or any(one.kind is ChangeKind.DROP_COLUMN for one in changes)

    @property
    def knows_columns(self):
        """Whether the sink's newest checkpoint alone tells how to go on.

        A lost state cannot say what was changed, and not which tables are still to be loaded again.
        """
        last = self.sink.mark.first.offset
        is_altered = any(index >= last for index in self.source.alters)
        is_pending = any(isinstance(one, Statement) for one in self.pending)
        differs = any(map(self._differs, self.column_maps.values()))
        snapshots = self._committed.snapshots.values() if self._committed else ()
        is_loading = any(one.state is not SnapshotState.CONSISTENT for one in snapshots)
        return not (is_altered or is_pending or self.sink.jobs or differs or (self.source.alters and is_loading))

    @staticmethod
    def _differs(column_map):
        return column_map != ColumnMap()

    @property
    def _committed(self):
        """Return the newest COMMITTED checkpoint."""
        found = [one for one in self.store.checkpoints.values() if one.state is CheckpointState.COMMITTED]
        return max(found, key=lambda one: one.id, default=None)

    @property
    def column_maps(self):
        """Return how targets differ from their tables, as the newest checkpoint has it."""
        return self._committed.column_maps if self._committed else {}

    def write_unlogged(self, table, key, deleted):
        """Write as with ``SET sql_log_bin = 0``: the next load of the table corrects it."""
        self.source.write((table, key, deleted))
        self.unlogged.add(self.source.operations)
        self.unlogged_tables.add(table)

    def copy_target(self, table):
        """Copy a table of the sink."""
        if _target(table) in self.sink.identities:
            self.copies[table] = self.sink.copy(_target(table))

    def lose_target(self, table, kind):
        """Remove a table of the sink, create it again, or restore its copy. Return whether a run must detect it."""
        target, copy = _target(table), self.copies.get(table)
        if target not in self.sink.identities:
            return False
        if kind == "older" and copy is None:
            return False
        expected = [one for one in self.store.checkpoints.values() if one.state is not CheckpointState.OPEN]
        newest = max(expected, key=lambda one: one.id, default=None)
        is_known = newest is not None and target in newest.targets
        self.exact, columns = False, self.sink.columns[target]
        self.late = [write for write in self.late if write.name.channel != target]
        for one in self.store.checkpoints.values():
            if one.state is CheckpointState.PREPARED:
                rows = [row for rows in self.source.transactions[one.first.offset : one.last.offset] for row in rows]
                self.given_up |= {row.op for row in rows if row.table == table}
        if kind == "older":
            self.sink.restore(target, copy)
            # with the same columns it may be as new as the state
            is_done = newest is not None and newest.state is CheckpointState.COMMITTED
            return is_known and is_done and self.sink.columns[target] != columns
        self.sink.remove(target)
        if kind == "replaced":
            self.sink.create(target, columns)
        return is_known

    def remove_older(self, table, columns):
        """Remove a restored copy that has not ``columns``: no job can load it again."""
        target = _target(table)
        if self.sink.columns.get(target) != columns:
            self.sink.remove(target)

    def run(
        self,
        schedule=(),
        *,
        endless=False,
        adopting=False,
        reloading=False,
        wanted=(),
        second_process=None,
        store=None,
    ):
        """Run one process from start to end. Return its result, its error, or the Crash.

        ``wanted``: tables to load again. The process may retry transient errors, as a Job does.
        """
        World.running = self
        steps = Steps(schedule, self, second_process)
        sink, store = SteppedSink(self.sink, steps), SteppedStore(store or self.store, steps)
        runner = LazyRunner(self.sink, steps, self.late)
        try:
            return self._run(steps, sink, store, runner, endless, adopting, reloading, wanted)
        except (Crash, Exception) as error:
            return error
        finally:
            steps.is_alive, steps.is_dead = False, True
            runner.orphan()
            self.steps += steps.count
            self.history.append((steps.count, steps.events))
            if second_process is None:
                self.write_rest()

    def _run(self, steps, sink, store, runner, endless, adopting, reloading, wanted):
        record, last = store.acquire(), 0
        if adopting:
            tables = {name: _target(name) for name in self.tables.names()}
            record = adopt(record, store, sink, lambda: tables)
        check_sink_state(record, store, sink)
        run = RunIdentity(JOB, record.incarnation, record.fence)
        settings = SnapshotSettings(
            Endpoint(self.tables, steps), now, initial=self.is_initial, step_s=self.draw.choice([0.0, 0.02, 0.2])
        )
        tries_left, routes = 2, self.routes
        ended, channels = None, {}
        while True:
            options = {"per_batch": self.draw.randrange(1, 4), "piece_rows": 2, "endless": endless, "idle_s": 0.0}
            receiver = SteppedReceiver(steps, self, routes, **options)
            is_continued, ended = ended is Ended.CHANGING, None
            channels = channels if is_continued else {}
            parts = RunContext(
                run, receiver, routes, runner, sink, store,
                snapshot=settings, reload_missing=reloading, is_continued=is_continued, channels=channels,
            )  # fmt: skip
            consumer = Consumer(parts, LIMITS, sequence=max(record.fence * FENCE_STEP, last), now=_Clock())
            steps.stop = consumer.stop
            steps.request = lambda: self._request(store, self.draw.choice(TABLES))
            receiver.is_loaded = lambda consumer=consumer: _is_loaded(consumer, store)
            try:
                ended = consumer.run(
                    self._first_position, lambda wanted=wanted: [self._request(store, one) for one in wanted]
                )
                if ended is not Ended.CHANGING or steps.is_stopped:
                    return Ended.STOPPED if steps.is_stopped else ended
                last, wanted = consumer.sequence, ()
            except Exception as error:
                ends = action_for(error) in (ErrorAction.PAUSE, ErrorAction.EXIT) or steps.is_stopped or not tries_left
                if ends or self.draw.random() < 0.5:
                    raise
                store.check_fence()  # a Job saves in between that it is PAUSED
                last, tries_left = consumer.sequence, tries_left - 1

    def _first_position(self):
        self.start = len(self.source.transactions) if self.is_initial else 0
        return position_at(self.start)

    def _request(self, store, table):
        if table in self.tables.names():
            store.add_request(JOB, SnapshotRequest(table, None if self.sink.lists_keys else "1 = 1"))

    def run_two(self, first, second, at, *, adopting=False):
        """Run two processes, of which the second starts at a step of the first. Return both outcomes.

        The second one has acquired the state file, or it has no state and adopts the sink.
        """
        self.is_clean = False
        store = self.store
        if adopting:
            store, self.exact = ModelStore(self.draw, self.report), False

        def begin(second_process):
            return self.run(second, second_process=second_process, adopting=adopting, store=store)

        # a commit after its ownership check cannot be stopped: the sink keeps one of two states, completely
        second_process = SecondProcess(self.draw, at, begin, during_commits=not adopting)
        outcome = self.run(first, second_process=second_process)
        second_process.end()
        self.write_rest()
        if self.sink.owner == store.record.incarnation:
            self.store = store
        return outcome, second_process.outcome

    def lose_state(self):
        """Lose the state file. The next run adopts the sink."""
        self.store = ModelStore(self.draw, self.report)
        self.exact = self.is_clean = False

    def write_late(self):
        """Write some loads that executors of dead runs had not finished."""
        while self.late and self.draw.random() < 0.7:
            write = self.late.pop(self.draw.randrange(len(self.late)))
            with suppress(LoadRejected):
                self.sink.write(*write)

    # conditions that hold when nothing runs

    def check(self):
        assert not self.wrong and not self.sink.faults, (self.wrong, self.sink.faults)
        if self.exact:
            self._check_order()
            followed = self.store.followed
            assert len(set(followed)) == len(followed), f"a statement was followed twice: {followed}"
            steps = [repr(one) for one in self.sink.altered]
            assert len(set(steps)) == len(steps), f"a step was taken twice: {steps}"
        found = sorted(self.store.checkpoints.values(), key=lambda one: one.id)
        committed = [one for one in found if one.state is CheckpointState.COMMITTED]
        if not committed:
            return
        done = committed[-1].last.offset
        visible = {seen.op for seen in self.sink.log if not seen.is_snapshot}
        assert self._streamed(self.start, done) - self.given_up <= visible, "a COMMITTED change is not visible"
        prepared = [one for one in found if one.state is CheckpointState.PREPARED]
        assert len(prepared) <= 1, "two checkpoints are PREPARED"
        end = prepared[-1].last.offset if prepared else done
        if self.exact:
            assert not self._streamed(end) & visible, "a change is visible that was never PREPARED"
            if not prepared:
                self._check_consistent(committed[-1])

    def _streamed(self, first, last=None):
        """Return the ops of these transactions that are in the stream."""
        return {row.op for rows in self.source.transactions[first:last] for row in rows} - self.unlogged

    def _check_consistent(self, committed):
        state = self.source.rows(committed.last.offset)
        for table, snapshot in committed.snapshots.items():
            if snapshot.state is SnapshotState.CONSISTENT and table not in self.unlogged_tables:
                self._compare(table, state.get(table, {}), "is marked as consistent")

    def _compare(self, table, expected, state):
        """Compare each value of a target with ``expected``, except in columns that an ignored change has left."""
        names = self.column_maps.get(table, ColumnMap())
        expected = {
            key: {target: value for name, value in row.items() if (target := names.target_of(name)) is not None}
            for key, row in expected.items()
        }
        found = {
            key: {name: value for name, value in row.items() if name not in names.kept}
            for key, row in self.sink.rows.get(_target(table), {}).items()
        }
        assert found == expected, f"{table} {state}: {found}, not {expected}"

    def _check_order(self):
        """Check that each change is visible once and in order; a lost load replays its channel in its checkpoint."""
        newest, checkpoints = {}, {}
        for seen in self.sink.log:
            if seen.is_snapshot:
                continue
            assert checkpoints.setdefault(seen.op, seen.checkpoint) == seen.checkpoint, f"{seen} became visible twice"
            before = newest.get((seen.target, seen.key))
            if before is not None:
                now = (seen.checkpoint, seen.attempt, seen.op)
                assert (before.checkpoint, before.attempt, before.op) < now, f"{seen} became visible after {before}"
            newest[seen.target, seen.key] = seen

    def check_whole(self):
        """Check that source equals sink, and that nothing is left behind."""
        self.check()
        expected = self.source.rows()
        assert {name for name, rows in self.sink.rows.items() if rows} == {_target(name) for name in expected}
        for table in expected:
            self._compare(table, expected[table], "is complete")
        if self.mode is ChangeMode.EVOLVE:
            assert not any(map(self._differs, self.column_maps.values())), self.column_maps
        if self.exact:
            followed = {index + 1 for index in self.source.alters if index >= self.start}
            assert set(self.store.followed) == followed, f"statements were left out: {self.store.followed}, {followed}"
        assert all(one.state is CheckpointState.COMMITTED for one in self.store.checkpoints.values())
        if self.is_clean and self.sink.refuses_aborted:
            assert not self.sink.prepared(), "loads are still prepared in the sink"
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
def model_environment():
    """Replace threads, time and the server of tables for all runs inside."""
    with (
        served(),
        mock.patch("cdc.pipeline.commit_thread.ThreadPoolExecutor", lambda **_: LazyExecutor(World.running.draw)),
        mock.patch("cdc.pipeline.maintenance.ThreadPoolExecutor", lambda **_: LazyExecutor(World.running.draw)),
        mock.patch("cdc.pipeline.commit_thread.wait", wait),
        mock.patch("cdc.snapshot.step.wait", wait),
        mock.patch("cdc.pipeline.commit_cycle.wait", wait),
        mock.patch("cdc.pipeline.replay.wait", wait),
        mock.patch("cdc.pipeline.consumer.BUSY_POLL_S", 0.0),
        mock.patch("cdc.pipeline.cycles.BUSY_POLL_S", 0.0),
        mock.patch("cdc.pipeline.flow_control.BUSY_POLL_S", 0.0),
        mock.patch("cdc.pipeline.cycles.SHUTDOWN_S", 0.05),
        mock.patch("cdc.retry.FIRST_DELAY_S", 0.0),
    ):
        yield


def _target(table):
    return f"ods.{table.split('.')[1]}"


def _is_loaded(consumer, store):
    """Return whether all tables are loaded and the state contains it."""
    snapshots = store.last_committed(JOB).snapshots.values()
    return not (consumer._cycles.coordinator.is_due or store.requests(JOB)) and all(
        one.state is SnapshotState.CONSISTENT for one in snapshots
    )


class _Clock:
    """A clock that advances when it is read."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        self.now += 0.001
        return self.now


def _full():
    return CheckpointError("The disk is full.", hint="Free some space.")
