"""Messages that cannot be read: kept, counted over restarts, limited, and loaded after a correction; on a real broker."""

from __future__ import annotations

import json

import pytest
import requests

from tests.support.kafka_jobs import PARTITIONS, Job, ends_of, is_caught_up

CHANNEL = "topic: {topic}, key: [id], columns: {{id: id, amount: CAST(amount AS STRING)}}, fields: {{{fields}}}"
BROKEN, CORRECT = "id: BIGINT, amount: INT", "id: BIGINT, amount: STRING"


@pytest.fixture
def start(kafka, topic, tmp_path):
    """Create the topic, and a job that is killed at the end."""
    jobs = []

    def start(bad_rows, read="driver"):
        kafka.create(topic, PARTITIONS)
        source = f"format: json\nread: {read}\nbad_rows: {{{bad_rows}, path: ./bad}}"
        jobs.append(Job(tmp_path, kafka, topic, source, CHANNEL.format(topic=topic, fields=BROKEN)))
        return jobs[0]

    yield start
    for job in jobs:
        job.process.__exit__()


def correct(job):
    job.file.write_text(job.file.read_text().replace(BROKEN, CORRECT))


def change(id_, amount):
    return json.dumps({"id": id_, "amount": amount})


def kept_files(job):
    return sorted(path.name for path in (job.folder / "bad/by-kafka").iterdir())


def test_bad_messages_are_kept_over_a_kill_and_loaded_in_order_after_a_correction(kafka, topic, start):
    job = start("max_rows: 100")
    kafka.send(topic, change(1, 10), change(2, "2.5"), change(1, "1.5"), "{", change(1, 11), change(3, "3.5"))
    kafka.send(topic, change(5, "5.5"), partition=1)
    kafka.send(topic, None, partition=1, key=b"5")
    job.process.start()
    status = job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), 240)
    assert status["bad_rows"] == {
        "kept": 5, "window_messages": 8, "window_bad": 5, "replays": 0, "loaded": 0,
        "replay_messages": 0, "replay_read": 0,
    }  # fmt: skip
    assert status["channels"][0]["bad_messages"] == 5 and job.table("amount") == {1: ("11",)}
    metrics = requests.get(f"http://127.0.0.1:{job.port}/metrics", timeout=30).text
    assert 'cdc_kafka_bad_messages{job_name="by-kafka",source="shop.orders"} 5.0' in metrics
    job.process.kill()
    kafka.send(topic, change(6, 6), change(7, "7.5"))
    job.process.start()
    status = job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), 240)
    assert (status["bad_rows"]["kept"], status["bad_rows"]["window_messages"]) == (6, 10)
    assert "6 messages are kept as files" in job.cdc("status", "by-kafka")
    assert "cannot be read" in job.cdc("check", job.file)  # a warning

    correct(job)
    found = json.loads(job.cdc("replay-bad", "by-kafka", "--output", "json").splitlines()[0])
    assert found == {"job": "by-kafka", "loaded": 5, "kept": 1}
    # the change of row 1 and the delete of row 5 came after their kept messages
    assert job.table("amount") == {1: ("11",), 2: ("2.5",), 3: ("3.5",), 6: ("6",), 7: ("7.5",)}
    assert kept_files(job) == ["1-0.jsonl"]
    (kept,) = [json.loads(line) for line in (job.folder / "bad/by-kafka/1-0.jsonl").read_text().splitlines()[1:]]
    assert (kept["partition"], kept["offset"]) == (0, 3)
    kafka.send(topic, change(2, "2.75"))
    job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), 240)
    assert "0 messages are loaded, 1 are kept" in job.cdc("replay-bad", "by-kafka")
    assert job.table("amount")[2] == ("2.75",)
    job.file.write_text(job.file.read_text().replace("  bad_rows: {max_rows: 100, path: ./bad}\n", ""))
    assert "keeps no messages" in job.cdc("replay-bad", "by-kafka", code=2)


def test_limit_pauses_and_a_replay_continues_without_it(kafka, topic, start):
    job = start("max_rows: 2", read="executors")  # the driver reads a range with a bad message again
    kafka.send(topic, change(1, 10), change(2, "2.5"), change(3, "3.5"), change(4, 4), change(5, "5.5"), change(1, 11))
    job.process.start()
    status = job.process.wait_for("a pause", lambda status: status["state"] == "PAUSED", 240)
    assert "column amount" in status["reason"] and "offset 4" in status["reason"]
    assert "max_rows" in status["hint"] and "cdc replay-bad by-kafka" in status["hint"]
    assert status["bad_rows"]["kept"] == 2 and job.table("amount") == {1: ("10",), 4: ("4",)}
    kafka.delete_records(topic, 0, 3)
    correct(job)
    assert "no longer has all messages" in job.cdc("replay-bad", "by-kafka", code=1)
    assert "2 messages are loaded, 0 are kept" in job.cdc("replay-bad", "by-kafka", "--accept-gap")
    job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), 240)
    assert job.table("amount") == {1: ("11",), 2: ("2.5",), 3: ("3.5",), 4: ("4",), 5: ("5.5",)}
    assert "0 messages are loaded, 0 are kept" in job.cdc("replay-bad", "by-kafka")
