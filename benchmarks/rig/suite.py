"""Select benchmarks and run each one in a process of its own, so that runs do not share memory, caches or cores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

PROGRAMS = (
    "decode",
    "kafka",
    "small_tasks",
    "end_to_end",
    "snapshot",
    "clusters",
    "schema",
    "verify",
    "delta",
    "serve",
    "peers",
)
ON_REQUEST = ("peers",)  # not without a name: they need Maven
RECEIVERS = ("binlog", "files", "canal")
WARM_UP_ROWS = 20_000
SINKS = ("delta", "s3", "null", "doris", "starrocks", "starrocks-single")


@dataclass(frozen=True)
class Options:
    """What a benchmark measures."""

    rows: int = 0  # of the backlog, the table or the load
    receiver: str = "binlog"
    sink: str = "delta"
    profile: bool = False

    @property
    def figure(self) -> str:
        """Return the start of the names of figures."""
        parts = [self.receiver] * (self.receiver != "binlog") + [self.sink] * (self.sink != "delta")
        return ".".join(["e2e", *(parts or ["delta"])])


@dataclass(frozen=True)
class Case:
    """One benchmark: a function of a program."""

    name: str  # PROGRAM.WORK
    measure: Callable[[Options], None]
    options: Options = Options()
    quick_rows: int = 0  # with --quick; 0: as always
    runs: int = 3
    has_route: bool = False  # --receiver and --sink apply

    @property
    def title(self) -> str:
        """Return the name, with receiver and sink if they can be chosen."""
        return f"{self.name} {self.options.receiver}-{self.options.sink}" if self.has_route else self.name

    def with_rows(self, rows: int) -> Case:
        """Return the case with another number of rows. Work of a fixed amount keeps it."""
        return replace(self, options=replace(self.options, rows=rows)) if self.options.rows else self

    def arguments(self) -> list[str]:
        """Return the arguments of ``python -m benchmarks`` that run this case once."""
        found = [self.name, "--in-process"]
        if self.has_route:
            found += ["--receiver", self.options.receiver, "--sink", self.options.sink]
        found += ["--rows", str(self.options.rows)] if self.options.rows else []
        return [*found, *(["--profile"] if self.options.profile else [])]


def cases(
    names: Sequence[str], *, receiver: str | None = None, sink: str | None = None, rows: int | None = None,
    quick: bool = False, profile: bool = False,
) -> list[Case]:  # fmt: skip
    """Return the cases that ``names`` select (PROGRAM or PROGRAM.WORK; all without a name), with these options.

    If no case has the requested receiver and sink, the first of each name is measured with them.
    Raises: SystemExit - there is no such benchmark.
    """
    asked = {name.partition(".")[0] for name in names} or set(PROGRAMS).difference(ON_REQUEST)
    programs = [name for name in PROGRAMS if name in asked]
    known = [case for program in programs for case in import_module(f"benchmarks.{program}").CASES]
    for name in names:
        if not any(name in (case.name, case.name.partition(".")[0]) for case in known):
            raise SystemExit(f"There is no benchmark {name}. Programs: {', '.join(PROGRAMS)}; see --list.")
    found = [case for case in known if not names or {case.name, case.name.partition(".")[0]} & set(names)]
    if receiver or sink:
        found = _on_route([case for case in found if case.has_route], receiver, sink)
    if not found:
        raise SystemExit("No selected benchmark accepts --receiver or --sink.")
    return [
        replace(case, options=replace(case.options, profile=profile)).with_rows(
            rows or (quick and case.quick_rows) or case.options.rows
        )
        for case in found
    ]


def _on_route(found: Sequence[Case], receiver: str | None, sink: str | None) -> list[Case]:
    def with_route(case: Case) -> Case:
        options = case.options
        route = replace(options, receiver=receiver or options.receiver, sink=sink or options.sink)
        return replace(case, options=route)

    first_of_name = {case.name: with_route(case) for case in reversed(found)}
    return [case for case in found if with_route(case) == case] or [*first_of_name.values()][::-1]


def run_once(command: Sequence[str], *, folder: Path, others: Path | None = None) -> tuple[int, list[dict[str, Any]]]:
    """Run a benchmark in ``folder``. Return its exit code and the results that it wrote.

    Further files, such as the stacks of a profile, are moved to ``others``.
    """
    with tempfile.TemporaryDirectory(prefix="cdc-results-") as name:
        environment = {**os.environ, "CDC_BENCH_RESULTS": name}
        code = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
        written = sorted(Path(name).iterdir())
        results = [json.loads(path.read_text()) for path in written if path.suffix == ".json"]
        for path in written:
            if others and path.suffix != ".json":
                shutil.move(path, others / path.name)
    return code, results


def command_of(case: Case) -> list[str]:
    """Return the command that runs a case of this checkout once."""
    return [sys.executable, "-m", "benchmarks", *case.arguments()]
