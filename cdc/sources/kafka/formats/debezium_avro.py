"""Debezium's change events as Avro: a zero, the number of the schema in 4 bytes, then the data.

A registry has the schemas, with the same names as those in JSON messages. The form of Apicurio with numbers of 8 bytes
is not supported.

Source: Confluent documentation, "Wire format"; Debezium documentation, "Avro Serialization".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cdc.model.schema import Column, TableSchema
from cdc.model.table_names import table_text
from cdc.sources.kafka.formats import avro_kernels as kernels
from cdc.sources.kafka.formats import avro_program as program
from cdc.sources.kafka.formats.avro_program import AvroEvents, events_of
from cdc.sources.kafka.formats.base import DdlMessage, Decoded, DecodedRows, Faults, KafkaTables, message_position
from cdc.sources.kafka.formats.debezium_rows import CREATE, DELETE, OPS, TRUNCATE, ChangeImages, DebeziumRows
from cdc.sources.kafka.formats.debezium_tombstones import Keys, key_name
from cdc.sources.kafka.formats.json_kernels import ABSENT, NULL, OBJECT
from cdc.sources.kafka.formats.json_slices import Slices, Texts, group_rows, shown, stacked, words_of
from cdc.sources.kafka.formats.rows import TablePlan, in_order
from cdc.sources.kafka.formats.typed_values import bad_value
from cdc.sources.kafka.messages import MessageBlock
from cdc.sources.kafka.schema_registry import SchemaRegistry

_FAULTS = {
    kernels.CUT: "its Avro data ends too early",
    kernels.BAD_UNION: "its Avro data has a union without such a branch",
    kernels.BAD_LENGTH: "its Avro data has a negative length",
    kernels.TRAILING: "more data follows its Avro data",
    kernels.BAD_BOOLEAN: "its Avro data has a boolean that is neither 0 nor 1",
}


_NONE = np.zeros(0, np.int32)
_TIME_MOST = 1 << 60  # microseconds: some 36,000 years


class AvroEncoding:
    """Numbers and bytes in Avro's binary form. Implements ``Encoding``."""

    def whole(self, texts: Texts, low: int, high: int) -> np.ndarray:
        """See ``Encoding``."""
        out = np.empty(len(texts), np.int64)
        row = kernels.longs(texts.data, texts.starts, texts.lengths, low, high, out)
        if row >= 0:
            raise bad_value(texts, row, f"an integer from {low} to {high}")
        return out

    def floats(self, texts: Texts, column: Column, schema: TableSchema) -> pa.Array:
        """See ``Encoding``."""
        short, long = np.empty(len(texts), np.uint32), np.empty(len(texts), np.uint64)
        kernels.float_bits(texts.data, texts.starts, texts.lengths, short, long)
        values = np.where(texts.lengths == 4, short.view(np.float32).astype(np.float64), long.view(np.float64))
        return pc.cast(pa.array(values, mask=texts.lengths < 0), column.arrow)

    def binary(self, texts: Texts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See ``Encoding``."""
        return texts.data, texts.starts, texts.lengths


class DebeziumAvro(DebeziumRows):
    """Decodes Debezium's change events in Avro. Implements ``Format``."""

    def __init__(self, tables: KafkaTables, registry: SchemaRegistry) -> None:
        """``registry``: has the schemas."""
        super().__init__(tables, AvroEncoding())
        self._registry = registry
        self._events: dict[int, AvroEvents | str] = {}  # by number of the schema; a text: why it cannot be read

    def decode(self, block: MessageBlock) -> Decoded:
        """See ``Format``. Raises also: SourceUnavailable, SourceActionRequired - the registry has no schema."""
        faults = Faults()
        ids = np.empty(len(block.value_at), np.int64)
        kernels.schema_ids(block.data, block.value_at, block.value_size, ids)
        for number in np.flatnonzero(ids == -1).tolist():
            at = int(block.value_at[number])
            faults[number] = (
                f"it does not begin with the number of a schema: {shown(block.data[at : at + 5].tobytes())}"
            )
        tables: list[DecodedRows | None] = []
        statements: list[DdlMessage] = []
        times = np.full(len(ids), -1, np.int64)
        deletes: list[NDArray[np.int32]] = []
        for id_ in np.unique(ids[ids >= 0]).tolist():
            chosen = np.flatnonzero(ids == id_)
            events = self._events_of(id_)
            if isinstance(events, str):
                for number in chosen.tolist():
                    faults[number] = f"its schema {id_} cannot be read: {events}"
            elif events.is_row:
                tables += self._tables_of(block, events, chosen, times, faults, statements, deletes)
        if (is_null := ids == -2).any():
            tables = self.with_deletes(block, is_null, np.concatenate([*deletes, _NONE]), tables, faults)
        return Decoded(
            in_order(tables),
            faults.in_order(),
            tuple(sorted(statements, key=lambda each: each.message)),
            times,
        )

    def columns_with_default(self, block: MessageBlock) -> tuple[str, ...]:
        """Return the columns in which a NULL may arrive as the default, by the schemas of the messages."""
        ids = np.empty(len(block.value_at), np.int64)
        kernels.schema_ids(block.data, block.value_at, block.value_size, ids)
        found: dict[str, None] = {}
        for id_ in np.unique(ids[ids >= 0]).tolist():
            events = self._events_of(id_)
            if not isinstance(events, str):
                found |= {
                    name: None
                    for name, field in events.fields.items()
                    if field["optional"] and field["default"] is not None
                }
        return tuple(found)

    def _events_of(self, id_: int) -> AvroEvents | str:
        if id_ not in self._events:
            schema = self._registry.schema(id_)
            try:
                self._events[id_] = events_of(schema)
            except RecursionError:
                self._events[id_] = "it is nested too deeply"
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._events[id_] = f"{error}"
        return self._events[id_]

    def _tables_of(
        self,
        block: MessageBlock,
        events: AvroEvents,
        chosen: NDArray[np.int64],
        times: NDArray[np.int64],
        faults: Faults,
        statements: list[DdlMessage],
        deletes: list[NDArray[np.int32]],
    ) -> Iterable[DecodedRows | None]:
        values = _walked(block, block.value_at, block.value_size, events, chosen)
        if values.faults.any():
            for row in np.flatnonzero(values.faults).tolist():
                faults[int(chosen[row])] = _FAULTS[values.faults[row]]
            values = values.take(values.faults == 0)
        values = _with_times(values, times, faults)
        ops = words_of(values[program.OP], OPS)
        for row in np.flatnonzero(ops < 0).tolist():
            faults[int(values.source[row])] = (
                f"it has no known `op` of Debezium: {shown(values[program.OP].bytes(row))}"
            )
        deletes.append(values.source[ops == DELETE])
        rows = np.flatnonzero((ops >= CREATE) & (ops <= TRUNCATE))
        values, ops = values.take(rows), ops[rows]
        groups, firsts = group_rows(_group_texts(block, values), (0, 1, 2))
        for group, first in enumerate(firsts):
            members = np.flatnonzero(groups == group)
            database, table = (
                values[slot].bytes(first).decode("utf-8", "replace") for slot in (program.DB, program.TABLE)
            )
            if not self.tables.maps(database, table):
                continue
            for number in values.source[members[ops[members] == TRUNCATE]].tolist():
                statements.append(DdlMessage(number, database, table, f"TRUNCATE TABLE {table_text(database, table)}"))
            members = members[ops[members] != TRUNCATE]  # a TRUNCATE has no key
            if not len(members):
                continue
            number = int(values.source[members[0]])
            name, key = self._key(block, number)
            self.key_deletes.note_name(block.topic, name, database, table)
            plan = self.plan(database, table, events.fields, key, message_position(block, number))
            if plan is not None:
                yield self.rows(block, plan, _images(events, plan, values.take(members), ops[members]), faults)

    def keys(self, block: MessageBlock, messages: NDArray[np.int64]) -> Iterator[Keys]:
        """See ``DebeziumRows``. Raises also: SourceUnavailable, SourceActionRequired - see ``decode``."""
        ids = np.empty(len(messages), np.int64)
        kernels.schema_ids(block.data, block.key_at[messages], block.key_size[messages], ids)
        for id_ in np.unique(ids).tolist():
            chosen = messages[ids == id_]
            if id_ < 0:
                yield Keys(block.topic, chosen, reason="it does not begin with the number of a schema")
                continue
            schema = self._registry.schema(id_)
            try:
                events = program.key_of(schema)
            except (RecursionError, ValueError, KeyError, TypeError, AttributeError) as error:
                yield Keys(block.topic, chosen, reason=f"its schema {id_} cannot be read: {error}")
                continue
            values, name = _walked(block, block.key_at, block.key_size, events, chosen), program.name_of(schema)
            for row in np.flatnonzero(values.faults).tolist():
                yield Keys(block.topic, chosen[row : row + 1], reason=_FAULTS[values.faults[row]])
            values = values.take(values.faults == 0)
            yield Keys(key_name(name), values.source.astype(np.int64), events.fields, _slices(values, events))

    def _key(self, block: MessageBlock, message: int) -> tuple[str, tuple[str, ...]]:
        """Return PREFIX.database.table, or the topic, and the key columns, from a message's key; () if unknown."""
        at, size = int(block.key_at[message]), int(block.key_size[message])
        if size < kernels.HEAD or block.data[at] != 0:
            return block.topic, ()
        schema: Any = self._registry.schema(struct.unpack(">I", block.data[at + 1 : at + kernels.HEAD].tobytes())[0])
        if not isinstance(schema, dict) or schema.get("type") != "record":
            return block.topic, ()
        try:
            return key_name(program.name_of(schema)), tuple(str(field["name"]) for field in schema["fields"])
        except (KeyError, TypeError):
            return block.topic, ()


def _group_texts(block: MessageBlock, values: Slices) -> Slices:
    """Return database, table, and the number of the key's schema: a key can change without a change of the columns."""
    at, sizes = block.key_at[values.source], block.key_size[values.source]
    is_numbered = sizes >= kernels.HEAD
    is_numbered[is_numbered] = block.data[at[is_numbered]] == 0
    texts = [values[program.DB], values[program.TABLE]]
    lengths = np.where(is_numbered, np.int32(kernels.HEAD - 1), np.int32(-1))
    texts.append(Texts(block.data, at + 1, lengths, np.zeros(len(at), np.uint8)))
    return stacked(texts, values.source, values.faults)


def _with_times(values: Slices, times: NDArray[np.int64], faults: Faults) -> Slices:
    """Set the times of the messages in the source, in microseconds. Return the messages whose times can be true."""
    is_bad = np.zeros(len(values.source), bool)
    for slot, unit in ((program.TS_MS, 1000), (program.TS_US, 1)):
        known = np.flatnonzero(values.lengths[slot] >= 0)
        found = AvroEncoding().whole(values[slot][known], -(1 << 63), (1 << 63) - 1)
        is_far = np.abs(found // 2) > _TIME_MOST // unit // 2  # half of it, because the least number has no absolute
        times[values.source[known[~is_far]]] = found[~is_far] * unit
        is_bad[known[is_far]] = True
    for row in np.flatnonzero(is_bad).tolist():
        faults[int(values.source[row])] = "its time in the source is not a time"
    return values.take(np.flatnonzero(~is_bad)) if is_bad.any() else values


def _slices(values: Slices, events: AvroEvents) -> Callable[[Sequence[str]], Slices]:
    return lambda names: _of_slots(values, [events.slots["before", name] for name in names])


def _of_slots(values: Slices, slots: Sequence[int]) -> Slices:
    return Slices(
        values.data, values.starts[slots], values.lengths[slots], values.kinds[slots], values.source, values.faults
    )


def _walked(
    block: MessageBlock,
    at: NDArray[np.int64],
    sizes: NDArray[np.int64],
    events: AvroEvents,
    chosen: NDArray[np.int64],
) -> Slices:
    """Return the values of all slots of the texts of the messages ``chosen``, with their faults."""
    shape = (len(events.slots), len(chosen))
    starts, lengths, kinds = np.empty(shape, np.int64), np.empty(shape, np.int32), np.empty(shape, np.uint8)
    found = np.zeros(len(chosen), np.uint8)
    kernels.walk(block.data, at[chosen], sizes[chosen], events.program, starts, lengths, kinds, found)
    return Slices(block.data, starts, lengths, kinds, chosen.astype(np.int32), found)


def _images(events: AvroEvents, plan: TablePlan, values: Slices, ops: NDArray[np.int8]) -> ChangeImages:
    images = []
    for name in ("before", "after"):
        slots = [events.slots[name, column] for column in plan.names]
        images.append(_of_slots(values, slots))
        images[-1].kinds[images[-1].kinds == ABSENT] = NULL  # the image is null
    has_before, has_after = (values.kinds[slot] == OBJECT for slot in (program.BEFORE, program.AFTER))
    return ChangeImages(ops, images[0], images[1], has_before, has_after)
