"""Batches read ahead, bounded in bytes of rows that no Task has taken yet."""

from __future__ import annotations

import threading
from collections import deque

from cdc.batch import Batch
from cdc.position import Position


def rows_bytes(batch: Batch) -> int:
    """Bytes that a Batch's rows hold in memory, as channels count them."""
    return sum(changes.rows.nbytes for changes in batch.changes)


class Window:
    """What stands between a reading thread and the Consumer.

    Counts the bytes of waiting Batches, and of Batches handed out whose rows no started Task has taken yet. A Batch
    goes in while there is room at all, so the bound is passed by one Batch at most, and one larger than the window
    still gets through.
    Calls: ``put``, ``stop`` by the reading thread; the rest by the Consumer's.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Batch, int]] = deque()
        self._waiting_bytes = 0
        self._handed: deque[tuple[Position, int]] = deque()  # last Position and bytes not yet taken, oldest first
        self._handed_bytes = 0
        self._error: BaseException | None = None
        self._closed = False

    def put(self, batch: Batch) -> bool:
        """Add a Batch, waiting for room as long as it takes; False once the window is closed."""
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
        """``error`` is raised by ``get`` once everything before it was handed out; None takes it back."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def get(self, timeout_s: float) -> Batch | None:
        """The next Batch; None if none came in time or the window is closed. Raises: what ``stop`` was given, again."""
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

    def taken(self, byte_count: int) -> None:
        """Rows of that many bytes have left for started Tasks."""
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
        """Everything up to ``position`` is committed, whatever was told to have been taken."""
        with self._changed:
            while self._handed and position.reached(self._handed[0][0]):
                self._handed_bytes -= self._handed.popleft()[1]
            self._changed.notify_all()

    def bytes_held(self) -> int:
        """What counts against the limit at this moment."""
        with self._changed:
            return self._waiting_bytes + self._handed_bytes

    def is_full(self) -> bool:
        """Whether reading ahead stands still, with nothing left to hand out."""
        with self._changed:
            return not self._waiting and self._is_full()

    def is_empty(self) -> bool:
        """Whether nothing waits to be handed out, an error neither."""
        with self._changed:
            return not self._waiting and self._error is None

    def close(self) -> None:
        """Let everybody go who waits, and the rows: a job may be PAUSED for weeks. Nothing more goes in or out."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()

    def _is_full(self) -> bool:
        return self._waiting_bytes + self._handed_bytes >= self._limit
