"""A run in a separate process, which may kill itself. Everything that it leaves is on disk."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

from tests.model.harness import Harness

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.model.harness", "tests.model.faults"])


def run_in_process(folder: Path, source, faults=(), timeout_s=240, harness=Harness, **options):
    """Run until the source is finished. Return the exit code, negative for a signal."""
    process = _CONTEXT.Process(target=_run, args=(harness, folder, source, faults, options))
    process.start()
    process.join(timeout_s)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError("the run did not end")
    code = process.exitcode
    process.close()
    return code


def killed(code):
    assert code in (0, -signal.SIGKILL), code
    return code == -signal.SIGKILL


def _run(harness, folder, source, faults, options):
    from tests.model.faults import Script, put_in

    harness = harness(folder, source, **options)
    put_in(harness, Script(*faults))
    harness.until_finished()
    harness.close()
