"""The decoder alone on one core, from binlog bytes to Arrow batches, and the Canal client alone, from a socket.

For comparison, mysql-replication reads the same events from the server in the same run, and the protobuf library reads
the same Canal entries.
"""

from __future__ import annotations

import os
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import zstandard

from benchmarks.rig import baselines, canal_frames
from benchmarks.rig.measure import report
from benchmarks.rig.orders import DATABASE
from benchmarks.rig.recording import Recording, path_of, recordings
from benchmarks.rig.suite import Case, Options
from cdc.demo.local_servers import LocalServer, obtain
from cdc.model.batch import RequiredColumns
from cdc.model.position import BinlogPosition
from cdc.model.schema import TableSchema
from cdc.mysql.connection import Endpoint, Tls
from cdc.mysql.server import Server
from cdc.sources.binlog.decoder.decoder import BinlogDecoder
from cdc.sources.binlog.decoder.events import HEADER_BYTES, parse_payload
from cdc.sources.binlog.event_scan import scan
from cdc.sources.binlog.replication_stream import ReaderIdentity
from cdc.sources.binlog.start_position import FIRST_EVENT
from cdc.sources.canal.client import CanalClient
from cdc.sources.canal.entries import Entries, EntryDecoder
from cdc.sources.canal.layout import Layout, schema_of
from cdc.sources.canal.protocol_pb2 import Entry, RowChange

_REPEATS = 5
_STREAM_BYTES = 100_000_000  # of each figure: a recording several times, so that the cost of a start does not count
_TRANSACTION_PAYLOAD = 40
_CANAL_ROWS, _CANAL_BATCH_ROWS, _LIBRARY_ROUNDS = 300_000, 6_000, 9
_FIGURES = (  # name, recording, unit, goal, columns read (None: all)
    ("plain", "plain", "rows/s", "3,000,000 rows/s, 300 MB/s, 100 times mysql-replication", None),
    ("json", "json", "rows/s", "1,000,000 rows/s", None),
    ("update", "update", "rows/s", "2,000,000 rows/s", None),
    ("tiny_transactions", "tiny_transactions", "transactions/s", "500,000 transactions/s", None),
    ("mixed_tables", "mixed_tables", "rows/s", "300,000 rows/s", None),
    ("wide_few", "wide", "MB/s", "400 MB/s", 10),
    ("wide_all", "wide", "MB/s", "250 MB/s", None),
    ("compressed", "compressed", "rows/s", "70 % of decode.plain", None),
)
_CANAL_FIGURES = (  # name, rows per transaction and per event (60 rows: about 8 KiB of binlog), goal
    ("canal.client", 600, 60, "100,000, target 300,000"),
    ("canal.client_single_rows", 1, 1, "8,000"),
)


