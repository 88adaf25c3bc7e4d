"""This project's receiver alone reads inserted rows from a position of the binlog, without Spark.

Arguments: port, file, offset, rows.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pyarrow.compute as pc

from benchmarks.rig.orders import DATABASE
from cdc.model.batch import RequiredColumns
from cdc.model.schema import TableSchema
from cdc.mysql.connection import Endpoint, Tls
from cdc.mysql.server import Server
from cdc.sources.binlog.receiver import BinlogReceiver
from cdc.sources.binlog.replication_stream import ReaderIdentity


class _AllColumns:
    def maps(self, database: str, table: str) -> bool:
        return database == DATABASE

    may_map = maps

    def leave_out(self, database: str, table: str, error: Exception) -> bool:
        """Return False."""
        return False

    def reads(self, schema: TableSchema) -> RequiredColumns:
        return RequiredColumns(frozenset(column.name for column in schema.columns), frozenset(schema.key))


def main(port: int, file: str, offset: int, expected: int) -> None:
    """Print `first` at the first row, and `end ROWS SUM_OF_IDS` at the last one."""
    endpoint = Endpoint("127.0.0.1", port, "cdc", os.environ["PEER_PASSWORD"], tls=Tls("required"))
    with Server(endpoint) as server:
        start = replace(server.position(), file=file, offset=offset)
    receiver = BinlogReceiver.of_server(endpoint, ReaderIdentity.of("peer", "0badcafe", str(endpoint)), _AllColumns())
    receiver.open(start, (), 0)
    rows = ids = 0
    while rows < expected:
        batch = receiver.get(1.0)
        if batch is None:
            continue
        if rows == 0 and batch.rows:
            print("first", flush=True)
        for changes in batch.changes:
            rows += changes.rows.num_rows
            ids += pc.sum(changes.rows["id"]).as_py()
        receiver.release(sum(changes.bytes for changes in batch.changes))
        if batch.ends_transaction:
            receiver.ack(batch.last)
    print("end", rows, ids, flush=True)
    sys.stdin.read(1)
    receiver.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
