"""End to end through Canal, all on one machine: ``python -m benchmarks.bench_canal_e2e [NAME ...]``."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import orders
from benchmarks.harness import Watch, report
from cdc.demo import proof
from cdc.demo.process import JobProcess, is_caught_up
from cdc.local_servers import LocalServer, free_port, obtain
from tests.servers.canal import DESTINATION, PASSWORD, USER, CanalServer, end_of_binlog, obtain_canal

DATABASE = "bench"
BACKLOG_ROWS, SINGLE_ROWS, LARGE_ROWS = 4_000_000, 600_000, 1_000_000

_JOB = f"""\
name: bench
source: {{{{type: canal, servers: ["{{canal}}"], destination: {DESTINATION}, username: {USER}, password: {PASSWORD},
         mysql: {{{{host: 127.0.0.1, port: {{port}}, username: cdc, password: bench}}}}}}}}
sink: {{{{type: delta, path: ./warehouse, create_tables: true}}}}
channels:
  - {{{{source: bench.orders, target: ods.orders}}}}
commit: {{{{interval: 1s}}}}
status: {{{{port: {{status}}}}}}
"""


@contextmanager
def _backlog(fill: Callable[[LocalServer], None]) -> Iterator[tuple[LocalServer, JobProcess, Path]]:
    """Servers that hold what ``fill`` writes, of which nothing has been fetched, and a job that is not started."""
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        folder, options = Path(name), ("--binlog-row-metadata=FULL", "--innodb-buffer-pool-size=512M")
        with LocalServer.start(obtain("mysql", print), folder / "mysql", options=options) as server:
            server.create_user("cdc", "bench")
            orders.prepare(server, DATABASE)
            server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
            with CanalServer(obtain_canal(), folder / "canal", server, quick_start=False) as canal:
                fill(server)
                status = free_port()
                text = _JOB.format(canal=canal.address, port=server.port, status=status)
                (folder / "job.yaml").write_text(text)
                with JobProcess(folder / "job.yaml", home=folder / "state", port=status) as job:
                    yield server, job, folder


def _prove(server: LocalServer, folder: Path) -> int:
    comparison = proof.compare(server, f"{DATABASE}.orders", folder / "warehouse/ods/orders", ["id"])
    if comparison.differences:
        raise SystemExit(f"source and target differ: {comparison.differences}")
    return comparison.rows


def _run(name: str, must: str, unit: str, transactions: str, fill: Callable[[LocalServer], None]) -> None:
    with _backlog(fill) as (server, job, folder):
        begin = time.monotonic()
        job.start()
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 180)
        running, end = time.monotonic(), end_of_binlog(server)
        with Watch(job.pid) as watch:
            status = job.wait_for(f"caught up with {end}", lambda status: is_caught_up(status, end), 900)
            took, usage = time.monotonic() - running, watch.usage()
        job.stop()
        rows = _prove(server, folder)
    report(
        name,
        rows / took,
        unit,
        must=must,
        data={"rows": rows, "table": "orders, 10 columns", "transactions": transactions, "ring": "16384 x 1 KiB"},
        with_start_of_the_job=round(rows / (took + running - begin)),
        seconds=round(took, 1),
        checkpoints=status["checkpoint"]["id"],
        split_transactions=status["split_transactions"],
        usage=usage,
        rows=rows,
        checked="row by row",
    )


_ONE_BY_ONE = """
CREATE PROCEDURE one_by_one(first BIGINT, rows_wanted INT)
BEGIN
  DECLARE n INT DEFAULT 0;
  WHILE n < rows_wanted DO
    INSERT INTO orders VALUES (first + n, n, CONCAT('ORD-', n), 1, 10.5, 'somewhere', NOW(3), NOW(6), 1, NULL);
    SET n = n + 1;
  END WHILE;
END"""


def _singles(server: LocalServer) -> None:
    server.execute("SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    connection = server.connect(DATABASE)
    with connection, connection.cursor() as cursor:
        cursor.execute(_ONE_BY_ONE)
        cursor.execute("CALL one_by_one(0, %s)", (SINGLE_ROWS,))


def catch_up() -> None:
    """A backlog of multi-row inserts, from the running job's first batch to the last row visible."""
    _run(
        "e2e.canal.catch_up",
        ">= 40,000",
        "rows/s",
        "10,000 rows each",
        lambda server: orders.fill(server, DATABASE, "orders", BACKLOG_ROWS),
    )


def catch_up_single_rows() -> None:
    """The same of transactions of one row."""
    _run("e2e.canal.catch_up_single_rows", ">= 8,000", "transactions/s", "1 row each", _singles)


def large_transaction() -> None:
    """One transaction of a million rows through the default ring."""
    _run(
        "e2e.canal.large_transaction",
        "reported",
        "rows/s",
        "1 of 1,000,000 rows",
        lambda server: orders.fill(server, DATABASE, "orders", LARGE_ROWS, transaction_rows=LARGE_ROWS),
    )


BENCHMARKS = {
    "catch_up": catch_up,
    "catch_up_single_rows": catch_up_single_rows,
    "large_transaction": large_transaction,
}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    for name in names or BENCHMARKS:
        BENCHMARKS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
