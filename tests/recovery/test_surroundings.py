"""A real job, from MySQL through Spark into Delta, whose surroundings fail one after the other.

Each test makes something fail while rows are written, looks at what the job says of it, mends it, and compares every row.
"""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from cdc.demo import proof
from cdc.demo.process import CDC, JobProcess
from cdc.local_servers import LocalServer, free_port, obtain
from tests.conftest import unavailable
from tests.mounting import mounted
from tests.receiving import Line, until

JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: secret, start: latest{more}}}
sink: {{type: delta, path: {warehouse}}}
channels: [{{source: shop.*, target: ods.*}}]
commit: {{interval: 500ms}}
status: {{port: {status}}}
"""


TABLES = ("orders", "items")


class Shop:
    """A source that can be written to, and a job on it."""

    def __init__(self, folder: Path, server: LocalServer, line: Line) -> None:
        self.folder, self.server, self.line = folder, server, line
        self.home, self.disk = folder / "home", folder / "disk"
        self.warehouse = self.disk / "warehouse"  # below a mount point, so that it can be moved
        self.rows = 0
        self.job = self.another("home")

    def another(self, home: str, more: str = "") -> JobProcess:
        """A job of the same name on the same sink, with a home of its own."""
        port = free_port()
        file = self.folder / f"{home}.yaml"
        file.write_text(JOB.format(port=self.line.port, status=port, warehouse=self.warehouse, more=more))
        return JobProcess(file, home=self.folder / home, port=port)

    def write(self, count: int = 20, size: int = 50) -> None:
        """Inserts, an update, a delete and a changed key, over two tables in one transaction."""
        first, self.rows = self.rows, self.rows + count
        values = ", ".join(f"({key}, REPEAT('{key % 10}', {size}))" for key in range(first, self.rows))
        self.server.execute(
            "BEGIN",
            f"INSERT INTO shop.orders VALUES {values}",
            f"INSERT INTO shop.items VALUES {values}",
            f"UPDATE shop.orders SET note = 'changed' WHERE id = {first}",
            f"DELETE FROM shop.items WHERE id = {first + 1}",
            f"UPDATE shop.items SET id = -{first + 2} WHERE id = {first + 2}",
            "COMMIT",
        )

    def says(self, state: str, *words: str, resume: str | None = None, timeout_s: float = 90) -> dict[str, Any]:
        """Wait until the status has ``state`` and every one of ``words`` in its reason or mend."""

        def fits(status: dict[str, Any]) -> bool:
            told = f"{status['reason']} {status['mend']}"
            return status["state"] == state and status["resume"] == resume and all(word in told for word in words)

        return self.job.wait_for(f"{state}: {', '.join(words)}", fits, timeout_s)

    def agrees(self) -> None:
        """Source equals target, row for row, once the job has caught up."""
        self.write()
        connection = self.server.connect()
        with connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOG STATUS")
            end = cursor.fetchone()[:2]
        self.job.wait_for(
            f"caught up with {end}",
            lambda one: one["state"] == "RUNNING" and (one["position"]["file"], one["position"]["offset"]) >= end,
            150,
        )
        for table in TABLES:
            assert not (found := self.differences(table)), found

    def loads_again(self) -> None:
        """``cdc snapshot`` of every table, and source equals target thereafter."""
        for table in TABLES:
            self.cdc("snapshot", f"shop.{table}")
        until(lambda: not any(self.differences(table) for table in TABLES), 120, "tables that agree again")
        self.agrees()

    def differences(self, table: str) -> tuple[str, ...]:
        found = proof.compare(self.server, f"shop.{table}", self.warehouse / "ods" / table, ("id",))
        assert found.rows > 0
        return tuple(found.differences)

    def cdc(self, verb: str, *words: str, code: int = 0) -> None:
        """What a person types about the job, and the exit code that it has."""
        done = subprocess.run(
            [*CDC, verb, "shop", *words], env=self.job.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == code, done.stderr

    def position(self) -> tuple[str, int]:
        status = self.job.status()
        assert status is not None
        return status["position"]["file"], status["position"]["offset"]


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """What this user may not write, root neither."""
    with mounted("--bind", str(folder), at=folder):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """A file system without a free byte. Skips the test where ``folder`` has none of its own."""
    if not folder.is_mount():
        unavailable("this user may not mount the small disk that is to be full")
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while file.write(b"\0" * size) == size:
                    pass
    try:
        yield
    finally:
        filler.unlink()


def create_tables(server: LocalServer) -> None:
    server.create_user("cdc", "secret")
    server.execute("CREATE DATABASE shop")
    for table in TABLES:
        server.execute(f"CREATE TABLE shop.{table} (id INT PRIMARY KEY, note VARCHAR(2000) NOT NULL)")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    home, disk = folder / "home", folder / "disk"
    home.mkdir()
    disk.mkdir()
    with (
        mounted("-t", "tmpfs", "-o", "size=8m", "tmpfs", at=home, required=False),
        mounted("-t", "tmpfs", "-o", "size=64m", "tmpfs", at=disk, required=False),
        LocalServer.start(obtain("mysql"), folder / "mysql", options=("--binlog-row-metadata=FULL",)) as server,
        Line(server.port) as line,
    ):
        create_tables(server)
        shop = Shop(folder, server, line)
        with shop.job:
            shop.job.start()
            shop.job.wait_for(
                "running, with its decoder compiled",
                lambda status: status["state"] == "RUNNING" and status["reason"] is None,
                400,
            )
            yield shop


def test_a_second_home_on_the_same_empty_sink_is_refused_and_the_first_one_goes_on(shop: Shop) -> None:
    with shop.another("other") as second:
        second.start()
        assert second.wait(120) == 3, "the server id, which is made of the job's name, is taken"
        assert "is taken by another reader: cdc-shop-" in second.log.read_text()
    with shop.another("third", ", server_id: 4711") as second:
        second.start()
        refused = second.wait_for("refused", lambda status: status["state"] == "PAUSED", 300)
        assert refused["resume"] == "manual"
        assert "Another process writes job shop into this sink" in refused["reason"]
        assert str(shop.job.pid) in refused["reason"] and str(shop.home) in refused["reason"]
        assert "cdc stop shop" in refused["mend"]
        shop.agrees()


def test_lines_that_are_cut_and_bits_that_turn(shop: Shop) -> None:
    shop.line.cut_after(700_000)
    shop.line.flip_after(1_500_000)
    shop.line.cut_all()  # so that bytes are counted from here
    for _ in range(4):
        shop.write(1000, size=900)
    shop.agrees()
    assert (shop.line.cuts, shop.line.flips) == (1, 1)


def test_a_slow_line(shop: Shop) -> None:
    shop.line.bytes_per_s, shop.line.delay_s = 400_000, 0.05
    began = time.monotonic()
    try:
        shop.write(1000, size=900)
        shop.write()
        status = shop.job.status()
        assert status is not None and status["state"] == "RUNNING"
        shop.agrees()
    finally:
        shop.line.bytes_per_s, shop.line.delay_s = math.inf, 0.0
    assert time.monotonic() - began > 4, "1.8 MB came too fast"


def test_mysql_restarts(shop: Shop) -> None:
    shop.write()
    shop.server.kill()
    deadline = time.monotonic() + 240
    while "connecting again" not in shop.job.log.read_text().rpartition("committed")[2]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    shop.server.restart()
    shop.agrees()


def test_a_full_disk_at_the_tables(shop: Shop) -> None:
    before = shop.position()
    with full(shop.disk):
        shop.write(200, size=900)
        shop.says("PAUSED", "The disk of the Delta tables is full", "Free space", resume="automatic")
        assert shop.position() == before
    shop.agrees()


@pytest.mark.parametrize("folder", ["_cdc_staging", "ods/orders"])
def test_a_folder_that_cannot_be_written(shop: Shop, folder: str) -> None:
    before = shop.position()
    with read_only(shop.warehouse / folder):
        shop.write()
        shop.says("PAUSED", "cannot be written", "write permission", resume="automatic")
        assert shop.position() == before
    shop.agrees()


def test_a_full_disk_at_the_state_file(shop: Shop) -> None:
    with full(shop.home):
        shop.write()
        shop.says("PAUSED", "The disk of the state file is full", resume="automatic")
    shop.agrees()


def test_a_state_file_that_another_process_locks(shop: Shop) -> None:
    other = sqlite3.connect(shop.home / "state.db", isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        shop.write()
        shop.says("PAUSED", "The state file stays locked", "fuser", resume="automatic")
    finally:
        other.close()
    shop.agrees()


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:4])
    except psutil.Error:
        return ""


@pytest.mark.parametrize("what", ["java", "spark.daemon"])
def test_the_jvm_or_its_python_workers_die(shop: Shop, what: str) -> None:
    pid = shop.job.pid
    found = [child for child in psutil.Process(pid).children(recursive=True) if what in _command(child)]
    assert found
    shop.write()
    for child in found:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    shop.agrees()
    assert shop.job.pid == pid, "the driver itself lives on"


def test_a_kill_while_the_disk_is_full(shop: Shop) -> None:
    with full(shop.disk):
        shop.write(200, size=900)
        shop.says("PAUSED", "is full", resume="automatic")
        shop.job.kill()
    shop.job.start()
    shop.agrees()


def _largest_lag(shop: Shop) -> float:
    """Seconds, told while rows are written that are not visible yet."""
    told = []
    for _ in range(20):
        shop.write()
        status = shop.job.status()
        assert status is not None
        told.append(status["lag_seconds"] or 0.0)
        time.sleep(0.1)
    return max(told)


def test_the_clock_steps_back_and_ahead(shop: Shop) -> None:
    """Of driver, JVM and workers; the server's stays right. Neither order nor positions may hang on it."""
    library, clock = shop.folder / "clock.so", shop.folder / "clock"
    compiler = shutil.which("cc") or unavailable("there is no C compiler")
    source = Path(__file__).with_name("clock.c")
    subprocess.run([str(compiler), "-shared", "-fPIC", "-O2", "-Wall", "-o", library, source], check=True)
    clock.write_bytes(struct.pack("q", 0))
    before = shop.job.environment
    shop.job.stop()
    shop.job.environment = {**before, "LD_PRELOAD": str(library), "CDC_TEST_CLOCK": str(clock)}
    shop.job.start()
    shop.agrees()
    for days in (-2, 3, -1, 0):
        with clock.open("r+b") as file:
            file.write(struct.pack("q", days * 86400))
        lag_s = _largest_lag(shop)
        assert abs(lag_s - max(0, days) * 86400) < 300, "told by the clock at hand, and never below zero"
        shop.agrees()
        status = shop.job.status()
        assert status is not None
        ahead = datetime.fromisoformat(status["checkpoint"]["committed_at"]) - datetime.now(UTC)
        assert abs(ahead - timedelta(days=days)) < timedelta(hours=1), "the clock was not stepped"
    shop.job.kill()
    shop.job.environment = before
    shop.job.start()
    shop.agrees()


