"""Gatherer: where a row enters and waits. Batch -> Channels -> Tasks, until the Consumer closes the cycle."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

from cdc.batch import Batch
from cdc.checkpoint import Checkpoint, CheckpointState
from cdc.cycle import Cycle, Loading, take_off_window
from cdc.errors import ConfigError, SchemaMismatch, TargetMismatch
from cdc.parts import Parts, grown
from cdc.position import Position
from cdc.schema import TableSchema
from channels.channel import Channel
from channels.sinks.base import TargetTable

_log = logging.getLogger(__name__)

_SMALL = 4  # a channel with less than this share of the largest one's bytes
_CANCEL_S = 1.0  # cancelled Tasks get this long to be gone, so that they leave nothing behind after the abort


class Gatherer:
    """Fills the cycle that is open. Calls: the Consumer's thread; ``channels`` may be looked at from others."""

    def __init__(self, parts: Parts, first: Position, sequence: int) -> None:
        self._parts = parts
        self.channels: dict[str, Channel] = {}  # by source table
        self.schemas: tuple[TableSchema, ...] = ()  # in force where the cycle began
        self.cycle = Cycle(first)
        self.sequence = sequence  # highest one handed to a Task
        self.newest_commit_us: int | None = None
        self._handed_out = first
        self._join_all()

    def begin(self, first: Position) -> None:
        """The next cycle gathers from here on."""
        self.cycle = Cycle(first)

    def gather(self, patience_s: float, now: float) -> Batch | None:
        """Rows enter: the Changes of one Batch go to their Channels.

        Raises: what stops the source, or keeps a table from its target. The cycle is then inside a transaction if
        the Batch was taken in part.
        """
        batch = self._parts.receiver.get(patience_s)
        if batch is None:
            return None
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("batch", extra=_words(batch))
        self.cycle.enter(now)
        self._handed_out = batch.last
        for changes in batch.changes:
            channel = self.channels.get(changes.schema.name) or self._join(changes.schema)
            if channel is not None:
                channel.add(changes)
            else:
                self._taken(changes.rows.nbytes)
        self.cycle.take(batch)
        self.newest_commit_us = batch.newest_commit_us or self.newest_commit_us
        return batch

    def start_tasks(self, at_least: int) -> None:
        """Rows leave the channels that hold ``at_least`` bytes, or more where the checkpoint has many loads already."""
        self._start_tasks(grown(at_least, len(self.cycle.loading)))

    def _start_tasks(self, at_least: int) -> None:
        """Tasks handed over together may share a job."""
        full = [c for c in self.channels.values() if c.buffered_rows and c.buffered_bytes >= at_least]
        if not full:
            return
        checkpoint, tasks = self.open(), []
        for channel in full:
            while (task := channel.task_for(self._parts.run, checkpoint.id)) is not None:
                tasks.append(task)
        for task, future in zip(tasks, self._parts.runner.submit(tasks), strict=True):
            self.sequence = max(self.sequence, task.last_sequence)
            self.cycle.add(task, future)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was gathered since the last close."""
        return self.cycle.began is None and self.cycle.checkpoint is None

    def channel_for(self, schema: TableSchema) -> Channel | None:
        """The channel of a table, which joins if it is new; None where no channel reads it."""
        return self.channels.get(schema.name) or self._join(schema)

    def make_room(self) -> bool:
        """Start Tasks when the window is full. True: that does not help, only an ack does."""
        receiver = self._parts.receiver
        if not receiver.window_full():
            return False
        if receiver.acks_make_room:
            return True  # the close starts the Tasks: one for all costs less than one for each piece
        if not all(loading.taken for loading in self.cycle.loading):
            return False  # they make room once they start; a Task of what has come since would be a small one
        # small channels stay where they are: each would cost the sink another load, and free next to nothing
        self._start_tasks(max((one.buffered_bytes for one in self.channels.values()), default=0) // _SMALL)
        return all(loading.taken for loading in self.cycle.loading)

    def watch(self, closed: Iterable[Loading]) -> None:
        """Tell the window which Tasks have started, of this cycle and of the ``closed`` one before it.

        Raises: what a Task of this cycle has raised.
        """
        freed = take_off_window([*closed, *self.cycle.loading])
        if freed:
            self._taken(freed)
        self.cycle.raise_failure()

    def close(self) -> Checkpoint | None:
        """The last Tasks start. The OPEN checkpoint, or None when no channel got a row."""
        self._join_new()
        self.start_tasks(at_least=0)
        return self.cycle.checkpoint

    def discard(self) -> None:
        """Drop what was gathered and loaded since the last close, and every Task. Its labels stay unused."""
        self._parts.runner.cancel(_CANCEL_S)
        for channel in self.channels.values():
            channel.drop()
        if self.cycle.checkpoint is not None:
            self.abort(self.cycle.checkpoint)

    def abort(self, opened: Checkpoint) -> None:
        """Drop an OPEN checkpoint at the sink, then here: in the other order a crash would leave its loads."""
        run = self._parts.run
        self._parts.sink.abort(run.job, run.incarnation, run.fence, opened.id)
        self._parts.store.discard(opened.id)

    def targets(self, names: frozenset[str]) -> list[TargetTable]:
        """The targets called so."""
        return [channel.target for channel in self.channels.copy().values() if channel.target.name in names]

    def open(self) -> Checkpoint:
        """The cycle's checkpoint: OPEN is saved before its first load."""
        if self.cycle.checkpoint is None:
            store, fence = self._parts.store, self._parts.run.fence
            opened = Checkpoint(
                store.next_id(), fence, CheckpointState.OPEN, self.cycle.first, last=None, schemas=self.schemas
            )
            store.save(opened)
            self.cycle.checkpoint = opened
        return self.cycle.checkpoint

    def _taken(self, byte_count: int) -> None:
        self._parts.receiver.taken(self._handed_out, byte_count)

    # tables

    def _join_all(self) -> None:
        self._join_new()
        for mapping in self._parts.routes.mappings:
            if not mapping.is_pattern and mapping.source not in self.channels:
                with suppress(SchemaMismatch):  # files on disk show a table with its first rows
                    self._join(self._parts.receiver.schema(mapping.name.database, mapping.name.table))

    def _join_new(self) -> None:
        """Channels for tables that a pattern matches and that were created meanwhile."""
        schemas = self._parts.receiver.schemas()
        if schemas == self.schemas:
            return
        self.schemas = schemas
        for schema in schemas:
            if schema.name not in self.channels:
                self._join(schema)

    def _join(self, schema: TableSchema) -> Channel | None:
        mapping = self._parts.routes.mapping_for(schema.database, schema.table)
        if mapping is None:
            return None
        try:
            channel = Channel(mapping, schema, self._parts.types)
            self._parts.sink.ensure_table(channel.target)
        except (ConfigError, SchemaMismatch, TargetMismatch) as error:
            if not self._parts.routes.leave_out(schema.database, schema.table, error):
                raise
            return None
        self._parts.routes.note_joined(schema.name)
        self.channels[schema.name] = channel
        return channel


def _words(batch: Batch) -> dict[str, object]:
    """What the log tells of a Batch: never a value."""
    return {
        "tables": ", ".join(dict.fromkeys(changes.schema.name for changes in batch.changes)),
        "rows": batch.rows,
        "bytes": batch.bytes,
        "whole": batch.ends_transaction,
        "position": str(batch.last),
    }
