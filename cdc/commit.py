"""Committer: brings a closed cycle over PREPARED to COMMITTED. The order of the lines is the promise of the program."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby

from cdc.batch import PreparedLoad, TargetState
from cdc.checkpoint import Checkpoint, CheckpointState, CheckpointStore
from cdc.cycle import Closed, GivenUp
from cdc.errors import CdcError, CommitUnknown, LoadLost, SinkBusy, SinkUnavailable, TargetLost
from cdc.position import Position
from channels.label import label_for
from channels.sinks.base import CheckpointMark, LoadState, Sink
from channels.task import RunIdentity

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0  # a person who mends the cause waits no longer than this for the job to notice

_GONE = (LoadState.UNKNOWN, LoadState.ABORTED)

_log = logging.getLogger(__name__)


def delays() -> Iterator[float]:
    """Seconds between attempts: doubling, with a spread so that many jobs do not come back together."""
    delay = FIRST_DELAY_S
    while True:
        yield delay * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
        delay = min(2 * delay, LONGEST_DELAY_S)


def utc_now() -> str:
    """Now, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Committer:
    """Steps 3 to 6 of the commit cycle. Calls: one at a time, from the Consumer's commit thread or its own."""

    def __init__(
        self,
        run: RunIdentity,
        store: CheckpointStore,
        sink: Sink,
        stopping: threading.Event,
        busy: Callable[[], None] = lambda: None,
    ) -> None:
        """``busy``: told when the sink asks for patience."""
        self._run = run
        self._store = store
        self._sink = sink
        self._stopping = stopping  # ends waiting for a sink that is away; the checkpoint stays PREPARED
        self._busy = busy
        self.trouble: CdcError | None = None  # what the commit waits for, while it does
        self.merge_s = 0.0  # how long the sink took for the last commit, without waiting for a sink that was away
        self._losses = delays()  # pauses for loads that are lost again and again
        self._has_lost = False  # since the last commit

    def finish(self, closed: Closed) -> Checkpoint:
        """Bring ``closed`` to COMMITTED.

        Raises: GivenUp and what Tasks raise - it is still OPEN; LoadLost, CdcError - it is PREPARED.
        """
        began = time.monotonic()
        loads = closed.loads()
        prepared = replace(
            closed.checkpoint,
            state=CheckpointState.PREPARED,
            loads=loads,
            targets=self._identified(closed.checkpoint, loads),
            seconds={**closed.checkpoint.seconds, "prepare": time.monotonic() - began},
        )
        self._store.save(prepared)
        closed.checkpoint = prepared
        closed.checkpoint = self.roll_forward(prepared)
        return closed.checkpoint

    def roll_forward(self, prepared: Checkpoint) -> Checkpoint:
        """Commit a PREPARED checkpoint, save it as COMMITTED and give it back. Waits for a sink that is away.

        Raises: LoadLost - loads have to be made again first; GivenUp - the job stops meanwhile; CdcError.
        """
        began = time.monotonic()
        if prepared.loads:
            try:
                self._commit(prepared)
            except LoadLost as error:
                self._pause(prepared, error)
                raise
            self._losses, self._has_lost = delays(), False
        commit_s, committed_at = time.monotonic() - began, utc_now()
        committed = replace(
            prepared,
            state=CheckpointState.COMMITTED,
            loads=(),
            committed_at=committed_at,
            seconds={**prepared.seconds, "commit": commit_s},
            counts={
                source: replace(counts, last_committed_at=counts.last_committed_at or committed_at)
                for source, counts in prepared.counts.items()
            },
            targets={
                **prepared.targets,
                **{
                    load.table: TargetState(prepared.targets[load.table].identity, prepared.id)
                    for load in prepared.loads
                    if load.table in prepared.targets  # a state of an older version has none
                },
            },
        )
        self._store.save(committed)
        _tell(prepared, commit_s)
        return replace(committed, seconds={**committed.seconds, "save": time.monotonic() - began - commit_s})

    def _identified(self, opened: Checkpoint, loads: tuple[PreparedLoad, ...]) -> Mapping[str, TargetState]:
        """Return ``opened.targets`` with the identity of each table that gets its first rows.

        Raises: TargetLost - a table was removed since its loads were prepared; SinkUnavailable.
        """
        new = sorted({load.table for load in loads} - opened.targets.keys())
        if not new:
            return opened.targets
        found = self._sink.target_states(self._run.job, self._run.incarnation, new)
        lost = [name for name in new if name not in found]
        if lost:
            raise TargetLost(
                f"The target {', '.join(lost)} was removed before its first commit.",
                mend=f"`cdc resume {self._run.job}` creates it again and reads its rows again.",
            )
        return {**opened.targets, **{name: TargetState(found[name].identity) for name in new}}

    def give_back(self, prepared: Checkpoint, before: Checkpoint) -> Checkpoint:
        """Make a turn whose loads are lost COMMITTED without them: its chunks are read again in a later turn.

        What is visible of it already does no harm, since its rows are no older than the place that it stands at.
        """
        _log.warning("chunks of checkpoint %d are lost at the sink, and are read again", prepared.id)
        self._sink.abort(self._run.job, self._run.incarnation, prepared.fence, prepared.id)
        committed = replace(
            prepared,
            state=CheckpointState.COMMITTED,
            loads=(),
            committed_at=utc_now(),
            counts=before.counts,
            snapshots=before.snapshots,
        )
        self._store.save(committed)
        return committed

    def _commit(self, prepared: Checkpoint) -> None:
        run, is_unknown = self._run, False
        mark = CheckpointMark(
            run.job, run.incarnation, run.fence, prepared.id, prepared.first, last_of(prepared), prepared.sequence
        )
        for delay in delays():
            try:
                self._store.check_fence()
                if not (is_unknown and self._is_committed(prepared.loads)):
                    began = time.monotonic()
                    self._sink.commit(prepared.loads, mark)
                    self.merge_s = time.monotonic() - began
                self.trouble = None
                return
            except (SinkUnavailable, SinkBusy, CommitUnknown) as error:
                wait_s = delay
                if isinstance(error, SinkBusy):
                    self._busy()
                    wait_s = max(delay, error.after_s)
                if isinstance(error, CommitUnknown) and not is_unknown:
                    is_unknown, wait_s = True, 0.0  # the answer was lost, not the sink: ask at once
                self.trouble = error
                _log.warning("commit of checkpoint %d waits: %s", prepared.id, error)
                if self._stopping.wait(wait_s):
                    raise GivenUp(f"while the commit waits: {error}") from error

    def _pause(self, prepared: Checkpoint, lost: LoadLost) -> None:
        """What is lost once is loaded again at once; what is lost every time has a cause that somebody has to see.

        Raises: GivenUp - the job stops meanwhile.
        """
        if self._has_lost:
            self.trouble = lost
            _log.warning("checkpoint %d: its loads were lost again: %s", prepared.id, lost)
            if self._stopping.wait(next(self._losses)):
                raise GivenUp(f"while loads are lost again and again: {lost}") from lost
        self._has_lost = True

    def _is_committed(self, loads: tuple[PreparedLoad, ...]) -> bool:
        states = [self._sink.state(load) for load in loads]
        gone = [load for load, state in zip(loads, states, strict=True) if state in _GONE]
        if gone:
            raise LoadLost(
                "The sink does not know loads that it was to commit.",
                mend="They are made again by themselves.",
                labels=[label_for(load.name) for load in gone],
            )
        return all(state is LoadState.COMMITTED for state in states)


def is_turn(checkpoint: Checkpoint) -> bool:
    """Whether a closed checkpoint is a snapshot's turn: the stream did not move in it."""
    return checkpoint.first == checkpoint.last


def last_of(checkpoint: Checkpoint) -> Position:
    """Where a closed checkpoint ends."""
    if checkpoint.last is None:
        raise RuntimeError(f"checkpoint {checkpoint.id} is {checkpoint.state.value} and has no end")
    return checkpoint.last


def _tell(prepared: Checkpoint, commit_s: float) -> None:
    for name, parts in groupby(prepared.loads, key=lambda load: replace(load.name, part=0)):
        loads = list(parts)
        words = {
            "label": label_for(name),
            "rows": sum(load.rows for load in loads),
            "bytes": sum(load.bytes for load in loads),
            "seconds": round(commit_s, 3),
            "position": str(prepared.last),
        }
        _log.info("committed", extra=words)
