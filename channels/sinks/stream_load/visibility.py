"""Committed loads that queries do not see yet. The cluster publishes them automatically."""

from __future__ import annotations

import logging
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
        self._unpublished: dict[str, tuple[str, str]] = {}  # table -> database and label of a load that is not visible

    def wait(self, database: str, label: str, tables: Collection[str]) -> None:
        """Wait for ``label``, the newest load of ``tables``.

        Versions follow the commit order: earlier loads are visible too. After the time limit, ``check`` refuses to read
        the tables until it is visible.
        """
        self._unpublished |= dict.fromkeys(tables, (database, label))
        deadline = time.monotonic() + self.timeout_s
        for pause in Backoff(0.02, 0.5):
            if self._label_state(database, label) != "COMMITTED":
                for table in tables:
                    self._unpublished.pop(table, None)
                return
            if time.monotonic() > deadline:
                text = "%s is committed and not visible yet; %s publishes it automatically"
                logger.warning(text, label, self._messages.name)
                return
            time.sleep(pause)

    def check(self, table: str) -> None:
        """Raise SinkUnavailable if the newest load of ``table`` is not visible yet."""
        load = self._unpublished.get(table)
        if load is not None and self._label_state(*load) == "COMMITTED":
            raise self._messages.unavailable("a committed load is not visible yet", table=table, label=load[1])
        self._unpublished.pop(table, None)
