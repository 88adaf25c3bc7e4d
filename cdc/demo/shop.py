"""A small shop database on MySQL, and shoppers that write to it."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pymysql

DATABASE = "shop"

TABLES = {
    "customers": """
        CREATE TABLE customers (
          id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
          email VARCHAR(120) NOT NULL,
          name VARCHAR(80) NOT NULL COMMENT 'as the customer writes it',
          country CHAR(2) NOT NULL DEFAULT 'DE',
          status ENUM('new', 'active', 'blocked') NOT NULL DEFAULT 'new',
          interests SET('books', 'music', 'garden', 'tools') NULL,
          balance DECIMAL(12,2) NOT NULL DEFAULT 0,
          note TEXT NULL,
          created_at DATETIME(3) NOT NULL,
          updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
        ) COMMENT 'people who buy'""",
    "orders": """
        CREATE TABLE orders (
          id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
          customer_id BIGINT UNSIGNED NOT NULL,
          order_no VARCHAR(40) NOT NULL,
          status ENUM('placed', 'paid', 'shipped', 'cancelled') NOT NULL,
          total DECIMAL(12,2) NOT NULL,
          placed_at DATETIME(6) NOT NULL,
          shipped_on DATE NULL,
          details JSON NULL
        ) COMMENT 'what they bought'""",
    "order_items": """
        CREATE TABLE order_items (
          order_id BIGINT NOT NULL,
          line SMALLINT UNSIGNED NOT NULL,
          sku VARCHAR(32) NOT NULL,
          quantity INT UNSIGNED NOT NULL,
          price DECIMAL(10,2) NOT NULL,
          discount DOUBLE NULL,
          gift TINYINT(1) NOT NULL DEFAULT 0,
          PRIMARY KEY (order_id, line)
        )""",
    "stock": """
        CREATE TABLE stock (
          warehouse CHAR(3) NOT NULL,
          sku VARCHAR(32) NOT NULL,
          quantity INT NOT NULL,
          reserved INT NOT NULL DEFAULT 0,
          counted_at TIMESTAMP(3) NULL,
          PRIMARY KEY (warehouse, sku)
        )""",
}
KEYS = {"customers": ["id"], "orders": ["id"], "order_items": ["order_id", "line"], "stock": ["warehouse", "sku"]}

_SKUS = [f"sku-{number:04d}" for number in range(500)]
_WAREHOUSES = ["BER", "HAM", "MUC"]
_NAMES = ["Ada Lovelace", "Grace Hopper", "Łukasz Żak", "Zoë Müller", "李小龍", "Σωκράτης", "Nguyễn Văn An", "O'Brien"]


def create(connection: pymysql.connections.Connection[Any]) -> None:
    """Create the shop's empty tables."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {DATABASE}")
        for statement in TABLES.values():
            cursor.execute(statement)


