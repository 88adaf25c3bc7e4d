"""The tables that figures are quoted for, on the server and as Arrow rows, and fast ways to fill them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa

from cdc.demo.local_servers import LocalServer
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema

DATABASE = "bench"
CHUNK = 100_000
WIDE_COLUMNS = 200

CREATE = """
CREATE TABLE {name} (
  id BIGINT NOT NULL PRIMARY KEY,
  customer_id INT NOT NULL,
  order_no VARCHAR(40) NOT NULL,
  status SMALLINT NOT NULL,
  total DECIMAL(12,2) NOT NULL,
  address VARCHAR(100) NULL,
  placed_at DATETIME(3) NOT NULL,
  changed_at TIMESTAMP(6) NOT NULL,
  priority TINYINT NOT NULL,
  discount DOUBLE NULL
)"""

# the server generates the rows; values and their lengths differ from row to row
INSERT = """
INSERT INTO {name}
SELECT i, (i * 7919) % 1000003, CONCAT('ORD-', LPAD(i, 10, '0'), '-', HEX(i * 2654435761 % 65536)), i % 7,
       (i * 31 % 10000000) / 100, IF(i % 20 = 0, NULL, CONCAT(i % 999, ' Long Street, Flat ', i % 77, ', Some Town')),
       '2026-01-01 00:00:00.000' + INTERVAL i % 86400000 SECOND, NOW(6), i % 5, IF(i % 3 = 0, NULL, (i % 1000) / 7)
FROM (SELECT {first} + n AS i FROM numbers WHERE n < {count}) AS chosen"""

# a stored procedure commits thousands of transactions per second; round trips of a client would take minutes
BURST = """
CREATE PROCEDURE burst(first BIGINT, inserts INT, updates INT, top BIGINT)
BEGIN
  DECLARE n INT DEFAULT 0;
  DECLARE chosen BIGINT;
  WHILE n < inserts DO
    INSERT INTO orders VALUES (first + n, n, CONCAT('ORD-', n), 1, 10.5, 'somewhere', NOW(3), NOW(6), 1, NULL);
    SET n = n + 1;
  END WHILE;
  SET n = 0;
  WHILE n < updates DO
    SET chosen = FLOOR(RAND() * top); -- inside the condition, RAND() would be computed for each row of a scan
    UPDATE orders SET total = total + 1, changed_at = NOW(6) WHERE id = chosen;
    SET n = n + 1;
  END WHILE;
