"""Doris and StarRocks: complete jobs into emulators that count rows and discard them, and the encoding of loads.

The emulators run on the same machine. The figures show the cost of the job, not that of a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from benchmarks import end_to_end
from benchmarks.rig import orders
from benchmarks.rig.measure import report
from benchmarks.rig.suite import Case, Options
from channels.sinks.stream_load import encoding


def bodies(options: Options) -> None:
    """Measure the encoding of loads, in rows per second of one core."""
    rows = orders.arrow_rows(options.rows)
    formats: dict[str, Callable[[], Iterator[bytes]]] = {
        "csv": lambda: encoding.csv_body([rows]),
        "csv_lz4": lambda: encoding.csv_body([rows], "lz4"),
        "json": lambda: encoding.json_body([rows], rows.schema.names),
    }
    for name, encode in formats.items():
        spent, size = [], 0
        for _ in range(3):
            cpu = time.process_time()
            size = sum(map(len, encode()))
            spent.append(time.process_time() - cpu)
        report(
            f"doris.body.{name}", options.rows / min(spent), "rows/s", data={"rows": options.rows}, checked="",
            cpu_s_per_million=round(min(spent) / options.rows * 1e6, 3), bytes_per_row=round(size / options.rows, 1),
        )  # fmt: skip


_SINKS = ("doris", "starrocks", "starrocks-single")
CASES = (
    *(
        Case("clusters.catch_up", end_to_end.catch_up, Options(5_000_000, sink=sink), 500_000, has_route=True)
        for sink in _SINKS
    ),
    *(Case("clusters.cycle", end_to_end.cycle, Options(sink=sink), has_route=True) for sink in _SINKS),
    Case("clusters.bodies", bodies, Options(100_000)),
)
