"""Jobs that follow statements on whole tables from a real Canal server: gh-ost, pt-osc, RENAME, DROP, CREATE, TRUNCATE."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess
from tests.emulators.canal import DESTINATION, PASSWORD, USER, CanalServer
from tests.integration.test_canal_schema_changes import JOB
from tests.integration.test_schema_changes import _compare
from tests.integration.test_table_statements import _create, _has_read, _is_done, _reloaded, writers
from tests.support.canal_sources import canal_server, drain
from tests.support.limits import HANG_S
from tests.support.online_changes import gh_ost, pt_osc_begin, pt_osc_end
from tests.support.receiving import endpoint

pytestmark = pytest.mark.canal


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.stress)])
def server(request: pytest.FixtureRequest) -> LocalServer:
    found: LocalServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def database(server: LocalServer, request: pytest.FixtureRequest) -> str:
    kind = server.binaries.kind
    name: str = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    return name


@pytest.fixture
def canal(server: LocalServer, tmp_path: Path) -> Iterator[CanalServer]:
    """A Canal server with TSDB: under writers, it reads rows when the tables have other columns."""
    with canal_server(tmp_path / "canal", server, time_zone="GMT+08:00", tsdb=True) as found:
        yield found


@contextmanager
def started(canal: CanalServer, database: str, folder: Path) -> Iterator[JobProcess]:
    """Start a job whose tables are loaded."""
    server = canal.source
    endpoint(server)  # creates the user for the job
    drain(canal)
    port, file = free_port(), folder / "job.yaml"
    login = {"server": canal.address, "destination": DESTINATION, "user": USER, "password": PASSWORD}
    text = JOB.format(port=server.port, database=database, status=port, **login)
    file.write_text(text.replace(f'"{database}.orders", target: "ods.orders"', f'"{database}.*", target: "ods.*"'))
    with JobProcess(file, home=folder / "state", port=port) as job:
        job.start()
        server.execute(f"INSERT INTO `{database}`.orders (note, a) VALUES ('known', 1)")  # Canal has a position now
        job.wait_for("loaded", _is_done(server), HANG_S)
        yield job
        job.stop()


def _differences(status: dict[str, Any]) -> dict[str, list[str]]:
    found = {one["source"].split(".")[1]: one["differences"] for one in status["channels"]}
    return {name: [one["kind"] for one in differences] for name, differences in found.items()}


def test_canal_job_follows_tools_under_writers_and_statements_on_tables(server, database, canal, tmp_path):
    _create(server, database)
    d = f"`{database}`"
    server.execute(
        f"CREATE TABLE {d}.fresh (id INT NOT NULL PRIMARY KEY, note VARCHAR(40), b INT)",
        f"INSERT INTO {d}.fresh VALUES (1, 'one', 1), (1000, 'thousand', 2)",
    )
    with started(canal, database, tmp_path) as job:
        with writers(server, database) as found:
            gh_ost(
                server,
                database,
                "ADD COLUMN five INT NOT NULL DEFAULT 5, ADD COLUMN text VARCHAR(9) DEFAULT 'x'",
                found,
            )
            gh_ost(server, database, "ADD COLUMN never INT", found, end=False)  # interrupted
            job.wait_for("the first run", _has_read(server), HANG_S)
            assert _reloaded(tmp_path) == [False]
            gh_ost(server, database, "ADD COLUMN blank VARCHAR(3) NOT NULL DEFAULT '', DROP COLUMN text", found)
            pt_osc_begin(server, database, "ADD COLUMN six INT DEFAULT 6")
            job.wait_for("the triggers", _has_read(server), HANG_S)
            assert _reloaded(tmp_path) == [False]
            job.kill()  # the statements of the copy are part of the saved state
            pt_osc_end(server, database)
            pt_osc_begin(server, database, "ADD COLUMN seven DECIMAL(5,2) DEFAULT 7.005, DROP COLUMN six")
            pt_osc_end(server, database, drop_swap=True)
            job.start()
        job.wait_for("the tools", _is_done(server), HANG_S)
        _compare(server, database, tmp_path)
        assert sorted(one.name for one in (tmp_path / "warehouse" / "ods").iterdir()) == ["fresh", "orders"]

        server.execute(
            f"RENAME TABLE {d}.orders TO {d}.spare, {d}.fresh TO {d}.orders",
            f"INSERT INTO {d}.orders VALUES (2, 'two', 2)",
            f"UPDATE {d}.spare SET a = -1 WHERE id < 10",
            f"DELETE FROM {d}.orders WHERE id = 1",
        )
        status = job.wait_for("the swap", _is_done(server), HANG_S)
        for table in ("orders", "spare"):
            _compare(server, database, tmp_path, table)
        assert _differences(status) == {"fresh": ["rename.table"], "orders": [], "spare": []}
        assert proof.read_delta(tmp_path / "warehouse" / "ods" / "fresh").num_rows == 2, "no row is lost"

        server.execute(
            f"RENAME TABLE {d}.orders TO {d}._tmp_, {d}.spare TO {d}.orders, {d}._tmp_ TO {d}.spare",
            f"INSERT INTO {d}.spare VALUES (3, 'three', 3)",
        )
        job.kill()  # and while the job is away: tables are emptied, restored from a dump, and dropped
        server.execute(
            f"TRUNCATE TABLE {d}.spare",
            f"INSERT INTO {d}.spare VALUES (4, 'four', 4)",
            f"DROP TABLE IF EXISTS {d}.orders",
            f"CREATE TABLE {d}.orders (id INT NOT NULL PRIMARY KEY, note VARCHAR(20) NOT NULL, c INT) CHARSET=utf8mb4",
            f"INSERT INTO {d}.orders VALUES (7, 'seven', 7), (5000, 'new', 8)",
        )
        job.start()
        job.wait_for("all statements", _is_done(server), HANG_S)
        for table in ("orders", "spare"):
            _compare(server, database, tmp_path, table)
        server.execute(f"DROP TABLE {d}.spare", f"INSERT INTO {d}.orders VALUES (8, 'eight', 8)")
        status = job.wait_for("the drop", _is_done(server), HANG_S)
        assert _differences(status) == {"fresh": ["rename.table"], "orders": [], "spare": ["drop.table"]}
        assert proof.read_delta(tmp_path / "warehouse" / "ods" / "spare").num_rows == 1, "no row is lost"
