"""Debezium's change events as JSON, with schemas (``schemas.enable=true``) and without.

A column that is NULL in MySQL and has a default arrives as the default, unless the converter has
``replace.null.with.default=false``. A message does not show which of the two it was.

Source: Debezium documentation, "Data change events" of the MySQL connector; golden messages of Debezium 3.6.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdc.model.table_names import table_text
from cdc.sources.canal import value_kernels
from cdc.sources.kafka.formats import json_kernels as kernels
from cdc.sources.kafka.formats.base import DdlMessage, Decoded, DecodedRows, Faults, KafkaTables, message_position
from cdc.sources.kafka.formats.debezium_rows import CREATE, DELETE, OPS, TRUNCATE, ChangeImages, DebeziumRows
from cdc.sources.kafka.formats.debezium_tombstones import Keys, key_name
from cdc.sources.kafka.formats.debezium_types import JSON, DebeziumModes
from cdc.sources.kafka.formats.json_slices import (
    FAULTS,
    ONE,
    ONE_OR_ABSENT,
    Names,
    Slices,
    Texts,
    group_rows,
    shown,
    slice_objects,
    stacked,
    words_of,
)
from cdc.sources.kafka.formats.rows import TablePlan, in_order
from cdc.sources.kafka.messages import MessageBlock

_TOP = Names(("payload", "schema", "before", "after", "source", "op", "ddl", "status", "id", "event_count", "ts_ms"))
_PAYLOAD, _SCHEMA, _BEFORE, _AFTER, _SOURCE, _OP, _DDL, _STATUS, _ID, _COUNT, _TS = range(11)
_TEXTS = (kernels.STRING, kernels.ESCAPED)
_KEY_NAMES = Names(("schema", "payload"))
_MARKS = Names(("BEGIN", "END"))
_HEARTBEAT = {"ts_ms", "ts_us", "ts_ns"}
_SOURCE_NAMES = Names(("db", "table", "ts_us", "ts_ms"))
_DB, _TABLE, _TS_US, _TS_MS = range(4)


class DebeziumJson(DebeziumRows):
    """Decodes Debezium's change events. Implements ``Format``."""

    def __init__(self, tables: KafkaTables, *, modes: DebeziumModes | None = None) -> None:
        """``modes``: of the connector, for messages without a schema; None: such messages are refused."""
        super().__init__(tables, JSON, modes)

    def decode(self, block: MessageBlock) -> Decoded:
        """See ``Format``."""
        faults = Faults()
        envelope, is_tombstone = _envelopes(block, faults)
        source = slice_objects(
            block.data, envelope.starts[_SOURCE], _object_sizes(envelope, _SOURCE), _SOURCE_NAMES, ONE_OR_ABSENT
        )
        ops = words_of(envelope[_OP], OPS)
        for row in np.flatnonzero((ops < 0) & ~((ops == -2) & _has_no_row(block, envelope))).tolist():
            shown_op = shown(envelope[_OP].bytes(row))
            faults[int(envelope.source[row])] = f"it has no known `op` of Debezium: {shown_op}"
        tables, statements = self._tables_of(block, envelope, source, ops, faults)
        if is_tombstone.any():
            tables = self.with_deletes(block, is_tombstone, envelope.source[ops == DELETE], tables, faults)
        return Decoded(
            in_order(tables),
            faults.in_order(),
            tuple(sorted(statements, key=lambda each: each.message)),
            _source_times(block, envelope, source),
        )

    def columns_with_default(self, block: MessageBlock) -> tuple[str, ...] | None:
        """Return the columns in which a NULL may arrive as the default, from the first mapped message that has rows.

        None: that message has no schema. (): no such column, or no such message.
        """
        envelope, _ = _envelopes(block, Faults())
        source = slice_objects(
            block.data, envelope.starts[_SOURCE], _object_sizes(envelope, _SOURCE), _SOURCE_NAMES, ONE_OR_ABSENT
        )
        ops = words_of(envelope[_OP], OPS)
        for row in np.flatnonzero((ops >= CREATE) & (ops <= DELETE)).tolist():
            try:
                names = (str(source[_DB].value(row)), str(source[_TABLE].value(row)))
                fields = _fields(envelope[_SCHEMA].value(row))
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # ``decode`` reports the fault
            if self.tables.maps(*names):
                return None if fields is None else tuple(name for name, each in fields.items() if _has_default(each))
        return ()

    def _tables_of(
        self, block: MessageBlock, envelope: Slices, source: Slices, ops: NDArray[np.int8], faults: Faults
    ) -> tuple[list[DecodedRows | None], list[DdlMessage]]:
        chosen = np.flatnonzero((ops >= CREATE) & (ops <= TRUNCATE))
        schemas = envelope[_SCHEMA][chosen]
        texts = [source[_DB][chosen], source[_TABLE][chosen], schemas]
        if (schemas.lengths >= 0).any():  # a key can change without a change of the columns
            texts.append(_key_schemas(block, envelope.source[chosen]))
        names = stacked(texts, envelope.source[chosen], envelope.faults)
        groups, firsts = group_rows(names, range(len(texts)))
        tables: list[DecodedRows | None] = []
        statements: list[DdlMessage] = []
        for group, first in enumerate(firsts):
            rows = chosen[groups == group]
            try:
                database, table = names[0].value(first), names[1].value(first)
                if not isinstance(database, str) or not isinstance(table, str):
                    raise ValueError("`source` has no `db` or no `table`")
                if not self.tables.maps(database, table):
                    continue
                fields = _fields(names[2].value(first))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                for number in envelope.source[rows].tolist():
                    faults[number] = f"its table or its schema cannot be read: {error}"
                continue
            for number in envelope.source[rows[ops[rows] == TRUNCATE]].tolist():
                statements.append(DdlMessage(number, database, table, f"TRUNCATE TABLE {table_text(database, table)}"))
            rows = rows[ops[rows] != TRUNCATE]  # a TRUNCATE has no key
            if not len(rows):
                continue
            number = int(envelope.source[rows[0]])
            name, key = _key_of(block, number)
            self.key_deletes.note_name(block.topic, name, database, table)
            plan = self.plan(database, table, fields, key, message_position(block, number))
            if plan is not None:
                tables.append(self._read(block, plan, envelope.take(rows), ops[rows], faults))
        return tables, statements

    def keys(self, block: MessageBlock, messages: NDArray[np.int64]) -> Iterator[Keys]:
        """See ``DebeziumRows``."""
        at, sizes = block.key_at[messages], block.key_size[messages]
        top = slice_objects(block.data, at, sizes, _KEY_NAMES, ONE)
        for row in np.flatnonzero(top.faults).tolist():
            yield Keys(block.topic, messages[row : row + 1], reason=FAULTS[top.faults[row]])
        wrapped = np.all(top.kinds != kernels.ABSENT, axis=0)
        plain = top.source[~wrapped]
        if len(plain):
            yield Keys(block.topic, messages[plain], None, _slices(block, at[plain], sizes[plain]))
        top = top.take(wrapped)
        payloads = _object_sizes(top, 1)
        groups, firsts = group_rows(top, (0,))
        for group, first in enumerate(firsts):
            rows = np.flatnonzero(groups == group)
            chosen = messages[top.source[rows]]
            try:
                schema = top[0].value(first)
                if schema is None:
                    yield Keys(block.topic, chosen, None, _slices(block, top.starts[1, rows], payloads[rows]))
                    continue
                fields = {str(field["field"]): field for field in schema["fields"]}
                name = key_name(str(schema.get("name") or block.topic))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                yield Keys(block.topic, chosen, reason=f"its schema cannot be read: {error}")
                continue
            yield Keys(name, chosen, fields, _slices(block, top.starts[1, rows], payloads[rows]))

    def _read(
        self, block: MessageBlock, plan: TablePlan, envelope: Slices, ops: NDArray[np.int8], faults: Faults
    ) -> DecodedRows | None:
        images, present = [], []
        for slot, name in ((_BEFORE, "before"), (_AFTER, "after")):
            sizes = _object_sizes(envelope, slot)
            image = slice_objects(block.data, envelope.starts[slot], sizes, Names(plan.names), ONE_OR_ABSENT)
            for row in np.flatnonzero(image.faults).tolist():
                faults.setdefault(int(envelope.source[row]), f"`{name}`: {FAULTS[image.faults[row]]}")
            if len(image) != len(envelope):
                # images with invalid JSON have no row; the envelope was valid, so this cannot be
                raise AssertionError("An image of a valid message is not valid JSON.")
            images.append(image)
            present.append(sizes >= 0)
        before, after = (
            Slices(one.data, one.starts, one.lengths, one.kinds, envelope.source, one.faults) for one in images
        )
        return self.rows(block, plan, ChangeImages(ops, before, after, *present), faults)


