"""A run of the Consumer on one thread, with durable things in memory and a fault at any step.

A step is a call of receiver, sink or store that a crash can come before or behind. What runs on threads in a real job
(Tasks, the commit, housekeeping) is lazy work here: it makes its steps after a drawn number of looks at it, so that Tasks,
the commit of cycle N and the gathering of N+1 mix in every order, and the same draws give the same run.
"""

from __future__ import annotations

import random
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

from cdc.batch import FENCE_STEP, PreparedLoad
from cdc.checkpoint import CheckpointState, JobRecord, JobState
from cdc.consumer import Consumer
from cdc.errors import (
    CheckpointError,
    CommitUnknown,
    LeaseLost,
    LoadLost,
    LoadRejected,
    SinkUnavailable,
    SourceRewound,
    SourceUnavailable,
)
from cdc.parts import Limits, Parts
from cdc.recovery import adopt, compare
from cdc.schema import DELETED
from channels.label import label_for, label_prefix
from channels.mapping import Routes
from channels.sinks.base import CheckpointMark, LoadState
from channels.task import RunIdentity
from tests.flow.harness import JOB, MAPPINGS
from tests.flow.source import Source, SourceReceiver, place

LIMITS = Limits(interval_s=0.02, min_rows=2, min_bytes=1, max_bytes=80, max_rows=8, task_bytes=1)
KINDS = ("crash", "crash behind", "reject", "fail behind", "stop", "lose", "rewind")


class Crash(BaseException):
    """The process is gone: nothing of it happens any more."""


class Steps:
    """Counts steps of one process and does what its schedule says."""

    def __init__(self, schedule, draw):
        self.schedule = dict(schedule)
        self.draw = draw
        self.count = 0
        self.dead = False
        self.stop = lambda: None
        self.told = []  # what was done, for the reader of a failure

    def step(self, name, work, reject=None, behind=None, lose=None, rewind=None):
        """One step: ``reject`` is raised before the work, ``behind`` behind it."""
        if self.dead:
            raise Crash
        self.count += 1
        kind = self.schedule.get(self.count)
        if kind is not None:
            self.told.append((self.count, name, kind))
        if kind == "crash":
            self.dead = True
            raise Crash
        if kind == "reject" and reject is not None:
            raise reject
        if kind == "lose" and lose is not None:
            lose()
        if kind == "rewind" and rewind is not None:
            raise rewind
        if kind == "stop":
            self.stop()
        result = work()
        if kind == "crash behind":
            self.dead = True
            raise Crash
        if kind == "fail behind" and (behind or reject) is not None:
            raise behind or reject
        return result


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
    futures = sorted(futures, key=lambda future: future.number)
    for future in futures:
        future.look()
    done = {future for future in futures if future.is_settled}
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


class LazyRunner:
    """Implements TaskRunner. Cancelled and orphaned Tasks may still write, later: executors outlive their driver."""

    is_warming = False

    def __init__(self, sink, steps, late):
        self.sink, self.steps, self.late = sink, steps, late
        self.open = []

    def warm_up(self):
        pass

    def submit(self, tasks):
        futures = [Lazy(lambda task=task: self.prepare(task), self.steps.draw.randrange(6)) for task in tasks]
        self.open += zip(futures, tasks, strict=True)
        return futures

    def prepare(self, task):
        load = self.steps.step(
            "prepare",
            lambda: self.sink.write(task.name, task.rows),
            reject=SinkUnavailable("prepare failed.", mend="It passes."),
        )
        return (load,)

    def cancel(self, patience_s):
        for future, task in self.open:
            if not future.is_settled:
                future.set_exception(CancelledError())
                self.late.append(task)
        self.open = []

    def orphan(self):
        self.late += [task for future, task in self.open if not future.is_settled]

    def close(self):
        pass


class Seen(NamedTuple):
    target: str
    key: int
    op: int
    checkpoint: int
    attempt: int


class ModelSink:
    """Durable, as a sink with two phases that commits load by load."""

    def __init__(self):
        self.loads = {}  # label -> [state, target, rows]
        self.aborted = set()  # prefixes
        self.rows = {}  # target -> key -> op
        self.log = []  # Seen, in the order in which rows became visible
        self.mark = None
        self.claimed = None

    def write(self, name, batches):
        label = label_for(name)
        if any(label.startswith(prefix) for prefix in self.aborted):
            raise LoadRejected("The label was aborted.", mend="Use a new one.", label=label)
        rows = [row for batch in batches for row in batch.to_pylist()]
        known = self.loads.get(label)
        if known is not None and known[0] is not LoadState.PREPARED:
            raise LoadRejected("The label is used up.", mend="Use a new one.", label=label)
        self.loads[label] = [LoadState.PREPARED, name.channel, rows]
        return PreparedLoad(name, name.channel, len(rows), 10 * len(rows), {})

    def state(self, load):
        found = self.loads.get(label_for(load.name))
        return found[0] if found else LoadState.UNKNOWN

    def apply(self, load):
        found = self.loads[label_for(load.name)]
        if found[0] is LoadState.COMMITTED:
            return
        target = self.rows.setdefault(load.table, {})
        for row in found[2]:
            if row[DELETED]:
                target.pop(row["id"], None)
            else:
                target[row["id"]] = row["op"]
            self.log.append(Seen(load.table, row["id"], row["op"], load.name.checkpoint, load.name.attempt))
        self.loads[label_for(load.name)] = [LoadState.COMMITTED, load.table, []]

    def abort(self, job, incarnation, fence, checkpoint):
        prefix = label_prefix(job, incarnation, fence, checkpoint)
        self.aborted.add(prefix)
        for label, found in self.loads.items():
            if label.startswith(prefix) and found[0] is LoadState.PREPARED:
                self.loads[label] = [LoadState.ABORTED, found[1], []]

    def lose(self, draw):
        """As a sink does whose prepared loads expire."""
        for label in sorted(self.loads):
            if self.loads[label][0] is LoadState.PREPARED and draw.random() < 0.5:
                del self.loads[label]


