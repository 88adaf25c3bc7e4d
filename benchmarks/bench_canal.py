"""The Canal client alone: from a socket to Arrow, beside the protobuf library reading the same bytes.

A process of its own plays the server: it answers every GET with the next batch of the order table, in the frames that
Canal 1.1.8 sends.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import struct
import sys
import time
from collections.abc import Sequence

from benchmarks.harness import report
from cdc.batch import Reads
from cdc.canal.client import CanalClient
from cdc.canal.entries import Entries, EntryDecoder
from cdc.canal.layout import Layout, schema_of
from cdc.canal.protocol_pb2 import (
    Column,
    Entry,
    EventKind,
    Handshake,
    Header,
    Messages,
    Packet,
    Pair,
    RowChange,
    RowData,
    TransactionEdge,
)
from cdc.schema import TableSchema

_COLUMNS = (
    ("id", "bigint(20)", -5, ""),
    ("customer_id", "int(11)", 4, "471100"),
    ("status", "varchar(40)", 12, "waiting for payment"),
    ("quantity", "smallint(6)", 5, "3"),
    ("amount", "decimal(12,2)", 3, "1234.50"),
    ("note", "varchar(100)", 12, "please ring twice, the dog is friendly"),
    ("ordered_at", "datetime(3)", 93, "2024-01-02 03:04:05.678"),
    ("changed_at", "timestamp(6)", 93, "2024-01-02 03:04:05.678901"),
    ("priority", "tinyint(4)", -6, "1"),
    ("weight", "double", 8, "12.375"),
)
_ROWS_PER_EVENT = 60  # about 8 KiB of binlog
_ROWS, _BATCH_ROWS = 300_000, 6_000
_LIBRARY_ROUNDS = 9


class _Orders:
    """Maps everything, all columns."""

    def maps(self, database: str, table: str) -> bool:
        return True

    def leave_out(self, database: str, table: str, error: Exception) -> bool:
        """Return False."""
        return False

    def reads(self, schema: TableSchema) -> Reads:
        return Reads(frozenset(column.name for column in schema.columns), frozenset(schema.key))

    def schema(self, database: str, table: str, layout: Layout) -> TableSchema:
        return schema_of(database, table, layout)


def _entry(kind: Entry.Kind, offset: int, store: bytes, event: EventKind | None = None, rows: int = 0) -> bytes:
    header = Header(version=1, file="mysql-bin.000001", offset=offset, server_id=1, encoding="UTF-8")
    header.execute_time_ms, header.source_kind, header.event_length = 1_700_000_000_000, 2, 8000
    if event is not None:
        header.database, header.table, header.event_kind = "shop", "orders", event
        header.props.append(Pair(key="rowsCount", value=str(rows)))
    return Entry(header=header, kind=kind, store_value=store).SerializeToString()


def _row(number: int) -> RowData:
    columns = [
        Column(
            index=index, sql_type=code, name=name, is_key=not index, updated=True, is_null=False,
            value=value or str(number), mysql_type=kind,
        )
        for index, (name, kind, code, value) in enumerate(_COLUMNS)
    ]  # fmt: skip
    return RowData(after_columns=columns)


def _insert(first: int, count: int) -> bytes:
    rows = [_row(first + number) for number in range(count)]
    change = RowChange(table_id=90, event_kind=EventKind.INSERT, is_ddl=False, rows=rows)
    return _entry(Entry.ROW_DATA, first, change.SerializeToString(), EventKind.INSERT, count)


def _transaction(first: int, rows_per_event: int, rows: int) -> list[bytes]:
    edge = TransactionEdge(transaction_id="123456").SerializeToString()
    inserts = [_insert(first + at, rows_per_event) for at in range(0, rows, rows_per_event)]
    return [
        _entry(Entry.TRANSACTION_BEGIN, first, edge),
        *inserts,
        _entry(Entry.TRANSACTION_END, first + rows, edge),
    ]


def _batch(rows_per_transaction: int, rows_per_event: int) -> list[bytes]:
    starts = range(0, _BATCH_ROWS, rows_per_transaction)
    return [entry for at in starts for entry in _transaction(at, rows_per_event, rows_per_transaction)]


def _serve(entries: list[bytes], port: multiprocessing.Queue[int]) -> None:
    """Play a server for one client."""

    def send(kind: Packet.Kind, body: bytes = b"") -> None:
        frame = Packet(kind=kind, body=body).SerializeToString()
        client.sendall(struct.pack(">i", len(frame)) + frame)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port.put(listener.getsockname()[1])
        client, _ = listener.accept()
    number = 0
    body = Messages(messages=entries).SerializeToString()
    with client, client.makefile("rb") as stream:
        send(Packet.HANDSHAKE, Handshake(seeds=b"12345678").SerializeToString())
        while length := stream.read(4):
            packet = Packet.FromString(stream.read(*struct.unpack(">i", length)))
            if packet.kind in (Packet.CLIENT_AUTHENTICATION, Packet.SUBSCRIPTION):
                send(Packet.ACK)
            elif packet.kind == Packet.GET:
                number += 1
                send(Packet.MESSAGES, Messages(batch_id=number).SerializeToString() + body)


def _measure(entries: list[bytes]) -> float:
    """Rows a second from the socket to Arrow, acked."""
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    server = context.Process(target=_serve, args=(entries, port), daemon=True)
    server.start()
    orders = _Orders()
    decoder = EntryDecoder(orders, orders)
    with CanalClient([f"127.0.0.1:{port.get()}"], destination="shop") as client:
        rows, began = -_BATCH_ROWS, 0.0  # the first batch compiles
        while rows < _ROWS:
            message = client.get(8192, 500)
            assert message is not None
            found = Entries(message.body)
            rows += decoder.changes(found, 0, len(found), max(rows, 0))[1]
            client.ack(message)
            began = began or time.perf_counter()
        took = time.perf_counter() - began
    server.join(10)
    if rows != _ROWS:
        raise SystemExit(f"{_ROWS} rows were sent, {rows} read")
    return _ROWS / took


def _library(entries: list[bytes]) -> float:
    """Rows a second of the protobuf library alone, which only reads the values, and converts none."""
    times = []
    for _ in range(_LIBRARY_ROUNDS):
        began = time.perf_counter()
        for data in entries:
            entry = Entry.FromString(data)
            if entry.kind == Entry.ROW_DATA:
                for row in RowChange.FromString(entry.store_value).rows:
                    for column in row.after_columns:
                        _ = column.value
        times.append(time.perf_counter() - began)
    return _BATCH_ROWS / statistics.median(times)


def main(arguments: Sequence[str]) -> None:
    """Run both, and write their results."""
    shapes = {"canal.client": (600, _ROWS_PER_EVENT), "canal.client_single_rows": (1, 1)}
    must = {"canal.client": "100,000, aim 300,000", "canal.client_single_rows": "8,000"}
    for name, shape in shapes.items():
        entries = _batch(*shape)
        data = {"rows": _ROWS, "rows_per_transaction": shape[0], "bytes_per_row": sum(map(len, entries)) // _BATCH_ROWS}
        library = _library(entries)
        report(
            name, _measure(entries), "rows/s", must=must[name], data=data, checked="count of rows",
            baselines={"protobuf library, values alone": round(library)},
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
