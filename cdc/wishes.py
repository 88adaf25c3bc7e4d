"""What somebody asked of a running job: noted by any thread, carried out by the run loop."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum

from cdc.status import Resume


class Wish(Enum):
    """What somebody asked of the job; a later entry outweighs an earlier one."""

    RESUME = 1
    PAUSE = 2
    END = 3  # a signal: PENDING, or PAUSED where that was asked for before it was done
    STOP = 4  # CANCELLED


@dataclass(slots=True)
class Wishes:
    """Notes from other threads to the run loop."""

    wish: Wish | None = None
    resume: Resume | None = None
    stays_paused: bool = False  # a pause was asked for, and no resume since: true of a job that a signal ends, too
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, wish: Wish, resume: Resume | None = None) -> None:
        """Somebody asks for it; one that is outweighed is forgotten."""
        with self.changed:
            if wish in (Wish.PAUSE, Wish.RESUME):
                self.stays_paused = wish is Wish.PAUSE
            outweighed = self.wish in (Wish.END, Wish.STOP) and wish.value < self.wish.value
            if not outweighed:
                self.wish, self.resume = wish, resume or self.resume
            self.changed.notify_all()

    def wait(self, timeout_s: float | None) -> Wish | None:
        """The wish, once there is one; None when time is up."""
        with self.changed:
            self.changed.wait_for(lambda: self.wish is not None, timeout_s)
            return self.wish

    def take(self) -> Wish | None:
        """The wish; a pause and a resume are done with once taken, an end never is."""
        with self.changed:
            wish = self.wish
            if wish in (Wish.PAUSE, Wish.RESUME):
                self.wish = None
            return wish
