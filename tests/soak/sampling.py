"""The resources that a long run uses, sampled every few seconds, and whether any of them grows."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

import psutil
import pymysql

from benchmarks.rig.measure import pss_bytes
from cdc.demo.local_servers import LocalServer
from cdc.demo.process import JobProcess
from cdc.marked_processes import processes_with

EVERY_S = 5.0
WARM_S = 60.0  # a younger process is still starting: classes, kernels, workers
LONG_S = 600.0  # a last process that was sampled for a shorter time after its start shows nothing about leaks
GONE_S = 30.0  # a process must notice within this time that its driver was killed
LEFT_S = 120.0  # the same after the end of the job: on a busy machine nothing is hidden by a longer wait

# limit of the value after, relative to the value before: factor and slack
LIMITS = {
    "memory_mib": (1.25, 100.0),
    "handles": (1.1, 20.0),
    "threads": (1.1, 10.0),
    "java_handles": (1.1, 60.0),  # files of jars and of shuffles are opened and closed
    "java_threads": (1.1, 60.0),  # pools that shrink when idle
    "table_files": (1.5, 50.0),
    "log_files": (1.5, 50.0),
    "staging_files": (1.0, 10.0),
    "temporary_files": (1.5, 30.0),  # a killed JVM leaves some until its driver ends
    "state_kib": (1.5, 1024.0),
}
# Limit for the growth of driver, JVM and workers each, as the slope of a line through the samples of the last process.
# In its first twenty minutes allocators and the JVM heap still fill, ever more slowly: up to 400 were seen without a
# leak.
MIB_AN_HOUR = 500.0
MAX_STRAYS = 0  # processes that outlive their driver


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one moment. Memory counts shared pages once (PSS)."""

    second: float
    age: float  # of the driver or its JVM, whichever is younger
    driver_mib: float
    java_mib: float
    worker_mib: float
    processes: int
    handles: int  # open file descriptors of the driver
    threads: int  # of the driver
    java_handles: int
    java_threads: int
    strays: int  # processes of earlier drivers that should have ended
    table_files: int  # Parquet files in the folders of all tables, also those of older versions
    log_files: int  # of the logs of the tables
    staging_files: int
    aborted_marks: int  # in the staging folder too: each stays for an hour
    temporary_files: int  # and folders
    state_kib: float
    lag_bytes: int | None  # bytes of binlog after the committed position; None: the job does not reply
    lag_s: float | None

    @property
    def memory_mib(self) -> float:
        """Return the sum over all processes."""
        return self.driver_mib + self.java_mib + self.worker_mib


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a value stayed within its limit."""

    what: str
    before: float
    after: float
    limit: float

    @property
    def holds(self) -> bool:
        """Return whether it did."""
        return self.after <= self.limit

    def to_json(self) -> dict[str, Any]:
        """Return the verdict for the result file."""
        return {**asdict(self), "holds": self.holds}


class Sampler:
    """Sample the processes and folders of a job on a separate thread."""

    def __init__(self, job: JobProcess, folder: Path, server: LocalServer) -> None:
        self.samples: list[Sample] = []
        self.rests: list[Sample] = []  # while nothing was written and everything was committed
        self.calm_from = 0.0  # the second after which nothing was killed
        self.left_behind: list[str] = []
        self._job, self._folder, self._home, self._server = job, folder, folder / "state", server
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._fault is not None and kind is None:
            raise self._fault  # there are no samples since then, so the run proves nothing

    def _run(self) -> None:
        try:
            while not self._stop.wait(EVERY_S):
                self.samples.append(self._sample())
        except Exception as error:
            self._fault = error

    def at_rest(self) -> None:
        """Save this moment as one of rest."""
        self.rests.append(self._sample())

    def ended(self) -> None:
        """Record the processes that still run after the stop of the job."""
        self.left_behind = left_behind(self._home)

    def _sample(self) -> Sample:
        memory = {"driver": 0.0, "java": 0.0, "worker": 0.0}
        # first, so that a driver which starts meanwhile does not turn earlier processes into strays
        birth = self._driver_birth()
        ages, births = [], []
        open_files, threads = dict.fromkeys(memory, 0), dict.fromkeys(memory, 0)
        for process in processes_with("CDC_HOME", str(self._home)):
            try:
                kind = _kind(process)
                memory[kind] += pss_bytes(process.pid) / 2**20
                births.append(process.create_time())
                open_files[kind] += process.num_fds()
                threads[kind] += process.num_threads()
                if kind != "worker":
                    ages.append(process.create_time())
            except (psutil.Error, OSError):
                continue
        now = time.time()
        age = now - max(ages) if len(ages) > 1 else 0.0
        warehouse, lag_bytes, lag_s = self._folder / "warehouse", *self._lag()
        marks = _count(warehouse, "_cdc_staging/*.aborted")
        return Sample(
            second=round(time.monotonic() - self._began, 1),
            age=round(age, 1),
            driver_mib=round(memory["driver"], 1),
            java_mib=round(memory["java"], 1),
            worker_mib=round(memory["worker"], 1),
            processes=len(births),
            handles=open_files["driver"],
            threads=threads["driver"],
            java_handles=open_files["java"],
            java_threads=threads["java"],
            strays=sum(each < birth - 0.1 for each in births) if age > GONE_S else 0,
            table_files=_count(warehouse, "ods/*/*.parquet*"),
            log_files=_count(warehouse, "ods/*/_delta_log/*"),
            staging_files=_count(warehouse, "_cdc_staging/**/*") - marks,
            aborted_marks=marks,
            temporary_files=_count(self._home, "jobs/*/tmp/**/*"),
            state_kib=sum(map(_size, self._home.glob("state.db*"))) / 1024,
            lag_bytes=lag_bytes,
            lag_s=lag_s,
        )

    def _driver_birth(self) -> float:
        try:
            return psutil.Process(self._job.pid).create_time()
        except (psutil.Error, AssertionError):
            return 0.0

    def _lag(self) -> tuple[int | None, float | None]:
        status = self._job.status()
        if status is None or status["position"] is None:
            return None, None
        try:
            connection = self._server.connect()
            with connection, connection.cursor() as cursor:
                cursor.execute("SHOW BINARY LOGS")
                sizes = {row[0]: int(row[1]) for row in cursor.fetchall()}
        except pymysql.err.OperationalError:
            return None, None
        committed_position = status["position"]
        size_after = sum(size for file, size in sizes.items() if file >= committed_position["file"])
        return size_after - committed_position["offset"], status["lag_seconds"]

    def verdicts(self, kills: int) -> list[Verdict]:
        """Return the values before and after, with their limits, after ``kills`` kills."""
        warm_samples = [sample for sample in self.samples if sample.age > WARM_S]
        calm = [sample for sample in warm_samples if sample.second > self.calm_from]
        found = []
        is_long = bool(calm) and calm[-1].second - calm[0].second > LONG_S
        for name in ("memory_mib", "handles", "threads", "java_handles", "java_threads"):
            found.append(grown(f"{name}, first third of the run and last", warm_samples, name))
            if is_long:
                found.append(grown(f"{name}, the last process alone", calm, name))
        if is_long:
            found += [growing(name, calm) for name in ("driver_mib", "java_mib", "worker_mib")]
        # in the first third the number of files still rises: retention, the first vacuum
        later = self.samples[len(self.samples) // 3 :]
        found += [grown(name, later, name) for name in ("table_files", "log_files", "temporary_files", "state_kib")]
        found.append(grown("staging_files, at rest", self.rests, "staging_files"))
        # a kill leaves at most the open cycle and the one that waited for its Tasks
        found.append(Verdict("aborted_marks, of kills", 0, self.rests[-1].aborted_marks, 2 * kills))
        strays = max((sample.strays for sample in self.samples), default=0)
        found.append(Verdict("processes that outlive their driver", 0, strays, MAX_STRAYS))
        found.append(Verdict("processes that outlive the job", 0, len(self.left_behind), 0))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return all samples and the remaining processes."""
        return {
            "every_s": EVERY_S,
            "running": [asdict(sample) for sample in self.samples],
            "at_rest": [asdict(sample) for sample in self.rests],
            "left_behind": self.left_behind,
        }


