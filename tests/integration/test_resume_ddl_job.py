"""A Job that reads a real server: which DDL statements a resume passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.api.models import PauseJob, Resume
from cdc.config.models import load_config
from cdc.job.job import Job
from cdc.job.wiring import Components, _source
from cdc.model.schema_change import ChangeMode, ChangePolicy
from cdc.state.sqlite import SqliteStore
from channels.mapping import Mapping
from channels.routes import Routes
from channels.sinks.delta.sink import DeltaSink
from tests.model.runner import ThreadRunner
from tests.recovery.test_job import Running
from tests.support.receiving import endpoint, until

DATABASE = "resume_ddl"
FILE = """
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, password: "", start: latest}}
sink: {{type: delta, path: ./warehouse}}
channels:
  - {{source: {database}.orders, target: ods.orders}}
commit: {{interval: 20ms, min_rows: 1, min_bytes: 1B, max_bytes: 200B}}
"""


@pytest.fixture
def job(mysql: Any, tmp_path: Path) -> Iterator[Running]:
    mysql.execute(
        f"DROP DATABASE IF EXISTS {DATABASE}",
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.orders (id INT PRIMARY KEY, n INT, note INT)",
    )
    file = tmp_path / "shop.yaml"
    file.write_text(FILE.format(port=endpoint(mysql).port, database=DATABASE))

    def build(config: Any) -> Components:
        mapping = Mapping(f"{DATABASE}.orders", "ods.orders", changes=ChangePolicy(ChangeMode.PAUSE))
        routes, sink = Routes([mapping]), DeltaSink(tmp_path / "warehouse")
        return Components(routes, sink, ThreadRunner(sink, every_row=False), *_source(config, routes))

    store = SqliteStore(tmp_path / "home")
    running = Running(Job(file, store, load=load_config, build=build), store)
    yield running
    running.stop()
    mysql.execute(f"DROP DATABASE {DATABASE}")


@pytest.mark.parametrize("resume", [Resume(), Resume(past_ddl=True)], ids=["plain", "past-ddl"])
def test_resume_after_a_pause_by_hand_passes_no_statement(mysql: Any, job: Running, resume: Resume) -> None:
    job.until("RUNNING")
    mysql.execute(f"INSERT INTO {DATABASE}.orders VALUES (1, 1, 1)")
    until(lambda: sum(channel.upserts for channel in job.job.status().channels) == 1)
    job.job.request(PauseJob())
    job.until("PAUSED", resume="manual")
    mysql.execute(f"ALTER TABLE {DATABASE}.orders DROP COLUMN note", f"TRUNCATE TABLE {DATABASE}.orders")

    job.job.request(resume)
    stopped = job.until("PAUSED", resume="manual", resumes=1)
    assert "DROP COLUMN note" in stopped.reason
    job.job.request(resume)  # passes this statement, and not the one that directly follows
    assert "TRUNCATE" in job.until("PAUSED", resume="manual", resumes=2).reason
