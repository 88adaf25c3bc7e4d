"""The thread that fetches batches from a Canal server ahead of time and sends the acks.

The server keeps each batch in its ring buffer until it is acked, and stops reading MySQL when the ring is full. The
fetcher therefore counts what is fetched and not acked as the server does, and stops fetching before the ring is full.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from cdc.errors import CdcError, ErrorAction, SourceActionRequired, action_for
from cdc.sources.canal.client import CanalClient, Message
from cdc.sources.canal.entries import Entries

log = logging.getLogger(__name__)

FULL, HALF = 7 / 8, 1 / 2  # parts of the ring: at FULL nothing is fetched, from HALF on the cycle should close
_LARGEST_FETCH = 1 / 8  # part of the ring that one batch may have
_WAIT_MS = 100  # a get waits at the server for so long until a batch is full, so a single row is at most so late
_EMPTY = 2  # empty gets in a row after which the server counts as drained: after one it may only be slow
_KEEP_ALIVE_S = 30.0
_STARVED_S = 1.0
_JUMPS = 4  # jumps of batch ids that show another client; the first one after a lost connection does not count
_REFUSALS = 3  # refused acks that show that another client acks
_WITHIN_S = 60.0  # so many jumps or refusals within this time
_OTHERS = ("is not the firstly", "is not exist", "no match ack position")
_OTHER_CLIENT_HINT = "Create a Canal destination for each consumer, then run `cdc snapshot` for the job's tables."


@dataclass(frozen=True, slots=True)
class Ring:
    """The ring buffer of the server, by its settings there."""

    entries: int = 16384
    unit_bytes: int = 1024
    mode: Literal["MEMSIZE", "ITEMSIZE"] = "MEMSIZE"

    def used(self, entries: int, byte_count: int) -> float:
        """Return the part of the ring that so many entries and bytes take."""
        part = entries / self.entries
        return part if self.mode == "ITEMSIZE" else max(part, byte_count / (self.entries * self.unit_bytes))

    def fetch_size(self, requested: int) -> int:
        """Return the size of one fetch: units of bytes, or entries."""
        return max(1, min(requested, int(self.entries * _LARGEST_FETCH)))


@dataclass(frozen=True, slots=True)
class Fetched:
    """A batch of the server."""

    epoch: int  # rises each time the server sends again what was not acked
    message: Message
    entries: Entries
    server_is_new: bool  # the first batch of an epoch, and no client had fetched from this server before


class Fetcher:
    """Fetch and ack on a thread. Calls: ``take``, ``ack`` and the properties by one other thread."""

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
        self._expected: int | None = None  # id of the next batch; None before the first one
        self._server_is_new = False
        self._session = 0
        self._rollbacks = 0  # number of rollbacks, each of which begins a session without a new connection
        self._asked = 0  # the connection on which ``_ask_once_more`` has sent a rollback
        self._refusals: list[float] = []  # times at which an ack was refused, in monotonic seconds
        self._jumps: list[float] = []  # times at which batches were missing
        self._lost_answer = False  # the connection was lost, and perhaps a batch with it
        self._error: BaseException | None = None
        self._stopping = False
        self._blocked_since = False
        self._empty = 0  # empty gets in a row
        self._came_at = time.monotonic()  # when the newest batch arrived
        self._heard_at = 0.0
        self._away: tuple[float, CdcError] | None = None
        self.disconnects = 0
        self._thread = threading.Thread(target=self._run, name="canal-fetcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and close the connection. May be repeated."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join()
            self._client.close()  # the thread may have reconnected meanwhile

    def take(self, timeout_s: float) -> Fetched | None:
        """Return the next batch; None if none arrives in time. Raises: the thread's error, after the last batch."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error or self._stopping, timeout_s)
            if self._waiting:
                return self._waiting.popleft()
            if self._error is not None:
                raise self._error
            return None

    def ack(self, fetched: Fetched) -> None:
        """Ack ``fetched``, the oldest batch that is not acked. Do nothing if the server sends it again anyway."""
        with self._changed:
            if fetched.epoch == self.epoch:
                self._acks.append(fetched)
                self._changed.notify_all()

    @property
    def used(self) -> float:
        """Return the part of the ring, or of the window, that is fetched and not acked."""
        return self._part(self._entries, self._bytes)

    def part(self, fetched: Fetched) -> float:
        """Return the part of the ring, or of the window, that one batch takes."""
        return self._part(len(fetched.entries), len(fetched.message.body))

    def _part(self, entries: int, byte_count: int) -> float:
        return max(self._ring.used(entries, byte_count), byte_count / self._window_bytes)

    @property
    def is_empty(self) -> bool:
        """Return whether ``take`` has returned all fetched batches."""
        return not self._waiting

    @property
    def bytes_held(self) -> int:
        """Return the bytes that are fetched and not acked."""
        return self._bytes

    @property
    def is_blocked(self) -> bool:
        """Return whether only an ack lets more arrive: the ring is full, or half full and nothing arrives.

        The server adds up to a thousand entries to its ring at once, and waits until there is room for all of them.
        """
        with self._changed:
            starved = self._empty >= _EMPTY and self.used >= HALF and time.monotonic() - self._came_at > _STARVED_S
            return (self._blocked_since or starved) and not self._waiting

    @property
    def is_idle(self) -> bool:
        """Return whether the server has nothing more, and ``take`` has returned all fetched batches."""
        with self._changed:
            return self._empty >= _EMPTY and not self._waiting and self._error is None

    @property
    def came_at(self) -> float:
        """Return when the newest batch arrived, in monotonic seconds."""
        return self._came_at

    @property
    def heard_at(self) -> float:
        """Return when the last get began that the server answered with nothing, in monotonic seconds."""
        return self._heard_at

    @property
    def away(self) -> tuple[float, CdcError] | None:
        """Return since when the server cannot be reached, in monotonic seconds, and why; None: it can be reached."""
        return self._away

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until ``close``."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)

    # --- the thread ---

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - without it the Consumer would wait for ever
                if isinstance(error, CdcError) and action_for(error) is ErrorAction.RETRY:
                    self._note(error)
                    continue
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return

    def _step(self) -> None:
        self._send_acks()
        if self.used >= FULL:
            with self._changed:
                self._blocked_since = True
                self._changed.notify_all()
                acked = self._changed.wait_for(lambda: self._acks or self._stopping, _KEEP_ALIVE_S)
            if not acked:
                self._client.keep_alive()
            return
        self._blocked_since = False
        asked_at = time.monotonic()
        message = self._client.get(self._fetch_size, _WAIT_MS)
        if self._away is not None:
            log.info("reconnected to Canal", extra={"server": self._client.address})
            self._away = None
        if message is None:
            self._empty += 1
            self._heard_at = asked_at
            self._refusals.clear()
            self._ask_once_more()
            return
        self._keep(message)

    def _keep(self, message: Message) -> None:
        self._empty, self._came_at = 0, time.monotonic()
        if message.id != self._expected:
            self._resync(message)
            self._lost_answer = False
            return
        self._lost_answer = False
        entries = Entries(message.body)
        with self._changed:
            if message.session != self._session:  # a new connection or a rollback: unacked batches arrive again
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
        """Request all unacked batches again, until the first one has the expected id.

        A batch before this one may be missing: the server sent it on a connection that was lost, to this process or to
        one that died. If reading continued here, the rows of the missing batch would arrive later and be dropped as
        repeats. The first batch on a connection does not show what was fetched before it, so it is requested twice.
        """
        if message.id == 1:  # the first batch of all, or the server has created its destination again
            self._server_is_new = True
        elif self._expected is not None:
            self._note_jump(message)
        self._roll_back()
        self._expected = message.id + 1

    def _ask_once_more(self) -> None:
        """Request all unacked batches once if nothing arrives on a new connection.

        Only the id of a next batch would show a missing one, and an idle source has no next batch.
        """
        connection = self._client.session - self._rollbacks
        if self._empty >= _EMPTY and self.used < HALF and connection != self._asked:
            self._asked, self._empty = connection, 0
            self._roll_back()

    def _roll_back(self) -> None:
        self._client.rollback()
        self._rollbacks += 1

    def _note_jump(self, message: Message) -> None:
        if not self._lost_answer and _count(self._jumps) >= _JUMPS:
            raise SourceActionRequired(
                f"Another client reads this Canal destination: batch {message.id} arrived instead of {self._expected}.",
                hint=_OTHER_CLIENT_HINT,
                server=self._client.address,
            )
        log.warning("batch %d arrived instead of %s: requesting all unacked batches", message.id, self._expected)

    def _send_acks(self) -> None:
        while True:
            with self._changed:
                if not self._acks:
                    return
                fetched = self._acks.popleft()
                self._entries -= len(fetched.entries)
                self._bytes -= len(fetched.message.body)
            self._client.ack(fetched.message)

    def _note(self, error: CdcError) -> None:
        if self._stopping:
            return
        is_refusal = any(pattern in error.message for pattern in _OTHERS)
        self._lost_answer = not is_refusal
        if is_refusal and _count(self._refusals) >= _REFUSALS:
            blocked = SourceActionRequired(
                f"Canal refused {len(self._refusals)} acks within {_WITHIN_S:.0f} s: another client acks on this "
                "destination.",
                hint=_OTHER_CLIENT_HINT,
                **error.context,
            )
            with self._changed:
                self._error = blocked
                self._stopping = True
                self._changed.notify_all()
            return
        self.disconnects += self._away is None
        self._away = (self._away[0] if self._away else time.monotonic(), error)
        log.warning("reconnecting to Canal: %s", error)


def _count(times: list[float]) -> int:
    """Add the present time to ``times``, and return how many of them are recent."""
    now = time.monotonic()
    times[:] = [*(at for at in times if now - at < _WITHIN_S), now]
    return len(times)
