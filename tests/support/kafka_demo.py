"""``make demo-kafka``: a shop on MySQL, a real Canal that sends its changes to a real Kafka, and a job that is killed.

Every row of the shop is compared with the Delta tables at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from cdc.demo import proof, run, shop
from cdc.demo.local_servers import free_port, obtain
from cdc.demo.process import JobProcess
from tests.emulators.kafka import KafkaBroker, obtain_kafka
from tests.emulators.producers import CanalToKafka, obtain_producer

JOB = """\
name: demo-kafka
source:
  type: kafka
  brokers: ["{broker}"]
  topics: ["shop_*"]
  format: canal-json
  read: {read}
sink: {{type: delta, path: ./warehouse}}
channels: [{{source: shop.*, target: ods.*}}]
commit: {{interval: 1s}}
status: {{port: {port}}}
"""
_LIMIT_S = 240.0
_LAST = 999_999_999  # of the rows that are written last
_MARKS = {
    "customers": f"INSERT INTO customers (id, email, name, created_at) VALUES ({_LAST}, 'e', 'n', NOW(3))",
    "orders": f"INSERT INTO orders VALUES ({_LAST}, 1, 'no', 'paid', 1, NOW(6), NULL, NULL)",
    "order_items": f"INSERT INTO order_items VALUES ({_LAST}, 1, 'sku', 1, 1, NULL, 0)",
    "stock": f"INSERT INTO stock VALUES ('ZZZ', '{_LAST}', 1, 0, NULL)",
}


def demo(folder: Path, *, seconds: float, read: str, report: Console) -> int:
    """Run the demonstration in ``folder``, which is emptied. Return 0 if source and target are equal, otherwise 1.

    ``seconds``: how long the shop is open. Raises: PrerequisiteError, ConfigError, CdcError.
    """
    run.refuse_foreign(folder)
    binaries = obtain("mysql", lambda text: report.print(f"  {text}"))
    jars = obtain_kafka(), obtain_producer("canal")
    run.empty(folder)
    with ExitStack() as stack:
        server = run.start_server(stack, binaries, folder, report)
        run.open_shop(server)
        with report.status("[bold]2[/] Starting Kafka and Canal"):
            broker = stack.enter_context(KafkaBroker(jars[0], folder / "kafka"))
            for table in shop.TABLES:
                broker.create(f"{shop.DATABASE}_{table}")
            canal = CanalToKafka(jars[1], folder / "canal", server, broker, shop.DATABASE)
            stack.enter_context(canal)
        report.print(f"[bold]2[/] Canal sends each table of the shop to a topic of the broker {broker.address}")
        shoppers = [
            shop.Shopper(lambda: server.connect(shop.DATABASE), seed=n, transactions_per_s=run.TRANSACTIONS_PER_S)
            for n in range(run.SHOPPERS)
        ]
        shoppers[0].fill(customers=run.FILL_CUSTOMERS, orders=run.FILL_ORDERS)
        port, job_file = free_port(), folder / "job.yaml"
        job_file.write_text(JOB.format(broker=broker.address, read=read, port=port))
        job = stack.enter_context(JobProcess(job_file, home=folder / "state", port=port))
        for shopper in shoppers:
            shopper.start()
        for number in (3, 4):
            job.start()
            job.wait_for("a commit", lambda status: status["checkpoint"] and status["checkpoint"]["rows"], _LIMIT_S)
            report.print(f"[bold]{number}[/] The job commits (read: {read})")
            time.sleep(seconds / 2)
            if number == 3:
                os.kill(job.pid, signal.SIGKILL)
                job.kill()
                report.print("  [red]Killed the job[/] (SIGKILL), while the shoppers continue")
        for shopper in shoppers:
            shopper.stop()
        report.print(f"[bold]5[/] The shop has closed after {sum(one.transactions for one in shoppers):,} transactions")
        with server.connect(shop.DATABASE) as connection, connection.cursor() as cursor:
            for statement in _MARKS.values():
                cursor.execute(statement)
            connection.commit()
        with report.status("[bold]6[/] Waiting for the job to catch up"):
            deadline = time.monotonic() + _LIMIT_S
            while not _has_last_rows(folder / "warehouse" / "ods"):
                if time.monotonic() > deadline:
                    raise SystemExit(f"The job did not catch up: {job.status()}")
                time.sleep(0.5)
        job.stop()
        return run.prove(server, folder / "warehouse", report, is_equal=True)


def _has_last_rows(tables: Path) -> bool:
    where = {name: f"{keys[0]} = {_LAST}" for name, keys in shop.KEYS.items()} | {"stock": "warehouse = 'ZZZ'"}
    return all((tables / name).exists() and proof.read_delta(tables / name, where[name]).num_rows for name in _MARKS)


def main() -> None:
    """Run the demonstration of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo-kafka"))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--read", choices=("driver", "executors"), default="executors")
    given = parser.parse_args()
    sys.exit(demo(given.folder.absolute(), seconds=given.seconds, read=given.read, report=Console()))


if __name__ == "__main__":
    main()
