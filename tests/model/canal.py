"""The harness with a real Canal server, and a proxy that records the acks."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace

from cdc.model.position import CanalPosition
from cdc.sources.canal.protocol_pb2 import BatchRef, Packet
from channels.mapping import Mapping
from tests.emulators.canal import end_of_binlog
from tests.model.faults import Faulty
from tests.model.harness import Harness
from tests.model.source import Source
from tests.support.canal_sources import CURSOR, canal_receiver, drain
from tests.support.receiving import TcpProxy


@dataclass
class Written:
    """The transactions written to MySQL, the end of its binlog, and the address of Canal."""

    model: Source
    database: str
    end: CanalPosition
    address: str


def write(canal, database, transactions, address=None):
    """Write random upserts to two tables, each transaction over both, after all that Canal has read before."""
    tables = [f"{database}.orders", f"{database}.items"]
    canal.source.execute(*(f"CREATE TABLE {table} (id INT PRIMARY KEY, op BIGINT NOT NULL)" for table in tables))
    drain(canal)
    written = Written(Source(), database, CURSOR, address or canal.address)
    write_more(canal, written, transactions)
    return written


def write_more(canal, written, transactions, seed=1, last=True):
    """Write more transactions to the same tables. Return their end; it ends the source if they are the ``last``."""
    draw, first = random.Random(seed), len(written.model.transactions)
    tables = [f"{written.database}.orders", f"{written.database}.items"]
    for _ in range(transactions):
        written.model.write(*((table, draw.randrange(12)) for table in tables for _ in range(draw.randrange(1, 4))))
    with canal.source.connect() as connection, connection.cursor() as cursor:
        for transaction in written.model.transactions[first:]:
            cursor.execute("BEGIN")
            for row in transaction:
                cursor.execute(
                    f"INSERT INTO {row.table} VALUES ({row.key}, {row.op}) ON DUPLICATE KEY UPDATE op = {row.op}"
                )
            cursor.execute("COMMIT")
    end = CanalPosition(*end_of_binlog(canal.source))
    written.end = end if last else written.end
    return end


class CanalHarness(Harness):
    def __init__(self, folder, written: Written, **options):
        super().__init__(folder, written.model, mappings=(Mapping(f"{written.database}.*", "ods.*"),), **options)
        self.written = written

    def new_receiver(self):
        # the smallest fetches give many batches, and so many cycles
        receiver = canal_receiver(self.written.address, self.routes, batch_size=1)
        return UntilEnd(receiver, self.written)

    def first_position(self):
        return CURSOR


class UntilEnd(Faulty):
    """A Canal receiver whose source ends."""

    def __init__(self, inner, written):
        super().__init__(inner, None)
        self.written = written
        self.seen = CURSOR

    def get(self, timeout_s):
        batch = self.inner.get(timeout_s)
        if batch is not None:
            self.seen = batch.last
        return batch

    def open(self, start, schemas, sequence):
        self.seen = start
        self.inner.open(start, schemas, sequence)

    def rollback(self, position):
        self.seen = position
        self.inner.rollback(position)

    def status(self):
        return replace(self.inner.status(), is_finished=self.seen.reached(self.written.end))


class AckProxy(TcpProxy):
    """A TCP proxy to Canal that records which batches are acked."""

    def __init__(self, port):
        self.acked = []
        self._received = b""
        super().__init__(port)

    def on_client_data(self, data):
        self._received += data
        while len(self._received) >= 4 and len(self._received) >= 4 + struct.unpack(">i", self._received[:4])[0]:
            length = struct.unpack(">i", self._received[:4])[0]
            packet = Packet.FromString(self._received[4 : 4 + length])
            self._received = self._received[4 + length :]
            if packet.kind == Packet.CLIENT_ACK and (number := BatchRef.FromString(packet.body).batch_id) > 0:
                self.acked.append(number)
