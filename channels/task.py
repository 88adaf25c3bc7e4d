"""Tasks: what a channel has gathered, loaded into its sink once."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from cdc.batch import LoadName, PreparedLoad
from cdc.errors import CdcError, LoadRejected, SinkUnavailable, SurroundingsError
from cdc.schema import DELETED, SEQUENCE, TableSchema
from channels.chunk_task import Reading
from channels.sinks.base import Sink, TargetTable
from channels.stall import STALL_S, StallWatch, Watched
from spark.chunks import TurnOutcome
from spark.frames import mapped_frame, typed_frame
from spark.progress import JobGroups
from spark.session import SessionHolder
from spark.writers import Outcome, PackedLoad, write_frames, write_packed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from channels.mapping import Mapping as TableMapping

logger = logging.getLogger(__name__)

_SMALL_BYTES = 1 << 20  # Tasks below share a Spark job: a job costs tens of milliseconds, whatever it does
_SHARED_BYTES = 16 << 20  # what Tasks of one shared job have together

_DATA_EXCEPTION = re.compile(r"SQLSTATE: 22\w{3}")  # the class of errors that come again, whoever asks again
_CONDITION = re.compile(r"\[[A-Z]{2,}_[A-Z_0-9.]{2,80}\] ")
_SHOWN = 300  # characters: the value may be in it, however long it is


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What all labels of one run of a job share."""

    job: str
    incarnation: str
    fence: int


@dataclass(frozen=True, slots=True)
class Task:
    """Rows of one source table under one TableSchema, on their way to one target."""

    name: LoadName  # of its first part
    target: TargetTable
    mapping: TableMapping
    schema: TableSchema
    rows: tuple[pa.RecordBatch, ...] = field(repr=False)  # as in Changes, in source order
    row_count: int
    byte_count: int  # of the Arrow buffers
    upserts: int
    deletes: int
    last_sequence: int

    @property
    def copies(self) -> dict[str, str] | None:
        """Target column -> source column; None where Spark SQL computes some, or a filter drops rows."""
        return self.mapping.copied(self.schema)

    def copied_rows(self) -> Sequence[pa.RecordBatch]:
        """The rows under the names that their columns have in the target, where they are copied."""
        assert self.copies is not None
        names = {**self.copies, DELETED: DELETED, SEQUENCE: SEQUENCE}
        return [
            pa.RecordBatch.from_arrays([batch.column(source) for source in names.values()], list(names))
            for batch in self.rows
        ]


class TaskRunner(Protocol):
    """Prepares Tasks at the sink, in the background."""

    def warm_up(self) -> None:
        """Get ready in the background, so that the first Task need not wait for what starts slowly."""

    @property
    def is_warming(self) -> bool:
        """Whether it is getting ready: work that is not urgent had better come later."""

    def trouble(self) -> CdcError | None:
        """Why Tasks wait though nothing has failed yet: Spark starts, or a Task makes no progress; None: they do not.

        Calls: any thread; returns at once.
        """

    def submit(self, tasks: Sequence[Task]) -> list[Future[tuple[PreparedLoad, ...]]]:
        """Start ``tasks``; returns at once, with a future for each. Small ones may share one job of Spark."""

    def submit_reading(self, reading: Reading) -> Future[TurnOutcome]:
        """Start to read and prepare the chunks of a turn; returns at once."""

    def cancel(self, patience_s: float) -> None:
        """Give up everything under way, and wait up to ``patience_s`` until nothing is.

        An abort then finds all that was loaded. Results that come later are ignored, and their labels stay unused.
        """

    def close(self) -> None:
        """Cancel, and let threads and sessions go. Harmless when repeated."""


