"""The shared Spark of a host: one Spark Connect server for all small jobs, which this process keeps running.

The server survives a restart of ``cdc serve``, as drivers do, and the next one finds it again. When it dies, the
jobs that use it wait; each continues with a new session as soon as another server is ready. After an upgrade, drivers
of the earlier version keep their server until none of them is left.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cdc.errors import CdcError
from cdc.job.supervisor import rotate
from cdc.paths import state_folder
from cdc.retry import Backoff
from spark.code_version import code_version
from spark.connect_server import (
    ADDRESS_FILE,
    ConnectServer,
    is_used,
    known_server,
    ready,
    save_server,
    start_server,
)
from spark.gateway import START_LIMIT_S

POLL_S = 0.5
ANSWER_EVERY_S, ANSWER_S = 5.0, 2.0
SILENT_S = 30.0  # a collection of garbage delays an answer by seconds
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # before another start

UNUSED_EVERY_S = 60.0

_log = logging.getLogger(__name__)


def shared_folder() -> Path:
    """Return the folder of the server for drivers of this version."""
    return state_folder() / "spark" / code_version()


class SharedSpark:
    """Keeps one server running. Calls: ``start`` and ``close`` on one thread, with the lock of this ``$CDC_HOME``."""

    def __init__(self, folder: Path, memory: int | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``folder``: for its address, log and temporary files. ``memory``: bytes of its heap; None: the default."""
        self._folder = folder
        self._memory = memory
        self._clock = clock
        self._server: ConnectServer | None = None
        self._process: subprocess.Popen[bytes] | None = None  # None: an earlier process has started it
        self._backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S, spread=0.0)
        self._not_before = 0.0  # of the next start
        self._began = 0.0  # of the last start
        self._asked = self._answered = 0.0
        self._searched = float("-inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shared Spark", daemon=True)

    def start(self) -> None:
        """Find or start the server, and begin to watch it. It is ready some seconds later."""
        self._server = known_server(self._folder)
        self._began = self._answered = self._clock()
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether the server answers."""
        server = self._server
        return server is not None and server.is_ready

    def close(self, *, ends_server: bool) -> None:
        """Stop to watch, and end the server if no job needs it."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        else:  # ``start`` was never called; an earlier process may have left a server
            self._server = known_server(self._folder)
        if ends_server and self._server is not None:
            (self._folder / ADDRESS_FILE).unlink(missing_ok=True)
            self._server.end()
            self._reap()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._look()
            except Exception:  # noqa: BLE001 - logged; the thread must continue to watch
                _log.exception("The shared Spark cannot be watched.")
            self._over.wait(POLL_S)

    def _look(self) -> None:
        now, server = self._clock(), self._server
        if now - self._searched >= UNUSED_EVERY_S:
            self._searched = now
            self._end_unused()
        if server is None:
            if now >= self._not_before:
                self._launch()
        elif not server.is_alive:
            self._forget("has ended")
        elif not server.is_ready:
            if server.answers(ANSWER_S):
                self._server = ready(server)
                save_server(self._folder, self._server)
                self._answered = now
                _log.info("The shared Spark is ready.", extra={"pid": server.pid, "port": server.port})
            elif now - self._began > START_LIMIT_S:
                self._forget(f"did not start within {START_LIMIT_S:.0f} s")
        elif now - self._asked >= ANSWER_EVERY_S:
            self._asked = now
            if server.answers(ANSWER_S):
                self._answered = now
                self._backoff.reset()
            elif now - self._answered > SILENT_S:
                self._forget(f"did not answer for {SILENT_S:.0f} s")
            with suppress(OSError):
                rotate(self._folder / "log")

    def _launch(self) -> None:
        self._began = self._clock()
        self._not_before = self._began + next(self._backoff)
        try:
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            self._server, self._process = start_server(self._folder, self._memory)
        except (CdcError, OSError) as error:
            _log.error("The shared Spark cannot be started: %s", error)
            return
        _log.info("The shared Spark starts.", extra={"pid": self._server.pid, "port": self._server.port})

    def _forget(self, what: str) -> None:
        """End a server that is of no use, so that another one is started."""
        assert self._server is not None
        log = self._folder / "log"
        _log.error("The shared Spark %s; it starts again.", what, extra={"pid": self._server.pid, "log": str(log)})
        (self._folder / ADDRESS_FILE).unlink(missing_ok=True)
        self._server.end(0)
        self._reap()
        self._server = None

    def _end_unused(self) -> None:
        """End servers of earlier versions that no driver uses any more."""
        for folder in self._folder.parent.glob("*"):
            if folder != self._folder and not is_used(folder):
                if (server := known_server(folder)) is not None:
                    _log.info("A shared Spark of an earlier version ends.", extra={"pid": server.pid})
                    server.end()
                shutil.rmtree(folder, ignore_errors=True)

    def _reap(self) -> None:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ANSWER_S)
            self._process = None
