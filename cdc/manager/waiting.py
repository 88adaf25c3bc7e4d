"""Wait for a job that a host of ``cdc serve`` is to start."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cdc.api.models import JobStatus
from cdc.errors import CdcError, PrerequisiteError, error_from_json
from cdc.job.registry import driver_of
from cdc.manager.host_loop import SpecCache, is_to_run, place
from cdc.manager.local_drivers import START_FAILED
from cdc.state.events import REQUEST_S
from cdc.state.sql import SqlStore

POLL_S = 0.5
PLACE_S = 5.0  # a host that has just started or a drain that ends shortly is waited for


@dataclass(frozen=True, slots=True)
class Before:
    """The state of a job before a request: what is newer is the effect of the request."""

    fence: int
    event: int


def before_start(store: SqlStore, name: str) -> Before:
    """Return the state to give to ``wait_until_running``. Raises: CheckpointError."""
    found = store.deployments.get(name)
    newest = store.events.newest(name, limit=1)
    return Before(found.fence if found else 0, newest[0].id if newest else -1)


def wait_until_adopted(store: SqlStore, name: str, before: Before, request: int) -> Before:
    """Wait until a host has started the job for ``request``, and return the state to give to ``wait_until_running``.

    Raises: PrerequisiteError - no host does; CdcError - a driver of the job runs already.
    """
    began = time.monotonic()
    while time.monotonic() < began + REQUEST_S:
        event = store.events.get(request)
        if event is not None and event.result is not None:
            if not event.result.get("ok"):
                raise error_from_json(event.result["error"])
            return Before(before.fence, int(event.result["after"]))  # events of earlier starts say nothing of this one
        time.sleep(POLL_S)
    store.events.withdraw(request)
    raise PrerequisiteError(f"No host has started the job {name}.", hint="See `cdc hosts`.", job=name)


def wait_until_running(store: SqlStore, name: str, before: Before, timeout_s: float) -> JobStatus | None:
    """Return the first status of a new run that is not PENDING; None after ``timeout_s``.

    Raises: CdcError - the start failed on its host; PrerequisiteError - no host can run the job.
    """
    specs, began = SpecCache(), time.monotonic()
    first = store.deployments.get(name)
    generation = first.generation if first is not None else 0  # an earlier one may still fail to start
    while time.monotonic() < began + timeout_s:
        found = store.deployments.get(name)
        if found is not None and found.fence > before.fence:
            status = driver_of(store, found.record).status()
            if status is not None and status.state != "PENDING":
                return status
        if found is not None and found.record.state == "DONE":
            return None
        for event in store.events.newest(name, limit=20):
            if event.id > before.event and event.detail.get(START_FAILED, -1) >= generation:
                error = CdcError(str(event.detail.get("message")), hint=str(event.detail.get("hint") or ""))
                error.exit_code = int(event.detail.get("exit_code", 1))
                raise error
        if found is not None and found.host is None and time.monotonic() > began + PLACE_S:
            jobs = [job for job in store.deployments.all() if is_to_run(job)]
            placement = place(jobs, store.hosts.all(), specs).get(name)
            if placement is not None and placement.host is None:
                raise PrerequisiteError(
                    f"The job {name} waits for a host: {placement.reason}.", hint=placement.hint or "", job=name
                )
        time.sleep(POLL_S)
    return None
