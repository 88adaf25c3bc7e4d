"""Maxwell's messages: one JSON object per row, without types. The channel's ``fields`` have the types of MySQL.

Not in a message: the type of a column, and whether a JSON column is NULL or has the document ``null``.

Source: Maxwell documentation, "Data format" and "Producers".
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cdc.errors import CdcError, SchemaMismatch
from cdc.model.schema import Column, Kind, TableSchema
from cdc.sources.canal import value_kernels
from cdc.sources.kafka.formats import json_kernels as kernels
from cdc.sources.kafka.formats.base import DdlMessage, Decoded, DecodedRows, Faults, message_position
from cdc.sources.kafka.formats.images import rows_of_images
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
    words_of,
)
from cdc.sources.kafka.formats.rows import (
    ColumnPlan,
    TablePlan,
    TextFormat,
    in_order,
    needed_columns,
    omit_table,
    unescaped,
)
from cdc.sources.kafka.formats.typed_values import ANY_KIND, documents, plain_plan, utf8
from cdc.sources.kafka.messages import MessageBlock

_TOP = Names(("type", "database", "table", "data", "old", "ts", "sql"))
_TYPE, _DATABASE, _TABLE, _DATA, _OLD, _TS, _SQL = range(7)
_TYPES = Names((
    "insert", "bootstrap-insert", "update", "delete", "bootstrap-start", "bootstrap-complete", "heartbeat",
    "table-create", "table-alter", "table-drop", "database-create", "database-alter", "database-drop",
))  # fmt: skip
_UPDATE, _DELETE, _FIRST_DDL = 2, 3, 7


class Maxwell(TextFormat):
    """Decodes Maxwell's messages. Implements ``Format``."""

    def decode(self, block: MessageBlock) -> Decoded:
        """See ``Format``."""
        envelope = slice_objects(block.data, block.value_at, block.value_size, _TOP, ONE)
        faults = Faults({int(number): FAULTS[envelope.faults[number]] for number in np.flatnonzero(envelope.faults)})
        types = words_of(envelope[_TYPE], _TYPES)
        for row in np.flatnonzero(types < 0).tolist():
            text = shown(envelope[_TYPE].bytes(row))
            faults[int(envelope.source[row])] = f"it has no known `type` of Maxwell: {text}"
        chosen = (types >= 0) & (types <= _DELETE)
        tables = self._rows(block, envelope.take(chosen), types[chosen], faults)
        statements = self._statements(envelope, np.flatnonzero(types >= _FIRST_DDL).tolist(), faults)
        return Decoded(
            in_order(tables),
            faults.in_order(),
            statements,
            _source_times(block, envelope),
        )

    def _statements(self, envelope: Slices, rows: list[int], faults: Faults) -> tuple[DdlMessage, ...]:
        found = []
        for row in rows:
            number = int(envelope.source[row])
            try:
                database, table, sql = (envelope[slot].value(row) for slot in (_DATABASE, _TABLE, _SQL))
            except ValueError as error:
                faults[number] = f"its statement cannot be read: {error}"
                continue
            if isinstance(sql, str) and sql:
                found.append(DdlMessage(number, str(database or ""), str(table or ""), sql))
            else:
                faults[number] = "it is DDL without a statement in `sql`"
        return tuple(found)

    def _rows(
        self, block: MessageBlock, envelope: Slices, types: NDArray[np.int8], faults: Faults
    ) -> list[DecodedRows | None]:
        groups, firsts = group_rows(envelope, (_DATABASE, _TABLE))
        tables = []
        for group, first in enumerate(firsts):
            rows = np.flatnonzero(groups == group)
            try:
                database, table = (envelope[slot].value(first) for slot in (_DATABASE, _TABLE))
                if not isinstance(database, str) or not isinstance(table, str):
                    raise ValueError("it has no database or no table")
            except ValueError as error:
                for number in envelope.source[rows].tolist():
                    faults[number] = f"its table cannot be read: {error}"
                continue
            if not self._tables.maps(database, table):
                continue
            plan = self._plan(database, table, message_position(block, int(envelope.source[first])))
            if plan is not None:
                tables.append(self._read(block, plan, envelope.take(rows), types[rows], faults))
        return tables

    def _plan(self, database: str, table: str, at: str) -> TablePlan | None:
        """Return how the rows of a table are read; None if the job omits the table."""
        try:
            schema = self._tables.schema(database, table)
            if schema is None:
                raise SchemaMismatch(
                    "The types of the columns are not known, because Maxwell's messages do not have them.",
                    hint="Set `fields` of the channel to the types of MySQL, as SHOW CREATE TABLE prints them.",
                )
            reads = self._tables.reads(schema)
            columns = tuple(_column_plan(column, schema, self._zone_us) for column in needed_columns(schema, reads))
            return TablePlan(schema, columns, frozenset(name.casefold() for name in reads.key))
        except CdcError as error:
            omit_table(self._tables, database, table, error, at)
            return None

    def _read(
        self, block: MessageBlock, plan: TablePlan, envelope: Slices, types: NDArray[np.int8], faults: Faults
    ) -> DecodedRows | None:
        names = Names(plan.names)
        is_update = types == _UPDATE
        images = []
        for slot, name, needed in ((_DATA, "data", np.ones(len(types), np.bool_)), (_OLD, "old", is_update)):
            is_object = envelope.kinds[slot] == kernels.OBJECT
            sizes = np.where(is_object, envelope.lengths[slot], np.int32(-1))
            images.append(slice_objects(block.data, envelope.starts[slot], sizes, names, ONE_OR_ABSENT))
            for row in np.flatnonzero(needed & ~is_object).tolist():
                faults.setdefault(int(envelope.source[row]), f"its type needs `{name}`, which is null or absent")
        after, old = images
        # ``old`` has only the columns that changed
        is_old = (old.kinds != kernels.ABSENT) & is_update
        before = Slices(
            block.data,
            np.where(is_old, old.starts, after.starts),
            np.where(is_old, old.lengths, after.lengths),
            np.where(is_old, old.kinds, after.kinds),
            after.source,
            after.faults,
        )
        changed = np.zeros(len(envelope), np.bool_)
        for slot in plan.key_slots:
            value_kernels.differing(
                block.data, after.starts[slot], after.lengths[slot], before.starts[slot], before.lengths[slot],
                is_old[slot], changed,
            )  # fmt: skip
        rows, deleted, repeats = rows_of_images(before, after, types == _DELETE, changed)
        for slot, each in enumerate(plan.columns):
            if each.column.kind is Kind.JSON:
                _quote(rows, slot)
        message, key_change = np.repeat(envelope.source, repeats), np.repeat(changed, repeats)
        if faults:
            keep = ~np.isin(message, np.fromiter(faults, np.int64))
            rows, deleted, message, key_change = rows.take(keep), deleted[keep], message[keep], key_change[keep]
        return self._reader.read(block, plan, rows, deleted, message, key_change, faults) if len(rows) else None


