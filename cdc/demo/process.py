"""A job in a process of its own, as a person would start it: to be watched, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import requests

from cdc.errors import CdcError

CDC = (sys.executable, "-m", "cdc.cli")


class JobProcess:
    """``cdc start JOB.yaml --foreground`` as a child process whose status endpoint is asked.

    ``program``: what is run as ``cdc``.
    """

    def __init__(self, job_file: Path, *, home: Path, port: int, program: Sequence[str] = CDC) -> None:
        self.job_file = job_file
        self._program = program
        self.log = home / "driver.log"
        self._url = f"http://127.0.0.1:{port}/status"
        self.environment = {**os.environ, "CDC_HOME": str(home)}  # of the next start
        self._process: subprocess.Popen[bytes] | None = None
        self._session = requests.Session()

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._session.close()

    @property
    def pid(self) -> int:
        """Process id of the driver."""
        assert self._process is not None
        return self._process.pid

    def start(self, *options: str) -> None:
        """Start the driver; its output goes to ``log``."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [*self._program, "start", str(self.job_file), "--foreground", *options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL to the driver alone: what it started must notice by itself. Harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self, timeout_s: float = 240) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout_s)
        self._process = None
        return code

    def wait(self, timeout_s: float) -> int:
        """The exit code of a job that ends by itself."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def status(self) -> dict[str, Any] | None:
        """What ``/status`` answers; None while nobody listens."""
        try:
            answer = self._session.get(self._url, timeout=5)
            answer.raise_for_status()
        except requests.RequestException:
            return None
        return dict(answer.json())

    def wait_for(self, what: str, condition: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
        """Poll the status until ``condition`` holds of it.

        Raises: CdcError - it did not within ``timeout_s``, or the driver ended; the message has the log's end.
        """
        deadline = time.monotonic() + timeout_s
        status: dict[str, Any] | None = None
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and condition(status):
                return status
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(0.1)
        tail = self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""
        raise CdcError(
            f"The job did not get to: {what}. Its last status: {status}. Its log ends: {tail}", mend=f"See {self.log}."
        )


def is_caught_up(status: dict[str, Any], end: tuple[str, int]) -> bool:
    """Whether all that the binlog holds before ``end`` is visible, and all rows that were there already."""
    place = status["position"]  # null while the job starts
    return (
        place is not None
        and (place["file"], place["offset"]) >= end
        and status["lag_seconds"] == 0
        and all(not channel["snapshot"] or channel["snapshot"]["consistent"] for channel in status["channels"])
    )
