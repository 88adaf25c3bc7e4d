"""Cycles whose rows executors read: the driver plans a range of the source, and no row passes it.

::

    request     when the interval has passed, or messages are waiting: the receiver plans the next range
    take        OPEN is saved; one Spark job reads the range and prepares its loads, while the previous cycle commits
    close       the range is a cycle of its own, with the commit of every other cycle

If executors end the range because the driver must decide, its loads are aborted, and the receiver delivers its rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial

from cdc.model.batch import Batch, LoadName
from cdc.pipeline.cycles import Cycles
from cdc.pipeline.flow_control import BUSY_POLL_S, FlowControl
from cdc.run_context import RunContext
from cdc.sources.base import RangePlanner, RangeTable, RangeTables, ReadRange
from cdc.state.base import ChannelCounts, Checkpoint, CloseReason
from channels.channel import Channel
from channels.partition_read import PartitionTarget, ReadResult
from channels.range_task import RangeReadRequest, needed_columns, typed_mapping

_log = logging.getLogger(__name__)


class RangeReads:
    """Reads the ranges that a ``RangePlanner`` plans. Calls: the Consumer's thread."""

    def __init__(
        self,
        context: RunContext,
        receiver: RangePlanner,
        cycles: Cycles,
        flow: FlowControl,
        stopping: threading.Event,
        now: Callable[[], float],
    ) -> None:
        """``receiver``: that of ``context``."""
        self._context, self._receiver, self._cycles = context, receiver, cycles
        self._flow, self._stopping, self._now = flow, stopping, now
        self._next_at = now()

    def request(self) -> None:
        """Request the next range if no cycle is open, and if the interval has passed or the source has more."""
        if not self._cycles.dispatcher.is_fresh:
            return
        if self._now() >= self._next_at or not self._context.receiver.status().is_at_end:
            limits = self._flow.limits
            self._receiver.plan(limits.max_bytes, limits.max_rows)

    def take(self, planned: Batch) -> None:
        """Read a range, and pass its loads to the commit thread. Returns early after a stop.

        Raises: the error of a reader or a writer, or of the previous commit.
        """
        cycles, dispatcher = self._cycles, self._cycles.dispatcher
        began = self._now()
        self._next_at = began + self._flow.limits.interval_s
        if not dispatcher.is_fresh:  # an empty Batch before it: new partitions
            cycles.close_and_commit(CloseReason.WINDOW)
        if dispatcher.cycle.first != planned.first:  # the commit was replayed, and the receiver begins again
            return
        opened = dispatcher.open()
        requests = self._requests(planned, opened.id)
        results = self._awaited([self._context.runner.submit_reading(one) for one in requests], opened)
        if results is None:
            return
        read = self._completed(planned, results)
        if read is None:
            cycles.wait_for_commit()
            if self._is_open(opened):
                dispatcher.discard()
                dispatcher.begin(planned.first)
                self._receiver.deliver(planned)
            return
        while not cycles.may_close:
            if self._is_cancelled(opened):
                return
            self._stopping.wait(BUSY_POLL_S)
            cycles.poll_tasks()
        if self._is_open(opened):
            loads = [load for result in results for load in result.loads]
            dispatcher.sequence = max(dispatcher.sequence, read.sequence)
            cycles.close_range(opened, read.batch, loads, self._counts(read), self._now() - began)

    def _completed(self, planned: Batch, results: Sequence[ReadResult]) -> ReadRange | None:
        """Return the range as it was read; None if the driver must read it."""
        if not results:
            _log.info("the driver reads a range: no table is loaded yet")
            return None
        partitions = [one for result in results for one in result.partitions]
        ended = [one.position for one in partitions if not one.is_complete]
        if ended:
            _log.info("the driver reads a range: %s", ended[0]["ended"])
            return None
        read = self._receiver.complete(planned, [one.position for one in partitions])
        if read is None:
            _log.info("the driver reads a range: rows of one key are in several partitions")
        return read

    def _is_open(self, opened: Checkpoint) -> bool:
        """Return whether the cycle is still open. A commit that failed discards it, and the receiver begins again."""
        return self._cycles.dispatcher.cycle.checkpoint is opened

    def _is_cancelled(self, opened: Checkpoint) -> bool:
        """Return whether the read ends without a result: after a stop, the end of the run aborts it."""
        return self._stopping.is_set() or not self._is_open(opened)

    def _awaited(self, futures: list[Future[ReadResult]], opened: Checkpoint) -> list[ReadResult] | None:
        """Return the results; None if the read was cancelled."""
        pending = set(futures)
        while pending:
            if self._is_cancelled(opened):
                return None
            _, pending = wait(pending, BUSY_POLL_S)
            self._cycles.poll_tasks()
        return None if self._is_cancelled(opened) else [future.result() for future in futures]

    # --- what executors do ---

    def _requests(self, planned: Batch, checkpoint: int) -> list[RangeReadRequest]:
        """Return one read for all tables that are copied, and one for each table with expressions.

        A table with expressions has a DataFrame of its own, so its messages are read once more.
        """
        channels = [*self._cycles.dispatcher.channels.values()]
        copied = [one for one in channels if one.mapping.copied(one.schema) is not None]
        groups = [copied] if copied else []
        groups += [[one] for one in channels if one not in copied]
        names = frozenset(one.schema.name for one in channels)
        return [
            self._request(planned, group, names, checkpoint, is_only=number > 0) for number, group in enumerate(groups)
        ]

    def _request(
        self, planned: Batch, channels: Sequence[Channel], names: frozenset[str], checkpoint: int, *, is_only: bool
    ) -> RangeReadRequest:
        run, sink = self._context.run, self._context.sink
        tables = tuple(RangeTable(one.schema, at, needed_columns(one)) for at, one in enumerate(channels))
        elsewhere = names - {one.schema.name for one in channels}
        targets = tuple(
            PartitionTarget(
                LoadName(run.job, run.incarnation, run.fence, checkpoint, one.target.name, task=0),
                sink.part_writer(one.target),
                one.target.key,
            )
            for one in channels
        )
        sequence = self._cycles.dispatcher.sequence
        return RangeReadRequest(
            targets,
            partial(self._receiver.readers, planned, RangeTables(tables, elsewhere, is_only), sequence),
            planned.entries,
            is_repeatable=not sink.tasks_in_order,
            mapping=typed_mapping(channels[0]),
        )

    def _counts(self, read: ReadRange) -> Mapping[str, ChannelCounts]:
        """Return the counts of the tables that got rows; the Committer sets their commit time."""
        found = {}
        for name, rows in read.rows.items():
            old = self._cycles.committed.counts.get(name, ChannelCounts())
            found[name] = replace(
                old,
                upserts=old.upserts + rows.upserts,
                deletes=old.deletes + rows.deletes,
                bytes=old.bytes + rows.bytes,
                last_committed_at=None,
            )
        return found
