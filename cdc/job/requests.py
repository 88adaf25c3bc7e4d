"""Requests to a running job: any thread puts them, the run loop carries them out."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum

from cdc.api.models import Resume


class JobRequest(Enum):
    """The requests. END and STOP are final: only a request with a larger number replaces them."""

    RESUME = 1
    PAUSE = 2
    END = 3  # end the process: the job becomes PENDING, or PAUSED if a pause was requested before
    STOP = 4  # the job becomes CANCELLED


@dataclass(slots=True)
class RequestQueue:
    """Holds the newest request for the run loop. Calls: any thread."""

    pending: JobRequest | None = None
    resume: Resume | None = None
    stays_paused: bool = False  # a pause was requested, and no resume after it; also read when a signal ends the job
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, request: JobRequest, resume: Resume | None = None) -> None:
        """Put a request. It replaces the current one, except that RESUME and PAUSE do not replace END or STOP."""
        with self.changed:
            if request in (JobRequest.PAUSE, JobRequest.RESUME):
                self.stays_paused = request is JobRequest.PAUSE
            outweighed = self.pending in (JobRequest.END, JobRequest.STOP) and request.value < self.pending.value
            if not outweighed:
                self.pending, self.resume = request, resume or self.resume
            self.changed.notify_all()

    def wait(self, timeout_s: float | None) -> JobRequest | None:
        """Wait for a request and return it, without taking it; None after ``timeout_s``."""
        with self.changed:
            self.changed.wait_for(lambda: self.pending is not None, timeout_s)
            return self.pending

    def take(self) -> JobRequest | None:
        """Return the current request, if any. PAUSE and RESUME are removed; END and STOP remain."""
        with self.changed:
            request = self.pending
            if request in (JobRequest.PAUSE, JobRequest.RESUME):
                self.pending = None
            return request
