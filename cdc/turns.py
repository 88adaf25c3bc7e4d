"""Turns of the snapshot: between two cycles of the stream, some chunks are read and become a checkpoint of their own.

At a place P with everything before it committed, chunks are read that see all up to P; the stream goes on from P. A row
of a chunk is never older than P, and whatever changed since then comes behind it, so the order of commits alone makes
the target right. Rows of a turn bear the highest sequence that was handed out before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cdc.batch import LoadName
from cdc.binlog.catalog import mapped_tables, table_schemas
from cdc.binlog.server import Server
from cdc.commit import utc_now
from cdc.errors import ConfigError, SchemaMismatch
from cdc.names import table_of, table_text
from cdc.parts import Parts, SnapshotSettings
from cdc.position import Position
from cdc.schema import Column, TableSchema
from cdc.snapshot.chunker import Chunker
from cdc.snapshot.chunks import Chunk, SnapshotState, TableSnapshot
from cdc.snapshot.keys import Order, order_of
from cdc.snapshot.row_count import check_rows_read, count_rows
from cdc.snapshot.select import check_condition, settle_session
from cdc.snapshot.settled import settled
from cdc.sweep import deletes, surplus, swept_columns
from channels.channel import Channel
from channels.chunk_task import Reading
from channels.mapping import Routes, is_condition
from channels.sinks.base import Sink
from channels.task import Task
from spark.chunks import ChunkRead, Pace, TableRead, TurnOutcome

TURN_ROWS = 3_000_000  # over all readers: what one merge takes
TURN_BYTES = 1 << 30
TURN_TABLES = 50
_AT_END_S = 5.0
_CHUNKS_A_READER = 16  # more than anyone reads in a turn

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks to be loaded again."""

    table: str
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """Work of one turn."""

    tables: tuple[str, ...]  # by the number that outcomes name
    schemas: tuple[TableSchema, ...]  # as they were read
    reading: Reading | None  # None: a sweep
    sweep: Callable[[], Task | None] | None = None  # gives the deletes, if any; takes as long as reading all keys


