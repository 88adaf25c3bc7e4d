"""The demonstration of several hosts: two hosts run a job, one of them is killed, and the other one takes over."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from cdc.demo import shop
from cdc.demo.local_servers import LocalServer, free_port, obtain
from cdc.demo.process import CDC, is_caught_up
from cdc.demo.run import (
    FILL_CUSTOMERS,
    FILL_ORDERS,
    PASSWORD,
    SHOPPERS,
    START_TIMEOUT_S,
    TRANSACTIONS_PER_S,
    binlog_end,
    empty,
    open_shop,
    prove,
    refuse_foreign,
    start_server,
)
from cdc.errors import CdcError
from cdc.marked_processes import processes_with

JOB = """\
name: demo
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: "${{DEMO_PASSWORD}}", start: snapshot,
  tls: {{mode: required}}}}
sink: {{type: delta, path: {folder}/warehouse, create_tables: true}}
channels: [{{source: shop.*, target: ods.*}}]
commit: {{interval: 1s}}
"""
TAKE_OVER_S = 120.0  # finds a demonstration that hangs
CAUGHT_UP_S = 120.0


class DemoHost:
    """``cdc serve`` as a child process, with its own ``$CDC_HOME`` on the same state store."""

    def __init__(self, name: str, folder: Path, store: LocalServer) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self._file = folder / f"{name}.yaml"
        self._file.write_text(f"host: {{name: {name}}}\nlisten: {{port: {port}}}\n")
        self._log = folder / f"{name}.log"
        self._home = str(folder / name)
        self._environment = {
            **os.environ, "CDC_HOME": self._home, "CDC_HOST": name, "DEMO_PASSWORD": PASSWORD,
            "CDC_STORE": f"mysql://cdc@127.0.0.1:{store.port}/cdc_state?tls=required", "CDC_STORE_PASSWORD": PASSWORD,
        }  # fmt: skip
        self._environment.pop("CDC_URL", None)

    def start(self) -> None:
        """Start the host."""
        with self._log.open("ab") as log:
            subprocess.Popen(
                [*CDC, "serve", str(self._file)],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def cdc(self, *words: str) -> str:
        """Run a command on this host and return what it prints. Raises: CdcError - it failed."""
        done = subprocess.run([*CDC, *words], env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CdcError(f"`cdc {' '.join(words)}` failed: {done.stderr}", hint=f"See {self._log}.")
        return done.stdout

    def hosts(self) -> list[dict[str, Any]]:
        """Return the hosts of the store, as this one sees them."""
        return list(json.loads(self.cdc("hosts", "--output", "json")))

    def status(self) -> dict[str, Any]:
        """Return the status of the job, as this host sees it."""
        return dict(json.loads(self.cdc("status", "demo", "--output", "json")))

    def kill(self) -> None:
        """End all processes of the host at once, as a loss of power does."""
        for send in (psutil.Process.suspend, psutil.Process.kill):  # suspended ones start no others meanwhile
            for process in processes_with("CDC_HOME", self._home):
                with suppress(psutil.Error):
                    send(process)


def run_hosts_demo(folder: Path, *, seconds: float = 40.0, console: Console | None = None) -> int:
    """Empty ``folder``, run the demonstration in it, and return 0 if source and target are equal, otherwise 1.

    ``seconds``: how long the shoppers write, besides the take-over. Raises: ConfigError, PrerequisiteError: as
    ``run_demo``; CdcError - a host does not start, or does not take over.
    """
    report = console or Console()
    refuse_foreign(folder)
    binaries = obtain("mysql", lambda text: report.print(f"  {text}"))
    empty(folder)
    with ExitStack() as stack:
        server = start_server(stack, binaries, folder, report)
        store = LocalServer.start(binaries, folder / "store")
        stack.callback(store.kill)
        store.execute("CREATE DATABASE cdc_state")
        store.create_user("cdc", PASSWORD, "ALL PRIVILEGES")
        open_shop(server)
        shoppers = [
            shop.Shopper(lambda: server.connect(shop.DATABASE), seed=n, transactions_per_s=TRANSACTIONS_PER_S)
            for n in range(SHOPPERS)
        ]
        shoppers[0].fill(customers=FILL_CUSTOMERS, orders=FILL_ORDERS)
        report.print(f"[bold]2[/] A shop with {len(shop.TABLES)} tables, and a second MySQL for the state of the job")
        hosts = [DemoHost(name, folder, store) for name in ("a", "b")]
        for host in hosts:
            stack.callback(host.kill)
            host.start()
        _wait("both hosts", lambda: sum(row["alive"] for row in hosts[0].hosts()) == len(hosts), START_TIMEOUT_S)
        report.print(f"[bold]3[/] Two hosts: {', '.join(f'{host.name} with its page {host.url}' for host in hosts)}")
        job_file = folder / "job.yaml"
        job_file.write_text(JOB.format(port=server.port, folder=folder))
        for shopper in shoppers:
            shopper.start()
        with report.status("[bold]4[/] cdc start job.yaml"):
            hosts[0].cdc("start", str(job_file))
        owner = next(row["name"] for row in hosts[0].hosts() if row["jobs"])
        lost, left = sorted(hosts, key=lambda host: host.name != owner)
        report.print(f"[bold]4[/] The job runs on host {owner}, while {SHOPPERS} shoppers write")
        time.sleep(seconds / 2)
        before = left.status()["checkpoint"]["id"]
        lost.kill()
        began = time.monotonic()
        report.print(f"[bold]5[/] [red]Killed host {lost.name}[/]: every process of it at once")
        with report.status(f"[bold]6[/] Host {left.name} waits for the end of the lease, then takes over"):
            _wait("the take-over", lambda: _commits(left, before), TAKE_OVER_S)
        report.print(f"[bold]6[/] Host {left.name} took over: commits again {time.monotonic() - began:.1f} s later")
        time.sleep(seconds / 2)
        for shopper in shoppers:
            shopper.stop()
        end = binlog_end(server)
        with report.status("[bold]7[/] Waiting for the job to catch up"):
            _wait("catching up", lambda: is_caught_up(left.status(), end), CAUGHT_UP_S)
        report.print(f"[bold]7[/] {sum(shopper.transactions for shopper in shoppers):,} transactions are copied")
        left.cdc("stop", "demo", "--yes")
        return prove(server, folder / "warehouse", report, is_equal=True)


def _commits(host: DemoHost, before: int) -> bool:
    """Return whether ``host`` runs the job and has committed a checkpoint after ``before``."""
    status = host.status()
    is_own = any(row["jobs"] for row in host.hosts() if row["name"] == host.name)
    return is_own and status["state"] == "RUNNING" and (status["checkpoint"] or {"id": 0})["id"] > before + 1


def _wait(what: str, condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise CdcError(f"{what} takes longer than {timeout_s:.0f} s.", hint="See the logs in the folder.")
        time.sleep(0.2)
