"""Other programs read the same binlog: the Java connector, Debezium, mysql-replication. ``make bench-peers``.

Each one is a process of its own, reads from the same position, counts the rows and adds up their ids. This project's
receiver and the Java programs use TLS. The Java programs come from Maven, and run with the default options of Java.
After them, a whole job loads the rows of the order table to Delta.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.rig import baselines, orders
from benchmarks.rig.jobs import EVERY_SECOND, Rig, rig
from benchmarks.rig.measure import Usage, Watch, report
from benchmarks.rig.orders import DATABASE
from benchmarks.rig.suite import Case, Options
from cdc.errors import PrerequisiteError
from tests.emulators.maven import obtain_jars

_OTHERS = {"connector": "Java connector", "debezium": "Debezium's engine"}
_PARTS = Path(__file__).parent / "rig" / "peers"
_POM = Path(__file__).parents[1] / "tests" / "emulators" / "producer_parts" / "debezium" / "pom.xml"
_FEW = 10


@dataclass(frozen=True)
class Reading:
    """What one program needed."""

    rows: int
    first_s: float  # from the start of its process to its first row
    seconds: float  # from the start of its process to its last row
    usage: Usage

    @property
    def rate(self) -> float:
        """Return the rows per second from the start of the process: a program may read ahead before its first row."""
        return self.rows / self.seconds

    def figures(self, program: str) -> dict[str, float]:
        """Return what is reported of it next to the rate; the names begin with ``program``."""
        found = {
            "first_row_s": self.first_s,
            "all_rows_s": self.seconds,
            "cpu_s": self.usage.cpu_s,
            "cpu_s_per_million": self.usage.cpu_s / self.rows * 1e6,
            "gib": self.usage.peak_bytes / 2**30,
        }
        return {f"{program}_{name}": round(value, 2) for name, value in found.items()}


def narrow(options: Options) -> None:
    """Measure transactions of 10,000 inserted rows of 10 columns."""

    def fill(bench: Rig) -> None:
        orders.create(bench.server, "orders")
        orders.fill(bench.server, "orders", options.rows)

    _measure(options, "narrow", fill, "10 columns, transactions of 10,000 rows")


def single_rows(options: Options) -> None:
    """Measure transactions of one row."""

    def fill(bench: Rig) -> None:
        orders.create(bench.server, "orders")
        bench.server.execute("SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        bench.execute(orders.BURST, f"CALL burst(0, {options.rows}, 0, 0)")

    _measure(options, "single_rows", fill, "10 columns, transactions of 1 row")


def wide(options: Options) -> None:
    """Measure rows of 200 columns."""

    def fill(bench: Rig) -> None:
        orders.fill_wide(bench.server, options.rows)

    _measure(options, "wide", fill, f"{orders.WIDE_COLUMNS} columns, transactions of 1,000 rows")


def start(options: Options) -> None:
    """Measure ten rows, from the start of the process to the last one."""

    def fill(bench: Rig) -> None:
        orders.create(bench.server, "orders")
        orders.fill(bench.server, "orders", _FEW)

    _measure(options, "start", fill, "10 columns, 10 rows")


def _measure(options: Options, name: str, fill: Callable[[Rig], None], work: str) -> None:
    table, rows, is_start = "wide" if name == "wide" else "orders", options.rows or _FEW, not options.rows
    jars, measure = obtain_jars("peers", _POM, _compiled), attrgetter("seconds" if is_start else "rate")
    with rig(options) as bench:
        debezium = _Debezium(bench, jars)
        debezium.save_position()
        bench.begin()
        fill(bench)
        file, offset = bench.start
        place = [str(bench.server.port), file, str(offset), str(rows)]
        commands = {
            "receiver": [sys.executable, "-m", "benchmarks.rig.peers.receiver_peer", *place],
            "connector": [*_java(jars), "ConnectorPeer", *place],
            "debezium": debezium.command(table, rows),
        }
        expected = _expected(bench, table)
        found = {each: _read(command, expected) for each, command in commands.items()}
        others = {name: round(measure(found[program]), 2) for program, name in _OTHERS.items()}
        if not is_start:
            others[baselines.NAME] = baselines.measure(str(bench.server.socket), bench.start)["rows_per_s"]
        backlog = bench.drain(EVERY_SECOND if is_start else "") if table == "orders" else None
    more: dict[str, Any] = {}
    for program, one in found.items():
        more |= one.figures(program)
    if backlog is not None:
        more["job_to_delta_s"] = round(backlog.start_s + backlog.seconds, 2)
    report(
        f"peers.{name}", measure(found["receiver"]), "s" if is_start else "rows/s", data={"rows": rows, "work": work},
        checked="count and sum of ids, of each program", baselines=others, **more,
    )  # fmt: skip


@contextmanager
def _launched(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a program. It ends with its standard input."""
    environment = {**os.environ, "PEER_PASSWORD": "bench"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _read(command: Sequence[str], expected: tuple[int, int]) -> Reading:
    """Let a program read all rows. Raises: SystemExit - it did not read the rows that were written."""
    began = time.monotonic()
    with _launched(command) as process, Watch(process.pid) as watch:
        assert process.stdout is not None
        first_s, words = 0.0, [""]
        for line in process.stdout:
            words = line.split() or [""]
            if words[0] == "first":
                first_s = time.monotonic() - began
            if words[0] == "end":
                break
        seconds, usage = time.monotonic() - began, watch.usage()
    if words != ["end", *map(str, expected)]:
        raise SystemExit(f"{expected[0]} rows with the sum {expected[1]} were written, but {command} read: {words}")
    return Reading(expected[0], first_s, seconds, usage)


def _expected(bench: Rig, table: str) -> tuple[int, int]:
    with bench.server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*), CAST(SUM(id) AS UNSIGNED) FROM {table}")
        rows, ids = cursor.fetchone()
    return int(rows), int(ids)


