"""Every benchmark, repeated: a process for each run, so that none inherits another's memory, caches or cores."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import circumstances

# numbers beside the figure itself that are summed up as well
_ASIDE = (
    "cpu_s_per_million", "peak_gib", "with_start_of_the_job", "cpu_s", "p50", "worst", "rows_per_s", "stolen_percent",
)  # fmt: skip


@dataclass(frozen=True)
class Benchmark:
    """One program of this package, and how often it is run."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    runs: int = 3
    quick: tuple[str, ...] | None = None  # arguments that make it short; None: it has none


_E2E, _SNAPSHOT, _CANAL = "benchmarks.bench_e2e", "benchmarks.bench_snapshot", "benchmarks.bench_canal_e2e"
_NULL, _CLUSTERS = "benchmarks.bench_null", "benchmarks.bench_clusters"

SUITE = (
    Benchmark("decode", "benchmarks.bench_decode", runs=1, quick=("--largest-mb", "100")),  # repeats by itself
    Benchmark("small.start", "benchmarks.bench_small", ("start",)),
    Benchmark("small.latency", "benchmarks.bench_small", ("latency",)),
    Benchmark("small.start_in_head", "benchmarks.bench_small", ("start_in_head",), runs=1),
    Benchmark("null.catch_up", _NULL, ("catch_up",), quick=("--rows", "500000")),
    Benchmark("null.wide", _NULL, ("wide",), quick=("--rows", "500000")),
    Benchmark("null.many_tables", _NULL, ("many_tables",), quick=("--rows", "500000")),
    Benchmark("e2e.catch_up", _E2E, ("catch_up",), quick=("--rows", "500000")),
    Benchmark("e2e.freshness", _E2E, ("freshness",)),
    Benchmark("e2e.throughput", _E2E, ("throughput",), runs=1, quick=("--rows", "500000")),
    Benchmark("e2e.small_machine", _E2E, ("small_machine",), runs=1, quick=("--rows", "500000")),
    Benchmark("e2e.low_latency", _E2E, ("low_latency",), runs=1),
    Benchmark("e2e.cycle_100_channels", _E2E, ("cycle_100_channels",)),
    Benchmark("e2e.big_transaction", _E2E, ("big_transaction",), runs=1, quick=("--rows", "500000")),
    Benchmark("e2e.merge_growth", _E2E, ("merge_growth",), runs=1),
    Benchmark("snapshot.delta", _SNAPSHOT, ("delta",), runs=1, quick=("--rows", "500000")),
    Benchmark("snapshot.wide", _SNAPSHOT, ("wide",), runs=1),
    Benchmark("snapshot.lag", _SNAPSHOT, ("lag",), runs=1, quick=("--rows", "500000")),
    Benchmark("canal.client", "benchmarks.bench_canal"),
    Benchmark("canal.catch_up", _CANAL, ("catch_up",)),
    Benchmark("canal.catch_up_single_rows", _CANAL, ("catch_up_single_rows",), runs=1),
    Benchmark("canal.large_transaction", _CANAL, ("large_transaction",), runs=1),
    Benchmark("clusters.doris", _CLUSTERS, ("doris",), quick=("--rows", "500000")),
    Benchmark("clusters.starrocks", _CLUSTERS, ("starrocks",), quick=("--rows", "500000")),
    Benchmark("clusters.starrocks-single", _CLUSTERS, ("starrocks-single",), quick=("--rows", "500000")),
    Benchmark("doris.sink", "benchmarks.bench_doris", quick=("--loads", "4")),
)
# compiles the kernels, writes the archive of the JVM's classes, unpacks the servers: once a machine, and no run's cost
WARM_UP = Benchmark("warm-up", _NULL, ("catch_up", "--rows", "20000"), runs=1)
WARM_UPS = {  # for those whose names begin so
    "": WARM_UP,
    "snapshot": Benchmark("warm-up of snapshots", _SNAPSHOT, ("delta", "--rows", "20000"), runs=1),
    "canal": Benchmark("warm-up of Canal", "benchmarks.bench_canal", runs=1),
}


