"""Faults at the seams: wrappers of the contracts that follow a script. Production code knows nothing of them.

Seams: get, decode, task start, prepare, save OPEN, save PREPARED, commit (of a checkpoint), single commit (of one load,
table or transaction in it), save COMMITTED, ack, rollback. Kinds: reject (before the work), after (the work is done,
then it fails), hang (until released), slow, kill and kill_after (SIGKILL to this process), kill_with_next_open (SIGKILL
in the commit of N, as soon as N+1 is saved as OPEN).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from operator import attrgetter

from cdc.checkpoint import CheckpointState
from cdc.errors import CheckpointError, CommitUnknown, SinkUnavailable, SourceRewound, SourceUnavailable

SEAMS = (
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
CONTRACT_SEAMS = tuple(seam for seam in SEAMS if seam not in ("decode", "single commit"))  # in every harness
KINDS = ("reject", "after", "hang", "slow", "kill", "kill_after")


@dataclass(frozen=True)
class Fault:
    seam: str
    kind: str
    number: int = 1  # which call at that seam, from 1


class Script:
    """Counts calls at each seam and breaks the ones that were asked for."""

    def __init__(self, *faults: Fault, store=None):
        self.faults = {(fault.seam, fault.number): fault.kind for fault in faults}
        self.store = store  # the real one, to see N+1 become OPEN
        self.calls = Counter()
        self.done = []
        self.hanging, self.released = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def run(self, seam, work):
        with self._lock:
            self.calls[seam] += 1
            kind = self.faults.get((seam, self.calls[seam]))
        if kind is None:
            return work()
        self.done.append((seam, kind))
        if kind == "reject":
            raise error_at(seam, "refused")
        if kind == "slow":
            time.sleep(0.15)
            return work()
        if kind == "hang":
            self.hanging.set()
            assert self.released.wait(240)
            raise error_at(seam, "hung and failed")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "kill_with_next_open":
            deadline = time.monotonic() + 240
            while len(self.store.unfinished()) < 2:
                assert time.monotonic() < deadline, "N+1 was never saved as OPEN"
                time.sleep(0.002)
            os.kill(os.getpid(), signal.SIGKILL)
        result = work()
        if result is None and seam == "get":  # nothing came, so there was nothing to lose: the next call has the fault
            self.done.pop()
            self.faults[seam, self.calls[seam] + 1] = kind
            return None
        if kind == "kill_after":
            os.kill(os.getpid(), signal.SIGKILL)
        assert kind == "after", kind
        raise error_at(seam, "failed after the work")


def error_at(seam, told):
    words = {"message": f"{seam} {told}.", "mend": "It passes by itself."}
    if seam in ("decode", "task start"):  # bytes that turned are a matter of the receivers' own tests
        return MemoryError(words["message"])
    if seam in ("get", "ack", "rollback"):
        return SourceUnavailable(**words)
    if seam.startswith("save"):
        return CheckpointError(**words)
    if seam in ("commit", "single commit") and told.startswith("failed after"):
        return CommitUnknown(**words)
    return SinkUnavailable(**words)


class Faulty:
    """Passes everything on."""

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
    """A receiver that rewinds behind some of its Batches, counted over all receivers that share ``left``."""

    def __init__(self, inner, left):
        super().__init__(inner, None)
        self.left = left  # how many Batches until each rewind

    def get(self, timeout_s):
        if self.left and not self.left[0]:
            self.left.pop(0)
            raise SourceRewound("The line was cut.", mend="It is read again.")
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


class FaultyStore(Faulty):
    def save(self, checkpoint):
        # checkpoint 0 and empty cycles are saved as COMMITTED too; the seam is the one behind a commit
        if checkpoint.state is CheckpointState.COMMITTED and not checkpoint.rows:
            return self.inner.save(checkpoint)
        return self.script.run(f"save {checkpoint.state.value}", lambda: self.inner.save(checkpoint))


def put_in(harness, script, one_commit=None):
    """``one_commit``: where the harness's sink has the method that commits one load."""
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
