"""Fetches batches from a Canal server ahead of time, within its ring buffer, and sends the acks.

The server keeps every batch in its ring until it is acked, and stops reading the source when the ring is full. So
what was fetched and not acked is counted as the server counts it, and fetching stands still before the ring is full.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from cdc.canal.client import CanalClient, Message
from cdc.canal.entries import Entries
from cdc.errors import SourceBlocked, SourceUnavailable

log = logging.getLogger(__name__)

FULL, HALF = 7 / 8, 1 / 2  # of the ring: nothing more is fetched; the cycle should close
_LARGEST_FETCH = 1 / 8  # of the ring, in one batch
_WAIT_MS = 100  # the server lets a get wait so long for a whole batch: the most that a lone row is late
_EMPTY = 2  # gets in a row that bring nothing: one alone may only tell of a server that is slow
_KEEP_ALIVE_S = 30.0
_STARVED_S = 1.0
_JUMPS, _JUMPS_WITHIN_S = 4, 60.0  # a cut line makes one jump; another client makes them again and again
_REFUSALS = 3  # acks refused in a row: somebody else acks
_OTHERS = ("is not the firstly", "is not exist", "no match ack position")


@dataclass(frozen=True, slots=True)
class Ring:
    """The server's ring buffer, as it is configured there."""

    entries: int = 16384
    unit_bytes: int = 1024
    mode: Literal["MEMSIZE", "ITEMSIZE"] = "MEMSIZE"

    def used(self, entries: int, byte_count: int) -> float:
        """Which part of it so much takes."""
        part = entries / self.entries
        return part if self.mode == "ITEMSIZE" else max(part, byte_count / (self.entries * self.unit_bytes))

    def fetch_size(self, wanted: int) -> int:
        """What to ask for at once: units of bytes, or entries."""
        return max(1, min(wanted, int(self.entries * _LARGEST_FETCH)))


@dataclass(frozen=True, slots=True)
class Fetched:
    """A server batch."""

    epoch: int  # rises whenever what was not acked comes again
    message: Message
    entries: Entries
    server_is_new: bool  # the first of an epoch: nobody had taken a batch of this server


