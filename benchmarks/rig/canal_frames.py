"""A process that sends order rows in the frames of Canal 1.1.8, for the benchmark of the Canal client alone."""

from __future__ import annotations

import multiprocessing
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.sources.canal.protocol_pb2 import (
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


def batch(rows: int, *, transaction_rows: int, event_rows: int) -> list[bytes]:
    """Return the entries of one reply."""
    edge = TransactionEdge(transaction_id="123456").SerializeToString()
    entries = []
    for first in range(0, rows, transaction_rows):
        last = first + transaction_rows
        entries.append(_entry(Entry.TRANSACTION_BEGIN, first, edge))
        entries += [_insert(at, event_rows) for at in range(first, last, event_rows)]
        entries.append(_entry(Entry.TRANSACTION_END, last, edge))
    return entries


def _entry(kind: Entry.Kind, offset: int, store: bytes, event: EventKind | None = None, rows: int = 0) -> bytes:
    header = Header(version=1, file="mysql-bin.000001", offset=offset, server_id=1, encoding="UTF-8")
    header.execute_time_ms, header.source_kind, header.event_length = 1_700_000_000_000, 2, 8000
    if event is not None:
        header.database, header.table, header.event_kind = "shop", "orders", event
        header.props.append(Pair(key="rowsCount", value=str(rows)))
    return Entry(header=header, kind=kind, store_value=store).SerializeToString()


def _insert(first: int, count: int) -> bytes:
    rows = [_row(first + number) for number in range(count)]
    change = RowChange(table_id=90, event_kind=EventKind.INSERT, is_ddl=False, rows=rows)
    return _entry(Entry.ROW_DATA, first, change.SerializeToString(), EventKind.INSERT, count)


def _row(number: int) -> RowData:
    columns = [
        Column(
            index=index, sql_type=code, name=name, is_key=not index, updated=True, is_null=False,
            value=value or str(number), mysql_type=kind,
        )
        for index, (name, kind, code, value) in enumerate(_COLUMNS)
    ]  # fmt: skip
    return RowData(after_columns=columns)


@contextmanager
def serving(entries: list[bytes]) -> Iterator[str]:
    """Answer every request of one client with ``entries``, in a process of its own. Yields its address."""
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    server = context.Process(target=_serve, args=(entries, port), daemon=True)
    server.start()
    yield f"127.0.0.1:{port.get()}"
    server.join(10)


def _serve(entries: list[bytes], port: multiprocessing.Queue[int]) -> None:
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
