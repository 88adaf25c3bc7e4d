"""Run ``cdc`` with the driver of ``cdc_fake_driver`` and without the checks of servers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import cdc.cli.main
import cdc.job.supervisor
import cdc.manager.fork_server
from cdc.job.supervisor import driver_command as real


def driver_command(name: str, job_file: Path, options: list[str]) -> list[str]:
    command = real(name, job_file, options)
    return [command[0], "-m", "tests.integration.cdc_fake_driver", *command[command.index("start") :]]


if __name__ == "__main__":
    cdc.job.supervisor.driver_command = driver_command
    cdc.manager.fork_server.MODULES = ("cdc.job.supervisor", "tests.integration.cdc_fake_driver")
    sys.modules["cdc.checks.job"] = checks = ModuleType("cdc.checks.job")  # the real one takes seconds to import
    checks.check_job = lambda config, incarnation, begun=None, sessions=None: ()
    cdc.cli.main.main()