class Turns:
    """Which tables are due, and how far each has come. Calls: the Consumer's thread; ``request`` from any."""

    def __init__(
        self, parts: Parts, settings: SnapshotSettings, channel: Callable[[TableSchema], Channel | None]
    ) -> None:
        """``channel`` gives the channel of a table, which joins if it is new."""
        self._parts = parts
        self._settings = settings
        self._channel = channel
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self.tables: Mapping[str, TableSnapshot] = {}  # by source table; those without rows to read included
        self._misfits: list[str] = []  # tables of this turn whose columns are not those that the stream has come to
        self._read_at: dict[str, float] = {}  # when the last chunk of a table was read

    # what is due

    def begin(self, saved: Mapping[str, TableSnapshot], whole: Collection[str] = ()) -> None:
        """Take up what was saved, and find the tables that are new. Raises: SourceUnavailable.

        ``whole``: tables that are loaded whole whatever was saved of them.
        """
        with Server(self._settings.endpoint) as server:
            there = [table_text(*name) for name in mapped_tables(server, self._parts.routes.maps)]
        kept = {name: one for name, one in saved.items() if self._parts.routes.maps(*table_of(name))}
        new = [name for name in there if name in whole or (self._settings.initial and name not in kept)]
        self.tables = {**kept, **{name: TableSnapshot() for name in new}}

    def request(self, request: Request) -> None:
        """Load a table again, from the next turn on."""
        with self._lock:
            self._requests.append(request)

    @property
    def is_due(self) -> bool:
        """Whether there is something to read."""
        return bool(self._requests) or any(one.is_due for one in self.tables.values())

    def at(self, position: Position, joined: Sequence[str], *, at_end: bool) -> Mapping[str, TableSnapshot]:
        """The tables after the stream has come to ``position``; those in ``joined`` that are new began empty.

        ``at_end``: the source has nothing behind it.
        """
        self._take_requests()  # saved with the stream's checkpoint, they outlive a stop before their first turn
        now = utc_now()
        self.tables = {
            name: one.passed(position, now, caught_up=at_end and self._is_long_ago(name))
            for name, one in self.tables.items()
        }
        if self._settings.initial:
            born = TableSnapshot(SnapshotState.CONSISTENT, consistent_since=now)
            self.tables = {**dict.fromkeys(joined, born), **self.tables}
        return self.tables

    def _is_long_ago(self, name: str) -> bool:
        # behind the last transaction a server may write to its binlog what moves no stream, such as a new file's head
        return time.monotonic() - self._read_at.get(name, 0.0) > _AT_END_S

    # a turn

    def next(self, position: Position, sequence: int, checkpoint: int) -> Turn | None:
        """The work of the turn at ``position``; None where nothing can be read at this moment.

        Raises: SourceUnavailable; SchemaMismatch - tables are due, and the stream has not come to their columns; what
        keeps a table from its target.
        """
        self._take_requests()
        self._misfits = []
        with Server(self._settings.endpoint) as server:
            if not settled(server, position):
                _log.info("the snapshot waits: the source has not yet finished the commits that the stream has told of")
                return None
            settle_session(server.connection)
            return self._gathered(server, position, sequence, checkpoint)

    def _take_requests(self) -> None:
        with self._lock:
            requests, self._requests = self._requests, []
        for request in requests:
            old, where, sweeps = self.tables.get(request.table), request.where, request.where is None
            if old is not None and old.is_due and old.where != where:  # neither may be forgotten for the other
                where, sweeps = None, sweeps or old.sweeps
            again = TableSnapshot(where=where, sweeps=sweeps)
            self.tables = {**self.tables, request.table: again}

    def _gathered(self, server: Server, position: Position, sequence: int, checkpoint: int) -> Turn | None:
        reads: list[TableRead] = []
        chunks: list[ChunkRead] = []
        schemas: list[TableSchema] = []
        names: list[str] = []
        rows = 0
        for name in [name for name, one in self.tables.items() if one.is_due]:
            found = self._table(server, name, position)
            if found is None:
                continue
            schema, channel, order, snapshot = found
            if snapshot.state is SnapshotState.SWEEPING:
                if reads:
                    continue  # after the others
                return self._sweep(name, schema, channel, order, sequence, checkpoint)
            plain = channel.mapping.copied(schema) is not None
            if reads and not (plain and reads[0].expressions is None):
                continue  # a table with expressions is read alone
            if not snapshot.open:
                self._ended(name, server, order)
                continue
            read = self._read_of(channel, schema, order, snapshot.where, sequence, checkpoint)
            chunks += [ChunkRead(len(reads), chunk) for chunk in snapshot.open]
            reads.append(read)
            schemas.append(schema)
            names.append(name)
            rows += sum(chunk.estimated_rows for chunk in snapshot.open)
            if not plain or rows >= TURN_ROWS or len(reads) >= TURN_TABLES:
                break
        if not reads:
            if self._misfits:
                raise _misfit(self._misfits[0])
            return None
        readers = self._settings.readers
        pace = Pace(
            self._settings.turn_s,
            TURN_ROWS,
            TURN_BYTES,
            self._settings.rows_per_s,
            self._settings.bytes_per_s,
        )
        reading = Reading(
            self._settings.endpoint, tuple(reads), tuple(chunks[: readers * _CHUNKS_A_READER]), readers, pace
        )
        self._parts.receiver.note_loaded(names)
        return Turn(tuple(names), tuple(schemas), reading)

    def _table(
        self, server: Server, name: str, position: Position
    ) -> tuple[TableSchema, Channel, Order, TableSnapshot] | None:
        """What is known of a table that is due, its chunks planned; None where the stream must come first."""
        database, table = table_of(name)
        if not self._parts.routes.maps(database, table):
            self._forget(name)
            return None
        leave_out = self._parts.routes.leave_out
        today = table_schemas(server, [(database, table)], leave_out).get((database, table))
        if today is None:
            self._forget(name)
            return None
        known = self._parts.receiver.schema(database, table)
        if not _same_columns(today, known):
            self._misfits.append(name)
            return None
        channel = self._channel(known)
        if channel is None:
            self._forget(name)
            return None
        order = order_of(server, today, self._key_columns(channel, today))
        snapshot = self.tables[name]
        if snapshot.state is SnapshotState.WAITING:
            snapshot = self._planned(server, name, today, order, position)
        return today, channel, order, snapshot

    def _key_columns(self, channel: Channel, schema: TableSchema) -> tuple[str, ...]:
        return schema.key or tuple(channel.mapping.reads(schema).key)

    def _planned(
        self, server: Server, name: str, schema: TableSchema, order: Order, position: Position
    ) -> TableSnapshot:
        snapshot = self.tables[name]
        sizes = server.ask(
            "SELECT AVG_ROW_LENGTH AS row_bytes FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (schema.database, schema.table),
        )
        row_bytes = int(sizes[0]["row_bytes"] or 0) if sizes else 0
        plan = Chunker(server, order).plan(row_bytes=row_bytes, whole=snapshot.sweeps)
        if not order.columns:
            _log.warning("no index orders the rows of %s: they are read in one piece, which no turn cuts short", name)
        _log.info("snapshot of %s: about %d rows in %d chunks", name, plan.estimated_rows, len(plan.chunks))
        snapshot = replace(
            snapshot,
            state=SnapshotState.READING,
            open=plan.chunks,
            chunks=len(plan.chunks),
            estimated_rows=plan.estimated_rows,
            last_key=plan.chunks[-1].upto if plan.chunks else None,
            low=position,
        )
        snapshot = replace(snapshot, counted_rows=count_rows(server, order, snapshot))
        self.tables = {**self.tables, name: snapshot}
        return snapshot

    def _sweep(
        self, name: str, schema: TableSchema, channel: Channel, order: Order, sequence: int, checkpoint: int
    ) -> Turn:
        run, sink, target = self._parts.run, self._parts.sink, channel.target
        columns = swept_columns(channel, schema)
        load = LoadName(run.job, run.incarnation, run.fence, checkpoint, target.name, task=0)

        def sweep() -> Task | None:
            keys = sink.keys(target)
            if columns is None or keys is None:
                _log.warning("%s is not swept: its target cannot tell its keys, or they are no copies", name)
                return None
            gone = surplus(self._settings.endpoint, order, columns, keys)
            _log.info("swept %s: %d rows of the target are gone from the source", name, gone.num_rows)
            return deletes(load, name, target, schema, gone, sequence) if gone.num_rows else None

        return Turn((name,), (schema,), None, sweep)

    def _read_of(
        self, channel: Channel, schema: TableSchema, order: Order, where: str | None, sequence: int, checkpoint: int
    ) -> TableRead:
        run, mapping, target = self._parts.run, channel.mapping, channel.target
        reads = mapping.reads(schema)
        wanted = {name.casefold() for name in reads.columns | reads.key}
        columns = tuple(column for column in schema.columns if column.name.casefold() in wanted)
        read = TableRead(
            LoadName(run.job, run.incarnation, run.fence, checkpoint, target.name, task=0),
            order,
            columns,
            frozenset(column.name for column in columns if column.name in reads.key),
            sequence,
            where,
            self._parts.sink.part_writer(target),
        )
        copies = mapping.copied(schema)
        if copies is not None:
            return replace(read, copies=copies)
        import pyarrow as pa

        return replace(
            read,
            expressions=mapping.expressions(schema),
            target=pa.schema([pa.field(column.name, column.arrow) for column in target.columns]),
            kept=frozenset(column.name for column in target.columns if not column.nullable).union(target.key),
            row_filter=mapping.filter,
        )

    def _forget(self, name: str) -> None:
        self.tables = {other: one for other, one in self.tables.items() if other != name}

    # what came of it

    def after(self, turn: Turn, outcome: TurnOutcome, seconds: float) -> Mapping[str, TableSnapshot]:
        """The tables after a turn. Raises: SchemaMismatch - a table was changed meanwhile; nothing of it counts."""
        with Server(self._settings.endpoint) as server:
            for name, schema in zip(turn.tables, turn.schemas, strict=True):
                today = table_schemas(server, [(schema.database, schema.table)]).get((schema.database, schema.table))
                if today is None or not _same_columns(today, schema):
                    raise SchemaMismatch(
                        "The table was changed while its rows were read.",
                        mend="Nothing if the change is harmless; else the stream pauses at the statement.",
                        table=name,
                    )
            if turn.reading is None:
                self._pass_over(turn.tables[0], server)
                return self.tables
            for number, name in enumerate(turn.tables):
                self._advance(name, [one for one in outcome.chunks if one.table == number], seconds)
                if not self.tables[name].open:
                    self._ended(name, server, turn.reading.tables[number].order)
        return self.tables

    def _advance(self, name: str, outcomes: Sequence[object], seconds: float) -> None:
        from spark.chunks import ChunkOutcome

        snapshot = self.tables[name]
        came = {one.chunk: one for one in outcomes if isinstance(one, ChunkOutcome)}
        left: list[Chunk] = []
        for chunk in snapshot.open:
            one = came.get(chunk.number)
            if one is None:
                left.append(chunk)
            elif not one.ended:
                left.append(replace(chunk, above=one.above, estimated_rows=max(1, chunk.estimated_rows - one.rows)))
        self.tables = {
            **self.tables,
            name: replace(
                snapshot,
                open=tuple(left),
                done=snapshot.done + len(snapshot.open) - len(left),
                rows=snapshot.rows + sum(one.rows for one in came.values()),
                bytes=snapshot.bytes + sum(one.bytes for one in came.values()),
                seconds=snapshot.seconds + seconds,
            ),
        }

    def _ended(self, name: str, server: Server, order: Order) -> None:
        """All rows of a table are read. Raises: SnapshotIncomplete."""
        snapshot = self.tables[name]
        check_rows_read(name, snapshot, count_rows(server, order, snapshot))
        if self.tables[name].sweeps:
            self.tables = {**self.tables, name: replace(self.tables[name], state=SnapshotState.SWEEPING)}
        else:
            self._pass_over(name, server)

    def _pass_over(self, name: str, server: Server) -> None:
        """What is left of a table is the stream's, which makes it consistent once it has come to this place."""
        snapshot = self.tables[name]
        high = self._settings.position(server)
        self._read_at[name] = time.monotonic()
        _log.info("snapshot of %s: %d rows read; it is consistent from %s on", name, snapshot.rows, high)
        self.tables = {**self.tables, name: replace(snapshot, state=SnapshotState.CATCHING_UP, high=high)}


