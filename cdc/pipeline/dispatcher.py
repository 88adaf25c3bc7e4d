"""The dispatcher: gets Batches from the receiver, buffers their rows in Channels, and starts Tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

from cdc.errors import ConfigError, SchemaMismatch, TargetMismatch
from cdc.model.batch import Batch
from cdc.model.position import Position
from cdc.model.schema import TableSchema
from cdc.pipeline.commit_cycle import OpenCycle, PendingLoad, release_window
from cdc.run_context import RunContext
from cdc.state.base import Checkpoint, CheckpointState
from channels.channel import Channel
from channels.sinks.base import TargetTable

_log = logging.getLogger(__name__)

CANCEL_S = 1.0  # wait this long for cancelled Tasks to end, so that they write nothing after the abort


class Dispatcher:
    """Fills the open cycle. Calls: the Consumer's thread; other threads may read ``channels``."""

    def __init__(
        self, context: RunContext, first: Position, sequence: int, waiting: frozenset[str] = frozenset()
    ) -> None:
        """``waiting``: tables with a pending snapshot; see ``join_all``."""
        self._context = context
        self.channels: dict[str, Channel] = {}  # by source table
        self.schemas = context.receiver.schemas()  # at the first position of the cycle
        self.cycle = OpenCycle(first)
        self.sequence = sequence  # highest sequence of a started Task
        self.newest_commit_us: int | None = None
        self._waiting = waiting
        self._joined: tuple[TableSchema, ...] = ()  # have channels, if a mapping reads them

    def begin(self, first: Position) -> None:
        """Begin the next cycle at ``first``."""
        self.cycle = OpenCycle(first)

    def dispatch(self, timeout_s: float, now: float) -> Batch | None:
        """Get one Batch and buffer its Changes in their Channels. Return None if none arrives within ``timeout_s``.

        A planned Batch has no Changes yet, and the cycle does not get it.

        Raises: the error that stops the source or that prevents the load of a table. If only a part of the Batch is
        buffered then, the cycle counts as inside a transaction.
        """
        batch = self._context.receiver.get(timeout_s)
        if batch is None or batch.is_planned:
            return batch
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("batch", extra=_words(batch))
        self.cycle.begin_batch(now)
        for changes in batch.changes:
            channel = self.channels.get(changes.schema.name) or self._join(changes.schema)
            if channel is not None:
                channel.add(changes)
            else:
                self._context.receiver.release(changes.bytes)
        self.cycle.end_batch(batch)
        self.newest_commit_us = batch.newest_commit_us or self.newest_commit_us
        return batch

    def start_tasks(self, at_least: int) -> None:
        """Start a Task for each channel with at least ``at_least`` bytes. These Tasks may share one Spark job."""
        full = [c for c in self.channels.values() if c.buffered_rows and c.buffered_bytes >= at_least]
        if not full:
            return
        checkpoint, tasks = self.open(), []
        for channel in full:
            while (task := channel.task_for(self._context.run, checkpoint.id)) is not None:
                tasks.append(task)
        for task, future in zip(tasks, self._context.runner.submit(tasks), strict=True):
            self.sequence = max(self.sequence, task.last_sequence)
            self.cycle.add(task, future)

    @property
    def is_fresh(self) -> bool:
        """Whether the open cycle has no Batch and no checkpoint yet."""
        return self.cycle.began is None and self.cycle.checkpoint is None

    def channel_for(self, schema: TableSchema) -> Channel | None:
        """Return the channel of a table. Create it if it is new. Return None if the job does not load the table."""
        return self.channels.get(schema.name) or self._join(schema)

    def poll_tasks(self, closed: Iterable[PendingLoad]) -> None:
        """Release the window's bytes of started Tasks of the open cycle and of ``closed``.

        Raises: the error of a Task of the open cycle.
        """
        freed = release_window([*closed, *self.cycle.loading])
        if freed:
            self._context.receiver.release(freed)
        self.cycle.raise_failure()

    def close(self) -> Checkpoint | None:
        """Start Tasks for all buffered rows. Return the OPEN checkpoint, or None if the cycle has no rows."""
        self.read_schemas()
        self.start_tasks(0)
        return self.cycle.checkpoint

    def discard(self) -> None:
        """Cancel all Tasks, drop the buffered rows, and abort the OPEN checkpoint. Its labels are not used again."""
        self._context.runner.cancel(CANCEL_S)
        for channel in self.channels.values():
            channel.drop()
        if self.cycle.checkpoint is not None:
            self.abort(self.cycle.checkpoint)

    def abort(self, opened: Checkpoint) -> None:
        """Abort an OPEN checkpoint in the sink, then delete it from the state.

        After a crash in between, the next recovery still knows the checkpoint and aborts its loads.
        """
        run = self._context.run
        self._context.sink.abort(run.job, run.incarnation, run.fence, opened.id)
        self._context.store.discard(opened.id)

    def targets(self, names: frozenset[str]) -> list[TargetTable]:
        """Return the targets with these names."""
        return [channel.target for channel in self.channels.copy().values() if channel.target.name in names]

    def open(self) -> Checkpoint:
        """Return the checkpoint of the open cycle. It is saved as OPEN before the first load."""
        if self.cycle.checkpoint is None:
            store, fence = self._context.store, self._context.run.fence
            opened = Checkpoint(
                store.next_id(), fence, CheckpointState.OPEN, self.cycle.first, last=None, schemas=self.schemas
            )
            store.save(opened)
            self.cycle.checkpoint = opened
        return self.cycle.checkpoint

    # tables

    def join_all(self) -> None:
        """Create the channels of all known tables. Calls: once, before the first ``dispatch``.

        For a table with a pending snapshot, its first rows create the channel: it can have new columns in the source
        while the DDL statement is still ahead in the binlog, and a target that is created now would get the old ones.
        """
        self.join_new(self.schemas)
        for mapping in self._context.routes.mappings:
            if not mapping.is_pattern and mapping.source not in {*self.channels, *self._waiting}:
                with suppress(SchemaMismatch):  # a source of binlog files knows a table from its first rows on
                    self._join(self._context.receiver.schema(mapping.name.database, mapping.name.table))

    def read_schemas(self) -> None:
        """Read the columns of the tables at the end of the newest Batch. Calls: while the cycle can end there."""
        self.schemas = self._context.receiver.schemas()

    def join_new(self, schemas: tuple[TableSchema, ...]) -> None:
        """Create the missing channels of ``schemas``, which are saved. See ``Consumer`` for the reason."""
        if self._joined is schemas:
            return
        self._joined = schemas
        for schema in schemas:
            if schema.name not in self.channels and schema.name not in self._waiting and not schema.is_dropped:
                self._join(schema)

    def _join(self, schema: TableSchema) -> Channel | None:
        mapping = self._context.routes.mapping_for(schema.database, schema.table)
        if mapping is None:
            return None
        try:
            channel = self._context.channels.get(schema.name)
            if channel is None or channel.mapping != mapping or channel.schema != schema:
                channel = Channel(mapping, schema, self._context.types)
                self._context.sink.ensure_table(channel.target)
                self._context.channels[schema.name] = channel
        except (ConfigError, SchemaMismatch, TargetMismatch) as error:
            if not self._context.routes.leave_out(schema.database, schema.table, error):
                raise
            return None
        self._context.routes.note_joined(schema.name)
        self.channels[schema.name] = channel
        return channel


def _words(batch: Batch) -> dict[str, object]:
    """Return what the log shows of a Batch. No column value is logged."""
    return {
        "tables": ", ".join(dict.fromkeys(changes.schema.name for changes in batch.changes)),
        "rows": batch.rows,
        "bytes": batch.bytes,
        "whole": batch.ends_transaction,
        "position": str(batch.last),
    }
