"""The comparison: mysql-replication, the decoder of most Python programs, reads the same binlog in the same run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

NAME = "mysql-replication into a list"


def read_events(socket: str, start: tuple[str, int], *, blocking: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield (name of the binlog file, row event) from ``start``, through the server's Unix socket."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    stream = BinLogStreamReader(
        connection_settings={"unix_socket": socket, "user": "root", "password": "", "host": "localhost"},
        server_id=4_000_001,
        log_file=start[0],
        log_pos=start[1],
        resume_stream=True,
        blocking=blocking,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    with closing(stream):
        for event in stream:
            yield stream.log_file, event


def measure(socket: str, start: tuple[str, int], *, one_file: bool = False, seconds: float = 5.0) -> dict[str, int]:
    """Return rows per second and per CPU second. The rate does not depend on the amount.

    Rows of compressed transactions are missing, because the library skips these events.
    """
    began, cpu, rows = time.perf_counter(), time.process_time(), 0
    for file, event in read_events(socket, start):
        if one_file and file != start[0]:
            break
        rows += len(event.rows)
        if time.perf_counter() - began > seconds:
            break
    return {
        "rows_per_s": round(rows / (time.perf_counter() - began)),
        "rows_per_cpu_s": round(rows / (time.process_time() - cpu)),
    }
