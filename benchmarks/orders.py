"""The 10-column order table that figures are quoted for, and fast ways to fill it."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.local_servers import LocalServer

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

# the server makes the rows itself; values differ from row to row, lengths do too
_ROWS = """
INSERT INTO {name}
SELECT i, (i * 7919) % 1000003, CONCAT('ORD-', LPAD(i, 10, '0'), '-', HEX(i * 2654435761 % 65536)), i % 7,
       (i * 31 % 10000000) / 100, IF(i % 20 = 0, NULL, CONCAT(i % 999, ' Long Street, Flat ', i % 77, ', Some Town')),
       '2026-01-01 00:00:00.000' + INTERVAL i % 86400000 SECOND, NOW(6), i % 5, IF(i % 3 = 0, NULL, (i % 1000) / 7)
FROM (SELECT {first} + n AS i FROM numbers WHERE n < {count}) AS chosen"""

CHUNK = 100_000


def prepare(server: LocalServer, database: str) -> None:
    """A fresh database with the helper table of numbers 0 .. CHUNK-1."""
    digits = " CROSS JOIN ".join(
        f"(SELECT 0 d{p} UNION ALL " + " UNION ALL ".join(f"SELECT {d}" for d in range(1, 10)) + f") t{p}"
        for p in range(5)
    )
    number = " + ".join(f"d{p} * {10**p}" for p in range(5))
    server.execute(
        f"DROP DATABASE IF EXISTS {database}",
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.numbers (n INT NOT NULL PRIMARY KEY)",
        f"INSERT INTO {database}.numbers SELECT {number} FROM {digits}",
    )


def fill(
    server: LocalServer, database: str, name: str, rows: int, *, first: int = 0, transaction_rows: int = 10_000
) -> None:
    """Insert ``rows`` rows with ids from ``first``, ``transaction_rows`` to a transaction (at most all at once)."""
    connection = server.connect(database)
    with connection, connection.cursor() as cursor:
        for start in range(0, rows, transaction_rows):
            connection.begin()
            for chunk in range(start, min(start + transaction_rows, rows), CHUNK):
                count = min(CHUNK, transaction_rows, rows - chunk, start + transaction_rows - chunk)
                cursor.execute(_ROWS.format(name=name, first=first + chunk, count=count))
            connection.commit()


def fill_together(server: LocalServer, database: str, names: Sequence[str], rows: int, *, first: int = 0) -> None:
    """Insert ``rows`` rows into each of the tables, all in one transaction."""
    connection = server.connect(database)
    with connection, connection.cursor() as cursor:
        connection.begin()
        for name in names:
            cursor.execute(_ROWS.format(name=name, first=first, count=rows))
        connection.commit()
