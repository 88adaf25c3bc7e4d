"""Helpers for tests of receivers: a selection, and a collector of Batches."""

from __future__ import annotations

import time
from contextlib import contextmanager

from cdc.demo.local_servers import LocalServer, obtain
from cdc.model.batch import Batch, RequiredColumns
from cdc.model.schema import DELETED, SEQUENCE, TableSchema
from cdc.mysql.connection import Endpoint, Tls
from cdc.mysql.server import Server
from cdc.sources.binlog.receiver import BinlogReceiver
from cdc.sources.binlog.replication_stream import ReaderIdentity
from cdc.sources.binlog.start_position import resolve_start
from tests.support.proxy import TcpProxy as TcpProxy

DEADLINE_S = 240.0  # the kernels may have to be compiled first


class Mapped:
    """Map tables of one database, with all columns or the named ones."""

    def __init__(self, database, *tables, columns=None):
        self.database, self.tables, self.columns = database, tables, columns

    def maps(self, database, table):
        return database == self.database and (not self.tables or table in self.tables)

    def may_map(self, database, table):
        return self.maps(database, table)

    def leave_out(self, database, table, error):
        return False

    def reads(self, schema: TableSchema) -> RequiredColumns:
        names = frozenset(self.columns or (column.name for column in schema.columns))
        for name in names:
            schema.column(name)
        return RequiredColumns(names | frozenset(schema.key), frozenset(schema.key))


# servers that tests do not share, because they change the binlog: the options of each kind
KINDS = {"mysql": (), "mysql_no_gtids": ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"), "mariadb": ()}


@contextmanager
def own_server(kind, folder):
    """Start a server of ``KINDS`` with the table shop.orders, and stop it at the end."""
    options = ("--binlog-row-metadata=FULL", *KINDS[kind])
    with LocalServer.start(obtain(kind.partition("_")[0]), folder / "server", options=options) as server:
        endpoint(server)
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        yield server


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
