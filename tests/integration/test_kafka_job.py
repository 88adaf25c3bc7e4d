"""Complete jobs on a real broker: Canal's flat messages into Delta tables, with kills, transactions and DDL."""

from __future__ import annotations

import json
import random
import zlib
from contextlib import suppress

import psutil
import pytest
import requests
from confluent_kafka import Consumer, TopicPartition

from cdc.demo import proof
from tests.support.kafka_jobs import PARTITIONS, Job, ends_of, is_caught_up
from tests.support.limits import HANG_S
from tests.support.receiving import until
from tests.support.seeds import seed_of

SOURCE = "format: canal-json\ngroup_id: {topic}\n"
TYPES = {"id": "bigint", "note": "varchar(100)", "amount": "decimal(10,2)"}


def message(kind, rows, old=None, types=None, **more):
    """One flat message of Canal with rows of ``shop.orders``."""
    return json.dumps(
        {
            "data": rows,
            "database": "shop",
            "es": 1_700_000_000_000,
            "isDdl": False,
            "mysqlType": types or TYPES,
            "old": old,
            "pkNames": ["id"],
            "table": "orders",
            "ts": 1_700_000_000_500,
            "type": kind,
            **more,
        }
    )


class Shop:
    """Keyed rows, and their changes in a topic: each key in one partition."""

    def __init__(self, broker, topic, seed):
        self.topic, self.rows = topic, {}
        self._producer, self._random = broker.producer(linger_ms=20), random.Random(seed)

    def change(self, count):
        """Send ``count`` changes, and apply them to the model."""
        for _ in range(count):
            key = self._random.randrange(400)
            before = self.rows.get(key)
            if before is not None and self._random.random() < 0.2:
                kind, after = "DELETE", before
                del self.rows[key]
            else:
                kind = "INSERT" if before is None else "UPDATE"
                after = {
                    "id": str(key),
                    "note": f"nöte {self._random.random()}",
                    "amount": f"{self._random.randrange(9999) / 100}",
                }
                self.rows[key] = after
            partition = zlib.crc32(str(key).encode()) % PARTITIONS
            old = [{"note": before["note"]}] if kind == "UPDATE" else None
            self._producer.produce(self.topic, message(kind, [after], old), partition=partition)
        assert self._producer.flush(HANG_S) == 0


@pytest.fixture
def start(kafka, topic, tmp_path):
    """Create the topic, and a job that is killed at the end."""
    jobs = []

    def start(more="", channel=""):
        kafka.create(topic, PARTITIONS)
        job = Job(tmp_path, kafka, topic, SOURCE.format(topic=topic) + more, channel)
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.process.__exit__()


def expected(rows):
    return {key: (one["note"], float(one["amount"])) for key, one in rows.items()}


def table_of(job):
    return {key: (note, float(amount)) for key, (note, amount) in job.table("note", "amount").items()}


def test_kafka_job_equals_the_model_after_kills_and_pauses_at_ddl(kafka, topic, start):
    job = start()
    shop = Shop(kafka, topic, seed_of())
    shop.change(500)
    assert "can start" in job.cdc("check", job.file)
    job.process.start()
    job.process.wait_for("a commit", lambda status: status["checkpoint"] and status["checkpoint"]["rows"], HANG_S)
    for _ in range(2):
        shop.change(1000)
        job.process.kill()
        shop.change(200)
        job.process.start()
        job.process.wait_for("a run", lambda status: status["state"] == "RUNNING", HANG_S)
    status = job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), HANG_S)
    assert table_of(job) == expected(shop.rows) and len(shop.rows) > 100
    assert {one["lag_messages"] for one in status["partitions"]} == {0}
    assert {one["behind_seconds"] for one in status["partitions"]} == {0.0}
    metrics = requests.get(f"http://127.0.0.1:{job.port}/metrics", timeout=HANG_S).text
    assert f'cdc_kafka_lag_messages{{job_name="by-kafka",partition="0",topic="{topic}"}} 0.0' in metrics

    wide = {**TYPES, "extra": "int"}
    row = {"id": "9999", "note": "wide", "amount": "1.00", "extra": "5"}
    sql = "ALTER TABLE orders ADD extra INT"
    kafka.send(topic, message("ALTER", None, isDdl=True, sql=sql), message("INSERT", [row], types=wide))
    status = job.process.wait_for("a pause", lambda status: status["state"] == "PAUSED", HANG_S)
    assert "orders" in status["reason"] and "cdc resume by-kafka" in status["hint"]
    assert table_of(job) == expected(shop.rows)


