"""Blocks of Kafka messages for tests of the formats."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from cdc.model.batch import RequiredColumns
from cdc.model.schema import TableSchema
from cdc.sources.kafka.formats.base import Decoded, topic_table
from cdc.sources.kafka.formats.fields import parse_path
from cdc.sources.kafka.messages import PADDING, MessageBlock


def packed(texts: list[bytes | None]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one buffer with all texts, and the offset and size of each; -1: null."""
    sizes = np.array([-1 if text is None else len(text) for text in texts], np.int64)
    ends = np.cumsum(np.maximum(sizes, 0))
    data = b"".join(text or b"" for text in texts) + bytes(PADDING)
    return np.frombuffer(data, np.uint8), ends - np.maximum(sizes, 0), sizes


def block_of(
    values: list[Any], keys: list[Any] | None = None, topic: str = "shop.orders", first_offset: int = 100
) -> MessageBlock:
    """Return a block of messages: bytes as they are, None as null, and anything else as JSON."""
    keys = keys if keys is not None else [None] * len(values)
    data, at, sizes = packed([_bytes(each) for each in [*values, *keys]])
    count = len(values)
    return MessageBlock(
        topic, data, at[:count], sizes[:count], at[count:], sizes[count:], np.zeros(count, np.int32),
        np.arange(first_offset, first_offset + count), np.full(count, 1_700_000_000_000, np.int64),
    )  # fmt: skip


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


class MappedTables:
    """Maps tables: all of them or those of ``only``, with their columns or ``columns``, and the key or ``key``."""

    def __init__(
        self,
        *,
        schemas: tuple[TableSchema, ...] = (),
        only: tuple[str, ...] = (),
        columns: tuple[str, ...] = (),
        key: tuple[str, ...] = (),
        paths: dict[str, str] | None = None,
    ) -> None:
        self._paths = {name: parse_path(path) for name, path in (paths or {}).items()}
        self._schemas = {(schema.database, schema.table): schema for schema in schemas}
        self._only, self._columns, self._key = only, columns, key
        self.omitted: list[str] = []
        self.omits = False

    def maps(self, database: str, table: str) -> bool:
        return not self._only or f"{database}.{table}" in self._only

    may_map = maps

    def reads(self, schema: TableSchema) -> RequiredColumns:
        key = frozenset(self._key or schema.key)
        return RequiredColumns(frozenset(self._columns or (each.name for each in schema.columns)) | key, key)

    def leave_out(self, database: str, table: str, error: Exception) -> bool:
        if self.omits:
            self.omitted.append(f"{database}.{table}: {error}")
        return self.omits

    def schema(self, database: str, table: str) -> TableSchema | None:
        return self._schemas.get((database, table))

    def table_of(self, topic: str) -> tuple[str, str]:
        return topic_table(topic)

    def paths(self, database: str, table: str) -> dict[str, tuple[str, ...]]:
        return self._paths


def rows_of(decoded: Decoded) -> list[dict[str, Any]]:
    """Return all rows as dicts, in order of the messages."""
    found = [
        (int(message), number, row)
        for number, table in enumerate(decoded.tables)
        for message, row in zip(table.message, table.rows.to_pylist(), strict=True)
    ]
    return [row for _, _, row in sorted(found, key=lambda each: each[:2])]
