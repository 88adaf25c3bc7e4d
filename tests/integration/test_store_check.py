"""``cdc check`` for the state store: whether it answers, its format, its clock and the privileges of its user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cdc.checks import state_store
from cdc.checks.state_store import check_store
from cdc.demo.local_servers import free_port
from cdc.state.opening import open_store
from cdc.state.tables import FORMAT
from tests.support.store_servers import USER, create_database

ROOT = Path(__file__).parents[2]
JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, start: latest}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels: [{{source: "{database}.orders", target: ods.orders}}]
"""


@pytest.fixture(params=["mysql", "postgres"])
def environment(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    yield create_database(request.getfixturevalue(request.param), "checked")


def check(environment: dict[str, str], folder: Path) -> state_store.StoreCheck:
    with closing(open_store(environment=environment, folder=folder, bridge_s=0)) as store:
        return check_store(store)


def test_check_of_a_store_without_problems_has_format_and_clock(environment: dict[str, str], tmp_path: Path) -> None:
    found = check(environment, tmp_path)
    assert found.format == FORMAT and found.location == environment["CDC_STORE"]
    assert found.clock_ahead_s is not None and abs(found.clock_ahead_s) < 2
    assert not any(finding.fatal for finding in found.findings)
    # the test servers do not sync, to be fast
    assert [one.problem.split()[:5] for one in found.findings] == [["The", "state", "store", "may", "lose"]]


def test_check_of_a_clock_that_is_an_hour_ahead_warns(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = state_store.time.time
    for shift_s, where in ((3600, "3600.0 s ahead of"), (-60, "60.0 s behind")):
        monkeypatch.setattr(state_store.time, "time", lambda shift_s=shift_s: real() + shift_s)
        (finding,) = [one for one in check(environment, tmp_path).findings if "clock" in one.problem]
        assert where in finding.problem and not finding.fatal and "time server" in finding.hint


def test_check_names_missing_privileges(mysql, tmp_path: Path) -> None:
    environment = create_database(mysql, "checked")
    check(environment, tmp_path)
    for host in ("127.0.0.1", "localhost"):
        mysql.execute(f"REVOKE ALL ON checked.* FROM '{USER}'@'{host}'")
        mysql.execute(f"GRANT SELECT, INSERT ON checked.* TO '{USER}'@'{host}'")
        mysql.execute(f"GRANT UPDATE ON checked.cdc_jobs TO '{USER}'@'{host}'")
    updates, deletes = [one for one in check(environment, tmp_path).findings if one.fatal]
    assert "may not UPDATE in cdc_schemas, " in updates.problem and "cdc_jobs" not in updates.problem
    assert deletes.problem == "The user of the state store may not DELETE in the tables."
    assert "SELECT, INSERT, UPDATE, DELETE" in deletes.hint


def test_cdc_check_reports_an_unusable_store_and_checks_the_rest(mysql, database: str, tmp_path: Path) -> None:
    mysql.execute(f"CREATE TABLE `{database}`.orders (id INT)")
    (tmp_path / "job.yaml").write_text(JOB.format(port=mysql.port, database=database))
    environment = create_database(mysql, "checked")

    def findings(store: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "cdc.cli.main", "check", "job.yaml", "--output", "json"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, **environment, "CDC_STORE": store, "CDC_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 3, done.stdout + done.stderr
        body = json.loads(done.stdout)
        assert not body["can_start"] and all(one["hint"] for one in body["findings"])
        return [one["problem"] for one in body["findings"] if one["fatal"]]

    away, keyless = findings(f"mysql://{USER}@127.0.0.1:{free_port()}/checked")
    assert away.startswith("The state store cannot be reached.") and "no primary key" in keyless
    check(environment, tmp_path)
    mysql.execute("UPDATE checked.cdc_meta SET format = 99")
    other, keyless = findings(environment["CDC_STORE"])
    assert f"has format 99, but this version of cdc supports only {FORMAT}" in other
