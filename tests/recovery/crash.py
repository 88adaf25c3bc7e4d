"""SIGKILL at random moments of a running job, repeatedly, while a shop is written to.

After every tenth kill the writers stop, the job catches up, and every row of every table is compared.
``python -m tests.recovery.crash --kills 300 --seed 7`` (``make kills``); a short run is part of the tests.
With ``--power`` every second kill is a power failure of the machine: data that was not synced is lost, too. With
``--changes`` a column or a whole table changes every three seconds: see ``migrations``.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import random
import tempfile
import threading
import time
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pymysql
from deltalake import DeltaTable
from rich.progress import Progress

from cdc.demo import proof, shop
from cdc.demo.local_servers import LocalServer, free_port, obtain
from cdc.demo.process import JobProcess, is_caught_up
from cdc.demo.run import JOB, PASSWORD
from cdc.model.verify import VerifyRequest
from cdc.state.sqlite import SqliteStore
from tests.recovery.migrations import Migrator
from tests.soak.sampling import left_behind
from tests.support.answers import schema_now
from tests.support.mounting import Disk
from tests.support.online_changes import Writers
from tests.support.seeds import seed_of

COMPARE_EVERY = 10
NO_SUCH_TABLE = 1146
LONGEST_S = 9.0  # at least; on a busy machine a cycle takes longer


def run(
    folder: Path,
    *,
    kills: int,
    seed: int,
    timeout_s: float = math.inf,
    power: bool = False,
    changes: bool = False,
    transactions_per_s: float = 100,
) -> int:
    """Kill ``kills`` times, each time after at most ``timeout_s``. Return the number of rows compared at the end.

    ``power``: state and tables are on a separate disk, and half of the kills cut its power. ``changes``: every three
    seconds a column or a table changes. ``transactions_per_s``: of each of the two writers.

    Raises: AssertionError - source and target differ; the message has kill, seed, table and rows.
    """
    draw = random.Random(seed)
    with LocalServer.start(
        obtain("mysql"), folder / "mysql", options=("--binlog-row-metadata=FULL", "--max-binlog-size=4M")
    ) as server:
        server.create_user("cdc", PASSWORD)
        connection = server.connect()
        with connection, connection.cursor() as cursor:
            shop.create(connection)
            cursor.execute("SHOW BINARY LOG STATUS")
            file, offset = cursor.fetchone()[:2]
        shopper(server, seed, 0).fill(customers=300, orders=500)
        disk = Disk(folder / "disk.ext4", folder / "disk") if power else None
        port = free_port()
        if disk is not None:
            folder = disk.at
        job_file = folder / "job.yaml"
        job_text = JOB.format(port=server.port, password=PASSWORD, file=file, offset=offset, status=port)
        job = JobProcess(job_file, home=folder / "state", port=port)
        with disk or nullcontext(), job, Progress() as progress:
            job_file.write_text(job_text)
            os.sync()
            bar = progress.add_task(f"kills (seed {seed})", total=kills)
            migrator = Migrator(server, seed, Writers())
            for first in range(0, kills, COMPARE_EVERY):
                paused = Writers()
                writers = [
                    shopper(server, seed * 1000 + first, number, paused.join(), transactions_per_s)
                    for number in range(2)
                ]
                for writer in writers:
                    writer.start()
                if not first:
                    until_commit(job)  # the first start is cold and includes the snapshot
                if changes:  # not before the first start, which takes the tables as they are then
                    migrator = migrator.next(paused)
                with closing(SqliteStore(folder / "state")) as store:
                    store.add_verification("demo", VerifyRequest())  # the kills interrupt it
                    longest_s = min(timeout_s, max(LONGEST_S, 1.5 * until_commit(job)))
                count = min(COMPARE_EVERY, kills - first)
                cuts = draw.sample(range(count), (count + 1) // 2)
                for number in range(count):
                    job.start()
                    # from before the driver has read its job file until several cycles later
                    time.sleep(draw.uniform(0.5, longest_s))
                    cut_power(job, disk) if disk and number in cuts else job.kill()
                    progress.advance(bar)
                for writer in writers:
                    writer.stop()
                if changes:
                    migrator.stop()
                done = min(first + COMPARE_EVERY, kills)
                rows = compare(server, job, folder, f"seed {seed}, kill {done}", is_strict=not changes)
                if changes:
                    check_changes(server, folder, migrator)
                made = f", {len(migrator.statements)} changes" * changes
                progress.console.print(f"{done} kills: {rows} rows agree{made}")
            assert not (left := left_behind(folder / "state")), left
            temporary = list((folder / "state" / "jobs").glob("*/tmp/*"))
            # only of the last driver: each driver empties the folder at its start
            assert 0 < len(temporary) < 20, temporary
    return rows


def cut_power(job: JobProcess, disk: Disk) -> None:
    """Kill all processes and cut the power of the disk at the same moment."""
    processes = psutil.Process(job.pid).children(recursive=True)
    disk.cut()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    job.kill()
    psutil.wait_procs(processes, 30)
    disk.start_again()


class _Shopper(shop.Shopper):
    """A shopper that waits while gh-ost copies a table, and survives a table that is renamed away."""

    lock: threading.Lock

    def _transaction(self, connection: pymysql.connections.Connection[Any], cursor: Any) -> None:
        with self.lock:
            try:
                super()._transaction(connection, cursor)
            except pymysql.err.ProgrammingError as error:
                connection.rollback()
                if error.args[0] != NO_SUCH_TABLE:
                    raise


def shopper(
    server: LocalServer, seed: int, number: int, lock: threading.Lock | None = None, transactions_per_s: float = 100
) -> shop.Shopper:
    connect = partial(server.connect, shop.DATABASE)
    found = _Shopper(connect, seed=seed + number, transactions_per_s=transactions_per_s)
    found.lock = lock or threading.Lock()
    return found


def until_commit(job: JobProcess) -> float:
    """Return the seconds from a start to the first commit of rows on this machine, and kill the job then."""
    begin = time.monotonic()
    job.start()
    job.wait_for("a first commit", _has_committed_rows, 600)
    job.kill()
    return time.monotonic() - begin


def _has_committed_rows(status: dict[str, Any]) -> bool:
    """Return whether this run has committed rows. Both times are of the same clock and format."""
    checkpoint, since = status["checkpoint"] or {}, status["started_at"]
    return bool(since and checkpoint.get("rows") and (checkpoint["committed_at"] or "") > since)


def compare(server: LocalServer, job: JobProcess, folder: Path, where: str, *, is_strict: bool = True) -> int:
    """``is_strict``: no table is being dropped or renamed, so every table can be verified."""
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        end = cursor.fetchone()[:2]
    job.start()
    job.wait_for(f"caught up with {end}", lambda status: is_caught_up(status, end), 600)
    found = job.verify("demo")
    assert not found["differences"], f"{where}: {found}"
    assert found["equal"] or not is_strict, f"{where}: {found}"
    job.kill()
    check_verifications(folder, where)
    rows = 0
    for name, key in shop.KEYS.items():
        comparison = proof.compare(server, f"{shop.DATABASE}.{name}", folder / "warehouse" / "ods" / name, key)
        assert not comparison.differences, f"{where}: {name}: {comparison.differences}"
        rows += comparison.rows
    assert rows > 1000, f"{where}: fewer than 1000 rows were compared"
    return rows


def check_verifications(folder: Path, where: str) -> None:
    """Check that verifications that were interrupted by kills have reported no difference."""
    with closing(SqliteStore(folder / "state")) as store:
        for found in store.verifications("demo", 100):
            assert found.ended_at is not None and not found.differs, f"{where}: {found}"


def check_changes(server: LocalServer, folder: Path, migrator: Migrator) -> None:
    """Check that each target has exactly the columns of its table with their types, and that no statement is missing."""
    for name in shop.KEYS:
        expected = {column.name: str(column.arrow) for column in schema_now(server, shop.DATABASE, name).columns}
        table = DeltaTable(str(folder / "warehouse" / "ods" / name))
        expected |= migrator.kept_types(name)
        found = {field.name: str(proof._plain(field.type)) for field in pa.schema(table.schema().to_arrow())}
        assert found == expected, f"{name}: {found} != {expected}"
    store = SqliteStore(folder / "state")
    (job,) = store.jobs()
    followed = [change.statement for change in store.changes(job.name, 1_000_000)]
    store.close()
    written, texts = migrator.statements, followed[::-1]
    changed = [line for line in difflib.ndiff(written, texts) if not line.startswith("  ")]
    assert texts == written, f"statements were left out (-) or followed twice (+): {changed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--power", action="store_true", help="half of them cut the power of a disk, as root")
    parser.add_argument("--changes", action="store_true", help="change a column or a table every three seconds")
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    seed = seed_of(arguments.seed)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cdc-kills-") as folder:
        rows = run(Path(folder), kills=arguments.kills, seed=seed, power=arguments.power, changes=arguments.changes)
    minutes = (time.monotonic() - begin) / 60
    print(
        f"{arguments.kills} kills{', half of them power cuts,' if arguments.power else ''} in {minutes:.0f} minutes, seed {seed}: {rows} rows, source and target agree"
    )


if __name__ == "__main__":
    main()
