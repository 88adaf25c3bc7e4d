"""Committed loads that queries do not see yet. The cluster publishes them automatically."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from cdc.retry import Backoff
from channels.sinks.stream_load.checkpoints import VISIBLE_TIMEOUT_S
from channels.sinks.stream_load.messages import ProductMessages

logger = logging.getLogger(__name__)


class LoadVisibility:
    """Waits until committed loads are visible. Calls: all threads that commit loads or read tables."""

    def __init__(self, messages: ProductMessages, label_state: Callable[[str, str], str]) -> None:
        """``label_state``: returns the state of a label of a database, in the product's word."""
        self.timeout_s = VISIBLE_TIMEOUT_S
        self._messages = messages
        self._label_state = label_state
        self._lock = threading.Lock()
        self._unpublished: dict[str, dict[tuple[str, str], None]] = {}  # table -> database and label, in commit order

    def wait(self, database: str, labels: Collection[str], tables: Collection[str]) -> None:
        """Wait for all ``labels``, the committed loads of ``tables``.

        The cluster publishes the loads of one partition in the order of commits, and those of different partitions in
        any order. The newest load can therefore be visible before an earlier one. After the time limit, ``check``
        refuses to read the tables until all are visible.
        """
        loads = [(database, label) for label in labels]
        with self._lock:
            for table in tables:
                self._unpublished.setdefault(table, {}).update(dict.fromkeys(loads))
        deadline = time.monotonic() + self.timeout_s
        for load in loads:
            for pause in Backoff(0.02, 0.5):
                if self._is_published(load, tables):
                    break
                if time.monotonic() > deadline:
                    text = "%s is committed and not visible yet; %s publishes it automatically"
                    logger.warning(text, load[1], self._messages.name)
                    return
                time.sleep(pause)

    def check(self, table: str) -> None:
        """Raise SinkUnavailable if a committed load of ``table`` is not visible yet."""
        with self._lock:
            loads = [*self._unpublished.get(table, ())]
        for load in loads:
            if not self._is_published(load, (table,)):
                raise self._messages.unavailable("a committed load is not visible yet", table=table, label=load[1])

    def _is_published(self, load: tuple[str, str], tables: Collection[str]) -> bool:
        """Return True if ``load`` is visible, and do not ask for it again for ``tables``."""
        if self._label_state(*load) == "COMMITTED":
            return False
        with self._lock:
            for table in tables:
                if (found := self._unpublished.get(table)) is not None:
                    found.pop(load, None)
                    if not found:
                        del self._unpublished[table]
        return True
