"""The harness with a real Kafka broker: Canal's flat messages in two topics with two partitions each."""

from __future__ import annotations

import json
from dataclasses import dataclass

import cdc.sources.kafka.reader
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.formats.canal_json import CanalJson
from cdc.sources.kafka.receiver import KafkaReceiver
from cdc.sources.kafka.start import KafkaStart, resolve
from tests.model.harness import Harness
from tests.model.source import Source

PARTITIONS = 2
_TYPES = {"id": "int", "op": "bigint"}
_READ_MESSAGES = 4  # of one read, so that there are many Batches and cycles


@dataclass(frozen=True)
class Sent:
    """The transactions that were sent, the broker, and a topic for each table."""

    model: Source
    address: str
    topics: tuple[str, ...]

    @property
    def settings(self) -> KafkaSettings:
        """How to read the topics."""
        return KafkaSettings((self.address,), self.topics, "test")

    def position(self, word: str):
        """Return the first or the last position: ``earliest`` or ``latest``."""
        with Cluster(self.settings) as cluster:
            return resolve(cluster, KafkaStart(word))


def send(broker, prefix: str, model: Source) -> Sent:
    """Send every row of ``model``, in order, to the topic of its table and the partition of its key."""
    topics = {
        table: broker.create(f"{prefix}_{table.partition('.')[2]}", PARTITIONS)
        for table in sorted({row.table for each in model.transactions for row in each})
    }
    producer = broker.producer()
    for row in (row for transaction in model.transactions for row in transaction):
        database, _, table = row.table.partition(".")
        message = {
            "data": [{"id": str(row.key), "op": str(row.op)}], "old": None, "type": "DELETE" if row.deleted else "INSERT",
            "database": database, "table": table, "isDdl": False, "mysqlType": _TYPES, "pkNames": ["id"],
        }  # fmt: skip
        producer.produce(topics[row.table], json.dumps(message), partition=row.key % PARTITIONS)
    assert producer.flush(60) == 0
    return Sent(model, broker.address, tuple(topics.values()))


class _Tables:
    """The tables of the routes; the messages describe them."""

    def __init__(self, routes):
        self.maps, self.reads, self.leave_out = routes.maps, routes.reads, routes.leave_out

    def schema(self, database, table):
        return None


class KafkaHarness(Harness):
    def __init__(self, folder, sent: Sent, **options):
        super().__init__(folder, sent.model, **options)
        self.sent = sent
        cdc.sources.kafka.reader.MESSAGES = _READ_MESSAGES

    def new_receiver(self):
        return KafkaReceiver(
            self.sent.settings,
            CanalJson(_Tables(self.routes)),
            self.routes,
            stop_at=lambda: self.sent.position("latest"),
            **self.receiver_options,
        )

    def first_position(self):
        return self.sent.position("earliest")
