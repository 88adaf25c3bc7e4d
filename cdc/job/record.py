"""The record of the job that this process runs: its state, the reason for it and the hint, as saved and shown."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cdc.errors import CdcError, CheckpointError, DdlStop, LeaseLost, with_job, without_values
from cdc.logging_setup import masked
from cdc.model.kafka_position import KafkaPosition
from cdc.model.position import BinlogPosition, CanalPosition
from cdc.state.base import Checkpoint, CheckpointStore, JobRecord, JobState, ResumeKind, new_pause

RETRY_S = 1.0  # interval at which a save that failed is repeated

_log = logging.getLogger(__name__)


class SavedRecord:
    """Keeps the record in memory and in the store.

    If the store cannot be written, the job continues with the newer record in memory. A thread repeats the save every
    ``RETRY_S``: an idle run has no other write, and the next driver would continue with the older state.
    Calls: any thread.
    """

    def __init__(self, store: CheckpointStore, name: str, job_file: str) -> None:
        self._store = store
        self.now = store.job(name) or JobRecord(name, "", 0, JobState.PENDING, job_file)
        self.is_unsaved = False  # the last save failed: the record in the store is older
        self._ends_pause = False  # with the next save
        self._saving = threading.Lock()
        self._repeater: threading.Thread | None = None
        self._over = threading.Event()

    @property
    def is_paused_by_hand(self) -> bool:
        """Whether the job waits for ``cdc resume``."""
        return (self.now.state, self.now.resume) == (JobState.PAUSED, ResumeKind.MANUAL)

    def change(self, **changes: Any) -> None:
        """Change fields of the record. They are saved with the next save."""
        with self._saving:  # other threads change other fields
            self.now = replace(self.now, **changes)

    def save(self, **changes: Any) -> None:
        """Save the record with ``changes`` of its fields. Raises: LeaseLost - another process runs the job."""
        with self._saving:
            if changes:  # a repetition must not replace a record that the run loop changes at this moment
                self.now = replace(self.now, **changes)
            try:
                if self._ends_pause:  # first: a pause that is desired and not saved would stop the next driver
                    self._store.end_pause()
                    self._ends_pause = False
                self._store.save_job(self.now)
            except CheckpointError as error:
                level = logging.ERROR if changes else logging.DEBUG  # one error for each state, not for each repetition
                _log.log(level, "the state %s cannot be saved: %s", self.now.state, error)
                self.is_unsaved = True
                self._repeat_later()
            else:
                self.is_unsaved = False

    def resume(self, **changes: Any) -> None:
        """Save the record with ``changes``, and that no user wants the job PAUSED any more. Raises: LeaseLost."""
        self._ends_pause = True
        self.save(**changes)

    def save_again(self, limit_s: float) -> bool:
        """Repeat a failed save every ``RETRY_S`` for at most ``limit_s``. Return whether the record is saved.

        Raises: LeaseLost.
        """
        deadline = time.monotonic() + limit_s
        while self.is_unsaved and time.monotonic() + RETRY_S < deadline:
            time.sleep(RETRY_S)
            self.save()
        return not self.is_unsaved

    def close(self) -> None:
        """Stop to repeat a save."""
        self._over.set()
        repeater = self._repeater
        if repeater is not None:
            repeater.join()

    def _repeat_later(self) -> None:
        """Start the thread that repeats the save, unless it runs. Calls: with the lock."""
        if self._repeater is None and not self._over.is_set():
            self._repeater = threading.Thread(target=self._repeat, name="save state", daemon=True)
            self._repeater.start()

    def _repeat(self) -> None:
        while not self._over.wait(RETRY_S):
            with self._saving:
                if not self.is_unsaved:
                    self._repeater = None
                    return
            # an adoption that has just increased the fence saves the record itself; a run that has lost the job ends
            # at its next write
            with suppress(LeaseLost):
                self.save()

    def set_state(
        self, state: JobState, reason: str | None = None, hint: str | None = None, resume: ResumeKind | None = None
    ) -> None:
        """Save a new state. Raises: LeaseLost."""
        self.save(
            state=state, reason=reason, hint=hint, alert_reason=None, resume=resume, stopped_at_ddl=None,
            pending_change=None, pause=new_pause() if state is JobState.PAUSED else None,
        )  # fmt: skip

    def pause(self, error: BaseException, resume: ResumeKind, *, keeps_statement: bool = False) -> None:
        """Save that the job is PAUSED because of ``error``. Raises: LeaseLost.

        ``keeps_statement``: it stays PAUSED at the same DDL statement. DdlStop has its own.
        """
        reason, hint = describe(error, self.now.name)
        statement_at = self.now.stopped_at_ddl if keeps_statement else None
        change = self.now.pending_change if keeps_statement else None
        position = error.context.get("position") if isinstance(error, DdlStop) else None
        if isinstance(error, DdlStop) and isinstance(position, BinlogPosition | CanalPosition | KafkaPosition):
            statement_at, change = position, error.change
        is_retried = (self.now.resume, self.now.reason, resume) == (ResumeKind.AUTOMATIC, reason, ResumeKind.AUTOMATIC)
        self.save(
            state=JobState.PAUSED, reason=reason, hint=hint, alert_reason=masked(without_values(error)), resume=resume,
            stopped_at_ddl=statement_at, pending_change=change, is_paused_by_user=False,
            pause=self.now.pause if is_retried else new_pause(),
        )  # fmt: skip

    def refuse(self, error: CdcError) -> None:
        """Save that the start of the job was refused. Raises: LeaseLost."""
        self.set_state(JobState.PENDING, *describe(error, self.now.name))

    def pause_by_hand(self) -> None:
        """Save that the user has paused the job. Raises: LeaseLost."""
        hint = f"cdc resume {self.now.name}"
        self.change(is_paused_by_user=True)
        self.set_state(JobState.PAUSED, "paused by its user", hint, ResumeKind.MANUAL)

    def last_committed(self) -> Checkpoint | None:
        """Return the last COMMITTED checkpoint; None if there is none or the store cannot be read."""
        with suppress(CheckpointError):
            return self._store.last_committed(self.now.name)
        return None


def describe(error: BaseException, job: str) -> tuple[str, str]:
    """Return reason and hint of ``error`` for the status of ``job``, without secrets."""
    if not isinstance(error, CdcError):
        return masked(f"unexpected error: {type(error).__name__}: {error}"), f"See `cdc logs {job}`."
    reason = f"{error.message} ({error.location})" if error.location else error.message
    return masked(reason), with_job(error.hint, job)
