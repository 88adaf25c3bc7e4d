"""The contract of message formats: messages in, typed rows of tables out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cdc.model.schema import TableSchema
from cdc.model.table_filter import TableFilter
from cdc.sources.kafka.messages import MessageBlock


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of one table and layout, in order of their messages.

    Shape of ``rows``: the needed source columns in table order, with types as ``Column.arrow``, then ``__deleted``
    (bool). ``message`` and ``key_change`` have one value per row.
    """

    schema: TableSchema  # as the messages describe it, or as the job file does
    rows: pa.RecordBatch
    message: NDArray[np.int32]  # number of the row's message in its block, not decreasing
    key_change: NDArray[np.bool_]  # the row is one half of an update that changed the key: a delete and an upsert


@dataclass(frozen=True, slots=True)
class Fault:
    """A message that could not be decoded."""

    message: int  # its number in the block
    reason: str  # at most 300 bytes of the message are in it
    table: str = ""  # its source table; "" if the message does not say it
    # The message repeats the delete of the message before it. It is not a fault if the job has read that message.
    is_tombstone: bool = False


class Faults(dict[int, str]):
    """The reasons of the messages that cannot be decoded, by their numbers in the block."""

    def __init__(self, reasons: Mapping[int, str] | None = None, table: str = "") -> None:
        """``table``: the table of every message, if the topic decides it."""
        super().__init__(reasons or {})
        self._table = table
        self._tables: dict[int, str] = {}
        self.tombstones: frozenset[int] = frozenset()  # see ``Fault``

    def note_table(self, before: int, table: str) -> None:
        """Note that the messages after the first ``before`` faults are of a table."""
        for message in [*self][before:]:
            self._tables[message] = table

    def in_order(self) -> tuple[Fault, ...]:
        """Return the faults in order of the messages."""
        return tuple(
            Fault(message, reason, self._tables.get(message, self._table), message in self.tombstones)
            for message, reason in sorted(self.items())
        )


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """A DDL statement that was sent as a message."""

    message: int  # its number in the block
    database: str  # the default database
    table: str  # "" if the statement is not about one table
    text: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """The content of a block. Messages without rows and statements (heartbeats) have no entry."""

    tables: tuple[DecodedRows, ...]  # one per table and layout, in order of the first row
    faults: tuple[Fault, ...]  # in order of the messages; none of their rows are in ``tables``
    statements: tuple[DdlMessage, ...]  # in order of the messages
    source_time_us: NDArray[np.int64]  # per message, since 1970, UTC; -1: none


class KafkaTables(TableFilter, Protocol):
    """Selects tables and their columns, and knows their types if the messages do not have them."""

    def schema(self, database: str, table: str) -> TableSchema | None:
        """Return the table as the job file describes it; None: only the messages describe it."""

    def table_of(self, topic: str) -> tuple[str, str]:
        """Return the database and table of a topic of plain rows."""

    def paths(self, database: str, table: str) -> Mapping[str, tuple[str, ...]]:
        """Return the paths of columns of plain rows. A column without one is at the top level under its name."""


class Format(Protocol):
    """Decodes messages. Picklable, because it runs on executors too. Calls: one thread at a time."""

    @property
    def invalid_dates(self) -> Counter[tuple[str, str]]:
        """The number of zero and invalid dates that became NULL, by table and column. Calls: any thread."""

    def decode(self, block: MessageBlock) -> Decoded:
        """Return the rows of the messages. A message that is not readable becomes a Fault.

        Raises: SchemaMismatch, TargetMismatch - a table cannot be mapped.
        ``context`` has table and position.
        """


def message_position(block: MessageBlock, message: int) -> str:
    """Return ``topic[partition]:offset`` of a message."""
    return f"{block.topic}[{block.partition[message]}]:{block.offset[message]}"


def topic_table(topic: str) -> tuple[str, str]:
    """Return the database and table for a topic of plain rows. Without a dot in the topic, the database is empty."""
    database, dot, table = topic.partition(".")
    return (database, table) if dot else ("", topic)