class _Debezium:
    """The settings of Debezium's engine, and its saved position."""

    def __init__(self, bench: Rig, jars: Path) -> None:
        self._bench, self._jars = bench, jars
        self._file = bench.folder / "debezium.properties"
        settings = {
            "name": "engine",
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "topic.prefix": "peer",
            "database.hostname": "127.0.0.1",
            "database.port": bench.server.port,
            "database.user": "cdc",
            "database.ssl.mode": "required",
            "database.server.id": 4_000_003,
            "database.include.list": DATABASE,
            "snapshot.mode": "no_data",
            "include.schema.changes": "false",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": bench.folder / "debezium.offsets",
            "offset.flush.interval.ms": 0,
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": bench.folder / "debezium.history",
        }
        self._file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def command(self, table: str, rows: int) -> list[str]:
        """Return the command that reads rows of a table."""
        return [*_java(self._jars), "DebeziumPeer", str(self._file), table, str(rows)]

    def save_position(self) -> None:
        """Let it read a row, so that it saves a position from which it can start."""
        self._bench.execute("CREATE TABLE peer_marks (id BIGINT NOT NULL PRIMARY KEY)")
        with _launched(self.command("peer_marks", 1)) as process:
            assert process.stdout is not None
            number = 0
            while not select.select([process.stdout], [], [], 0.5)[0]:  # it reads from the end of the binlog
                self._bench.execute(f"INSERT INTO peer_marks VALUES ({number})")
                number += 1
            if not any(line.startswith("end") for line in process.stdout):
                raise SystemExit("Debezium's engine does not read the binlog.")
        self._bench.execute("DROP TABLE peer_marks")


def _java(jars: Path) -> list[str]:
    return ["java", "-cp", f"{jars}:{jars}/*"]


def _compiled(jars: Path) -> None:
    command = ["javac", "-cp", f"{jars}/*", "-d", str(jars), *map(str, sorted(_PARTS.glob("*.java")))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PrerequisiteError(f"javac failed: {done.stderr[-900:]}", hint="apt-get install openjdk-17-jdk-headless")


CASES = (
    Case("peers.narrow", narrow, Options(5_000_000), 200_000),
    Case("peers.single_rows", single_rows, Options(500_000), 20_000),
    Case("peers.wide", wide, Options(200_000), 10_000),
    Case("peers.start", start),
)
