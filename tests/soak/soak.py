"""Hours of mixed writes with kills: ``python -m tests.soak.soak [--minutes 120] [--seed N]`` (``make soak``).

Shoppers insert, update, delete and change keys, mostly in transactions over several tables. About once a minute the
driver, its JVM or its Python workers are killed. Every few minutes the writers stop, and every row of every table is
compared. The last sixth has no kills, so that a leak inside one process is visible too.
Exit code 1: source and target differed, or a value has grown (``LIMITS`` in ``tests.soak.sampling``).
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.rig.measure import circumstances
from cdc.demo import proof, shop
from cdc.demo.local_servers import LocalServer, free_port, obtain
from cdc.demo.process import JobProcess, is_caught_up
from cdc.demo.run import PASSWORD
from tests.soak import sampling
from tests.soak.run import end_of
from tests.soak.sampling import Sampler, Verdict
from tests.support.seeds import seed_of

JOB = """\
name: soak
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: {password}, tls: {{mode: required}},
         start: {{file: {file}, offset: {offset}}}}}
sink: {{type: delta, path: ./warehouse, create_tables: true, retention: 60s}}
channels:
  - {{source: shop.*, target: ods.*}}
commit: {{interval: 1s}}
status: {{port: {status}}}
"""
SHOPPERS, TRANSACTIONS_PER_S = 2, 20.0  # of each: two cores also run MySQL and the comparison
KILL_EVERY_S = 60.0
WHILE_STARTING = 0.2  # share of kills that do not wait for a commit
VICTIMS = ("driver", "driver", "driver", "java", "spark.worker_daemon")
CALM = 1 / 6  # share of the time, at its end, without kills
ARTIFACTS = Path(__file__).parents[2] / "artifacts"


class Soak:
    """One job, its source and the writers."""

    def __init__(self, folder: Path, server: LocalServer, seed: int) -> None:
        self.folder, self.server, self.seed = folder, server, seed
        self.draw = random.Random(seed)
        self.kills: list[tuple[float, str]] = []
        self.compared: list[tuple[float, int]] = []
        self.differences: list[str] = []
        self.transactions = 0
        self._shoppers: list[shop.Shopper] = []
        self._began = time.monotonic()
        server.create_user("cdc", PASSWORD)
        with server.connect() as connection:
            shop.create(connection)
        file, offset = end_of(server)
        port = free_port()
        text = JOB.format(port=server.port, password=PASSWORD, file=file, offset=offset, status=port)
        (folder / "job.yaml").write_text(text)
        shop.Shopper(lambda: server.connect(shop.DATABASE), seed=seed, transactions_per_s=1).fill(
            customers=1000, orders=3000
        )
        self.job = JobProcess(folder / "job.yaml", home=folder / "state", port=port)

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def write(self) -> None:
        """Start the shoppers."""
        number = len(self.compared) * SHOPPERS
        self._shoppers = [
            shop.Shopper(
                lambda: self.server.connect(shop.DATABASE),
                seed=self.seed * 1000 + number + each,
                transactions_per_s=TRANSACTIONS_PER_S,
            )
            for each in range(SHOPPERS)
        ]
        for shopper in self._shoppers:
            shopper.start()

    def hold(self) -> None:
        """Stop the shoppers."""
        for shopper in self._shoppers:
            shopper.stop()
        self.transactions += sum(shopper.transactions for shopper in self._shoppers)
        self._shoppers = []

    def compare(self, sampler: Sampler) -> None:
        """At rest, compare every row of every table and take a sample."""
        self.hold()
        end = end_of(self.server)
        self.job.wait_for(f"caught up with {end}", lambda status: is_caught_up(status, end), 300)
        verified = self.job.verify("soak")
        if not verified["equal"]:
            self.differences.append(f"{self.seconds():.0f} s: cdc verify: {verified}")
        rows = 0
        for name, key in shop.KEYS.items():
            found = proof.compare(self.server, f"{shop.DATABASE}.{name}", self.folder / "warehouse" / "ods" / name, key)
            rows += found.rows
            self.differences += [f"{self.seconds():.0f} s: {name}: {each}" for each in found.differences]
        sampler.at_rest()
        self.compared.append((self.seconds(), rows))
        print(f"{self.seconds() / 60:6.1f} min: {len(self.kills)} kills, {rows} rows compared, "
              f"{len(self.differences)} differences", flush=True)  # fmt: skip

    def kill(self) -> None:
        """Kill the driver and start it again, or kill one of its processes, which it must replace automatically.

        On a machine so slow that the job has committed nothing since the last kill, wait for a commit first.
        """
        if self.draw.random() > WHILE_STARTING:
            self.job.wait_for("a commit", _has_committed, 300)
        second, victim, driver = self.seconds(), self.draw.choice(VICTIMS), psutil.Process(self.job.pid)
        if driver.status() == psutil.STATUS_ZOMBIE:
            self.differences.append(f"{self.seconds():.0f} s: the driver had ended: {self.job.log}")
        found = driver.children(recursive=True) if victim != "driver" else []
        chosen = [child for child in found if victim in _command(child)]
        if chosen:
            for child in chosen:
                with suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGKILL)
        else:  # also if Spark has not started yet
            victim = "driver"
            self.job.kill()
            self.job.start()
        self.kills.append((second, victim))


def _has_committed(status: dict[str, Any]) -> bool:
    """Return whether this run has committed. Both times are of the same clock and format."""
    checkpoint, since = status["checkpoint"], status["started_at"]
    return bool(checkpoint and since and (checkpoint["committed_at"] or "") > since)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:4])
    except psutil.Error:
        return ""


def soak(folder: Path, minutes: float, seed: int) -> tuple[Soak, Sampler]:
    """Run everything."""
    options = ("--binlog-row-metadata=FULL", "--max-binlog-size=16M", "--innodb-buffer-pool-size=256M")
    with LocalServer.start(obtain("mysql", print), folder / "mysql", options=options) as server:
        run = Soak(folder, server, seed)
        end, calm = minutes * 60, minutes * 60 * (1 - CALM)
        compare_every = min(300.0, end / 5)
        with run.job as job, Sampler(run.job, folder, server) as sampler:
            job.start()
            run.write()
            next_kill, next_compare = _interval(run.draw), compare_every
            while run.seconds() < end:
                due = min(next_kill, next_compare, end)
                time.sleep(max(0.0, due - run.seconds()))
                if due == next_kill and run.seconds() < calm:
                    run.kill()
                if due == next_kill:
                    next_kill = run.seconds() + _interval(run.draw)
                elif due == next_compare:
                    run.compare(sampler)
                    run.write()
                    next_compare = run.seconds() + compare_every
            run.compare(sampler)
            sampler.calm_from = calm
            code = job.stop()
            if code not in (0, 130, 143):
                run.differences.append(f"the job ended with exit code {code}")
            sampler.ended()
    return run, sampler


def _interval(draw: random.Random) -> float:
    return draw.expovariate((1 - CALM) ** -1 / KILL_EVERY_S)


def main() -> None:
    """Run, write ``artifacts/soak.json`` and ``artifacts/soak.svg``, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    seed = seed_of(given.seed)
    with tempfile.TemporaryDirectory(prefix="cdc-soak-") as folder:
        run, sampler = soak(Path(folder), given.minutes, seed)
    verdicts = sampler.verdicts(len(run.kills))
    ARTIFACTS.mkdir(exist_ok=True)
    result = {
        "minutes": given.minutes,
        "seed": seed,
        "kills": run.kills,
        "transactions": run.transactions,
        "compared": run.compared,
        "differences": run.differences,
        "verdicts": [verdict.to_json() for verdict in verdicts],
        "samples": sampler.to_json(),
        "command": f"python -m tests.soak.soak --minutes {given.minutes:g} --seed {seed}",
        **circumstances(),
    }
    (ARTIFACTS / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
    sampling.plot(sampler.samples, run.kills, run.compared, ARTIFACTS / "soak.svg")
    _show(run, verdicts)
    sys.exit(bool(run.differences) or any(not verdict.holds for verdict in verdicts))


def _show(run: Soak, verdicts: list[Verdict]) -> None:
    table = Table(title=f"Soak: {len(run.kills)} kills, {run.transactions} transactions, seed {run.seed}")
    for heading in ("what", "before", "after", "limit", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for one in verdicts:
        numbers = (f"{value:,.0f}" for value in (one.before, one.after, one.limit))
        table.add_row(one.what, *numbers, "holds" if one.holds else "GROWS")
    console = Console()
    console.print(table)
    rows = run.compared[-1][1]
    console.print(f"{len(run.compared)} comparisons, {rows} rows in the last one, {len(run.differences)} differences")
    for difference in run.differences[:20]:
        console.print(difference, markup=False)
    console.print(f"Written: {ARTIFACTS}/soak.json, {ARTIFACTS}/soak.svg")


if __name__ == "__main__":
    main()
