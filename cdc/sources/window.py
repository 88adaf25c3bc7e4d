"""The read-ahead window: a bounded queue of Batches between a receiver's reading thread and the Consumer.

The reading thread stops at the byte limit and continues when started Tasks have taken rows, or rows are committed.
"""

from __future__ import annotations

import threading
from collections import deque

from cdc.model.batch import Batch
from cdc.model.position import Position


def rows_bytes(batch: Batch) -> int:
    """Return the bytes of a Batch's rows in memory, as channels count them."""
    return sum(changes.bytes for changes in batch.changes)


class Window:
    """Pass Batches from a reading thread to the Consumer.

    Two kinds of bytes count: those of waiting Batches, and those of delivered rows that no started Task has taken. A
    Batch is accepted while the count is below the limit. The count therefore exceeds the limit by one Batch at most,
    and a Batch larger than the window is accepted too.
    Calls: ``put``, ``stop`` by the reading thread; the others by the Consumer's thread.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Batch, int]] = deque()
        self._waiting_bytes = 0
        self._handed: deque[tuple[Position, int]] = deque()  # delivered Batches: end and bytes not taken, oldest first
        self._handed_bytes = 0
        self._error: BaseException | None = None
        self._closed = False

    def put(self, batch: Batch) -> bool:
        """Add a Batch. Block while the window is full; return False if the window is closed."""
        size = rows_bytes(batch)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._is_full())
            if self._closed:
                return False
            self._waiting.append((batch, size))
            self._waiting_bytes += size
            self._changed.notify_all()
            return True

    def stop(self, error: BaseException | None) -> None:
        """Let ``get`` raise ``error`` after it has returned all waiting Batches; None withdraws the error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def get(self, timeout_s: float) -> Batch | None:
        """Return the next Batch; None if none arrives in time or the window is closed. Raises: see ``stop``."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error or self._closed, timeout_s)
            if self._closed:
                return None
            if self._waiting:
                batch, size = self._waiting.popleft()
                self._waiting_bytes -= size
                if size:
                    self._handed.append((batch.last, size))
                    self._handed_bytes += size
                return batch
            if self._error is not None:
                raise self._error
            return None

    def release(self, byte_count: int) -> None:
        """Free bytes of rows that started Tasks have taken."""
        with self._changed:
            while byte_count > 0 and self._handed:
                position, size = self._handed.popleft()
                used = min(size, byte_count)
                byte_count -= used
                self._handed_bytes -= used
                if used < size:
                    self._handed.appendleft((position, size - used))
            self._changed.notify_all()

    def ack(self, position: Position) -> None:
        """Free everything up to ``position``: it is committed, even if ``release`` was never called for some bytes."""
        with self._changed:
            while self._handed and position.reached(self._handed[0][0]):
                self._handed_bytes -= self._handed.popleft()[1]
            self._changed.notify_all()

    def bytes_held(self) -> int:
        """Return the bytes that count against the limit."""
        with self._changed:
            return self._waiting_bytes + self._handed_bytes

    def is_full(self) -> bool:
        """Return whether the limit is reached and no Batch is waiting."""
        with self._changed:
            return not self._waiting and self._is_full()

    def is_empty(self) -> bool:
        """Return whether no Batch and no error is waiting."""
        with self._changed:
            return not self._waiting and self._error is None

    def close(self) -> None:
        """Wake all waiters and release the rows, because a job can be PAUSED for weeks. The window is then unusable."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()

    def _is_full(self) -> bool:
        return self._waiting_bytes + self._handed_bytes >= self._limit
