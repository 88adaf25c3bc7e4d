"""Plain rows as CSV: one line per message, with the columns of ``fields`` in their order. A tombstone deletes its key.

A value may be in double quotes; in it, two double quotes are one. ``\\N`` without quotes is NULL.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cdc.mysql.values.kernels import kernel
from cdc.sources.kafka.formats.base import Decoded, DecodedRows, Faults, KafkaTables
from cdc.sources.kafka.formats.json_kernels import FALSE, NULL, STRING, TRUE
from cdc.sources.kafka.formats.json_slices import Slices
from cdc.sources.kafka.formats.plain_json import joined, table_plan, tombstones
from cdc.sources.kafka.formats.rows import TablePlan, TextFormat
from cdc.sources.kafka.messages import MessageBlock

_TOO_FEW, _TOO_MANY, _OPEN_QUOTE, _AFTER_QUOTE, _LINE = 1, 2, 3, 4, 5
_FAULTS = {
    _TOO_FEW: "it has fewer values than `fields`",
    _TOO_MANY: "it has more values than `fields`",
    _OPEN_QUOTE: "a quoted value does not end",
    _AFTER_QUOTE: "text follows a quoted value",
    _LINE: "it has more than one line",
}


class Csv(TextFormat):
    """Decodes lines of CSV. Implements ``Format``. The topic decides the table."""

    def __init__(self, tables: KafkaTables, *, separator: str = ",", zone_us: int = 0) -> None:
        """``separator``: one ASCII character. ``zone_us``: how far moments without a zone are ahead of UTC."""
        super().__init__(tables, zone_us=zone_us)
        self._separator = ord(separator)

    def decode(self, block: MessageBlock) -> Decoded:
        """See ``Format``."""
        plan = table_plan(self._tables, block.topic, self._zone_us)
        faults = Faults(table="" if plan is None else plan.schema.name)
        found = None if plan is None else self._rows(block, plan, faults)
        return Decoded(
            () if found is None or plan is None or not len(found) else self._typed(block, plan, found, faults),
            faults.in_order(),
            (),
            np.full(len(block.value_at), -1, np.int64),
        )

    def _typed(self, block: MessageBlock, plan: TablePlan, rows: Slices, faults: Faults) -> tuple[DecodedRows, ...]:
        deleted = block.value_size[rows.source] < 0
        nothing = np.zeros(len(rows), np.bool_)
        found = self._reader.read(block, plan, rows, deleted, rows.source, nothing, faults, optional=deleted)
        return () if found is None else (found,)

    def _rows(self, block: MessageBlock, plan: TablePlan, faults: Faults) -> Slices:
        """Return the values of the needed columns: those of lines, and of the keys of tombstones."""
        lines = self._lines(block, plan, faults)
        gone = np.flatnonzero(block.value_size < 0)
        if not len(gone):
            return lines
        rows = joined(lines, tombstones(block, plan, gone, faults))
        return rows.take(np.argsort(rows.source, kind="stable"))

    def _lines(self, block: MessageBlock, plan: TablePlan, faults: Faults) -> Slices:
        names = [column.name for column in plan.schema.columns]
        present = np.flatnonzero(block.value_size >= 0)
        starts = np.zeros((len(names), len(present)), np.int64)
        lengths = np.full((len(names), len(present)), -1, np.int32)
        kinds = np.full((len(names), len(present)), NULL, np.uint8)
        found = np.zeros(len(present), np.uint8)
        data = block.data.copy()  # two quotes become one in place
        split(data, block.value_at[present], block.value_size[present], self._separator, starts, lengths, kinds, found)
        for row in np.flatnonzero(found).tolist():
            faults[int(present[row])] = _FAULTS[found[row]]
        good = np.flatnonzero(found == 0)
        chosen = np.ix_(np.array([names.index(name) for name in plan.names]), good)
        source: NDArray[np.int32] = present[good].astype(np.int32)
        return Slices(data, starts[chosen], lengths[chosen], kinds[chosen], source, found)


@kernel
def split(data, at, sizes, separator, starts, lengths, kinds, faults):  # type: ignore[no-untyped-def]
    """Find the values of each line. Shape of ``starts``, ``lengths`` and ``kinds``: (columns, lines)."""
    for row in range(len(at)):
        here, end = at[row], at[row] + sizes[row]
        if end > here and data[end - 1] == 10:
            end -= 1
        if end > here and data[end - 1] == 13:
            end -= 1
        column = 0
        while True:
            if column == len(starts):
                if faults[row] == 0:
                    faults[row] = _TOO_MANY
                break
            if here < end and data[here] == 34:
                start, to, closed = here + 1, here + 1, False
                here += 1
                while here < end:
                    byte = data[here]
                    if byte == 34:
                        if here + 1 < end and data[here + 1] == 34:
                            here += 1
                        else:
                            closed = True
                            here += 1
                            break
                    data[to] = byte
                    to += 1
                    here += 1
                if not closed:
                    faults[row] = _OPEN_QUOTE
                    break
                if here < end and data[here] != separator:
                    faults[row] = _AFTER_QUOTE
                    break
                starts[column, row], lengths[column, row], kinds[column, row] = start, to - start, STRING
            else:
                start = here
                while here < end and data[here] != separator:
                    if data[here] == 10:
                        faults[row] = _LINE
                    here += 1
                size = here - start
                if not (size == 2 and data[start] == 92 and data[start + 1] == 78):
                    kind = STRING
                    if size == 4 and _is(data, start, b"true"):
                        kind = TRUE
                    elif size == 5 and _is(data, start, b"false"):
                        kind = FALSE
                    starts[column, row], lengths[column, row], kinds[column, row] = start, size, kind
            column += 1
            if here >= end:
                break
            here += 1
        if faults[row] == 0 and column < len(starts):
            faults[row] = _TOO_FEW


@kernel
def _is(data, start, word):  # type: ignore[no-untyped-def]
    index = 0
    while index < len(word) and data[start + index] == word[index]:
        index += 1
    return index == len(word)
