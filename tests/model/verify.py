"""Verifications of the model: ``VerifySession`` compares a Source with a FileSink, without servers.

A query sees the source as of any transaction from the position of the stream up to the newest one. Values are compared
by parity, so that a row that changes often has an earlier value again.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa

from cdc.model.batch import LoadName
from cdc.model.schema import DELETED, SEQUENCE
from cdc.model.snapshot import Chunk
from cdc.model.verify import DifferenceKind, RowDifference, TableVerification, VerifyRequest, VerifyState
from cdc.run_context import SnapshotSettings
from cdc.snapshot.orphan_rows import delete_task
from cdc.verify.steps import VerifyStep
from channels.chunk_compare import KeyDifferences, PartOutcome
from channels.row_compare import compare_rows
from channels.task import Task
from tests.model.harness import JOB, Harness
from tests.model.source import SourceReceiver, position_at, schema_of

CHUNK_KEYS, MOST_SHOWN = 6, 3


class Queries:
    """What queries of the source see. Later ones see everything that an earlier one has seen."""

    def __init__(self, source, seed):
        self.source, self.draw, self.seen = source, random.Random(seed), 0

    def is_visible(self, position):
        self.seen = max(self.seen, position.offset)
        return True

    def rows(self, table):
        self.seen = self.draw.randint(self.seen, len(self.source.transactions))
        return self.source.state(self.seen).get(table, {})


def _values(rows, keys):
    found = {key: op for key, op in rows.items() if keys is None or key in keys}
    return pa.table({
        "id": pa.array(sorted(found), pa.int32()),
        "parity": pa.array([found[key] % 2 for key in sorted(found)], pa.int32()),
    })  # fmt: skip


@dataclass(slots=True)
class _Work:
    run: object
    cancelled: object = field(default_factory=lambda: SimpleNamespace(set=lambda: None))
    keys: tuple = ()


class _Steps:
    """Implements ``StepFactory``."""

    def __init__(self, context, _):
        self.context = context
        self.queries = context.snapshot.endpoint

    def _differences(self, name, target, part, keys, shown=0):
        source = _values(self.queries.rows(name), keys)
        found = compare_rows(source, _values(self.context.sink.rows().get(target, {}), keys), ["id"])
        details = tuple(
            RowDifference(name, DifferenceKind.DIFFERENT, {"id": str(key)})
            for key in found.keys.column("id").to_pylist()[:shown]
        )
        return KeyDifferences(part, found.keys, found.kinds, details)

    def compare(self, planned, tables):
        def run(_, __):
            found = []
            for number, one in enumerate(planned):
                for chunk in tables[one.name].open:
                    keys = range(CHUNK_KEYS * chunk.number, CHUNK_KEYS * (chunk.number + 1)) if chunk.upto else range(
                        CHUNK_KEYS * chunk.number, 1 << 30
                    )  # fmt: skip
                    differences = self._differences(one.name, one.channel.target.name, chunk, keys)
                    found.append(PartOutcome(number, chunk.number, chunk.upto, True, len(keys) % 1000, differences))
            return tuple(found)

        return VerifyStep(tuple(planned), compare=_Work(run))

    def recheck(self, planned, work, shown):
        numbers = {one.name: number for number, one in enumerate(planned)}
        keys = tuple((numbers[name], differences) for name, differences in work)

        def run(_, __):
            return tuple(
                self._differences(
                    planned[number].name, planned[number].channel.target.name, one.part,
                    set(one.keys.column("id").to_pylist()), shown,
                )
                for number, one in keys
            )  # fmt: skip

        return VerifyStep(tuple(planned), recheck=_Work(run, keys=keys))

    def repair(self, planned, confirmed, checkpoint):
        def tasks():
            return [task for one in planned for task in self._tasks(one, confirmed, checkpoint)]

        return VerifyStep(tuple(planned), repair=tasks)

    def _tasks(self, one, confirmed, checkpoint):
        run, target = self.context.run, one.channel.target
        keys = {key for name, some in confirmed if name == one.name for key in some.keys.column("id").to_pylist()}
        rows = self.queries.rows(one.name)
        there, absent = sorted(keys & rows.keys()), sorted(keys - rows.keys())
        name = LoadName(run.job, run.incarnation, run.fence, checkpoint, target.name, task=0)
        if there:
            batch = pa.record_batch({
                "id": pa.array(there, pa.int32()), "op": pa.array([rows[key] for key in there], pa.int64()),
                DELETED: [False] * len(there), SEQUENCE: pa.array([one.sequence] * len(there), pa.int64()),
            })  # fmt: skip
            yield Task(
                name, target, one.channel.mapping, one.schema, (batch,), len(there), 1, len(there), 0, one.sequence
            )
        if absent:
            deleted = pa.table({"id": pa.array(absent, pa.int32())})
            yield delete_task(replace(name, task=1), one.name, target, one.schema, deleted, one.sequence)


class _Planner:
    """Implements ``VerifyPlanner``."""

    def __init__(self, context, channel, hidden):
        self.channel = channel

    def table(self, server, name, request, sequence):
        schema = schema_of(name)
        compare = SimpleNamespace(
            range_columns=("id",),
            key_columns=(schema.columns[0],),
            read=SimpleNamespace(mapping=None, sequence=sequence),
        )
        return SimpleNamespace(
            name=name,
            schema=schema,
            channel=self.channel(schema),
            order=SimpleNamespace(text="`id`"),
            compare=compare,
            sequence=sequence,
        )

    def chunks(self, server, planned, run):
        chunks = (Chunk(0, None, ("x",)), Chunk(1, ("x",), ("y",)), Chunk(2, ("y",), None))
        return TableVerification(VerifyState.COMPARING, open=chunks, chunks=3, estimated_rows=30)


class _NoSnapshots:
    is_due, tables = False, {}
    requests = SimpleNamespace(note_committed=lambda snapshots: None)

    def __init__(self, *_):
        pass

    def begin(self, *_):
        pass

    def advance(self, position, joined, *, at_end):
        return {}


class _UntilVerified(SourceReceiver):
    """A receiver whose source ends when the verification has ended."""

    is_verified = staticmethod(lambda: True)

    def status(self):
        found = super().status()
        return replace(found, is_finished=found.is_finished and self.is_verified())


class VerifyHarness(Harness):
    """A job with a verification that was requested by ``request``."""

    def __init__(self, folder, source, *, seed=0, **options):
        super().__init__(folder, source, **options)
        queries = Queries(source, f"{seed} {self.run.fence}")
        settings = SnapshotSettings(queries, lambda _: position_at(queries.seen), initial=False, step_s=0.0)
        self.more_parts = {"snapshot": settings}
        self.runner.submit_reading = lambda request: self.runner._pool.submit(request.run, None, 1)
        server = mock.MagicMock()
        self._patches = ExitStack()
        self._patches.enter_context(mock.patch.multiple(
            "cdc.verify.session",
            Server=server, is_visible=lambda _, position: queries.is_visible(position), configure_session=lambda _: None,
            mapped_tables=lambda *_: [("shop", "items"), ("shop", "orders")], refuse_changed=lambda *_: None,
            VerifyPlanner=_Planner, StepFactory=_Steps,
        ))  # fmt: skip
        self._patches.enter_context(mock.patch("cdc.pipeline.consumer.SnapshotCoordinator", _NoSnapshots))
        self._patches.enter_context(mock.patch("cdc.pipeline.verify_steps._REQUESTS_S", 0.0))
        # fewer than the keys of rows in flight
        self._patches.enter_context(mock.patch("cdc.verify.result.MOST_DIFFERENCES", MOST_SHOWN))

    def request(self, *, repair=False):
        self.store.add_verification(JOB, VerifyRequest(repair=repair))

    @property
    def result(self):
        """The newest verification."""
        return self.store.verifications(JOB, 1)[0]

    def new_receiver(self):
        receiver = _UntilVerified(self.source, self.routes, **self.receiver_options)
        receiver.is_verified = lambda: all(one.ended_at for one in self.store.verifications(JOB, 1))
        return receiver

    def close(self):
        super().close()
        self._patches.close()
