"""The harness with a real Kafka broker: Canal's flat messages in two topics with two partitions each."""

from __future__ import annotations

import json
import random
from collections.abc import Container
from dataclasses import dataclass, replace

import numpy as np

from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.formats.canal_json import CanalJson
from cdc.sources.kafka.range_planner import ExecutorReads
from cdc.sources.kafka.receiver import KafkaReceiver
from cdc.sources.kafka.start import KafkaStart, resolve
from tests.model.harness import Harness
from tests.model.source import Source

PARTITIONS = 2
_TYPES = {"id": "int", "op": "bigint"}
READ_MESSAGES = 4  # of one read, so that there are many Batches and cycles
_FIRST_MESSAGES = 8  # of the first range, which the driver reads


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


def send(broker, prefix: str, model: Source, broken: Container[int] = ()) -> Sent:
    """Send every row of ``model``, in order, to the topic of its table and the partition of its key.

    ``broken``: operations whose messages begin with "!", so that they are not JSON.
    """
    topics = {
        table: broker.create(f"{prefix}_{table.partition('.')[2]}", PARTITIONS)
        for table in sorted({row.table for each in model.transactions for row in each})
    }
    _produce(broker, topics, model.transactions, broken)
    return Sent(model, broker.address, tuple(topics.values()))


def send_more(broker, prefix: str, sent: Sent, transactions: int, draw: random.Random) -> None:
    """Write more transactions into the tables that ``send`` has sent, and send them."""
    before = len(sent.model.transactions)
    sent.model.write_random(draw, transactions)
    topics = {f"shop.{name.removeprefix(f'{prefix}_')}": name for name in sent.topics}
    _produce(broker, topics, sent.model.transactions[before:])


def _produce(broker, topics, transactions, broken: Container[int] = ()) -> None:
    producer = broker.producer()
    for row in (row for transaction in transactions for row in transaction):
        database, _, table = row.table.partition(".")
        message = {
            "data": [{"id": str(row.key), "op": str(row.op)}], "old": None, "type": "DELETE" if row.deleted else "INSERT",
            "database": database, "table": table, "isDdl": False, "mysqlType": _TYPES, "pkNames": ["id"],
        }  # fmt: skip
        text = ("!" if row.op in broken else "") + json.dumps(message)
        producer.produce(topics[row.table], text, partition=row.key % PARTITIONS)
    assert producer.flush(60) == 0


class DescribedTables:
    """The tables of the routes; the messages describe them."""

    def __init__(self, routes):
        self.maps, self.reads, self.leave_out = routes.maps, routes.reads, routes.leave_out

    def schema(self, database, table):
        return None


def canal_json_receiver(sent: Sent, routes, form=CanalJson, **options) -> KafkaReceiver:
    """Return a receiver of the messages. ``form``: the class of the format."""
    return KafkaReceiver(sent.settings, form(DescribedTables(routes)), routes, **options)


class Corrected(CanalJson):
    """The format after the correction: it skips a "!" before a message."""

    def decode(self, block):
        marked = (block.value_size > 0) & (block.data[block.value_at] == ord("!"))
        moved = marked.astype(np.int64)
        return super().decode(replace(block, value_at=block.value_at + moved, value_size=block.value_size - moved))


class KafkaHarness(Harness):
    executors = False

    def __init__(self, folder, sent: Sent, **options):
        super().__init__(folder, sent.model, **options)
        self.sent = sent
        # SHARE_MESSAGES: so that a range has two readers
        for name, value in (("_FIRST_MESSAGES", _FIRST_MESSAGES), ("SHARE_MESSAGES", 2)):
            self._constants.setattr(f"cdc.sources.kafka.range_planner.{name}", value)
        self._constants.setattr("cdc.sources.kafka.reader.MESSAGES", READ_MESSAGES)

    def new_receiver(self):
        options = {"stop_at": lambda: self.sent.position("latest"), **self.receiver_options}
        if self.executors:
            options["executors"] = ExecutorReads(CanalJson, DescribedTables(self.routes))
        return canal_json_receiver(self.sent, self.routes, **options)

    def first_position(self):
        return self.sent.position("earliest")


class ExecutorsHarness(KafkaHarness):
    """Executors read the messages. Their functions run in this process."""

    executors = True
    shows_every_row = False
