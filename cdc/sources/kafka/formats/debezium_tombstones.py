"""Tombstones of Debezium as deletes by the key of the message.

Debezium sends a message with the same key and no value after each delete event. In a compacted topic Kafka removes the
event and keeps the tombstone for ``delete.retention.ms``, so a job that was stopped finds the tombstone alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cdc.errors import CdcError
from cdc.model.schema import Column, TableSchema
from cdc.model.table_names import table_text
from cdc.sources.canal import value_kernels
from cdc.sources.kafka.formats.base import DecodedRows, Faults, KafkaTables
from cdc.sources.kafka.formats.debezium_types import DebeziumModes, Encoding, debezium_plan
from cdc.sources.kafka.formats.json_kernels import ABSENT
from cdc.sources.kafka.formats.json_slices import Slices
from cdc.sources.kafka.formats.rows import ColumnPlan, RowParser, TablePlan, needed_columns
from cdc.sources.kafka.layouts import column_difference
from cdc.sources.kafka.messages import MessageBlock

_log = logging.getLogger(__name__)
Name = tuple[str, str]  # database and table
_KEY = ".Key"  # the end of the name of a key's schema


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of some tombstones, in one form."""

    name: str  # PREFIX.database.table, from the schema of the key; without a schema: the topic
    messages: NDArray[np.int64]  # their numbers, ascending
    fields: Mapping[str, Any] | None = None  # of the schema, by column; None: the keys have no schema
    slices: Callable[[Sequence[str]], Slices] | None = None  # returns the values of columns; None: see ``reason``
    reason: str = ""  # why the keys cannot be read


