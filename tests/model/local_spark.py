"""A Spark session for ranges of a source that runs the functions of executors in this process, without Spark."""

from __future__ import annotations

import pickle

import pyarrow as pa


class LocalSession:
    """Has what ``channels.partition_read`` uses for rows that are copied."""

    def range(self, count, numPartitions):
        assert count == numPartitions
        return _Frame(count)


class _Frame:
    def __init__(self, count, function=None):
        self._count, self._function = count, function

    def mapInArrow(self, function, schema):
        return _Frame(self._count, function)

    def collect(self):
        rows = []
        for number in range(self._count):
            for batch in self._function(iter([pa.record_batch([pa.array([number])], ["id"])])):
                rows += batch.to_pylist()
        return rows


def sent(value):
    """Return ``value`` as an executor gets it."""
    return pickle.loads(pickle.dumps(value))
