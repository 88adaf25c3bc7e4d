"""Cut a Canal server's batches at the ends of transactions.

The server ends its batches anywhere. ``TransactionCutter`` makes a Batch of whole transactions, and keeps the rows of
the open transaction until its END entry arrives. It also evaluates statements and XA transactions, in order.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cdc.model.batch import Batch, Changes
from cdc.model.position import CanalPosition
from cdc.sources.canal import kernels
from cdc.sources.canal.change_reader import CanalStatement
from cdc.sources.canal.entries import Entries, EntryDecoder
from cdc.sources.canal.positions import EntryPositions
from cdc.sources.canal.protocol_pb2 import EventKind
from cdc.sources.canal.repeats import AcceptedOnce
from cdc.sources.canal.table_registry import CanalTables
from cdc.sources.canal.xa import CanalXa, edges, undecided

log = logging.getLogger(__name__)

_CANAL_STATEMENTS = (EventKind.INSERT, EventKind.UPDATE, EventKind.DELETE)


@dataclass(slots=True)
class OpenTransaction:
    """The transaction whose END entry has not arrived."""

    changes: list[Changes] = field(default_factory=list)
    entries: int = 0
    first: tuple[str, int] = ("", 0)  # file and offset of the first of its entries that are not in a Batch
    rows: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    changed_at: float = 0.0  # when the newest entry arrived, monotonic seconds
    length: int = 0  # entries since its BEGIN, including those that a split has delivered
    gtid_set: str = ""  # executed up to and including this transaction
    xid: str = ""  # "" unless it is an XA transaction
    is_omitted: bool = False  # the user accepted to omit the rows of this XA transaction
    begin: tuple[str, int] | None = None  # file and offset of its BEGIN entry, if that has arrived

    def add(self, changes: tuple[Changes, ...], rows: int, entries: Entries, first: int, last: int) -> None:
        """Add the entries from ``first`` up to, not including, ``last``."""
        index = entries.index[first:last]
        times = index[index[:, kernels.TIME_MS] > 0, kernels.TIME_MS]
        if len(times):
            self.oldest_ms = min(self.oldest_ms or int(times.min()), int(times.min()))
            self.newest_ms = max(self.newest_ms, int(times.max()))
        if not self.entries:
            self.first = entries.event(first)
        self.changes += changes
        self.entries += last - first
        self.length += last - first
        self.rows += rows
        self.bytes += int(index[:, kernels.SIZE].sum())
        self.gtid_set = entries.text(last - 1, kernels.GTID_AT)
        self.changed_at = time.monotonic()

    def contains(self, entries: Entries, number: int) -> bool:
        """Return whether an entry is certainly one of these entries: the first one, or a row after it in its file."""
        fields, (file, offset) = entries.index[number], self.first
        is_known = fields[kernels.OFFSET] == offset or (
            fields[kernels.KIND] == kernels.ROW_DATA and offset < fields[kernels.OFFSET]
        )
        return bool(self.entries and is_known and entries.text(number, kernels.FILE_AT) == file)

    def rest(self) -> OpenTransaction:
        """Return the same transaction without rows; an empty one if it has ended."""
        if not self.length:
            return OpenTransaction()
        return OpenTransaction(length=self.length, xid=self.xid, is_omitted=self.is_omitted, begin=self.begin)


class TransactionCutter:
    """Make Batches of entries. Each Batch ends at a position from which the job can resume."""

    def __init__(self, decoder: EntryDecoder, tables: CanalTables, xa: CanalXa, accepted: AcceptedOnce) -> None:
        self.sequence = 0  # of the last row
        self._decoder = decoder
        self._tables = tables
        self._xa = xa
        self._accepted = accepted
        self.begin(CanalPosition("", 0))

    def begin(self, start: CanalPosition) -> None:
        """Continue at ``start`` without any open rows."""
        self.handed = start  # the end of the last Batch that was delivered
        self.ready: deque[Batch] = deque()
        self.open = OpenTransaction(length=1, xid=start.xid, is_omitted=True) if start.xid else OpenTransaction()
        self.keeps_marker = False  # see ``AckTracker``

    @property
    def end(self) -> CanalPosition:
        """Return the end of the last Batch that was delivered or is ready."""
        last = self.ready[-1].last if self.ready else self.handed
        assert isinstance(last, CanalPosition)
        return last

    def take(self) -> Batch | None:
        """Return the next Batch, or None if none is ready."""
        if not self.ready:
            return None
        batch = self.ready.popleft()
        assert isinstance(batch.last, CanalPosition)
        self.handed = batch.last
        return batch

    def drop_open(self) -> None:
        """Drop the open rows, because everything after the last whole transaction arrives again."""
        self.open = self.open.rest() if self.end.entry else OpenTransaction()

    def cut_open(self, position: CanalPosition) -> None:
        """Make a Batch of the open rows up to ``position``, inside a transaction."""
        if self.open.entries:
            self.cut(position, splits=not self.end.entry)

    def cut(self, position: CanalPosition, *, splits: bool = False) -> None:
        """Make a Batch of the open rows, ending at ``position``. ``splits``: it is the first cut inside a
        transaction.
        """
        before, transaction = self.end, self.open
        if not transaction.entries and before.reached(position):
            return
        if transaction.xid:  # an XA transaction that fills the ring, or whose END does not arrive
            self._leave_out_open()
        last = replace(
            position,
            gtid_set=transaction.gtid_set or position.gtid_set or before.gtid_set,
            newest_ms=max(before.newest_ms, transaction.newest_ms),
            splits=before.splits + splits,
            marker_batch=self.keeps_marker,
            xid=transaction.xid if transaction.is_omitted and transaction.length else "",
            begin=(transaction.begin[1] if transaction.begin else before.begin) if position.entry else 0,
        )
        self.ready.append(
            Batch(
                tuple(transaction.changes),
                before,
                last,
                True,
                transaction.entries,
                transaction.rows,
                transaction.bytes,
                transaction.oldest_ms * 1000 or None,
                transaction.newest_ms * 1000 or None,
                self._tables.omitted.take(),
            )
        )
        self.open = transaction.rest()

    # --- entries ---

    def read(self, entries: Entries, positions: EntryPositions, first: int, last: int) -> None:
        """Read the entries from ``first`` up to, not including, ``last``.

        Raises: what a statement or undecodable rows raise; entries before them are read.
        """
        index = entries.index[first:last]
        bare = (index[:, kernels.KIND] == kernels.ROW_DATA) & (index[:, kernels.ROWS] == 0)
        for number in (np.flatnonzero(bare) + first).tolist():
            if entries.index[number, kernels.EVENT] == EventKind.XA_COMMIT and not self._accepted.gap:
                self._read_transactions(entries, positions, first, number)
                first = number
                self._xa.check_commit(entries.text(number, kernels.SQL_AT), positions[number])
            statement = self._statement(entries, number, positions)
            if statement is None:
                continue
            if statement.dml:
                if left_out := self._tables.omitted_by(statement):
                    self._read_transactions(entries, positions, first, number)  # earlier Batches do not have this gap
                    self._tables.omitted.note(left_out)
                    first = number
                continue
            self._read_transactions(entries, positions, first, number)
            self._read_statement(statement, entries, number)
            first = number + 1
        self._read_transactions(entries, positions, first, last)

    def _read_statement(self, statement: CanalStatement, entries: Entries, number: int) -> None:
        # A statement outside of transactions ends the transaction before it, even if its END did not arrive.
        self.open.length = 0
        self.cut(statement.before)
        # The job stops at this end, and continues after a change as if a Batch had ended at the statement.
        end = self.end
        after = replace(
            statement.after,
            gtid_set=statement.after.gtid_set or end.gtid_set,
            newest_ms=max(end.newest_ms, statement.time_ms),
            splits=end.splits,
            marker_batch=self.keeps_marker,
        )
        if self._tables.on_statement(replace(statement, before=end, after=after)):
            self._decoder.forget()
        self.open = OpenTransaction()
        self.open.add((), 0, entries, number, number + 1)
        self.cut(statement.after)

    def _read_transactions(self, entries: Entries, positions: EntryPositions, first: int, last: int) -> None:
        """Read row entries and the edges of transactions, without the undecided rows of XA transactions."""
        kinds = entries.index[:, kernels.KIND]
        for number, xid in edges(entries, first, last):
            if kinds[number] == kernels.BEGIN:
                continue
            before = np.flatnonzero((kinds[first:number] == kernels.END) | (kinds[first:number] == kernels.BEGIN))
            began = first + int(before[-1] if len(before) else 0)  # the edge before its rows, if it is in this batch
            mapped = {self._decoder.maps(entries, each) for each in range(began, number) if entries.has_rows(each)}
            tables = sorted(f"{name[0]}.{name[1]}" for name in mapped if name)
            tables += [] if len(before) else sorted({changes.schema.name for changes in self.open.changes} - {*tables})
            if not tables:
                continue
            # Include the edge, which ends the transaction before it.
            self._read_rows(entries, positions, first, began + 1 if len(before) else first)
            self._leave_out(xid, tables, is_accepted=self.open.is_omitted and not len(before))
            self.open = OpenTransaction()
            first = number
        self._read_rows(entries, positions, first, last)

    def _leave_out_open(self) -> None:
        """Omit the rows of the open XA transaction. Raises: see ``_leave_out``."""
        transaction = self.open
        if transaction.changes:
            tables = sorted({changes.schema.name for changes in transaction.changes})
            self._leave_out(transaction.xid, tables, is_accepted=transaction.is_omitted)
            transaction.changes, transaction.rows, transaction.is_omitted = [], 0, True

    def _leave_out(self, xid: str, tables: Sequence[str], *, is_accepted: bool) -> None:
        """Omit undecided rows, if the user accepted that. Raises: SourceActionRequired - the user did not.

        ``is_accepted``: the user accepted it for earlier rows of the same transaction.
        """
        if not (is_accepted or self._accepted.gap):
            raise undecided(xid, ", ".join(tables))
        log.warning("omitting the rows of XA transaction %s in %s", xid, ", ".join(tables))

    def _statement(self, entries: Entries, number: int, positions: EntryPositions) -> CanalStatement | None:
        """Return the statement of an entry without rows; None if the entry is only the SQL text of row events."""
        entry = entries.index[number]
        event, sql = int(entry[kernels.EVENT]), entries.text(number, kernels.SQL_AT)
        dml = event in _CANAL_STATEMENTS and not entry[kernels.IS_DDL]
        if not sql or not (entry[kernels.IS_DDL] or dml):
            return None
        position, end = positions[number], self.end
        gtid_set = entries.text(number, kernels.GTID_AT)
        return CanalStatement(
            entries.text(number, kernels.DDL_DATABASE_AT) or entries.text(number, kernels.DATABASE_AT),
            sql,
            CanalPosition(position.file, position.offset, 0, end.gtid_set, end.newest_ms),
            CanalPosition(
                position.file, position.offset + int(entry[kernels.EVENT_LENGTH]), 0, gtid_set, end.newest_ms
            ),
            dml,
            int(entry[kernels.TIME_MS]),
        )

    def _read_rows(self, entries: Entries, positions: EntryPositions, first: int, last: int) -> None:
        """Read row entries and edges: make a Batch of whole transactions, and keep the other rows."""
        if first >= last:
            return
        if self.open.xid:
            first = self._end_xa(entries, first, last)
        kinds = entries.index[first:last, kernels.KIND]
        ends, begins = np.flatnonzero(kinds == kernels.END), np.flatnonzero(kinds == kernels.BEGIN)
        whole = max(int(ends[-1]) + 1 if len(ends) else 0, int(begins[-1]) if len(begins) else 0) + first
        if whole > first:
            self._take(entries, first, whole)
            self.open.length = 0
            end = positions[whole - 1]
            length = int(entries.index[whole - 1, kernels.EVENT_LENGTH])
            self.cut(replace(end, offset=end.offset + length, entry=0))
        elif len(begins) and self.open.length:
            # A BEGIN ends a transaction whose END did not arrive.
            self.open.length = 0
            self.cut(replace(positions[first], entry=0, gtid_set=""))
        if whole < last:
            self._take(entries, whole, last)
            if kinds[whole - first] == kernels.BEGIN:
                self.open.begin = entries.event(whole)
            self.open.xid = next((xid for _, xid in edges(entries, whole, last)), self.open.xid)

    def _end_xa(self, entries: Entries, first: int, last: int) -> int:
        """Omit the other rows of the open XA transaction if it ends in these entries. Return the entry at its end."""
        kinds = entries.index[first:last, kernels.KIND]
        edge = np.flatnonzero((kinds == kernels.END) | (kinds == kernels.BEGIN))
        if not len(edge):
            return first
        end = first + int(edge[0])
        if end > first:
            self._take(entries, first, end)
        self._leave_out_open()
        self.open = OpenTransaction()
        return end

    def _take(self, entries: Entries, first: int, last: int) -> None:
        self._tables.position = self.end
        changes, rows = self._decoder.changes(entries, first, last, self.sequence)
        self.sequence += rows
        self.open.add(changes, rows, entries, first, last)