class Shopper:
    """Writes to the shop until ``stop``: transactions over several tables, updates, deletes, changed keys.

    Calls: ``run`` on a separate thread. Several shoppers may write at the same time.
    """

    def __init__(
        self, connect: Callable[[], pymysql.connections.Connection[Any]], *, seed: int, transactions_per_s: float
    ) -> None:
        self.transactions = 0
        self._connect = connect
        self._random = random.Random(seed)  # noqa: S311 - a shop, not a secret
        self._pause_s = 1 / transactions_per_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.run, name=f"shopper-{seed}", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the current transaction and end. Raises: the error that ended the thread early."""
        self._stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def fill(self, *, customers: int, orders: int) -> None:
        """Insert rows into the empty tables, many per statement."""
        connection = self._connect()
        with connection, connection.cursor() as cursor:
            stock = [(house, sku, self._random.randrange(1000)) for house in _WAREHOUSES for sku in _SKUS]
            cursor.executemany("INSERT INTO stock (warehouse, sku, quantity) VALUES (%s, %s, %s)", stock)
            cursor.executemany(*self._customers(customers))
            for number in range(0, orders, 500):
                connection.begin()
                for _ in range(min(500, orders - number)):
                    self._order(cursor)
                connection.commit()

    def run(self) -> None:
        """Write until ``stop``, at the given rate or as fast as the server allows."""
        try:
            connection = self._connect()
            with connection, connection.cursor() as cursor:
                due = time.monotonic()
                while not self._stopping.is_set():
                    self._transaction(connection, cursor)
                    self.transactions += 1
                    due = max(due + self._pause_s, time.monotonic() - 1)
                    self._stopping.wait(max(0.0, due - time.monotonic()))
        except BaseException as failure:  # noqa: BLE001 - ``stop`` raises it
            self.failure = failure

    def _transaction(self, connection: pymysql.connections.Connection[Any], cursor: Any) -> None:
        deeds = [self._order, self._pay, self._ship, self._cancel, self._sign_up, self._edit, self._leave, self._move]
        connection.begin()
        try:
            for deed in self._random.choices(
                deeds, weights=[30, 20, 20, 5, 8, 12, 2, 3], k=self._random.choice((1, 1, 3))
            ):
                deed(cursor)
            if self._random.random() < 0.03:
                connection.rollback()
            else:
                connection.commit()
        except pymysql.err.OperationalError as error:
            connection.rollback()
            if error.args[0] not in (1205, 1213, 1412):  # lock wait timeouts, deadlocks and changed tables are expected
                raise
        except pymysql.err.IntegrityError:
            connection.rollback()  # two shoppers created the same key

    def _order(self, cursor: Any) -> None:
        draw = self._random
        details = {"channel": draw.choice(["web", "app", "shop"]), "coupon": draw.choice([None, "SPRING", 5, 2.5])}
        cursor.execute(
            "INSERT INTO orders (customer_id, order_no, status, total, placed_at, details)"
            " VALUES (%s, %s, 'placed', %s, NOW(6), %s)",
            (
                draw.randrange(1, 2000),
                f"A-{draw.getrandbits(40):010x}",
                draw.randrange(100000) / 100,
                json.dumps(details),
            ),
        )
        order = cursor.lastrowid
        lines = range(1, draw.randrange(2, 6))
        skus = sorted(draw.sample(_SKUS, len(lines)))
        items = [
            (order, line, sku, draw.randrange(1, 9), draw.randrange(9999) / 100)
            for line, sku in zip(lines, skus, strict=True)
        ]
        cursor.executemany(
            "INSERT INTO order_items (order_id, line, sku, quantity, price) VALUES (%s, %s, %s, %s, %s)", items
        )
        house = draw.choice(_WAREHOUSES)
        for sku in skus:
            cursor.execute(
                "UPDATE stock SET reserved = reserved + 1, counted_at = NOW(3) WHERE warehouse = %s AND sku = %s",
                (house, sku),
            )

    def _pay(self, cursor: Any) -> None:
        cursor.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (self._some(cursor, "orders"),))

    def _ship(self, cursor: Any) -> None:
        order = self._some(cursor, "orders")
        cursor.execute("UPDATE orders SET status = 'shipped', shipped_on = CURRENT_DATE WHERE id = %s", (order,))
        cursor.execute("UPDATE order_items SET discount = RAND() / 3, gift = 1 - gift WHERE order_id = %s", (order,))

    def _cancel(self, cursor: Any) -> None:
        order = self._some(cursor, "orders")
        cursor.execute("DELETE FROM order_items WHERE order_id = %s", (order,))
        cursor.execute("DELETE FROM orders WHERE id = %s", (order,))

    def _sign_up(self, cursor: Any) -> None:
        cursor.executemany(*self._customers(self._random.randrange(1, 4)))

    def _edit(self, cursor: Any) -> None:
        cursor.execute(
            "UPDATE customers SET status = %s, balance = balance + %s, interests = %s, note = %s WHERE id = %s",
            (
                self._random.choice(["new", "active", "blocked"]),
                self._random.randrange(-999, 999) / 100,
                self._random.choice([None, "", "books,tools", "garden"]),
                self._random.choice([None, "", "rings twice\nalways", "ünïcödé 😀"]),
                self._some(cursor, "customers"),
            ),
        )

    def _leave(self, cursor: Any) -> None:
        cursor.execute("DELETE FROM customers WHERE id = %s", (self._some(cursor, "customers"),))

    def _move(self, cursor: Any) -> None:
        """Change primary keys: the number of an order line, or the id of a customer."""
        if self._random.random() < 0.5:
            order = self._some(cursor, "orders")
            cursor.execute("UPDATE order_items SET line = line + 100 WHERE order_id = %s AND line < 100", (order,))
        else:
            old = self._some(cursor, "customers")
            cursor.execute("UPDATE customers SET id = %s WHERE id = %s", (self._random.getrandbits(40) + 2**33, old))

    def _customers(self, count: int) -> tuple[str, Sequence[tuple[Any, ...]]]:
        rows = [
            (
                f"{self._random.getrandbits(32):x}@example.org",
                self._random.choice(_NAMES),
                self._random.choice(["DE", "PL", "VN"]),
            )
            for _ in range(count)
        ]
        return "INSERT INTO customers (email, name, country, created_at) VALUES (%s, %s, %s, NOW(3))", rows

    def _some(self, cursor: Any, table: str) -> int:
        cursor.execute(f"SELECT MAX(id) FROM {table} WHERE id < {2**33}")
        newest = cursor.fetchone()[0] or 1
        return self._random.randrange(max(1, newest - 3000), newest + 1)
