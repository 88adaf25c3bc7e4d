"""Bytes to Batches: what a receiver feeds with a server's stream or a file's bytes, and takes Batches from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cdc.batch import Batch
from cdc.binlog.events import Statement
from cdc.position import BinlogPosition
from cdc.schema import TableSchema

if TYPE_CHECKING:
    from cdc.binlog.tables import TableMap
    from cdc.receiver.base import Selection


class TableSource(Protocol):
    """Schemas of tables whose TABLE_MAP does not carry names, key and labels (row metadata is not FULL)."""

    def schema(self, table_map: TableMap) -> TableSchema:
        """The table as it is at the place read up to. Raises: SchemaMismatch - it does not fit ``table_map``."""


class BinlogDecoder:
    """One stream's decoder."""

    position: BinlogPosition  # behind the last whole transaction returned
    ended: bool  # the server sent EOF: the end of a non-blocking dump

    def __init__(
        self,
        *,
        selection: Selection,
        tables: TableSource,
        on_statement: Callable[[Statement], None],
        start: BinlogPosition,
        sequence: int,
        framed: bool,
        skip_rows: int = 0,
        batch_bytes: int = 4 << 20,
    ) -> None:
        raise NotImplementedError

    def begin_file(self, name: str, offset: int = 4) -> None:
        """The bytes fed next are those of the file ``name``, from its magic on; events before ``offset`` are dropped."""

    def room(self) -> memoryview:
        """A writable place of at least 64 KiB for ``recv_into`` or ``readinto``; valid until the next call."""
        raise NotImplementedError

    def feed(self, byte_count: int) -> None:
        """``byte_count`` bytes were written into ``room()``."""

    def next(self) -> Batch | None:
        """The next Batch, or None when more bytes are needed."""
        raise NotImplementedError
