"""SIGKILL at random moments of a running job with a Kafka source, while messages are sent.

After every tenth kill and after the last one the sender stops, the job catches up, and all rows are compared.
``python -m tests.recovery.kafka_crash --kills 100 --seed 7`` (``make kills-kafka``); a short run is part of the tests.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
from pathlib import Path

from rich.progress import Progress

from tests.emulators.kafka import KafkaBroker, obtain_kafka
from tests.support.kafka_jobs import PARTITIONS, Job, ends_of, is_caught_up
from tests.support.kafka_shop import FIELDS, CanalPackets, DebeziumRows, MaxwellRows, Shop
from tests.support.seeds import seed_of

COMPARE_EVERY = 10
LONGEST_S = 6.0  # from the first answer of the status to the kill
_LIMIT_S = 240.0
FORMATS = ("canal", "maxwell", "debezium-json")


def run(folder: Path, broker: KafkaBroker, *, kills: int, seed: int, source_format: str, read: str = "driver") -> int:
    """Kill ``kills`` times. Return the number of rows compared at the end.

    Raises: AssertionError - topic and target differ; the message has kill, seed and rows.
    """
    draw = random.Random(seed)
    topic = broker.create(f"kills-{source_format}-{read}-{seed}", PARTITIONS)
    job, form = _job_of(folder, broker, topic, source_format, f"\nread: {read}")
    shop = Shop(broker, topic, form, seed)
    rows = 0
    with Progress() as progress:
        shown = progress.add_task(f"{source_format}, seed {seed}", total=kills)
        try:
            for kill in range(1, kills + 1):
                sender = _Sender(shop)
                try:
                    job.process.start()
                    job.process.wait_for("an answer", lambda status: status["state"] == "RUNNING", _LIMIT_S)
                    sender.pause(draw.uniform(0, LONGEST_S))
                    job.process.kill()
                finally:
                    sender.stop()
                if kill % COMPARE_EVERY == 0 or kill == kills:
                    job.process.start()
                    job.process.wait_for("the end", is_caught_up(ends_of(broker, topic)), _LIMIT_S)
                    rows = _compare(job, shop, f"after kill {kill} with seed {seed}")
                    job.process.kill()
                progress.advance(shown)
        finally:
            job.process.__exit__()
    return rows


def _job_of(folder: Path, broker: KafkaBroker, topic: str, source_format: str, more: str):
    if source_format == "canal":
        return Job(folder, broker, topic, "format: canal" + more), CanalPackets()
    if source_format == "maxwell":
        return Job(folder, broker, topic, "format: maxwell" + more, FIELDS), MaxwellRows()
    return Job(folder, broker, topic, "format: debezium-json" + more), DebeziumRows(True)


def _compare(job: Job, shop: Shop, when: str) -> int:
    found = {key: (note, round(float(amount), 2)) for key, (note, amount) in job.table("note", "amount").items()}
    sent = {key: (row["note"], row["amount"]) for key, row in shop.rows.items()}
    differing = sorted(key for key in {*found, *sent} if found.get(key) != sent.get(key))
    shown = [(key, found.get(key), sent.get(key)) for key in differing[:5]]
    assert not differing, f"{len(differing)} rows differ {when}: (key, target, sent) {shown}"
    return len(sent)


class _Sender:
    """Sends changes on a thread until it is stopped."""

    def __init__(self, shop: Shop) -> None:
        self._stopping = threading.Event()
        self._shop, self._error = shop, None
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        try:
            while not self._stopping.wait(0.05):
                self._shop.change(20)
        except BaseException as error:
            self._error = error

    def pause(self, seconds: float) -> None:
        """Wait while changes are sent."""
        self._stopping.wait(seconds)

    def stop(self) -> None:
        """Wait for the last message. Raises: what sending raised."""
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


def main() -> None:
    """Run the kills of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", seed_of())))
    parser.add_argument("--format", choices=FORMATS, default="canal")
    parser.add_argument("--read", choices=("driver", "executors"), default="driver")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(obtain_kafka(), Path(folder) / "kafka") as broker,
    ):
        job = Path(folder) / "job"
        job.mkdir()
        rows = run(job, broker, kills=given.kills, seed=given.seed, source_format=given.format, read=given.read)
        print(f"{given.kills} kills with seed {given.seed}: {rows} rows are equal.")


if __name__ == "__main__":
    main()
