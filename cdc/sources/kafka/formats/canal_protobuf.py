"""Canal's protobuf messages (``canal.mq.flatMessage = false``): a batch of entries in each, as in its TCP protocol.

``cdc.sources.canal.entries`` decodes them. The bodies of all messages of a block are one list of entries to it.

Source: alibaba/canal 1.1.8, CanalMessageSerializerUtil.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cdc.errors import DecodeError, UnsupportedRowFormat
from cdc.model.schema import DELETED, TableSchema
from cdc.sources.canal import kernels
from cdc.sources.canal.entries import Entries, EntryDecoder, EntryRows
from cdc.sources.canal.layout import Layout
from cdc.sources.kafka.block_parts import select
from cdc.sources.kafka.formats.base import DdlMessage, Decoded, DecodedRows, Faults, KafkaTables
from cdc.sources.kafka.formats.canal_schemas import LOGGED_AS_STATEMENT, canal_schema
from cdc.sources.kafka.formats.rows import in_order
from cdc.sources.kafka.messages import MessageBlock

_STATEMENT_EVENTS = (kernels.INSERT, kernels.UPDATE, kernels.DELETE)


class CanalProtobuf:
    """Decodes Canal's protobuf messages. Implements ``Format``."""

    def __init__(self, tables: KafkaTables, *, zone_us: int = 0) -> None:
        """``zone_us``: how far the clock of the Canal server's JVM is ahead of UTC, for TIMESTAMP values."""
        self._tables = tables
        self._zone_us = zone_us
        self.invalid_dates: Counter[tuple[str, str]] = Counter()  # see ``Format``

    def decode(self, block: MessageBlock) -> Decoded:
        """See ``Format``."""
        try:
            return self._decode(block, Faults())
        except (DecodeError, UnsupportedRowFormat):
            return self._decode(block, self._faults(block))

    def schema(self, database: str, table: str, layout: Layout) -> TableSchema:
        """See ``CanalTableSource``."""
        return canal_schema(self._tables, database, table, layout)

    def _faults(self, block: MessageBlock) -> Faults:
        """Return the messages that cannot be decoded, found by decoding each of them alone."""
        faults = Faults()
        counts = self.invalid_dates.copy()
        for number in range(len(block.offset)):
            try:
                self._decode(select(block, slice(number, number + 1)), Faults())
            except (DecodeError, UnsupportedRowFormat) as error:
                where = f" (column {column})" if (column := error.context.get("column")) else ""
                known = len(faults)
                faults[number] = error.message.rstrip(".") + where
                faults.note_table(known, str(error.context.get("table", "")))
        self.invalid_dates = counts
        return faults

    def _decode(self, block: MessageBlock, faults: Faults) -> Decoded:
        entries, messages = _entries(block, faults)
        # tables can be omitted between two blocks, so mappings are looked up again
        decoder = EntryDecoder(self._tables, self, zone_us=self._zone_us)
        decoder.invalid_dates = self.invalid_dates
        statements = self._statements(entries, messages, faults)
        found, counts = decoder.rows(entries, 0, len(entries))
        times = np.full(len(block.offset), -1, np.int64)
        np.maximum.at(times, messages, entries.index[:, kernels.TIME_MS] * 1000)
        return Decoded(
            in_order([_table(rows, entries, counts, messages, faults) for rows in found]),
            faults.in_order(),
            statements,
            np.where(times > 0, times, -1),
        )

    def _statements(self, entries: Entries, messages: NDArray[np.int32], faults: Faults) -> tuple[DdlMessage, ...]:
        index, found = entries.index, []
        bare = (index[:, kernels.KIND] == kernels.ROW_DATA) & (index[:, kernels.ROWS] == 0)
        for entry in np.flatnonzero(bare).tolist():
            number, sql = int(messages[entry]), entries.text(entry, kernels.SQL_AT)
            database = entries.text(entry, kernels.DDL_DATABASE_AT) or entries.text(entry, kernels.DATABASE_AT)
            table = entries.text(entry, kernels.TABLE_AT)
            if index[entry, kernels.IS_DDL] and sql:
                found.append(DdlMessage(number, database, table, sql))
            elif index[entry, kernels.IS_DDL]:
                faults[number] = "it has DDL without a statement"
            elif (
                sql
                and index[entry, kernels.EVENT] in _STATEMENT_EVENTS
                and (not table or self._tables.maps(database, table))
            ):
                faults[number] = LOGGED_AS_STATEMENT
        return tuple(found)


def _entries(block: MessageBlock, faults: Faults) -> tuple[Entries, NDArray[np.int32]]:
    """Return the entries of all messages without faults, and the message of each. Raises: DecodeError."""
    sizes = block.value_size.copy()
    sizes[np.fromiter(faults, np.int64, len(faults))] = -1
    starts, lengths = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    if kernels.locate_bodies(block.data, block.value_at, sizes, starts, lengths) >= 0:
        raise _no_batch()
    ends = np.cumsum(lengths)
    body = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    if kernels.join_bodies(block.data, starts, lengths, body) >= 0:
        raise _no_batch()
    entries = Entries(body.tobytes())
    # the byte before an entry is in the same body; an empty entry begins where its body ends
    return entries, np.searchsorted(ends, entries.index[:, kernels.START] - 1, "right").astype(np.int32)


def _no_batch() -> DecodeError:
    return DecodeError(
        "It is not a packet with a batch of Canal.",
        hint="Check that `canal.mq.flatMessage` is false, and that `source.format` is `canal`.",
    )


def _table(
    rows: EntryRows,
    entries: Entries,
    counts: NDArray[np.int64],
    messages: NDArray[np.int32],
    faults: Faults,
) -> DecodedRows | None:
    each = np.repeat(rows.entries, counts[rows.entries])  # the entry of each row
    batch = pa.RecordBatch.from_arrays(rows.arrays, schema=pa.schema(list(rows.plan.arrow)[:-1]))
    deleted = np.asarray(batch.column(DELETED))
    # an update has a deleted row only as the first half of a changed key
    half = deleted & (entries.index[each, kernels.EVENT] == kernels.UPDATE)
    key_change = half | np.concatenate(([False], half[:-1]))
    message = messages[each]
    if faults:
        keep = ~np.isin(message, np.fromiter(faults, np.int64))
        batch, message, key_change = batch.filter(pa.array(keep)), message[keep], key_change[keep]
    return DecodedRows(rows.plan.schema, batch, message, key_change) if len(message) else None