class SparkTaskRunner:
    """See ``TaskRunner``; every Task is written by one executor, as one part.

    Rows that are only copied travel packed; where there are expressions or a filter, as a typed DataFrame.
    """

    def __init__(self, sessions: SessionHolder, sink: Sink, parallel: int = 8, stall_s: float = STALL_S) -> None:
        """``parallel``: Spark jobs at once. ``stall_s``: see ``StallWatch``. The first Task builds the session."""
        self._sessions = sessions
        self._groups = JobGroups(sessions)
        self._stalls = StallWatch(self._groups, stall_s)
        self._sink = sink
        self._threads = ThreadPoolExecutor(parallel, "task")
        self._lock = threading.Lock()
        self._round = 0  # raised by cancel: what belongs to an older one is dead
        self._open: set[Future[Any]] = set()
        self._at_work: set[Future[None]] = set()  # what the threads do for them, and still do for a while if cancelled
        self._newest: dict[str, tuple[LoadName, Future[tuple[PreparedLoad, ...]]]] = {}  # by channel: see _before

    def warm_up(self) -> None:
        """See ``TaskRunner``: session and Python workers."""
        self._sessions.warm_up()

    @property
    def is_warming(self) -> bool:
        """See ``TaskRunner``."""
        return self._sessions.is_warming

    def trouble(self) -> CdcError | None:
        """See ``TaskRunner``."""
        starting_s = self._sessions.starting_s
        if starting_s is not None:
            return SurroundingsError(
                f"Spark is starting, for {starting_s:.0f} s.", mend="Rows are loaded when it has started."
            )
        return self._stalls.trouble()

    def submit(self, tasks: Sequence[Task]) -> list[Future[tuple[PreparedLoad, ...]]]:
        """See ``TaskRunner``."""
        futures: dict[LoadName, Future[tuple[PreparedLoad, ...]]] = {task.name: Future() for task in tasks}
        in_order = self._sink.tasks_in_order
        with self._lock:
            number = self._round
            self._open.update(futures.values())
        for wave in _waves(tasks) if in_order else [tasks]:
            for group in _jobs(wave):
                before = self._before(group, futures) if in_order else []
                self._start(self._run, group, [futures[task.name] for task in group], number, before)
        return [futures[task.name] for task in tasks]

    def submit_reading(self, reading: Reading) -> Future[TurnOutcome]:
        """See ``TaskRunner``."""
        future: Future[TurnOutcome] = Future()
        with self._lock:
            number = self._round
            self._open.add(future)
        self._start(self._read, reading, future, number)
        return future

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        started = self._threads.submit(work, *arguments)
        self._at_work.add(started)
        started.add_done_callback(self._at_work.discard)

    def _read(self, reading: Reading, future: Future[TurnOutcome], number: int) -> None:
        with self._lock:
            if self._round != number:
                return
            future.set_running_or_notify_cancel()
        outcome: TurnOutcome | CdcError
        try:
            outcome = reading.run(self._sessions.get(), self._sessions.core_count())
        except Exception as error:  # noqa: BLE001 - whatever it is, the Consumer decides what follows
            outcome = _as_sink_error(error, [read.name.channel for read in reading.tables])
        with self._lock:
            if self._round != number:
                return
            self._open.discard(future)
        if isinstance(outcome, CdcError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _before(
        self, group: Sequence[Task], futures: Mapping[LoadName, Future[tuple[PreparedLoad, ...]]]
    ) -> list[Future[tuple[PreparedLoad, ...]]]:
        """What has to be loaded before ``group``: of each channel the Task before, in the same checkpoint."""
        before = []
        for task in group:
            known = self._newest.get(task.name.channel)
            if known is not None and known[0] == replace(task.name, task=known[0].task) < task.name:
                before.append(known[1])
            self._newest[task.name.channel] = task.name, futures[task.name]
        return before

    def cancel(self, patience_s: float) -> None:
        """See ``TaskRunner``."""
        with self._lock:
            self._round += 1
            is_at_work = bool(self._open)
            for future in self._open:
                # whoever waits is told at once; Future.cancel does not do that for one that runs
                future.set_exception(CancelledError())
            self._open.clear()
        # without a Task nobody waits for a session that is still being built
        known = self._sessions.known()
        if is_at_work and known is not None and self._sessions.lives(known):
            known.interruptAll()
            wait(self._at_work.copy(), patience_s)

    def close(self) -> None:
        """See ``TaskRunner``."""
        self.cancel(0)
        self._stalls.close()
        self._sessions.close()  # first, so that no thread waits for a start or for the JVM
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(
        self,
        tasks: list[Task],
        futures: list[Future[tuple[PreparedLoad, ...]]],
        number: int,
        before: list[Future[tuple[PreparedLoad, ...]]],
    ) -> None:
        # waits for what was handed over before, so a thread has it; a Task whose forerunner failed fails too
        failed = [error for future in before if (error := future.exception()) is not None]
        with self._lock:
            if self._round != number:
                return  # given up before it began
            for future in futures:
                future.set_running_or_notify_cancel()
        outcomes: list[Outcome]
        targets = [task.target.name for task in tasks]
        try:
            if failed:
                outcomes = [_as_sink_error(failed[0], targets)] * len(tasks)
            else:
                with self._stalls.watching(targets) as watched:
                    outcomes = self._written(tasks, number, watched)
        except Exception as error:  # noqa: BLE001 - whatever it is, the Consumer decides what follows
            outcomes = [_as_sink_error(error, targets)] * len(tasks)
        with self._lock:
            if self._round != number:
                return
            self._open.difference_update(futures)
        for future, outcome in zip(futures, outcomes, strict=True):
            if isinstance(outcome, CdcError):
                future.set_exception(outcome)
            else:
                future.set_result((outcome,) if outcome is not None else ())

    def _written(self, tasks: list[Task], number: int, watched: Watched) -> list[Outcome]:
        """Write ``tasks``; once more with a new session where the JVM dies and a repeat is harmless."""
        write = self._write_packed if tasks[0].copies is not None else self._write_typed
        spark_session = self._sessions.get()
        try:
            self._groups.begin(spark_session, watched.group)
            return write(tasks)
        except Exception as error:
            if watched.error is not None:
                raise watched.error from error
            if self._round != number or self._sink.tasks_in_order or self._sessions.lives(spark_session):
                raise
            logger.warning("Spark's JVM died under %d tasks; they are written again", len(tasks))
            self._groups.begin(self._sessions.get(), watched.group)
            return write(tasks)

    def _write_packed(self, tasks: list[Task]) -> list[Outcome]:
        loads = [
            PackedLoad(
                task.name, task.target.key, self._sink.part_writer(task.target), task.copied_rows(), task.byte_count
            )
            for task in tasks
        ]
        spark_session = self._sessions.get()
        return write_packed(spark_session, loads, self._sessions.core_count(), shared=self._sessions.shares_memory())

    def _write_typed(self, tasks: list[Task]) -> list[Outcome]:
        frames = [self._frame(task) for task in tasks]
        loads = [(task.name, task.target.key, self._sink.part_writer(task.target)) for task in tasks]
        return write_frames(frames, loads)

    def _frame(self, task: Task) -> DataFrame:
        target = task.target
        schema = pa.schema([pa.field(column.name, column.arrow) for column in target.columns])
        kept = {column.name for column in target.columns if not column.nullable}.union(target.key)
        frame = typed_frame(self._sessions.get(), task.rows)
        return mapped_frame(frame, task.mapping.expressions(task.schema), schema, kept, task.mapping.filter)


def _waves(tasks: Sequence[Task]) -> list[list[Task]]:
    """``tasks`` in their order, no channel twice in a wave."""
    waves: list[list[Task]] = []
    count: Counter[str] = Counter()
    for task in tasks:
        if count[task.name.channel] == len(waves):
            waves.append([])
        waves[count[task.name.channel]].append(task)
        count[task.name.channel] += 1
    return waves


def _jobs(tasks: Sequence[Task]) -> list[list[Task]]:
    """What is written by one Spark job: a large Task alone, small ones of a kind together."""
    jobs: list[list[Task]] = []
    for is_copy in (True, False):
        shared: list[Task] = []
        for task in (task for task in tasks if (task.copies is not None) is is_copy):
            if task.byte_count >= _SMALL_BYTES:
                jobs.append([task])
            else:
                shared.append(task)
                if sum(one.byte_count for one in shared) >= _SHARED_BYTES:
                    jobs.append(shared)
                    shared = []
        if shared:
            jobs.append(shared)
    return jobs


def _data_exception(text: str) -> str:
    """What Spark says of a value that an expression does not take; "" if ``text`` tells of something else."""
    state = _DATA_EXCEPTION.search(text)
    if state is None:
        return ""
    conditions = [found.start() for found in _CONDITION.finditer(text, 0, state.start())]
    told = " ".join(text[conditions[-1] : state.start()][: 2 * _SHOWN].split()) if conditions else ""
    return f"{told[:_SHOWN]} ({state[0]})".lstrip()


def _as_sink_error(error: BaseException, targets: Iterable[str]) -> CdcError:
    if isinstance(error, CdcError):
        return error
    if refusal := _data_exception(str(error)):
        return LoadRejected(
            f"An expression of the mapping has no value for a row: {refusal}",
            mend="Change the expression (`try_cast`, `try_divide` and their kin give NULL instead), or leave such rows "
            "out with `filter`; then `cdc resume`.",
            tables=", ".join(sorted(set(targets))),
        )
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    found = SinkUnavailable(
        f"Spark could not write a task: {lines[0].strip()}",
        mend="Look after Spark (executors, memory, disk); the job goes on by itself. `cdc logs` has the whole error.",
    )
    found.__cause__ = error
    return found
