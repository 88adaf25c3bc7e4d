"""The commit thread: it commits a closed cycle while the next cycle reads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from cdc.errors import CdcError
from cdc.pipeline.commit_cycle import ClosedCycle
from cdc.pipeline.committer import Committer
from cdc.state.base import Checkpoint

_Result = TypeVar("_Result")


class CommitThread:
    """Runs ``Committer.finish``, and other work that must not run during a commit.

    Calls: the Consumer's thread; other threads may read ``closed``.
    """

    def __init__(self, committer: Committer, on_wait: Callable[[CdcError | None], None]) -> None:
        """Call ``on_wait`` on the Consumer's thread: the reason when a commit begins to wait, None after the wait."""
        self.closed: ClosedCycle | None = None  # the cycle that is being committed
        self.committer = committer
        committer.on_wait = self._waits
        self._on_wait = on_wait
        self._reported: CdcError | None = None
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
        self._future: Future[Checkpoint] | None = None
        self._is_finishing = False  # on the commit thread

    @property
    def is_busy(self) -> bool:
        """Whether a cycle is being committed or is not acknowledged yet: the next cycle may not close."""
        return self._future is not None

    @property
    def has_succeeded(self) -> bool:
        """Whether a commit is done, without an error, and not acknowledged yet."""
        return self._future is not None and self._future.done() and self._future.exception() is None

    def begin(self, closed: ClosedCycle) -> None:
        """Start the commit of ``closed`` on the commit thread."""
        self.closed = closed
        self._future = self._threads.submit(self._finish, closed)

    def result(self) -> Checkpoint | None:
        """Return the COMMITTED checkpoint; None if no commit is done. Raises: the error of the commit."""
        self._report()
        return self._future.result() if self._future is not None and self._future.done() else None

    def release(self) -> None:
        """Allow the next ``begin``. Calls: after ``result`` has returned a checkpoint."""
        self._future = self.closed = None

    def wait(self, timeout_s: float) -> None:
        """Wait until the commit has ended, at most ``timeout_s``."""
        if self._future is not None:
            wait([self._future], timeout_s)

    def cancel(self) -> None:
        """Stop the wait for Tasks. A PREPARED cycle is committed nevertheless."""
        if self.closed is not None:
            self.closed.cancel()

    def submit(self, work: Callable[..., _Result], *arguments: object) -> Future[_Result]:
        """Run ``work`` on the commit thread, after the current commit."""
        return self._threads.submit(work, *arguments)

    def end(self, timeout_s: float) -> Checkpoint | None:
        """Wait for the current commit, at most ``timeout_s`` for its Tasks. Return its checkpoint if it succeeds."""
        if self._future is None or self.closed is None:
            return None
        self.wait(timeout_s)
        self.closed.cancel()
        if self._future.exception() is not None:
            return None
        self.closed = None
        return self._future.result()

    def close(self) -> None:
        """Wait for the thread to end. Work that has not begun is dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _finish(self, closed: ClosedCycle) -> Checkpoint:
        self._is_finishing = True
        try:
            return self.committer.finish(closed)
        finally:
            self._is_finishing = False

    def _waits(self) -> None:
        if not self._is_finishing:  # recovery and replay commit on the Consumer's thread
            self._report()

    def _report(self) -> None:
        reason = self.committer.blocked_by
        if reason is not self._reported:
            self._reported = reason
            self._on_wait(reason)
