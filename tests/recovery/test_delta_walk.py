"""Random walks of the Delta sink: processes die, freeze and start again, others write and the store fails, in any order.

The tables are compared with a model after each step, by a reader that shares no code with the sink. The sink keeps no
old file, so that its maintenance deletes everything that no reader and no writer needs.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from deltalake.exceptions import CommitFailedError

from cdc.errors import PreparedLoadLost, SinkOwnershipError
from cdc.model.batch import PreparedLoad
from channels.sinks.base import LoadState, SinkCheckpoint, TargetTable
from channels.sinks.delta import maintenance, object_path
from channels.sinks.delta.sink import DeltaSink, MergeMode
from tests.integration.test_delta_vectors import TABLE, apply, mark, stage, unique
from tests.support.delta_lakes import Lake, lake_of
from tests.support.object_stores import retried
from tests.support.seeds import seed_of

TABLES = (TABLE, replace(TABLE, name="ods.items"))
KEYS = 60
Rows = dict[int, int | None]  # None deletes the key


class Crash(BaseException):
    """The process has ended."""


class Operations:
    """The operations of sinks on their store. At one of them something happens; each has a moment before and after it.

    A process that has ended does no operation any more, in none of its threads.
    """

    def __init__(self) -> None:
        self.count = 0  # moments since ``plan``
        self.has_ended = False
        self._at: int | None = None
        self._event: Callable[[], None] = self.end
        self.table = ""  # of the log entry that is written at this moment
        self._only_entries = False
        self._lock = threading.Lock()

    def plan(
        self, at: int | None = None, event: Callable[[], None] | None = None, *, only_entries: bool = False
    ) -> None:
        """Call ``event`` at the moment ``at``. A new process starts. ``only_entries``: count writes of log entries only."""
        self.count, self.has_ended, self._at, self.table = 0, False, at, ""
        self._event, self._only_entries = event or self.end, only_entries

    def end(self) -> None:
        """End the process, as SIGKILL does."""
        self.has_ended = True
        raise Crash

    def _pass(self, table: str) -> None:
        with self._lock:
            if self.has_ended:
                raise Crash
            if self._only_entries and not table:
                return
            is_now, self.count = self.count == self._at, self.count + 1
            self.table = table if is_now else self.table
        if is_now:
            self._event()

    def counted(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            paths = [str(one) for one in arguments if isinstance(one, (str, os.PathLike))]
            tables = [path.split("/")[-3] for path in paths if "/_delta_log/" in path]
            table = f"ods.{tables[0]}" if name in ("link", "put") and tables else ""
            self._pass(table)
            found = work(*arguments, **options)
            self._pass(table)
            return found

        return call

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "link", "replace", "unlink", "mkdir"):
                patch.setattr(os, name, self.counted(name, getattr(os, name)))
            names = ("list", "list_with_delimiter", "head", "get", "get_ranges", "put", "copy", "delete")
            store = {name: self.counted(name, getattr(obstore, name)) for name in names}
            patch.setattr(object_path, "obstore", SimpleNamespace(**store))
            yield


@dataclass
class Pending:
    """A checkpoint that is not committed. ``is_prepared``: its state is PREPARED, so that recovery commits it."""

    checkpoint: int
    fence: int
    incarnation: str
    changes: list[tuple[TargetTable, int, Rows]]  # with the number of the Task
    is_prepared: bool
    loads: list[PreparedLoad] = field(default_factory=list)
    visible: set[str] = field(default_factory=set)  # tables that have it

    @property
    def keys(self) -> set[int]:
        return {key for _, _, rows in self.changes for key in rows}


class Walk:
    """A job without its pipeline, and another writer of its tables."""

    def __init__(self, lake: Lake, mode: MergeMode, draw: random.Random, operations: Operations) -> None:
        self._lake, self._mode, self._draw, self._operations = lake, mode, draw, operations
        self._rows: dict[str, dict[int, int]] = {table.name: {} for table in TABLES}
        self._fence = self._checkpoint = self._committed = 0
        self._incarnation = "0badcafe"
        self._pending: Pending | None = None
        self._lengths: dict[str, int] = {}  # of the work, in moments
        self.met: Counter[str] = Counter()
        self._create()
        self._sink = self._started()

    def _create(self) -> None:
        with_log = self._lake.sink(merge=self._mode, retention_s=3600.0)  # the reader needs all entries of the log
        for table in TABLES:
            retried(partial(with_log.ensure_table, table))
        with_log.close()

    def step(self) -> None:
        pending = self._pending
        if pending is None:
            self._one_of((self._stage, 6), (self._maintain, 2), (self._start_again, 1), (self._change_by_other, 1))
        elif pending.is_prepared:
            self._one_of((self._commit, 5), (self._freeze, 3), (self._maintain, 1), (self._change_by_other, 1))
        else:
            self._abort()
        self._check()

    def finish(self) -> None:
        while self._pending is not None:
            self.step()
        for name, rows in self._rows.items():
            assert unique(self._lake.by_deltalake(name)) == rows
        self._sink.close()

    def _one_of(self, *works: tuple[Callable[[], None], int]) -> None:
        (work,) = self._draw.choices([work for work, _ in works], [weight for _, weight in works])
        self.met[work.__name__.strip("_")] += 1
        work()

    # processes

    def _started(self) -> DeltaSink:
        """Start a process that takes the job, and may end at once, as often as it is drawn."""
        while True:
            self._fence += 1
            sink = self._lake.sink(merge=self._mode, retention_s=0.0)
            if self._does("start", sink, partial(self._acquire, sink), crash=0.2 * self._is_bucket):
                return sink

    @property
    def _is_bucket(self) -> bool:
        return self._lake.faults is not None  # a crashed start leaves an open file in a folder

    def _acquire(self, sink: DeltaSink) -> None:
        sink.acquire_ownership(self._mark(self._committed), [table.name for table in TABLES])
        for table in TABLES:
            sink.ensure_table(table)

    def _mark(self, checkpoint: int) -> SinkCheckpoint:
        return mark(checkpoint, self._fence, self._incarnation)

    def _start_again(self) -> None:
        self._sink.close()
        self._sink = self._started()

    def _does(self, name: str, sink: DeltaSink, work: Callable[[], object], *, crash: float, other: float = 0) -> bool:
        """Return whether ``work`` was done, as often as a job repeats it. Otherwise the process of ``sink`` has ended."""
        operations, kind = self._operations, self._draw.random()
        if kind < crash:
            self._plan(name, operations.end)
        elif kind < crash + other:
            self._plan(name, self._change_by_other)
        else:
            operations.plan()
        try:
            retried(work)
        except Crash:
            self.met[f"crash in {name}"] += 1
        if not operations.has_ended:
            if kind >= crash + other:
                self._lengths[name] = operations.count
            operations.plan()
            return True
        with suppress(Crash):
            sink.close()  # waits for its threads, and writes nothing
        operations.plan()
        return False

    def _plan(self, name: str, event: Callable[[], None]) -> None:
        """Let ``event`` happen at a moment of the work ``name``; in half of the cases, at a write of a log entry."""
        if self._draw.random() < 0.5:
            tables = {table.name for table, _, _ in self._pending.changes} if self._pending is not None else {""}
            self._operations.plan(self._draw.randrange(2 * len(tables)), event, only_entries=True)
        else:
            self._operations.plan(self._draw.randrange(max(2, self._lengths.get(name, 40))), event)

    # the job

    def _stage(self) -> None:
        draw = self._draw
        self._checkpoint += 1
        changes = []
        for table in draw.sample(TABLES, draw.choice((1, 2))):
            for task in range(draw.choice((1, 1, 2))):
                keys = draw.sample(range(KEYS), draw.choice((1, 5, 20)))
                rows: Rows = {key: None if draw.random() < 0.3 else 10 * self._checkpoint + task for key in keys}
                changes.append((table, task, rows))
        self._pending = pending = Pending(
            self._checkpoint, self._fence, self._incarnation, changes, draw.random() < 0.85
        )

        def work() -> None:
            pending.loads = [
                stage(self._sink, pending.checkpoint, rows, task, pending.fence, table, pending.incarnation)
                for table, task, rows in changes
            ]

        if not self._does("stage", self._sink, work, crash=0.1):
            pending.is_prepared = False
            self._sink = self._started()

    def _abort(self) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None
        run = ("shop", pending.incarnation, pending.fence, pending.checkpoint)
        while not self._does("abort", self._sink, lambda: self._sink.abort(*run), crash=0.2):
            self._sink = self._started()
        assert {retried(partial(self._sink.state, load)) for load in pending.loads} <= {LoadState.ABORTED}

    def _commit(self) -> None:
        """Commit. If the process ends in it, the tables that have the checkpoint have all of it, and recovery follows."""
        pending = self._pending
        assert pending is not None
        while not self._does(
            "commit",
            self._sink,
            lambda: self._sink.commit(pending.loads, self._mark(pending.checkpoint)),
            crash=0.4,
            other=0.3,
        ):
            self._find(pending)
            self._check()
            self._sink = self._started()
            for load in pending.loads:
                is_there = load.table in pending.visible
                found = retried(partial(self._sink.state, load))
                assert found is (LoadState.COMMITTED if is_there else LoadState.PREPARED), (found, is_there)
        self._has_committed(pending)

    def _freeze(self) -> None:
        """Freeze the process in its commit, until another one has taken the job and deleted old files.

        The other one commits first, or it has only taken the job, or it adopts the sink because it has no state. The
        lock of a folder refuses an adoption as long as the older process exists.
        """
        pending, old, old_mark = self._pending, self._sink, self._mark(self._checkpoint)
        assert pending is not None and pending.checkpoint == self._checkpoint
        kind = self._draw.choice(("commit", "take", "adopt" if self._is_bucket else "take"))
        visible, has_taken = set[str](), list[str]()

        def take_over() -> None:
            self._fence += 1
            self._sink = new = self._lake.sink(merge=self._mode, retention_s=0.0)
            if kind == "adopt":  # with checkpoints above all that the sink has
                self._checkpoint = self._committed = self._checkpoint + 1
                self._incarnation = f"{self._fence:08x}"
            retried(lambda: self._acquire(new))
            if kind == "commit":
                retried(lambda: new.commit(pending.loads, self._mark(pending.checkpoint)))
            self._find(pending)
            visible.update(pending.visible)
            retried(lambda: new.maintain(TABLES))
            has_taken.append(kind)

        self._plan("commit", take_over)
        try:
            retried(lambda: old.commit(pending.loads, old_mark))
        except (SinkOwnershipError, PreparedLoadLost):
            self.met["refused"] += 1
        self._operations.plan()
        if self._sink is old:  # the commit had ended before
            self._has_committed(pending)
            return
        assert has_taken
        self.met[f"frozen, {kind}"] += 1
        self._find(pending)
        assert pending.visible == visible, "the frozen process has committed after another one had taken the job"
        if kind == "commit":
            self._has_committed(pending)
        elif kind == "adopt":
            self._pending = None
        old.close()

    def _has_committed(self, pending: Pending) -> None:
        self._find(pending)
        assert pending.visible == {table.name for table, _, _ in pending.changes}
        self._pending, self._committed = None, pending.checkpoint
        newest = retried(lambda: self._sink.last_checkpoint("shop"))
        assert newest is not None and newest.checkpoint <= pending.checkpoint

    def _find(self, pending: Pending) -> None:
        """Apply the changes of tables that have the checkpoint to the model."""
        for name in {table.name for table, _, _ in pending.changes} - pending.visible:
            if (f"cdc/shop/{pending.incarnation}", pending.checkpoint) in self._lake.reader(name).transactions():
                pending.visible.add(name)
                for table, _, rows in pending.changes:
                    if table.name == name:
                        apply(self._rows[name], rows)

    def _maintain(self) -> None:
        if not self._does("maintain", self._sink, lambda: self._sink.maintain(TABLES), crash=0.3, other=0.2):
            self._sink = self._started()

    # the other writer

    def _change_by_other(self) -> None:
        """Compact a table, or delete a row that the job does not change now, as Spark or deltalake do.

        If the job is about to write a log entry, it is one of the same table.
        """
        self.met["other writer"] += 1
        name = self._operations.table or self._draw.choice(TABLES).name
        rows, table = self._rows[name], self._lake.table(name)
        keys = sorted(rows.keys() - (self._pending.keys if self._pending is not None else set()))
        with suppress(CommitFailedError):  # the job has changed the table at this moment
            if self._draw.random() < 0.5 or not keys:
                table.optimize.compact()
            else:
                key = self._draw.choice(keys)
                table.delete(f"id = {key}")
                del rows[key]

    # the comparison

    def _check(self) -> None:
        for name, rows in self._rows.items():
            assert unique(self._lake.reader(name).rows()) == rows, name
            assert not self._lake.reader(name).committed_twice()
            if self._draw.random() < 0.05:
                assert unique(self._lake.by_deltalake(name)) == rows


LONG = (pytest.mark.stress, pytest.mark.timeout(7200))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("mode", ["rewrite", "deletion_vectors"])
@pytest.mark.parametrize(
    ("store", "steps"),
    [
        ("folder", 100),
        ("s3", 30),
        pytest.param("folder", 3_000, marks=LONG),
        pytest.param("s3", 1_000, marks=LONG),
    ],
)
def test_delta_walk_equals_the_model_after_each_step(
    store: str,
    steps: int,
    mode: MergeMode,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintenance, "_EVERY_S", 0.0)
    monkeypatch.setattr(maintenance, "_VACUUM_EVERY_S", 0.0)
    seed, operations = f"walk {seed_of()} {store} {mode}", Operations()
    with lake_of(store, request, tmp_path, seed, share=0.05) as lake, operations.hooked():
        walk = Walk(lake, mode, random.Random(seed), operations)
        for _ in range(steps):
            walk.step()
        walk.finish()
    print(walk.met)
    met = ("crash in commit", "freeze", "other writer")
    assert sum(walk.met[name] for name in met) >= steps // 10, "the draws reach crashes, frozen processes and others"
