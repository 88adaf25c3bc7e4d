"""Helpers for tests of receivers: a selection, a collector of Batches, and a TCP proxy that injects faults."""

from __future__ import annotations

import math
import socket
import threading
import time
from contextlib import suppress

from cdc.model.batch import Batch, RequiredColumns
from cdc.model.schema import DELETED, SEQUENCE, TableSchema
from cdc.mysql.connection import Endpoint, Tls
from cdc.mysql.server import Server
from cdc.sources.binlog.receiver import BinlogReceiver
from cdc.sources.binlog.replication_stream import ReaderIdentity
from cdc.sources.binlog.start_position import resolve_start

DEADLINE_S = 240.0  # the kernels may have to be compiled first


class Mapped:
    """Map tables of one database, with all columns or the named ones."""

    def __init__(self, database, *tables, columns=None):
        self.database, self.tables, self.columns = database, tables, columns

    def maps(self, database, table):
        return database == self.database and (not self.tables or table in self.tables)

    def leave_out(self, database, table, error):
        return False

    def reads(self, schema: TableSchema) -> RequiredColumns:
        names = frozenset(self.columns or (column.name for column in schema.columns))
        for name in names:
            schema.column(name)
        return RequiredColumns(names | frozenset(schema.key), frozenset(schema.key))


def endpoint(server, port=None, user="root", password="", tls=None):
    """Return an endpoint over TCP, as jobs connect. root needs no password."""
    if user == "root":
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM mysql.user WHERE User = 'cdc'")
            if not cursor.fetchone()[0]:
                server.create_user("cdc", "secret")
        user, password = "cdc", "secret"
    return Endpoint(server.host, port or server.port, user, password, tls or Tls("off"))


def identity(name="shop", server_id=None):
    return ReaderIdentity.of(name, "0badcafe", "127.0.0.1", server_id)


def position(server, start="latest"):
    with Server(endpoint(server)) as asked:
        return resolve_start(asked, start, identity("resolver"))


def receiver_of(server, table_filter, port=None, name="shop", **options):
    return BinlogReceiver.of_server(endpoint(server, port), identity(name), table_filter, heartbeat_s=1.0, **options)


class Shop:
    """A database to write to."""

    def __init__(self, server, database):
        self.server, self.database = server, database

    def write(self, *statements):
        self.server.execute(*(statement.format(db=self.database) for statement in statements))

    def write_together(self, *statements):
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("COMMIT")


def until(condition, deadline_s=DEADLINE_S, what="the condition"):
    """Wait for ``condition`` to hold. Return its value."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {deadline_s} s")


class Collector:
    """Collect Batches like a Consumer that starts a Task for each one."""

    def __init__(self, receiver, acks=False):
        self.receiver = receiver
        self.acks = acks  # immediately, as if each Batch were committed
        self.batches: list[Batch] = []
        self.rows: list[dict] = []

    def collect(self, condition, deadline_s=DEADLINE_S):
        """Collect until ``condition(self)`` holds."""
        end = time.monotonic() + deadline_s
        while not condition(self):
            assert time.monotonic() < end, f"{len(self.rows)} rows in {len(self.batches)} batches at the deadline"
            batch = self.receiver.get(0.1)
            if batch is not None:
                self.add(batch)
        return self

    def collect_rows(self, count, deadline_s=DEADLINE_S):
        return self.collect(lambda collector: len(collector.rows) >= count, deadline_s)

    def collect_to_end(self, deadline_s=DEADLINE_S):
        return self.collect(lambda collector: collector.receiver.status().is_at_end, deadline_s)

    def add(self, batch):
        self.batches.append(batch)
        for changes in batch.changes:
            for row in changes.rows.to_pylist():
                self.rows.append({"table": changes.schema.table, **row})
            self.receiver.release(changes.rows.nbytes)
        if self.acks:
            self.receiver.ack(batch.last)

    @property
    def sequences(self):
        return [row[SEQUENCE] for row in self.rows]

    def values(self, column="id", table=None):
        return [row[column] for row in self.rows if table in (None, row["table"])]

    def table(self, key="id"):
        """Return the rows after all changes, by key."""
        kept: dict = {}
        for row in sorted(self.rows, key=lambda row: row[SEQUENCE]):
            plain = {name: value for name, value in row.items() if name not in (DELETED, SEQUENCE, "table")}
            if row[DELETED]:
                kept.pop(row[key], None)
            else:
                kept[row[key]] = plain
        return kept


class TcpProxy:
    """A TCP proxy in front of a server whose connections can be cut, damaged, slowed down or made silent."""

    def __init__(self, port):
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._cut_at: list[int] = []  # bytes from the server after which a connection is cut, one connection each
        self._flip_at: list[int] = []
        self._silent = threading.Event()
        self.refusing = False
        self.bytes_per_s = math.inf  # from the server, of each connection
        self.delay_s = 0.0  # of each piece of data from it
        self.cuts = self.flips = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()
        self.cut_all()

    def cut_after(self, *byte_counts):
        self._cut_at = list(byte_counts)

    def flip_after(self, *byte_counts):
        self._flip_at = list(byte_counts)

    def cut_all(self):
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def forward_to(self, port):
        """Forward to another server from now on. Cut open connections."""
        self._target = ("127.0.0.1", port)
        self.cut_all()

    def fall_silent(self):
        """Stop forwarding on the open connections without closing them."""
        silenced, self._silent = self._silent, threading.Event()
        silenced.set()

    def on_client_data(self, data):
        """Handle data from a client. For subclasses."""

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                is_refused = self.refusing  # since ``cut_all``, which has not seen this connection
                self._sockets += [] if is_refused else [client, server]
            if is_refused:
                client.close()
                server.close()
                continue
            silent = self._silent
            threading.Thread(target=self._forward, args=(client, server, False, silent), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, True, silent), daemon=True).start()

    def _forward(self, source, target, from_server, silent):
        seen = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if silent.is_set():
                    continue
                if from_server:
                    data = self._damage(data, seen)
                    seen += len(data)
                    if self._cut_at and seen >= self._cut_at[0]:
                        self._cut_at.pop(0)
                        self.cuts += 1
                        target.sendall(data[: len(data) // 2])
                        break
                    time.sleep(self.delay_s + len(data) / self.bytes_per_s)
                else:
                    self.on_client_data(data)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _damage(self, data, seen):
        if self._flip_at and seen <= self._flip_at[0] < seen + len(data):
            at = self._flip_at.pop(0) - seen
            self.flips += 1
            return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        return data
