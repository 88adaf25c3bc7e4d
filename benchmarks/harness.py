"""What every benchmark needs: a result with its circumstances, and a watch over all processes of a job.

A benchmark measures once and reports; ``python -m benchmarks`` repeats it in processes of their own and sums up.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from cdc.local_servers import obtain

# `python -m benchmarks` gives each run a folder of its own
RESULTS = Path(os.environ.get("CDC_BENCH_RESULTS", Path(__file__).parent / "results"))
_BEGAN = psutil.cpu_times()
_PACKAGES = ("pyspark", "pyarrow", "deltalake", "numba", "pymysql", "mysql-replication", "spark-binlog-load")


def circumstances(**data: Any) -> dict[str, Any]:
    """Machine, versions and date: what a figure means nothing without."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES if _installed(name)} | _programs()
    machine = {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": round(psutil.virtual_memory().total / 2**30, 1)}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "machine": machine,
        "versions": {"python": platform.python_version(), **versions},
        "data": data,
        "date": date,
    }


@cache
def _programs() -> dict[str, str]:
    """Versions of MySQL and Java, and the commit of this code, with a + where it was changed."""
    found = {"mysql": _number(obtain("mysql").version)}
    for name, *command in (("java", "java", "-version"), ("commit", "git", "describe", "--always", "--dirty=+")):
        with suppress(OSError):
            done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
            found[name] = _number(done.stderr) if name == "java" else done.stdout.strip()
    return found


def _number(text: str) -> str:
    match = re.search(r"\d+\.\d+\.\d+", text)
    return match.group() if match else "unknown"


def stolen_percent() -> float:
    """Of the machine's CPU time since this process began, what other guests of its host have taken."""
    now = psutil.cpu_times()
    spent = [after - before for before, after in zip(_BEGAN, now, strict=True)]
    stolen = getattr(now, "steal", 0.0) - getattr(_BEGAN, "steal", 0.0)
    return round(100 * stolen / max(sum(spent), 1e-9), 1)


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def report(
    name: str,
    value: float,
    unit: str,
    *,
    must: str,
    data: Mapping[str, Any],
    checked: str,
    usage: Usage | None = None,
    rows: int | None = None,
    **more: Any,
) -> None:
    """Print one figure and write it to ``results/NAME.json``.

    ``checked``: how it was seen that the work was done right; "" where it was not. ``usage``: of the job, of ``rows``
    if its CPU time is told by rows. ``more``: what else is known; ``baselines`` among it is what others reach in the
    same run, in the same unit.
    """
    more["checked"] = checked
    if usage is not None:
        more |= {"peak_gib": round(usage.peak_bytes / 2**30, 2), "cpu_s": round(usage.cpu_s, 1)}
        more |= {"cpu_s_per_million": round(usage.cpu_s / rows * 1e6, 1)} if rows else {}
    more["stolen_percent"] = stolen_percent()
    result = {"name": name, "value": value, "unit": unit, "must": must, **more, **circumstances(**data)}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"{name:40} {value:>14,.2f} {unit:12} (must: {must})",
        *(f"{key}={text}" for key, text in more.items()),
        flush=True,
    )


@dataclass
class Usage:
    """What a job's processes took together while they were watched."""

    cpu_s: float
    peak_bytes: int  # sum of proportional set sizes: pages that processes share count once


class Watch:
    """Samples a process and all its descendants (driver, JVM, Python workers) twice a second, from entering on."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[tuple[int, float], float] = {}
        self._before = self._peak = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._look()
        self._before = sum(self._cpu.values())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def usage(self) -> Usage:
        """CPU seconds so far, those of ended descendants included, and the peak of memory."""
        return Usage(sum(self._cpu.values()) - self._before, int(self._peak))

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            self._look()

    def _look(self) -> None:
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
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def pss_bytes(pid: int) -> int:
    """Proportional set size of a process: pages that others share count by their share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def wait_until(condition: Any, timeout_s: float, every_s: float = 0.02) -> float:
    """Seconds until ``condition()`` is true. Raises: TimeoutError."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > timeout_s:
            raise TimeoutError(f"not within {timeout_s} s")
        time.sleep(every_s)
    return time.monotonic() - start
