"""A PartitionReader without a source: numbers of a range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from cdc.model.schema import DELETED, SEQUENCE
from cdc.sources.partition_reader import PartitionBatch

SCHEMA = pa.schema([("id", pa.int32()), (DELETED, pa.bool_()), (SEQUENCE, pa.int64())])


@dataclass(frozen=True)
class NumberReader:
    """Yield the numbers after ``start`` up to ``end``, ``size`` in a batch. A position is the last number."""

    start: int
    end: int
    size: int = 3

    def batches(self, is_over: Callable[[], bool]) -> Iterator[PartitionBatch]:
        position = self.start
        while position < self.end:
            numbers = range(position + 1, min(position + self.size, self.end) + 1)
            position = numbers[-1]
            columns = [numbers, [False] * len(numbers), [1] * len(numbers)]
            rows = pa.record_batch(
                [pa.array(list(column), one.type) for column, one in zip(columns, SCHEMA, strict=True)], SCHEMA
            )
            yield PartitionBatch(rows, position, 10 * len(numbers))
            if is_over():
                return
        yield PartitionBatch(None, position, is_last=True)
