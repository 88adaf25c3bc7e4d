"""Sinks in memory, as durable as a server: one for each kind of commit in ``channels.sinks``.

Each change of a sink is a step. A crash can happen before or after it, and between two steps another process may run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from cdc.errors import CommitOutcomeUnknown, LoadRejected, PreparedLoadLost, SinkUnavailable, TargetMismatch
from cdc.model.batch import PreparedLoad, TargetState
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import AlterAction, LoadState, SinkCheckpoint, ownership_error, refuse_newer_run
from channels.sinks.key_pages import key_page
from channels.sinks.labels import label_for, label_prefix

AWAY = SinkUnavailable("The sink is unavailable.", hint="It is retried.")


class Seen(NamedTuple):
    target: str
    key: int
    op: int
    checkpoint: int
    attempt: int
    is_snapshot: bool  # an existing row, not a change of the stream


class TwoPhases:
    """Prepared loads are committed one by one: StarRocks table by table."""

    tasks_in_order = False
    is_hidden = True  # nothing is visible before its commit
    is_claimed_by_file = False  # a file that another process may hold
    refuses_aborted = True  # a late write with an aborted label is discarded
    alters_in_one_commit = False  # each step is a job that the sink runs after its statement

    def __init__(self, draw):
        self.lists_keys = draw.random() < 0.5
        self.has_locks = False
        self.loads = {}  # label -> [state, target, rows]
        self.aborted = set()  # prefixes
        self.identities = {}  # target -> number, of existing tables
        self.created = 0
        self.rows = {}  # target -> key -> column -> value
        self.columns = {}  # target -> column -> type
        self.jobs = {}  # target -> the step of a statement whose job has not ended
        self.altered = []  # target, position after the source's statement, step: each time that columns changed
        self.faults = []  # what no sink would accept
        self.log = []  # Seen, in the order in which rows became visible
        self.mark = None

    # ownership

    def acquire_ownership(self, process, mark):
        """Acquire ownership by the row with the progress of the job."""
        known = self.mark
        refuse_newer_run(known, mark)
        same = known is not None and known.incarnation == mark.incarnation
        self.mark = replace(known, fence=mark.fence) if same else mark

    @property
    def owner(self):
        """Return the incarnation that may write."""
        return self.mark and self.mark.incarnation

    def check_ownership(self, mark):
        known = self.mark
        if known is not None and (known.incarnation != mark.incarnation or known.fence > mark.fence):
            raise ownership_error(known)

    # loads

    def write(self, name, rows):
        label = label_for(name)
        if any(label.startswith(prefix) for prefix in self.aborted):
            raise LoadRejected("The label was aborted.", hint="Use a new one.", label=label)
        known = self.loads.get(label)
        if known is not None and known[0] is not LoadState.PREPARED:
            raise LoadRejected("The label is used up.", hint="Use a new one.", label=label)
        if known is not None and known[2] != rows:  # a cluster keeps the first rows, and answers that it has the load
            self.faults.append(f"the label {label} was used for other rows")
        self.loads[label] = [LoadState.PREPARED, name.channel, rows]
        return _prepared(name, rows)

    def state(self, load):
        found = self.loads.get(label_for(load.name))
        return found[0] if found else LoadState.UNKNOWN

    def commit(self, step, loads, mark: SinkCheckpoint):
        lost = []
        for load in loads:
            if not step("apply", lambda load=load: self._apply(load, mark), reject=AWAY, error_after=_unknown()):
                lost.append(load)
        if lost:
            raise _lost(lost)
        step("mark", lambda: setattr(self, "mark", mark), error_after=_unknown())

    def _apply(self, load, mark):
        """Make the load visible. Return whether it is."""
        found = self.loads.get(label_for(load.name))
        if found is not None and found[0] is LoadState.PREPARED:
            self._show(load.name, found[2], mark.first == mark.position)
            found[:] = LoadState.COMMITTED, load.table, []
        return found is not None and found[0] is LoadState.COMMITTED

    def _show(self, name, rows, is_snapshot):
        target = self.rows.setdefault(name.channel, {})
        for row in rows:
            self.log.append(Seen(name.channel, row["id"], row["op"], name.checkpoint, name.attempt, is_snapshot))
            if not self._wins(name.channel, row):
                continue
            if row[DELETED]:
                target.pop(row["id"], None)
                continue
            values = {column: value for column, value in row.items() if column not in ("id", DELETED, SEQUENCE)}
            columns = self.columns[name.channel]
            if not values.keys() <= columns.keys():
                self.faults.append(f"a load of {name.channel} has {sorted(values)}, the table has {sorted(columns)}")
            target[row["id"]] = {column: values.get(column) for column in columns}

    def _wins(self, target, row):
        return True

    def abort(self, *run_and_checkpoint):
        prefix = label_prefix(*run_and_checkpoint)
        self.aborted.add(prefix)
        for label, found in self.loads.items():
            if label.startswith(prefix) and found[0] is LoadState.PREPARED:
                found[:] = LoadState.ABORTED, found[1], []

    def lose(self, draw):
        """Lose prepared loads, as a sink whose prepared loads expire."""
        for label in self.prepared():
            if draw.random() < 0.5:
                del self.loads[label]

    def prepared(self):
        return sorted(label for label, found in self.loads.items() if found[0] is LoadState.PREPARED)

    def target_states(self, incarnation, targets):
        return {target: TargetState(self.identities[target]) for target in targets if target in self.identities}

    def create(self, target, columns):
        """Create a table. Raises: TargetMismatch - it exists and lacks one of ``columns``, or has it with another type."""
        if target not in self.identities:
            self.created += 1
            self.identities[target] = f"id-{self.created}"
            self.columns[target] = dict(columns)
        if not columns.items() <= self.columns[target].items():
            raise TargetMismatch(f"{target} has {self.columns[target]}, not {columns}.", hint="Correct it.")

    def remove(self, target):
        """Drop the table with the loads prepared for it."""
        del self.identities[target]
        self.rows.pop(target, None)
        self.columns.pop(target)
        self.jobs.pop(target, None)
        for label in self.prepared():
            if self.loads[label][1] == target:
                del self.loads[label]

    def copy(self, target):
        """Return a copy of a table that can be restored; None if a restored table proves nothing."""
        return None

    # columns

    def alter(self, step, target, steps, mark):
        """Make one change of a column: a statement, and a job that may end after the process that began it."""
        (one,) = steps
        self._require(target)
        if target in self.jobs:
            step("await", lambda: self._end_job(target), reject=AWAY, error_after=AWAY)
        if _image(self.columns[target], one):
            return
        step("alter", lambda: self.jobs.update({target: (one, mark)}), reject=AWAY, error_after=AWAY)
        step("await", lambda: self._end_job(target), reject=AWAY, error_after=AWAY)

    def _require(self, target):
        if target not in self.identities:
            raise TargetMismatch(f"There is no table {target}.", hint="Create it.")

    def _end_job(self, target):
        if target in self.jobs:
            self._take(target, *self.jobs.pop(target))

    def _take(self, target, one, mark):
        self.altered.append((target, mark.position.offset, one))
        columns, rows = dict(self.columns[target]), {}
        old, new = one.before and one.before.name, one.after and one.after.name
        if _image(columns, one):
            raise AssertionError("a step was taken twice")
        fill = one.fill.as_py() if one.fill is not None else None
        for key, values in self.rows.get(target, {}).items():
            rows[key] = _changed(values, old, new, fill)
        self.columns[target] = _changed(columns, old, new, None)
        if new is not None:
            self.columns[target][new] = one.after.arrow
        self.rows[target] = rows

    def keys(self, table, after, limit):
        return key_page(self._keys(table), after, limit)

    def _keys(self, table):
        return pa.table({"id": pa.array(sorted(self.rows.get(table.name, {})), pa.int32())})


class TableTransactions(TwoPhases):
    """All loads of a table and its checkpoint number together: Delta."""

    is_claimed_by_file = True

    def __init__(self, draw):
        super().__init__(draw)
        self.lists_keys = True
        self.has_locks = draw.random() < 0.5  # not every file system has locks
        self.done = {}  # incarnation and target -> checkpoint
        self.marks = {}  # by target
        self.holder, self.acquired = None, None
        self.names = {}  # process -> the name with which it acquired ownership

    alters_in_one_commit = True

    def alter(self, step, target, steps, mark):
        self._require(target)
        step("alter", lambda: self._alter(target, steps, mark), reject=AWAY, error_after=_unknown())

    def _alter(self, target, steps, mark):
        done = self.done.get((mark.incarnation, target), -1)
        if done > mark.checkpoint:
            raise ownership_error(self.marks[target])
        if done < mark.checkpoint:
            for one in steps:
                if not _image(self.columns[target], one):
                    self._take(target, one, mark)
            self.done[mark.incarnation, target] = mark.checkpoint
            self.marks[target] = mark

    @property
    def mark(self):
        return max(self.marks.values(), key=lambda mark: (mark.fence, mark.checkpoint), default=None)

    @mark.setter
    def mark(self, _):
        pass

    def acquire_ownership(self, process, mark):
        """Acquire ownership by a lock of the process, if the file system has locks, and by the name in the file."""
        if self.has_locks and self.holder not in (None, process) and self.holder.is_alive:
            raise ownership_error(mark)
        if self.names.get(process, self.acquired) != self.acquired:
            raise ownership_error(mark)
        refuse_newer_run(self.mark, mark)
        self.holder, self.acquired = process, (mark.incarnation, mark.fence)
        self.names[process] = self.acquired

    @property
    def owner(self):
        return self.acquired and self.acquired[0]

    def check_ownership(self, mark):
        if self.acquired != (mark.incarnation, mark.fence):
            raise ownership_error(mark)

    def target_states(self, incarnation, targets):
        """Return the states. Each table proves its checkpoint."""
        return {
            target: TargetState(self.identities[target], self.done.get((incarnation, target), -1))
            for target in targets
            if target in self.identities
        }

    def remove(self, target):
        super().remove(target)
        self.marks.pop(target, None)
        self.done = {key: number for key, number in self.done.items() if key[1] != target}

    def copy(self, target):
        done = {key: number for key, number in self.done.items() if key[1] == target}
        rows, columns = dict(self.rows.get(target, {})), self.columns[target]
        return self.identities[target], rows, columns, self.marks.get(target), done

    def restore(self, target, copy):
        self.remove(target)
        self.identities[target], rows, self.columns[target], mark, done = copy
        self.rows[target] = dict(rows)
        self.done |= done
        if mark is not None:
            self.marks[target] = mark

    def state(self, load):
        done = self.done.get((load.name.incarnation, load.table), -1)
        if done > load.name.checkpoint:
            raise ownership_error(self.marks[load.table])
        if done == load.name.checkpoint:
            return LoadState.COMMITTED
        return super().state(load)

    def commit(self, step, loads, mark):
        lost, tables = [], {}
        for load in loads:
            tables.setdefault(load.table, []).append(load)
        for table, mine in tables.items():
            lost += step("merge", lambda t=table, m=mine: self._merge(t, m, mark), reject=AWAY, error_after=_unknown())
        if lost:
            raise _lost(lost)

    def _merge(self, table, loads, mark):
        """Merge the loads. Return the lost ones."""
        done = self.done.get((mark.incarnation, table), -1)
        if done > mark.checkpoint:
            raise ownership_error(self.marks[table])
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
    """All loads of a checkpoint and its mark together; a loss concerns all of them: StarRocks over several tables."""

    tasks_in_order = True
    refuses_aborted = False

    def __init__(self, draw):
        super().__init__(draw)
        self.open = {}  # owner -> its number, and the labels in it in the order of arrival
        self.count = 0

    @staticmethod
    def _of(name):
        return name.job, name.incarnation, name.fence, name.checkpoint, name.attempt

    def write(self, name, rows):
        label, owner = label_for(name), self._of(name)
        if self.loads.get(label, [None])[0] is LoadState.COMMITTED:
            raise LoadRejected("The transaction is over.", hint="Use a new label.", label=label)
        if owner not in self.open:  # a cancelled transaction is started again with another number
            self.count += 1
            self.open[owner] = self.count, {}
        number, names = self.open[owner]
        names[label] = name
        self.loads[label] = [LoadState.PREPARED, name.channel, rows]
        return _prepared(name, rows, transaction=number)

    def commit(self, step, loads, mark):
        if not step("commit whole", lambda: self._commit_whole(loads, mark), reject=AWAY, error_after=_unknown()):
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
            raise ownership_error(self.mark)
        if self.mark.incarnation == mark.incarnation and self.mark.checkpoint == mark.checkpoint:
            return True
        for owner, _ in owners:  # loads that are not committed now must never be committed
            self._drop(owner)
        return False

    def remove(self, target):
        """Drop the table. The loads prepared for it disappear with their transaction."""
        del self.identities[target]
        self.rows.pop(target, None)
        self.columns.pop(target)
        self.jobs.pop(target, None)

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


class Sequenced(TwoPhases):
    """The row with the larger sequence wins: Doris."""

    def __init__(self, draw):
        super().__init__(draw)
        self.newest = {}  # target and key -> sequence

    def _wins(self, target, row):
        if row[SEQUENCE] < self.newest.get((target, row["id"]), 0):
            return False
        self.newest[target, row["id"]] = row[SEQUENCE]
        return True

    def remove(self, target):
        super().remove(target)
        self.newest = {key: number for key, number in self.newest.items() if key[0] != target}


class PlainLoads(Sequenced):
    """Rows are visible when they are loaded: Doris without two phases."""

    is_hidden = False

    def __init__(self, draw):
        super().__init__(draw)
        self.lists_keys = False

    def write(self, name, rows):
        label = label_for(name)
        if label not in self.loads:  # a repeat is harmless
            self.loads[label] = [LoadState.COMMITTED, name.channel, []]
            self._show(name, rows, is_snapshot=False)
        return _prepared(name, rows)

    def abort(self, *run_and_checkpoint):
        pass


def _image(columns, one):
    """Return whether ``columns`` are as after a step. Raises: TargetMismatch - they are neither as before nor as after."""
    before = one.before is None or columns.get(one.before.name) == one.before.arrow
    after = one.after is None or columns.get(one.after.name) == one.after.arrow
    if one.action in (AlterAction.DROP, AlterAction.RENAME) and after:
        after = one.before.name not in columns
    if one.action in (AlterAction.ADD, AlterAction.RENAME) and before:
        before = one.after.name not in columns
    if one.action is AlterAction.MAKE_NULLABLE and after:
        return True  # a column that was added allows NULL
    if before == after:
        raise TargetMismatch(f"{one} does not fit {columns}.", hint="Correct it.")
    return after


def _changed(values, old, new, fill):
    """Return ``values`` with the column ``old`` as ``new``."""
    found = {name: value for name, value in values.items() if name != old}
    return found if new is None else {**found, new: values[old] if old is not None else fill}


KINDS_OF_SINK = (TwoPhases, Sequenced, TableTransactions, OneTransaction, PlainLoads)


class SteppedSink:
    """The view of one process on a sink. Implements Sink."""

    def __init__(self, model, steps):
        self.model, self.steps = model, steps
        self.tasks_in_order = model.tasks_in_order
        self.keys = self._keys if model.lists_keys else None

    def ensure_table(self, table):
        columns = {column.name: column.arrow for column in table.columns if column.name != "id"}
        self.steps.step("ensure", lambda: self.model.create(table.name, columns), reject=AWAY)

    def part_writer(self, table):
        return None  # the runner of these tests writes directly

    def acquire_ownership(self, mark, targets):
        self.steps.step("claim", lambda: self.model.acquire_ownership(self.steps, mark), reject=AWAY)

    def commit(self, loads, checkpoint: SinkCheckpoint):
        model, steps = self.model, self.steps
        steps.step("commit", lambda: None, reject=AWAY)
        # a snapshot step is short, so faults at random steps seldom hit its loads
        if steps.loses or (steps.schedule and checkpoint.first == checkpoint.position and steps.draw.random() < 0.3):
            steps.loses = False
            model.lose(steps.draw)
        steps.is_committing = True
        try:
            model.check_ownership(checkpoint)
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

    def target_states(self, job, incarnation, targets):
        return self.steps.step("target_states", lambda: self.model.target_states(incarnation, targets), reject=AWAY)

    def _keys(self, table, after, limit):
        return self.steps.step("keys", lambda: self.model.keys(table, after, limit), reject=AWAY)

    @property
    def alters_in_one_commit(self):
        return self.model.alters_in_one_commit

    def check_steps(self, table, steps):
        return ()

    def alter(self, table, steps, mark):
        self.model.check_ownership(mark)
        # A statement of a cluster has no fence: only the job's lock keeps a second process away until this one is dead.
        self.steps.holds_lock = not self.alters_in_one_commit
        try:
            self.model.alter(self.steps.step, table.name, steps, mark)
        finally:
            self.steps.holds_lock = False

    def stop_altering(self):
        pass

    def maintain(self, tables, is_stopped):
        self.steps.step("maintain", lambda: None, reject=AWAY)


def _prepared(name, rows, **detail):
    return PreparedLoad(name, name.channel, len(rows), 10 * len(rows), detail)


def _unknown():
    return CommitOutcomeUnknown("No reply.", hint="The state is queried.")


def _lost(loads):
    return PreparedLoadLost(
        "Loads are lost.", hint="They are loaded again.", labels=[label_for(load.name) for load in loads]
    )
