"""Loads whose rows executors read from the driver: all Spark jobs that write them run the plan of one DataFrame.

A new DataFrame for each load costs 50 to 90 ms of CPU for analysis, optimization and planning, and another run of a
DataFrame 25 ms. So the plan does not contain the loads. A job carries the position of its loads in the memory of the
driver as a local property, which its tasks read. A task that is late therefore never sees the loads of a later job:
the property has the identity of the memory.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from spark.hidden_pandas import hide_pandas
from spark.row_transport import MemoryReader, RowTransport
from spark.shared_memory import SharedRows
from spark.writers import OUTCOMES, Outcome, PackedLoad, distributed, outcomes_of, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOADS = "cdc.loads"  # local property of a job: its memory, and there the position of each partition's loads


class SharedLoads:
    """Loads that executors can read, until ``close``. The caller can release their rows."""

    def __init__(self, loads: Sequence[PackedLoad], partition_count: int, transport: RowTransport) -> None:
        """Copy ``loads``, to be written in one Spark job of ``partition_count`` partitions, each on one executor."""
        self.count = len(loads)
        self.transport = transport
        self._memory = SharedRows()
        try:
            positions = [self._memory.put(load.rows) for load in loads]
            orders = []
            for numbers in distributed(loads, partition_count):
                order = [
                    (number, loads[number].name, loads[number].key, loads[number].writer, positions[number])
                    for number in numbers
                ]
                orders.append(self._memory.put_bytes(cloudpickle.dumps(order)))  # type: ignore[no-untyped-call]
            self.partition_count = len(orders)
            self.position = json.dumps([transport.share(self._memory), orders])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the memory as soon as no executor reads it."""
        self.transport.withdraw(self._memory)
        self._memory.close()


class SharedWriter:
    """Writes ``SharedLoads``. Calls: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plan: tuple[SparkSession, RowTransport] | None = None
        self._frames: dict[int, DataFrame] = {}  # of the session and the transport, by number of partitions

    def write(self, spark_session: SparkSession, loads: SharedLoads) -> list[Outcome]:
        """Write ``loads`` in one Spark job."""
        spark_session.sparkContext.setLocalProperty(_LOADS, loads.position)
        return outcomes_of(self._frame(spark_session, loads.transport, loads.partition_count), loads.count)

    def _frame(self, spark_session: SparkSession, transport: RowTransport, partition_count: int) -> DataFrame:
        """Return the DataFrame of a session whose partitions write the loads of the job that runs it."""
        with self._lock:
            if self._plan != (spark_session, transport):
                self._plan, self._frames = (spark_session, transport), {}
            if partition_count not in self._frames:
                partitions = spark_session.range(partition_count, numPartitions=partition_count)
                self._frames[partition_count] = partitions.mapInArrow(_partition_writer(transport.reader), OUTCOMES)
            return self._frames[partition_count]


def _partition_writer(
    reader: Callable[..., MemoryReader],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        hide_pandas()
        for _ in batches:  # one row, which only makes the partition
            pass
        context = TaskContext.get()
        assert context is not None, "this runs on an executor"
        key, orders = json.loads(context.getLocalProperty(_LOADS) or "")
        with closing(reader(*key)) as memory:
            order = cloudpickle.loads(memory.bytes_at(orders[context.partitionId()]))
            for number, name, columns, writer, position in order:
                yield written(number, name, columns, writer, memory.rows_at(position))

    return write