def check_request(request: Request, settings: SnapshotSettings | None, routes: Routes, sink: Sink) -> None:
    """Raises: ConfigError - the job reads no such table, the condition is none, or nothing can be read again.

    SourceUnavailable - the server does not answer.
    """
    if settings is None:
        raise ConfigError(
            "The source of this job has no tables, only a stream of changes.",
            mend="Load the table through a job with a `binlog` source.",
        )
    database, table = table_of(request.table)
    if not routes.maps(database, table):
        raise ConfigError(
            f"The job reads no table {request.table}.", mend="Name it as `source` of its channel: database.table."
        )
    if request.where is None and not sink.tells_keys:
        raise ConfigError(
            "This sink cannot tell which of its rows the source no longer has.",
            mend=f"`cdc snapshot ... {request.table} --where '1 = 1'` loads all rows again and deletes none.",
        )
    if request.where is not None and not is_condition(request.where):
        raise ConfigError(
            f"{request.where!r} is not one condition over the columns of a row.",
            mend="Write what could stand behind WHERE in MySQL, such as `id > 1000 AND status = 'new'`.",
        )
    if request.where is not None:
        with Server(settings.endpoint) as server:
            check_condition(server, (database, table), request.where)


def _misfit(name: str) -> SchemaMismatch:
    return SchemaMismatch(
        "The table's columns are not those that the stream has come to.",
        mend="Nothing: the stream comes to the statement, and pauses there or takes it.",
        table=name,
    )


def _same_columns(one: TableSchema, other: TableSchema) -> bool:
    return [_shape(column) for column in one.columns] == [_shape(column) for column in other.columns]


def _shape(column: Column) -> tuple[object, ...]:
    return (column.name, column.kind, column.arrow, column.charset, column.labels, column.length, column.fsp)
