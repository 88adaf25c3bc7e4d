"""One job's surroundings in a folder, and a loop that starts run after run as the Job does."""

from __future__ import annotations

import threading
from pathlib import Path

from cdc.batch import FENCE_STEP
from cdc.checkpoint_sqlite import SqliteStore
from cdc.consumer import Consumer, Ended
from cdc.errors import Answer, decide
from cdc.parts import Limits, Parts, Widening
from channels.mapping import Mapping, Routes
from channels.task import RunIdentity
from tests.flow.runner import ThreadRunner
from tests.flow.sink import FileSink
from tests.flow.source import Source, SourceReceiver, place, schema_of

JOB = "shop"
MAPPINGS = (Mapping("shop.*", "ods.*"),)
MAPPINGS[0].resolved("shop.orders").target_table(schema_of("shop.orders"))  # loads the SQL parser before any fork
SMALL = Limits(interval_s=0.01, min_rows=2, min_bytes=1, max_bytes=100, max_rows=10, task_bytes=1)


class Harness:
    def __init__(self, folder: Path, source: Source, *, limits=SMALL, mappings=MAPPINGS, **receiver):
        self.source = source
        self.limits = limits
        self.store = SqliteStore(folder / "home")
        self.sink = self.new_sink(folder)
        self.runner = ThreadRunner(self.sink)
        self.routes = Routes(mappings)
        self.record = self.store.acquire(JOB, "shop.yaml")
        self.run = RunIdentity(JOB, self.record.incarnation, self.record.fence)
        self.sequence = self.record.fence * FENCE_STEP
        self.receiver_options = receiver
        self.widening = Widening()
        self.wrap_receiver = self.wrap_sink = self.wrap_runner = self.wrap_store = lambda inner: inner
        self.receiver = None
        self.consumer = None

    def start(self):
        """A Consumer as the next run would have it."""
        sink = self.wrap_sink(self.sink)
        self.runner.sink = sink
        self.receiver = self.new_receiver()
        parts = Parts(
            self.run,
            self.wrap_receiver(self.receiver),
            self.routes,
            self.wrap_runner(self.runner),
            sink,
            self.wrap_store(self.store),
        )
        self.consumer = Consumer(parts, self.limits, sequence=self.sequence, widening=self.widening)
        return self.consumer

    def new_sink(self, folder):
        return FileSink(folder / "sink.db")

    def new_receiver(self):
        return SourceReceiver(self.source, self.routes, **self.receiver_options)

    def first_place(self):
        return place(0)

    def once(self):
        """One run; what it raised, or how it ended."""
        consumer = self.start()
        try:
            return consumer.run(self.first_place)
        finally:
            self.sequence = consumer.sequence

    def until_finished(self, runs=30):
        """Run after run until the source is finished; the errors on the way, all of which passed by themselves."""
        errors = []
        for _ in range(runs):
            try:
                if self.once() is Ended.FINISHED:
                    return errors
            except Exception as error:
                assert decide(error) is Answer.RETRY, error
                errors.append(error)
        raise AssertionError(f"not finished after {runs} runs: {errors}")

    def in_background(self):
        """A run on a thread; call ``consumer.stop()`` and ``join``."""
        consumer = self.start()
        thread = Background(lambda: consumer.run(self.first_place))
        thread.start()
        return thread

    def verify(self, until=None):
        """Source equals target row for row; no change became visible twice, or before an older one of its key."""
        expected = {f"ods.{name.split('.')[1]}": rows for name, rows in self.source.state(until).items()}
        assert self.sink.rows() == expected
        log = self.sink.log()
        assert len(log) == len(set(log)), "a change became visible twice"
        ops = {row.op: row for transaction in self.source.transactions[:until] for row in transaction}
        assert set(log) == set(ops)
        newest = {}
        for op in log:
            key = (ops[op].table, ops[op].key)
            assert newest.get(key, 0) < op, "an older change came after a newer one"
            newest[key] = op
        assert self.store.unfinished() == ()
        assert self.sink.prepared() == []
        committed = self.store.last_committed(JOB)
        totals = {name: (counts.upserts, counts.deletes) for name, counts in committed.counts.items()}
        rows = list(ops.values())
        assert totals == {
            table: (
                sum(row.table == table and not row.deleted for row in rows),
                sum(row.table == table and row.deleted for row in rows),
            )
            for table in {row.table for row in rows}
        }

    def close(self):
        self.runner.close()
        self.store.close()
        self.sink.close()


class Background(threading.Thread):
    def __init__(self, work):
        super().__init__(daemon=True)
        self.work = work
        self.result = self.error = None

    def run(self):
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error

    def ended(self, timeout_s=240):
        self.join(timeout_s)
        assert not self.is_alive(), "the run did not end"
        if self.error:
            raise self.error
        return self.result
