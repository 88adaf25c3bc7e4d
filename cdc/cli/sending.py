"""Send a pause or a stop to a job until it has the state, whatever happens to its driver meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from cdc.cli.terminal import POLL_S, console, poll_until
from cdc.errors import CdcError, LeaseLost

if TYPE_CHECKING:
    from cdc.api.models import RequestBody
    from cdc.state.base import JobRecord
    from cdc.state.sql import SqlStore

PAUSE_S = 120.0  # the driver finishes a running merge first


def send_until(
    store: SqlStore,
    record: JobRecord,
    request: RequestBody,
    what: str,
    *,
    is_reached: Callable[[JobRecord], bool],
    change: Callable[[JobRecord], object],
) -> None:
    """Send ``request`` to the driver of a job, and return when ``is_reached``. Without a driver, call ``change``.

    A driver keeps a request in memory, so one that dies loses it. The next driver gets it again.
    ``what``: for the spinner. Raises: CdcError - the driver refuses it, or needs longer than ``PAUSE_S``; LeaseLost - a
    driver is alive and does not answer, or another job has the name now.
    """
    from cdc.job.registry import driver_of, has_driver

    deadline, sent_to = time.monotonic() + PAUSE_S, -1
    with console(stderr=True).status(what) as spinner:
        while time.monotonic() < deadline:
            record = _read_again(store, record)
            if record.fence != sent_to:
                driver = driver_of(store, record)
                if driver.status() is not None:
                    driver.request(request)
                    sent_to = record.fence
            if is_reached(record):
                return
            if sent_to < 0 or not has_driver(store, record):
                spinner.stop()  # the wait for the supervisor has its own
                try:
                    end_supervisor(store, record)
                    change(_read_again(store, record))  # the driver may have saved the state before it ended
                except LeaseLost:
                    if sent_to < 0:
                        raise
                    # the next driver has just started
                if is_reached(_read_again(store, record)):
                    return
                spinner.start()
            time.sleep(POLL_S)
    raise CdcError(
        f"{what} takes longer than {PAUSE_S:.0f} s; it continues in the background.",
        hint=f"See `cdc status {record.name}`.",
    )


def end_supervisor(store: SqlStore, record: JobRecord) -> None:
    """End a supervisor that waits to start the next driver, so that it starts none while the state changes."""
    from cdc.job.registry import has_supervisor

    if record.supervisor_pid is None or not has_supervisor(store, record):
        return
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(record.supervisor_pid, signal.SIGTERM)
    poll_until(f"Ending the supervisor of {record.name}", lambda: not has_supervisor(store, record), PAUSE_S)


def _read_again(store: SqlStore, record: JobRecord) -> JobRecord:
    """Return the newest record of the job. Raises: ConfigError, LeaseLost - the job was deleted."""
    from cdc.job.registry import get_job
    from cdc.state.job_lock import replaced_job

    found = get_job(store, record.name)
    if found.incarnation != record.incarnation:
        raise replaced_job(record.name)
    return found
