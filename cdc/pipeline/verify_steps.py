"""Run verification steps between two cycles of the stream, and save their progress."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from typing import Any

from cdc.errors import CdcError, CheckpointError, ErrorAction, LeaseLost, SchemaMismatch, action_for
from cdc.logging_setup import masked
from cdc.model.batch import PreparedLoad
from cdc.model.position import Position
from cdc.model.verify import Verification, VerifyRequest
from cdc.pipeline.commit_cycle import Cancelled
from cdc.pipeline.cycles import Cycles
from cdc.retry import Backoff
from cdc.run_context import RunContext
from cdc.snapshot.step import StepResult
from cdc.verify.session import VerifySession
from cdc.verify.steps import VerifyStep

_POLL_S = 0.1  # while a step runs
_REQUESTS_S = 1.0  # interval at which the store is asked for requests
_MOST_FAILURES = 8  # in a row; then the verification ends with the error
_WAITING = 20  # newest verifications among which waiting ones are looked for

_log = logging.getLogger(__name__)


class VerifySteps:
    """Runs the steps of verifications. An error of a step never ends the run. Calls: the Consumer's thread."""

    def __init__(
        self,
        context: RunContext,
        session: VerifySession,
        step_s: float,
        submit: Callable[[Callable[[], Any]], Future[Any]],
        stopping: threading.Event,
        *,
        on_poll: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """See ``StepRunner``. Between two steps, the stream is read as long as a step took, at least ``step_s`` / 4."""
        self._context, self._session, self._submit = context, session, submit
        self._stopping, self._on_poll, self._now = stopping, on_poll, now
        self._pause_s = step_s / 4
        self._backoff = Backoff(1.0, 60.0)
        self._failures = 0
        self._is_recording = False  # the session records the result of a step: an error leaves a part of it
        self._next_at = 0.0  # earliest time of the next step, unless the stream is at its end
        self._retry_at = 0.0
        self._asked_at = -_REQUESTS_S
        self._scheduled_at: float | None = None

    def is_due(self, position: Position) -> bool:
        """Return whether a step can run when everything up to ``position`` is committed."""
        now = self._now()
        if self._context.runner.is_warming or now < self._retry_at:
            return False
        if self._session.run is None and now - self._asked_at >= _REQUESTS_S:
            self._asked_at = now
            self._find_request()
        if self._session.run is None:
            return False
        is_at_end = self._context.receiver.status().is_at_end
        return self._session.is_ready(position, at_end=is_at_end) and (is_at_end or now >= self._next_at)

    def _find_request(self) -> None:
        store, job = self._context.store, self._context.run.job
        found = store.verifications(job, _WAITING)
        waiting = [one for one in found if one.ended_at is None]
        if not waiting and self._is_scheduled(found):
            settings = self._context.verify
            store.add_verification(job, VerifyRequest(sample=settings.sample, repair=settings.repair, scheduled=True))
            waiting = [one for one in store.verifications(job, 1) if one.ended_at is None]
        if waiting:
            self._failures = 0
            self._session.begin(waiting[-1])

    def _is_scheduled(self, known: tuple[Verification, ...]) -> bool:
        every_s = self._context.verify.every_s
        if every_s is None:
            return False
        if self._scheduled_at is None:
            last = next((datetime.fromisoformat(one.requested_at) for one in known if one.request.scheduled), None)
            passed_s = (datetime.now(UTC) - last).total_seconds() if last is not None else every_s
            self._scheduled_at = self._now() + max(0.0, every_s - passed_s)
        if self._now() < self._scheduled_at:
            return False
        self._scheduled_at = self._now() + every_s
        return True

    def take(self, cycles: Cycles) -> None:
        """Run a step at the current position of the stream. Raises: LeaseLost, CheckpointError, Cancelled."""
        first, began = cycles.dispatcher.cycle.first, self._now()
        self._is_recording = False
        try:
            self._take(cycles, first)
            self._failures = 0
            self._backoff.reset()
        except (LeaseLost, CheckpointError, Cancelled):
            raise
        except Exception as error:  # noqa: BLE001 - an error of every run at the same row would stop the stream
            if isinstance(error, CdcError):
                self._note_failure(error)
            else:
                _log.warning("unexpected error in a verification step", exc_info=error)
                # without a part of the result, the differences of the step would count as equal rows
                self._note_failure(_unexpected(error), is_final=self._is_recording)
            if cycles.dispatcher.cycle.checkpoint is not None:
                cycles.dispatcher.discard()
                cycles.dispatcher.begin(first)
        self._next_at = self._now() + max(self._now() - began, self._pause_s)
        if not cycles.is_committing:  # the checkpoint of a repair has its progress, and nothing is saved before it
            cycles.save_state()

    def _take(self, cycles: Cycles, first: Position) -> None:
        dispatcher, began = cycles.dispatcher, self._now()
        checkpoint = self._context.store.next_id()
        at_end = self._context.receiver.status().is_at_end
        step = self._session.plan(first, dispatcher.sequence, checkpoint, at_end=at_end)
        if step is None:
            return
        if step.repair is not None:
            self._repair(cycles, step, first, began)
            return
        request: Any = step.compare or step.recheck
        future = self._context.runner.submit_reading(request) if request is not None else self._submit(step.search)  # type: ignore[arg-type]
        if self._await(future, step):
            result = future.result()
            self._is_recording = True
            self._session.complete(step, result, first, self._now() - began)
        _log.debug(
            "verification step",
            extra={"kind": step.kind, "seconds": round(self._now() - began, 3), "open": self._session.open_keys},
        )

    def _repair(self, cycles: Cycles, step: VerifyStep, first: Position, began: float) -> None:
        assert step.repair is not None
        opened = cycles.dispatcher.open()
        planning = self._submit(step.repair)
        loads: list[PreparedLoad] = []
        is_done = self._await(planning, step)
        tasks = planning.result() if is_done else []
        for future in self._context.runner.submit(tasks) if tasks else ():
            is_done = is_done and self._await(future, step)
            loads += future.result() if is_done else ()
        if not is_done or self._stopping.is_set():
            cycles.dispatcher.discard()
            cycles.dispatcher.begin(first)
            return
        self._session.check_read(step)
        seconds = self._now() - began
        self._is_recording = True
        self._session.complete_repair(first, seconds)
        result = StepResult(
            tuple(loads),
            rows=sum(load.rows for load in loads),
            bytes=sum(load.bytes for load in loads),
            seconds=seconds,
            counts={},
            snapshots=cycles.committed.snapshots,
        )
        cycles.close_step(opened, result)

    def _await(self, future: Future[Any], step: VerifyStep) -> bool:
        """Wait for ``future``. Return False after a stop."""
        while not future.done():
            if self._stopping.is_set():
                step.cancel()
                return False
            self._on_poll()
            wait([future], _POLL_S)
        return True

    def _note_failure(self, error: CdcError, *, is_final: bool = False) -> None:
        self._failures += 1
        is_final = is_final or (action_for(error) is not ErrorAction.RETRY and not isinstance(error, SchemaMismatch))
        if is_final or self._failures >= _MOST_FAILURES:
            _log.error("the verification ends: %s", error)
            self._session.end(masked(str(error)))
            return
        delay_s = next(self._backoff)
        self._retry_at = self._now() + delay_s
        _log.warning("the verification continues in %.0f s: %s", delay_s, error)


def _unexpected(error: Exception) -> CdcError:
    return CdcError(
        f"A verification step failed: {type(error).__name__}: {error}.",
        hint="Report the error with its traceback in the job's log. The stream continues.",
    )
