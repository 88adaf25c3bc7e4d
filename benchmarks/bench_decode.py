"""The decoder alone, on one core: ``python -m benchmarks.bench_decode``.

Binlog bytes in memory become finished Arrow batches; beside it, in the same run, mysql-replication reads the same
events from the server, and a plain read and header walk shows what the bytes alone cost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import zstandard
from rich.console import Console
from rich.table import Table

from benchmarks.harness import RESULTS, circumstances
from benchmarks.recording import DATABASE, Recording, path_of, recordings
from cdc.batch import Reads
from cdc.binlog.decoder import BinlogDecoder
from cdc.binlog.events import HEADER_BYTES, parse_payload
from cdc.local_servers import LocalServer
from cdc.position import BinlogPosition
from cdc.schema import TableSchema

_REPEATS = 5
_STREAM_BYTES = 100_000_000  # of each figure: a recording over and over, so that a start's own cost does not count
_BASELINE_S = 4.0  # mysql-replication is read for so long; its rate does not change with the amount
_FLAT_MB = (10, 100, 1_000, 10_000)
_TRANSACTION_PAYLOAD = 40


@dataclass(frozen=True)
class _Columns:
    """Every table of the benchmark; all of its columns, or the first few."""

    count: int | None = None

    def maps(self, database: str, table: str) -> bool:
        return database == DATABASE

    def leave_out(self, database: str, table: str, error: Exception) -> bool:
        """Return False."""
        return False

    def reads(self, schema: TableSchema) -> Reads:
        chosen = schema.columns[:: len(schema.columns) // self.count][: self.count] if self.count else schema.columns
        names = frozenset(column.name for column in chosen) | frozenset(schema.key)
        return Reads(names, frozenset(schema.key))


class _NoTables:
    def schema(self, table_map: Any) -> TableSchema:
        raise AssertionError(f"{table_map.name} does not tell its own schema")


@dataclass(frozen=True)
class _Figure:
    name: str
    recording: str
    must: str
    unit: str = "rows/s"
    columns: int | None = None


_FIGURES = (
    _Figure("decode.plain", "plain", "3,000,000 rows/s, 300 MB/s, 100 times mysql-replication"),
    _Figure("decode.json", "json", "1,000,000 rows/s"),
    _Figure("decode.update", "update", "2,000,000 rows/s"),
    _Figure("decode.tiny_transactions", "tiny_transactions", "500,000 transactions/s", "transactions/s"),
    _Figure("decode.mixed_tables", "mixed_tables", "300,000 rows/s"),
    _Figure("decode.wide_few", "wide", "400 MB/s", "MB/s", 10),
    _Figure("decode.wide_all", "wide", "250 MB/s", "MB/s"),
    _Figure("decode.compressed", "compressed", "70 % of decode.plain"),
)


def _decode(data: bytes, selection: _Columns, repeats: int = 1) -> int:
    """Rows of the file ``data``, decoded ``repeats`` times over as files of one stream."""
    decoder = BinlogDecoder(
        selection=selection,
        tables=_NoTables(),
        on_statement=lambda _: None,
        start=BinlogPosition("binlog.000001", 4),
        sequence=0,
        framed=False,
    )
    rows = 0
    source = memoryview(data)
    for number in range(repeats):
        if number:
            decoder.begin_file(f"binlog.{number + 1:06}")
        at = 0
        while at < len(data):
            room = decoder.room()
            count = min(len(room), len(data) - at)
            room[:count] = source[at : at + count]
            decoder.feed(count)
            at += count
            while (batch := decoder.next()) is not None:
                rows += batch.rows
    return rows


def _timed(work: Callable[[], Any]) -> tuple[list[float], float]:
    """Wall seconds of several runs, and the median of their CPU seconds."""
    walls, cpus = [], []
    for _ in range(_REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return walls, statistics.median(cpus)


def _read_raw(path: Any) -> int:
    """Read the file and step from header to header, in plain Python."""
    data = path.read_bytes()
    at, events = 4, 0
    while at < len(data):
        at += struct.unpack_from("<I", data, at + 9)[0]
        events += 1
    return events


def _unpack_payloads(data: bytes) -> int:
    """What zstandard alone takes for the payloads of the file ``data``; bytes unpacked."""
    room, unpacker = bytearray(4 << 20), zstandard.ZstdDecompressor()
    at, size = 4, 0
    while at < len(data):
        end = at + struct.unpack_from("<I", data, at + 9)[0]
        if data[at + 4] == _TRANSACTION_PAYLOAD:
            body = data[at + HEADER_BYTES : end]
            header = parse_payload(body)
            reader = unpacker.stream_reader(memoryview(body)[header.offset : header.offset + header.size])
            while count := reader.readinto(room):
                size += count
        at = end
    return size


def _mysql_replication(server: LocalServer, recording: Recording) -> dict[str, int] | None:
    """Rows a second that mysql-replication makes of the same events, from the server over its socket; None: no rows,
    as from compressed transactions, which it steps over."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    stream = BinLogStreamReader(
        connection_settings={"unix_socket": str(server.socket), "user": "root", "password": "", "host": "localhost"},
        server_id=4_000_001,
        log_file=recording.file,
        log_pos=4,
        resume_stream=True,
        blocking=False,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    rows = 0
    try:
        start, cpu = time.perf_counter(), time.process_time()
        for event in stream:
            rows += len(event.rows)
            if time.perf_counter() - start > _BASELINE_S or stream.log_file != recording.file:
                break
        if rows < 100:
            return None
        return {
            "rows_per_s": round(rows / (time.perf_counter() - start)),
            "rows_per_cpu_s": round(rows / (time.process_time() - cpu)),
        }
    finally:
        stream.close()


