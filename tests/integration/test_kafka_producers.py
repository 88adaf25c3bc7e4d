"""The shop through a real Canal and a real Debezium into Kafka, and read from the binary log: equal tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cdc.demo import shop
from cdc.demo.local_servers import LocalServer
from cdc.errors import PrerequisiteError
from cdc.model.schema import DELETED, SEQUENCE
from cdc.sources.kafka.formats.canal_json import CanalJson
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.receiver import KafkaReceiver
from tests.conftest import unavailable
from tests.emulators.kafka import KafkaBroker
from tests.emulators.producers import DEBEZIUM_PREFIX, CanalToKafka, DebeziumToKafka, obtain_producer
from tests.support.kafka_receivers import settings, start_at
from tests.support.receiving import Collector, Mapped, until
from tests.support.receiving import position as binlog_position
from tests.support.receiving import receiver_of as binlog_receiver_of
from tests.support.seeds import seed_of

LAST = 999_999_999  # the key of the last row of each table
MARKS = (
    f"INSERT INTO customers (id, email, name, created_at) VALUES ({LAST}, 'e', 'n', NOW(3))",
    f"INSERT INTO orders VALUES ({LAST}, 1, 'no', 'paid', 1, NOW(6), NULL, NULL)",
    f"INSERT INTO order_items VALUES ({LAST}, 1, 'sku', 1, 1, NULL, 0)",
    f"INSERT INTO stock VALUES ('ZZZ', '{LAST}', 1, 0, NULL)",
)


class Tables(Mapped):
    """All tables of a database; the messages describe them."""

    def schema(self, database: str, table: str) -> None:
        return None


@pytest.fixture
def producers(
    mysql: LocalServer, kafka: KafkaBroker, database: str, tmp_path: Path
) -> Iterator[tuple[CanalToKafka, DebeziumToKafka]]:
    try:
        jars = {name: obtain_producer(name) for name in ("canal", "debezium")}
    except PrerequisiteError as error:
        unavailable(str(error))
    with mysql.connect(database) as connection, connection.cursor() as cursor:
        for statement in shop.TABLES.values():
            cursor.execute(statement)
    for name in shop.TABLES:
        kafka.create(f"{database}_{name}")
        kafka.create(f"{DEBEZIUM_PREFIX}.{database}.{name}")
    names = [f"{database}.{name}" for name in shop.TABLES]
    with ExitStack() as stack:
        canal = CanalToKafka(jars["canal"], tmp_path / "canal", mysql, kafka, database)
        debezium = DebeziumToKafka(jars["debezium"], tmp_path / "debezium", mysql, kafka, names)
        yield stack.enter_context(canal), stack.enter_context(debezium)


def tables_of(collector: Collector) -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """Return each table after all changes, by key. The text of a JSON document may have other blanks."""
    found: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {name: {} for name in shop.TABLES}
    for row in sorted(collector.rows, key=lambda row: row[SEQUENCE]):
        rows, key = found[row["table"]], tuple(row[name] for name in shop.KEYS[row["table"]])
        values = {name: value for name, value in row.items() if name not in ("table", DELETED, SEQUENCE)}
        if values.get("details") is not None:
            values["details"] = json.loads(values["details"])
        if row[DELETED]:
            rows.pop(key, None)
        else:
            rows[key] = values
    return found


def is_complete(collector: Collector) -> bool:
    """Return whether the last row of each table has arrived."""
    last = {
        "customers": ("id", LAST),
        "orders": ("id", LAST),
        "order_items": ("order_id", LAST),
        "stock": ("warehouse", "ZZZ"),
    }
    return {row["table"] for row in collector.rows if row[last[row["table"]][0]] == last[row["table"]][1]} == {*last}


def test_binlog_canal_and_debezium_give_three_equal_sets_of_tables(
    mysql: LocalServer, kafka: KafkaBroker, database: str, producers: tuple[CanalToKafka, DebeziumToKafka]
) -> None:
    start = binlog_position(mysql)
    shopper = shop.Shopper(lambda: mysql.connect(database), seed=seed_of(), transactions_per_s=1000)
    shopper.fill(customers=100, orders=200)
    shopper.start()
    until(lambda: shopper.transactions >= 150)
    producers[0].kill()  # Canal sends the rows since its last position again
    until(lambda: shopper.transactions >= 300)
    producers[0].launch()
    until(lambda: shopper.transactions >= 450)
    shopper.stop()
    with mysql.connect(database) as connection, connection.cursor() as cursor:
        for statement in MARKS:
            cursor.execute(statement)
            connection.commit()
    receivers: list[tuple[Any, Any]] = [(binlog_receiver_of(mysql, Mapped(database)), start)]
    for prefix, form in ((f"{database}_", CanalJson), (f"{DEBEZIUM_PREFIX}.{database}.", DebeziumJson)):
        topics = [prefix + name for name in shop.TABLES]
        tables = Tables(database)
        receivers.append((KafkaReceiver(settings(kafka, *topics), form(tables), tables), start_at(kafka, *topics)))
    found = []
    for receiver, begin in receivers:
        try:
            receiver.open(begin, (), 0)
            found.append(tables_of(Collector(receiver).collect(is_complete)))
        finally:
            receiver.close()
    by_binlog, by_canal, by_debezium = found
    assert by_canal == by_binlog
    assert by_debezium == by_binlog
    assert all(len(rows) > 50 for rows in by_binlog.values())
