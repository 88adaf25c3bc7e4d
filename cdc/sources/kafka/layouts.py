"""The schemas of tables in topics: DDL messages, and rows whose layout differs from the known schema.

DDL messages are in one partition, without order against rows in others. The change therefore also stops the job at the
first row with another layout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from cdc.errors import CdcError, DdlStop
from cdc.model.batch import RequiredColumns
from cdc.model.kafka_position import KafkaPosition, Partition
from cdc.model.position import Position
from cdc.model.schema import Column, TableSchema
from cdc.model.table_filter import TableFilter
from cdc.model.table_names import table_text
from cdc.mysql.ddl import Effect
from cdc.mysql.ddl_effect import EffectKind
from cdc.sources.kafka.formats.base import DdlMessage, Decoded, DecodedRows
from cdc.sources.kafka.messages import MessageBlock
from cdc.sources.kafka.stops import Stop
from cdc.sources.schema_history import SchemaHistory, check_accepted

_log = logging.getLogger(__name__)
Before = Callable[[MessageBlock, int], KafkaPosition]


class Layouts:
    """Compares what messages say about tables with the known schemas. Calls: the reading thread."""

    def __init__(
        self,
        history: SchemaHistory,
        table_filter: TableFilter,
        acknowledged: Mapping[Position, bool],
        is_described: Callable[[str, str], bool] = lambda database, table: False,
    ) -> None:
        """``acknowledged``: the messages that earlier resumes accepted -> whether with ``--past-ddl``.

        ``is_described``: whether the job file has the columns of a table, and not the messages.
        """
        self._history, self._is_described = history, is_described
        self._filter = table_filter
        self._accepted = dict(_messages(acknowledged))

    def stops(self, block: MessageBlock, decoded: Decoded, before: Before) -> Iterator[Stop]:
        """Yield the messages at which the schema of a mapped table changes, without those that a user accepted."""
        for statement in decoded.statements:
            effect = self._history.effect(statement.text, statement.database)
            if effect.kind is EffectKind.TOUCHES and (stop := self._at_statement(block, statement, effect, before)):
                yield stop
        newest: dict[str, TableSchema] = {}
        for rows in decoded.tables:
            schema = rows.schema
            known = newest.get(schema.name) or self._history.newest((schema.database, schema.table))
            newest[schema.name] = schema
            if known is not None and (stop := self._at_rows(block, rows, known, before)):
                yield stop

    def names(self) -> frozenset[str]:
        """Return the tables whose columns are known."""
        return frozenset(table_text(*name) for name in self._history.known_schemas())

    def differs(self, schema: TableSchema) -> str:
        """Return how the known columns differ from ``schema``, which describes older rows; "" if they do not.

        Columns of the job file do not differ: with its correction, all rows have the new ones.
        """
        if self._is_described(schema.database, schema.table):
            return ""
        known = self._history.newest((schema.database, schema.table))
        return "" if known is None else self._difference(known, schema)

    def current(self, schema: TableSchema, position: KafkaPosition) -> TableSchema:
        """Return the known schema for rows with the layout ``schema``. Add it if it is new."""
        name = (schema.database, schema.table)
        known = self._history.newest(name)
        if known is not None and not self._difference(known, schema):
            return known
        return self._history.add(name, schema, position)

    def _at_statement(self, block: MessageBlock, statement: DdlMessage, effect: Effect, before: Before) -> Stop | None:
        accepted = self._accepted.get(_id(block, statement.message))
        position = before(block, statement.message)
        try:
            check_accepted(effect, statement.text, position, past_ddl=accepted, has_tables=False)
        except CdcError as error:
            return Stop(statement.message, error)
        _log.warning("continuing after %s on %s", effect.reason, ", ".join(effect.tables))
        return None

    def _at_rows(self, block: MessageBlock, rows: DecodedRows, known: TableSchema, before: Before) -> Stop | None:
        difference = self._difference(known, rows.schema)
        if not difference or self._is_accepted(block, rows):
            return None
        message = int(rows.message[0])
        return Stop(
            message,
            DdlStop(
                f"The columns of {rows.schema.name} changed: {difference}.",
                hint="Check that the target table fits the changed table, then run `cdc resume NAME`.",
                tables=rows.schema.name,
                position=before(block, message),
            ),
        )

    def _is_accepted(self, block: MessageBlock, rows: DecodedRows) -> bool:
        """Return whether a user accepted one of the messages of ``rows``."""
        numbers, offsets = block.partition[rows.message], block.offset[rows.message]
        return any(
            topic == block.topic and bool(((numbers == number) & (offsets == offset)).any())
            for (topic, number), offset in self._accepted
        )

    def _difference(self, known: TableSchema, found: TableSchema) -> str:
        return column_difference(self._filter, known, found)


def column_difference(table_filter: TableFilter, known: TableSchema, found: TableSchema) -> str:
    """Return how the columns or the key that the channel reads differ, "" if they do not."""
    if known is found:
        return ""
    old_reads, new_reads = table_filter.reads(known), table_filter.reads(found)
    before, after = _read_columns(known, old_reads), _read_columns(found, new_reads)
    if [*before.items()] == [*after.items()]:
        if old_reads.key == new_reads.key:
            return ""
        # with the old key, rows that differ only in a new key column would replace each other
        return f"the key was {_names(before, old_reads.key)}, is {_names(after, new_reads.key)}"
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old != new:
            return f"{name} was {old.type if old else 'missing'}, is {new.type if new else 'missing'}"
    return f"the order was {', '.join(before)}, is {', '.join(after)}"


def _names(columns: Mapping[str, Column], key: frozenset[str]) -> str:
    return ", ".join(name for name in columns if name in key)


def _read_columns(schema: TableSchema, reads: RequiredColumns) -> dict[str, Column]:
    needed = reads.columns | reads.key
    return {column.name: column for column in schema.columns if column.name in needed}


def _messages(acknowledged: Mapping[Position, bool]) -> Iterator[tuple[tuple[Partition, int], bool]]:
    for position, past_ddl in acknowledged.items():
        if isinstance(position, KafkaPosition) and position.statement:
            topic, _, number = position.statement.rpartition(":")
            partition = (topic, int(number))
            yield (partition, position.offsets[partition].next), past_ddl


def _id(block: MessageBlock, message: int) -> tuple[Partition, int]:
    return (block.topic, int(block.partition[message])), int(block.offset[message])
