"""Profile a job (``--profile``): the functions that use the CPU in the driver, the Python workers and the JVM.

py-spy samples Python 100 times per second. JFR samples Spark's JVM, if a JDK provides ``jcmd`` and ``jfr``. All stacks
are written to ``profile.folded``, in the format of flame graph tools.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.rig.measure import RESULTS

_SHOWN = 12  # functions of each process
_SAMPLES = re.compile(r"(.+?) (\d+)\n", re.S)  # the command of a process may have several lines
_PROCESS = re.compile(r'process \d+:".*?";', re.S)
_WAITS = re.compile(
    r"\((?:threading|selectors|socket|py4j/clientserver|concurrent/futures/thread|pyspark/accumulators|spark/session)\.py:\d+\)$"
    r"|manager \(pyspark/daemon\.py:\d+\)$"
)
_FRAME = re.compile(r"^\s+([\w.$]+)\.([\w$<>]+)\(", re.M)


@contextmanager
def recorded(driver: int, folder: Path) -> Iterator[None]:
    """Sample the processes of a job inside the block, then print the functions and write the stacks."""
    before = _cpu_s(driver)
    with _python(driver, folder) as stacks, _jvm(driver, folder) as recording:
        yield
        spent = {kind: used - before.get(kind, 0.0) for kind, used in _cpu_s(driver).items()}
    found = {**_python_stacks(stacks), "jvm": _java_stacks(recording)}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "profile.folded").write_text(
        "".join(f"{kind};{stack} {n}\n" for kind, stacks in found.items() for stack, n in stacks.items())
    )
    _show(spent, found)


def _processes(driver: int) -> Iterator[tuple[str, psutil.Process]]:
    process = psutil.Process(driver)
    yield "driver", process
    for child in process.children(recursive=True):
        yield "jvm" if child.name() == "java" else "workers", child


def _cpu_s(driver: int) -> dict[str, float]:
    """Return the CPU seconds so far, by kind of process."""
    found: dict[str, float] = {}
    for kind, process in _processes(driver):
        times = process.cpu_times()
        found[kind] = found.get(kind, 0.0) + times.user + times.system
    return found


@contextmanager
def _python(driver: int, folder: Path) -> Iterator[Path]:
    out = folder / "stacks"
    command = [f"{sysconfig.get_path('scripts')}/py-spy", "record", "--pid", str(driver), "--subprocesses"]
    options = ["--format", "raw", "--rate", "100", "--duration", "3600", "--output", str(out)]
    recorder = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    try:
        yield out
    finally:
        recorder.send_signal(signal.SIGINT)  # py-spy then writes its file
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


def _python_stacks(path: Path) -> dict[str, Counter[str]]:
    """Return the number of samples of each stack, outermost function first, for the driver and the workers.

    py-spy counts some waiting threads as busy, so stacks that end in a wait are omitted.
    """
    found: dict[str, Counter[str]] = {"driver": Counter(), "workers": Counter()}
    for stack, count in _SAMPLES.findall(path.read_text()):
        *parents, own = _PROCESS.split(stack)  # a stack starts with the names of the parent processes
        if not _WAITS.search(own):
            found["workers" if len(parents) > 1 else "driver"][own] += int(count)
    return found


def _java_stacks(recording: Path | None) -> Counter[str]:
    """Return the same for threads of the JVM that were running."""
    if recording is None:
        return Counter()
    command = ["jfr", "print", "--stack-depth", "64", "--events", "jdk.ExecutionSample", str(recording)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    samples = (_FRAME.findall(event) for event in text.split("jdk.ExecutionSample")[1:])
    return Counter(";".join(f"{name}.{method}" for name, method in reversed(frames)) for frames in samples if frames)


def _show(spent: dict[str, float], stacks: dict[str, Counter[str]]) -> None:
    console, total = Console(width=150), sum(spent.values())
    for kind, found in stacks.items():
        used = spent.get(kind, 0.0)
        table = Table(title=f"{kind}: {used:.1f} CPU s, {100 * used / total:.0f} % of {total:.1f}")
        table.add_column("%", justify="right")
        table.add_column("innermost function")
        inner: Counter[str] = Counter()
        for stack, count in found.items():
            inner[stack.rpartition(";")[2]] += count
        for name, count in inner.most_common(_SHOWN):
            table.add_row(f"{100 * count / inner.total():.0f}", name)
        console.print(table)
