"""Plan the snapshot steps: which tables are due, which chunks a step reads, and the state of each table after it.

A step runs between two cycles of the stream, at a position P up to which the stream is committed. Its chunks become a
checkpoint, then the stream continues from P. Chunk rows are as new as P or newer, and later changes are committed after
the chunk. Commit order alone therefore gives the correct result. Chunk rows get the highest sequence that was assigned
before the step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from cdc.errors import SchemaMismatch, SnapshotIncomplete, SourceUnavailable
from cdc.model.position import Position
from cdc.model.schema import TableSchema
from cdc.model.snapshot import SnapshotState, TableSnapshot
from cdc.model.table_names import table_of, table_text
from cdc.model.timing import utc_now
from cdc.mysql.catalog import mapped_tables, table_schemas
from cdc.mysql.key_order import KeyOrder, key_order_of
from cdc.mysql.query_stream import configure_session, lacks_columns
from cdc.mysql.server import Server
from cdc.mysql.visibility import is_visible, refuse_other_server
from cdc.run_context import RunContext, SnapshotSettings
from cdc.snapshot.orphan_rows import OrphanSearch
from cdc.snapshot.planner import Chunker
from cdc.snapshot.requests import LoadRequests
from cdc.snapshot.row_count import StepCounts, check_rows_read, lacks_rows
from cdc.snapshot.step_plan import (
    PlannedChunks,
    SnapshotStep,
    orphan_step,
    split_slow_chunks,
    table_read,
    with_outcomes,
)
from cdc.snapshot.table_shape import is_unchanged, not_visible, order_columns, same_columns, schema_not_reached
from channels.channel import Channel
from channels.chunk_reader import SnapshotResult

_log = logging.getLogger(__name__)


class SnapshotCoordinator:
    """Plans the snapshot steps and tracks the progress of each table. Calls: the Consumer's thread."""

    def __init__(
        self, context: RunContext, settings: SnapshotSettings, channel: Callable[[TableSchema], Channel | None]
    ) -> None:
        """Get the channel of a table from ``channel``, which creates it if the table is new."""
        self._context = context
        self._settings = settings
        self._channel = channel
        self.requests = LoadRequests(context)
        self.tables: Mapping[str, TableSnapshot] = {}  # by source table, also of tables that need no snapshot
        self._counts = StepCounts()  # of this step
        self._mismatches: list[SchemaMismatch] = []  # of tables that cannot be read at the position of this step
        self._planned_on = ""  # identity of the server for which the step was planned
        self._gone: frozenset[str] = frozenset()  # tables that the source did not have, and whose targets have rows
        self._dropped: frozenset[str] = frozenset()  # tables that do not exist at the position of the stream
        self._absent: frozenset[str] = frozenset()  # those of them that the source does not have either
        self._asked_at: dict[str, float] = {}  # monotonic time at which the high watermark of a table was queried
        self._began_at = 0.0  # after the queries of earlier runs

    # what is due

    def begin(
        self,
        saved: Mapping[str, TableSnapshot],
        whole: Collection[str] = (),
        dropped: Collection[str] = (),
        written: Collection[str] = (),
    ) -> None:
        """Restore the saved states, and add new tables of the source. Raises: SourceUnavailable.

        ``whole``: tables that need a full snapshot, for any saved state. ``dropped``: tables that do not exist at the
        position of the stream. If the source has them again, the stream has not reached the statement yet. ``written``:
        tables whose targets have rows of this job. A new one of them was removed from the job file for some time, and
        the deletes of that time are missing.
        """
        self._began_at = time.monotonic()
        with Server(self._settings.endpoint) as server:
            there = [table_text(*name) for name in mapped_tables(server, self._context.routes.maps)]
        kept = {name: one for name, one in saved.items() if self._context.routes.maps(*table_of(name))}
        is_new = self._settings.initial
        new = [name for name in there if name in whole or (is_new and name not in kept and name not in dropped)]
        self.tables = {**kept, **{name: TableSnapshot(deletes_orphans=name in written) for name in new}}
        self._context.receiver.note_loaded(new)  # DROP TABLE IF EXISTS counts, even before their first rows
        self._dropped = frozenset(dropped)  # a statement that creates one of them ends the run
        # removed from the job file, dropped in the source, and added again: the stream has no statement of the drop
        self._gone = frozenset(name for name in written if is_new and name not in {*there, *kept, *dropped})

    @property
    def is_due(self) -> bool:
        """Whether a table has rows to read or orphan rows to delete."""
        return self.requests.are_pending or bool(self._due())

    def _due(self) -> list[str]:
        return [name for name, one in self.tables.items() if one.is_due and name not in self._absent]

    def advance(self, position: Position, joined: Sequence[str], *, at_end: bool) -> Mapping[str, TableSnapshot]:
        """Return the states of the tables after the stream has reached ``position``.

        A new table of ``joined`` is consistent at once if the stream has the statement that created it, because the
        stream then has all its rows. Otherwise it may have existed before, and this account could not see it: it waits
        for a snapshot. If the target has rows of an earlier table of that name, the snapshot deletes them. ``at_end``:
        the receiver has returned nothing after ``position``.
        """
        # saved with the checkpoint of the stream, so that requests survive a stop before their first step
        self.tables = self.requests.apply(self.tables)
        now = utc_now()
        caught_up = self._caught_up() if at_end else ()
        self.tables = {
            name: one.advance(position, now, caught_up=name in caught_up) for name, one in self.tables.items()
        }
        if self._settings.initial and (new := [name for name in joined if name not in self.tables]):
            self.tables = {**self._new_states(new, now), **self.tables}
        return self.tables

    def _new_states(self, names: Sequence[str], now: str) -> Mapping[str, TableSnapshot]:
        status, found = self._context.receiver.status(), dict[str, TableSnapshot]()
        for name in names:
            if name in status.created and name not in self._gone:
                found[name] = TableSnapshot(SnapshotState.CONSISTENT, consistent_since=now)
            elif name not in status.removed and self._context.routes.maps(*table_of(name)):
                found[name] = TableSnapshot(deletes_orphans=name in self._gone)
        return found

    def note_committed(self, position: Position) -> None:
        """Note that the stream and all earlier steps are committed up to ``position``.

        Tables that ended in an earlier step can be consistent there, while further steps follow each other.
        """
        now = utc_now()
        self.tables = {name: one.advance(position, now, caught_up=False) for name, one in self.tables.items()}

    def _caught_up(self) -> set[str]:
        """Return the tables up to whose high watermarks the receiver has returned every change.

        After the last transaction, the end of the binlog may still move without moving the stream (for example by the
        header of a new file). No Batch then reaches the high watermark.
        """
        found, status = set[str](), self._context.receiver.status()
        for name, one in self.tables.items():
            if one.state is SnapshotState.CATCHING_UP and one.high is not None:
                try:
                    if status.has_returned(one.high, self._asked_at.get(name, self._began_at)):
                        found.add(name)
                except ValueError:
                    self._renew_high(name)
        return found

    def _renew_high(self, name: str) -> None:
        """Wait for the end of the server that answers after a failover: its positions are other ones."""
        try:
            with Server(self._settings.endpoint) as server:
                high = self._settings.position(server)
        except SourceUnavailable:
            return  # the next call queries again
        self._asked_at[name] = time.monotonic()
        self._set(name, replace(self.tables[name], high=high))

    # plan a step

    def plan(self, position: Position, sequence: int, checkpoint: int) -> SnapshotStep | None:
        """Return the work of a step at ``position``; None if nothing can be read now.

        Raises: SourceUnavailable; SchemaMismatch - all due tables have columns that the stream has not reached yet; the
        error that prevents the load of a table into its target.
        """
        self.tables = self.requests.apply(self.tables)
        self._mismatches = []
        self._counts = StepCounts()
        with Server(self._settings.endpoint) as server:
            if not is_visible(server, position):
                _log.info("the snapshot waits: queries do not see all transactions yet that the stream has delivered")
                return None
            self._planned_on = server.identity
            configure_session(server)
            return self._plan_step(server, position, sequence, checkpoint)

    def _plan_step(self, server: Server, position: Position, sequence: int, checkpoint: int) -> SnapshotStep | None:
        chunks, uncounted = PlannedChunks(), dict[str, tuple[KeyOrder, TableSnapshot]]()
        for name in self._due():
            found = self._prepare_table(server, name, position)
            if found is None:
                continue
            schema, channel, order, snapshot = found
            if snapshot.state is SnapshotState.DELETING_ORPHANS:
                if chunks.tables:
                    continue  # this step reads chunks; a later one deletes the orphan rows
                return orphan_step(
                    self._context, self._settings, name, snapshot, server, schema, channel, sequence, checkpoint
                )
            if not chunks.accepts(copies_columns=channel.mapping.copied(schema) is not None):
                continue
            if not snapshot.open:
                self._end_table(name, server, order)
                continue
            read = table_read(self._context, channel, schema, order, snapshot.where, sequence, checkpoint)
            chunks.add(name, schema, read, snapshot.open)
            if snapshot.counted_rows is None and not snapshot.rows:  # a later count would have later rows
                uncounted[name] = order, snapshot
            if chunks.is_full:
                break
        if not chunks.tables:
            if self._mismatches:
                raise self._mismatches[0]
            return None
        self._context.receiver.note_loaded(chunks.tables)
        self._counts.begin(self._settings.endpoint, uncounted, self._settings.step_s)
        return chunks.step(self._settings)

    def _prepare_table(
        self, server: Server, name: str, position: Position
    ) -> tuple[TableSchema, Channel, KeyOrder, TableSnapshot] | None:
        """Return a due table with planned chunks; None if it is removed or the stream must reach its columns first."""
        database, table = table_of(name)
        if not self._context.routes.maps(database, table):
            self._forget(name, "the job does not read it any more")
            return None
        leave_out = self._context.routes.leave_out
        today = table_schemas(server, [(database, table)], leave_out).get((database, table))
        if today is None:
            self._keep_hidden(name)
            return None
        try:
            known = self._context.receiver.schema(database, table)
        except SchemaMismatch:  # not known at the position of the stream; other tables can be read
            known = None
        if known is None or not same_columns(today, known):
            self._mismatches.append(schema_not_reached(name))
            return None
        channel = self._channel(known)
        if channel is None:
            self._forget(name, "it cannot be mapped")
            return None
        order = key_order_of(server, today, order_columns(channel, today))
        self._begin_again_if_changed(server, name, order)
        snapshot = self.tables[name]
        if snapshot.state is SnapshotState.WAITING:
            snapshot = self._plan_chunks(server, name, today, order, position)
        elif any(chunk.is_slow for chunk in snapshot.open):
            snapshot = split_slow_chunks(Chunker(server, order), snapshot)
            self._set(name, snapshot)
        return today, channel, order, snapshot

    def _keep_hidden(self, name: str) -> None:
        """Keep the state of a table that the source does not show until the stream reaches a statement that drops it.

        A server hides tables for which the account has no privilege, so the table may exist.
        """
        if not self._context.routes.maps(*table_of(name)):
            self._forget(name, "it cannot be mapped")
        elif name in self._context.receiver.status().removed:
            self._forget(name, "a statement that the user has accepted has dropped or renamed it")
        elif name in self._dropped:  # the next statement may rename a shadow table to it
            _log.warning("the snapshot of %s waits: the table was dropped", name)
            self._absent |= {name}
        else:
            self._context.receiver.note_loaded([name])
            self._mismatches.append(not_visible(name))

    def _begin_again_if_changed(self, server: Server, name: str, order: KeyOrder) -> None:
        """Read a table from its first row on if what is left of its snapshot does not fit the table any more."""
        snapshot = self.tables[name]
        where = snapshot.where
        if where is not None and lacks_columns(server, table_of(name), where):
            # each query would be refused for ever, and while the table is read the stream waits for it
            _log.warning("the condition %r of %s has a column that was dropped: all rows are read", where, name)
            where = None
        elif snapshot.state is not SnapshotState.READING or snapshot.order in (None, order.text):
            return
        else:  # another collation, other labels, or another order of the key columns: rows would be in no open chunk
            _log.warning("the key of %s orders its rows in another way now: they are read again", name)
        again = TableSnapshot(where=where, deletes_orphans=snapshot.deletes_orphans, request=snapshot.request)
        self._set(name, again)

    def _plan_chunks(
        self, server: Server, name: str, schema: TableSchema, order: KeyOrder, position: Position
    ) -> TableSnapshot:
        snapshot = self.tables[name]
        sizes = server.ask(
            "SELECT AVG_ROW_LENGTH AS row_bytes FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (schema.database, schema.table),
        )
        row_bytes = int(sizes[0]["row_bytes"] or 0) if sizes else 0
        plan = Chunker(server, order).plan(row_bytes=row_bytes, whole=snapshot.deletes_orphans)
        if not order.columns:
            _log.warning(
                "no index orders the rows of %s: they are read in one piece, which a step cannot end early", name
            )
        _log.info("snapshot of %s: about %d rows in %d chunks", name, plan.estimated_rows, len(plan.chunks))
        snapshot = replace(
            snapshot,
            state=SnapshotState.READING,
            open=plan.chunks,
            chunks=len(plan.chunks),
            estimated_rows=plan.estimated_rows,
            last_key=plan.chunks[-1].upto if plan.chunks else None,
            low=position,
            order=order.text,
        )
        self._set(name, snapshot)
        return snapshot

    def _set(self, name: str, snapshot: TableSnapshot) -> None:
        self.tables = {**self.tables, name: snapshot}

    def _forget(self, name: str, why: str) -> None:
        _log.warning("the snapshot of %s ends: %s", name, why)
        self.requests.drop_table(name)
        self.tables = {other: one for other, one in self.tables.items() if other != name}

    # complete a step

    def complete(self, step: SnapshotStep, outcome: SnapshotResult, seconds: float) -> Mapping[str, TableSnapshot]:
        """Return the states of the tables after a step.

        Raises: SchemaMismatch - the columns of a table were changed during the step; SourceUnavailable, also after a
        failover to another server. The whole step is discarded.
        """
        with Server(self._settings.endpoint) as server:
            refuse_other_server(server, self._planned_on)
            _refuse_changed(server, step)
            if step.read_request is None:
                self._record_search(step.tables[0], step.search, server)
                return self.tables
            for name, counted in self._counts.ended_counts().items():
                self._set(name, replace(self.tables[name], counted_rows=counted))
            for number, name in enumerate(step.tables):
                outcomes = [one for one in outcome.chunks if one.table == number]
                self._set(name, with_outcomes(self.tables[name], outcomes, seconds, self._settings.step_s))
                if not self.tables[name].open:
                    self._end_table(name, server, step.read_request.tables[number].order)
        return self.tables

    def refuse_changed(self, step: SnapshotStep) -> None:
        """Raise SchemaMismatch if a table of ``step`` is not as it was planned. Raises: SourceUnavailable."""
        with Server(self._settings.endpoint) as server:
            _refuse_changed(server, step)

    def _record_search(self, name: str, search: OrphanSearch | None, server: Server) -> None:
        if search is not None:
            known = self.tables[name]
            # the status reports no rows as deleted that could not be searched
            known = replace(known, compared_key=search.last, deletes_orphans=search.is_possible)
            self._set(name, known)
        if search is None or search.is_done:
            self._finish_table(name, server)

    def _end_table(self, name: str, server: Server, order: KeyOrder) -> None:
        """Finish a table that has no open chunk: compare its rows with the count.

        If most rows are missing, the table is read once more, because all of them may have been deleted and inserted
        again meanwhile. Raises: SnapshotIncomplete - the second reading lacks them too.
        """
        snapshot = self.tables[name]
        again = None
        if lacks_rows(snapshot):
            if self._counts.is_used_up:
                return  # the next step counts and finishes it
            again = self._counts.count(server, order, snapshot)
        try:
            check_rows_read(name, snapshot, again)
        except SnapshotIncomplete as error:
            if snapshot.is_second_reading:
                raise
            _log.warning("%s The table is read once more.", error)
            self._set(name, snapshot.again())
            return
        if self.tables[name].deletes_orphans:
            self._set(name, replace(self.tables[name], state=SnapshotState.DELETING_ORPHANS))
        else:
            self._finish_table(name, server)

    def _finish_table(self, name: str, server: Server) -> None:
        """Save the high watermark: the table becomes consistent when the stream reaches it."""
        snapshot = self.tables[name]
        high = self._settings.position(server)
        self._asked_at[name] = time.monotonic()
        _log.info("snapshot of %s: %d rows read; it is consistent from %s on", name, snapshot.rows, high)
        self._set(name, replace(snapshot, state=SnapshotState.CATCHING_UP, high=high, compared_key=None))


def _refuse_changed(server: Server, step: SnapshotStep) -> None:
    orders = [one.order for one in step.read_request.tables] if step.read_request is not None else [None]
    for name, schema, order in zip(step.tables, step.schemas, orders, strict=True):
        if not is_unchanged(server, schema, order):
            raise SchemaMismatch(
                "The table was changed while its rows were read.",
                hint="The job reads the table again after the stream has passed the DDL statement, or pauses there.",
                table=name,
            )
