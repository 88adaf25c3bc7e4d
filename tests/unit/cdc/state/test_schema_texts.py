"""The store reuses the texts of schemas: every checkpoint has the same bytes as without the reuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import cdc.state.sql
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.state.base import Checkpoint, CheckpointState
from cdc.state.codec import to_json
from cdc.state.sqlite import SqliteStore

HERE = BinlogPosition("bin.000001", 4)
ID = Column("id", Kind.INT, "int", nullable=False, auto_increment=True)
NAME = Column("näme\ud800", Kind.VARCHAR, "varchar(9)", length=9, charset="utf8mb4", comment='a "b", c')
ORDERS, ITEMS, USERS = (TableSchema("shop", name, (ID, NAME), ("id",)) for name in ("orders", "items", "users"))
WIDE = replace(ORDERS, columns=(*ORDERS.columns, replace(NAME, name="note")), since=HERE)
NUMBERED = replace(ORDERS, columns=(replace(ID, auto_increment=False), NAME))

Schemas = tuple[TableSchema, ...]
SEQUENCE: tuple[Schemas, ...] = (
    (),
    (ORDERS, ITEMS),
    (ORDERS, ITEMS),
    (replace(ORDERS), replace(ITEMS)),  # equal objects, as after a restart
    (WIDE, ITEMS),  # a table changes
    (ORDERS, ITEMS),  # the schemas before the last ones
    (WIDE, ITEMS, USERS),  # a table is added
    (USERS, WIDE, ITEMS),  # the order changes
    (USERS, ITEMS),  # a table is removed
    (USERS, ITEMS, NUMBERED),
    (USERS, ITEMS, ORDERS),  # AUTO_INCREMENT alone, which `==` leaves out
    (),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path)
    store.acquire("shop", "shop.yaml")
    yield store
    store.close()


def save(store: SqliteStore, number: int, schemas: Schemas) -> None:
    store.save(Checkpoint(number, 1, CheckpointState.COMMITTED, HERE, HERE, schemas=schemas))


def saved_text(store: SqliteStore, number: int) -> str:
    ((text,),) = store.database.all(
        "SELECT s.body FROM cdc_checkpoints c JOIN cdc_schemas s ON s.digest = c.schemas_digest WHERE c.id = :id",
        id=number,
    )
    return str(text)


def text_of(schemas: Schemas) -> str:
    return to_json(schemas, Schemas)


@pytest.mark.parametrize("reads", [False, True])
def test_schemas_reuse_texts_and_keep_their_bytes(store: SqliteStore, reads: bool) -> None:
    """``reads``: each checkpoint has the objects that the store returned, as in a run that continues after a change."""
    for number, schemas in enumerate(SEQUENCE):
        if reads and number:
            found = store.last_committed("shop")
            assert found is not None
            known = {text_of((one,)): one for one in found.schemas}
            schemas = tuple(known.get(text_of((one,)), one) for one in schemas)
        save(store, number, schemas)
        assert saved_text(store, number) == text_of(schemas)
    for number, checkpoint in enumerate(reversed(store.committed("shop"))):
        assert text_of(checkpoint.schemas) == saved_text(store, number) == text_of(SEQUENCE[number])


def test_schema_change_writes_the_text_of_one_table(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []

    def recording(value: object, kind: object = None) -> str:
        written.extend([value] if isinstance(value, TableSchema) else [])
        return to_json(value, kind)

    monkeypatch.setattr(cdc.state.sql, "to_json", recording)
    save(store, 0, (ORDERS, ITEMS))
    assert written == [ORDERS, ITEMS]
    written.clear()
    save(store, 1, (ORDERS, ITEMS))
    save(store, 2, (WIDE, ITEMS))
    save(store, 3, (WIDE, ITEMS))
    assert written == [WIDE]


def test_schemas_of_objects_that_are_gone_get_their_own_text(store: SqliteStore) -> None:
    """Python gives the id of a deleted object to another one."""
    for number in range(300):
        schemas = tuple(
            TableSchema("shop", f"t{number}_{one}", (replace(ID, comment=str(number)),), ("id",)) for one in range(5)
        )
        save(store, number, schemas)
        assert saved_text(store, number) == text_of(schemas)


def test_schemas_while_other_threads_read_keep_their_bytes(store: SqliteStore) -> None:
    save(store, 0, SEQUENCE[0])
    wrong: list[object] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            wrong.extend(
                one.id for one in store.committed("shop", limit=20) if text_of(one.schemas) != saved_text(store, one.id)
            )

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    try:
        for number in range(1, 40):
            schemas = SEQUENCE[number % len(SEQUENCE)]
            save(store, number, schemas)
            assert saved_text(store, number) == text_of(schemas)
    finally:
        is_over.set()
        for thread in readers:
            thread.join()
    assert wrong == []


def test_store_keeps_only_the_last_two_schema_texts(store: SqliteStore) -> None:
    for number, schemas in enumerate(SEQUENCE):
        save(store, number, schemas)
        store.committed("shop")
        assert len(store._known_schemas) <= 2
