"""What others make of the same binlog, in the same run: mysql-replication, the decoder of most Python programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from cdc.local_servers import LocalServer


def rows_of_mysql_replication(server: LocalServer, start: tuple[str, int], *, blocking: bool) -> Iterator[Any]:
    """Row events from ``start`` on, as a program that uses the library gets them."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    stream = BinLogStreamReader(
        connection_settings={"host": server.host, "port": server.port, "user": "cdc", "password": "bench"},
        server_id=4_000_001,
        log_file=start[0],
        log_pos=start[1],
        resume_stream=True,
        blocking=blocking,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    try:
        yield from stream
    finally:
        stream.close()


def rate_of_mysql_replication(server: LocalServer, start: tuple[str, int], seconds: float = 5.0) -> float:
    """Rows a second into a list, which is all that it does with them."""
    began, rows = time.perf_counter(), 0
    for event in rows_of_mysql_replication(server, start, blocking=False):
        rows += len(event.rows)
        if time.perf_counter() - began > seconds:
            break
    return rows / (time.perf_counter() - began)
