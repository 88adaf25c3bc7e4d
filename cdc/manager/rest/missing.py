"""Answers about jobs, hosts and events that do not exist. The command line prints them too, so hints are commands."""

from __future__ import annotations

from starlette.exceptions import HTTPException


class Missing(HTTPException):
    """404, with the hint of the answer."""

    def __init__(self, error: str, hint: str) -> None:
        super().__init__(404, error)
        self.hint = hint


def no_job(name: str) -> Missing:
    """Return the error for a job that does not exist."""
    return Missing(f"There is no job {name}.", "`cdc list` shows the jobs.")


def no_host(name: str) -> Missing:
    """Return the error for a host that does not exist."""
    return Missing(f"There is no host {name}.", "`cdc hosts` shows the hosts.")


def no_event(name: str, number: int) -> Missing:
    """Return the error for an event that a job does not have."""
    return Missing(f"The job {name} has no event {number}.", f"GET /v1/jobs/{name}/events lists the events.")
