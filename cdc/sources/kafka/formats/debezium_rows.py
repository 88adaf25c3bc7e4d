"""Rows of Debezium's change events, in whichever form their images are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdc.errors import CdcError, SchemaMismatch
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.table_names import table_text
from cdc.sources.canal import value_kernels
from cdc.sources.kafka.formats.base import DecodedRows, Faults, KafkaTables
from cdc.sources.kafka.formats.debezium_tombstones import KeyDeletes, Keys, lone_tombstones
from cdc.sources.kafka.formats.debezium_types import DebeziumModes, Encoding, column_of_field, debezium_plan
from cdc.sources.kafka.formats.images import rows_of_images
from cdc.sources.kafka.formats.json_slices import Names, Slices
from cdc.sources.kafka.formats.rows import RowParser, TablePlan, needed_columns, omit_table
from cdc.sources.kafka.messages import MessageBlock

OPS = Names(("c", "r", "u", "d", "t", "m"))
CREATE, READ, UPDATE, DELETE, TRUNCATE, MESSAGE = range(6)


@dataclass(frozen=True, slots=True)
class ChangeImages:
    """The row images of changes. Each of n."""

    ops: NDArray[np.int8]  # numbers in ``OPS``
    before: Slices  # one slot per column of the plan; ``source`` has the numbers of the messages
    after: Slices
    has_before: NDArray[np.bool_]
    has_after: NDArray[np.bool_]


class DebeziumRows:
    """Plans how rows of tables are read, and reads them."""

    def __init__(self, tables: KafkaTables, encoding: Encoding, modes: DebeziumModes | None = None) -> None:
        """``modes``: of the connector, for messages without a schema; None: such messages are refused."""
        self.tables = tables
        self._encoding = encoding
        self._modes = modes
        self._reader = RowParser()
        self.key_deletes = KeyDeletes(encoding, modes, self._reader)

    @property
    def invalid_dates(self) -> Counter[tuple[str, str]]:
        """The number of zero and invalid dates that became NULL, by table and column."""
        return self._reader.invalid_dates

    def plan(
        self, database: str, table: str, fields: Mapping[str, Any] | None, key: tuple[str, ...], at: str
    ) -> TablePlan | None:
        """Return how the rows of a table and schema are read; None if the job omits the table."""
        try:
            schema = self.tables.schema(database, table)
            if fields is None and (schema is None or self._modes is None):
                raise _no_schema()
            if schema is None:
                schema = _schema_of(database, table, fields or {}, key)
            reads = self.tables.reads(schema)
            columns = []
            for column in needed_columns(schema, reads):
                field = None if fields is None else fields.get(column.name)
                if fields is not None and field is None:
                    raise SchemaMismatch(
                        f"The messages do not have column {column.name}, which the mapping reads.",
                        hint="Do not exclude the column in Debezium, or remove it from the mapping.",
                        column=column.name,
                    )
                columns.append(debezium_plan(column, schema, field, self._modes, self._encoding))
            return TablePlan(schema, tuple(columns), frozenset(name.casefold() for name in reads.key))
        except CdcError as error:
            omit_table(self.tables, database, table, error, at)
            return None

    def with_deletes(
        self,
        block: MessageBlock,
        is_tombstone: NDArray[np.bool_],
        deletes: NDArray[np.int32],
        tables: Sequence[DecodedRows | None],
        faults: Faults,
    ) -> list[DecodedRows | None]:
        """Return ``tables`` with the deletes of tombstones. ``deletes``: the numbers of the delete events."""
        is_delete = np.zeros(len(is_tombstone), np.bool_)
        is_delete[deletes] = True
        is_delete[[*faults]] = False
        lone = lone_tombstones(block, is_tombstone, is_delete)
        if not len(lone):
            return [*tables]
        faults.tombstones = frozenset(lone.tolist())
        return self.key_deletes.add(block, self.tables, self.keys(block, lone), tables, faults)

    def keys(self, block: MessageBlock, messages: NDArray[np.int64]) -> Iterable[Keys]:
        """Return the keys of messages, by form and schema."""
        raise NotImplementedError

    def rows(self, block: MessageBlock, plan: TablePlan, images: ChangeImages, faults: Faults) -> DecodedRows | None:
        """Return the typed rows; None if there are none. Add reasons to ``faults``."""
        before, after, ops = images.before, images.after, images.ops
        for name, needed, present in (
            ("before", (ops == DELETE) | (ops == UPDATE), images.has_before),
            ("after", ops != DELETE, images.has_after),
        ):
            for number in after.source[needed & ~present].tolist():
                faults.setdefault(number, f"its operation needs `{name}`, which is null or absent")
        changed = np.zeros(len(ops), np.bool_)
        updates = ops == UPDATE
        for slot in plan.key_slots:
            value_kernels.differing(
                block.data, after.starts[slot], after.lengths[slot], before.starts[slot], before.lengths[slot],
                updates, changed,
            )  # fmt: skip
        found, deleted, repeats = rows_of_images(before, after, ops == DELETE, changed)
        message, key_change = np.repeat(after.source, repeats), np.repeat(changed, repeats)
        if faults:
            keep = ~np.isin(message, np.fromiter(faults, np.int64))
            found, deleted, message, key_change = found.take(keep), deleted[keep], message[keep], key_change[keep]
        return self._reader.read(block, plan, found, deleted, message, key_change, faults) if len(found) else None


def _no_schema() -> SchemaMismatch:
    return SchemaMismatch(
        "The messages have no schema, so the units and forms of their values are not known.",
        hint="Set schemas.enable=true in the JSON converter. Or set `fields` of the channel to the types of MySQL, and "
        "`source.connector` to the modes of Debezium's connector.",
    )


def _schema_of(database: str, table: str, fields: Mapping[str, Any], key: tuple[str, ...]) -> TableSchema:
    name = table_text(database, table)
    columns = tuple(_column(field, name, column in key) for column, field in fields.items())
    return TableSchema(database, table, columns, key)


def _column(field: Mapping[str, Any], table: str, is_key: bool) -> Column:
    try:
        return column_of_field(field, table, is_key)
    except SchemaMismatch:  # it is raised again if the mapping reads the column
        return Column(str(field["field"]), Kind.TEXT, str(field.get("name") or field.get("type")))
