"""What the status of a running job shows of the state store, without a wait for a store that is down."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from cdc.errors import CheckpointError
from cdc.model.change_record import ChangeSummary
from cdc.model.snapshot import SnapshotRequest
from cdc.model.verify import Verification
from cdc.state.base import Checkpoint, CheckpointStore

SHOWN_VERIFICATIONS = 20  # among which the status finds the waiting one and the last one
WAIT_S = 2.0  # for the store; the command line waits 5 s for a status, Prometheus 10 s

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """The saved values that the status shows."""

    checkpoint: Checkpoint | None = None  # the last COMMITTED one
    requests: tuple[SnapshotRequest, ...] = ()
    changes: ChangeSummary = field(default_factory=ChangeSummary)
    verifications: tuple[Verification, ...] = ()  # the newest ones, newest first


class StoredStatusReader:
    """Reads the saved values on its own thread. Calls: any thread.

    A call gets values that were read after it began. If that lasts longer than ``WAIT_S``, it gets the newest known
    ones. Further calls get them at once, until the store answers again.
    """

    def __init__(self, store: CheckpointStore, job: str) -> None:
        self._store = store
        self._job = job
        self._known = StoredStatus()
        self._changed = threading.Condition()
        self._requested = self._begun = self._ended = 0  # numbers of reads
        self._is_late = self._is_reading = self._is_closed = False

    def read(self) -> StoredStatus:
        """Return the saved values."""
        with self._changed:
            number = self._requested = self._begun + 1  # one that runs already began before this call
            if not self._is_reading and not self._is_closed:
                self._is_reading = True
                threading.Thread(target=self._run, name="stored status", daemon=True).start()
            if self._is_reading and not self._is_late:
                self._is_late = not self._changed.wait_for(lambda: self._ended >= number, WAIT_S)
            return self._known

    def close(self) -> None:
        """Begin no more reads. Calls that wait get what they wait for, such as the answer to `cdc stop`."""
        with self._changed:
            self._is_closed = True

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._requested <= self._begun:
                    self._is_reading = False
                    return
                self._begun += 1
            found = self._read_store()
            with self._changed:
                if found is not None:
                    self._known, self._is_late = found, False
                self._ended = self._begun
                self._changed.notify_all()

    def _read_store(self) -> StoredStatus | None:
        store, job = self._store, self._job
        try:
            return StoredStatus(
                store.last_committed(job),
                store.requests(job),
                store.change_summary(job),
                store.verifications(job, SHOWN_VERIFICATIONS),
            )
        except CheckpointError:
            return None  # the run reports it
        except Exception:  # noqa: BLE001 - logged; the thread must continue to read
            if not self._is_closed:
                _log.exception("The saved values of the status cannot be read.")
            return None
