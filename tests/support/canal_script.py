"""Canal clients that deliver a script of entries, and the entries for it."""

from __future__ import annotations

import time

from cdc.sources.canal.client import Message
from cdc.sources.canal.protocol_pb2 import (
    Column,
    Entry,
    EventKind,
    Header,
    Messages,
    RowChange,
    RowData,
    TransactionEdge,
)

FILE = "mysql-bin.000001"


class Scripted:
    """A client whose server has these batches, and keeps those that are not acked."""

    address = "canal:11111"

    def __init__(self, *batches):
        self.batches = [[part for one in batch for part in one] for batch in batches]
        self.acked, self.sent, self.session, self.ids = 0, 0, 0, [5]
        self.wait = time.sleep

    def connect(self):
        self.session += 1
        self.sent = self.acked
        self.ids = self.ids[-1:]  # unacked batches are sent again with new ids

    rollback = connect

    def get(self, fetch_size, timeout_ms):
        if self.sent == len(self.batches):
            time.sleep(0.01)
            return None
        self.sent += 1
        self.ids.append(self.ids[-1] + 1)
        body = Messages(batch_id=self.ids[-1], messages=self.batches[self.sent - 1]).SerializeToString()
        return Message(self.session, self.ids[-1], body)

    def ack(self, message):
        if message.session != self.session:
            return False  # as the client: the receiver has requested all unacked batches again meanwhile
        self.acked += 1
        assert message.id == self.ids.pop(1), "acks come in order"
        return True

    def keep_alive(self):
        pass

    def close(self):
        pass


class Log:
    """Write entries of the table shop.orders, at rising positions. Each event has 100 bytes."""

    def __init__(self, offset=1000):
        self.offset = offset

    def _entry(self, kind, value, event):
        header = Header(
            file=FILE, offset=self.offset, event_length=100, execute_time_ms=1_700_000_000_000 + self.offset,
            database="shop", table="orders", event_kind=event,
        )  # fmt: skip
        self.offset += 100
        return Entry(header=header, kind=kind, store_value=value.SerializeToString()).SerializeToString()

    def row(self, **columns):
        """Return the entries of a transaction that inserts a row. A column is its type and its value; id is the key."""
        cells = [
            Column(index=index, name=name, is_key=name == "id", mysql_type=type_text, is_null=value is None,
                   value="" if value is None else str(value))
            for index, (name, (type_text, value)) in enumerate(columns.items())
        ]  # fmt: skip
        change = RowChange(event_kind=EventKind.INSERT, rows=[RowData(after_columns=cells)])
        return [
            self._entry(Entry.TRANSACTION_BEGIN, TransactionEdge(thread_id=7), EventKind.INSERT),
            self._entry(Entry.ROW_DATA, change, EventKind.INSERT),
            self._entry(Entry.TRANSACTION_END, TransactionEdge(transaction_id="9"), EventKind.INSERT),
        ]

    def ddl(self, sql):
        """Return the entry of a statement, after the GTID event that Canal does not send."""
        self.offset += 65
        change = RowChange(event_kind=EventKind.ALTER, is_ddl=True, sql=sql, ddl_database="shop")
        return [self._entry(Entry.ROW_DATA, change, EventKind.ALTER)]
