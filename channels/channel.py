"""Channel: buffers the Changes of one source table until a Task loads them."""

from __future__ import annotations

from collections import deque

import pyarrow.compute as pc

from cdc.model.batch import Changes, LoadName
from cdc.model.schema import DELETED, SEQUENCE, TableSchema
from channels.mapping import ExpressionTypes, Mapping
from channels.sinks.base import TargetTable
from channels.task import RunIdentity, Task


class Channel:
    """One source table and its target table. Calls: only the thread of the Consumer."""

    def __init__(self, mapping: Mapping, schema: TableSchema, types: ExpressionTypes | None = None) -> None:
        """Create the target of ``schema``. Raises: SchemaMismatch, TargetMismatch - mapping and table do not match."""
        self.mapping = mapping
        self.target: TargetTable = mapping.target_table(schema, types)  # of the newest schema
        self.buffered_rows = 0
        self.buffered_bytes = 0
        self._types = types
        self._schema = schema
        self._buffer: deque[tuple[TableSchema, TargetTable, Changes]] = deque()
        self._checkpoint: int | None = None
        self._next_task = 0

    @property
    def schema(self) -> TableSchema:
        """Return the newest schema of the source table."""
        return self._schema

    @property
    def source(self) -> str:
        """``database.table`` of the source."""
        return self.mapping.source

    def add(self, changes: Changes) -> None:
        """Buffer ``changes``. Raises: SchemaMismatch, TargetMismatch - its new schema does not match the mapping."""
        if changes.schema is not self._schema and not changes.schema.same_shape(self._schema):
            self.target = self.mapping.target_table(changes.schema, self._types)
            self._schema = changes.schema
        if changes.rows.num_rows:
            self._buffer.append((self._schema, self.target, changes))
            self.buffered_rows += changes.rows.num_rows
            self.buffered_bytes += changes.bytes

    def task_for(self, run: RunIdentity, checkpoint: int, attempt: int = 0) -> Task | None:
        """Return a Task with all buffered rows up to the next change of schema; None if no rows are buffered.

        Tasks are numbered from 0 within a checkpoint. Rows of later Tasks replace those of earlier ones.
        """
        if not self._buffer:
            return None
        if self._checkpoint != checkpoint:
            self._checkpoint, self._next_task = checkpoint, 0
        schema, target, _ = self._buffer[0]
        taken = []
        while self._buffer and self._buffer[0][0] is schema:
            taken.append(self._buffer.popleft()[2])
        rows = [changes.rows for changes in taken]
        row_count, byte_count = sum(part.num_rows for part in rows), sum(changes.bytes for changes in taken)
        deletes = sum(pc.sum(part.column(DELETED)).as_py() for part in rows)
        name = LoadName(
            run.job, run.incarnation, run.fence, checkpoint, target.name, task=self._next_task, attempt=attempt
        )
        self._next_task += 1
        self.buffered_rows -= row_count
        self.buffered_bytes -= byte_count
        return Task(
            name=name,
            target=target,
            mapping=self.mapping,
            schema=schema,
            rows=tuple(rows),
            row_count=row_count,
            byte_count=byte_count,
            upserts=row_count - deletes,
            deletes=deletes,
            last_sequence=rows[-1].column(SEQUENCE)[-1].as_py(),
        )

    def drop(self) -> None:
        """Discard the buffered rows of an aborted checkpoint, and number Tasks from 0 again."""
        self._buffer.clear()
        self.buffered_rows = self.buffered_bytes = 0
        self._checkpoint, self._next_task = None, 0