def _measure(server: LocalServer, figure: _Figure, recording: Recording, baselines: dict[str, Any]) -> dict[str, Any]:
    path = path_of(server, recording)
    data = path.read_bytes()
    selection = _Columns(figure.columns)
    rows = _decode(data, selection)
    if rows != recording.rows:
        sys.exit(f"{figure.name}: {rows} rows decoded, {recording.rows} recorded")
    rounds = max(1, round(_STREAM_BYTES / len(data)))
    walls, cpu = _timed(lambda: _decode(data, selection, rounds))
    wall, cpu = statistics.median(walls) / rounds, cpu / rounds
    if recording.name not in baselines:
        raw = statistics.median(_timed(lambda: _read_raw(path))[0])
        baselines[recording.name] = {
            "mysql_replication": _mysql_replication(server, recording),
            "raw_reading_mb_per_s": round(len(data) / raw / 1e6),
        }
    rates = {
        "rows_per_s": round(rows / wall),
        "transactions_per_s": round(recording.transactions / wall),
        "mb_per_s": round(len(data) / wall / 1e6, 1),
        "rows_per_cpu_s": round(rows / cpu),
        "mb_per_cpu_s": round(len(data) / cpu / 1e6, 1),
    }
    key = {"rows/s": "rows_per_s", "transactions/s": "transactions_per_s", "MB/s": "mb_per_s"}[figure.unit]
    theirs = baselines[recording.name]["mysql_replication"]
    return {
        "name": figure.name,
        "value": rates[key],
        "values": [round(rates[key] * wall * rounds / each) for each in walls],
        "checked": "count of rows",
        "unit": figure.unit,
        "must": figure.must,
        **rates,
        **baselines[recording.name],
        # of CPU time, since the server shares the machine while mysql-replication reads from it
        "times_mysql_replication": round(rates["rows_per_cpu_s"] / theirs["rows_per_cpu_s"], 1) if theirs else None,
        "recorded": {"rows": rows, "transactions": recording.transactions, "bytes": len(data)},
    }


def _flatness(data: bytes, largest_mb: int) -> list[dict[str, Any]]:
    """Throughput and memory as the stream grows: the plain recording over and over."""
    found = []
    process = psutil.Process()
    for megabytes in (size for size in _FLAT_MB if size <= largest_mb):
        repeats = max(1, round(megabytes * 1e6 / len(data)))
        start = time.perf_counter()
        _decode(data, _Columns(), repeats)
        seconds = time.perf_counter() - start
        size = repeats * len(data)
        found.append(
            {
                "mb": round(size / 1e6),
                "mb_per_s": round(size / seconds / 1e6, 1),
                "rss_mb": round(process.memory_info().rss / 1e6),
            }
        )
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, write ``results/decode.json``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest-mb", type=int, default=_FLAT_MB[-1], help="how far the flat check goes")
    chosen = parser.parse_args(arguments)
    with recordings() as (server, found):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the figures are for one core
        baselines: dict[str, Any] = {}
        figures = [_measure(server, figure, found[figure.recording], baselines) for figure in _FIGURES]
        payloads = path_of(server, found["compressed"]).read_bytes()
        _, unpacking = _timed(lambda: _unpack_payloads(payloads))
        flat = _flatness(path_of(server, found["plain"]).read_bytes(), chosen.largest_mb)
    by_name = {figure["name"]: figure for figure in figures}
    packed = by_name["decode.compressed"]
    packed["share_of_plain"] = round(packed["rows_per_cpu_s"] / by_name["decode.plain"]["rows_per_cpu_s"], 2)
    packed["zstd_alone_share_of_its_time"] = round(unpacking / packed["recorded"]["rows"] * packed["rows_per_cpu_s"], 2)
    # what is left if decoding after zstandard cost what plain decoding costs
    unpacked = packed["zstd_alone_share_of_its_time"] / packed["share_of_plain"]  # in units of plain decoding
    packed["limit_of_share"] = round(1 / (1 + unpacked), 2)
    result = {
        "figures": figures,
        "flat": flat,
        "command": "python -m benchmarks.bench_decode",
        **circumstances(repeats=_REPEATS, recordings={name: recording.bytes for name, recording in found.items()}),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "decode.json").write_text(json.dumps(result, indent=2) + "\n")
    _print(figures, flat)


def _print(figures: list[dict[str, Any]], flat: list[dict[str, Any]]) -> None:
    table = Table(title="Decoder, one core")
    for heading in ("name", "rows/s", "transactions/s", "MB/s", "rows/CPU-s", "mysql-replication", "times", "must"):
        table.add_column(heading, justify="left" if heading in ("name", "must") else "right")
    for figure in figures:
        table.add_row(
            figure["name"],
            f"{figure['rows_per_s']:,}",
            f"{figure['transactions_per_s']:,}",
            f"{figure['mb_per_s']:,}",
            f"{figure['rows_per_cpu_s']:,}",
            f"{figure['mysql_replication']['rows_per_cpu_s']:,}" if figure["mysql_replication"] else "no rows",
            f"{figure['times_mysql_replication'] or ''}",
            figure["must"],
        )
    console = Console(width=150)
    console.print(table)
    packed = next(figure for figure in figures if figure["name"] == "decode.compressed")
    alone, limit = packed["zstd_alone_share_of_its_time"], packed["limit_of_share"]
    console.print(
        f"compressed: {packed['share_of_plain']:.0%} of plain. zstandard alone takes {alone:.0%} of its time: were the "
        f"rest as quick as plain decoding, it would be {limit:.0%}"
    )
    for line in flat:
        console.print(f"{line['mb']:>6} MB: {line['mb_per_s']} MB/s, {line['rss_mb']} MB resident")


if __name__ == "__main__":
    main()
