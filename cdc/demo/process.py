"""A job as a child process that can be observed, killed and started again."""

from __future__ import annotations

import json
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

CDC = (sys.executable, "-m", "cdc.cli.main")


class JobProcess:
    """``cdc start JOB.yaml --foreground`` as a child process. ``program``: the command ``cdc``."""

    def __init__(self, job_file: Path, *, home: Path, port: int, program: Sequence[str] = CDC) -> None:
        self.job_file = job_file
        self._program = program
        self.log = home / "driver.log"
        self.url = f"http://127.0.0.1:{port}"  # of the status endpoint
        # of the next start: never the state store or the hosts of the user
        others = {name: value for name, value in os.environ.items() if name not in ("CDC_STORE", "CDC_URL")}
        self.environment = {**others, "CDC_HOME": str(home)}
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
        """Start the driver, which writes its output to ``log``."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [*self._program, "start", str(self.job_file), "--foreground", *options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Send SIGKILL to the driver only, not to its child processes. Do nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self, timeout_s: float = 240) -> int:
        """Send SIGTERM and return the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout_s)
        self._process = None
        return code

    def wait(self, timeout_s: float) -> int:
        """Wait until the job ends, and return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def status(self) -> dict[str, Any] | None:
        """Return the reply of ``/status``; None if the endpoint does not reply."""
        try:
            answer = self._session.get(f"{self.url}/status", timeout=5)
            answer.raise_for_status()
        except requests.RequestException:
            return None
        return dict(answer.json())

    def command(self, *words: str, timeout_s: float = 600) -> str:
        """Run a command with the state of this job, such as ``pause NAME``, and return its output.

        Raises: subprocess.CalledProcessError.
        """
        command = [*self._program, *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True, timeout=timeout_s
        )
        return done.stdout

    def verify(self, name: str, *options: str, timeout_s: float = 600) -> dict[str, Any]:
        """Run ``cdc verify NAME`` and return its result. Raises: CdcError - it did not end, or could not compare."""
        command = [*self._program, "verify", name, *options, "--output", "json"]
        try:
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, check=False, timeout=timeout_s
            )
        except subprocess.TimeoutExpired as error:
            raise CdcError(
                f"The verification did not end within {timeout_s:.0f} s.", hint=f"See {self.log}."
            ) from error
        if done.returncode not in (0, 1):
            raise CdcError(f"The job could not be verified: {done.stderr.strip()[-1000:]}", hint=f"See {self.log}.")
        return dict(json.loads(done.stdout))

    def wait_for(self, what: str, condition: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
        """Poll the status until ``condition`` is true, and return it.

        Raises: CdcError - ``timeout_s`` is over, or the driver ended; the message has the end of the log.
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
            f"The job did not reach: {what}. Its last status: {status}. Its log ends: {tail}", hint=f"See {self.log}."
        )


def is_caught_up(status: dict[str, Any], end: tuple[str, int]) -> bool:
    """Return whether the target has all changes up to the binlog position ``end``, and all existing rows."""
    position = status["position"]  # null while the job starts
    return (
        position is not None
        and (position["file"], position["offset"]) >= end
        and status["lag_seconds"] == 0
        and all(not channel["snapshot"] or channel["snapshot"]["consistent"] for channel in status["channels"])
    )
