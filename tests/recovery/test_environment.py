"""A real job, from MySQL through Spark into Delta, while parts of its environment fail one after the other.

Each test injects a fault while rows are written, checks the status, removes the fault and compares every row.
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
from deltalake.exceptions import TableNotFoundError

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port, obtain
from cdc.demo.process import CDC, JobProcess
from tests.conftest import unavailable
from tests.support.limits import HANG_S
from tests.support.mounting import mounted
from tests.support.receiving import TcpProxy, until

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
    """A source that can be written to, and a job that reads it."""

    def __init__(self, folder: Path, server: LocalServer, proxy: TcpProxy) -> None:
        self.folder, self.server, self.proxy = folder, server, proxy
        self.home, self.disk = folder / "home", folder / "disk"
        self.warehouse = self.disk / "warehouse"  # below a mount point, so that it can be moved
        self.rows = 0
        self.job = self.another("home")

    def another(self, home: str, more: str = "") -> JobProcess:
        """Return a job with the same name and sink, and a separate CDC_HOME."""
        port = free_port()
        file = self.folder / f"{home}.yaml"
        file.write_text(JOB.format(port=self.proxy.port, status=port, warehouse=self.warehouse, more=more))
        return JobProcess(file, home=self.folder / home, port=port)

    def write(self, count: int = 20, size: int = 50) -> None:
        """Insert, update, delete and change a key in two tables in one transaction."""
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

    def wait_for_status(
        self, state: str, *words: str, resume: str | None = None, timeout_s: float = HANG_S
    ) -> dict[str, Any]:
        """Wait until the status has ``state`` and every one of ``words`` in its reason or hint."""

        def matches(status: dict[str, Any]) -> bool:
            reported = f"{status['reason']} {status['hint']}"
            return status["state"] == state and status["resume"] == resume and all(word in reported for word in words)

        return self.job.wait_for(f"{state}: {', '.join(words)}", matches, timeout_s)

    def check_equal(self) -> None:
        """Wait until the job has caught up, then compare source and target row by row."""
        self.write()
        connection = self.server.connect()
        with connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOG STATUS")
            end = cursor.fetchone()[:2]
        self.job.wait_for(
            f"caught up with {end}",
            lambda one: one["state"] == "RUNNING" and (one["position"]["file"], one["position"]["offset"]) >= end,
            HANG_S,
        )
        for table in TABLES:
            assert not (found := self.differences(table)), found

    def reload_tables(self) -> None:
        """Run ``cdc snapshot`` for every table and check that source and target are equal afterwards."""
        for table in TABLES:
            self.cdc("snapshot", f"shop.{table}")
        until(lambda: not any(self.differences(table) for table in TABLES), HANG_S, "equal tables")
        self.check_equal()

    def differences(self, table: str) -> tuple[str, ...]:
        found = proof.compare(self.server, f"shop.{table}", self.warehouse / "ods" / table, ("id",))
        assert found.rows > 0
        return tuple(found.differences)

    def cdc(self, verb: str, *words: str, code: int = 0) -> None:
        """Run a ``cdc`` command for the job and check its exit code."""
        done = subprocess.run(
            [*CDC, verb, "shop", *words], env=self.job.environment, capture_output=True, text=True, timeout=HANG_S
        )
        assert done.returncode == code, done.stderr

    def status(self) -> dict[str, Any]:
        """Return the status, as soon as the job answers."""
        return self.job.wait_for("a status", lambda _: True, HANG_S)

    def position(self) -> tuple[str, int]:
        status = self.status()
        return status["position"]["file"], status["position"]["offset"]


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make ``folder`` read-only, for root too."""
    with mounted("--bind", str(folder), at=folder):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the file system of ``folder`` completely. Skip the test if ``folder`` is not a separate file system."""
    if not folder.is_mount():
        unavailable("this user cannot mount the small disk for the test")
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
        TcpProxy(server.port) as proxy,
    ):
        create_tables(server)
        shop = Shop(folder, server, proxy)
        with shop.job:
            shop.job.start()
            shop.job.wait_for(
                "running, with its decoder compiled",
                lambda status: status["state"] == "RUNNING" and status["reason"] is None,
                HANG_S,
            )
            yield shop


def test_second_home_on_the_same_sink_is_rejected(shop: Shop) -> None:
    with shop.another("other") as second:
        second.start()
        assert second.wait(HANG_S) == 3, "the server id is derived from the job name and is used"
        assert "is used by another reader: cdc-shop-" in second.log.read_text()
    with shop.another("third", ", server_id: 4711") as second:
        second.start()
        refused = second.wait_for("refused", lambda status: status["state"] == "PAUSED", HANG_S)
        assert refused["resume"] == "manual"
        assert "Another process runs the job shop with this sink" in refused["reason"]
        assert str(shop.job.pid) in refused["reason"] and str(shop.home) in refused["reason"]
        assert "cdc stop shop" in refused["hint"]
        shop.check_equal()


def test_job_survives_cut_connections_and_flipped_bits(shop: Shop) -> None:
    shop.proxy.cut_after(700_000)
    shop.proxy.flip_after(1_500_000)
    shop.proxy.cut_all()  # so that bytes are counted from here
    for _ in range(4):
        shop.write(1000, size=900)
    shop.check_equal()
    assert (shop.proxy.cuts, shop.proxy.flips) == (1, 1)


def test_job_reads_over_a_slow_connection(shop: Shop) -> None:
    shop.proxy.bytes_per_s, shop.proxy.delay_s = 400_000, 0.05
    began = time.monotonic()
    try:
        shop.write(1000, size=900)
        shop.write()
        assert shop.status()["state"] == "RUNNING"
        shop.check_equal()
    finally:
        shop.proxy.bytes_per_s, shop.proxy.delay_s = math.inf, 0.0
    assert time.monotonic() - began > 4, "1.8 MB arrived too fast"


def test_job_continues_after_a_mysql_restart(shop: Shop) -> None:
    shop.write()
    shop.server.kill()
    deadline = time.monotonic() + HANG_S
    while "reconnecting in" not in shop.job.log.read_text().rpartition("committed")[2]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    shop.server.restart()
    shop.check_equal()


def test_full_table_disk_pauses_and_resumes_automatically(shop: Shop) -> None:
    before = shop.position()
    with full(shop.disk):
        shop.write(200, size=900)
        shop.wait_for_status("PAUSED", "The disk of the Delta tables is full", "Free space", resume="automatic")
        assert shop.position() == before
    shop.check_equal()


@pytest.mark.parametrize("folder", ["_cdc_staging", "ods/orders"])
def test_read_only_folder_pauses_and_resumes_automatically(shop: Shop, folder: str) -> None:
    before = shop.position()
    with read_only(shop.warehouse / folder):
        shop.write()
        shop.wait_for_status("PAUSED", "cannot be written", "write permission", resume="automatic")
        assert shop.position() == before
    shop.check_equal()


def test_full_state_disk_pauses_and_resumes_automatically(shop: Shop) -> None:
    with full(shop.home):
        shop.write()
        shop.wait_for_status("PAUSED", "The disk of the state file is full", resume="automatic")
    shop.check_equal()


def test_locked_state_file_pauses_and_resumes_automatically(shop: Shop) -> None:
    other = sqlite3.connect(shop.home / "state.db", isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        shop.write()
        shop.wait_for_status("PAUSED", "The state file stays locked", "fuser", resume="automatic")
    finally:
        other.close()
    shop.check_equal()


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:4])
    except psutil.Error:
        return ""


@pytest.mark.parametrize("what", ["java", "spark.worker_daemon"])
def test_killed_jvm_or_workers_are_replaced(shop: Shop, what: str) -> None:
    pid = shop.job.pid
    found = [child for child in psutil.Process(pid).children(recursive=True) if what in _command(child)]
    assert found
    shop.write()
    for child in found:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    shop.check_equal()
    assert shop.job.pid == pid, "the driver process is the same"


def test_kill_during_a_full_disk_recovers(shop: Shop) -> None:
    with full(shop.disk):
        shop.write(200, size=900)
        shop.wait_for_status("PAUSED", "is full", resume="automatic")
        shop.job.kill()
    shop.job.start()
    shop.check_equal()


def _largest_lag(shop: Shop) -> float:
    """Return the largest lag in seconds that the status reports while rows are written."""
    reported = []
    for _ in range(20):
        shop.write()
        status = shop.status()
        reported.append(status["lag_seconds"] or 0.0)
        time.sleep(0.1)
    return max(reported)


def test_clock_steps_do_not_change_rows_or_positions(shop: Shop) -> None:
    """The clock of driver, JVM and workers steps; the clock of the server stays correct."""
    library, clock = shop.folder / "clock.so", shop.folder / "clock"
    compiler = shutil.which("cc") or unavailable("there is no C compiler")
    source = Path(__file__).with_name("clock.c")
    subprocess.run([str(compiler), "-shared", "-fPIC", "-O2", "-Wall", "-o", library, source], check=True)
    clock.write_bytes(struct.pack("q", 0))
    before = shop.job.environment
    shop.job.stop()
    shop.job.environment = {**before, "LD_PRELOAD": str(library), "CDC_TEST_CLOCK": str(clock)}
    shop.job.start()
    shop.check_equal()
    for days in (-2, 3, -1, 0):
        with clock.open("r+b") as file:
            file.write(struct.pack("q", days * 86400))
        lag_s = _largest_lag(shop)
        assert abs(lag_s - max(0, days) * 86400) < 300, "the lag follows the local clock and is never negative"
        shop.check_equal()
        status = shop.status()
        ahead = datetime.fromisoformat(status["checkpoint"]["committed_at"]) - datetime.now(UTC)
        assert abs(ahead - timedelta(days=days)) < timedelta(hours=1), "the clock was not stepped"
    shop.job.kill()
    shop.job.environment = before
    shop.job.start()
    shop.check_equal()


def test_restored_old_state_is_rejected_until_adopted(shop: Shop) -> None:
    old = shop.folder / "copy.db"
    with sqlite3.connect(shop.home / "state.db") as live, sqlite3.connect(old) as copy:
        live.backup(copy)
    shop.write()
    shop.check_equal()
    for name in ("state.db-wal", "state.db-shm"):
        (shop.home / name).unlink(missing_ok=True)
    shutil.copy(old, shop.home / "new.db")
    os.replace(shop.home / "new.db", shop.home / "state.db")
    shop.write()
    assert shop.job.wait(HANG_S) == 1
    assert "The state file was removed or replaced while the job ran" in shop.job.log.read_text()
    shop.job.start()
    assert shop.job.wait(HANG_S) == 1
    assert "ahead of the state" in shop.job.log.read_text() and "--adopt" in shop.job.log.read_text()
    shop.job.start("--adopt")
    shop.check_equal()


def test_state_rolled_back_by_backup_under_live_job_ends_it(shop: Shop) -> None:
    """The backup of SQLite writes into the open file, so its inode does not change."""
    shop.check_equal()
    old = shop.folder / "rolled_back.db"
    with sqlite3.connect(shop.home / "state.db") as live, sqlite3.connect(old) as copy:
        live.backup(copy)
    shop.write()
    shop.check_equal()
    with sqlite3.connect(old) as copy, sqlite3.connect(shop.home / "state.db") as live:
        copy.backup(live)
    shop.write()
    assert shop.job.wait(HANG_S) == 1
    assert "The state store was replaced by an older copy while the job ran" in shop.job.log.read_text()
    shop.job.start()
    assert shop.job.wait(HANG_S) == 1
    assert "ahead of the state" in shop.job.log.read_text()
    shop.job.start("--adopt")
    shop.check_equal()


def _purge_binlogs(server: LocalServer) -> set[str]:
    """Purge all binlogs but the newest; return the names of those that remain.

    The server keeps a file that the connection of a paused job still reads: it sees its end only when it sends again.
    """
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        cursor.execute(f"PURGE BINARY LOGS TO '{cursor.fetchone()[0]}'")
        cursor.execute("SHOW BINARY LOGS")
        return {row[0] for row in cursor.fetchall()}


def _are_equal(shop: Shop) -> bool:
    try:
        return not any(shop.differences(table) for table in TABLES)
    except TableNotFoundError:  # the table is not created again yet
        return False
    except Exception as error:  # a table that is being repaired names files that do not exist
        assert "not found" in str(error)
        return False


def _check_pause_until_reloaded(shop: Shop, *words: str) -> None:
    before = shop.position()
    for _ in range(2):
        shop.cdc("resume", code=1)
        shop.wait_for_status(
            "PAUSED", "does not hold what the job has committed", *words, "--reload-missing", resume="manual"
        )
        assert shop.position() == before
    shop.cdc("resume", "--reload-missing")
    shop.wait_for_status("RUNNING")
    until(lambda: _are_equal(shop), HANG_S, "equal tables")
    shop.check_equal()


def test_target_removed_while_paused_pauses_and_is_reloaded(shop: Shop) -> None:
    shop.check_equal()
    shop.cdc("pause")
    shop.write()
    shutil.rmtree(shop.warehouse / "ods" / "orders")
    shop.cdc("resume", code=1)
    assert not (shop.warehouse / "ods" / "orders").exists(), "nothing is created before the user accepts"
    checked = subprocess.run(
        [*CDC, "check", str(shop.folder / "home.yaml")],
        env=shop.job.environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert checked.returncode == 3 and "ods.orders is missing" in checked.stdout, checked.stdout + checked.stderr
    _check_pause_until_reloaded(shop, "ods.orders is missing")


def test_target_replaced_by_older_copy_pauses_and_is_reloaded(shop: Shop) -> None:
    shop.check_equal()
    table, copy = shop.warehouse / "ods" / "items", shop.folder / "older"
    shop.cdc("pause")
    shutil.copytree(table, copy)
    shop.cdc("resume")
    shop.write()
    shop.server.execute("DELETE FROM shop.items WHERE id = 3")
    shop.check_equal()
    shop.cdc("pause")
    shutil.rmtree(table)
    shutil.move(copy, table)
    _check_pause_until_reloaded(shop, "ods.items is older than the state")


def test_target_without_data_files_pauses_and_is_reloaded(shop: Shop) -> None:
    shop.check_equal()
    shop.cdc("pause")
    for file in (shop.warehouse / "ods" / "items").glob("*.parquet"):
        file.unlink()
    _check_pause_until_reloaded(shop, "ods.items lacks data files")


def test_root_not_mounted_pauses_and_creates_nothing(shop: Shop) -> None:
    shop.check_equal()
    shop.cdc("pause")
    empty = shop.folder / "empty"
    empty.mkdir()
    with mounted("--bind", str(empty), at=shop.warehouse):
        shop.cdc("resume", code=1)
        shop.wait_for_status("PAUSED", "the root of the sink is missing", "not mounted", resume="manual")
        assert not list(empty.iterdir())
    shop.cdc("resume")
    shop.check_equal()


def test_target_moved_away_pauses_until_it_is_back(shop: Shop) -> None:
    shop.check_equal()
    table, away = shop.warehouse / "ods" / "orders", shop.warehouse / "ods" / "away"
    table.rename(away)
    shop.write()
    shop.wait_for_status("PAUSED", "does not exist", "continues automatically", resume="automatic")
    assert not table.exists()
    away.rename(table)
    shop.check_equal()


def test_root_moved_away_pauses_until_it_is_back(shop: Shop) -> None:
    shop.check_equal()
    away = shop.disk / "away"
    shop.warehouse.rename(away)
    shop.write()
    status = shop.wait_for_status("PAUSED", "does not exist", "continues automatically", resume="automatic")
    assert "xecutor" not in f"{status['reason']} {status['hint']}"
    # a later attempt
    shop.wait_for_status("PAUSED", "the root of the sink is missing", "continues automatically", resume="automatic")
    assert not shop.warehouse.exists()
    away.rename(shop.warehouse)
    shop.check_equal()


def test_root_unmounted_pauses_until_it_is_back(shop: Shop) -> None:
    shop.check_equal()
    empty = shop.folder / "unmounted"
    empty.mkdir()
    with mounted("--bind", str(empty), at=shop.warehouse):
        shop.write()
        shop.wait_for_status("PAUSED", "not mounted", "continues automatically", resume="automatic")
        assert not list(empty.iterdir())
    shop.check_equal()


def test_job_files_are_closed_to_other_users(shop: Shop) -> None:
    shop.check_equal()
    found = [*shop.warehouse.rglob("*"), shop.warehouse, *(path for path in shop.home.rglob("*"))]
    found.remove(shop.job.log)  # this process created it
    open_ones = [str(path) for path in found if not path.is_symlink() and path.stat().st_mode & 0o027]
    assert not open_ones
    kinds = ("*.parquet", "_delta_log/*.json", "_cdc_sink.json", "claim-*.json", "seen-*", "state.db", "token")
    assert [kind for kind in kinds if not any(path.match(kind) for path in found)] == []


def test_purged_binlog_of_a_paused_job_needs_accept_gap(shop: Shop) -> None:
    shop.check_equal()
    shop.cdc("pause")
    shop.wait_for_status("PAUSED", resume="manual")
    before = shop.position()
    shop.write()
    shop.server.execute("DELETE FROM shop.orders WHERE id < 10", "FLUSH BINARY LOGS")
    shop.write()
    until(lambda: before[0] not in _purge_binlogs(shop.server), HANG_S, f"a server without {before[0]}")
    for _ in range(2):  # each plain resume pauses again
        shop.cdc("resume", code=1)
        shop.wait_for_status("PAUSED", f"{before[0]} does not exist on the server", "--accept-gap", resume="manual")
        assert shop.position() == before
    assert shop.differences("orders"), "the tables do not differ"
    shop.cdc("resume", "--accept-gap")
    shop.wait_for_status("RUNNING")
    until(lambda: _are_equal(shop), HANG_S, "equal tables")
    shop.check_equal()


def test_read_only_home_ends_the_start_with_a_hint(shop: Shop) -> None:
    home = shop.folder / "locked"
    home.mkdir()
    with shop.another("locked") as job, read_only(home):
        job.log = shop.folder / "locked.log"
        job.start()
        assert job.wait(HANG_S) == 3
    reported = job.log.read_text()
    assert "cannot be used" in reported or "cannot be written" in reported, reported
    assert "owner" in reported


def test_another_server_at_the_same_address_needs_acceptance(shop: Shop) -> None:
    """Runs near the end, because the tables belong to another server afterwards."""
    with LocalServer.start(
        obtain("mysql"), shop.folder / "another", options=("--binlog-row-metadata=FULL", "--server-id=2")
    ) as another:
        create_tables(another)
        before = shop.position()
        shop.proxy.forward_to(another.port)
        shop.wait_for_status("PAUSED", "lacks transactions that the job has read", "--accept-server", resume="manual")
        assert shop.position() == before
        shop.proxy.forward_to(shop.server.port)
        shop.cdc("resume")
        shop.check_equal()

        shop.cdc("pause")
        shop.wait_for_status("PAUSED", resume="manual")
        shop.proxy.forward_to(another.port)
        shop.cdc("resume", code=1)
        shop.wait_for_status("PAUSED", "lacks transactions that the job has read", "--accept-server", resume="manual")
        first, shop.server = shop.server, another
        shop.cdc("resume", "--accept-server")
        shop.wait_for_status("RUNNING")
        shop.write()
        shop.reload_tables()
        shop.server = first


def test_first_job_still_stops_normally(shop: Shop) -> None:
    before = shop.job.log.stat().st_size
    assert shop.job.stop() == 143
    assert "the process ends by force" not in shop.job.log.read_bytes()[before:].decode(errors="replace")
