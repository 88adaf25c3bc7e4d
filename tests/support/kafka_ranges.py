"""Plan ranges of offsets, and read them as executors do, without Spark."""

from __future__ import annotations

import json
import pickle

from cdc.sources.base import RangeTable, RangeTables
from tests.support.kafka_receivers import PLAIN
from tests.support.receiving import Mapped, until

ORDERS = RangeTables((RangeTable(PLAIN, 0, {"key": "id", "note": "note"}),))


class Tables(Mapped):
    """Tables of the job, for executors."""

    def schema(self, database, table):
        return None


def next_range(receiver, messages=1000):
    """Return the next planned range."""
    found = []

    def is_planned():
        receiver.plan(messages, messages)
        batch = receiver.get(0.1)
        if batch is not None:
            assert batch.is_planned and not batch.changes
            found.append(batch)
        return bool(found)

    until(is_planned)
    return found[0]


def read(receiver, planned, tables=ORDERS, sequence=0, count=2):
    """Read a range as executors do. Return the rows, and the last positions of the readers."""
    found, positions = [], []
    for reader in receiver.readers(planned, tables, sequence, count):
        batches = list(pickle.loads(pickle.dumps(reader)).batches(lambda: True))
        found += [one for batch in batches if batch.rows is not None for one in batch.rows.to_pylist()]
        positions.append(json.loads(json.dumps(batches[-1].position)))
        assert [batch.is_last for batch in batches] == [False] * (len(batches) - 1) + ["ended" not in positions[-1]]
    return found, positions


def ended(positions):
    """Return why the range ended."""
    return next(one["ended"] for one in positions if "ended" in one)


def offsets(position):
    return {number: offset.next for (_, number), offset in position.offsets.items()}