def _envelopes(block: MessageBlock, faults: Faults) -> tuple[Slices, NDArray[np.bool_]]:
    """Return the envelope of each message that is not null, and which messages are null.

    With a schema, the envelope is its ``payload``, and a null may be one too.
    """
    is_null = block.value_size < 0
    top = slice_objects(block.data, block.value_at, block.value_size, _TOP, ONE)
    for number in np.flatnonzero(top.faults).tolist():
        faults[number] = FAULTS[top.faults[number]]
    wrapped = (top.kinds[_PAYLOAD] != kernels.ABSENT) & (top.kinds[_SCHEMA] != kernels.ABSENT)
    if not wrapped.any():
        return top, is_null
    payload = slice_objects(
        block.data, top.starts[_PAYLOAD], np.where(wrapped, _object_sizes(top, _PAYLOAD), -1), _TOP, ONE_OR_ABSENT
    )
    inner = np.flatnonzero(wrapped)
    for target, source in ((top.starts, payload.starts), (top.lengths, payload.lengths), (top.kinds, payload.kinds)):
        for slot in range(_BEFORE, _TS + 1):
            target[slot, inner] = source[slot, inner]
    wrapped &= top.kinds[_PAYLOAD] == kernels.NULL
    if not wrapped.any():
        return top, is_null
    is_null[top.source[wrapped]] = True
    return top.take(~wrapped), is_null


