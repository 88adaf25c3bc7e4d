"""Loads whose rows are in shared memory: all Spark jobs that write them run the plan of one DataFrame.

A new DataFrame for each load costs 50 to 90 ms of CPU for analysis, optimization and planning, and another run of a
DataFrame 25 ms. So the plan does not contain the loads. A job carries the position of its loads in shared memory as a
local property, which its tasks read. A task that is late therefore never sees the loads of a later job, also if the
path of its memory was used again: the property has the inode.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from spark.shared_memory import SharedReader, SharedRows
from spark.writers import OUTCOMES, Outcome, PackedLoad, distributed, outcomes_of, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOADS = (
    "cdc.loads"  # local property of a job: path and inode of the memory, and the position of each partition's loads
)


class SharedLoads:
    """Loads in shared memory, until ``close``. The caller can release their rows."""

    def __init__(self, loads: Sequence[PackedLoad], partition_count: int) -> None:
        """Copy ``loads``, to be written in one Spark job of ``partition_count`` partitions, each on one executor."""
        self.count = len(loads)
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
        except BaseException:
            self.close()
            raise
        self.partition_count = len(orders)
        self.position = json.dumps([self._memory.path, self._memory.inode, orders])

    def close(self) -> None:
        """Release the memory as soon as no executor reads it."""
        self._memory.close()


class SharedWriter:
    """Writes loads on executors that can read the shared memory of this process. Calls: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._frames: dict[int, DataFrame] = {}  # of the session, by number of partitions

    def write(self, spark_session: SparkSession, loads: SharedLoads) -> list[Outcome]:
        """Write ``loads`` in one Spark job."""
        spark_session.sparkContext.setLocalProperty(_LOADS, loads.position)
        return outcomes_of(self._frame(spark_session, loads.partition_count), loads.count)

    def _frame(self, spark_session: SparkSession, partition_count: int) -> DataFrame:
        """Return the DataFrame of a session whose partitions write the loads of the job that runs it."""
        with self._lock:
            if self._session is not spark_session:
                self._session, self._frames = spark_session, {}
            if partition_count not in self._frames:
                rows = spark_session.range(partition_count, numPartitions=partition_count)
                self._frames[partition_count] = rows.mapInArrow(_write_partition, OUTCOMES)
            return self._frames[partition_count]


def _write_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:  # one row, which only makes the partition
        pass
    context = TaskContext.get()
    assert context is not None, "this runs on an executor"
    path, inode, orders = json.loads(context.getLocalProperty(_LOADS) or "")
    memory = SharedReader(path, inode)
    order = cloudpickle.loads(memory.bytes_at(orders[context.partitionId()]))
    for number, name, key, writer, position in order:
        yield written(number, name, key, writer, memory.rows_at(position))
