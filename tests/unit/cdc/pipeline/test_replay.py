"""Replay: which rows of the last Batch belong to the range."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from cdc.model.batch import Batch, Changes
from cdc.model.position import BinlogPosition, CanalPosition, Position, position_from_json
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from cdc.pipeline.replay import Replay
from cdc.state.base import ChannelCounts, Checkpoint, CheckpointState

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SCHEMA = TableSchema("shop", "orders", (Column("id", Kind.INT, "int"),), ("id",))
FIRST = BinlogPosition("a.000001", 100, "server-1", f"{UUID}:1-10")
LAST = BinlogPosition("a.000001", 200, "server-1", f"{UUID}:1-11")


def at(offset: int, gtids: str, server: str = "server-1") -> BinlogPosition:
    return BinlogPosition(f"{server[-1]}.000001", offset, server, f"{UUID}:{gtids}")


def loaded_ids(last: Position, *batches: tuple[list[int], Position], rows: int) -> list[int]:
    """Replay a range that had ``rows`` at the first read. Return the keys that are loaded."""
    sequence, sent, loaded = 0, [], list[int]()
    for ids, position in batches:
        numbers = range(sequence + 1, sequence + 1 + len(ids))
        sequence += len(ids)
        values = {"id": pa.array(ids, pa.int32()), DELETED: [False] * len(ids), SEQUENCE: pa.array(numbers, pa.int64())}
        changes = Changes(SCHEMA, pa.record_batch(values))
        sent.append(Batch((changes,), FIRST, position, True, len(ids), len(ids), len(ids), None, None))
    receiver = SimpleNamespace(get=lambda _: sent.pop(0), release=lambda _: None)
    routes = SimpleNamespace(mapping_for=lambda *_: SimpleNamespace(target="ods.orders"))
    store = SimpleNamespace(save=lambda _: None)
    context = SimpleNamespace(receiver=receiver, routes=routes, types=None, store=store)
    replay = Replay(cast(Any, context), cast(Any, None), threading.Event())
    replay._channels["shop.orders"] = cast(
        Any, SimpleNamespace(add=lambda one: loaded.extend(one.rows.column("id").to_pylist()), buffered_rows=0)
    )
    before = Checkpoint(1, 1, CheckpointState.COMMITTED, FIRST, FIRST)
    checkpoint = Checkpoint(
        2, 1, CheckpointState.PREPARED, FIRST, last, counts={"shop.orders": ChannelCounts(upserts=rows)}
    )
    replay.run(checkpoint, frozenset({"ods.orders"}), before)
    assert not sent, "the replay ended too early"
    return loaded


@pytest.mark.parametrize("last", [LAST, CanalPosition("a.000001", 200)])
def test_replay_in_the_first_order_omits_rows_after_the_range(last: Position) -> None:
    assert loaded_ids(last, ([1, 2], replace(last, offset=300)), rows=1) == [1]


def test_replay_of_another_server_loads_the_rows_of_the_range() -> None:
    """Server 2 has committed row 2, which is after the range, before row 1."""
    early, whole = at(500, "1-10:12", "server-2"), at(600, "1-12", "server-2")
    assert loaded_ids(LAST, ([2], early), ([1], whole), rows=1) == [2, 1]
    assert loaded_ids(LAST, ([2, 1], whole), rows=1) == [2, 1]


def test_replay_by_offset_after_a_read_by_gtid_loads_the_rows_of_the_range() -> None:
    """At the first read, the server did not send row 9, which the job had already from another server."""
    last = cast(BinlogPosition, position_from_json(replace(LAST, by_gtid=True).to_json()))
    assert loaded_ids(last, ([9, 1], replace(last, by_gtid=False)), rows=1) == [9, 1]


def test_replay_of_canal_by_gtid_loads_the_rows_of_the_range() -> None:
    """Canal does not report that it has changed its server."""
    last = CanalPosition("a.000001", 200, gtid_set=f"{UUID}:1-11")
    assert loaded_ids(last, ([2, 1], CanalPosition("b.000001", 600, gtid_set=f"{UUID}:1-12")), rows=1) == [2, 1]