class Fetcher:
    """The thread that talks with the server.

    Calls: ``take``, ``ack`` and the questions by one other thread.
    """

    def __init__(self, client: CanalClient, ring: Ring, *, batch_size: int, window_bytes: int) -> None:
        self.epoch = 0
        self._client = client
        client.wait = self.wait
        self._ring = ring
        self._fetch_size = ring.fetch_size(batch_size)
        self._window_bytes = window_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Fetched] = deque()
        self._acks: deque[Fetched] = deque()
        self._entries = self._bytes = 0  # fetched and not acked
        self._expected: int | None = None  # the next batch's id; None until the first one has come
        self._server_is_new = False
        self._session = 0
        self._rollbacks = 0  # of ours: sessions without a connection of their own
        self._asked = 0  # the connection over which all was asked for once more
        self._refusals = 0
        self._jumps: list[float] = []  # when batches were missing
        self._error: BaseException | None = None
        self._stopping = False
        self._standing = False
        self._empty = 0  # gets in a row that brought nothing
        self._came_at = time.monotonic()  # the newest batch
        self._away: tuple[float, SourceUnavailable] | None = None
        self._thread = threading.Thread(target=self._run, name="canal-fetcher", daemon=True)

    def start(self) -> None:
        """Begin to fetch."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and close the connection. Harmless when repeated."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join()
            self._client.close()  # it may have connected again in between

    def take(self, timeout_s: float) -> Fetched | None:
        """The next server batch. Raises: what stopped the thread, once all before it was taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error or self._stopping, timeout_s)
            if self._waiting:
                return self._waiting.popleft()
            if self._error is not None:
                raise self._error
            return None

    def ack(self, fetched: Fetched) -> None:
        """Have ``fetched``, the oldest one not acked, acked; dropped if it comes again anyway."""
        with self._changed:
            if fetched.epoch == self.epoch:
                self._acks.append(fetched)
                self._changed.notify_all()

    @property
    def used(self) -> float:
        """Which part of the ring, or of the window, is fetched and not acked."""
        return self._part(self._entries, self._bytes)

    def part(self, fetched: Fetched) -> float:
        """Which part of it one batch takes."""
        return self._part(len(fetched.entries), len(fetched.message.body))

    def _part(self, entries: int, byte_count: int) -> float:
        return max(self._ring.used(entries, byte_count), byte_count / self._window_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether everything fetched was taken."""
        return not self._waiting

    @property
    def bytes_held(self) -> int:
        """Bytes fetched and not acked."""
        return self._bytes

    @property
    def stands_still(self) -> bool:
        """Whether only an ack can help: nothing is fetched any more, or nothing comes though much is not acked.

        The server puts up to a thousand entries into its ring at once, and waits until there is room for all of them.
        """
        with self._changed:
            starved = self._empty >= _EMPTY and self.used >= HALF and time.monotonic() - self._came_at > _STARVED_S
            return (self._standing or starved) and not self._waiting

    @property
    def drained(self) -> bool:
        """Whether the server had nothing more, and everything fetched was taken."""
        with self._changed:
            return self._empty >= _EMPTY and not self._waiting and self._error is None

    @property
    def came_at(self) -> float:
        """When the newest batch came, monotonic seconds."""
        return self._came_at

    @property
    def away(self) -> tuple[float, SourceUnavailable] | None:
        """Since when the server cannot be reached, and why."""
        return self._away

    def wait(self, seconds: float) -> None:
        """Wait, until stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)

    # --- the thread ---

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._step()
            except SourceUnavailable as error:
                self._note(error)
            except Exception as error:  # noqa: BLE001 - the Consumer must hear of it, or the job would stand still
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return

    def _step(self) -> None:
        self._send_acks()
        if self.used >= FULL:
            with self._changed:
                self._standing = True
                self._changed.notify_all()
                acked = self._changed.wait_for(lambda: self._acks or self._stopping, _KEEP_ALIVE_S)
            if not acked:
                self._client.keep_alive()
            return
        self._standing = False
        message = self._client.get(self._fetch_size, _WAIT_MS)
        if self._away is not None:
            log.info("connected to Canal again", extra={"server": self._client.address})
            self._away = None
        if message is None:
            self._empty += 1
            self._refusals = 0
            self._ask_once_more()
            return
        self._keep(message)

    def _keep(self, message: Message) -> None:
        self._empty, self._came_at = 0, time.monotonic()
        if message.id != self._expected:
            self._resync(message)
            return
        entries = Entries(message.body)
        with self._changed:
            if message.session != self._session:  # a new connection or a rollback: everything not acked comes again
                self._session = message.session
                self.epoch += 1
                self._waiting.clear()
                self._acks.clear()
                self._entries = self._bytes = 0
            self._expected = message.id + 1
            self._entries += len(entries)
            self._bytes += len(message.body)
            self._waiting.append(Fetched(self.epoch, message, entries, self._server_is_new))
            self._server_is_new = False
            self._changed.notify_all()

    def _resync(self, message: Message) -> None:
        """Have everything not acked sent again, until its first batch has the very next id.

        Somebody may have taken a batch before this one, for example a get of ours, or of a process that died, which
        the server has answered to a line that was cut. Whoever went on here would take the rows of that batch, when
        they come at last, for repeats. A first batch tells nothing of what was taken before it, so it is asked for
        twice.
        """
        if message.id == 1:  # the first of all, or the server has made its destination anew
            self._server_is_new = True
        elif self._expected is not None:
            self._note_jump(message)
        self._roll_back()
        self._expected = message.id + 1

    def _ask_once_more(self) -> None:
        """Where nothing comes over a new connection: a batch that was taken before it would be told by the next one.

        A source that has fallen silent has none.
        """
        connection = self._client.session - self._rollbacks
        if self._empty >= _EMPTY and self.used < HALF and connection != self._asked:
            self._asked, self._empty = connection, 0
            self._roll_back()

    def _roll_back(self) -> None:
        self._client.rollback()
        self._rollbacks += 1

    def _note_jump(self, message: Message) -> None:
        now = time.monotonic()
        self._jumps = [at for at in self._jumps if now - at < _JUMPS_WITHIN_S] + [now]
        if len(self._jumps) >= _JUMPS:
            raise SourceBlocked(
                f"Another client takes batches of this destination: batch {message.id} came where {self._expected} "
                "was due.",
                mend="Give each consumer a Canal destination of its own, then take a new snapshot.",
                server=self._client.address,
            )
        log.warning("batch %d came where %s was due: asking for all again", message.id, self._expected)

    def _send_acks(self) -> None:
        while True:
            with self._changed:
                if not self._acks:
                    return
                fetched = self._acks.popleft()
                self._entries -= len(fetched.entries)
                self._bytes -= len(fetched.message.body)
            self._client.ack(fetched.message)

    def _note(self, error: SourceUnavailable) -> None:
        if self._stopping:
            return
        if any(pattern in error.message for pattern in _OTHERS):
            self._refusals += 1
        if self._refusals >= _REFUSALS:
            blocked = SourceBlocked(
                "Canal refuses our acks again and again: another client acks on this destination.",
                mend="Give each consumer a Canal destination of its own, then take a new snapshot.",
                **error.where,
            )
            with self._changed:
                self._error = blocked
                self._stopping = True
                self._changed.notify_all()
            return
        self._away = (self._away[0] if self._away else time.monotonic(), error)
        log.warning("connecting to Canal again: %s", error)
