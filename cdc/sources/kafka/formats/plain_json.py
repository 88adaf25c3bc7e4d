"""Plain rows as JSON: one object per message, with the columns of ``fields``. A tombstone deletes its key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdc.errors import CdcError, ConfigError
from cdc.model.schema import TableSchema
from cdc.sources.kafka.formats import json_kernels as kernels
from cdc.sources.kafka.formats.base import Decoded, DecodedRows, Faults, KafkaTables
from cdc.sources.kafka.formats.json_slices import (
    FAULTS,
    ONE,
    ONE_OR_ABSENT,
    Names,
    Slices,
    Texts,
    bare_values,
    slice_objects,
)
from cdc.sources.kafka.formats.rows import TablePlan, TextFormat, needed_columns, omit_table
from cdc.sources.kafka.formats.typed_values import plain_plan
from cdc.sources.kafka.messages import MessageBlock

Path = tuple[str, ...]


class PlainJson(TextFormat):
    """Decodes JSON objects. Implements ``Format``. The topic decides the table."""

    def decode(self, block: MessageBlock) -> Decoded:
        """See ``Format``."""
        plan = table_plan(self._tables, block.topic, self._zone_us)
        faults = Faults(table="" if plan is None else plan.schema.name)
        tables: tuple[DecodedRows, ...] = ()
        if plan is not None:
            found = self._read(block, plan, faults)
            tables = () if found is None else (found,)
        return Decoded(
            tables,
            faults.in_order(),
            (),
            np.full(len(block.value_at), -1, np.int64),
        )

    def _read(self, block: MessageBlock, plan: TablePlan, faults: Faults) -> DecodedRows | None:
        chosen = self._tables.paths(plan.schema.database, plan.schema.table)
        paths = [chosen.get(name, (name,)) for name in plan.names]
        present = np.flatnonzero(block.value_size >= 0)
        rows = _sliced(block, block.value_at, block.value_size, present, paths, faults, "")
        deleted = np.zeros(len(rows), np.bool_)
        gone = np.flatnonzero(block.value_size < 0)
        if len(gone):
            rows = joined(rows, tombstones(block, plan, gone, faults))
            order = np.argsort(rows.source, kind="stable")
            rows = rows.take(order)
            deleted = block.value_size[rows.source] < 0
        if not len(rows):
            return None
        everywhere = np.ones(len(rows), np.bool_)
        return self._reader.read(
            block, plan, rows, deleted, rows.source, np.zeros(len(rows), np.bool_), faults, optional=everywhere
        )


def table_plan(tables: KafkaTables, topic: str, zone_us: int) -> TablePlan | None:
    """Return how the rows of a topic are read; None if no channel reads it, or the job omits it.

    Raises: ConfigError - its columns are not known.
    """
    database, table = tables.table_of(topic)
    if not tables.maps(database, table):
        return None
    schema = tables.schema(database, table)
    if schema is None:
        raise ConfigError(
            "The columns of this topic are not known, because plain rows do not have types.",
            hint="Add `fields` with names and types to the channel.",
            topic=topic,
        )
    try:
        return plan_of(schema, tables, zone_us)
    except CdcError as error:
        omit_table(tables, database, table, error)
        return None


def plan_of(schema: TableSchema, tables: KafkaTables, zone_us: int) -> TablePlan:
    """Return how rows with values of plain JSON are read. Raises: SchemaMismatch, TargetMismatch."""
    reads = tables.reads(schema)
    columns = tuple(plain_plan(column, schema, zone_us) for column in needed_columns(schema, reads))
    return TablePlan(schema, columns, frozenset(name.casefold() for name in reads.key))


def tombstones(block: MessageBlock, plan: TablePlan, gone: np.ndarray, faults: Faults) -> Slices:
    """Return the rows of null values: the key columns from the messages' keys, and the others absent.

    A key is a JSON object with the key columns. For a key of one column, it may also be the value alone.
    """
    names = Names(plan.names)
    keyed = gone[block.key_size[gone] >= 0]
    for number in gone[block.key_size[gone] < 0].tolist():
        faults[number] = "it is a tombstone without a key"
    found = slice_objects(block.data, block.key_at[keyed], block.key_size[keyed], names, ONE_OR_ABSENT)
    for at in np.flatnonzero(found.faults).tolist():
        faults[int(keyed[at])] = f"its key: {FAULTS[found.faults[at]]}"
    rows = found.take(slice(None))
    slots = plan.key_slots
    for slot in range(len(plan.columns)):
        if slot not in slots:
            rows.kinds[slot], rows.lengths[slot] = kernels.ABSENT, -1
    if len(slots) == 1:
        bare = np.flatnonzero(rows.kinds[slots[0]] == kernels.ABSENT)
        values = bare_values(block.data, block.key_at[keyed], block.key_size[keyed])[found.source[bare]]
        rows.starts[slots[0], bare] = values.starts
        rows.lengths[slots[0], bare] = values.lengths
        rows.kinds[slots[0], bare] = values.kinds
    return Slices(rows.data, rows.starts, rows.lengths, rows.kinds, keyed[found.source].astype(np.int32), rows.faults)


def _sliced(
    block: MessageBlock,
    at: np.ndarray,
    sizes: np.ndarray,
    chosen: np.ndarray,
    paths: Sequence[Path],
    faults: Faults,
    where: str,
) -> Slices:
    """Return the values at ``paths`` of the messages ``chosen``; ``source`` has the numbers of the messages."""
    top = Names(tuple(dict.fromkeys(path[0] for path in paths)))
    found = slice_objects(block.data, at[chosen], sizes[chosen], top, ONE)
    for number in np.flatnonzero(found.faults).tolist():
        faults[int(chosen[number])] = where + FAULTS[found.faults[number]]
    values = [_at_path(found[top.names.index(path[0])], path[1:]) for path in paths]
    return Slices(
        block.data,
        np.stack([each.starts for each in values]),
        np.stack([each.lengths for each in values]),
        np.stack([each.kinds for each in values]),
        chosen[found.source].astype(np.int32),
        found.faults,
    )


def _at_path(texts: Texts, steps: Path) -> Texts:
    """Return the values at a path below ``texts``, absent where there is no such object."""
    for step in steps:
        sizes = np.where(texts.kinds == kernels.OBJECT, texts.lengths, np.int32(-1))
        texts = slice_objects(texts.data, texts.starts, sizes, Names((step,)), ONE_OR_ABSENT)[0]
    return texts


def joined(one: Slices, other: Slices) -> Slices:
    """Return the rows of both, with the buffer and the faults of ``one``."""
    return Slices(
        one.data,
        np.concatenate([one.starts, other.starts], axis=1),
        np.concatenate([one.lengths, other.lengths], axis=1),
        np.concatenate([one.kinds, other.kinds], axis=1),
        np.concatenate([one.source, other.source]),
        one.faults,
    )
