"""Table maps seen before, by content, for the kernel to find; and the slots they lead to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cdc.binlog.framing import HASH, KNOWN_FIELDS, KNOWN_SLOT, LEFT_OUT, LENGTH, OFFSET, SKIPPED
from cdc.binlog.kernels import SLACK_BYTES
from cdc.binlog.rows import Slot, make_slot
from cdc.binlog.tables import parse_table_map, schema_of, table_name
from cdc.errors import SchemaMismatch, TargetMismatch
from cdc.position import Position

if TYPE_CHECKING:
    from cdc.binlog.decoder import TableSource
    from cdc.receiver.base import Selection

_MAX_KNOWN = 1 << 16  # table maps; a server that changes its tables endlessly starts the cache anew


@dataclass(slots=True)
class Registry:
    """What is known of tables. The arrays are the kernel's: see ``framing``."""

    selection: Selection
    tables: TableSource
    slots: list[Slot]
    index: np.ndarray
    known: np.ndarray
    arena: np.ndarray
    _count: int
    _used: int
    _by_shape: dict[Any, int]
    _asks: bool = False  # some map does not tell all of its table

    @classmethod
    def empty(cls, selection: Selection, tables: TableSource) -> Registry:
        """Nothing known yet."""
        index, known = np.zeros(256, np.int64), np.zeros((128, KNOWN_FIELDS), np.int64)
        return cls(selection, tables, [], index, known, np.zeros(1 << 16, np.uint8), 0, 0, {})

    def add(self, content: bytes, hashed: int, *, mariadb: bool, since: Position) -> None:
        """Learn a table map. Raises: Malformed; what ``Selection.reads`` and ``TableSource.schema`` raise."""
        slot = self._slot(content, mariadb=mariadb, since=since)
        if self._count == _MAX_KNOWN:
            self._count = self._used = 0
            self.index[:] = 0
        self._reserve(len(content))
        self.arena[self._used : self._used + len(content)] = np.frombuffer(content, np.uint8)
        row = self.known[self._count]
        row[HASH], row[OFFSET], row[LENGTH], row[KNOWN_SLOT] = hashed, self._used, len(content), slot
        self._used += len(content)
        self._count += 1
        self._enter(self._count - 1)

    def forget_schemas(self) -> None:
        """Ask the TableSource again for tables whose maps do not tell all: their bytes may mean other columns now."""
        if not self._asks:
            return
        kept = [
            row
            for row in self.known[: self._count].tolist()
            if row[KNOWN_SLOT] == SKIPPED or (row[KNOWN_SLOT] >= 0 and self.slots[row[KNOWN_SLOT]].table_map.complete)
        ]
        self._asks = False
        self._count = len(kept)
        # the others come again, behind those kept: without moving them together, every DDL would leave a hole
        self._used = 0
        for row in kept:
            offset, length = row[OFFSET], row[LENGTH]
            self.arena[self._used : self._used + length] = self.arena[offset : offset + length].copy()
            row[OFFSET] = self._used
            self._used += length
        self.known[: self._count] = np.array(kept, np.int64).reshape(-1, KNOWN_FIELDS)
        self._rebuild()

    def _slot(self, content: bytes, *, mariadb: bool, since: Position) -> int:
        database, table = table_name(content)
        if not self.selection.maps(database, table):
            return SKIPPED
        table_map = parse_table_map(content, mariadb=mariadb)
        self._asks |= not table_map.complete
        schema = schema_of(table_map, since) if table_map.complete else self.tables.schema(table_map)
        if schema is None:
            return LEFT_OUT
        layout = tuple((column.type, column.meta) for column in table_map.columns)
        try:
            reads = self.selection.reads(schema)
        except (SchemaMismatch, TargetMismatch) as error:
            if not self.selection.leave_out(database, table, error):
                raise
            return SKIPPED
        shape = (replace(schema, since=None), layout, reads)
        if shape not in self._by_shape:
            self.slots.append(make_slot(table_map, schema, reads))
            self._by_shape[shape] = len(self.slots) - 1
        return self._by_shape[shape]

    def _reserve(self, size: int) -> None:
        if self._used + size + SLACK_BYTES > len(self.arena):
            arena = np.zeros(2 * (len(self.arena) + size), np.uint8)
            arena[: self._used] = self.arena[: self._used]
            self.arena = arena
        if self._count == len(self.known):
            known = np.zeros((2 * len(self.known), KNOWN_FIELDS), np.int64)
            known[: self._count] = self.known
            self.known = known
            self.index = np.zeros(4 * len(known), np.int64)
            self._rebuild()

    def _rebuild(self) -> None:
        self.index[:] = 0
        for row in range(self._count):
            self._enter(row)

    def _enter(self, row: int) -> None:
        mask = len(self.index) - 1
        place = int(self.known[row, HASH]) & mask
        while self.index[place]:
            place = (place + 1) & mask
        self.index[place] = row + 1
