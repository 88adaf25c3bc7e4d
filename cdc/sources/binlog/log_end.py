"""How many bytes of the binlog are not committed yet: a thread asks the server for the end of its binlog.

The replication stream does not say how much is left. A query every ``EVERY_S`` does; the sizes of files that are
complete are asked once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cdc.errors import CdcError
from cdc.model.position import BinlogPosition, file_number
from cdc.mysql.server import Server

EVERY_S = 10.0

_log = logging.getLogger(__name__)


class LogEnd:
    """Knows the end of a server's binlog. Calls: ``start`` and ``stop`` by one thread, the others by any thread."""

    def __init__(self, connect: Callable[[], Server], *, every_s: float = EVERY_S) -> None:
        """``connect``: opens a connection for queries. The first query is after ``every_s``."""
        self.retention_s: float | None = None  # how long the server keeps files; None: not known yet; 0: for ever
        self._connect = connect
        self._every_s = every_s
        self._end: BinlogPosition | None = None  # None: not known
        self._sizes: dict[str, int] = {}  # of complete files
        self._committed: BinlogPosition | None = None
        self._stopping = threading.Event()

    def start(self, committed: BinlogPosition) -> None:
        """Begin to ask, on a thread. May be repeated after ``stop``."""
        self._committed = committed
        self._stopping = stopping = threading.Event()
        threading.Thread(target=self._run, args=(stopping,), name="binlog-end", daemon=True).start()

    def stop(self) -> None:
        """Stop to ask. Does not wait for a query that a server does not answer. May be repeated."""
        self._stopping.set()
        self._end = None

    def ack(self, committed: BinlogPosition) -> None:
        """Note that everything up to ``committed`` is committed."""
        self._committed = committed

    @property
    def offset(self) -> int | None:
        """The offset of the committed position in its file; None before the start."""
        return self._committed.offset if self._committed is not None and self._committed.file else None

    @property
    def behind_bytes(self) -> int | None:
        """The bytes from the committed position to the end of the binlog; None if they are not known."""
        end, here = self._end, self._committed
        if end is None or here is None or here.server != end.server:
            return None
        return bytes_between(here, end, self._sizes)

    def _run(self, stopping: threading.Event) -> None:
        server: Server | None = None
        try:
            while not stopping.wait(self._every_s):
                try:
                    if server is None:
                        server = self._connect()
                        self.retention_s = retention(server)
                    self._ask(server, stopping)
                except CdcError as error:  # the reader reports a source that is away
                    _log.debug("the end of the binlog is not known: %s", error)
                    self._end = None
                    if server is not None:
                        server.close()
                        server = None
        except Exception:  # noqa: BLE001 - logged; a figure must never end a job
            _log.exception("the end of the binlog is not known")
            self._end = None
        finally:
            if server is not None:
                server.close()

    def _ask(self, server: Server, stopping: threading.Event) -> None:
        end, here = server.position(), self._committed
        if here is not None and bytes_between(here, end, self._sizes) is None:
            self._sizes = {name: size for name, size in server.files().items() if name != end.file}
        if not stopping.is_set():
            self._end = end


def bytes_between(here: BinlogPosition, end: BinlogPosition, sizes: dict[str, int]) -> int | None:
    """Return the bytes of binlog from ``here`` to ``end``; None if ``sizes`` lacks a complete file between them."""
    first, last = file_number(here.file), file_number(end.file)
    if first is None or last is None or first[0] != last[0]:
        return None
    if first[1] >= last[1]:
        return max(0, end.offset - here.offset) if first[1] == last[1] else 0
    between = {name: number[1] for name in sizes if (number := file_number(name)) and number[0] == first[0]}
    found = [sizes[name] for name, number in between.items() if first[1] <= number < last[1]]
    if len(found) != last[1] - first[1]:
        return None
    return sum(found) - here.offset + end.offset


def retention(server: Server) -> float:
    """Return for how many seconds the server keeps its binlog files; 0: for ever, or it does not say."""
    seconds = float(server.settings.get("binlog_expire_logs_seconds") or 0)
    days = float(server.settings.get("expire_logs_days") or 0)
    return seconds or days * 86400
