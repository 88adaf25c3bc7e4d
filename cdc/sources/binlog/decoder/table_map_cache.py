"""The cache of table maps: the kernel finds a map by its content and gets the number of the table's ``TableDecoding``.

A server repeats the table map of a table before each statement's rows. Only a map with new content is parsed in Python.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cdc.errors import SchemaMismatch, TargetMismatch
from cdc.model.position import Position
from cdc.mysql.values.kernels import SLACK_BYTES
from cdc.sources.binlog.decoder.framing import HASH, KNOWN_FIELDS, KNOWN_SLOT, LENGTH, OFFSET, OMITTED, SKIPPED
from cdc.sources.binlog.decoder.table_map import TableMap, parse_table_map, schema_of, table_name
from cdc.sources.binlog.decoder.table_plan import TableDecoding, plan_table

if TYPE_CHECKING:
    from cdc.model.schema import TableSchema
    from cdc.model.table_filter import TableFilter

_MAX_KNOWN = 1 << 16  # table maps; at this number the cache is emptied


class TableSource(Protocol):
    """Schemas of tables whose TABLE_MAP does not have names, key and labels (row metadata is not FULL; MariaDB)."""

    def schema(self, table_map: TableMap) -> TableSchema | None:
        """Return the table as it is at the position read up to; None: skip its rows (a sequence, or omitted rows).

        Calls: once per distinct TABLE_MAP, and again after each DDL statement. Raises: SchemaMismatch.
        """


@dataclass(slots=True)
class TableMapCache:
    """The known table maps and slots. ``framing`` describes the arrays."""

    table_filter: TableFilter
    tables: TableSource
    slots: list[TableDecoding]
    index: np.ndarray
    known: np.ndarray
    arena: np.ndarray
    _count: int
    _used: int
    _by_shape: dict[Any, int]
    _asks: bool = False  # some map is not complete, so the TableSource described its table

    @classmethod
    def empty(cls, table_filter: TableFilter, tables: TableSource) -> TableMapCache:
        """Return a cache without table maps."""
        index, known = np.zeros(256, np.int64), np.zeros((128, KNOWN_FIELDS), np.int64)
        return cls(table_filter, tables, [], index, known, np.zeros(1 << 16, np.uint8), 0, 0, {})

    def add(self, content: bytes, hashed: int, *, mariadb: bool, since: Position) -> None:
        """Add a table map. Raises: Malformed; the errors of ``TableFilter.reads`` and ``TableSource.schema``."""
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
        """Query the TableSource again for tables with incomplete maps: the same bytes may mean other columns now."""
        if not self._asks:
            return
        kept = [
            row
            for row in self.known[: self._count].tolist()
            if row[KNOWN_SLOT] == SKIPPED or (row[KNOWN_SLOT] >= 0 and self.slots[row[KNOWN_SLOT]].table_map.complete)
        ]
        self._asks = False
        self._count = len(kept)
        # Move the kept maps together, because the others are added again: else each DDL would leave unused bytes.
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
        if not self.table_filter.maps(database, table):
            return SKIPPED
        table_map = parse_table_map(content, mariadb=mariadb)
        self._asks |= not table_map.complete
        schema = schema_of(table_map, since) if table_map.complete else self.tables.schema(table_map)
        if schema is None:
            return OMITTED
        layout = tuple((column.type, column.meta) for column in table_map.columns)
        try:
            reads = self.table_filter.reads(schema)
        except (SchemaMismatch, TargetMismatch) as error:
            if not self.table_filter.leave_out(database, table, error):
                raise
            return SKIPPED
        shape = (replace(schema, since=None), layout, reads)
        if shape not in self._by_shape:
            self.slots.append(plan_table(table_map, schema, reads))
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
        offset = int(self.known[row, HASH]) & mask
        while self.index[offset]:
            offset = (offset + 1) & mask
        self.index[offset] = row + 1
