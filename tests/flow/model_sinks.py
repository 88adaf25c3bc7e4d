"""Sinks in memory, as durable as a server: one for each kind of commit that ``channels.sinks`` has.

Each change of one is a step that a crash can come before or behind; between two steps another process may come.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from cdc.batch import PreparedLoad, TargetState
from cdc.errors import CommitUnknown, LoadLost, LoadRejected, SinkUnavailable
from cdc.schema import DELETED, SEQUENCE
from channels.label import label_for, label_prefix
from channels.sinks.base import CheckpointMark, LoadState, foreign

AWAY = SinkUnavailable("The sink is away.", mend="It passes.")


class Seen(NamedTuple):
    target: str
    key: int
    op: int
    checkpoint: int
    attempt: int
    is_turn: bool  # a row that was there before, and not a change out of the stream


class TwoPhases:
    """Prepared loads are committed one by one: Doris, StarRocks table by table."""

    tasks_in_order = False
    is_hidden = True  # nothing is seen before its commit
    is_claimed_by_file = False  # which another process may hold
    refuses_aborted = True  # what comes late under an aborted label is not kept

    def __init__(self, draw):
        self.tells_keys = draw.random() < 0.5
        self.has_locks = False
        self.loads = {}  # label -> [state, target, rows]
        self.aborted = set()  # prefixes
        self.rows = {}  # target -> key -> op
        self.log = []  # Seen, in the order in which rows became visible
        self.mark = None

    # who may write

    def claim(self, process, mark):
        """By the row that tells how far the job has come."""
        known = self.mark
        if known is not None and known.incarnation == mark.incarnation:
            if known.fence > mark.fence:
                raise foreign(known)
            self.mark = replace(known, fence=mark.fence)
            return
        if known is not None and known.sequence >= mark.sequence:
            raise foreign(known)
        self.mark = mark

    @property
    def owner(self):
        """The incarnation that may write."""
        return self.mark and self.mark.incarnation

    def check_claim(self, mark):
        known = self.mark
        if known is not None and (known.incarnation != mark.incarnation or known.fence > mark.fence):
            raise foreign(known)

    # loads

    def write(self, name, rows):
        label = label_for(name)
        if any(label.startswith(prefix) for prefix in self.aborted):
            raise LoadRejected("The label was aborted.", mend="Use a new one.", label=label)
        known = self.loads.get(label)
        if known is not None and known[0] is not LoadState.PREPARED:
            raise LoadRejected("The label is used up.", mend="Use a new one.", label=label)
        self.loads[label] = [LoadState.PREPARED, name.channel, rows]
        return _prepared(name, rows)

    def state(self, load):
        found = self.loads.get(label_for(load.name))
        return found[0] if found else LoadState.UNKNOWN

    def commit(self, step, loads, mark: CheckpointMark):
        lost = []
        for load in loads:
            if not step("apply", lambda load=load: self._apply(load, mark), reject=AWAY, behind=_unknown()):
                lost.append(load)
        if lost:
            raise _lost(lost)
        step("mark", lambda: setattr(self, "mark", mark), behind=_unknown())

    def _apply(self, load, mark):
        """Whether the load is visible."""
        found = self.loads.get(label_for(load.name))
        if found is not None and found[0] is LoadState.PREPARED:
            self._show(load.name, found[2], mark.first == mark.position)
            found[:] = LoadState.COMMITTED, load.table, []
        return found is not None and found[0] is LoadState.COMMITTED

    def _show(self, name, rows, is_turn):
        target = self.rows.setdefault(name.channel, {})
        for row in rows:
            self.log.append(Seen(name.channel, row["id"], row["op"], name.checkpoint, name.attempt, is_turn))
            if not self._wins(name.channel, row):
                continue
            if row[DELETED]:
                target.pop(row["id"], None)
            else:
                target[row["id"]] = row["op"]

    def _wins(self, target, row):
        return True

    def abort(self, *run_and_checkpoint):
        prefix = label_prefix(*run_and_checkpoint)
        self.aborted.add(prefix)
        for label, found in self.loads.items():
            if label.startswith(prefix) and found[0] is LoadState.PREPARED:
                found[:] = LoadState.ABORTED, found[1], []

    def lose(self, draw):
        """As a sink does whose prepared loads expire."""
        for label in self.prepared():
            if draw.random() < 0.5:
                del self.loads[label]

    def prepared(self):
        return sorted(label for label, found in self.loads.items() if found[0] is LoadState.PREPARED)

    def target_states(self, incarnation, targets):
        return {target: TargetState(f"id-{target}", None) for target in targets}

    def keys(self, table):
        return pa.table({"id": pa.array(sorted(self.rows.get(table.name, {})), pa.int32())})


class TableTransactions(TwoPhases):
    """All loads of a table and its number of the checkpoint at once: Delta."""

    is_claimed_by_file = True

    def __init__(self, draw):
        super().__init__(draw)
        self.tells_keys = True
        self.has_locks = draw.random() < 0.5  # not every file system has
        self.done = {}  # incarnation and target -> checkpoint
        self.marks = {}  # by target
        self.holder, self.claimed = None, None
        self.names = {}  # process -> the name under which it claimed

    @property
    def mark(self):
        return max(self.marks.values(), key=lambda mark: (mark.fence, mark.checkpoint), default=None)

    @mark.setter
    def mark(self, _):
        pass

    def claim(self, process, mark):
        """By a lock that goes with its process, where there are locks, and by the name in the file."""
        if self.has_locks and self.holder not in (None, process) and self.holder.is_alive:
            raise foreign(mark)
        if self.names.get(process, self.claimed) != self.claimed:
            raise foreign(mark)
        self.holder, self.claimed = process, (mark.incarnation, mark.fence)
        self.names[process] = self.claimed

    @property
    def owner(self):
        return self.claimed and self.claimed[0]

    def check_claim(self, mark):
        if self.claimed != (mark.incarnation, mark.fence):
            raise foreign(mark)

    def target_states(self, incarnation, targets):
        """Each table proves its checkpoint."""
        return {target: TargetState(f"id-{target}", self.done.get((incarnation, target), -1)) for target in targets}

    def state(self, load):
        done = self.done.get((load.name.incarnation, load.table), -1)
        if done > load.name.checkpoint:
            raise foreign(self.marks[load.table])
        if done == load.name.checkpoint:
            return LoadState.COMMITTED
        return super().state(load)

    def commit(self, step, loads, mark):
        lost, tables = [], {}
        for load in loads:
            tables.setdefault(load.table, []).append(load)
        for table, mine in tables.items():
            lost += step("merge", lambda t=table, m=mine: self._merge(t, m, mark), reject=AWAY, behind=_unknown())
        if lost:
            raise _lost(lost)

    def _merge(self, table, loads, mark):
        """The loads that are lost."""
        done = self.done.get((mark.incarnation, table), -1)
        if done > mark.checkpoint:
            raise foreign(self.marks[table])
        if done == mark.checkpoint:
            return []
        lost = [load for load in loads if super(TableTransactions, self).state(load) is not LoadState.PREPARED]
        if not lost:
            for load in loads:
                self._apply(load, mark)
            self.done[mark.incarnation, table] = mark.checkpoint
            self.marks[table] = mark
        return lost


class OneTransaction(TwoPhases):
    """All loads of a checkpoint and its mark at once; what is lost is all of it: StarRocks over several tables."""

    tasks_in_order = True
    refuses_aborted = False

    def __init__(self, draw):
        super().__init__(draw)
        self.open = {}  # who began it -> its number, and the labels in it in the order of arrival
        self.begun = 0

    @staticmethod
    def _of(name):
        return name.job, name.incarnation, name.fence, name.checkpoint, name.attempt

    def write(self, name, rows):
        label, owner = label_for(name), self._of(name)
        if self.loads.get(label, [None])[0] is LoadState.COMMITTED:
            raise LoadRejected("The transaction is over.", mend="Use a new label.", label=label)
        if owner not in self.open:  # one that was given up is begun anew, by another number
            self.begun += 1
            self.open[owner] = self.begun, {}
        number, names = self.open[owner]
        names[label] = name
        self.loads[label] = [LoadState.PREPARED, name.channel, rows]
        return _prepared(name, rows, transaction=number)

    def commit(self, step, loads, mark):
        if not step("commit whole", lambda: self._commit_whole(loads, mark), reject=AWAY, behind=_unknown()):
            raise _lost(loads)

    def _commit_whole(self, loads, mark):
        owners = {(self._of(load.name), load.detail["transaction"]) for load in loads}
        (owner, number), *others = owners
        if not others and self.open.get(owner, (None, {}))[0] == number:
            for label, name in self.open.pop(owner)[1].items():
                self._show(name, self.loads[label][2], mark.first == mark.position)
                self.loads[label] = [LoadState.COMMITTED, name.channel, []]
            self.mark = mark
            return True
        if self.mark.incarnation == mark.incarnation and self.mark.checkpoint > mark.checkpoint:
            raise foreign(self.mark)
        if self.mark.incarnation == mark.incarnation and self.mark.checkpoint == mark.checkpoint:
            return True
        for owner, _ in owners:  # what is not committed now must never be
            self._drop(owner)
        return False

    def _drop(self, owner):
        for label in self.open.pop(owner, (0, ()))[1]:
            del self.loads[label]

    def abort(self, *run_and_checkpoint):
        for owner in [owner for owner in self.open if owner[:4] == run_and_checkpoint]:
            self._drop(owner)

    def lose(self, draw):
        for owner in sorted(self.open):
            if draw.random() < 0.5:
                self._drop(owner)


class PlainLoads(TwoPhases):
    """Rows are visible as they load, and the larger sequence wins: Doris without two phases."""

    is_hidden = False

    def __init__(self, draw):
        super().__init__(draw)
        self.tells_keys = False
        self.newest = {}  # target and key -> sequence

    def write(self, name, rows):
        label = label_for(name)
        if label not in self.loads:  # a repeat is harmless
            self.loads[label] = [LoadState.COMMITTED, name.channel, []]
            self._show(name, rows, is_turn=False)
        return _prepared(name, rows)

    def _wins(self, target, row):
        if row[SEQUENCE] < self.newest.get((target, row["id"]), 0):
            return False
        self.newest[target, row["id"]] = row[SEQUENCE]
        return True

    def abort(self, *run_and_checkpoint):
        pass


KINDS_OF_SINK = (TwoPhases, TableTransactions, OneTransaction, PlainLoads)


class SteppedSink:
    """One process' view of a sink. Implements Sink."""

    def __init__(self, model, steps):
        self.model, self.steps = model, steps
        self.tasks_in_order, self.tells_keys = model.tasks_in_order, model.tells_keys

    def ensure_table(self, table):
        self.steps.step("ensure", lambda: None, reject=AWAY)

    def part_writer(self, table):
        return None  # the runner of these tests writes by itself

    def claim(self, mark, targets):
        self.steps.step("claim", lambda: self.model.claim(self.steps, mark), reject=AWAY)

    def commit(self, loads, checkpoint: CheckpointMark):
        model, steps = self.model, self.steps
        steps.step("commit", lambda: None, reject=AWAY)
        # a turn is short: faults at drawn steps seldom meet its loads
        if steps.loses or (steps.schedule and checkpoint.first == checkpoint.position and steps.draw.random() < 0.3):
            steps.loses = False
            model.lose(steps.draw)
        steps.is_committing = True
        try:
            model.check_claim(checkpoint)
            model.commit(steps.step, loads, checkpoint)
        finally:
            steps.is_committing = False

    def abort(self, *run_and_checkpoint):
        self.steps.step("abort", lambda: self.model.abort(*run_and_checkpoint), reject=AWAY)

    def state(self, load):
        return self.steps.step("state", lambda: self.model.state(load), reject=AWAY)

    def last_checkpoint(self, job):
        return self.steps.step("last_checkpoint", lambda: self.model.mark, reject=AWAY)

    def identity(self, *, create):
        return self.steps.step("identity", lambda: "model", reject=AWAY)

    def repair(self, target):
        raise NotImplementedError("no file of these tables can be lost")

    def target_states(self, job, incarnation, targets):
        return self.steps.step("target_states", lambda: self.model.target_states(incarnation, targets), reject=AWAY)

    def keys(self, table):
        return self.steps.step("keys", lambda: self.model.keys(table), reject=AWAY)

    def maintain(self, tables):
        self.steps.step("maintain", lambda: None, reject=AWAY)


def _prepared(name, rows, **detail):
    return PreparedLoad(name, name.channel, len(rows), 10 * len(rows), detail)


def _unknown():
    return CommitUnknown("No answer.", mend="It is asked for.")


def _lost(loads):
    return LoadLost("Loads are gone.", mend="They are loaded again.", labels=[label_for(load.name) for load in loads])
