"""Complete jobs with a Kafka source and a Delta sink: the job file, the command ``cdc`` and the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from cdc.demo import proof
from cdc.demo.local_servers import free_port
from cdc.demo.process import JobProcess

ROOT = Path(__file__).parents[2]
PARTITIONS = 3
JOB = """\
name: by-kafka
source:
  type: kafka
  brokers: ["{broker}"]
  topics: ["{topic}"]
  {source}
sink: {{type: delta, path: ./warehouse}}
channels: [{{source: shop.orders, target: ods.orders, {channel}}}]
commit: {{interval: 300ms}}
status: {{port: {port}}}
"""


class Job:
    """The job file, the command ``cdc`` and the driver."""

    def __init__(self, folder, broker, topic, source, channel=""):
        """``source``: more lines of the source; ``channel``: more keys of the channel."""
        self.folder, self.port = folder, free_port()
        self.file = folder / "job.yaml"
        lines = source.replace("\n", "\n  ")
        self.file.write_text(
            JOB.format(broker=broker.address, topic=topic, source=lines, channel=channel, port=self.port)
        )
        self.process = JobProcess(self.file, home=folder / "home", port=self.port)

    def cdc(self, *words, code=0):
        """Run ``cdc``, and return its output."""
        environment = {**os.environ, "CDC_HOME": str(self.folder / "home"), "NO_COLOR": "1", "COLUMNS": "200"}
        command = [sys.executable, "-m", "cdc.cli.main", *map(str, words)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def table(self, *columns):
        """Return the target by its column ``id``: the values of ``columns``."""
        found = proof.read_delta(self.folder / "warehouse/ods/orders").to_pylist()
        assert len({one["id"] for one in found}) == len(found)
        return {one["id"]: tuple(one[name] for name in columns) for one in found}


def is_caught_up(ends: dict[int, int]) -> Callable[[dict[str, Any]], bool]:
    """Return a condition on the status: everything up to ``ends`` is committed."""

    def reached(status: dict[str, Any]) -> bool:
        found = {one["partition"]: one["next_offset"] for one in status["partitions"]}
        return found == ends and status["lag_seconds"] == 0

    return reached


def ends_of(broker, topic: str) -> dict[int, int]:
    """Return the end of each partition."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "ends"})
    found = {number: consumer.get_watermark_offsets(TopicPartition(topic, number))[1] for number in range(PARTITIONS)}
    consumer.close()
    return found
