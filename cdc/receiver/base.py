"""The Receiver contract: a source that hands out Batches and is acked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from cdc.batch import Batch, Reads
from cdc.errors import CdcError
from cdc.position import Position
from cdc.schema import TableSchema


class Selection(Protocol):
    """Which source tables a job reads, and what of them. Asked once per table and schema, never per row."""

    def maps(self, database: str, table: str) -> bool:
        """Whether a channel reads this table."""

    def reads(self, schema: TableSchema) -> Reads:
        """What that channel reads of it.

        Raises: SchemaMismatch - the mapping names a column that the schema lacks; TargetMismatch - no usable key.
        """

    def leave_out(self, database: str, table: str, error: CdcError) -> bool:
        """Return whether the job goes on without a table that cannot be mapped for ``error``.

        True where a pattern alone maps it and no row of it is committed: ``maps`` is then False, and its user is
        shown why. Calls: from any thread.
        """


class Receiver(Protocol):
    """Pulls from a source, in order, and keeps what is handed out until it is acked.

    Calls: one thread, the Consumer's. A receiver may read ahead on threads of its own, within the window.
    Never: touches sinks or state.
    """

    acks_make_room: bool  # a full window empties by acks alone, not by ``taken``

    def open(self, start: Position, schemas: tuple[TableSchema, ...], sequence: int) -> None:
        """Connect and read on from ``start``; rows get sequences from ``sequence`` + 1 on.

        ``schemas`` are those saved with the checkpoint that ``start`` comes from.
        Raises: SourceUnavailable, PositionLost, WrongServer.
        """

    def get(self, timeout_s: float) -> Batch | None:
        """The next Batch, or None when nothing new came within ``timeout_s``.

        Raises: what stops the source (SchemaChanged, UnsupportedImage, DecodeError, PositionLost, WrongServer,
        SourceRewound, SourceUnavailable), after every Batch before it was handed out. A cut connection is no
        error while reconnecting works: the receiver goes on exactly behind what it handed out.
        """

    def ack(self, position: Position) -> None:
        """Everything up to ``position`` is committed; its memory and the source's may be freed."""

    def rollback(self, position: Position) -> None:
        """Hand out again from ``position`` on, which was acked or is the start."""

    def schema(self, database: str, table: str) -> TableSchema:
        """The table as it is at the place read up to. Raises: SchemaMismatch - there is no such table."""

    def note_loaded(self, tables: Iterable[str]) -> None:
        """A snapshot has read or reads these, "database.table": what drops one matters though no row of it has come.

        Calls: before ``open`` too.
        """

    def schemas(self) -> tuple[TableSchema, ...]:
        """The schemas in force at the last handed-out Batch, to be saved with its checkpoint."""

    def window_full(self) -> bool:
        """Whether reading ahead stands still until rows are taken or acked: the cycle should close."""

    def taken(self, position: Position, byte_count: int) -> None:
        """``byte_count`` bytes of rows handed out have left for started Tasks; the window has room again."""

    def window_bytes(self) -> int:
        """Bytes of rows read ahead or handed out that no started Task has taken. Calls: any thread."""

    def impossible_dates(self) -> Mapping[str, int]:
        """Zero and impossible dates that became NULL since this receiver was made, by table. Calls: any thread."""

    def at_end(self) -> bool:
        """Whether everything the source has at the moment was handed out (lag is 0)."""

    def trouble(self) -> CdcError | None:
        """What is wrong with the source though nothing is raised: shown to people, and nothing follows from it.

        Calls: from any thread.
        """

    def finished(self) -> bool:
        """Whether the source has an end and everything before it was handed out (files on disk)."""

    def close(self) -> None:
        """Stop threads and connections. Harmless when repeated."""
