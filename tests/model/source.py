"""A source made of a list of transactions, and a Receiver for it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from cdc.errors import DdlStop, SchemaMismatch
from cdc.model.batch import Batch, Changes
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE, Column
from cdc.model.schema_change import SchemaChange, TableChange
from cdc.model.table_filter import TableFilter
from cdc.sources.base import ReceiverStatus
from tests.model.columns import Alter, arrays_of, draw_alter, fill_of, number_of, schema_with, value_of

FILE = "bin.000001"
pa.array([1])  # pyarrow imports pandas at its first conversion, which takes seconds: do it once, not in every fork


def schema_of(name):
    return schema_with(name, ())


def position_at(index):
    return BinlogPosition(FILE, index, "server")


@dataclass(frozen=True)
class Row:
    table: str
    key: int
    op: int  # unique in the source: identifies the change that a row in the target has
    deleted: bool = False


@dataclass
class Source:
    transactions: list[list[Row]] = field(default_factory=list)
    stops: dict[int, Exception] = field(default_factory=dict)  # raised before the transaction of that index ...
    stops_inside: dict[int, Exception] = field(default_factory=dict)  # ... or after its first piece
    operations: int = 0
    warning: Exception | None = None
    alters: dict[int, Alter] = field(default_factory=dict)  # statements, each in place of an empty transaction

    @classmethod
    def random(cls, seed, transactions=40, **shape):
        source = cls()
        source.write_random(random.Random(seed), transactions, **shape)
        return source

    def write_random(self, draw, transactions, tables=("shop.orders", "shop.items"), largest=6, keys=12):
        for _ in range(transactions):
            rows = draw.choice([0, 1, 2, largest])
            self.write(*[(draw.choice(tables), draw.randrange(keys), draw.random() < 0.3) for _ in range(rows)])

    def write(self, *rows):
        """Write one transaction of (table, key) or (table, key, deleted)."""
        transaction = []
        for table, key, *deleted in rows:
            self.operations += 1
            transaction.append(Row(table, key, self.operations, bool(deleted and deleted[0])))
        self.transactions.append(transaction)

    def alter(self, table, kinds, draw):
        """Change the columns of a table by one statement. Return whether the columns allow it."""
        columns = self.columns(table)
        numbers = [number_of(column) for one in self.alters.values() for column in one.after]
        made = draw_alter(table, columns, kinds, max(numbers, default=0), draw)
        if made.changes:
            self.alters[len(self.transactions)] = made
            self.transactions.append([])
        return bool(made.changes)

    def columns(self, table, until=None) -> tuple[Column, ...]:
        """Return the columns that a table has besides id and op before transaction ``until``."""
        until = len(self.transactions) if until is None else until
        found = [one for index, one in sorted(self.alters.items()) if one.table == table and index < until]
        return found[-1].after if found else ()

    def schema_at(self, name, until=None):
        return schema_with(name, self.columns(name, until))

    def statement_at(self, index):
        """Return the error with which a receiver stops before a statement."""
        one = self.alters[index]
        before, after = (schema_with(one.table, columns) for columns in (one.before, one.after))
        stop = DdlStop(f"ALTER {index} changes {one.table}.", hint="Resume.")
        changed = TableChange(before, after, one.changes)
        stop.change = SchemaChange(f"ALTER {index}", position_at(index), position_at(index + 1), (changed,))
        return stop

    def rows(self, until=None):
        """Return table -> key -> column -> value after transaction ``until``, without the key itself."""
        written = {row.op: index for index, rows in enumerate(self.transactions) for row in rows}
        added = {}  # number of a column -> transaction
        for index, one in self.alters.items():
            added |= {number_of(column): index for column in set(one.after) - set(one.before)} | added

        def values(op, columns):
            yield "op", op
            for column in columns:
                is_newer = written[op] > added[number_of(column)] or column.generated
                yield column.name, value_of(op, column) if is_newer else fill_of(column)

        return {
            table: {key: dict(values(op, self.columns(table, until))) for key, op in rows.items()}
            for table, rows in self.state(until).items()
        }

    def state(self, until=None):
        """Return table -> key -> op after transaction ``until``."""
        tables = {}
        for transaction in self.transactions[:until]:
            for row in transaction:
                rows = tables.setdefault(row.table, {})
                if row.deleted:
                    rows.pop(row.key, None)
                else:
                    rows[row.key] = row.op
        return {table: rows for table, rows in tables.items() if rows}


class SourceReceiver:
    """Implements Receiver. Put ``per_batch`` transactions into a Batch, split larger ones into ``piece_rows``."""

    def __init__(
        self,
        source: Source,
        table_filter: TableFilter,
        *,
        per_batch=3,
        piece_rows=4,
        endless=False,
        window=1 << 30,
        idle_s=0.005,
    ):
        self.source = source
        self.table_filter = table_filter
        self.per_batch = per_batch
        self.piece_rows = piece_rows
        self.endless = endless
        self.window = window
        self.idle_s = idle_s
        self.acked = None
        self.held_bytes = 0
        self.calls = []
        self._index = None
        self._pieces: Iterator[Batch] | None = None

    def open(self, start, schemas, sequence):
        self.calls.append(("open", start))
        self.acked = start
        self._index, self._sequence = start.offset, sequence
        wrong = [saved.name for saved in schemas if saved != self.source.schema_at(saved.name, start.offset)]
        assert not wrong, f"the saved columns of {wrong} are not those at {start}"

    def get(self, timeout_s):
        if self._pieces is not None:
            batch = next(self._pieces, None)
            if batch is None:
                error = self.source.stops_inside.get(self._index)
                assert error is not None
                raise error
            if batch.ends_transaction:
                self._pieces, self._index = None, self._index + 1
            return self._handed(batch)
        if self._index in self.source.stops:
            raise self.source.stops[self._index]
        if self._index in self.source.alters:
            raise self.source.statement_at(self._index)
        if self._index >= len(self.source.transactions) or self.held_bytes >= self.window:
            time.sleep(min(timeout_s, self.idle_s))  # a full window ends the reading until Tasks have taken rows
            return None
        return self._handed(self._next())

    def _next(self):
        transactions = self.source.transactions
        if len(transactions[self._index]) > self.piece_rows or self._index in self.source.stops_inside:
            self._pieces = self._cut(self._index)
            batch = next(self._pieces)
            if batch.ends_transaction:
                self._pieces, self._index = None, self._index + 1
            return batch
        first, taken = self._index, []
        while self._index < len(transactions) and self._index - first < self.per_batch:
            transaction = transactions[self._index]
            if (
                len(transaction) > self.piece_rows
                or self._index in self.source.stops_inside
                or (self._index in self.source.stops and self._index > first)
                or self._index in self.source.alters
            ):
                break
            taken += transaction
            self._index += 1
        return self._batch(taken, position_at(first), position_at(self._index), True)

    def _cut(self, index):
        rows = self.source.transactions[index]
        for start in range(0, len(rows), self.piece_rows):
            is_last = start + self.piece_rows >= len(rows)
            if is_last and index in self.source.stops_inside:
                return
            last = position_at(index + 1) if is_last else position_at(index)
            yield self._batch(rows[start : start + self.piece_rows], position_at(index), last, is_last)

    def _batch(self, rows, first, last, ends_transaction):
        changes = []
        for table in sorted({row.table for row in rows}):
            if not self.table_filter.maps(*table.split(".")):
                continue
            columns = self.source.columns(table, first.offset)
            schema, mine, sequences = schema_with(table, columns), [], []
            for number, row in enumerate(rows):
                if row.table == table:
                    mine.append(row)
                    sequences.append(self._sequence + number + 1)
            batch = pa.record_batch(
                {
                    "id": pa.array([row.key for row in mine], pa.int32()),
                    "op": pa.array([row.op for row in mine], pa.int64()),
                    **arrays_of(mine, columns),
                    DELETED: pa.array([row.deleted for row in mine]),
                    SEQUENCE: pa.array(sequences, pa.int64()),
                }
            )
            changes.append(Changes(schema, batch))
        self._sequence += len(rows)
        count = sum(change.rows.num_rows for change in changes)
        now = int(time.time() * 1e6)
        return Batch(tuple(changes), first, last, ends_transaction, len(rows), count, 10 * count, now, now)

    def _handed(self, batch):
        self.held_bytes += sum(changes.rows.nbytes for changes in batch.changes)
        return batch

    def ack(self, position):
        assert position.reached(self.acked), "acks only move forward"
        self.calls.append(("ack", position))
        self.acked = position

    def rollback(self, position):
        assert position == self.acked, "a rollback is possible only to the acked position"
        self.calls.append(("rollback", position))
        self._index, self._pieces, self.held_bytes = position.offset, None, 0

    def schema(self, database, table):
        name = f"{database}.{table}"
        if all(row.table != name for transaction in self.source.transactions for row in transaction):
            raise SchemaMismatch("There is no such table.", hint="Create it.", table=name)
        return self.source.schema_at(name, self._index)

    def note_loaded(self, tables):
        pass

    def schemas(self):
        seen = {row.table for transaction in self.source.transactions[: self._index] for row in transaction}
        names = [name for name in sorted(seen) if self.table_filter.maps(*name.split("."))]
        return tuple(self.source.schema_at(name, self._index) for name in names)

    def release(self, byte_count):
        self.held_bytes -= byte_count
        assert self.held_bytes >= 0

    def status(self):
        is_at_end = self._pieces is None and self._index is not None and self._index >= len(self.source.transactions)
        return ReceiverStatus(
            is_at_end=is_at_end,
            read_to=position_at(self._index or 0),
            is_finished=is_at_end and not self.endless,
            is_window_full=self.held_bytes >= self.window,
            window_bytes=self.held_bytes,
            warning=self.source.warning,
        )

    def close(self):
        self.calls.append(("close", None))
