"""Measure CPU time and memory of a job's processes, and write each figure with its machine, versions and date."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from cdc.demo.local_servers import obtain

# rig.suite sets a folder of its own for each run
RESULTS = Path(os.environ.get("CDC_BENCH_RESULTS", Path(__file__).parents[1] / "results"))
_START_TIMES = psutil.cpu_times()
_PACKAGES = ("pyspark", "pyarrow", "deltalake", "numba", "pymysql", "mysql-replication", "spark-binlog-load")


def circumstances(**data: Any) -> dict[str, Any]:
    """Return machine, versions and date. A figure means nothing without them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return {
        "machine": {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": round(psutil.virtual_memory().total / 2**30, 1)},
        "versions": {"python": platform.python_version(), **_versions()},
        "data": data,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def _versions() -> dict[str, str]:
    """Return the versions of packages, MySQL and Java, and the commit of this code, with a + if it was changed."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    found["mysql"] = _number(obtain("mysql").version)
    for name, *command in (("java", "java", "-version"), ("commit", "git", "describe", "--always", "--dirty=+")):
        with suppress(OSError):
            done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
            found[name] = _number(done.stderr) if name == "java" else done.stdout.strip()
    return found


def _number(text: str) -> str:
    match = re.search(r"\d+\.\d+\.\d+", text)
    return match.group() if match else "unknown"


def stolen_percent() -> float:
    """Return the share of CPU time that other guests of the host took since this process started."""
    now = psutil.cpu_times()
    spent = sum(after - before for before, after in zip(_START_TIMES, now, strict=True))
    stolen = getattr(now, "steal", 0.0) - getattr(_START_TIMES, "steal", 0.0)
    return round(100 * stolen / max(spent, 1e-9), 1)


def report(
    name: str,
    value: float,
    unit: str,
    *,
    goal: str = "reported",
    data: Mapping[str, Any],
    checked: str,
    usage: Usage | None = None,
    rows: int | None = None,
    **more: Any,
) -> None:
    """Print one figure and write it to ``results/NAME.json``.

    ``checked`` says how the result of the work was verified; "" if it was not. ``usage`` is that of the job, which
    processed ``rows`` rows. ``more`` are further values; its ``baselines`` are figures of other programs from the same
    run, in the same unit, and its ``values`` are the single measurements if ``value`` is their median.
    """
    more["checked"] = checked
    if usage is not None:
        more |= {"peak_gib": round(usage.peak_bytes / 2**30, 2), "cpu_s": round(usage.cpu_s, 1)}
        more |= {"cpu_s_per_million": round(usage.cpu_s / rows * 1e6, 2)} if rows else {}
    more["stolen_percent"] = stolen_percent()
    result = {"name": name, "value": value, "unit": unit, "goal": goal, **more, **circumstances(**data)}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"{name:40} {value:>14,.2f} {unit:14}", *(f"{key}={text}" for key, text in more.items()), flush=True)


@dataclass
class Usage:
    """What all processes of a job used while they were watched."""

    cpu_s: float
    peak_bytes: int  # sum of proportional set sizes, which count a shared page once


class Watch:
    """Samples processes and their descendants (driver, JVM, Python workers) twice per second. A context manager."""

    def __init__(self, *pids: int) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]
        self._cpu: dict[tuple[int, float], float] = {}
        self._before = self._peak = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._sample()
        self._before = sum(self._cpu.values())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def usage(self) -> Usage:
        """Return CPU seconds so far, including those of ended descendants, and the peak of memory."""
        self._sample()
        return Usage(sum(self._cpu.values()) - self._before, int(self._peak))

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            total = 0
            for process in self._family():
                try:
                    times = process.cpu_times()
                    self._cpu[(process.pid, process.create_time())] = times.user + times.system
                    total += pss_bytes(process.pid)
                except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                    continue
            self._peak = max(self._peak, total)

    def _family(self) -> list[psutil.Process]:
        found = []
        for root in self._roots:
            with suppress(psutil.NoSuchProcess):
                found += [root, *root.children(recursive=True)]
        return found


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process: of a page that n processes share, it counts 1/n."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def wait_until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.02) -> None:
    """Wait until ``condition()`` is true. Raises: TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"The condition was not true within {timeout_s} s.")
        time.sleep(every_s)
