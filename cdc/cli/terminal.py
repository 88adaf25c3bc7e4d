"""Output of commands on a terminal: the console, one line of text, a spinner while a command waits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from cdc.errors import CdcError

if TYPE_CHECKING:
    from rich.console import Console

POLL_S = 0.15  # short for a person, rare enough to be no load for a driver


def console(*, stderr: bool = False) -> Console:
    """Return the console of stdout or stderr. It adds no colours of its own to numbers and words."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would exit with code 1

    return Terminal(stderr=stderr, highlight=False)


def print_result(text: str) -> None:
    """Print ``text`` without markup and without line breaks."""
    console().print(text, markup=False, soft_wrap=True)


def print_state(text: str, output: str, job: str, state: str, **more: object) -> None:
    """Print the result of a command that changes a job: ``text``, or a JSON object with state and ``more``."""
    if output == "json":
        click.echo(json.dumps({"job": job, "state": state, **more}))
    else:
        print_result(text)


def poll_until(what: str, condition: Callable[[], bool], timeout_s: float) -> None:
    """Block until ``condition``, with a spinner. Raise CdcError after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    with console(stderr=True).status(what):
        while not condition():
            if time.monotonic() > deadline:
                raise CdcError(
                    f"{what} takes longer than {timeout_s:.0f} s; it continues in the background.",
                    hint="See `cdc status`.",
                )
            time.sleep(POLL_S)
