"""The array that the kernels read: received bytes, followed by the bytes that were unpacked from them.

::

    0 ............ filled ............ outer_size .......... inner_used ........ inner end | slack
      received bytes       room          unpacked: payloads, compressed rows, JSON documents

Row events are listed with offsets into the whole array, so a Batch can have packed and plain events.
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import SLACK_BYTES
from cdc.sources.binlog.decoder.framing import AT, BITMAPS_AT, END, EVENT_COUNT, NEED

MIN_FREE = 64 << 10  # with smaller reads the system calls would take most of the time


class StreamBuffer:
    """Received and unpacked bytes. When they move, the offsets in the kernel's ``state`` and ``events`` change too."""

    def __init__(self, size: int, state: np.ndarray, events: np.ndarray) -> None:
        self._base = size
        self._state = state
        self._events = events
        self.outer_size = size
        self.inner_size = 0
        self.filled = 0
        self.inner_used = 0
        self.data = np.zeros(size + SLACK_BYTES, np.uint8)

    def free_space(self, pinned: bool) -> memoryview:
        """Return the free memory after the received bytes. ``pinned``: they must not move now."""
        needed = int(self._state[AT] + self._state[NEED]) - self.filled if not pinned else 0
        # A damaged length can be 4 GiB: grow with the bytes that have arrived, at most by a factor of two at a time.
        least = max(MIN_FREE, min(needed, max(self.filled, self._base)))
        if not pinned:
            kept = self._kept_from()
            if kept == self.filled or self.outer_size - self.filled < max(least, self._base // 4):
                self._compact(kept)
        if self.outer_size - self.filled < least:
            self._resize(self.filled + max(least, self._base // 4), self.inner_size)
        elif self.filled == 0 and self.outer_size > 4 * self._base and not pinned and self.inner_used == 0:
            self._resize(self._base, 0)  # the huge event that needed the memory is processed
        return self.data.data[self.filled : self.outer_size]

    def _kept_from(self) -> int:
        count = int(self._state[EVENT_COUNT])
        outer = self._events[:count, BITMAPS_AT]
        outer = outer[outer < self.outer_size]
        return min(int(self._state[AT]), int(outer.min())) if len(outer) else int(self._state[AT])

    def _compact(self, kept: int) -> None:
        if kept == 0:
            return
        self.data[: self.filled - kept] = self.data[kept : self.filled].copy()
        self.filled -= kept
        self._state[AT] -= kept
        events = self._events[: int(self._state[EVENT_COUNT])]
        outer = events[:, BITMAPS_AT] < self.outer_size
        events[outer, BITMAPS_AT] -= kept
        events[outer, END] -= kept

    def _resize(self, outer_size: int, inner_size: int) -> int:
        """Copy to an array of another size. Return how far the unpacked bytes moved."""
        data = np.zeros(outer_size + inner_size + SLACK_BYTES, np.uint8)
        data[: self.filled] = self.data[: self.filled]
        data[outer_size : outer_size + self.inner_used] = self.data[self.outer_size : self.outer_size + self.inner_used]
        shift = outer_size - self.outer_size
        if shift:
            events = self._events[: int(self._state[EVENT_COUNT])]
            inner = events[:, BITMAPS_AT] >= self.outer_size
            events[inner, BITMAPS_AT] += shift
            events[inner, END] += shift
            if int(self._state[AT]) >= self.outer_size and self.inner_used:
                self._state[AT] += shift
        self.data, self.outer_size, self.inner_size = data, outer_size, inner_size
        return shift

    @property
    def inner_end(self) -> int:
        """Return the offset after the last unpacked byte."""
        return self.outer_size + self.inner_used

    @property
    def inner_left(self) -> int:
        """Return the free bytes of the inner part."""
        return self.inner_size - self.inner_used

    def grow_inner(self, size: int) -> None:
        """Enlarge the inner part to at least ``size`` bytes."""
        if size > self.inner_size:
            self._resize(self.outer_size, size)

    def inner_free_space(self) -> memoryview:
        """Return the free memory after the unpacked bytes."""
        return self.data.data[self.inner_end : self.outer_size + self.inner_size]

    def put_inner(self, plain: np.ndarray) -> int:
        """Append unpacked bytes, and enlarge the inner part if needed. Return their offset."""
        if len(plain) > self.inner_left:
            self.grow_inner(max(self.inner_used + len(plain), self._base))
        at = self.inner_end
        self.data[at : at + len(plain)] = plain
        self.inner_used += len(plain)
        return at

    def compact_inner(self) -> None:
        """Drop the unpacked bytes before the first one that the scan or a listed event still needs."""
        events = self._events[: int(self._state[EVENT_COUNT])]
        inner = events[:, BITMAPS_AT] >= self.outer_size
        at = int(self._state[AT])
        first = int(events[inner, BITMAPS_AT].min(initial=at if at >= self.outer_size else self.inner_end))
        shift = first - self.outer_size
        if not shift:
            return
        kept = self.data[first : self.inner_end].copy()
        self.data[self.outer_size : self.outer_size + len(kept)] = kept
        self.inner_used = len(kept)
        events[inner, BITMAPS_AT] -= shift
        events[inner, END] -= shift
        if at >= self.outer_size:
            self._state[AT] -= shift

    def drop_inner(self) -> None:
        """Drop all unpacked bytes. Free the memory that was added for one huge event."""
        self.inner_used = 0
        if self.inner_size > 4 * self._base:
            self._resize(self.outer_size, self._base)

    def squeeze(self) -> tuple[int, int] | None:
        """Join the packets of the split event at AT. Return its offset and size; None: it has not arrived completely.

        The packets' contents move right, to the last packet, so that the bytes after the event do not move.
        """
        start = at = int(self._state[AT])
        pieces: list[tuple[int, int]] = []
        while True:
            if self.filled - at < 4:
                self._state[NEED] = at + 4 - start
                return None
            length = int.from_bytes(self.data[at : at + 3].tobytes(), "little")
            if self.filled - at < 4 + length:
                self._state[NEED] = at + 4 + length - start
                return None
            pieces.append((at + 4, length))
            at += 4 + length
            if length < 0xFFFFFF:
                break
        end = at
        for offset, length in reversed(pieces):
            end -= length
            if end != offset:
                self.data[end : end + length] = self.data[offset : offset + length].copy()
        return end + 1, at - end - 1  # without the status byte