class SteppedSink:
    """One process' view of the ModelSink. Implements Sink."""

    def __init__(self, model, steps):
        self.model, self.steps = model, steps

    def ensure_table(self, table):
        self.steps.step("ensure", lambda: None, reject=_away("sink"))

    def claim(self, mark, targets):
        self.steps.step("claim", lambda: setattr(self.model, "claimed", mark.incarnation), reject=_away("sink"))

    def commit(self, loads, checkpoint: CheckpointMark):
        model = self.model
        self.steps.step("commit", lambda: None, reject=_away("sink"), lose=lambda: model.lose(self.steps.draw))
        lost = [label_for(one.name) for one in loads if model.state(one) in (LoadState.UNKNOWN, LoadState.ABORTED)]
        if lost:
            raise LoadLost("Loads are gone.", mend="They are loaded again.", labels=lost)
        unknown = CommitUnknown("No answer.", mend="It is asked for.")
        for load in loads:
            self.steps.step("apply", lambda load=load: model.apply(load), reject=_away("sink"), behind=unknown)
        self.steps.step("mark", lambda: setattr(model, "mark", checkpoint), behind=unknown)

    def abort(self, *name):
        self.steps.step("abort", lambda: self.model.abort(*name), reject=_away("sink"))

    def state(self, load):
        return self.steps.step("state", lambda: self.model.state(load), reject=_away("sink"))

    def last_checkpoint(self, job):
        return self.steps.step("last_checkpoint", lambda: self.model.mark, reject=_away("sink"))

    def maintain(self, tables):
        self.steps.step("maintain", lambda: None, reject=_away("sink"))


class ModelStore:
    """What is in the state file."""

    def __init__(self, draw):
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
        known = self.model.checkpoints.get(checkpoint.id)
        order = list(CheckpointState)
        assert known is None or order.index(known.state) <= order.index(checkpoint.state), "a state went back"
        if checkpoint.state is not CheckpointState.OPEN:
            done = [one for one in self.model.checkpoints.values() if one.state is CheckpointState.COMMITTED]
            assert all(one.id <= checkpoint.id for one in done), "an older checkpoint came after a newer one"
        if checkpoint.state is CheckpointState.COMMITTED:
            older = [one for one in self.model.checkpoints.values() if one.id < checkpoint.id]
            assert all(one.state is not CheckpointState.PREPARED for one in older), "N+1 was committed before N"
        self.model.checkpoints[checkpoint.id] = checkpoint
        self.model.highest = max(self.model.highest, checkpoint.id)

    def discard(self, number):
        self.check_fence()
        self.steps.step("discard", lambda: self.model.checkpoints.pop(number, None), reject=_full())

    def unfinished(self):
        found = [one for one in self.model.checkpoints.values() if one.state is not CheckpointState.COMMITTED]
        return tuple(sorted(found, key=lambda one: one.id))

    def last_committed(self, job):
        found = [one for one in self.model.checkpoints.values() if one.state is CheckpointState.COMMITTED]
        return max(found, key=lambda one: one.id, default=None)


class SteppedReceiver(SourceReceiver):
    """The receiver of lists, with steps."""

    def __init__(self, steps, *arguments, **options):
        super().__init__(*arguments, **options)
        self.steps = steps

    def open(self, start, schemas, sequence):
        self.steps.step("open", lambda: SourceReceiver.open(self, start, schemas, sequence), reject=_away("source"))

    def get(self, timeout_s):
        rewound = SourceRewound("The line was cut.", mend="It is read again.")
        return self.steps.step(
            "get", lambda: SourceReceiver.get(self, timeout_s), reject=_away("source"), rewind=rewound
        )

    def ack(self, position):
        self.steps.step("ack", lambda: SourceReceiver.ack(self, position), reject=_away("source"))

    def rollback(self, position):
        self.steps.step("rollback", lambda: SourceReceiver.rollback(self, position), reject=_away("source"))