def _column_plan(column: Column, schema: TableSchema, zone_us: int) -> ColumnPlan:
    if column.kind is Kind.SET:
        return ColumnPlan(column, _sets, (kernels.ARRAY,))
    if column.kind is Kind.JSON:
        return ColumnPlan(column, documents, ANY_KIND)
    return plain_plan(column, schema, zone_us)


def _sets(texts: Texts) -> pa.Array:
    """Return lists of labels as MySQL prints a SET. A label has no comma, so a comma is always between two labels."""
    inner = np.where(texts.lengths >= 2, texts.lengths - 2, np.int32(-1))
    kinds = np.where(texts.lengths >= 0, np.uint8(kernels.ESCAPED), np.uint8(kernels.NULL))
    labels = utf8(unescaped(Texts(texts.data, texts.starts + 1, inner, kinds)))
    labels = pc.replace_substring_regex(labels, r'"\s*,\s*"', ",")
    return pc.replace_substring_regex(labels, r'^\s*"|"\s*$', "")


def _quote(rows: Slices, slot: int) -> None:
    """Let the texts of a slot be JSON values with their quotes and escapes, because documents are printed so."""
    quoted = (rows.kinds[slot] == kernels.STRING) | (rows.kinds[slot] == kernels.ESCAPED)
    rows.starts[slot] -= quoted
    rows.lengths[slot] += 2 * quoted.astype(np.int32)
    rows.kinds[slot][quoted] = kernels.OBJECT


def _source_times(block: MessageBlock, envelope: Slices) -> NDArray[np.int64]:
    """Return the commit times of the messages in microseconds; -1: none. Maxwell sends whole seconds."""
    times = np.full(len(block.value_at), -1, np.int64)
    values = envelope[_TS]
    lengths = np.where(values.kinds == kernels.NUMBER, values.lengths, np.int32(-1))
    out = np.empty(len(envelope), np.int64)
    if value_kernels.integers(values.data, values.starts, lengths, 0, 1 << 40, out) < 0:
        times[envelope.source] = np.where(lengths < 0, -1, out * 1_000_000)
    return times