def grown(what: str, samples: Sequence[Sample], name: str) -> Verdict:
    """Compare the median of the first third with that of the last one, so that a peak is not growth."""
    values = [float(getattr(sample, name)) for sample in samples]
    if not values:
        raise SystemExit(f"The run was too short to say anything about {what}: use more --minutes.")
    third = max(1, len(values) // 3)
    before, after = statistics.median(values[:third]), statistics.median(values[-third:])
    factor, slack = LIMITS[name]
    return Verdict(what, before, after, before * factor + slack)


def growing(name: str, samples: Sequence[Sample]) -> Verdict:
    """Return the growth per hour, by a line through all samples."""
    seconds, values = [sample.second for sample in samples], [float(getattr(sample, name)) for sample in samples]
    return Verdict(f"{name} an hour, the last process", 0, linear_regression(seconds, values).slope * 3600, MIB_AN_HOUR)


def left_behind(home: Path) -> list[str]:
    """Return the processes of a job that still run after its end and the time that they need to notice it."""
    deadline = time.monotonic() + LEFT_S
    while (found := processes_with("CDC_HOME", str(home))) and time.monotonic() < deadline:
        time.sleep(0.5)
    return [_command(process) for process in found]


def _kind(process: psutil.Process) -> str:
    if process.name() == "java":
        return "java"
    return "driver" if "cdc.cli.main" in _command(process) else "worker"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:4])
    except psutil.Error:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the write-ahead log is deleted with its last user
        return 0


def _count(folder: Path, pattern: str) -> int:
    try:
        return sum(1 for _ in folder.glob(pattern))
    except OSError:  # a folder that is deleted while it is listed
        return 0


def plot(
    samples: Sequence[Sample], kills: Sequence[tuple[float, str]], compared: Sequence[tuple[float, int]], path: Path
) -> None:
    """Draw all values over time: kills in red, comparisons in green."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    panels = (
        ("memory, MiB", ("driver_mib", "java_mib", "worker_mib", "memory_mib")),
        ("file descriptors, threads", ("handles", "threads", "java_handles", "java_threads")),
        ("processes", ("processes", "strays")),
        ("files", ("table_files", "log_files", "staging_files", "temporary_files")),
        ("binlog lag, bytes", ("lag_bytes",)),
        ("state, KiB", ("state_kib",)),
    )
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(11, 2.1 * len(panels)), sharex=True, layout="constrained")
    minutes = [sample.second / 60 for sample in samples]
    for axis, (title, names) in zip(axes, panels, strict=True):
        for second, _ in kills:
            axis.axvline(second / 60, color="tab:red", alpha=0.25, linewidth=0.7)
        for second, _ in compared:
            axis.axvline(second / 60, color="tab:green", alpha=0.6, linewidth=0.9)
        for name in names:
            values = [getattr(sample, name) for sample in samples]
            axis.plot(minutes, [float("nan") if value is None else value for value in values], label=name)
        axis.set_ylabel(title, fontsize=8)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7, loc="upper left")
    axes[-1].set_xlabel("minutes; red: something was killed, green: all rows were compared")
    figure.savefig(path)
    pyplot.close(figure)
