"""A TaskRunner on threads of this process: rows go to the sink as they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor


class ThreadRunner:
    """Implements TaskRunner, for mappings that copy all columns by name."""

    def __init__(self, sink, threads=2):
        self.sink = sink
        self.threads = threads
        self.submitted = []
        self._pool = ThreadPoolExecutor(threads)

    def warm_up(self):
        pass

    def submit(self, tasks):
        assert all(task.mapping.columns is None and task.copies is not None for task in tasks)
        self.submitted += [task.name for task in tasks]
        if self.sink.tasks_in_order and self.threads > 1:
            self.threads = 1
            self.cancel()
        return [self._pool.submit(self._prepare, task) for task in tasks]

    def _prepare(self, task):
        return (self.sink.part_writer(task.target)(task.name, iter(task.rows)),)

    def cancel(self):
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = ThreadPoolExecutor(self.threads)

    def close(self):
        self._pool.shutdown(wait=True, cancel_futures=True)
