"""Maintenance of the sink: compaction, and deletion of files after their retention."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from cdc.pipeline.dispatcher import Dispatcher
from cdc.run_context import RunContext
from channels.sinks.base import TargetTable, can_maintain

MAINTENANCE_INTERVAL_S = 5.0  # one table each time: with up to 720 tables, each is maintained within an hour

_log = logging.getLogger(__name__)


class MaintenanceSchedule:
    """Calls ``Sink.maintain`` on a thread of its own, also during commits. Calls: the Consumer's thread."""

    def __init__(
        self, context: RunContext, stopping: threading.Event, now: Callable[[], float] = time.monotonic
    ) -> None:
        """``stopping``: set when the run ends; the running call then returns early."""
        self._context = context
        self._stopping = stopping
        self._now = now
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="maintenance")
        self._waiting: dict[str, TargetTable] = {}
        self._running: Future[None] | None = None
        self._count, self._next_at = 0, now() + MAINTENANCE_INTERVAL_S

    def after_commit(self, tables: Sequence[TargetTable]) -> None:
        """Maintain the tables that a commit has written."""
        self._waiting.update({table.name: table for table in tables})
        self._start()

    def poll(self, dispatcher: Dispatcher) -> None:
        """Maintain the tables that wait, and the next table every ``MAINTENANCE_INTERVAL_S``: retention may end long
        after a table's last commit.
        """
        if self._now() >= self._next_at:
            self._next_at = self._now() + MAINTENANCE_INTERVAL_S
            names = sorted({channel.target.name for channel in dispatcher.channels.values()})
            if names:
                self._count += 1
                name = names[self._count % len(names)]
                self._waiting.update({table.name: table for table in dispatcher.targets(frozenset({name}))})
        self._start()

    def close(self) -> None:
        """Wait for the thread to end. Calls: after ``stopping`` is set."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        if self._waiting and (self._running is None or self._running.done()):
            self._running = self._threads.submit(self._maintain, [*self._waiting.values()])
            self._waiting = {}

    def _maintain(self, tables: Sequence[TargetTable]) -> None:
        try:
            self._context.store.check_fence()
            if can_maintain(self._context.sink):
                self._context.sink.maintain(tables, self._stopping.is_set)
        except Exception as error:  # noqa: BLE001 - no row depends on it, and a later call repeats it
            _log.warning("maintenance of the sink failed: %s", error)
