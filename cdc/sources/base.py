"""The contract ``Receiver``: read a source in order, and deliver its changes as Batches.

::

    server --bytes--> Receiver --get: Batch--> Consumer --> channels --> sink
                         ^--------- ack ----------'  (after the checkpoint is saved as COMMITTED)

A source must be able to return to a saved Position and to deliver everything after it again. The sink makes repeated
rows harmless; a missing row is never corrected. Implementations: ``binlog/receiver.py``, ``canal/receiver.py`` and
``kafka/receiver.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from cdc.errors import CdcError
from cdc.model.batch import Batch
from cdc.model.kept_messages import ReplayProgress
from cdc.model.position import Position
from cdc.model.schema import TableSchema
from cdc.sources.partition_reader import PartitionReader


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far one partition of a source is committed."""

    topic: str
    partition: int
    next: int  # the next offset after everything that is committed
    end: int  # the newest known end
    seconds: float | None  # age of the last committed message; 0 at the end, None: not known


@dataclass(frozen=True, slots=True)
class LogProgress:
    """How far the binlog of a server is committed."""

    offset: int | None = None  # of the committed position, in its file
    behind_bytes: int | None = None  # from there to the end of the binlog; None: not known
    retention_s: float | None = None  # how long the server keeps files; None: not known; 0: for ever


# A source without positions of its end must report for so long that it has nothing more: Canal sends changes of mapped
# tables at once, but may omit its empty transactions for 5 s.
SILENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """The state of a Receiver at one moment."""

    # ``get`` has returned everything that has arrived, and nothing follows for a moment: the lag is 0. A connection
    # that was lost without notice has the same state for some seconds: see ``has_returned``.
    is_at_end: bool
    read_to: Position | None = None  # at the end: ``get`` has returned everything up to here. None: not known
    heard_at: float = 0.0  # without ``read_to``: monotonic time of the last request that returned nothing
    is_finished: bool = False  # the source has an end (files on disk), and ``get`` has returned everything up to it
    is_window_full: bool = False  # reading ahead waits for ``release``: the Consumer should start Tasks
    needs_ack: bool = False  # the source sends nothing more before an ack: the Consumer should close the cycle
    window_bytes: int = 0  # bytes of rows that were read and that no started Task has taken
    warning: CdcError | None = None  # a problem of the source for the user to see; the receiver handles it
    invalid_dates: Mapping[str, int] = field(default_factory=dict)  # by table: dates that became NULL since creation
    partitions: tuple[PartitionLag, ...] = ()  # of a source with partitions
    is_connected: bool = True  # false: the source does not answer, and the receiver connects again
    disconnects: int | None = None  # connections lost since the creation; None: this source does not count them
    log: LogProgress | None = None  # of the binlog of a server
    held_s: float = 0.0  # for how long the source holds back changes, such as those of an open transaction of Kafka
    replay: ReplayProgress | None = None  # kept messages of Kafka are being loaded
    created: frozenset[str] = frozenset()  # tables created by a statement since ``open``: the stream has all their rows
    removed: frozenset[str] = frozenset()  # tables that an accepted statement has dropped or renamed since ``open``

    def has_returned(self, end: Position, asked_at: float) -> bool:
        """Return whether ``get`` has returned every change up to ``end``, where the source ended at ``asked_at``.

        For an ``end`` that no Batch reaches: the head of a new binlog file has no transaction. ``asked_at``: monotonic
        time of the query. Raises: ValueError - after a failover positions cannot be compared.
        """
        if not self.is_at_end:
            return False
        return self.read_to.reached(end) if self.read_to is not None else self.heard_at - asked_at > SILENCE_S


