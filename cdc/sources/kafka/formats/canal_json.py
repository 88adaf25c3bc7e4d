"""Canal's flat messages (``canal.mq.flatMessage = true``): one JSON object per row event, with the types in it.

All values are texts in Canal's own forms, which ``cdc.sources.canal.value_parsers`` reads.

Source: alibaba/canal 1.1.8, MQMessageUtils.messageConverter and FlatMessage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cdc.errors import CdcError, DecodeError
from cdc.model.schema import TableSchema
from cdc.model.table_names import table_text
from cdc.sources.canal import value_kernels
from cdc.sources.canal.layout import Layout, LayoutColumn
from cdc.sources.canal.value_parsers import Parser as CanalParser
from cdc.sources.canal.value_parsers import value_parser
from cdc.sources.kafka.formats import json_kernels as kernels
from cdc.sources.kafka.formats.base import DdlMessage, Decoded, DecodedRows, Faults, message_position
from cdc.sources.kafka.formats.canal_schemas import LOGGED_AS_STATEMENT, canal_schema, not_full
from cdc.sources.kafka.formats.json_slices import (
    FAULTS,
    LISTS,
    ONE,
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
    Parser,
    TablePlan,
    TextFormat,
    in_order,
    needed_columns,
    omit_table,
)
from cdc.sources.kafka.messages import MessageBlock

_ENVELOPE = Names(("data", "old", "type", "database", "table", "isDdl", "sql", "mysqlType", "pkNames", "es"))
_DATA, _OLD, _TYPE, _DATABASE, _TABLE, _IS_DDL, _SQL, _MYSQL_TYPE, _PK_NAMES, _ES = range(10)
_GROUP = (_DATABASE, _TABLE, _MYSQL_TYPE, _PK_NAMES)
_TYPES = Names(("INSERT", "UPDATE", "DELETE", "QUERY", "XACOMMIT", "TIDB_WATERMARK"))
_INSERT, _UPDATE, _DELETE = range(3)


PlanKey = tuple[str, str, Layout]  # database, table, columns


class CanalJson(TextFormat):
    """Decodes Canal's flat messages. Implements ``Format``."""

    def decode(self, block: MessageBlock) -> Decoded:
        """See ``Format``."""
        envelope = slice_objects(block.data, block.value_at, block.value_size, _ENVELOPE, ONE)
        faults = Faults({int(number): FAULTS[envelope.faults[number]] for number in np.flatnonzero(envelope.faults)})
        types = words_of(envelope[_TYPE], _TYPES)
        is_ddl = envelope.kinds[_IS_DDL] == kernels.TRUE
        rows = (types >= _INSERT) & (types <= _DELETE) & ~is_ddl
        statements = self._statements(envelope, is_ddl, faults)
        for row in np.flatnonzero((types < 0) & ~is_ddl):
            faults[int(envelope.source[row])] = (
                f"it has no known `type` of Canal: {shown(envelope[_TYPE].bytes(int(row)))}"
            )
        rows[self._logged_as_statements(envelope, rows, faults)] = False
        tables = self._rows(block, envelope if rows.all() else envelope.take(rows), types[rows], faults)
        return Decoded(
            in_order(tables),
            faults.in_order(),
            statements,
            _source_times(block, envelope),
        )

    def _statements(self, envelope: Slices, is_ddl: NDArray[np.bool_], faults: Faults) -> tuple[DdlMessage, ...]:
        found = []
        for row in np.flatnonzero(is_ddl).tolist():
            number = int(envelope.source[row])
            try:
                database, table, sql = (envelope[slot].value(row) for slot in (_DATABASE, _TABLE, _SQL))
            except ValueError as error:
                faults[number] = f"its statement cannot be read: {error}"
                continue
            if not isinstance(sql, str) or not sql:
                faults[number] = "it is DDL without a statement in `sql`"
                continue
            found.append(DdlMessage(number, str(database or ""), str(table or ""), sql))
        return tuple(found)

    def _logged_as_statements(self, envelope: Slices, changes: NDArray[np.bool_], faults: Faults) -> list[int]:
        """Return the changes that have a statement and no rows. Those that a mapped table may have are faults.

        Canal does not always know the table of a statement, and then sends an empty name.
        """
        has_no_rows = np.isin(envelope.kinds[_DATA], (kernels.NULL, kernels.ABSENT))
        found = np.flatnonzero(changes & has_no_rows & (envelope.lengths[_SQL] > 0)).tolist()
        for row in found:
            number = int(envelope.source[row])
            try:
                database, table = (str(envelope[slot].value(row) or "") for slot in (_DATABASE, _TABLE))
            except ValueError as error:
                faults[number] = f"its table cannot be read: {error}"
                continue
            if not table or self._tables.maps(database, table):
                faults[number] = LOGGED_AS_STATEMENT
        return found

    def _rows(
        self, block: MessageBlock, envelope: Slices, types: NDArray[np.int8], faults: Faults
    ) -> list[DecodedRows | None]:
        groups, firsts = group_rows(envelope, _GROUP)
        members: dict[PlanKey, list[int]] = {}
        found: dict[PlanKey, TablePlan] = {}
        for group, first in enumerate(firsts):
            number = int(envelope.source[first])
            try:
                database, table = (envelope[slot].value(first) for slot in (_DATABASE, _TABLE))
                if not isinstance(database, str) or not isinstance(table, str):
                    raise ValueError("it has no database or no table")
                if not self._tables.maps(database, table):
                    continue
                layout = _layout(envelope[_MYSQL_TYPE].value(first), envelope[_PK_NAMES].value(first))
                known = None if layout else self._tables.schema(database, table)
                if known is not None:
                    layout = _layout_of(known)
            except (ValueError, TypeError) as error:
                for row in np.flatnonzero(groups == group).tolist():
                    faults[int(envelope.source[row])] = f"its table or its types cannot be read: {error}"
                continue
            key = (database, table, layout)
            if key not in found:
                try:
                    plan = self._plan(database, table, layout, message_position(block, number))
                except DecodeError as error:
                    known_faults = len(faults)
                    faults |= {int(source): error.message for source in envelope.source[groups == group]}
                    faults.note_table(known_faults, table_text(database, table))
                    continue
                if plan is None:
                    continue
                found[key] = plan
            members.setdefault(key, []).append(group)
        tables = []
        for key, numbers in members.items():
            rows = slice(None) if len(firsts) == 1 else np.flatnonzero(np.isin(groups, numbers))
            tables.append(self._read(block, found[key], envelope.take(rows), types[rows], faults))
        return tables

    def _plan(self, database: str, table: str, layout: Layout, at: str) -> TablePlan | None:
        """Return how the rows of a layout are read; None if the job omits the table. Raises: DecodeError - they lack a
        column.
        """
        try:
            schema = canal_schema(self._tables, database, table, layout)
            reads = self._tables.reads(schema)
            received = {column.name.casefold(): column for column in layout}
            columns = []
            for column in needed_columns(schema, reads):
                each = received.get(column.name.casefold())
                if each is None:
                    raise not_full(column.name)
                columns.append(ColumnPlan(column, _parser(value_parser(column, each, schema, self._zone_us))))
            return TablePlan(schema, tuple(columns), frozenset(name.casefold() for name in reads.key))
        except CdcError as error:
            omit_table(self._tables, database, table, error, at)
            return None

    def _read(
        self, block: MessageBlock, plan: TablePlan, envelope: Slices, types: NDArray[np.int8], faults: Faults
    ) -> DecodedRows | None:
        names = Names(plan.names)
        data = envelope[_DATA]
        rows = slice_objects(block.data, data.starts, _list_sizes(data, envelope, faults, "data"), names, LISTS)
        _report(rows, envelope, faults, "data")
        updates = np.flatnonzero(types == _UPDATE)
        deleted = types[rows.source] == _DELETE
        message = envelope.source[rows.source]
        key_change = np.zeros(len(rows), np.bool_)
        if len(updates):
            rows, deleted, message, key_change = _with_key_changes(
                block, plan, names, envelope, updates, rows, deleted, faults
            )
        if faults:
            keep = ~np.isin(message, np.fromiter(faults, np.int64))
            rows, deleted, message, key_change = rows.take(keep), deleted[keep], message[keep], key_change[keep]
        if not len(rows):
            return None
        return self._reader.read(block, plan, rows, deleted, message, key_change, faults)


