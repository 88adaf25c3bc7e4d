"""The environment of one job in a folder, and a loop that starts run after run as the Job does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cdc.errors import ErrorAction, action_for
from cdc.model.batch import FENCE_STEP
from cdc.pipeline.consumer import Consumer, Ended
from cdc.pipeline.flow_control import CommitLimits, FlowControl
from cdc.run_context import RunContext
from cdc.state.sqlite import SqliteStore
from channels.mapping import Mapping
from channels.routes import Routes
from channels.task import RunIdentity
from tests.model.runner import ThreadRunner
from tests.model.sink import FileSink
from tests.model.source import Source, SourceReceiver, position_at, schema_of

JOB = "shop"
MAPPINGS = (Mapping("shop.*", "ods.*"),)
MAPPINGS[0].resolved("shop.orders").target_table(schema_of("shop.orders"))  # loads the SQL parser before any fork
SMALL = CommitLimits(interval_s=0.01, min_rows=2, min_bytes=1, max_bytes=100, max_rows=10, task_bytes=1)


class Harness:
    shows_every_row = True  # False: of the rows of a key in one load, only the newest one becomes visible

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
        self.flow = FlowControl()
        self.wrap_receiver = self.wrap_sink = self.wrap_runner = self.wrap_store = lambda inner: inner
        self.more_parts = {}
        self.receiver = None
        self.consumer = None
        self.ended, self.channels = None, {}  # how the last run ended, and its channels: see ``JobRunner``
        self._constants = pytest.MonkeyPatch()  # changed ones of modules; undone by ``close``
        self.waits = []  # reports of commits that wait

    def start(self):
        """Return a Consumer as the next run has it."""
        sink = self.wrap_sink(self.sink)
        self.runner.sink = sink
        self.receiver = self.new_receiver()
        is_continued, self.ended = self.ended is Ended.CHANGING, None
        self.channels = self.channels if is_continued else {}
        parts = RunContext(
            self.run,
            self.wrap_receiver(self.receiver),
            self.routes,
            self.wrap_runner(self.runner),
            sink,
            self.wrap_store(self.store),
            is_continued=is_continued,
            channels=self.channels,
            **self.more_parts,
        )
        self.consumer = Consumer(parts, self.limits, sequence=self.sequence, flow=self.flow, on_wait=self.waits.append)
        return self.consumer

    def new_sink(self, folder):
        return FileSink(folder / "sink.db")

    def new_receiver(self):
        return SourceReceiver(self.source, self.routes, **self.receiver_options)

    def first_position(self):
        return position_at(0)

    def once(self):
        """Run once. Return how it ended, or raise its error."""
        consumer = self.start()
        try:
            self.ended = consumer.run(self.first_position)
            return self.ended
        finally:
            self.sequence = consumer.sequence

    def until_finished(self, runs=30):
        """Run repeatedly until the source is finished. Return the errors in between, all of which were transient."""
        errors = []
        for _ in range(runs):
            try:
                if self.once() is Ended.FINISHED:
                    return errors
            except Exception as error:
                if action_for(error) is not ErrorAction.RETRY:
                    raise
                errors.append(error)
        raise AssertionError(f"not finished after {runs} runs: {errors}")

    def in_background(self):
        """Start a run on a thread. The caller calls ``consumer.stop()`` and ``join``."""
        consumer = self.start()
        thread = Background(lambda: consumer.run(self.first_position))
        thread.start()
        return thread

    def verify(self, until=None):
        """Check that source equals target, and that no change was visible twice or before an older one of its key."""
        expected = {f"ods.{name.split('.')[1]}": rows for name, rows in self.source.state(until).items()}
        assert self.sink.rows() == expected
        log = self.sink.log()
        assert len(log) == len(set(log)), "a change became visible twice"
        ops = {row.op: row for transaction in self.source.transactions[:until] for row in transaction}
        assert set(log) == set(ops) if self.shows_every_row else set(log) <= set(ops)
        newest = {}
        for op in log:
            key = (ops[op].table, ops[op].key)
            assert newest.get(key, 0) < op, "an older change became visible after a newer one"
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
        self._constants.undo()
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