def test_an_old_copy_of_the_state_put_back(shop: Shop) -> None:
    old = shop.folder / "copy.db"
    with sqlite3.connect(shop.home / "state.db") as live, sqlite3.connect(old) as copy:
        live.backup(copy)
    shop.write()
    shop.agrees()
    for name in ("state.db-wal", "state.db-shm"):
        (shop.home / name).unlink(missing_ok=True)
    shutil.copy(old, shop.home / "new.db")
    os.replace(shop.home / "new.db", shop.home / "state.db")
    shop.write()
    assert shop.job.wait(60) == 1
    assert "The state file was taken away or replaced under the running job" in shop.job.log.read_text()
    shop.job.start()
    assert shop.job.wait(120) == 1
    assert "ahead of the state" in shop.job.log.read_text() and "--adopt" in shop.job.log.read_text()
    shop.job.start("--adopt")
    shop.agrees()


def test_state_rolled_back_by_backup_under_live_job_ends_it(shop: Shop) -> None:
    """SQLite's backup writes into the file that is open, so its inode stays."""
    shop.agrees()
    old = shop.folder / "rolled_back.db"
    with sqlite3.connect(shop.home / "state.db") as live, sqlite3.connect(old) as copy:
        live.backup(copy)
    shop.write()
    shop.agrees()
    with sqlite3.connect(old) as copy, sqlite3.connect(shop.home / "state.db") as live:
        copy.backup(live)
    shop.write()
    assert shop.job.wait(60) == 1
    assert "The state file was replaced by an older copy under the running job" in shop.job.log.read_text()
    shop.job.start()
    assert shop.job.wait(120) == 1
    assert "ahead of the state" in shop.job.log.read_text()
    shop.job.start("--adopt")
    shop.agrees()