def test_kafka_job_with_transactions_ends_at_stop_at(kafka, topic, start):
    job = start("stop_at: end")
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for key in range(10 * number, 10 * number + 10):
            row = {"id": str(key), "note": "n", "amount": "1.5"}
            producer.produce(topic, message("INSERT", [row]), partition=key % PARTITIONS)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    kafka.send(topic, None, partition=1)  # a tombstone is no row
    job.process.start()
    assert job.process.wait(HANG_S) == 0
    assert table_of(job) == {key: ("n", 1.5) for number in (0, 2, 4) for key in range(10 * number, 10 * number + 10)}
    found = json.loads(job.cdc("status", "by-kafka", "--output", "json"))
    assert found["state"] == "DONE"
    partitions = found["position"]["topics"][topic]["partitions"]
    assert {int(number): one[0] for number, one in partitions.items()} == ends_of(kafka, topic)


def test_check_of_a_kafka_job_names_what_is_wrong(kafka, topic, start, tmp_path):
    job = start("start: latest")
    kafka.send(topic, "not json at all")
    refused = job.cdc("check", job.file, code=3)
    assert "cannot be read" in refused and topic in refused
    job.file.write_text(job.file.read_text().replace(f'"{topic}"', f'"{topic}_x"'))
    assert f"no topic {topic}_x" in job.cdc("check", job.file, code=3)


def test_kafka_job_reports_offsets_to_its_group(kafka, topic, start):
    job = start()
    kafka.send(topic, message("INSERT", [{"id": "1", "note": "a", "amount": "1"}]))
    job.process.start()
    group = Consumer({"bootstrap.servers": kafka.address, "group.id": topic})
    until(lambda: group.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 1)
    group.close()
    assert table_of(job) == {1: ("a", 1.0)}


COMPUTED = "}, {source: shop.computed, target: ods.computed, columns: {id: id, twice: n * 2}, filter: n >= 0"


def send_computed(kafka, topic, first, last):
    """Send rows of a table with expressions, a third of which the filter deletes."""
    producer = kafka.producer(linger_ms=20)
    for key in range(first, last):
        row = {"id": str(key), "n": str(key if key % 3 else -1)}
        types = {"id": "bigint", "n": "int"}
        producer.produce(topic, message("INSERT", [row], types=types, table="computed"), partition=key % PARTITIONS)
    assert producer.flush(HANG_S) == 0


def kill_workers(driver: int) -> int:
    """Kill the Python workers of Spark. Return their number."""
    killed = 0
    for child in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.Error):  # some end meanwhile
            if "spark.worker_daemon" in child.cmdline():
                child.kill()
                killed += 1
    return killed


def test_executors_read_a_job_that_equals_the_model_after_kills_and_pauses(kafka, topic, start):
    job = start("read: executors", COMPUTED)
    shop = Shop(kafka, topic, seed_of())
    shop.change(500)
    send_computed(kafka, topic, 0, 30)
    job.process.start()
    job.process.wait_for("a commit", is_caught_up(ends_of(kafka, topic)), HANG_S)
    shop.change(1000)
    send_computed(kafka, topic, 30, 90)
    assert kill_workers(job.process.pid)
    shop.change(200)
    job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), HANG_S)
    assert table_of(job) == expected(shop.rows)
    shop.change(1000)
    job.process.kill()
    shop.change(200)
    job.process.start()
    status = job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), HANG_S)
    assert table_of(job) == expected(shop.rows) and len(shop.rows) > 100
    assert {one["lag_messages"] for one in status["partitions"]} == {0}
    computed = proof.read_delta(job.folder / "warehouse/ods/computed").to_pylist()
    assert {one["id"]: one["twice"] for one in computed} == {key: 2 * key for key in range(90) if key % 3}
    log = job.process.log.read_text()
    assert log.count("the driver reads a range") == 1 and "no table is loaded yet" in log

    row = {"id": "9999", "note": "last", "amount": "1.00"}
    kafka.send(topic, message("INSERT", [row]), "not json")
    status = job.process.wait_for("a pause", lambda status: status["state"] == "PAUSED", HANG_S)
    assert "message cannot be loaded" in status["reason"]
    assert table_of(job) == {**expected(shop.rows), 9999: ("last", 1.0)}
