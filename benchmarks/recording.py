"""Binlogs for the decoder's benchmark, written once by a real MySQL and kept in the project's cache folder.

The server's whole data folder is kept, so that a later run starts the same server again and a baseline that can only
read from a server reads the very same events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import orders
from cdc.cache import cache_folder
from cdc.local_servers import LocalServer, obtain

DATABASE = "bench"
ROWS = 300_000
TRANSACTIONS = 60_000
MIXED_TABLES = 60
WIDE_COLUMNS = 200
_VERSION = 2  # raised when what is recorded changes

# a stored program commits tens of thousands of transactions a second; a client's round trips would take minutes
_TINY = """
CREATE PROCEDURE tiny(amount INT)
BEGIN
  DECLARE i INT DEFAULT 0;
  WHILE i < amount DO
    INSERT INTO small VALUES (i, i * 7919 % 1000003, CONCAT('ORD-', i), (i * 31 % 1000000) / 100, NOW(3));
    SET i = i + 1;
  END WHILE;
END"""
_SMALL = (
    "(id BIGINT NOT NULL PRIMARY KEY, customer INT NOT NULL, name VARCHAR(40) NOT NULL, total DECIMAL(12,2) NOT NULL, "
    "at DATETIME(3) NOT NULL)"
)


@dataclass(frozen=True)
class Recording:
    """One binlog file with one kind of work in it."""

    name: str
    file: str
    rows: int
    transactions: int
    bytes: int


@contextmanager
def recordings() -> Iterator[tuple[LocalServer, dict[str, Recording]]]:
    """The server, running, and what it recorded; recorded now where the cache has none."""
    folder = cache_folder() / "benchmarks" / f"decode-{_VERSION}"
    done = folder / "recorded.json"
    options = (
        "--binlog-row-metadata=FULL",
        "--max-binlog-size=1G",
        "--binlog-expire-logs-seconds=0",
        "--innodb-buffer-pool-size=256M",
    )
    with LocalServer.start(obtain("mysql", print), folder / "mysql", options=options) as server:
        if not done.exists():
            found = _record(server)
            done.write_text(json.dumps([asdict(recording) for recording in found], indent=1))
        yield server, {entry["name"]: Recording(**entry) for entry in json.loads(done.read_text())}


def path_of(server: LocalServer, recording: Recording) -> Path:
    """The recording's binlog file."""
    return Path(server.data) / recording.file


def _record(server: LocalServer) -> list[Recording]:
    server.execute("SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    orders.prepare(server, DATABASE)
    found: list[Recording] = []

    def keep(name: str, rows: int, transactions: int, work: Callable[[], None]) -> None:
        print(f"recording {name} ...", flush=True)
        server.execute("FLUSH BINARY LOGS")
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOG STATUS")
            file = cursor.fetchone()[0]
            work()
            cursor.execute("FLUSH BINARY LOGS")
        size = (Path(server.data) / file).stat().st_size
        found.append(Recording(name, file, rows, transactions, size))

    server.execute(f"CREATE TABLE {orders.CREATE.format(name=f'{DATABASE}.plain').split('TABLE ', 1)[1]}")
    keep("plain", ROWS, ROWS // 10_000, lambda: orders.fill(server, DATABASE, "plain", ROWS))
    keep("update", ROWS, ROWS // 10_000, lambda: _update(server))
    keep("json", ROWS, ROWS // 10_000, lambda: _json(server))
    keep("compressed", ROWS, ROWS // 10_000, lambda: _compressed(server))
    _prepare_small(server)
    keep("tiny_transactions", TRANSACTIONS, TRANSACTIONS, lambda: _call(server, "tiny"))
    keep("mixed_tables", TRANSACTIONS, TRANSACTIONS // 3, lambda: _call(server, "mixed"))
    keep("wide", ROWS // 15, 20, lambda: _wide(server))
    return found


def _update(server: LocalServer) -> None:
    for start in range(0, ROWS, 10_000):
        server.execute(
            f"UPDATE {DATABASE}.plain SET status = status + 1, total = total + 1, changed_at = NOW(6) "
            f"WHERE id BETWEEN {start} AND {start + 9_999}"
        )


def _json(server: LocalServer) -> None:
    create = orders.CREATE.format(name=f"{DATABASE}.with_json").rstrip().removesuffix(")") + ", extra JSON NOT NULL)"
    server.execute(create)
    for start in range(0, ROWS, 10_000):
        server.execute(
            f"INSERT INTO {DATABASE}.with_json SELECT p.*, JSON_OBJECT("
            "'source', ELT(1 + id % 3, 'web', 'app', 'shop'), "
            "'items', id % 9, 'weight', (id % 1000) / 8e0, 'gift', id % 5 = 0) "
            f"FROM {DATABASE}.plain p WHERE id BETWEEN {start} AND {start + 9_999}"
        )


def _compressed(server: LocalServer) -> None:
    server.execute(orders.CREATE.format(name=f"{DATABASE}.packed"))
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_transaction_compression = ON")
        for start in range(0, ROWS, 10_000):
            cursor.execute(f"INSERT INTO packed SELECT * FROM plain WHERE id BETWEEN {start} AND {start + 9_999}")


def _prepare_small(server: LocalServer) -> None:
    """The tables and programs of the small transactions, made outside what is recorded."""
    body = " ".join(
        f"WHEN {table} THEN INSERT INTO mixed{table} VALUES (i, i % 1003, CONCAT('row ', i), i / 100, NOW(3));"
        for table in range(MIXED_TABLES)
    )
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        for table in ("small", *(f"mixed{number}" for number in range(MIXED_TABLES))):
            cursor.execute(f"CREATE TABLE {table} {_SMALL}")
        cursor.execute(_TINY)
        cursor.execute(
            "CREATE PROCEDURE mixed(amount INT) BEGIN DECLARE i INT DEFAULT 0; START TRANSACTION; WHILE i < amount DO "
            f"CASE i * 7 MOD {MIXED_TABLES} {body} END CASE; SET i = i + 1; "
            "IF i MOD 3 = 0 THEN COMMIT; START TRANSACTION; END IF; END WHILE; COMMIT; END"
        )


def _call(server: LocalServer, program: str) -> None:
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"CALL {program}({TRANSACTIONS})")


def _wide(server: LocalServer) -> None:
    kinds = ("INT", "VARCHAR(30)", "DECIMAL(12,2)", "DATETIME(3)", "BIGINT")
    values = (
        "id + {0}",
        "CONCAT('value ', id % 97 + {0})",
        "(id + {0}) / 100",
        "'2026-01-01' + INTERVAL id SECOND",
        "id * {0}",
    )
    columns = ", ".join(f"c{i} {kinds[i % 5]}" for i in range(1, WIDE_COLUMNS))
    chosen = ", ".join(values[i % 5].format(i) for i in range(1, WIDE_COLUMNS))
    server.execute(f"CREATE TABLE {DATABASE}.wide (id BIGINT NOT NULL PRIMARY KEY, {columns})")
    for start in range(0, ROWS // 15, 1_000):
        server.execute(
            f"INSERT INTO {DATABASE}.wide SELECT id, {chosen} FROM {DATABASE}.plain "
            f"WHERE id BETWEEN {start} AND {start + 999}"
        )
