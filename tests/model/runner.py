"""A TaskRunner on threads of this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

import pyarrow as pa

from cdc.model.row_keys import newest_rows
from tests.model.local_spark import LocalSession


class ThreadRunner:
    """Implements TaskRunner, for mappings that copy all columns by name.

    ``every_row``: send all rows to the sink, not only the newest one of each key as Spark does.
    """

    def __init__(self, sink, threads=2, every_row=True):
        self.sink = sink
        self.every_row = every_row
        self.is_warming = False
        self.threads = threads
        self.submitted = []
        self.reads = 0  # of ranges
        self._futures = []
        self._pool = ThreadPoolExecutor(threads)

    def warm_up(self):
        pass

    def warning(self):
        return None

    def submit(self, tasks):
        assert all(task.mapping.columns is None and task.copies is not None for task in tasks)
        self.submitted += [task.name for task in tasks]
        if self.sink.tasks_in_order and self.threads > 1:
            self.threads = 1
            self.cancel(0)
        futures = [self._pool.submit(self._prepare, task) for task in tasks]
        self._futures += futures
        return futures

    def submit_reading(self, reading):
        assert not self.sink.tasks_in_order
        self.reads += 1
        self._futures.append(self._pool.submit(reading.run, LocalSession(), 2))
        return self._futures[-1]

    def _prepare(self, task):
        rows = task.rows
        if not self.every_row:
            rows = newest_rows(pa.Table.from_batches(rows), task.target.key).to_batches()
        return (self.sink.part_writer(task.target)(task.name, iter(rows)),)

    def cancel(self, timeout_s):
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait([future for future in self._futures if not future.cancelled()], timeout_s)
        self._futures.clear()
        self._pool = ThreadPoolExecutor(self.threads)

    def close(self):
        self._pool.shutdown(wait=True, cancel_futures=True)