def _with_key_changes(
    block: MessageBlock,
    plan: TablePlan,
    names: Names,
    envelope: Slices,
    updates: NDArray[np.int64],
    rows: Slices,
    deleted: NDArray[np.bool_],
    faults: Faults,
) -> tuple[Slices, NDArray[np.bool_], NDArray[np.int32], NDArray[np.bool_]]:
    """Split updates that change the key into a delete of the old key and an upsert of the new one.

    A row of ``old`` has the columns that changed in this row or in an earlier one of the message, so a column in it may
    be unchanged.
    """
    old_texts = envelope[_OLD][updates]
    old_envelope = envelope.take(updates)
    old = slice_objects(block.data, old_texts.starts, _list_sizes(old_texts, old_envelope, faults, "old"), names, LISTS)
    _report(old, old_envelope, faults, "old")
    new_counts = np.bincount(rows.source, minlength=len(envelope))[updates]
    old_counts = np.bincount(old.source, minlength=len(updates))
    for at in np.flatnonzero(new_counts != old_counts).tolist():
        reason = f"it is an UPDATE of {new_counts[at]} rows, but `old` has {old_counts[at]}"
        faults.setdefault(int(old_envelope.source[at]), reason)
    matched = np.zeros(len(envelope), np.bool_)
    matched[updates[new_counts == old_counts]] = True
    new_rows = np.flatnonzero(matched[rows.source])
    old_rows = np.flatnonzero(matched[updates[old.source]])
    changed = np.zeros(len(new_rows), np.bool_)
    for slot in plan.key_slots:
        value_kernels.differing(
            block.data, rows.starts[slot, new_rows], rows.lengths[slot, new_rows], old.starts[slot, old_rows],
            old.lengths[slot, old_rows], old.kinds[slot, old_rows] != kernels.ABSENT, changed,
        )  # fmt: skip
    repeats = np.ones(len(rows), np.int64)
    repeats[new_rows[changed]] = 2
    key_change = np.repeat(repeats == 2, repeats)
    message = envelope.source[rows.source]
    if not changed.any():
        return rows, deleted, message, key_change
    taken = rows.take(np.repeat(np.arange(len(rows)), repeats))
    befores = np.cumsum(repeats)[new_rows[changed]] - 2  # the first one of each pair is the before image
    befores_old = old_rows[changed]
    present = old.kinds[:, befores_old] != kernels.ABSENT
    for target, source in ((taken.starts, old.starts), (taken.lengths, old.lengths), (taken.kinds, old.kinds)):
        target[:, befores] = np.where(present, source[:, befores_old], target[:, befores])
    deleted = np.repeat(deleted, repeats)
    deleted[befores] = True
    return taken, deleted, np.repeat(message, repeats), key_change