def _has_no_row(block: MessageBlock, envelope: Slices) -> NDArray[np.bool_]:
    """Return which messages are heartbeats, transaction marks or DDL, if they have no `op`.

    They are in topics of their own, without order to rows. A row without an envelope (ExtractNewRecordState) can have
    columns with the same names, so the kinds of the values and the other keys decide.
    """
    kinds = envelope.kinds
    is_mark = (
        (words_of(envelope[_STATUS], _MARKS) >= 0) & np.isin(kinds[_ID], _TEXTS) & (kinds[_COUNT] != kernels.ABSENT)
    )
    is_ddl = np.isin(kinds[_DDL], (*_TEXTS, kernels.NULL)) & (kinds[_SOURCE] == kernels.OBJECT)
    found: NDArray[np.bool_] = is_mark | is_ddl
    for row in np.flatnonzero(~found & (kinds[_TS] == kernels.NUMBER) & (kinds[_OP] == kernels.ABSENT)).tolist():
        number = int(envelope.source[row])
        at, size = int(block.value_at[number]), int(block.value_size[number])
        with suppress(ValueError, AttributeError):  # invalid UTF-8, or two payloads: no heartbeat
            value = json.loads(block.data[at : at + size].tobytes())
            found[row] = (value["payload"] if value.keys() >= {"payload", "schema"} else value).keys() <= _HEARTBEAT
    return found


def _object_sizes(slices: Slices, slot: int) -> NDArray[np.int32]:
    return np.where(slices.kinds[slot] == kernels.OBJECT, slices.lengths[slot], np.int32(-1))


def _fields(schema: Any) -> Mapping[str, Any] | None:
    """Return the fields of the ``after`` image by name; None if the message has no schema."""
    if schema is None:
        return None
    images = {each["field"]: each for each in schema["fields"]}
    image = images.get("after") or images["before"]
    return {str(field["field"]): field for field in image["fields"]}


def _slices(block: MessageBlock, at: NDArray[np.int64], sizes: NDArray[Any]) -> Callable[[Sequence[str]], Slices]:
    return lambda names: slice_objects(block.data, at, sizes, Names(names), ONE_OR_ABSENT)


def _key_schemas(block: MessageBlock, messages: NDArray[np.int32]) -> Texts:
    """Return the schema in the key of each message. A key without one, or that is not JSON, has no schema."""
    names = Names(("schema",))
    found = slice_objects(block.data, block.key_at[messages], block.key_size[messages], names, ONE_OR_ABSENT)
    starts, lengths = np.zeros(len(messages), np.int64), np.full(len(messages), -1, np.int32)
    kinds = np.full(len(messages), kernels.ABSENT, np.uint8)
    starts[found.source], lengths[found.source], kinds[found.source] = found.starts[0], found.lengths[0], found.kinds[0]
    return Texts(block.data, starts, lengths, kinds)


def _key_of(block: MessageBlock, message: int) -> tuple[str, tuple[str, ...]]:
    """Return PREFIX.database.table, or the topic, and the key columns, from the key of one message; () if unknown."""
    try:
        schema = _key_schemas(block, np.array([message], np.int32)).value(0)
        if isinstance(schema, dict):
            columns = tuple(str(field["field"]) for field in schema["fields"])
            return key_name(str(schema.get("name") or block.topic)), columns
    except (ValueError, KeyError, TypeError):
        pass
    return block.topic, ()


def _has_default(field: Mapping[str, Any]) -> bool:
    return bool(field.get("optional")) and field.get("default") is not None


def _source_times(block: MessageBlock, envelope: Slices, source: Slices) -> NDArray[np.int64]:
    """Return the commit times of the messages in microseconds; -1: none."""
    times = np.full(len(block.value_at), -1, np.int64)
    for slot, unit in ((_TS_MS, 1000), (_TS_US, 1)):
        values = source[slot]
        lengths = np.where(values.kinds == kernels.NUMBER, values.lengths, np.int32(-1))
        out = np.empty(len(source), np.int64)
        if value_kernels.integers(values.data, values.starts, lengths, 0, 1 << 60, out) < 0:
            known = lengths >= 0
            times[envelope.source[known]] = out[known] * unit
    return times
