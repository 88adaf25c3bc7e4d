"""Binlogs for the benchmark of the decoder: a MySQL server writes them once, into the project's cache folder.

The cache keeps the complete data folder of the server. A later run starts that server again, because mysql-replication
can read the same events only from a server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.rig import orders
from benchmarks.rig.orders import DATABASE
from cdc.demo.local_servers import LocalServer, obtain
from cdc.paths import cache_folder

ROWS = 300_000
TRANSACTIONS = 60_000
MIXED_TABLES = 60
_VERSION = 2  # increase it if the recorded work changes

_UPDATE = "UPDATE plain SET status = status + 1, total = total + 1, changed_at = NOW(6)"
_JSON = (
    "INSERT INTO with_json SELECT p.*, JSON_OBJECT('source', ELT(1 + id % 3, 'web', 'app', 'shop'), 'items', id % 9, "
    "'weight', (id % 1000) / 8e0, 'gift', id % 5 = 0) FROM plain p"
)
_COMPRESSED = "INSERT INTO packed SELECT * FROM plain"
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
    """One binlog file with one kind of work."""

    name: str
    file: str
    rows: int
    transactions: int
    bytes: int


@contextmanager
def recordings() -> Iterator[tuple[LocalServer, dict[str, Recording]]]:
    """Return the running server and its recordings. Record them first if the cache has none."""
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
    """Return the path of the binlog file."""
    return Path(server.data) / recording.file


def _record(server: LocalServer) -> list[Recording]:
    server.execute("SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    orders.prepare(server)
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

    orders.create(server, "plain", "packed", "with_json")
    server.execute(f"ALTER TABLE {DATABASE}.with_json ADD COLUMN extra JSON NOT NULL")
    keep("plain", ROWS, ROWS // 10_000, lambda: orders.fill(server, "plain", ROWS))
    keep("update", ROWS, ROWS // 10_000, lambda: _run(server, _UPDATE))
    keep("json", ROWS, ROWS // 10_000, lambda: _run(server, _JSON))
    keep("compressed", ROWS, ROWS // 10_000, lambda: _run(server, _COMPRESSED, compressed=True))
    _prepare_small(server)
    keep("tiny_transactions", TRANSACTIONS, TRANSACTIONS, lambda: _call(server, "tiny"))
    keep("mixed_tables", TRANSACTIONS, TRANSACTIONS // 3, lambda: _call(server, "mixed"))
    keep("wide", ROWS // 15, 20, lambda: orders.fill_wide(server, ROWS // 15))
    return found


def _run(server: LocalServer, statement: str, *, compressed: bool = False) -> None:
    """Run a statement for all rows of the table ``plain``, in transactions of 10,000 rows."""
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION binlog_transaction_compression = {'ON' if compressed else 'OFF'}")
        for start in range(0, ROWS, 10_000):
            cursor.execute(f"{statement} WHERE id BETWEEN {start} AND {start + 9_999}")


def _prepare_small(server: LocalServer) -> None:
    """Create the tables and procedures of the small transactions, outside the recordings."""
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


def _call(server: LocalServer, procedure: str) -> None:
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"CALL {procedure}({TRANSACTIONS})")
