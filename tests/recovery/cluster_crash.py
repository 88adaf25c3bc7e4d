"""SIGKILL at random moments of a job from MySQL into Doris or StarRocks, while the cluster injects faults.

After every tenth kill the writer stops, the job catches up, and every row of every table is compared. The cluster is an
emulator in this process, so it survives the kills of the job.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from cdc.demo import proof, shop
from cdc.demo.local_servers import LocalServer, free_port, obtain
from cdc.demo.process import JobProcess, is_caught_up
from cdc.demo.run import JOB, PASSWORD
from tests.emulators.cases import USER
from tests.emulators.faults import Fault, Faults
from tests.recovery.crash import COMPARE_EVERY, shopper

SINK = """\
  fe: ["{fe}"]
  sql_port: {sql_port}
  username: {user}
  password: "{password}"
"""
FAULTS = (("load", Fault.DROP_ANSWER), ("load", Fault.ERROR_DONE), ("commit", Fault.DROP_ANSWER))


def run(folder: Path, cluster: Any, sink: str, *, kills: int, seed: int, longest_s: float = 2.5) -> int:
    """Kill ``kills`` times. Return the number of rows compared. ``sink``: its type and special keys, as YAML.

    Raises: AssertionError - source and target differ.
    """
    draw = random.Random(seed)
    options = ("--binlog-row-metadata=FULL", "--max-binlog-size=4M")
    with LocalServer.start(obtain("mysql"), folder / "mysql", options=options) as server:
        server.create_user("cdc", PASSWORD)
        with server.connect() as connection:
            shop.create(connection)
        file, offset = position(server)
        shopper(server, seed, 0).fill(customers=300, orders=500)
        port = free_port()
        (folder / "job.yaml").write_text(
            job_text(cluster, sink, port=server.port, password=PASSWORD, file=file, offset=offset, status=port)
        )
        cluster.faults = Faults(seed)
        for address, fault in FAULTS:
            cluster.faults.order(address, fault, times=10**6, chance=0.03)
        with JobProcess(folder / "job.yaml", home=folder / "state", port=port) as job:
            for first in range(0, kills, COMPARE_EVERY):
                writer = shopper(server, seed * 1000 + first, 1)
                writer.start()
                for _ in range(min(COMPARE_EVERY, kills - first)):
                    begun = len(cluster.loads())
                    job.start()
                    wait_for_loads(cluster, begun)
                    time.sleep(draw.uniform(0, longest_s))  # within the first cycles: a load, a commit, a save
                    job.kill()
                writer.stop()
                end = position(server)
                job.start()
                job.wait_for(f"caught up with {end}", lambda status, end=end: is_caught_up(status, end), 600)
                verified = job.verify("demo")
                assert verified["equal"], f"seed {seed}, kill {first}: {verified}"
                assert job.stop() in (0, 130, 143)
                rows = compare(server, cluster)
                print(f"kill {min(first + COMPARE_EVERY, kills)}: {rows} rows agree", flush=True)
    return rows


def job_text(cluster: Any, sink: str, **parameters: object) -> str:
    """Return the job file of the demonstration with another sink."""
    address = SINK.format(fe=cluster.fe[0], sql_port=cluster.sql_port, user=USER[0], password=USER[1])
    head, _, tail = JOB.format(**parameters).partition("  type: delta\n")
    return head + sink + address + tail.partition("./warehouse\n")[2]


def position(server: LocalServer) -> tuple[str, int]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        row: Any = cursor.fetchone()
        return str(row[0]), int(row[1])


def wait_for_loads(cluster: Any, begun: int) -> None:
    """Wait until the job loads. A kill while Spark starts tests nothing."""
    deadline = time.monotonic() + 300
    while len(cluster.loads()) == begun:
        assert time.monotonic() < deadline, "the job loads nothing"
        time.sleep(0.05)


def compare(server: LocalServer, cluster: Any) -> int:
    rows = 0
    for name, key in shop.KEYS.items():
        found = cluster.storage.arrow(f"SELECT * FROM ods.{name}")
        expected = proof.read_mysql(server, f"{shop.DATABASE}.{name}", found.schema)
        order = [(column, "ascending") for column in key]
        assert found.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist(), name
        rows += found.num_rows
    assert rows > 1000, "fewer than 1000 rows were compared"
    return rows
