"""Hosts as processes: each is a ``cdc serve`` with its own ``$CDC_HOME`` and name on one state store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from cdc.marked_processes import processes_with
from cdc.state.opening import open_store
from cdc.state.sql import SqlStore
from tests.support.limits import HANG_S

ROOT = Path(__file__).parents[2]
LIMIT_S = HANG_S
FAKE = "tests.integration.cdc_fake_cli"  # drivers without Spark


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Return when ``condition`` holds. The limit only finds hangs."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.05)


class HostProcess:
    """A ``cdc serve``, and the processes that it has started."""

    def __init__(
        self,
        name: str,
        folder: Path,
        store: Mapping[str, str],
        *,
        keys: str = "",
        listen: str = "port: 0",
        module: str = FAKE,
        options: tuple[str, ...] = (),
        lease_s: float = 6,
    ) -> None:
        self.name = name
        self.home = folder / name
        self.file = folder / f"{name}.serve.yaml"
        self.file.write_text(f"host: {{name: {name}, memory: 8GiB}}\nlisten: {{{listen}}}\nlease: {lease_s}s\n{keys}")
        self.environment = {
            **os.environ, **store, "CDC_HOME": str(self.home), "CDC_HOST": name, "CDC_LEASE": f"{lease_s}",
            "COLUMNS": "160", "NO_COLOR": "1", "PYTHONPATH": str(ROOT), "SHOP_PASSWORD": "secret-word",
        }  # fmt: skip
        self._command = [sys.executable, "-m", module]
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / f"{name}.log"

    def start(self) -> HostProcess:
        """Start ``cdc serve``. Return when its row is in the store."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        self.launch()
        wait_until(lambda: "is ready" in self.log.read_text()[begin:] or not self.is_serving, f"host {self.name}")
        return self

    def launch(self) -> None:
        """Start ``cdc serve``, without waiting."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command, "serve", str(self.file), *self._options],
                cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def is_serving(self) -> bool:
        """Whether ``cdc serve`` itself has not ended."""
        return self.process is not None and self.process.poll() is None

    def row(self, key: str) -> object:
        """Return a value of this host's row in ``cdc hosts``; None if there is no row."""
        rows = [row for row in json.loads(self.cdc("hosts", "--output", "json")) if row["name"] == self.name]
        return rows[0][key] if rows else None

    def cdc(self, *words: str, code: int = 0) -> str:
        """Run a command on this host and return what it prints."""
        return self._run(words, self.environment, code)

    def over_rest(self, *words: str, code: int = 0, **variables: str) -> str:
        """Run a command on a machine that has only the address of this host, and return what it prints.

        ``variables``: further environment variables, such as ``CDC_CA_FILE``.
        """
        return self._run(words, {**self.elsewhere(), **variables}, code)

    def elsewhere(self) -> dict[str, str]:
        """Return the environment of a machine that has only the address of this host."""
        others = {key: value for key, value in self.environment.items() if not key.startswith("CDC_")}
        return {**others, "CDC_HOME": str(self.home.with_name("elsewhere")), "CDC_URL": str(self.row("address"))}

    def _run(self, words: tuple[str, ...], environment: Mapping[str, str], code: int) -> str:
        done = subprocess.run(
            [*self._command, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if words[-1] == "json" else done.stdout + done.stderr

    def kill(self) -> None:
        """End every process of the host at once, as a loss of power does."""
        self.signal_all(signal.SIGSTOP)  # none of them starts another one meanwhile
        self.signal_all(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(LIMIT_S)

    def signal_all(self, number: int) -> None:
        """Send a signal to every process of the host."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to ``cdc serve`` alone, and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def processes(self) -> list[psutil.Process]:
        """Return ``cdc serve``, supervisors, drivers and their child processes."""
        return processes_with("CDC_HOME", str(self.home))


@contextmanager
def opened(host: HostProcess) -> Iterator[SqlStore]:
    """Open the store of a host in this process."""
    store = open_store(environment=host.environment, folder=host.home.with_name("reader"))
    try:
        yield store
    finally:
        store.close()