def _list_sizes(texts: Texts, envelope: Slices, faults: Faults, name: str) -> NDArray[np.int32]:
    """Return the sizes of lists of rows. Values of another kind are faults, and get the size -1."""
    wrong = texts.kinds != kernels.ARRAY
    for row in np.flatnonzero(wrong).tolist():
        faults.setdefault(int(envelope.source[row]), f"`{name}` is not a list of rows: {shown(texts.bytes(row))}")
    return np.where(wrong, np.int32(-1), texts.lengths) if wrong.any() else texts.lengths


def _report(found: Slices, envelope: Slices, faults: Faults, name: str) -> None:
    for row in np.flatnonzero(found.faults).tolist():
        faults.setdefault(int(envelope.source[row]), f"`{name}` is not a list of rows: {FAULTS[found.faults[row]]}")


def _layout(types: object, key: object) -> Layout:
    """Return the columns of a message. Raises: ValueError, TypeError - its types or key names have another form."""
    names = key if isinstance(key, list) else []
    if types is None:
        return ()
    if not isinstance(types, dict) or not all(isinstance(each, str) for each in types.values()):
        raise ValueError("`mysqlType` is not an object of texts")
    return tuple(LayoutColumn(index, name, kind, name in names) for index, (name, kind) in enumerate(types.items()))


def _layout_of(schema: TableSchema) -> Layout:
    """Return the known columns of a table, for rows without types."""
    return tuple(
        LayoutColumn(index, column.name, column.type, column.name in schema.key)
        for index, column in enumerate(schema.columns)
    )


def _parser(parse: CanalParser) -> Parser:
    return lambda texts: parse((texts.data, texts.starts, texts.lengths))


def _source_times(block: MessageBlock, envelope: Slices) -> NDArray[np.int64]:
    """Return the commit times of the messages in microseconds; -1: none."""
    times = np.full(len(block.value_at), -1, np.int64)
    values = envelope[_ES]
    out = np.empty(len(envelope), np.int64)
    lengths = np.where(values.kinds == kernels.NUMBER, values.lengths, np.int32(-1))
    if value_kernels.integers(values.data, values.starts, lengths, 0, 1 << 50, out) < 0:
        times[envelope.source] = np.where(lengths < 0, -1, out * 1000)
    return times