END"""

_WIDE_TYPES = ("INT", "VARCHAR(30)", "DECIMAL(12,2)", "DATETIME(3)", "BIGINT")
_WIDE_VALUES = (
    "i + {0}",
    "CONCAT('value ', i % 97 + {0})",
    "(i + {0}) / 100",
    "'2026-01-01' + INTERVAL i SECOND",
    "i * {0}",
)

SCHEMA = TableSchema(
    DATABASE,
    "orders",
    (
        Column("id", Kind.BIGINT, "bigint", nullable=False),
        Column("customer_id", Kind.INT, "int", nullable=False),
        Column("order_no", Kind.VARCHAR, "varchar(40)", length=40, charset="utf8mb4"),
        Column("status", Kind.SMALLINT, "smallint"),
        Column("total", Kind.DECIMAL, "decimal(12,2)", precision=12, scale=2),
        Column("address", Kind.VARCHAR, "varchar(100)", length=100, charset="utf8mb4"),
        Column("placed_at", Kind.DATETIME, "datetime(3)", fsp=3),
        Column("changed_at", Kind.TIMESTAMP, "timestamp(6)", fsp=6),
        Column("priority", Kind.TINYINT, "tinyint"),
        Column("discount", Kind.DOUBLE, "double"),
    ),
    ("id",),
)


def arrow_rows(rows: int, *, sequence: int = 0) -> pa.RecordBatch:
    """Return upserts of the rows 0 .. ``rows``-1 of the order table, as a receiver delivers them."""
    draw = np.random.default_rng(7 + sequence)
    values = {
        "id": np.arange(rows),
        "customer_id": draw.integers(0, 10**6, rows),
        "order_no": [f"ORD-{n:010}-{bits:X}" for n, bits in enumerate(draw.integers(0, 65536, rows))],
        "status": draw.integers(0, 7, rows),
        "total": [Decimal(int(cents)).scaleb(-2) for cents in draw.integers(0, 10**7, rows)],
        "address": [f"{n % 999} Long Street, Flat {n % 77}, Some Town" if n % 20 else None for n in range(rows)],
        "placed_at": draw.integers(0, 10**9, rows) * 10**6,
        "changed_at": draw.integers(0, 10**15, rows),
        "priority": draw.integers(0, 5, rows),
        "discount": draw.random(rows),
    }
    arrays = {column.name: pa.array(values[column.name]).cast(column.arrow) for column in SCHEMA.columns}
    arrays[DELETED] = pa.array(np.zeros(rows, bool))
    arrays[SEQUENCE] = pa.array(np.arange(sequence, sequence + rows))
    return pa.RecordBatch.from_pydict(arrays)


def prepare(server: LocalServer) -> None:
    """Create a fresh database with the helper table of the numbers 0 .. CHUNK-1."""
    digits = " CROSS JOIN ".join(
        f"(SELECT 0 d{p} UNION ALL " + " UNION ALL ".join(f"SELECT {d}" for d in range(1, 10)) + f") t{p}"
        for p in range(5)
    )
    number = " + ".join(f"d{p} * {10**p}" for p in range(5))
    server.execute(
        f"DROP DATABASE IF EXISTS {DATABASE}",
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.numbers (n INT NOT NULL PRIMARY KEY)",
        f"INSERT INTO {DATABASE}.numbers SELECT {number} FROM {digits}",
    )


def create(server: LocalServer, *names: str) -> None:
    """Create order tables."""
    server.execute(*(CREATE.format(name=f"{DATABASE}.{name}") for name in names))


def fill(server: LocalServer, name: str, rows: int, *, first: int = 0, transaction_rows: int = 10_000) -> None:
    """Insert ``rows`` rows with ids from ``first``, in transactions of at most ``transaction_rows`` rows."""
    connection = server.connect(DATABASE)
    with connection, connection.cursor() as cursor:
        for start in range(0, rows, transaction_rows):
            end = min(start + transaction_rows, rows)
            connection.begin()
            for chunk in range(start, end, CHUNK):
                cursor.execute(INSERT.format(name=name, first=first + chunk, count=min(CHUNK, end - chunk)))
            connection.commit()


def fill_together(server: LocalServer, names: Sequence[str], rows: int, *, first: int = 0, updates: int = 0) -> None:
    """Insert ``rows`` rows into each table and update up to ``updates`` older ones, all in one transaction."""
    connection = server.connect(DATABASE)
    with connection, connection.cursor() as cursor:
        connection.begin()
        for name in names:
            cursor.execute(INSERT.format(name=name, first=first, count=rows))
            if updates:
                cursor.execute(f"UPDATE {name} SET status = 9 WHERE id < {first} AND id % 2 = 0 LIMIT {updates}")
        connection.commit()


def fill_wide(server: LocalServer, rows: int) -> None:
    """Create the table ``wide`` of 200 columns and insert ``rows`` rows, 1,000 per transaction."""
    numbers = range(1, WIDE_COLUMNS)
    columns = ", ".join(f"c{n} {_WIDE_TYPES[n % 5]}" for n in numbers)
    values = ", ".join(_WIDE_VALUES[n % 5].format(n) for n in numbers)
    server.execute(f"CREATE TABLE {DATABASE}.wide (id BIGINT NOT NULL PRIMARY KEY, {columns})")
    connection = server.connect(DATABASE)
    with connection, connection.cursor() as cursor:
        for first in range(0, rows, 1000):
            count = min(1000, rows - first)
            source = f"(SELECT {first} + n AS i FROM numbers WHERE n < {count}) AS chosen"
            cursor.execute(f"INSERT INTO wide SELECT i, {values} FROM {source}")


def write_steadily(
    server: LocalServer, per_s: float, statement: Callable[[int], str], until: Callable[[float], bool]
) -> tuple[list[float], float]:
    """Run ``statement(n)`` ``per_s`` times per second, until ``until(seconds)`` is true for the time since the start.

    Return the clock time at which each one ended, and the rate that was reached. Raises: SystemExit - it is below 95 %.
    """
    ends: list[float] = []
    connection = server.connect(DATABASE)
    with connection, connection.cursor() as cursor:
        begin = time.monotonic()
        while not until(len(ends) / per_s):
            time.sleep(max(0.0, begin + len(ends) / per_s - time.monotonic()))
            cursor.execute(statement(len(ends)))
            ends.append(time.time())
        reached = len(ends) / (time.monotonic() - begin)
    if reached < 0.95 * per_s:
        raise SystemExit(f"Only {reached:.0f} of {per_s:.0f} statements per second were reached: no figure.")
    return ends, reached
