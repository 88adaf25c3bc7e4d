"""A host for tests of the REST API and its page: a store with jobs, a driver process without Spark, and a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from cdc.api.client import Driver
from cdc.config.serve_models import Listen
from cdc.manager.rest import Tokens, build_app
from cdc.manager.rest.history import Sampler
from cdc.manager.server import ManagerServer
from cdc.state.base import JobRecord, JobState, ResumeKind
from cdc.state.identity import ChannelIdentity, JobIdentity, SinkIdentity, SourceIdentity
from cdc.state.sql import SqlStore
from tests.support.job_files import JOB

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0  # finds hangs
SPEC = """\
name: crm
source: {type: binlog, host: 127.0.0.1, username: cdc, password: "${CDC_TEST_PASSWORD}", start: latest}
sink: {type: delta, path: /warehouse}
channels:
  - {source: crm.people, target: ods.people}
"""
IDENTITY = JobIdentity(
    SourceIdentity("binlog", "127.0.0.1:3306"),
    SinkIdentity("delta", "/warehouse", "./warehouse"),
    {"shop.orders": ChannelIdentity("ods.orders")},
)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until ``condition`` is true."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_S:.0f} s: {what}"
        time.sleep(0.05)


def add_job(
    store: SqlStore,
    name: str,
    state: JobState = JobState.PENDING,
    reason: str | None = None,
    hint: str | None = None,
    resume: ResumeKind | None = None,
) -> JobRecord:
    """Save a job without a driver."""
    record = replace(
        store.acquire(name, f"/jobs/{name}.yaml"),
        state=state, reason=reason, hint=hint, resume=resume, identity=IDENTITY, started_at="2026-01-01T00:00:00Z",
    )  # fmt: skip
    try:
        store.save_job(record)
    finally:
        store.release()
    return record


@contextmanager
def fake_driver(store: SqlStore, folder: Path, home: Path) -> Iterator[JobRecord]:
    """Run a driver process of the job ``shop``; it changes only its state."""
    file = folder / "shop.yaml"
    file.write_text(JOB.replace("./warehouse", str(folder / "warehouse")))
    environment = {**os.environ, "CDC_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.integration.cdc_fake_driver", "start", str(file), "--foreground"]
    with (folder / "driver.out").open("wb") as out:
        driver = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)

    def is_running() -> bool:
        assert driver.poll() is None, (folder / "driver.out").read_text()
        record = store.job("shop")
        return record is not None and record.state is JobState.RUNNING and Driver(record).status() is not None

    try:
        wait_for(is_running, "the driver runs")
        record = store.job("shop")
        assert record is not None
        yield record
    finally:
        driver.terminate()
        driver.wait(LIMIT_S)


@contextmanager
def served(
    store: SqlStore, tokens: Tokens, ready: Callable[[], bool] = lambda: True, *, port: int = 0
) -> Iterator[str]:
    """Serve the application over HTTP on loopback, and yield its address. ``port``: 0 is a free one."""
    server = ManagerServer(build_app(store, tokens, Sampler(store), ready=ready), Listen(port=port))
    try:
        yield server.start()
    finally:
        server.close()
