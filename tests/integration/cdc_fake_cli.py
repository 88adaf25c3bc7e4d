"""``cdc``, with the driver of ``cdc_fake_driver`` where a supervisor starts one, and no server to look at before."""

from __future__ import annotations

import signal
from pathlib import Path

import cdc.cli
import cdc.inspection
import cdc.starting
from cdc.starting import driver_command as real


def driver_command(name: str, job_file: Path, options: list[str]) -> list[str]:
    command = real(name, job_file, options)
    return [command[0], "-m", "tests.integration.cdc_fake_driver", *command[command.index("start") :]]


if __name__ == "__main__":
    # tests that a shell runs in the background, as `make test &` does, hand on that SIGINT is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cdc.starting.driver_command = driver_command
    cdc.inspection.check_job = lambda config, incarnation, begun=None: ()
    cdc.cli.main()
