"""The demonstration: a job copies rows of a MySQL server to Delta tables, and is killed and restarted meanwhile."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from cdc.demo import proof, shop
from cdc.demo.local_servers import Binaries, LocalServer, free_port, obtain
from cdc.demo.process import JobProcess, is_caught_up
from cdc.errors import ConfigError, PrerequisiteError

SHOPPERS = 2
TRANSACTIONS_PER_S = 150.0  # of each shopper; far below the limit of the job, so that a small machine stays usable
FILL_CUSTOMERS, FILL_ORDERS = 2000, 10_000
PASSWORD = secrets.token_urlsafe(12)
START_TIMEOUT_S = 300  # the first start compiles the kernels of the decoder

MARK = ".cdc-demo"  # file that marks the folder of a demonstration, which may be emptied

JOB = """\
name: demo
source:
  type: binlog
  host: 127.0.0.1
  port: {port}
  username: cdc
  password: {password}
  tls: {{mode: required}}
  start: snapshot
sink:
  type: delta
  path: ./warehouse
  create_tables: true
channels:
  - source: shop.*
    target: ods.*
schema_changes: evolve
commit: {{interval: 1s}}
status: {{port: {status}}}
"""


def run_demo(folder: Path, *, seconds: float = 40.0, console: Console | None = None) -> int:
    """Empty ``folder``, run the demonstration in it, and return 0 if source and target are equal, otherwise 1.

    ``seconds``: how long the shoppers write. Raises: ConfigError - the folder has files that no demonstration wrote;
    PrerequisiteError - there is no MySQL server, or the folder cannot be emptied.
    """
    report = console or Console()
    refuse_foreign(folder)
    binaries = obtain("mysql", lambda text: report.print(f"  {text}"))
    empty(folder)
    with ExitStack() as stack:
        server = start_server(stack, binaries, folder, report)
        open_shop(server)
        report.print(
            f"[bold]2[/] A shop with {len(shop.TABLES)} filled tables; {SHOPPERS} shoppers write to it continuously"
        )
        shoppers = [
            shop.Shopper(lambda: server.connect(shop.DATABASE), seed=n, transactions_per_s=TRANSACTIONS_PER_S)
            for n in range(SHOPPERS)
        ]
        shoppers[0].fill(customers=FILL_CUSTOMERS, orders=FILL_ORDERS)
        status_port = free_port()
        job_file = folder / "job.yaml"
        job_file.write_text(JOB.format(port=server.port, password=PASSWORD, status=status_port))
        job = stack.enter_context(JobProcess(job_file, home=folder / "state", port=status_port))
        for shopper in shoppers:
            shopper.start()
        _run_job(job, server, shoppers, seconds, report)
        is_equal = _verify(job, shoppers, report)
        _catch_up(job, server, report)
        job.stop()
        return prove(server, folder / "warehouse", report, is_equal=is_equal)


def refuse_foreign(folder: Path) -> None:
    """Raise ConfigError if the folder has files that no demonstration wrote."""
    with _usable(folder):
        if folder.exists() and not (folder / MARK).exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                "The folder for the demonstration contains files that no demonstration wrote.",
                hint="Run `cdc demo --folder FOLDER` with an empty or new folder, or empty this one.",
                folder=folder,
            )


def empty(folder: Path) -> None:
    """Empty the folder of an earlier demonstration, or create it. Raises: PrerequisiteError."""
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # delete MARK last, so that a partly emptied folder is still a demonstration's
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == MARK):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        (folder / MARK).write_text("`cdc demo` created this folder, and empties it when it runs here again.\n")


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PrerequisiteError(
            f"The folder for the demonstration cannot be used: {error.strerror}.",
            hint="Name another one: `cdc demo --folder FOLDER`.",
            path=error.filename or folder,
        ) from error


def start_server(stack: ExitStack, binaries: Binaries, folder: Path, report: Console) -> LocalServer:
    """Start the source, with the user of the job. It ends with ``stack``. Raises: PrerequisiteError."""
    with report.status("[bold]1[/] Starting a private MySQL"):
        server = LocalServer.start(binaries, folder / "mysql", options=("--binlog-row-metadata=FULL",))
        stack.callback(server.kill)
        server.create_user("cdc", PASSWORD, "SELECT, REPLICATION SLAVE, REPLICATION CLIENT")
    report.print(f"[bold]1[/] {binaries.version.split('Ver ')[-1]} listens on 127.0.0.1:{server.port}")
    return server


def open_shop(server: LocalServer) -> None:
    """Create the tables of the shop."""
    connection = server.connect()
    with connection:
        shop.create(connection)


def binlog_end(server: LocalServer) -> tuple[str, int]:
    """Return file and offset of the end of the binary log."""
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        row: Any = cursor.fetchone()
    return str(row[0]), int(row[1])


def _run_job(
    job: JobProcess, server: LocalServer, shoppers: list[shop.Shopper], seconds: float, report: Console
) -> None:
    job.start()
    with report.status("[bold]3[/] Starting the job"):
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", START_TIMEOUT_S)
    report.print("[bold]3[/] The job runs")
    _watch(job, shoppers, seconds / 4, report)
    # a first start compiles kernels, and a table must have its first commit before it changes and the job is killed
    job.wait_for("all tables are loaded", _is_loaded, START_TIMEOUT_S)
    _change(server, "ADD COLUMN source VARCHAR(10) NOT NULL DEFAULT 'web'", report)
    _watch(job, shoppers, seconds / 4, report)
    os.kill(job.pid, signal.SIGKILL)
    job.kill()
    report.print("[bold]4[/] [red]Killed the job[/] (SIGKILL), while the shoppers continue")
    job.start()
    with report.status("[bold]5[/] Starting it again"):
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", START_TIMEOUT_S)
    report.print("[bold]5[/] The job runs again, from its last checkpoint")
    _watch(job, shoppers, seconds / 4, report)
    _change(server, "RENAME COLUMN source TO channel", report)
    _watch(job, shoppers, seconds / 4, report)


def _is_loaded(status: dict[str, Any]) -> bool:
    snapshots = [channel["snapshot"] for channel in status["channels"]]
    return len(snapshots) == len(shop.TABLES) and all(one and one["consistent"] for one in snapshots)


def _verify(job: JobProcess, shoppers: list[shop.Shopper], report: Console) -> bool:
    """Compare source and target with `cdc verify` while the shop is open, then close the shop."""
    with report.status("[bold]6[/] `cdc verify demo` while the shop is open"):
        found = job.verify("demo")
    rows, changing_rows = (sum(table[name] for table in found["tables"].values()) for name in ("rows", "changing"))
    text = "all are equal" if found["equal"] else f"[red]DIFFERENT: {escape(str(found)[:1000])}[/]"
    changing = f", {changing_rows:,} of them changed all the time" if changing_rows else ""
    report.print(f"[bold]6[/] `cdc verify demo` while the shop is open: {rows:,} rows compared{changing}, {text}")
    for shopper in shoppers:
        shopper.stop()
    report.print(
        f"[bold]7[/] The shop has closed after {sum(shopper.transactions for shopper in shoppers):,} transactions"
    )
    return bool(found["equal"])


def _change(server: LocalServer, clause: str, report: Console) -> None:
    """Change a table while the shop is open. The job follows."""
    statement = f"ALTER TABLE {shop.DATABASE}.orders {clause}"
    server.execute(statement)
    report.print(f"  {statement}", markup=False)


def _watch(job: JobProcess, shoppers: list[shop.Shopper], seconds: float, report: Console) -> None:
    end = time.monotonic() + seconds
    before, since = 0, time.monotonic()
    with Live(console=report, refresh_per_second=4, transient=not report.is_terminal) as live:
        while time.monotonic() < end:
            time.sleep(0.5)
            status = job.status()
            if status is None:
                continue
            changes = sum(channel["upserts"] + channel["deletes"] for channel in status["channels"])
            now = time.monotonic()
            rate = max(0.0, (changes - before) / (now - since)) if before else 0.0
            if changes != before:
                before, since = changes, now
            live.update(_progress(status, changes, rate, sum(shopper.transactions for shopper in shoppers)))


def _progress(status: dict[str, Any], changes: int, rate: float, transactions: int) -> Table:
    table = Table(
        title=f"{transactions:,} transactions written, {changes:,} changes in the target, {rate:,.0f} a second"
    )
    for name in ("table", "loaded", "upserts", "deletes", "waiting"):
        table.add_column(name, justify="left" if name == "table" else "right")
    for channel in status["channels"]:
        snapshot = channel["snapshot"] or {"rows": 0}
        counts = (snapshot["rows"], channel["upserts"], channel["deletes"], channel["buffered_rows"])
        table.add_row(channel["target"], *(f"{count:,}" for count in counts))
    table.caption = (
        f"{status['state']}, lag {status['lag_seconds'] or 0:.1f} s, checkpoint {status['checkpoint']['id']}"
    )
    return table


def _catch_up(job: JobProcess, server: LocalServer, report: Console) -> None:
    end = binlog_end(server)
    with report.status("[bold]8[/] Waiting for the job to catch up"):
        job.wait_for(f"caught up with {end[0]}:{end[1]}", lambda status: is_caught_up(status, end), 120)


def prove(server: LocalServer, warehouse: Path, report: Console, *, is_equal: bool) -> int:
    """Compare every row without the job. ``is_equal``: what `cdc verify` found."""
    rows, agree = 0, is_equal
    for name, key in shop.KEYS.items():
        comparison = proof.compare(server, f"{shop.DATABASE}.{name}", warehouse / "ods" / name, key)
        rows += comparison.rows
        agree = agree and not comparison.differences
        report.print(
            f"  {comparison.table}: {comparison.rows:,} rows, {'equal' if not comparison.differences else 'DIFFERENT'}"
        )
        for difference in comparison.differences:
            report.print(f"    {difference}", markup=False)
    if not agree:
        print("demo: source and target differ")  # noqa: T201
        return 1
    query = "SELECT status, COUNT(*) AS orders, SUM(total) AS total FROM orders GROUP BY status ORDER BY status"
    report.print("\nThe tables stay in the folder. A query on them:\n")
    print(  # noqa: T201 - plain text to copy: no colours, no wrapping
        f"""{Path(".venv/bin/python") if Path(".venv").exists() else "python"} - <<'END'
from deltalake import DeltaTable, QueryBuilder
orders = DeltaTable("{warehouse / "ods" / "orders"}")
for batch in QueryBuilder().register("orders", orders).execute("{query}"):
    for row in zip(*(column.to_pylist() for column in batch.columns)):
        print(*row)
END
"""
    )
    print(f"demo: source and target agree: {len(shop.KEYS)} tables, {rows} rows")  # noqa: T201
    return 0
