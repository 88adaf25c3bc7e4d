"""The command ``cdc`` and its exit codes.

0: done. 1: an error of a job or command. 2: configuration. 3: a missing prerequisite. 130, 143: ended by a signal.
141: the program that reads the output has ended.
Each command imports the modules that take long to import, so that commands such as ``cdc status`` start fast.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import click

from cdc.cli.inspection import changes, check, ddl, list_jobs, status
from cdc.cli.job_control import pause, restart, resume, start, stop
from cdc.cli.logs import logs
from cdc.cli.options import debug_option
from cdc.cli.remote import command_over_rest
from cdc.cli.replay_bad import replay_bad
from cdc.cli.serving import hosts, move, serve
from cdc.cli.snapshot import snapshot
from cdc.cli.terminal import console
from cdc.cli.verify import verify
from cdc.errors import CdcError, ConfigError
from cdc.permissions import restrict_umask

_JSON_WORD = re.compile(r"--output=json|-[A-Za-z]*ojson")  # `-fojson` is `-f -o json`
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_OUTPUT_WORD = re.compile(r"--output|-[A-Za-z]*o")


def _version(context: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"cdc {version('spark-binlog-load')}")
        except PackageNotFoundError:
            click.echo("cdc (source tree, not installed)")
        context.exit()


class _ClosedPipe(Exception):
    """The program that reads stdout has ended. For EPIPE itself, click exits with code 1."""


@contextmanager
def _closed_pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ClosedPipe from error


class _Commands(click.Group):
    """The commands, over the REST API if the environment names one."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _closed_pipe():  # --help prints here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipe():
            return super().invoke(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        return found and command_over_rest(found)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@debug_option
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version and exit."
)
@click.pass_context
def app(context: click.Context, debug: bool) -> None:
    """Change data capture from MySQL into Delta, Doris and StarRocks tables on Spark, exactly once."""
    context.obj = debug


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Empty folder, or the folder of an earlier demonstration, which is replaced. It keeps the tables.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=4),
    default=40.0,
    show_default=True,
    help="How long the demonstration changes rows.",
)
@click.option("--hosts", "on_hosts", is_flag=True, help="Show two hosts, one of which is killed.")
def demo(folder: Path, seconds: float, on_hosts: bool) -> None:
    """Show a complete job on a temporary MySQL server."""
    from cdc.demo.hosts import run_hosts_demo
    from cdc.demo.run import run_demo

    sys.exit((run_hosts_demo if on_hosts else run_demo)(folder.absolute(), seconds=seconds))


for _command in (
    check,
    start,
    pause,
    resume,
    stop,
    restart,
    status,
    list_jobs,
    changes,
    logs,
    snapshot,
    replay_bad,
    verify,
    ddl,
    serve,
    hosts,
    move,
    demo,
):
    app.add_command(_command)


@contextmanager
def _signals() -> Iterator[None]:
    """End the command on SIGTERM as on Ctrl-C, with exit code 143."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _requests_json(words: Sequence[str]) -> bool:
    """Return whether the command line has the option ``--output json``."""
    return any(map(_JSON_WORD.fullmatch, words)) or any(
        word == "json" and _OUTPUT_WORD.fullmatch(before) for before, word in pairwise(words)
    )


def _print_json_error(error: str, where: str, hint: str, exit_code: int, kind: str) -> None:
    """Print an error on stdout, if the command line asks for JSON. Its keys are those of an error of the REST API."""
    if _requests_json(sys.argv[1:]):
        body = {"error": error, "where": where, "hint": hint, "exit_code": exit_code, "class": kind}
        click.echo(json.dumps(body))


def _print_error(error: CdcError) -> int:
    """Print an error as message, location and hint. Return its exit code."""
    from cdc.cli.views import error_view

    error_view(error.message, error.location, error.hint, console(stderr=True))
    _print_json_error(error.message, error.location, error.hint, error.exit_code, type(error).__name__)
    return error.exit_code


def _known_error(error: Exception) -> CdcError | None:
    """Return the error for a fault of the command line, the current folder or stdout; None for any other exception."""
    if isinstance(error, UnicodeEncodeError) and not " ".join(sys.argv).isascii():
        # such an argument has characters that neither a state store nor a URL can contain
        return ConfigError("An argument of the command line is not UTF-8 text.", hint="Correct the argument.")
    if isinstance(error, FileNotFoundError) and not _has_current_folder():
        hint = "Change to a folder that exists, then repeat the command."
        return ConfigError("The current folder was deleted.", hint=hint)
    if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        _discard_lost_output()
        return CdcError(
            f"The output or a file cannot be written: {error.strerror}.",
            hint="Free space on the disk, or write the output to another file.",
        )
    return None


def _has_current_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _discard_lost_output() -> None:
    """Discard what stdout has not accepted: Python would fail again when it flushes stdout at exit."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        _discard_output()


def _discard_output() -> None:
    """Write what stdout has not accepted, and all later output, to nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> NoReturn:
    """Run the command line. Print a CdcError as message, location and hint, and exit with its exit code.

    With ``--output json``, an error is also a JSON object on stdout, so that a program can parse every output.
    """
    # Arrow's own allocator keeps freed buffers: a tenth of the memory of a job. Spark's Python workers inherit this.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        sys.exit(_run())
    except (BrokenPipeError, _ClosedPipe):  # `cdc logs shop | head`
        _discard_output()
        sys.exit(128 + signal.SIGPIPE)


def _run() -> int:
    """Run the command line, print its error, and return the exit code. Raises: BrokenPipeError, _ClosedPipe."""
    try:
        restrict_umask()
        with _signals():
            # in standalone mode click would exit with code 1 on Ctrl-C
            app(prog_name="cdc", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else "cdc"
        kind = "UsageError" if isinstance(error, click.UsageError) else type(error).__name__
        _print_json_error(error.format_message(), "", f"Run `{command} --help`.", error.exit_code, kind)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 128 + signal.SIGINT
    except (BrokenPipeError, _ClosedPipe):
        raise
    except CdcError as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        return _print_error(error)
    except Exception as error:  # noqa: BLE001 - printed with its traceback
        from cdc.logging_setup import masked

        if (known := _known_error(error)) is not None:
            return _print_error(known)
        traceback.print_exc()
        text = masked(f"unexpected error: {type(error).__name__}: {error}")
        _print_json_error(text, "", "Report it with the traceback on stderr.", 1, type(error).__name__)
        return 1
    return 0


if __name__ == "__main__":
    main()