@dataclass
class Figure:
    """One number of one benchmark, of all its runs."""

    name: str
    unit: str
    must: str
    values: list[float] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)  # each run's result as it was reported

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    def aside(self) -> dict[str, float]:
        """Medians of what else the runs have told."""
        told = {name: [run[name] for run in self.runs if isinstance(run.get(name), int | float)] for name in _ASIDE}
        return {name: statistics.median(values) for name, values in told.items() if values}

    def baselines(self) -> dict[str, float]:
        """Medians of what others have reached in the same runs."""
        names = {name for run in self.runs for name in run.get("baselines", {})}
        return {
            name: statistics.median(run["baselines"][name] for run in self.runs if name in run.get("baselines", {}))
            for name in sorted(names)
        }

    def to_json(self) -> dict[str, Any]:
        """The result, with every run in it."""
        return {
            "name": self.name,
            "value": self.median,
            "unit": self.unit,
            "must": self.must,
            "checked": self.runs[0].get("checked", ""),
            "lowest": min(self.values),
            "highest": max(self.values),
            "values": self.values,
            **self.aside(),
            "baselines": self.baselines(),
            "runs": self.runs,
        }


@dataclass
class Outcome:
    """What came of a benchmark."""

    benchmark: Benchmark
    seconds: float
    failures: list[str]
    figures: list[Figure]


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """The benchmarks whose names begin like one of ``names``; all without any. Raises: SystemExit - no such."""
    unknown = [name for name in names if not any(each.name.startswith(name) for each in SUITE)]
    if unknown:
        raise SystemExit(
            f"No benchmark begins with {', '.join(unknown)}. There are: {', '.join(b.name for b in SUITE)}"
        )
    return [each for each in SUITE if not names or any(each.name.startswith(name) for name in names)]


def measure(benchmark: Benchmark, runs: int, results: Path, *, quick: bool = False) -> Outcome:
    """Run it so often; what is more than figures goes to ``results``, which is there.

    Never: raises for a run that fails; a parity check that does not hold is such a one.
    """
    began, failures, found = time.monotonic(), [], dict[str, Figure]()
    arguments = [*benchmark.arguments, *((benchmark.quick or ()) if quick else ())]
    for number in range(runs):
        print(f"-- {benchmark.name}, run {number + 1} of {runs}", flush=True)
        with tempfile.TemporaryDirectory(prefix="cdc-results-") as folder:
            environment = {**os.environ, "CDC_BENCH_RESULTS": folder}
            done = subprocess.run([sys.executable, "-m", benchmark.module, *arguments], env=environment, check=False)
            if done.returncode:
                failures.append(f"run {number + 1} ended with exit code {done.returncode}")
            for path in sorted(Path(folder).glob("*.json")):
                result = json.loads(path.read_text())
                take(found, result)
                if "figures" in result:  # more than figures
                    (results / path.name).write_text(path.read_text())
    return Outcome(benchmark, time.monotonic() - began, failures, list(found.values()))


def take(found: dict[str, Figure], result: Mapping[str, Any]) -> None:
    """Add a run's result to the figures."""
    for each in _results(result):
        figure = found.setdefault(each["name"], Figure(each["name"], each["unit"], each["must"]))
        figure.values += each.get("values", [each["value"]])
        figure.runs.append(each)


def _results(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The results in a file: one, or those of the decoder."""
    if "figures" not in result:
        yield dict(result)
        return
    for each in result["figures"]:
        theirs = each.get("mysql_replication") if each["unit"] == "rows/s" else None
        yield {**each, "baselines": {"mysql-replication": theirs["rows_per_s"]} if theirs else {}}


def write(outcomes: Iterable[Outcome], folder: Path, command: str) -> None:
    """A JSON file for each figure, and one of all; ``folder`` is there."""
    everything = {"command": command, **circumstances(), "benchmarks": []}
    for outcome in outcomes:
        figures = [figure.to_json() for figure in outcome.figures]
        for figure in figures:
            text = json.dumps({"command": command, **figure}, indent=2)
            (folder / f"{figure['name']}.json").write_text(text + "\n")
        everything["benchmarks"].append({
            "name": outcome.benchmark.name, "seconds": round(outcome.seconds), "failures": outcome.failures,
            "figures": [{key: value for key, value in figure.items() if key != "runs"} for figure in figures],
        })  # fmt: skip
    (folder / "bench.json").write_text(json.dumps(everything, indent=2) + "\n")


def number(value: float) -> str:
    """For people."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
