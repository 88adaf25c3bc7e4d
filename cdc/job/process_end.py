"""The end of a job's process: by a signal, or by force if a request takes too long."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from cdc.errors import CdcError, LeaseLost
from cdc.job.record import SavedRecord
from cdc.job.requests import JobRequest, RequestQueue
from cdc.paths import state_folder
from cdc.state.base import JobState, ResumeKind
from cdc.state.job_directory import JobDirectory

# The time limits of a commit that hangs in the sink. It is PREPARED, and the next start completes it.
END_GRACE_S = 25.0  # service managers often send SIGKILL 30 s after SIGTERM
LOST_GRACE_S = 5.0  # another process runs the job; a commit that is repeated there may still be completed here
PAUSE_GRACE_S = 60.0  # longer, because large merges take time, and a forced end costs a new process

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger(__name__)


class ProcessEnd:
    """Handles signals, and ends the process by force. The saved state is valid at any time, so no row is lost."""

    def __init__(self, saved: SavedRecord, requests: RequestQueue) -> None:
        self._saved = saved
        self._requests = requests
        self.signal = 0  # number of the signal that ends the process; 0: no signal has arrived
        self.lost: LeaseLost | None = None  # another process runs the job
        self.is_over = False  # the job has ended, so no force is needed

    @property
    def exit_code(self) -> int:
        """The exit code of a process that ends on a signal or a request."""
        return 128 + self.signal if self.signal else 0

    @property
    def reason(self) -> str:
        """The reason of the end, for the record of the job."""
        return f"ended by {signal.Signals(self.signal).name}" if self.signal else "ended on request"

    def after_save(self, code: int) -> int:
        """Return ``code``, or 1 in place of 0 if the state in which the job ends cannot be saved. Raises: LeaseLost.

        PENDING may stay unsaved: the next start continues without it.
        """
        if self._saved.now.state is JobState.PENDING or self._saved.save_again(END_GRACE_S):
            return code
        _log.error("the process ends, and the state %s is not saved; repeat the command", self._saved.now.state)
        return code or 1

    def take_signals(self, end: Callable[[int], None]) -> None:
        """Call ``end`` on a new thread at the first SIGTERM or SIGINT. The second one ends the process at once."""

        def handle(number: int, _: FrameType | None) -> None:
            if self.signal:
                os._exit(128 + number)
            self.signal = number
            # a new thread, because the handler may interrupt the run loop while it has the lock of the requests
            threading.Thread(target=end, args=(number,), name="signal", daemon=True).start()

        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, handle)

    def limit(self, request: JobRequest, is_done: Callable[[], bool]) -> None:
        """End the process by force if ``request`` is not carried out within its time limit."""
        grace_s = PAUSE_GRACE_S if request is JobRequest.PAUSE else LOST_GRACE_S if self.lost else END_GRACE_S
        timer = threading.Timer(grace_s, self._force, (request, is_done, grace_s))
        timer.daemon = True
        timer.start()

    def _force(self, request: JobRequest, is_done: Callable[[], bool], grace_s: float) -> None:
        if self.is_over or is_done():
            return
        if self.lost is not None:  # nothing may be saved, and a supervisor must not start the job again
            JobDirectory(state_folder(), self._saved.now.name).set_failure(self.lost)
            _log.error("the process ends by force: %s", self.lost)
            os._exit(self.lost.exit_code)
        name = self._saved.now.name
        shown = JobRequest.PAUSE if request is JobRequest.END and self._requests.stays_paused else request
        state, what, hint = {
            JobRequest.PAUSE: (JobState.PAUSED, "paused by its user", f"cdc resume {name}"),
            JobRequest.STOP: (JobState.CANCELLED, "stopped by its user", None),
        }.get(shown, (JobState.PENDING, "ended by a signal", None))
        reason = f"{what}; its work did not end within {grace_s:.0f} s and is completed at the next start"
        _log.error("the process ends by force: %s", reason)
        resume = ResumeKind.MANUAL if shown is JobRequest.PAUSE else None
        with suppress(CdcError):
            self._saved.save(state=state, reason=reason, hint=hint, resume=resume, driver_pid=None, status_url=None)
        stopped = int(self._saved.is_unsaved)
        os._exit({JobRequest.PAUSE: 1, JobRequest.STOP: stopped}.get(request, self.exit_code))


@contextmanager
def restored_signals() -> Iterator[None]:
    """Restore the caller's signal handlers at the end: the process may continue after the job, as a notebook does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
