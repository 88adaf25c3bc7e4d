"""Commands over the REST API of ``cdc serve``, for a machine that does not reach the state store.

With ``$CDC_URL``, these commands have the same arguments and output as those that open the store. ``$CDC_TOKEN``
or the file in ``$CDC_TOKEN_FILE`` has the token of the API. The file in ``$CDC_CA_FILE`` has the certificates with
which the server is checked.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc.cli.inspection import show_changes, show_check, show_list, show_statuses
from cdc.cli.job_control import ask_before_stop, is_paused_by_hand, refuse_ended
from cdc.cli.logs import show_log
from cdc.cli.sending import PAUSE_S
from cdc.cli.serving import MOVE_S, show_hosts
from cdc.cli.start import START_S, not_running
from cdc.cli.terminal import POLL_S, console, poll_until, print_state
from cdc.errors import CdcError, ConfigError, LeaseLost, PrerequisiteError
from cdc.files import read_text_file

if TYPE_CHECKING:
    from cdc.api.models import JobStatus
    from cdc.client import Jobs

URL, TOKEN, TOKEN_FILE, CA_FILE = "CDC_URL", "CDC_TOKEN", "CDC_TOKEN_FILE", "CDC_CA_FILE"
_LOCAL = ("ddl", "demo", "serve")  # the same with and without CDC_URL


def command_over_rest(local: click.Command) -> click.Command:
    """Return the command ``local`` for the API at ``$CDC_URL``, or itself if that is not set or makes no difference."""
    name = local.name or ""
    if not os.environ.get(URL) or name in _LOCAL:
        return local
    remote = _REMOTE.get(name)

    def run(**options: Any) -> object:
        if options.get("foreground"):  # the process of a job, which a supervisor or `cdc serve` has started
            return click.get_current_context().invoke(local, **options)
        if remote is None:
            hint = f"Unset {URL}, and set CDC_STORE or run it on the host of the job."
            raise ConfigError(f"`cdc {name}` needs the state store.", hint=hint)
        with open_api() as jobs:
            return remote(jobs, **options)

    return click.Command(name, params=local.params, help=local.help, callback=run)


def open_api() -> Jobs:
    """Return a client of the API at ``$CDC_URL``. Raises: ConfigError - a file, the address or the token is refused."""
    from cdc.client import Jobs

    url, token, ca = os.environ[URL], os.environ.get(TOKEN) or None, os.environ.get(CA_FILE) or None
    if token is None and (file := os.environ.get(TOKEN_FILE)):
        token = read_text_file(file).strip()
    return Jobs(url, token, ca_file=ca)


def status_over_rest(jobs: Jobs, name: str) -> tuple[JobStatus, int]:
    """Return the status of a job with all its tables, and its fence, which every run increases."""
    from cdc.api.models import JobStatus

    found = jobs.whole_status(name)
    return JobStatus.from_json(found["status"]), int(found["fence"])


def _statuses(jobs: Jobs, name: str) -> list[JobStatus]:
    names = [name] if name else [one["job"] for one in jobs.list()]
    return [status_over_rest(jobs, one)[0] for one in names]


# the commands


def _status(jobs: Jobs, *, name: str, watch: bool, output: str) -> None:
    show_statuses(partial(_statuses, jobs, name), output, watch=watch, is_one=bool(name))


def _list(jobs: Jobs, *, output: str) -> None:
    show_list(_statuses(jobs, ""), output)


def _changes(jobs: Jobs, *, name: str, output: str, limit: int) -> None:
    from cdc.model.change_record import ChangeRecord
    from cdc.state.codec import from_json

    found = jobs.changes(name, limit)
    show_changes(name, [from_json(ChangeRecord, json.dumps(one)) for one in found], output)


def _logs(jobs: Jobs, *, name: str, follow: bool, lines: int, output: str) -> None:
    from cdc.state.base import ENDED

    def is_over() -> bool:
        return all(one["state"] in ENDED for one in jobs.list() if one["job"] == name)

    show_log(partial(jobs.log_page, name), lines, output, follow=follow, is_over=is_over)


def _check(jobs: Jobs, *, job_file: Path, output: str) -> None:
    with console(stderr=True).status("Checking source, sink and tables on the host of the API"):
        body = jobs.check(read_text_file(job_file))
    show_check(body, output)
    if not body["can_start"]:
        sys.exit(PrerequisiteError.exit_code)


def _start(jobs: Jobs, *, job_file: Path, adopt: bool, output: str, **_: object) -> None:
    if adopt:
        raise ConfigError("--adopt needs the state store.", hint="Unset CDC_URL, and set CDC_STORE.")
    from cdc.client import name_in

    name = name_in(read_text_file(job_file), job_file)
    before = next((one for one in jobs.list() if one["job"] == name), None)
    fence = status_over_rest(jobs, name)[1] if before is not None else 0
    event = _newest_event(jobs, name) if before is not None else -1
    generation = jobs.start(job_file)
    if before is not None and before["state"] == "RUNNING" and before["generation"] == generation:
        raise LeaseLost(f"The job {name} runs already.", hint=f"See `cdc status {name}`.", host=before["host"])

    def is_new(_: JobStatus, found: int) -> bool:
        _refuse_failed_start(jobs, name, event, generation)
        return found > fence

    _await_run(jobs, name, "Starting", is_new, START_S, output)


def _newest_event(jobs: Jobs, name: str) -> int:
    return max((int(one["id"]) for one in jobs.events(name)), default=-1)


def _refuse_failed_start(jobs: Jobs, name: str, after: int, generation: int) -> None:
    """Raise CdcError if a host could not start the job, of at least ``generation``, since the event ``after``."""
    from cdc.manager.local_drivers import START_FAILED

    for event in jobs.events(name):
        detail = event["detail"]
        if event["id"] > after and detail.get(START_FAILED, -1) >= generation:
            error = CdcError(str(detail.get("message")), hint=str(detail.get("hint") or ""))
            error.exit_code = int(detail.get("exit_code", 1))
            raise error


def _pause(jobs: Jobs, *, name: str, output: str) -> None:
    def is_paused() -> bool:
        found = status_over_rest(jobs, name)[0]
        refuse_ended(name, found.state)
        return is_paused_by_hand(found)

    jobs.pause(name)
    poll_until(f"Pausing {name}", is_paused, PAUSE_S)
    print_state(f"{name} is PAUSED.", output, name, "PAUSED")


def _resume(jobs: Jobs, *, name: str, output: str, **options: bool) -> None:
    before, fence = status_over_rest(jobs, name)

    def is_applied(now: JobStatus, found: int) -> bool:
        # the status shows the earlier pause until the driver has applied the resume
        return found > fence or now.resumes > before.resumes or before.state != "PAUSED"

    jobs.resume(name, **options)
    _await_run(jobs, name, "Resuming", is_applied, START_S, output)


def _stop(jobs: Jobs, *, name: str, forget: bool, yes: bool, output: str) -> None:
    from cdc.state.base import ENDED, FORGOTTEN, forgetting

    state = status_over_rest(jobs, name)[0].state
    ask_before_stop(name, state, forget=forget, yes=yes)
    if state not in ENDED:
        jobs.stop(name)
        poll_until(f"Stopping {name}", lambda: status_over_rest(jobs, name)[0].state in ENDED, PAUSE_S)
        state = status_over_rest(jobs, name)[0].state
    if forget:
        poll_until(f"Forgetting {name}", lambda: _is_forgotten(jobs, name), PAUSE_S)
    text = f"{name} is forgotten. {FORGOTTEN}" if forget else f"{name} is {state}. {forgetting(name)}"
    print_state(text, output, name, state, is_forgotten=forget)


def _is_forgotten(jobs: Jobs, name: str) -> bool:
    try:
        jobs.forget(name)
    except ConfigError:  # its driver has not ended yet
        if any(one["job"] == name for one in jobs.list()):
            return False
    return True


def _snapshot(jobs: Jobs, *, name: str, tables: tuple[str, ...], where: str | None, output: str) -> None:
    if where is not None and len(tables) > 1:
        raise ConfigError(
            "--where is a condition for the rows of one table.",
            hint=f"Run `cdc snapshot {name} TABLE --where SQL` for each table.",
        )
    for table in tables:
        jobs.snapshot(name, table, where)
    what = f"{', '.join(tables)}: {'the requested rows' if where else 'all rows'}"
    text = f"{what} will be loaded again. See `cdc status {name}`."
    state = status_over_rest(jobs, name)[0].state if output == "json" else ""
    print_state(text, output, name, state, tables=tables, where=where)


def _move(jobs: Jobs, *, name: str, host: str | None, output: str) -> None:
    fence = status_over_rest(jobs, name)[1]
    new = jobs.move(name, host)
    _await_run(jobs, name, f"Moving to {new}:", lambda _, found: found > fence, MOVE_S, output, host=new)


def _hosts(jobs: Jobs, *, drain: str | None, undrain: str | None, forget: str | None, output: str) -> None:
    if forget is not None:
        raise ConfigError("--forget needs the state store.", hint="Unset CDC_URL, and set CDC_STORE.")
    from cdc.state.hosts import Host

    if drain is not None:
        jobs.drain(drain)
    if undrain is not None:
        jobs.undrain(undrain)
    found = jobs.hosts()
    hosts = [
        Host(
            name=one["name"],
            run_id=one["run_id"],
            address=one["address"],
            memory=one["memory_bytes"],
            labels=one["labels"],
            schedulable=one["is_schedulable"],
            drained=one["is_drained"],
            is_starting=one.get("is_starting", False),  # a server of an earlier version does not have it
            lease_left_s=one["lease_left_seconds"],
            seen_ago_s=one["seen_seconds_ago"],
        )
        for one in found
    ]
    show_hosts(hosts, {one["name"]: one["jobs"] for one in found}, output)


def _await_run(
    jobs: Jobs,
    name: str,
    what: str,
    is_new: Callable[[JobStatus, int], bool],
    timeout_s: float,
    output: str,
    **more: object,
) -> None:
    """Print the state when a run of the job is RUNNING. ``is_new``: whether a status, with its fence, is of this run.

    ``more``: for the JSON object.

    Raises: CdcError - the reason why it is not.
    """
    from cdc.job.registry import WAITS_FOR_HOST
    from cdc.manager.waiting import PLACE_S

    began = time.monotonic()
    with console(stderr=True).status(f"{what} {name}"):
        while True:
            now, fence = status_over_rest(jobs, name)
            if is_new(now, fence) and now.state != "PENDING":
                break
            waited = time.monotonic() - began
            if waited >= timeout_s or (waited >= PLACE_S and now.reason == WAITS_FOR_HOST):
                reason = (now.reason or "it continues to start").removesuffix(".")
                hint = "See `cdc hosts`." if now.reason == WAITS_FOR_HOST else now.hint or f"See `cdc status {name}`."
                raise PrerequisiteError(f"The job {name} is {now.state}: {reason}.", hint=hint)
            time.sleep(POLL_S)
    if now.state not in {"RUNNING", "DONE"}:
        raise not_running(now)
    print_state(f"{name} is {now.state}.", output, name, now.state, **more)


_REMOTE: dict[str, Callable[..., object]] = {
    "status": _status,
    "list": _list,
    "changes": _changes,
    "logs": _logs,
    "check": _check,
    "start": _start,
    "pause": _pause,
    "resume": _resume,
    "stop": _stop,
    "snapshot": _snapshot,
    "move": _move,
    "hosts": _hosts,
}
