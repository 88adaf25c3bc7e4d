"""Canal clients that deliver a script of entries, and the entries for it."""

from __future__ import annotations

import time

from cdc.errors import CdcError
from cdc.sources.canal.client import Message
from cdc.sources.canal.protocol_pb2 import (
    Column,
    Entry,
    EventKind,
    Header,
    Messages,
    Pair,
    RowChange,
    RowData,
    TransactionEdge,
)

FILE = "mysql-bin.000001"
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"  # of the server whose GTIDs the transactions have


class Scripted:
    """A client whose server has these batches, and keeps those that are not acked."""

    address = "canal:11111"

    def __init__(self, *batches):
        self.batches = [[part for one in batch for part in one] for batch in batches]
        self.acked, self.sent, self.session = 0, 0, 0
        self.last_id, self.ids = 5, []  # ids: of the batches that are sent and not acked
        self.wait = time.sleep

    def connect(self):
        self.session += 1
        self.sent = self.acked
        self.ids = []  # unacked batches are sent again with new ids

    rollback = connect

    def get(self, fetch_size, timeout_ms):
        if self.sent == len(self.batches):
            time.sleep(0.01)
            return None
        self.sent += 1
        self.last_id += 1
        self.ids.append(self.last_id)
        body = Messages(batch_id=self.last_id, messages=self.batches[self.sent - 1]).SerializeToString()
        return Message(self.session, self.last_id, body)

    def ack(self, message):
        if message.session != self.session:
            return False  # as the client: the receiver has requested all unacked batches again meanwhile
        self.acked += 1
        assert message.id == self.ids.pop(0), "acks come in order"
        return True

    def keep_alive(self):
        pass

    def close(self):
        pass


class Log:
    """Write entries of the table shop.orders, at rising positions. Each event has ``size`` bytes.

    As MySQL does, an event has the low 32 bits of the offset at which it ends.
    """

    def __init__(self, offset=1000, *, size=100, file=FILE, time_ms=None):
        self.offset, self.size, self.file, self.time_ms = offset, size, file, time_ms
        self.database, self.gtid_set = "shop", ""

    def _entry(self, kind, value, event):
        header = Header(
            file=self.file, offset=(self.offset + self.size) % (1 << 32) - self.size, event_length=self.size,
            execute_time_ms=self.time_ms or 1_700_000_000_000 + self.offset,
            database=self.database, table="orders", event_kind=event, gtid_set=self.gtid_set,
        )  # fmt: skip
        self.offset += self.size
        return Entry(header=header, kind=kind, store_value=value.SerializeToString()).SerializeToString()

    def row(self, **columns):
        """Return the entries of a transaction that inserts a row. A column is its type and its value; id is the key."""
        return [self.begin(), self.insert(**columns), self.end()]

    def rows(self, first, last, xid=None):
        """Return the entries of a transaction that inserts the ids from ``first`` to ``last``."""
        inserts = (self.insert(id=("int", number)) for number in range(first, last + 1))
        return [self.begin(xid), *inserts, self.end(xid)]

    def begin(self, xid=None):
        """Return the entry at the begin of a transaction."""
        return self._entry(
            Entry.TRANSACTION_BEGIN, TransactionEdge(thread_id=7, props=_xa("XA START", xid)), EventKind.INSERT
        )

    def end(self, xid=None):
        """Return the entry at the end of a transaction."""
        edge = TransactionEdge(transaction_id="9", props=_xa("XA END", xid))
        return self._entry(Entry.TRANSACTION_END, edge, EventKind.INSERT)

    def insert(self, **columns):
        """Return the entry of an inserted row."""
        cells = [
            Column(index=index, name=name, is_key=name == "id", mysql_type=type_text, is_null=value is None,
                   value="" if value is None else str(value))
            for index, (name, (type_text, value)) in enumerate(columns.items())
        ]  # fmt: skip
        change = RowChange(event_kind=EventKind.INSERT, rows=[RowData(after_columns=cells)])
        return self._entry(Entry.ROW_DATA, change, EventKind.INSERT)

    def ddl(self, sql):
        """Return the entry of a statement, after the GTID event that Canal does not send."""
        self.offset += 65
        change = RowChange(event_kind=EventKind.ALTER, is_ddl=True, sql=sql, ddl_database="shop")
        return [self._entry(Entry.ROW_DATA, change, EventKind.ALTER)]


def _xa(kind, xid):
    return [Pair(key="XA_TYPE", value=kind), Pair(key="XA_XID", value=xid)] if xid else []


def failover(first, second, last):
    """Return the entries of a transaction on ``first``, and of the next one, with ids up to ``last``, on both servers.

    ``first`` and ``second`` are the Logs of two servers with GTIDs. The next transaction on ``second`` is a third one.
    """
    first.gtid_set = f"{UUID}:1-4"
    one = first.rows(1, 1)
    first.gtid_set = second.gtid_set = f"{UUID}:1-5"
    two, again = first.rows(2, last), second.rows(2, last)
    second.gtid_set = f"{UUID}:1-6"
    return one, two, again


def cut(entries, size):
    """Return server batches of one list of entries, each of ``size`` entries."""
    return [[entries[first : first + size]] for first in range(0, len(entries), size)]


def read(receiver, start, until, *, commits=True, is_acked=lambda: True, timeout_s=30.0):
    """Return the ids that ``receiver`` delivers up to the id ``until``, and the last position.

    The error that stops the receiver is the third value. ``commits``: ack each Batch at once. ``is_acked``: whether
    the server has the acks that the test expects; the thread that fetches sends them later.
    """
    receiver.open(start, (), 0)
    ids, last, deadline = [], start, time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline and not (until in ids and is_acked()):
            batch = receiver.get(0.1)
            if batch is not None:
                ids += [each for changes in batch.changes for each in changes.rows.column("id").to_pylist()]
                last = batch.last
                if commits:
                    receiver.ack(last)
    except CdcError as error:
        return ids, last, error
    finally:
        receiver.close()
    return ids, last, None
