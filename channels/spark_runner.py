"""Run Tasks as Spark jobs."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException

from cdc.errors import CdcError, LoadRejected, PrerequisiteError, SinkUnavailable
from cdc.model.batch import LoadName, PreparedLoad
from channels.sinks.base import Sink
from channels.stall import STALL_S, TaskStallWatch, Watched
from spark.frames import mapped_frame, typed_frame
from spark.job_groups import JobGroups
from spark.remote_rows import RowsUnreachable
from spark.session import SessionHolder
from spark.shared_loads import SharedLoads, SharedWriter
from spark.writers import Outcome, PackedLoad, write_frames, write_packed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from channels.task import ReadRequest, Task

_Result = TypeVar("_Result")
logger = logging.getLogger(__name__)
_SMALL_BYTES = 1 << 20  # smaller Tasks share a Spark job, because a job costs tens of milliseconds of its own
_SHARED_BYTES = 16 << 20  # total of the Tasks of one shared job
# classes of errors that every repetition raises again: of a value, and of the text of an expression
_DATA_EXCEPTION, _SYNTAX_ERROR = re.compile(r"SQLSTATE: 22\w{3}"), re.compile(r"SQLSTATE: 42\w{3}")
_CONDITION = re.compile(r"\[[A-Z]{2,}_[A-Z_0-9.]{2,80}\] ")
_SHOWN = 300  # characters, because the text may contain a long value


class SparkTaskRunner:
    """See ``TaskRunner``. One executor writes a Task, as one part.

    Rows that are only copied are sent in packed form; rows for expressions or a filter as a typed DataFrame.
    """

    def __init__(self, sessions: SessionHolder, sink: Sink, parallel: int = 8, stall_s: float = STALL_S) -> None:
        """``parallel``: Spark jobs at once. ``stall_s``: see ``TaskStallWatch``. The first Task creates the session.

        On this machine, one Task more runs than there are cores: the rows of others would only wait in memory.
        """
        self._sessions = sessions
        self._shared = SharedWriter()
        self._groups = JobGroups(sessions)
        self._stalls = TaskStallWatch(self._groups, stall_s)
        self._sink = sink
        cores = sessions.local_cores
        self._threads = ThreadPoolExecutor(parallel, "task")
        self._slots = threading.Semaphore(parallel if cores is None else min(parallel, cores + 1))  # of running Tasks
        self._lock = threading.Lock()
        self._round = 0  # increased by ``cancel``; results of earlier rounds are ignored
        self._open: set[Future[Any]] = set()
        self._at_work: set[Future[None]] = set()  # their threads' work, which continues for a while after ``cancel``
        self._newest: dict[str, tuple[LoadName, Future[tuple[PreparedLoad, ...]]]] = {}  # by channel: see _before

    def warm_up(self) -> None:
        """See ``TaskRunner``: session and Python workers."""
        self._sessions.warm_up()

    @property
    def is_warming(self) -> bool:
        """See ``TaskRunner``."""
        return self._sessions.is_warming

    def warning(self) -> CdcError | None:
        """See ``TaskRunner``."""
        starting_s = self._sessions.starting_s
        if starting_s is not None:
            return PrerequisiteError(
                f"Spark has been starting for {starting_s:.0f} s.", hint="The job loads rows when Spark has started."
            )
        return self._stalls.warning()

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

    def submit_reading(self, reading: ReadRequest[_Result]) -> Future[_Result]:
        """See ``TaskRunner``."""
        future: Future[_Result] = Future()
        with self._lock:
            number = self._round
            self._open.add(future)
        self._start(self._read, reading, future, number)
        return future

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        started = self._threads.submit(work, *arguments)
        self._at_work.add(started)
        started.add_done_callback(self._at_work.discard)

    def _read(self, reading: ReadRequest[_Result], future: Future[_Result], number: int) -> None:
        with self._lock:
            if self._round != number:
                return
            future.set_running_or_notify_cancel()
        outcome: _Result | CdcError
        try:
            with self._stalls.watching(reading.channels, reading.work, reading.usual_s) as watched:
                outcome = self._outcome(reading, watched)
        except Exception as error:  # noqa: BLE001 - whatever it is, the Consumer decides what follows
            outcome = _as_sink_error(error, reading.channels)
        with self._lock:
            if self._round != number:
                return
            self._open.discard(future)
        if isinstance(outcome, CdcError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _outcome(self, reading: ReadRequest[_Result], watched: Watched) -> _Result:
        spark_session = self._sessions.get()
        try:
            self._groups.begin(spark_session, watched.group)
            return reading.run(spark_session, self._sessions.core_count())
        except Exception as error:
            if watched.error is not None:
                raise watched.error from error
            raise

    def _before(
        self, group: Sequence[Task], futures: Mapping[LoadName, Future[tuple[PreparedLoad, ...]]]
    ) -> list[Future[tuple[PreparedLoad, ...]]]:
        """Return the loads that must end before ``group``: the previous Task of each channel in the same checkpoint."""
        before = []
        for task in group:
            known = self._newest.get(task.name.channel)
            if known is not None and known[0] == replace(task.name, task=known[0].task) < task.name:
                before.append(known[1])
            self._newest[task.name.channel] = task.name, futures[task.name]
        return before

    def cancel(self, timeout_s: float) -> None:
        """See ``TaskRunner``."""
        with self._lock:
            self._round += 1
            is_at_work = bool(self._open)
            for future in self._open:
                # wakes waiting threads at once, which Future.cancel does not do for a running Future
                future.set_exception(CancelledError())
            self._open.clear()
        # without a Task, do not wait for a session that is still starting
        known = self._sessions.known()
        if is_at_work and known is not None and self._sessions.is_alive(known):
            with suppress(Exception):  # a Spark Connect server that has died
                known.interruptAll()
            wait(self._at_work.copy(), timeout_s)

    def close(self) -> None:
        """See ``TaskRunner``."""
        self.cancel(0)
        self._stalls.close()
        self._sessions.close()  # first, so that no thread waits for the start of Spark or for the JVM
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(
        self,
        tasks: list[Task],
        futures: list[Future[tuple[PreparedLoad, ...]]],
        number: int,
        before: list[Future[tuple[PreparedLoad, ...]]],
    ) -> None:
        # the previous Tasks are already on threads, so waiting for them ends; if one failed, this Task fails too
        failed = [error for future in before if (error := future.exception()) is not None]
        with self._slots:
            self._run_now(tasks, futures, number, failed)

    def _run_now(
        self,
        tasks: list[Task],
        futures: list[Future[tuple[PreparedLoad, ...]]],
        number: int,
        failed: list[BaseException],
    ) -> None:
        with self._lock:
            if self._round != number:
                return  # cancelled before its start
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
        """Write ``tasks``. If the JVM dies and the sink accepts repeated loads, write them again with a new session."""
        spark_session, write = self._sessions.get(), None
        with ExitStack() as stack:
            try:
                self._groups.begin(spark_session, watched.group)
                write = stack.enter_context(self._writing(tasks))
                return write(spark_session)
            except Exception as error:
                if watched.error is not None:
                    raise watched.error from error
                if self._round != number or self._sink.tasks_in_order or self._sessions.is_alive(spark_session):
                    raise
                logger.warning("Spark's JVM died while it wrote %d Tasks; they are written again", len(tasks))
                spark_session = self._sessions.get()
                self._groups.begin(spark_session, watched.group)
                write = write or stack.enter_context(self._writing(tasks))
                return write(spark_session)

    @contextmanager
    def _writing(self, tasks: list[Task]) -> Iterator[Callable[[SparkSession], list[Outcome]]]:
        """Yield the function that writes ``tasks``, which may be called again. Their rows may be released."""
        if tasks[0].copies is None:
            yield lambda spark_session: self._write_typed(spark_session, tasks)
            return
        loads = [
            PackedLoad(
                task.name, task.target.key, self._sink.part_writer(task.target), task.copied_rows(), task.byte_count
            )
            for task in tasks
        ]
        core_count = self._sessions.core_count()
        transport = self._sessions.transport()
        if transport is None:
            yield lambda spark_session: write_packed(spark_session, loads, core_count)
            return
        with closing(SharedLoads(loads, core_count, transport)) as shared:
            loads.clear()
            for task in tasks:
                task.release_rows()
            yield lambda spark_session: self._write_shared(spark_session, shared)

    def _write_shared(self, spark_session: SparkSession, loads: SharedLoads) -> list[Outcome]:
        try:
            return self._shared.write(spark_session, loads)
        except Exception as error:
            if RowsUnreachable.__name__ in str(error):  # for example of an executor in another network
                logger.warning("An executor cannot fetch rows from the driver; from now on the JVM sends them")
                self._sessions.refuse_transport(loads.transport)
            raise

    def _write_typed(self, spark_session: SparkSession, tasks: list[Task]) -> list[Outcome]:
        frames = [self._frame(spark_session, task) for task in tasks]
        loads = [(task.name, task.target.key, self._sink.part_writer(task.target)) for task in tasks]
        return write_frames(frames, loads)

    def _frame(self, spark_session: SparkSession, task: Task) -> DataFrame:
        target = task.target
        schema = pa.schema([pa.field(column.name, column.arrow) for column in target.columns])
        kept = {column.name for column in target.columns if not column.nullable}.union(target.key)
        frame = typed_frame(spark_session, task.rows)
        return mapped_frame(frame, task.mapping.expressions(task.schema), schema, kept, task.mapping.filter)


def _waves(tasks: Sequence[Task]) -> list[list[Task]]:
    """Return ``tasks`` in groups, in order; a group has each channel at most once."""
    waves: list[list[Task]] = []
    count: Counter[str] = Counter()
    for task in tasks:
        if count[task.name.channel] == len(waves):
            waves.append([])
        waves[count[task.name.channel]].append(task)
        count[task.name.channel] += 1
    return waves


def _jobs(tasks: Sequence[Task]) -> list[list[Task]]:
    """Return the Tasks of each Spark job: a large Task alone, small ones of the same kind together."""
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


def _spark_message(text: str, sql_state: re.Pattern[str]) -> str:
    """Return Spark's message about an expression that it does not accept; "" if ``text`` has another SQLSTATE."""
    state = sql_state.search(text)
    if state is None:
        return ""
    conditions = [found.start() for found in _CONDITION.finditer(text, 0, state.start())]
    message = " ".join(text[conditions[-1] : state.start()][: 2 * _SHOWN].split()) if conditions else ""
    return f"{message[:_SHOWN]} ({state[0]})".lstrip()


def _as_sink_error(error: BaseException, targets: Iterable[str]) -> CdcError:
    if isinstance(error, CdcError):
        return error
    tables = ", ".join(sorted(set(targets)))
    if isinstance(error, AnalysisException) and (refusal := _spark_message(str(error), _SYNTAX_ERROR)):
        return LoadRejected(
            f"Spark does not accept an expression of the mapping: {refusal}",
            hint="Correct `columns` or `filter` of the channel, then run `cdc resume`.",
            tables=tables,
        )
    if refusal := _spark_message(str(error), _DATA_EXCEPTION):
        return LoadRejected(
            f"An expression of the mapping fails for a row: {refusal}",
            hint="Change the expression (functions such as `try_cast` and `try_divide` return NULL instead), or "
            "exclude such rows with `filter`; then run `cdc resume`.",
            tables=tables,
        )
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    found = SinkUnavailable(
        f"Spark could not write a Task: {lines[0].strip()}",
        hint="Check Spark (executors, memory, disk); the job retries. `cdc logs NAME` has the complete error.",
    )
    found.__cause__ = error
    return found