def _agree_again(shop: Shop) -> bool:
    try:
        return not any(shop.differences(table) for table in TABLES)
    except Exception as error:  # a table that is being repaired names files that do not exist
        assert "not found" in str(error)
        return False


def _refused_until_reloaded(shop: Shop, *words: str) -> None:
    before = shop.position()
    for _ in range(2):
        shop.cdc("resume", code=1)
        shop.says("PAUSED", "does not hold what the job has committed", *words, "--reload-missing", resume="manual")
        assert shop.position() == before
    shop.cdc("resume", "--reload-missing")
    shop.says("RUNNING")
    until(lambda: _agree_again(shop), 120, "tables that agree again")
    shop.agrees()


def test_target_removed_while_paused_pauses_and_is_reloaded(shop: Shop) -> None:
    shop.agrees()
    shop.cdc("pause")
    shop.write()
    shutil.rmtree(shop.warehouse / "ods" / "orders")
    shop.cdc("resume", code=1)
    assert not (shop.warehouse / "ods" / "orders").exists(), "nothing is created before its user has agreed"
    checked = subprocess.run(
        [*CDC, "check", str(shop.folder / "home.yaml")],
        env=shop.job.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert checked.returncode == 3 and "ods.orders is missing" in checked.stdout, checked.stdout + checked.stderr
    _refused_until_reloaded(shop, "ods.orders is missing")


def test_target_replaced_by_older_copy_pauses_and_is_reloaded(shop: Shop) -> None:
    shop.agrees()
    table, copy = shop.warehouse / "ods" / "items", shop.folder / "older"
    shop.cdc("pause")
    shutil.copytree(table, copy)
    shop.cdc("resume")
    shop.write()
    shop.server.execute("DELETE FROM shop.items WHERE id = 3")
    shop.agrees()
    shop.cdc("pause")
    shutil.rmtree(table)
    shutil.move(copy, table)
    _refused_until_reloaded(shop, "ods.items is older than the state")


def test_target_with_missing_data_files_pauses_and_is_reloaded(shop: Shop) -> None:
    shop.agrees()
    shop.cdc("pause")
    for file in (shop.warehouse / "ods" / "items").glob("*.parquet"):
        file.unlink()
    _refused_until_reloaded(shop, "ods.items lacks data files")


def test_root_not_mounted_pauses_and_creates_nothing(shop: Shop) -> None:
    shop.agrees()
    shop.cdc("pause")
    empty = shop.folder / "empty"
    empty.mkdir()
    with mounted("--bind", str(empty), at=shop.warehouse):
        shop.cdc("resume", code=1)
        shop.says("PAUSED", "the root of the sink is missing", "not mounted", resume="manual")
        assert not list(empty.iterdir())
    shop.cdc("resume")
    shop.agrees()


def test_target_moved_away_under_live_job_returns_automatically(shop: Shop) -> None:
    shop.agrees()
    table, away = shop.warehouse / "ods" / "orders", shop.warehouse / "ods" / "away"
    table.rename(away)
    shop.write()
    shop.says("PAUSED", "is gone", "continues automatically", resume="automatic")
    assert not table.exists()
    away.rename(table)
    shop.agrees()


def test_root_moved_away_under_live_job_returns_automatically(shop: Shop) -> None:
    shop.agrees()
    away = shop.disk / "away"
    shop.warehouse.rename(away)
    shop.write()
    status = shop.says("PAUSED", "gone", "continues automatically", resume="automatic")
    assert "xecutor" not in f"{status['reason']} {status['mend']}"
    shop.says("PAUSED", "the root of the sink is missing", "continues automatically", resume="automatic")  # a later try
    assert not shop.warehouse.exists()
    away.rename(shop.warehouse)
    shop.agrees()


def test_root_unmounted_under_live_job_returns_automatically(shop: Shop) -> None:
    shop.agrees()
    empty = shop.folder / "unmounted"
    empty.mkdir()
    with mounted("--bind", str(empty), at=shop.warehouse):
        shop.write()
        shop.says("PAUSED", "not mounted", "continues automatically", resume="automatic")
        assert not list(empty.iterdir())
    shop.agrees()


def test_files_of_a_job_are_closed_to_other_users(shop: Shop) -> None:
    shop.agrees()
    found = [*shop.warehouse.rglob("*"), shop.warehouse, *(path for path in shop.home.rglob("*"))]
    found.remove(shop.job.log)  # this process created it
    open_ones = [str(path) for path in found if not path.is_symlink() and path.stat().st_mode & 0o027]
    assert not open_ones
    kinds = ("*.parquet", "_delta_log/*.json", "_cdc_sink.json", "claim-*.json", "seen-*", "state.db", "token")
    assert [kind for kind in kinds if not any(path.match(kind) for path in found)] == []


def test_a_binlog_that_is_purged_under_a_paused_job(shop: Shop) -> None:
    shop.agrees()
    shop.cdc("pause")
    shop.says("PAUSED", resume="manual")
    before = shop.position()
    shop.write()
    shop.server.execute("DELETE FROM shop.orders WHERE id < 10", "FLUSH BINARY LOGS")
    shop.write()
    connection = shop.server.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        cursor.execute(f"PURGE BINARY LOGS TO '{cursor.fetchone()[0]}'")
    for _ in range(2):  # an agreement is asked for however often a person resumes
        shop.cdc("resume", code=1)
        shop.says("PAUSED", f"{before[0]} is gone from the server", "--accept-gap", resume="manual")
        assert shop.position() == before
    assert shop.differences("orders"), "the gap is none"
    shop.cdc("resume", "--accept-gap")
    shop.says("RUNNING")
    until(lambda: _agree_again(shop), 120, "tables that were loaded again")
    shop.agrees()


def test_a_home_that_cannot_be_written_says_so(shop: Shop) -> None:
    home = shop.folder / "locked"
    home.mkdir()
    with shop.another("locked") as job, read_only(home):
        job.log = shop.folder / "locked.log"
        job.start()
        assert job.wait(120) == 1
    told = job.log.read_text()
    assert "cannot be used" in told or "cannot be written" in told, told
    assert "Give it" in told


def test_another_server_at_the_same_address(shop: Shop) -> None:
    """Near the end: the tables are another server's from then on."""
    with LocalServer.start(
        obtain("mysql"), shop.folder / "another", options=("--binlog-row-metadata=FULL", "--server-id=2")
    ) as another:
        create_tables(another)
        before = shop.position()
        shop.line.lead_to(another.port)
        shop.says("PAUSED", "lacks transactions that this job has read", "--accept-server", resume="manual")
        assert shop.position() == before
        shop.line.lead_to(shop.server.port)
        shop.cdc("resume")
        shop.agrees()

        shop.cdc("pause")
        shop.says("PAUSED", resume="manual")
        shop.line.lead_to(another.port)
        shop.cdc("resume", code=1)
        shop.says("PAUSED", "lacks transactions that this job has read", "--accept-server", resume="manual")
        first, shop.server = shop.server, another
        shop.cdc("resume", "--accept-server")
        shop.says("RUNNING")
        shop.write()
        shop.loads_again()
        shop.server = first


def test_nothing_of_it_took_the_first_job_down(shop: Shop) -> None:
    began = time.monotonic()
    assert shop.job.stop() == 143
    assert time.monotonic() - began < 30
