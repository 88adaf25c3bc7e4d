"""Faults at the fault points: wrappers of the contracts that follow a script. Production code has no hooks.

Points: get, decode, task start, prepare, save OPEN, save PREPARED, commit (of a checkpoint), single commit (of one
load, table or transaction in it), save COMMITTED, ack, rollback. Kinds: reject (before the work), after (the work is
done, then it fails), hang (until released), slow, kill and kill_after (SIGKILL to this process), kill_with_next_open
(SIGKILL in the commit of N, when N+1 is saved as OPEN), stop (SIGSTOP to this process before the work; see
``Script.stop``).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from operator import attrgetter

from cdc.errors import CheckpointError, CommitOutcomeUnknown, SinkUnavailable, SourceRewound, SourceUnavailable
from cdc.state.base import CheckpointState

FAULT_POINTS = (
    "get",
    "decode",
    "task start",
    "prepare",
    "save OPEN",
    "save PREPARED",
    "commit",
    "single commit",
    "save COMMITTED",
    "ack",
    "rollback",
)
CONTRACT_FAULT_POINTS = tuple(
    fault_point for fault_point in FAULT_POINTS if fault_point not in ("decode", "single commit")
)  # in every harness
KINDS = ("reject", "after", "hang", "slow", "kill", "kill_after")


@dataclass(frozen=True)
class Fault:
    fault_point: str
    kind: str
    number: int = 1  # the number of the call at that fault point, from 1


class Script:
    """Count the calls at each fault point and break the requested ones."""

    def __init__(self, *faults: Fault, store=None):
        self.faults = {(fault.fault_point, fault.number): fault.kind for fault in faults}
        self.store = store  # the real store, to see when N+1 is OPEN
        self.calls = Counter()
        self.done = []
        self.folder = None  # for the signals between the fault "stop" and another process
        self.hanging, self.released = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def run(self, fault_point, work):
        with self._lock:
            self.calls[fault_point] += 1
            kind = self.faults.get((fault_point, self.calls[fault_point]))
        if kind is None:
            return work()
        self.done.append((fault_point, kind))
        if kind == "reject":
            raise error_at(fault_point, "refused")
        if kind == "slow":
            time.sleep(0.15)
            return work()
        if kind == "stop":
            self.stop()
            return work()
        if kind == "hang":
            self.hanging.set()
            assert self.released.wait(240)
            raise error_at(fault_point, "hung and failed")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "kill_with_next_open":
            deadline = time.monotonic() + 240
            while len(self.store.unfinished()) < 2:
                assert time.monotonic() < deadline, "N+1 was never saved as OPEN"
                time.sleep(0.002)
            os.kill(os.getpid(), signal.SIGKILL)
        result = work()
        # no Batch arrived, so there was nothing to lose: the next call has the fault
        if result is None and fault_point == "get":
            self.done.pop()
            self.faults[fault_point, self.calls[fault_point] + 1] = kind
            return None
        if kind == "kill_after":
            os.kill(os.getpid(), signal.SIGKILL)
        assert kind == "after", kind
        raise error_at(fault_point, "failed after the work")

    def stop(self):
        """Stop this process. After it continues, this thread also waits for the file ``go-N``."""
        number = sum(kind == "stop" for _, kind in self.done)
        (self.folder / f"stop-{number}").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        while not (self.folder / f"go-{number}").exists():
            time.sleep(0.001)


def error_at(fault_point, outcome):
    words = {"message": f"{fault_point} {outcome}.", "hint": "It is retried automatically."}
    if fault_point in ("decode", "task start"):  # the tests of the receivers cover damaged bytes
        return MemoryError(words["message"])
    if fault_point in ("get", "ack", "rollback"):
        return SourceUnavailable(**words)
    if fault_point.startswith("save"):
        return CheckpointError(**words)
    if fault_point in ("commit", "single commit") and outcome.startswith("failed after"):
        return CommitOutcomeUnknown(**words)
    return SinkUnavailable(**words)


class Faulty:
    """Delegate everything."""

    def __init__(self, inner, script):
        self.inner = inner
        self.script = script

    def __getattr__(self, name):
        return getattr(self.inner, name)


class FaultyReceiver(Faulty):
    def get(self, timeout_s):
        return self.script.run("get", lambda: self.inner.get(timeout_s))

    def ack(self, position):
        return self.script.run("ack", lambda: self.inner.ack(position))

    def rollback(self, position):
        return self.script.run("rollback", lambda: self.inner.rollback(position))


class Rewinding(Faulty):
    """A receiver that rewinds after some of its Batches, counted over all receivers that share ``left``."""

    def __init__(self, inner, left):
        super().__init__(inner, None)
        self.left = left  # the number of Batches until each rewind

    def get(self, timeout_s):
        if self.left and not self.left[0]:
            self.left.pop(0)
            raise SourceRewound("The connection was cut.", hint="It is read again.")
        batch = self.inner.get(timeout_s)
        if batch is not None and self.left:
            self.left[0] -= 1
        return batch


class FaultySink(Faulty):
    def part_writer(self, table):
        write = self.inner.part_writer(table)
        return lambda name, rows: self.script.run("prepare", lambda: write(name, rows))

    def commit(self, loads, checkpoint):
        return self.script.run("commit", lambda: self.inner.commit(loads, checkpoint))


class FaultyRunner(Faulty):
    def submit(self, tasks):
        return self.script.run("task start", lambda: self.inner.submit(tasks))

    def submit_reading(self, reading):
        return self.script.run("task start", lambda: self.inner.submit_reading(reading))


class FaultyStore(Faulty):
    def save(self, checkpoint):
        # checkpoint 0 and empty cycles are saved as COMMITTED too; this fault point is the save after a commit
        if checkpoint.state is CheckpointState.COMMITTED and not checkpoint.rows:
            return self.inner.save(checkpoint)
        return self.script.run(f"save {checkpoint.state.value}", lambda: self.inner.save(checkpoint))


def put_in(harness, script, one_commit=None):
    """Wrap the parts of ``harness``. ``one_commit``: the path of the sink method that commits one load."""
    harness.wrap_receiver = lambda inner: FaultyReceiver(inner, script)
    harness.wrap_sink = lambda inner: FaultySink(inner, script)
    harness.wrap_runner = lambda inner: FaultyRunner(inner, script)
    harness.wrap_store = lambda inner: FaultyStore(inner, script)
    if one_commit:
        path, _, method = one_commit.rpartition(".")
        owner = attrgetter(path)(harness.sink) if path else harness.sink
        work = getattr(owner, method)
        setattr(owner, method, lambda *arguments: script.run("single commit", lambda: work(*arguments)))
    script.store = harness.store
    return script
