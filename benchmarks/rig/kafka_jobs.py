"""Complete jobs with a Kafka source: a broker on this machine, Canal's flat messages, and a Delta sink."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from benchmarks.rig.freshness import lags, watched
from benchmarks.rig.jobs import EVERY_SECOND
from benchmarks.rig.measure import Usage, Watch, report
from benchmarks.rig.suite import Options
from cdc.demo.local_servers import free_port
from cdc.demo.process import JobProcess
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from tests.emulators.kafka import KafkaBroker, obtain_kafka

PARTITIONS = 4
MANY_TOPICS, MANY_PARTITIONS = 100, 2
TYPES = {
    "id": "bigint", "customer_id": "int", "status": "varchar(40)", "priority": "tinyint", "amount": "decimal(12,2)",
    "note": "varchar(100)", "day": "date", "ordered_at": "datetime", "changed_at": "timestamp(3)", "weight": "double",
}  # fmt: skip
_JOB = """\
name: bench
source: {{type: kafka, brokers: ["{broker}"], topics: ["{topics}"], format: canal-json, read: {read}}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels: [{{source: shop.*, target: ods.*}}]
status: {{port: {port}}}
{settings}
"""
_EVENTS = "spark: {conf: {spark.eventLog.enabled: 'true', spark.eventLog.compress: 'false', spark.eventLog.dir: '%s'}}"
_CHECKED = "number of rows, sums of ids and amounts"
_PER_S, _BURST_MESSAGES, _ROWS = 2000, 100, 1_000_000
_CYCLES, _CYCLE_MESSAGES = 8, 50  # of each partition


def _template(table: str) -> str:
    """Return a message with %s for id, amount in cents (two digits), and time of the change."""
    row = {
        "id": "@id", "customer_id": "471108", "status": "waiting for payment", "priority": "3", "amount": "@amount",
        "note": "please ring twice, the dog is friendly", "day": "2024-01-07", "ordered_at": "2024-01-02 03:04:05",
        "changed_at": "@time", "weight": "17.375",
    }  # fmt: skip
    message = {
        "data": [row], "database": "shop", "es": 1_700_000_000_000, "gtid": "", "id": 1, "isDdl": False,
        "mysqlType": TYPES, "old": None, "pkNames": ["id"], "sql": "", "sqlType": dict.fromkeys(TYPES, 12),
        "table": table, "ts": 1_700_000_000_123, "type": "INSERT",
    }  # fmt: skip
    text = json.dumps(message, separators=(",", ":")).replace("%", "%%")
    return text.replace("@id", "%d").replace("@amount", "%d.%02d").replace("@time", "%s")


class KafkaRig:
    """A broker, topics, and the job that reads them."""

    def __init__(self, broker: KafkaBroker, folder: Path, read: str) -> None:
        self.broker, self.folder, self._read = broker, folder, read
        self.sent: dict[str, tuple[int, int, int]] = {}  # by table: rows, sum of ids, sum of cents; of distinct ids
        self._topics: list[str] = []
        self._producer = broker.producer(linger_ms=20, compression_type="lz4", queue_buffering_max_messages=10**6)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self.broker.create(topic, partitions)
        self._topics.append(topic)

    def send(self, topic: str, table: str, ids: Sequence[int], partitions: int, at: float = 1_704_164_645.0) -> None:
        """Send a row for each id, which was not sent before, to the partition of the id. Returns before they arrive."""
        template, when = _template(table), f"{datetime.fromtimestamp(at, UTC):%F %T.%f}"[:-3]
        for number in ids:
            text = template % (number, number % 100_000, number % 100, when)
            self._producer.produce(topic, text, partition=number % partitions)
            self._producer.poll(0)
        rows, total, cents = self.sent.get(table, (0, 0, 0))
        amounts = sum(number % 100_000 * 100 + number % 100 for number in ids)
        self.sent[table] = rows + len(ids), total + sum(ids), cents + amounts

    def flush(self) -> None:
        """Wait until the broker has all messages."""
        if self._producer.flush(300):
            raise SystemExit("The messages could not be sent.")

    @contextmanager
    def job(self, settings: str, topics: str) -> Iterator[JobProcess]:
        """Start the job; stop it at the end."""
        port, file = free_port(), self.folder / "job.yaml"
        file.write_text(
            _JOB.format(broker=self.broker.address, topics=topics, read=self._read, port=port, settings=settings)
        )
        with JobProcess(file, home=self.folder / "state", port=port) as job:
            job.start()
            yield job
            if job.stop() not in (0, 143):  # 143: stopped by SIGTERM
                raise SystemExit(f"The job failed: {job.log.read_text()[-3000:]}")

    def wait_caught_up(self, job: JobProcess, timeout_s: float = 1800) -> dict[str, Any]:
        """Wait until all messages that are in the topics now are committed. Return the status."""
        with Cluster(KafkaSettings((self.broker.address,), tuple(self._topics), "bench")) as cluster:
            ends = cluster.ends(cluster.topics().partitions)

        def is_caught_up(status: dict[str, Any]) -> bool:
            found = {(one["topic"], one["partition"]): one["next_offset"] for one in status["partitions"]}
            return all(found.get(one, 0) >= end for one, end in ends.items())

        return job.wait_for(f"caught up with {len(ends)} partitions", is_caught_up, timeout_s)

    def prove(self) -> int:
        """Compare what was sent with the targets, and return the number of rows. Raises: SystemExit - they differ."""
        for table, sent in self.sent.items():
            query = "SELECT COUNT(*), SUM(id), CAST(SUM(amount) * 100 AS BIGINT) FROM target"
            delta = DeltaTable(str(self.folder / "warehouse/ods" / table))
            (row,) = pa.table(QueryBuilder().register("target", delta).execute(query).read_all()).to_pylist()
            if tuple(row.values()) != sent:
                raise SystemExit(f"{table}: {sent} was sent, but the target has {tuple(row.values())}.")
        return sum(rows for rows, _, _ in self.sent.values())


@contextmanager
def _rig(read: str) -> Iterator[KafkaRig]:
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        folder = Path(name)
        with KafkaBroker(obtain_kafka(), folder / "kafka") as broker:
            yield KafkaRig(broker, folder, read)


def _name(read: str, name: str) -> str:
    prefix, _, last = name.rpartition(".")
    return name if read == "driver" else f"{prefix}.executors.{last}"


def catch_up(options: Options, read: str = "driver") -> None:
    """Measure a backlog of messages, from RUNNING until the last row is committed."""
    with _rig(read) as bench:
        bench.create("orders", PARTITIONS)
        for first in range(0, options.rows, 100_000):
            bench.send("orders", "orders", range(first, min(first + 100_000, options.rows)), PARTITIONS)
        bench.flush()
        with bench.job("", "orders") as job, Watch(job.pid) as watch:
            job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 300)
            began = time.monotonic()
            bench.wait_caught_up(job)
            seconds, usage = time.monotonic() - began, watch.usage()
        rows = bench.prove()
    report(
        _name(read, "e2e.kafka.catch_up"), rows / seconds, "rows/s", goal=">= 100,000, target 250,000",
        data={"rows": rows, "partitions": PARTITIONS, "read": read, "work": "10 columns, one row per message"},
        checked=_CHECKED, usage=usage, rows=rows, seconds=round(seconds, 1),
    )  # fmt: skip


def freshness(options: Options, read: str = "driver") -> None:
    """Measure 2,000 messages per second onto ``options.rows`` rows, from sending to visible."""
    seconds = 60.0 if options.rows >= _ROWS else 10.0
    with _rig(read) as bench:
        bench.create("orders", PARTITIONS)
        bench.send("orders", "orders", range(options.rows), PARTITIONS)
        bench.flush()
        with bench.job(EVERY_SECOND, "orders") as job:
            bench.wait_caught_up(job)
            with watched(bench.folder / "warehouse/ods/orders") as seen, Watch(job.pid) as watch:
                sent: list[float] = []
                first = options.rows
                begin, each_s = time.monotonic(), _BURST_MESSAGES / _PER_S
                while len(sent) * each_s < seconds:
                    time.sleep(max(0.0, begin + len(sent) * each_s - time.monotonic()))
                    sent.append(time.time())
                    bench.send("orders", "orders", range(first, first + _BURST_MESSAGES), PARTITIONS, sent[-1])
                    first += _BURST_MESSAGES
                reached = len(sent) * _BURST_MESSAGES / (time.monotonic() - begin)
                bench.flush()
                bench.wait_caught_up(job, 60)
                usage = watch.usage()
        rows = bench.prove()
    if reached < 0.95 * _PER_S:
        raise SystemExit(f"Only {reached:.0f} of {_PER_S} messages per second were sent: no figure.")
    found = lags(sent, seen)
    report(
        _name(read, "e2e.kafka.freshness_p99"), found[int(len(found) * 0.99)], "s", goal="<= 3, target 1.5",
        usage=usage, rows=len(sent) * _BURST_MESSAGES, checked=_CHECKED,
        data={"rows": rows, "messages_per_s": round(reached), "seconds": seconds, "read": read},
        p50=round(found[len(found) // 2], 2), worst=round(found[-1], 2),
    )  # fmt: skip


def many_topics(_: Options, read: str = "driver") -> None:
    """Measure cycles of 200 partitions of 100 topics, their Spark jobs, and the memory of the job."""
    topics = [f"many.t{number:03d}" for number in range(MANY_TOPICS)]
    with _rig(read) as bench:
        events = bench.folder / "events"
        events.mkdir()
        for topic in topics:
            bench.create(topic, MANY_PARTITIONS)
        each = _CYCLE_MESSAGES * MANY_PARTITIONS
        with bench.job(f"{EVERY_SECOND}\n{_EVENTS % events}", "many.*") as job, Watch(job.pid) as watch:
            job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 300)
            cycles: list[float] = []
            jobs_before = 0
            for cycle in range(_CYCLES):
                jobs_before = _spark_jobs(events)
                for topic in topics:
                    bench.send(topic, topic[5:], range(cycle * each, (cycle + 1) * each), MANY_PARTITIONS)
                bench.flush()
                spent = bench.wait_caught_up(job, 600)["checkpoint"]["seconds"]
                cycles.append(spent["prepare"] + spent["commit"] + spent["save"] + (read != "driver") * spent["buffer"])
            usage: Usage = watch.usage()
            jobs = _spark_jobs(events) - jobs_before
        rows = bench.prove()
    report(
        _name(read, "kafka.many_topics"), statistics.median(cycles[2:]), "s", goal="reported", usage=usage,
        data={"topics": MANY_TOPICS, "partitions": MANY_TOPICS * MANY_PARTITIONS, "rows": rows, "read": read},
        checked=_CHECKED, cycles=[round(one, 2) for one in cycles], spark_jobs_of_the_last=jobs,
    )  # fmt: skip


def _spark_jobs(events: Path) -> int:
    """Return the number of Spark jobs that have started."""
    texts = [path.read_text(errors="replace") for path in events.rglob("*") if path.is_file()]
    return sum(text.count('"Event":"SparkListenerJobStart"') for text in texts)