class World:
    """What outlives processes: source, sink, state file. Runs are started on it."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.source = Source()
        self.sink = ModelSink()
        self.store = ModelStore(self.draw)
        self.routes = Routes(MAPPINGS)
        self.late = []  # Tasks of runs that are gone, whose executors may still write
        self.steps = 0
        self.exact = True  # until a state was lost: repeated rows do no harm, and are repeated rows
        self.history = []

    def run(self, schedule=(), *, endless=False, adopting=False):
        """One process from start to its end; what it returned, raised, or the Crash."""
        steps = Steps(schedule, self.draw)
        sink, store = SteppedSink(self.sink, steps), SteppedStore(self.store, steps)
        runner = LazyRunner(self.sink, steps, self.late)
        options = {"per_batch": self.draw.randrange(1, 4), "piece_rows": 2, "endless": endless, "idle_s": 0.0}
        receiver = SteppedReceiver(steps, self.source, self.routes, **options)
        try:
            return self._run(steps, sink, store, runner, receiver, adopting)
        except (Crash, Exception) as error:
            return error
        finally:
            runner.orphan()
            self.steps += steps.count
            self.history.append((steps.count, steps.told))

    def _run(self, steps, sink, store, runner, receiver, adopting):
        record = store.acquire()
        if adopting:
            record = adopt(record, store, sink)
        compare(record, store, sink)
        run = RunIdentity(JOB, record.incarnation, record.fence)
        clock = _Clock()
        with (
            mock.patch("cdc.consumer.ThreadPoolExecutor", lambda **_: LazyExecutor(self.draw)),
            mock.patch("cdc.consumer.wait", wait),
            mock.patch("cdc.cycle.wait", wait),
            mock.patch("cdc.reload.wait", wait),
            mock.patch("cdc.consumer._BUSY_POLL_S", 0.0),
            mock.patch("cdc.consumer.WIND_UP_S", 0.05),
            mock.patch("cdc.commit.FIRST_DELAY_S", 0.0),
        ):
            parts = Parts(run, receiver, self.routes, runner, sink, store)
            consumer = Consumer(parts, LIMITS, sequence=record.fence * FENCE_STEP, now=clock)
            steps.stop = consumer.stop
            return consumer.run(lambda: place(0))

    def lose_state(self):
        """The state file is gone; the next run adopts what the sink holds."""
        self.store = ModelStore(self.draw)
        self.exact = False

    def write_late(self):
        """Some of what executors of dead runs had under way arrives now."""
        while self.late and self.draw.random() < 0.7:
            task = self.late.pop(self.draw.randrange(len(self.late)))
            with suppress(LoadRejected):
                self.sink.write(task.name, task.rows)

    # what must hold whenever nothing runs

    def check(self):
        if self.exact:
            self._check_order()
        found = sorted(self.store.checkpoints.values(), key=lambda one: one.id)
        committed = [one for one in found if one.state is CheckpointState.COMMITTED]
        if not committed:
            return
        done = committed[-1].last.offset
        visible = {seen.op for seen in self.sink.log}
        before = {row.op for transaction in self.source.transactions[:done] for row in transaction}
        assert before <= visible, "what is COMMITTED is not visible"
        prepared = [one for one in found if one.state is CheckpointState.PREPARED]
        assert len(prepared) <= 1, "two checkpoints are PREPARED"
        end = prepared[-1].last.offset if prepared else done
        if self.exact:
            behind = {row.op for transaction in self.source.transactions[end:] for row in transaction}
            assert not behind & visible, "something is visible that was never PREPARED"

    def _check_order(self):
        """Each change is seen once, in order; but a channel with a lost load is loaded whole again, in its checkpoint."""
        newest, checkpoints = {}, {}
        for seen in self.sink.log:
            assert checkpoints.setdefault(seen.op, seen.checkpoint) == seen.checkpoint, f"{seen} became visible twice"
            before = newest.get((seen.target, seen.key))
            if before is not None:
                now = (seen.checkpoint, seen.attempt, seen.op)
                assert (before.checkpoint, before.attempt, before.op) < now, f"{seen} came behind {before}"
            newest[seen.target, seen.key] = seen

    def check_whole(self):
        """Source equals sink, and nothing is left over."""
        self.check()
        expected = {f"ods.{name.split('.')[1]}": rows for name, rows in self.source.state().items()}
        assert {name: rows for name, rows in self.sink.rows.items() if rows} == expected
        assert all(one.state is CheckpointState.COMMITTED for one in self.store.checkpoints.values())
        if self.exact and self.store.checkpoints:
            counts = max(self.store.checkpoints.values(), key=lambda one: one.id).counts
            upserts = sum(one.upserts for one in counts.values())
            deletes = sum(one.deletes for one in counts.values())
            rows = [row for transaction in self.source.transactions for row in transaction]
            assert (upserts, deletes) == (
                sum(not row.deleted for row in rows),
                sum(row.deleted for row in rows),
            ), "the counts in the checkpoint are wrong"


class _Clock:
    """Time goes on when it is looked at."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        self.now += 0.001
        return self.now


def _away(what):
    kind = SourceUnavailable if what == "source" else SinkUnavailable
    return kind(f"The {what} is away.", mend="It passes.")


def _full():
    return CheckpointError("The disk is full.", mend="Free some space.")
