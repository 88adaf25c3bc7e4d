"""Maintenance of the sink: compaction, and deletion of files after their retention."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from cdc.pipeline.commit_thread import CommitThread
from cdc.pipeline.dispatcher import Dispatcher
from cdc.run_context import RunContext
from channels.sinks.base import TargetTable, can_maintain

MAINTENANCE_INTERVAL_S = 5.0  # one table each time: with up to 720 tables, each is maintained within an hour

_log = logging.getLogger(__name__)


class MaintenanceSchedule:
    """Calls ``Sink.maintain`` on the commit thread, never during a commit. Calls: the Consumer's thread."""

    def __init__(self, context: RunContext, commits: CommitThread, now: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._commits = commits
        self._now = now
        self._running: Future[None] | None = None
        self._count, self._next_at = 0, now() + MAINTENANCE_INTERVAL_S

    def after_commit(self, tables: Sequence[TargetTable]) -> None:
        """Maintain the tables that a commit has written."""
        self._commits.submit(self._maintain, tables)

    def poll(self, dispatcher: Dispatcher) -> None:
        """Maintain the next table every ``MAINTENANCE_INTERVAL_S``, because retention may end long after a table's last
        commit.
        """
        if self._now() < self._next_at or (self._running is not None and not self._running.done()):
            return
        self._next_at = self._now() + MAINTENANCE_INTERVAL_S
        names = sorted({channel.target.name for channel in dispatcher.channels.values()})
        if names:
            self._count += 1
            name = names[self._count % len(names)]
            self._running = self._commits.submit(self._maintain, dispatcher.targets(frozenset({name})))

    def _maintain(self, tables: Sequence[TargetTable]) -> None:
        try:
            self._context.store.check_fence()
            if can_maintain(self._context.sink):
                self._context.sink.maintain(tables)
        except Exception as error:  # noqa: BLE001 - no row depends on it, and the next commit repeats it
            _log.warning("maintenance of the sink failed: %s", error)
