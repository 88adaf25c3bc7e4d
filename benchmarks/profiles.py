"""Where the CPU goes on the main path: ``python -m benchmarks.profiles`` (``make profile``).

While a job takes a backlog, py-spy looks at the driver and the Python workers a hundred times a second, and JFR at
Spark's JVM (by ``jcmd`` and ``jfr`` of a JDK; without them that part is left out). Prints the functions in which the
samples lie, and writes the stacks, folded as flame graph tools read them, beside the other results.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import orders, rig
from benchmarks.harness import RESULTS
from benchmarks.rig import DATABASE
from benchmarks.suite import WARM_UP, measure

_SHOWN = 12  # functions of each process
_SINK = "type: delta, path: ./warehouse, create_tables: true"
_PROCESS = re.compile(r'process \d+:".*?";')
_WAITS = re.compile(
    r"\((?:threading|selectors|socket|py4j/clientserver|concurrent/futures/thread|pyspark/accumulators|spark/session)\.py:\d+\)$"
    r"|manager \(pyspark/daemon\.py:\d+\)$"
)
_FRAME = re.compile(r"^\s+([\w.$]+)\.([\w$<>]+)\(", re.M)


def main() -> None:
    """Make a backlog, watch a job take it, print where its time went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    given = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    measure(WARM_UP, 1, RESULTS)
    with rig.source() as (server, folder):
        server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
        start = rig.position(server)
        orders.fill(server, DATABASE, "orders", given.rows)
        with rig.job(server, folder, start, _SINK) as job:
            job.start()
            rig.running(job)
            with _python(job.pid, folder) as stacks, _jvm(job.pid, folder) as recording:
                before, began = _cpu_s(job.pid), time.monotonic()
                rig.caught_up(job, server, 1800)
                seconds, after = time.monotonic() - began, _cpu_s(job.pid)
            python, java = _folded(stacks), _java_stacks(recording)
        rows = rig.prove(server, folder, "orders")
    written = RESULTS / "profile.folded"
    everything = [*(f"{kind};{stack}" for kind, found in python.items() for stack in found.elements()), *java]
    written.write_text("".join(f"{stack} {count}\n" for stack, count in Counter(everything).items()))
    spent = {kind: used - before.get(kind, 0.0) for kind, used in after.items()}
    _show(spent, {**python, "jvm": Counter(stack.partition(";")[2] for stack in java)}, rows, seconds)
    Console().print(f"Stacks: {written}")


def _processes(driver: int) -> Iterator[tuple[str, psutil.Process]]:
    process = psutil.Process(driver)
    yield "driver", process
    for child in process.children(recursive=True):
        yield "jvm" if child.name() == "java" else "workers", child


def _cpu_s(driver: int) -> dict[str, float]:
    """CPU seconds so far, by kind of process."""
    found: dict[str, float] = {}
    for kind, process in _processes(driver):
        times = process.cpu_times()
        found[kind] = found.get(kind, 0.0) + times.user + times.system
    return found


@contextmanager
def _python(driver: int, folder: Path) -> Iterator[Path]:
    out = folder / "stacks"
    spy = Path(sysconfig.get_path("scripts")) / "py-spy"
    what = ["record", "--pid", str(driver), "--subprocesses", "--format", "raw", "--rate", "100", "--duration", "3600"]
    recorder = subprocess.Popen([spy, *what, "--output", out], stdout=subprocess.DEVNULL)
    try:
        yield out
    finally:
        recorder.send_signal(signal.SIGINT)  # it writes its file then
        recorder.wait(120)


@contextmanager
def _jvm(driver: int, folder: Path) -> Iterator[Path | None]:
    jvm = next((process.pid for kind, process in _processes(driver) if kind == "jvm"), None)
    if jvm is None or not (shutil.which("jcmd") and shutil.which("jfr")):
        yield None
        return
    out = folder / "jvm.jfr"
    subprocess.run(["jcmd", str(jvm), "JFR.start", "name=bench", "settings=profile"], check=True, capture_output=True)
    try:
        yield out
    finally:
        subprocess.run(["jcmd", str(jvm), "JFR.stop", "name=bench", f"filename={out}"], check=True, capture_output=True)


def _folded(path: Path) -> dict[str, Counter[str]]:
    """Samples of each stack, from the outermost function inwards, for the driver and for the workers.

    py-spy counts some threads that wait as busy: stacks that end in a wait are left out.
    """
    found: dict[str, Counter[str]] = {"driver": Counter(), "workers": Counter()}
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        *parents, own = _PROCESS.split(stack)  # a process begins with the names of those it comes from
        if not _WAITS.search(own):
            found["workers" if len(parents) > 1 else "driver"][own] += int(count)
    return found


def _java_stacks(recording: Path | None) -> list[str]:
    """A folded stack for each sample of a thread that ran."""
    if recording is None:
        return []
    command = ["jfr", "print", "--stack-depth", "64", "--events", "jdk.ExecutionSample"]
    told = subprocess.run([*command, recording], check=True, capture_output=True, text=True).stdout
    samples = [_FRAME.findall(event) for event in told.split("jdk.ExecutionSample")[1:]]
    return [
        ";".join(["jvm", *(f"{name}.{method}" for name, method in reversed(frames))]) for frames in samples if frames
    ]


def _show(spent: dict[str, float], stacks: dict[str, Counter[str]], rows: int, seconds: float) -> None:
    console = Console(width=150)
    console.print(f"{rows:,} rows in {seconds:.1f} s, {sum(spent.values()) / rows * 1e6:.1f} CPU s a million")
    for kind, found in stacks.items():
        took = spent.get(kind, 0.0)
        table = Table(title=f"{kind}: {took:.1f} CPU s, {100 * took / sum(spent.values()):.0f} % of all")
        table.add_column("%", justify="right")
        table.add_column("innermost function")
        inner: Counter[str] = Counter()
        for stack, count in found.items():
            inner[stack.rpartition(";")[2]] += count
        for name, count in inner.most_common(_SHOWN):
            table.add_row(f"{100 * count / inner.total():.0f}", name)
        console.print(table)


if __name__ == "__main__":
    main()
