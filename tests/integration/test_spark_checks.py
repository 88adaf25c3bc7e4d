"""``cdc check`` and ``cdc start`` find missing requirements of Spark early; the status reports its start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.checks.job import _spark_findings
from cdc.config.models import load_config
from cdc.job.job import Job
from cdc.model.change_record import ChangeSummary
from cdc.state.base import JobRecord, JobState
from cdc.state.write_times import WriteTimes
from channels.sinks.memory import MemorySink
from channels.spark_runner import SparkTaskRunner
from spark.session import SessionHolder

_NO_PACKAGES = "import spark.java; spark.java._CONNECT_MODULES = ('grpc_of_no_environment',); "


def job_file(folder: Path, spark: str) -> Path:
    (folder / "b.000001").write_bytes(b"\xfebin")
    file = folder / "job.yaml"
    file.write_text(
        f"name: needs\nsource: {{type: binlog_files, path: '{folder}/b.0*'}}\n"
        f"sink: {{type: delta, path: {folder}/lake}}\nchannels: [{{source: a.b, target: a.b}}]\nspark: {spark}\n"
    )
    return file


@pytest.mark.parametrize(
    ("spark", "before", "hint"),
    [
        ("{}", "import os; os.environ['JAVA_HOME'] = '/nonexistent'; ", "apt-get install openjdk-17-jre-headless"),
        ("{remote: 'sc://127.0.0.1:1'}", _NO_PACKAGES, "pip install 'spark-binlog-load[connect]'"),
    ],
)
def test_check_and_start_report_missing_spark_requirements(tmp_path: Path, spark: str, before: str, hint: str) -> None:
    file = job_file(tmp_path, spark)
    for verb in (["check"], ["start"], ["start", "--foreground"]):
        done = subprocess.run(
            [sys.executable, "-c", f"{before}from cdc.cli.main import main; main()", *verb, str(file)],
            env={**os.environ, "CDC_HOME": str(tmp_path / "home")},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        assert hint in " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("spark", "warns"),
    [
        ("{}", False),
        ("{master: 'local[2]', conf: {spark.authenticate: false}}", True),
        ("{master: 'spark://elsewhere:7077'}", True),
        ("{master: 'spark://e:7077', conf: {spark.authenticate: true, spark.authenticate.secret: a-secret}}", False),
    ],
)
def test_check_spark_without_authentication_is_a_warning(tmp_path: Path, spark: str, warns: bool) -> None:
    found = _spark_findings(load_config(job_file(tmp_path, spark)))
    assert [finding.fatal for finding in found] == [False] * warns
    assert all("spark.authenticate.secret" in finding.hint for finding in found)


class Starting(SessionHolder):
    """A holder whose session has been starting for 12 s."""

    starting_s = cast(Any, 12.0)


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING])
def test_status_reports_that_spark_is_starting(tmp_path: Path, state: JobState) -> None:
    runner = SparkTaskRunner(Starting("starting"), MemorySink())
    store = SimpleNamespace(
        write_times=WriteTimes(),
        job=lambda _: None,
        last_committed=lambda _: None,
        requests=lambda _: (),
        change_summary=lambda _: ChangeSummary(),
        verifications=lambda *_: (),
    )
    job = Job(job_file(tmp_path, "{}"), cast(Any, store), load=load_config, build=cast(Any, None))
    job._runner._components = cast(Any, SimpleNamespace(runner=runner, sink=None, routes=SimpleNamespace(left_out={})))
    job._saved.now = JobRecord("needs", "0badcafe", 1, state, "job.yaml")
    assert job.status().reason == "Spark has been starting for 12 s."
    runner.close()