def lone_tombstones(
    block: MessageBlock, is_tombstone: NDArray[np.bool_], is_delete: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the tombstones with a key that do not directly follow the delete event of this key in their partition.

    A tombstone without a key is of a table without a key. A compacted topic cannot have it.
    """
    chosen = np.flatnonzero(is_tombstone & (block.key_size >= 0))
    if not len(chosen):
        return chosen
    order = np.argsort(block.partition, kind="stable")
    before = np.full(len(order), -1, np.int64)
    before[order[1:]] = np.where(block.partition[order[1:]] == block.partition[order[:-1]], order[:-1], -1)
    other = before[chosen]
    is_pair = (other >= 0) & is_delete[other]
    differ = ~is_pair
    sizes = block.key_size.astype(np.int32)
    value_kernels.differing(
        block.data, block.key_at[chosen], sizes[chosen], block.key_at[other], sizes[other], is_pair, differ
    )
    return chosen[differ]


def key_name(name: str) -> str:
    """Return PREFIX.database.table for the name of a key's schema."""
    return name.removesuffix(_KEY)


class KeyDeletes:
    """Makes deletes of tombstones. Calls: as ``Format``."""

    def __init__(self, encoding: Encoding, modes: DebeziumModes | None, reader: RowParser) -> None:
        # The tables whose rows were read in this run or an earlier one. None: not by this reader.
        self.known: Callable[[], Mapping[Name, TableSchema | None]] = dict
        self.refuses_unknown = False  # a tombstone of a mapped table that is not ``known`` is a fault
        self._encoding, self._modes, self._reader = encoding, modes, reader
        self._seen: set[tuple[str, str, str]] = set()  # topic, database and table of rows
        self._irregular: set[str] = set()  # topics in which names do not end with database and table
        self._logged: set[str] = set()

    def note_name(self, topic: str, name: str, database: str, table: str) -> None:
        """Note the name in the key of a row of a mapped table."""
        if (topic, database, table) not in self._seen:
            self._seen.add((topic, database, table))
            if not _is_of(name, (database, table)):
                self._irregular.add(topic)

    def add(
        self,
        block: MessageBlock,
        tables: KafkaTables,
        keys: Iterable[Keys],
        rows: Sequence[DecodedRows | None],
        faults: Faults,
    ) -> list[DecodedRows | None]:
        """Return ``rows`` with a delete for each key of a mapped table. Add reasons to ``faults``."""
        found = [one for one in rows if one is not None]
        for one in keys:
            try:
                name = self._table_of(tables, block.topic, one.name)
            except ValueError as error:
                _refuse(one.messages, str(error), faults)
                continue
            if name is None:
                continue
            if one.slices is None:
                _refuse(one.messages, f"it is a tombstone, and its key cannot be read: {one.reason}", faults)
                continue
            for schema, messages in self._layouts(tables, name, found, one.messages):
                if schema is not None:
                    self._add(block, tables, one, (schema, messages), found, faults)
                elif self.refuses_unknown:
                    _refuse(messages, f"it is a tombstone of {table_text(*name)}, which is not loaded yet", faults)
                else:
                    self._log_once(logging.WARNING, table_text(*name), "this job has read no row of the table yet")
        return [*found]

    def _add(
        self,
        block: MessageBlock,
        tables: KafkaTables,
        keys: Keys,
        chosen: tuple[TableSchema, NDArray[np.int64]],
        found: list[DecodedRows],
        faults: Faults,
    ) -> None:
        schema, messages = chosen
        assert keys.slices is not None
        try:
            plan = self._plan(tables, schema, keys.fields)
        except (CdcError, ValueError) as error:
            reason = error.message.rstrip(".") if isinstance(error, CdcError) else str(error)
            _refuse(messages, f"it is a tombstone, and its key cannot be used: {reason}", faults)
            return
        slots = plan.key_slots
        values = keys.slices([plan.names[slot] for slot in slots]).take(np.isin(keys.messages, messages))
        shape = (len(plan.columns), len(messages))
        starts, lengths = np.zeros(shape, np.int64), np.full(shape, -1, np.int32)
        kinds = np.full(shape, ABSENT, np.uint8)
        starts[slots], lengths[slots], kinds[slots] = values.starts, values.lengths, values.kinds
        everywhere = np.ones(len(messages), np.bool_)
        numbers = messages.astype(np.int32)
        slices = Slices(values.data, starts, lengths, kinds, numbers, values.faults)
        deletes = self._reader.read(
            block, plan, slices, everywhere, numbers, ~everywhere, faults, optional=everywhere
        )  # fmt: skip
        if deletes is not None:
            _merge(tables, found, deletes)

    def _plan(self, tables: KafkaTables, schema: TableSchema, fields: Mapping[str, Any] | None) -> TablePlan:
        """Return how the key columns of the target are read.

        Raises: ValueError - the key lacks one; SchemaMismatch, TargetMismatch.
        """
        reads = tables.reads(schema)
        key = frozenset(name.casefold() for name in reads.key)
        plans = []
        for column in needed_columns(schema, reads):
            field = None if fields is None else fields.get(column.name)
            if column.name.casefold() not in key:
                plans.append(_null_plan(column))
            elif fields is not None and field is None:
                raise ValueError(f"it does not have column {column.name}, which is in the key of the target")
            else:
                plans.append(debezium_plan(column, schema, field, self._modes, self._encoding))
        return TablePlan(schema, tuple(plans), key)

    def _table_of(self, tables: KafkaTables, topic: str, name: str) -> Name | None:
        """Return the mapped table of a key; None: no channel reads it. Raises: ValueError - it is not clear."""
        matches = [one for one in self.known() if _is_of(name, one)]
        if len(matches) > 1:
            raise ValueError(f"it is a tombstone, and {name} can be each of several tables")
        database, _, table = ".".join(name.rsplit(".", 2)[-2:]).partition(".")
        found = matches[0] if matches else (database, table)
        if tables.maps(*found):
            return found
        if not matches and topic in self._irregular:
            raise ValueError(f"it is a tombstone, and its table is not known: {name} does not end with its name")
        if not matches:
            self._log_once(logging.INFO, name, "no channel reads the table")
        return None

    def _layouts(
        self, tables: KafkaTables, name: Name, found: Sequence[DecodedRows], messages: NDArray[np.int64]
    ) -> Iterator[tuple[TableSchema | None, NDArray[np.int64]]]:
        """Yield the schema for each tombstone of a table: that of the rows before it, else that of known rows."""
        if (described := tables.schema(*name)) is not None:
            yield described, messages
            return
        rows = [one for one in found if (one.schema.database, one.schema.table) == name]
        known = self.known().get(name) or (rows[0].schema if rows else None)
        last = np.full((len(rows) + 1, len(messages)), -1, np.int64)  # the last message of each layout before each one
        for number, one in enumerate(rows):
            at = np.searchsorted(one.message, messages) - 1
            last[number] = np.where(at >= 0, one.message[at], -1)
        choice = np.where(last.max(axis=0) < 0, len(rows), last.argmax(axis=0))
        for number in np.unique(choice).tolist():
            yield rows[number].schema if number < len(rows) else known, messages[choice == number]

    def _log_once(self, level: int, name: str, reason: str) -> None:
        if name not in self._logged:
            self._logged.add(name)
            _log.log(level, "tombstones of %s are ignored: %s (logged once)", name, reason)


def _is_of(name: str, table: Name) -> bool:
    """Return whether a name ends with a table. Debezium replaces characters that topics or Avro do not allow."""
    return any(name == form or name.endswith(f".{form}") for form in _forms(".".join(table)))


def _forms(name: str) -> set[str]:
    """Return a name as in topics, and with ``schema.name.adjustment.mode`` none, avro and avro_unicode."""
    return {
        name,
        re.sub(r"[^a-zA-Z0-9._-]", "_", name),
        re.sub(r"[^a-zA-Z0-9._]", "_", name),
        re.sub(r"[^a-zA-Z0-9.]", lambda found: f"_u{ord(found[0]):04x}", name),
    }


def _null_plan(column: Column) -> ColumnPlan:
    return ColumnPlan(column, lambda texts: pa.nulls(len(texts), column.arrow))


def _refuse(messages: NDArray[np.int64], reason: str, faults: Faults) -> None:
    for number in messages.tolist():
        faults.setdefault(number, reason)


def _merge(tables: KafkaTables, found: list[DecodedRows], deletes: DecodedRows) -> None:
    """Add deletes to the rows with the same layout, in order of the messages."""
    for number, one in enumerate(found):
        if one.schema.name == deletes.schema.name and not column_difference(tables, one.schema, deletes.schema):
            message = np.concatenate([one.message, deletes.message])
            order = np.argsort(message, kind="stable")
            found[number] = DecodedRows(
                one.schema,
                pa.concat_batches([one.rows, deletes.rows]).take(pa.array(order)),
                message[order],
                np.concatenate([one.key_change, deletes.key_change])[order],
            )
            return
    found.append(deletes)