class Receiver(Protocol):
    """Read a source in order, and keep what is needed to deliver it again until it is acked.

    Calls: one thread, the Consumer's, except ``status``. ``open`` is first, only ``note_loaded`` and ``status`` may
    precede it. A receiver may read ahead on its own threads, within its memory window.
    Never: uses a sink or saved state.
    """

    def open(self, start: Position, schemas: tuple[TableSchema, ...], sequence: int) -> None:
        """Connect, and read everything after ``start``. The first row gets the sequence ``sequence`` + 1.

        ``schemas``: saved with the checkpoint that ends at ``start``; empty on the first start of a job.
        Calls: once per run. Blocks until the source has accepted the position.
        Raises: SourceUnavailable; PositionLost; ServerMismatch; SourceActionRequired; SchemaMismatch.
        """

    def get(self, timeout_s: float) -> Batch | None:
        """Return the next Batch, or None if none arrives within ``timeout_s``.

        Batches follow each other without gaps: each one begins where the one before it ended. None does not mean the
        end of the source: see ``status``. After a lost connection the receiver reconnects and continues directly after
        the last Batch that it returned.
        Blocks: for ``timeout_s`` at most.
        Raises: SourceUnavailable - reconnecting fails for longer than a limit; it continues, and a later call may
        return a Batch. Else the error that stops the source, after every Batch before it was returned: DdlStop,
        SchemaMismatch, UnsupportedRowFormat, DecodeError, PositionLost, ServerMismatch, SourceActionRequired,
        SourceRewound.
        """

    def release(self, byte_count: int) -> None:
        """Free ``byte_count`` bytes of the memory window, because started Tasks have taken these rows.

        ``byte_count``: ``Changes.bytes``. Rows that no channel reads count too.
        """

    def ack(self, position: Position) -> None:
        """Free everything up to ``position`` here and in Canal, because it is committed. Nothing is sent to MySQL.

        ``position``: the ``last`` of a Batch that ends a transaction. It never moves back.
        Calls: after each saved COMMITTED checkpoint. Does not wait for the source; ``get`` raises if the ack fails.
        """

    def rollback(self, position: Position) -> None:
        """Deliver everything after ``position`` again.

        ``position``: the start, or a position that was acked. Batches that were read ahead are dropped. Sequences
        continue to rise: a row that is delivered again gets a larger sequence than before.
        Raises: see ``open``.
        """

    def schema(self, database: str, table: str) -> TableSchema:
        """Return the table as it is at the position read up to, which may be after the last Batch.

        Raises: SchemaMismatch - the table does not exist or is not known; SourceUnavailable.
        """

    def note_loaded(self, tables: Iterable[str]) -> None:
        """Register tables ("database.table") that a snapshot reads: DDL on them counts before their first row event.

        Calls: also before ``open``.
        """

    def schemas(self) -> tuple[TableSchema, ...]:
        """Return the schemas that are valid at the end of the last Batch. They are saved with its checkpoint."""

    def status(self) -> ReceiverStatus:
        """Return the state at this moment. Calls: any thread; returns at once."""

    def close(self) -> None:
        """Stop the threads and close the connections. May be repeated; ``open`` may follow."""


@runtime_checkable
class RangeReceiver(Protocol):
    """A Receiver with a partial order of positions: it can read a range exactly.

    Partitions are read side by side. A Batch could therefore be after the end of a range in one partition while it is
    before the end in another.
    """

    def limit(self, last: Position | None) -> None:
        """Deliver everything before ``last`` in every partition, and nothing after it. None: no limit from now on.

        Calls: between two ``get``. Rows that were read ahead are read again if necessary.
        """


@dataclass(frozen=True, slots=True)
class RangeTable:
    """A table whose rows executors read."""

    schema: TableSchema  # rows with other columns end the range
    number: int  # in ``PartitionBatch.table``
    columns: Mapping[str, str]  # column of the load -> source column


@dataclass(frozen=True, slots=True)
class RangeTables:
    """The tables of one read of a range."""

    read: tuple[RangeTable, ...]
    elsewhere: frozenset[str] = frozenset()  # other reads of the same range have these tables
    is_only: bool = False  # another read of the same range reports tables that the job does not have yet


@dataclass(frozen=True, slots=True)
class RangeRows:
    """The rows of one table in a range."""

    upserts: int = 0
    deletes: int = 0
    bytes: int = 0  # of the Arrow buffers


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A planned range that executors have read."""

    batch: Batch  # the planned one with its numbers, without changes
    rows: Mapping[str, RangeRows]  # by source table
    sequence: int  # the highest one of a row


@runtime_checkable
class RangePlanner(Protocol):
    """A Receiver that plans ranges which executors read. ``get`` returns each as a Batch with ``is_planned``.

    ::

        plan -> get: planned Batch -> readers -> executors -> complete
                                                                 '- None -> deliver -> get: Batches with the rows

    Executors end a range where the driver must decide, such as at the first row of a table. ``deliver`` then returns
    its rows by ``get``, with all checks of a Receiver.
    """

    @property
    def plans(self) -> bool:
        """Return whether this receiver plans ranges at all."""

    def plan(self, max_bytes: int, max_rows: int) -> None:
        """Request the next range, of about ``max_bytes`` and ``max_rows`` at most. Returns at once; may be repeated."""

    def readers(self, planned: Batch, tables: RangeTables, sequence: int, count: int) -> Sequence[PartitionReader]:
        """Return at most ``count`` readers that together read ``planned``. Rows get sequences above ``sequence``."""

    def complete(self, planned: Batch, positions: Sequence[Any]) -> ReadRange | None:
        """Return ``planned`` as it was read; None if the driver must read it.

        ``positions``: the last positions of all readers, which have read their ranges to the end.
        """

    def deliver(self, planned: Batch) -> None:
        """Let ``get`` return the rows of ``planned``, and then plan again. Everything before it must be acked."""
