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
    """Writes loads on executors that can read the shared memory of this process. Calls: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._frames: dict[int, DataFrame] = {}  # of the session, by number of partitions

    def write(self, spark_session: SparkSession, loads: Sequence[PackedLoad], partition_count: int) -> list[Outcome]:
        """Write ``loads`` in one Spark job, each on one executor, distributed to ``partition_count`` partitions."""
        partitions = distributed(loads, partition_count)
        context = spark_session.sparkContext
        with SharedRows() as memory:
            positions = [memory.put(load.rows) for load in loads]
            orders = []
            for numbers in partitions:
                order = [
                    (number, loads[number].name, loads[number].key, loads[number].writer, positions[number])
                    for number in numbers
                ]
                orders.append(memory.put_bytes(cloudpickle.dumps(order)))  # type: ignore[no-untyped-call]
            context.setLocalProperty(_LOADS, json.dumps([memory.path, memory.inode, orders]))
            return outcomes_of(self._frame(spark_session, len(partitions)), len(loads))

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
