"""Verification: the rows of a table in MySQL and Delta that are compared per second, and the CPU time for them."""

from __future__ import annotations

import json
from typing import Any

import psutil
import requests

from benchmarks.rig.jobs import Rig, rig
from benchmarks.rig.measure import Watch, report
from benchmarks.rig.orders import DATABASE
from benchmarks.rig.suite import Case, Options
from cdc.demo.process import JobProcess

TOKEN = "bench"


def rows_per_s(options: Options) -> None:
    """Measure a table of 10 columns that nothing changes, within the steps of the verification."""
    with rig(options) as bench:
        with bench.loaded_job() as job:
            server = psutil.Process(bench.server.pid)
            before = sum(server.cpu_times()[:2])
            with Watch(job.pid) as watch:
                found = _verify(bench, job)
                usage = watch.usage()
            server_s = sum(server.cpu_times()[:2]) - before
        rows = bench.prove()
    if (found["state"], found["rows"]) != ("equal", rows):
        raise SystemExit(f"The table has {rows} rows; the verification found {found}.")
    report(
        "verify.rows_per_s", rows / found["seconds"], "rows/s", goal=">= 500,000, target 1,000,000", usage=usage,
        checked=bench.checked, data={"rows": rows, "work": "10 columns"}, rows=rows, seconds=round(found["seconds"], 2),
        server_cpu_s_per_million=round(server_s / rows * 1e6, 2),
    )  # fmt: skip


def _verify(bench: Rig, job: JobProcess) -> dict[str, Any]:
    """Verify the table, and return the result as the status shows it."""
    token_file = bench.folder / "state" / "jobs" / "bench" / "token"
    status = job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 300)
    assert status["verify"]["last"] is None
    answer = requests.post(
        f"{job.url}/verify", data=json.dumps({"token": TOKEN, "tables": [f"{DATABASE}.orders"]}), timeout=10,
        headers={"Authorization": f"Bearer {token_file.read_text().strip()}"},
    )  # fmt: skip
    answer.raise_for_status()
    done = job.wait_for("verified", lambda status: status["verify"]["last"] is not None, 1800)
    return dict(done["verify"]["last"])


CASES = (Case("verify.rows_per_s", rows_per_s, Options(5_000_000), 1_000_000, runs=1),)
