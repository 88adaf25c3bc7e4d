"""A job from MySQL into Doris that is killed at random moments, with Doris' own faults, loses and doubles nothing."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from cdc.demo import proof, shop
from cdc.demo.process import JobProcess
from cdc.demo.run import JOB
from cdc.local_servers import LocalServer, free_port, obtain
from tests.recovery.kills import shopper
from tests.servers.doris.cases import stand_in
from tests.servers.doris.stand_in import DorisStandIn
from tests.servers.olap_cases import USER
from tests.servers.olap_faults import Fault

SINK = """\
  type: doris
  fe: ["{fe}"]
  sql_port: {sql_port}
  username: {user}
  password: "{password}"
  two_phase_commit: {two_phase}
"""


def job_text(doris: DorisStandIn, two_phase: bool, **places: object) -> str:
    sink = SINK.format(
        fe=doris.fe[0], sql_port=doris.sql_port, user=USER[0], password=USER[1], two_phase=str(two_phase).lower()
    )
    head, _, tail = JOB.format(**places).partition("  type: delta\n")
    return head + sink + tail.partition("./warehouse\n")[2]


def is_behind(status: dict[str, Any], end: tuple[str, int]) -> bool:
    position = status["position"]
    return bool(position) and (position["file"], position["offset"]) >= end and status["lag_seconds"] == 0


def wait_for_loads(doris: DorisStandIn, begun: int) -> None:
    """Until the job loads: a driver that is killed while Spark starts proves nothing."""
    deadline = time.monotonic() + 240
    while len(doris.transactions.history) == begun:
        assert time.monotonic() < deadline, "the job loads nothing"
        time.sleep(0.05)


def compare(server: LocalServer, doris: DorisStandIn) -> int:
    rows = 0
    for name, key in shop.KEYS.items():
        found = doris.storage.arrow(f"SELECT * FROM ods.{name}")
        expected = proof.read_mysql(server, f"{shop.DATABASE}.{name}", found.schema)
        order = [(column, "ascending") for column in key]
        assert found.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist(), name
        rows += found.num_rows
    return rows


@pytest.mark.stress  # twenty minutes on two cores: make stress
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("two_phase", [True, False], ids=["two_phase", "plain"])
def test_kills_and_faults_together_leave_source_and_target_equal(tmp_path: Path, two_phase: bool) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    options = ("--binlog-row-metadata=FULL",)
    with (
        LocalServer.start(obtain("mysql"), tmp_path / "mysql", options=options) as server,
        stand_in(backends=2) as doris,
    ):
        server.create_user("cdc", "demo")
        with server.connect() as connection, connection.cursor() as cursor:
            shop.create(connection)
            cursor.execute("SHOW BINARY LOG STATUS")
            file, offset = cursor.fetchone()[:2]
        shopper(server, seed, 0).fill(customers=300, orders=500)
        port = free_port()
        job_file = tmp_path / "job.yaml"
        job_file.write_text(job_text(doris, two_phase, port=server.port, file=file, offset=offset, status=port))
        for place, fault in (("load", Fault.DROP_ANSWER), ("load", Fault.ERROR_DONE), ("commit", Fault.DROP_ANSWER)):
            doris.faults.order(place, fault, times=10**6, chance=0.05)
        with JobProcess(job_file, home=tmp_path / "state", port=port) as job:
            writer = shopper(server, seed, 1)
            writer.start()
            for _ in range(3):
                begun = len(doris.transactions.history)
                job.start()
                wait_for_loads(doris, begun)
                time.sleep(draw.uniform(0, 2.5))  # within the first cycles: a load, a commit, a save
                job.kill()
            writer.stop()
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SHOW BINARY LOG STATUS")
                end = cursor.fetchone()[:2]
            job.start()
            job.wait_for(f"caught up with {end}", lambda status: is_behind(status, end), 300)
            assert job.stop() in (0, 130, 143)
        assert compare(server, doris) > 1000
        assert len({load["label"].split("-")[3] for load in doris.loads() if load["label"].startswith("cdc-")}) > 3
        visible = [load["label"] for load in doris.loads() if load["status"] == "VISIBLE"]
        assert len(visible) == len(set(visible)), "a label was committed twice"