@dataclass(frozen=True)
class _Columns:
    """Select every table, and all of its columns or ``count`` of them."""

    database: str = DATABASE
    count: int | None = None

    def maps(self, database: str, table: str) -> bool:
        return database == self.database

    may_map = maps

    def leave_out(self, database: str, table: str, error: Exception) -> bool:
        """Return False."""
        return False

    def reads(self, schema: TableSchema) -> RequiredColumns:
        chosen = schema.columns[:: len(schema.columns) // self.count][: self.count] if self.count else schema.columns
        return RequiredColumns(
            frozenset(column.name for column in chosen) | frozenset(schema.key), frozenset(schema.key)
        )


class _BinlogTables:
    def schema(self, table_map: Any) -> TableSchema:
        raise AssertionError(f"The binlog has no metadata for {table_map.name}.")


class _CanalTables:
    def schema(self, database: str, table: str, layout: Layout) -> TableSchema:
        return schema_of(database, table, layout)


def binlog(_: Options) -> None:
    """Measure each recording."""
    with recordings() as (server, found):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the figures are those of one core
        compared: dict[str, dict[str, int]] = {}
        plain_rate = 0.0
        for name, recording, unit, goal, columns in _FIGURES:
            if recording not in compared:
                compared[recording] = _mysql_replication(server, found[recording])
            measured = _rates(server, found[recording], _Columns(count=columns))
            plain_rate = plain_rate or measured["rows_per_cpu_s"]
            if recording == "compressed":
                measured |= _shares(path_of(server, found[recording]).read_bytes(), measured, plain_rate)
            _report(name, unit, goal, found[recording], measured, compared[recording])


def _report(
    name: str, unit: str, goal: str, recording: Recording, measured: dict[str, Any], compared: dict[str, int]
) -> None:
    key = {"rows/s": "rows_per_s", "transactions/s": "transactions_per_s", "MB/s": "mb_per_s"}[unit]
    rate, walls = measured[key], measured.pop("walls")
    # of CPU time, because the server shares the machine while mysql-replication reads from it
    times = round(measured["rows_per_cpu_s"] / compared["rows_per_cpu_s"], 1) if compared else None
    report(
        f"decode.{name}", rate, unit, goal=goal, data={"rows": recording.rows, "bytes": recording.bytes},
        checked="count of rows", values=[round(rate * statistics.median(walls) / wall, 1) for wall in walls],
        **measured,
        cpu_s_per_million=round(1e6 / measured["rows_per_cpu_s"], 4), times_mysql_replication=times,
        baselines={baselines.NAME: compared["rows_per_s"]} if compared and unit == "rows/s" else {},
    )  # fmt: skip


def _rates(server: LocalServer, recording: Recording, columns: _Columns) -> dict[str, Any]:
    data = path_of(server, recording).read_bytes()
    rows = _decode(data, columns)
    if rows != recording.rows:
        raise SystemExit(f"{recording.name}: {rows} rows were decoded, but {recording.rows} recorded.")
    rounds = max(1, round(_STREAM_BYTES / len(data)))
    walls, cpu = _timed(lambda: _decode(data, columns, rounds))
    wall, cpu = statistics.median(walls) / rounds, cpu / rounds
    return {
        "rows_per_s": round(rows / wall),
        "transactions_per_s": round(recording.transactions / wall),
        "mb_per_s": round(len(data) / wall / 1e6, 1),
        "rows_per_cpu_s": round(rows / cpu),
        "walls": walls,
    }


def _decode(data: bytes, columns: _Columns, repeats: int = 1) -> int:
    """Decode the file ``data``, ``repeats`` times, as files of one stream. Return the number of rows."""
    decoder = BinlogDecoder(
        table_filter=columns,
        tables=_BinlogTables(),
        on_statement=lambda _: None,
        start=BinlogPosition("binlog.000001", 4),
        sequence=0,
        framed=False,
    )
    rows, source = 0, memoryview(data)
    for number in range(repeats):
        if number:
            decoder.begin_file(f"binlog.{number + 1:06}")
        at = 0
        while at < len(data):
            room = decoder.free_space()
            count = min(len(room), len(data) - at)
            room[:count] = source[at : at + count]
            decoder.feed(count)
            at += count
            while (batch := decoder.next()) is not None:
                rows += batch.rows
    return rows


def _timed(work: Callable[[], Any]) -> tuple[list[float], float]:
    """Return the wall seconds of several runs, and the median of their CPU seconds."""
    walls, cpus = [], []
    for _ in range(_REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return walls, statistics.median(cpus)


def _mysql_replication(server: LocalServer, recording: Recording) -> dict[str, int]:
    """Return the rates of mysql-replication; {} for compressed transactions, which it skips."""
    if recording.name == "compressed":
        return {}
    return baselines.measure(str(server.socket), (recording.file, 4), one_file=True, seconds=4.0)


def _shares(data: bytes, measured: dict[str, Any], plain_rate: float) -> dict[str, float]:
    """Compare compressed rows with plain ones (CPU time), and with zstandard alone on the same payloads."""
    _, unpacking = _timed(lambda: _unpack_payloads(data))
    rows = _decode(data, _Columns())
    share = measured["rows_per_cpu_s"] / plain_rate
    alone = unpacking / rows * measured["rows_per_cpu_s"]
    # the rest would cost what plain rows cost
    limit = 1 / (1 + alone / share)
    return {
        "share_of_plain": round(share, 2),
        "zstd_share_of_time": round(alone, 2),
        "limit_of_share": round(limit, 2),
    }


def _unpack_payloads(data: bytes) -> None:
    """Unpack the payloads of the file ``data`` with zstandard alone."""
    room, unpacker = bytearray(4 << 20), zstandard.ZstdDecompressor()
    at = 4
    while at < len(data):
        end = at + struct.unpack_from("<I", data, at + 9)[0]
        if data[at + 4] == _TRANSACTION_PAYLOAD:
            body = data[at + HEADER_BYTES : end]
            header = parse_payload(body)
            reader = unpacker.stream_reader(memoryview(body)[header.offset : header.offset + header.size])
            while reader.readinto(room):
                pass
        at = end


def long_stream(options: Options) -> None:
    """Measure throughput and memory as a stream of plain rows grows."""
    with recordings() as (server, found):
        recording = found["plain"]
        data = path_of(server, recording).read_bytes()
    _decode(data, _Columns())  # the first stream loads the kernels
    sizes = []
    for repeats in sorted({max(1, options.rows // 10**power // recording.rows) for power in range(4)}):
        began = time.perf_counter()
        _decode(data, _Columns(), repeats)
        megabytes = repeats * len(data) / 1e6
        rate, memory = megabytes / (time.perf_counter() - began), psutil.Process().memory_info().rss
        sizes.append({"mb": round(megabytes), "mb_per_s": round(rate, 1), "rss_mb": round(memory / 1e6)})
    lowest = min(size["mb_per_s"] for size in sizes)
    report("decode.long_stream", lowest, "MB/s", data={"recording": recording.name}, checked="", sizes=sizes)


def start_in_head(options: Options) -> None:
    """Measure a start between the head of a file and its first transaction, which is large and must not be read."""
    with (
        tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder,
        LocalServer.start(obtain("mysql", print), Path(folder) / "mysql") as server,
    ):
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, note VARCHAR(1000))")
        endpoint = Endpoint("127.0.0.1", server.port, "root", tls=Tls("off"))
        with Server(endpoint) as asked:
            here, identity = asked.position(), ReaderIdentity.of("bench", "0badcafe", str(endpoint))
            numbers = f"SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {options.rows}"
            server.execute(
                f"SET cte_max_recursion_depth = {options.rows}",
                f"INSERT INTO shop.t WITH RECURSIVE n(i) AS ({numbers}) SELECT i, REPEAT('x', 900) FROM n",
            )
            head = replace(here, offset=FIRST_EVENT)
            megabytes = (asked.position().offset - here.offset) / 1e6
            scan(asked, head, here, identity)  # the first stream loads the kernels
            walls, cpu = _timed(lambda: scan(asked, head, here, identity))
            found = scan(asked, head, here, identity)
    if (found.file, found.offset) != (here.file, here.offset):
        raise SystemExit(f"The start is {found}, but must be {here}.")
    report(
        "decode.start_in_head", statistics.median(walls), "s", goal="the same for any size", checked="position",
        data={"transaction_mb": round(megabytes)}, cpu_s=round(cpu, 4),
    )  # fmt: skip


def canal_client(_: Options) -> None:
    """Measure the Canal client from a socket to Arrow, with acks."""
    for name, transaction_rows, event_rows, goal in _CANAL_FIGURES:
        entries = canal_frames.batch(_CANAL_BATCH_ROWS, transaction_rows=transaction_rows, event_rows=event_rows)
        library = _protobuf_library(entries)
        seconds, cpu = _read_canal(entries)
        report(
            name, _CANAL_ROWS / seconds, "rows/s", goal=goal, checked="count of rows",
            data={"rows": _CANAL_ROWS, "rows_per_transaction": transaction_rows,
                  "bytes_per_row": sum(map(len, entries)) // _CANAL_BATCH_ROWS},
            cpu_s_per_million=round(cpu / _CANAL_ROWS * 1e6, 3),
            baselines={"protobuf library, values alone": round(library)},
        )  # fmt: skip


def _read_canal(entries: list[bytes]) -> tuple[float, float]:
    """Return wall and CPU seconds of the client."""
    decoder = EntryDecoder(_Columns("shop"), _CanalTables())
    with canal_frames.serving(entries) as address, CanalClient([address], destination="shop") as client:
        rows, began, cpu = -_CANAL_BATCH_ROWS, 0.0, 0.0  # the first batch compiles
        while rows < _CANAL_ROWS:
            message = client.get(8192, 500)
            assert message is not None
            found = Entries(message.body)
            rows += decoder.changes(found, 0, len(found), max(rows, 0))[1]
            client.ack(message)
            began, cpu = began or time.perf_counter(), cpu or time.process_time()
        took = time.perf_counter() - began, time.process_time() - cpu
    if rows != _CANAL_ROWS:
        raise SystemExit(f"{_CANAL_ROWS} rows were sent, but {rows} read.")
    return took


def _protobuf_library(entries: list[bytes]) -> float:
    """Return rows per second of the protobuf library alone, which reads the values and converts none."""
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
    return _CANAL_BATCH_ROWS / statistics.median(times)


CASES = (
    Case("decode.binlog", binlog, runs=1),  # each figure is the median of five
    Case("decode.long_stream", long_stream, Options(100_000_000), 1_000_000, runs=1),
    Case("decode.start_in_head", start_in_head, Options(20_000), 2_000, runs=1),
    Case("decode.canal_client", canal_client),
)
