"""What a snapshot step reads after the table of a running snapshot was changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pymysql
import pytest

from cdc.errors import SchemaMismatch
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.snapshot import Chunk, SnapshotState, TableSnapshot
from cdc.model.table_names import table_of, table_text
from cdc.mysql.connection import Endpoint
from cdc.mysql.key_order import KeyColumn, KeyOrder
from cdc.mysql.server import Server
from cdc.pipeline.boundary_steps import BoundarySteps
from cdc.run_context import SnapshotSettings
from cdc.snapshot.coordinator import SnapshotCoordinator
from cdc.snapshot.planner import ChunkPlan
from cdc.snapshot.step_plan import SnapshotStep
from cdc.snapshot.table_shape import NOT_VISIBLE, is_unchanged
from cdc.sources.base import ReceiverStatus
from cdc.state.base import ChannelCounts, Checkpoint, CheckpointState
from channels.channel import Channel
from channels.chunk_reader import SnapshotResult
from tests.model.source import schema_of

HERE = BinlogPosition("bin.000001", 4, "server")
ORDERS = "shop.orders"
READING = TableSnapshot(
    SnapshotState.READING, where="region = 'eu'", open=(Chunk(3, ("7",), ("9",)),), request=5, order="`id`"
)


class Connection:
    """A connection to a server that refuses a condition with an error, or accepts it."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cursor(self, *_: object) -> Connection:
        return self

    def execute(self, sql: str, *_: object) -> None:
        if self.code is not None and "region = 'eu'" in sql:
            raise pymysql.err.OperationalError(self.code, "Unknown column 'region' in 'where clause'")

    def fetchall(self) -> list[dict[str, int]]:
        return [{"n": 4}]


def prepared(monkeypatch: pytest.MonkeyPatch, snapshot: TableSnapshot, code: int | None) -> TableSnapshot:
    """Return the state of the table after a step was planned for it."""
    schema = cast(Any, schema_of)(ORDERS)
    order = SimpleNamespace(
        columns=("id",), text="`id`", rows_of=lambda chunk, where: (f" FROM orders WHERE ({where})", [])
    )
    fakes: dict[str, Any] = {
        "table_schemas": lambda _, names, *__: dict.fromkeys(names, schema),
        "key_order_of": lambda *_: order,
        "order_columns": lambda *_: ("id",),
        "Chunker": lambda *_: SimpleNamespace(plan=lambda **_: ChunkPlan((Chunk(0, None, ("9",), 10),), 10)),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(f"cdc.snapshot.coordinator.{name}", fake)
    routes = SimpleNamespace(maps=lambda *_: True, leave_out=lambda *_: False)
    context = SimpleNamespace(routes=routes, receiver=SimpleNamespace(schema=lambda *_: schema))
    coordinator = SnapshotCoordinator(cast(Any, context), cast(Any, None), lambda _: cast(Channel, SimpleNamespace()))
    coordinator.tables = {ORDERS: snapshot}
    server = SimpleNamespace(
        connection=Connection(code), ask=lambda *_: [], mariadb=False, endpoint=Endpoint("db.example")
    )
    coordinator._prepare_table(cast(Server, server), ORDERS, HERE)
    return coordinator.tables[ORDERS]


@pytest.mark.parametrize("snapshot", [TableSnapshot(where="region = 'eu'", request=5), READING])
def test_condition_over_a_dropped_column_becomes_the_whole_table(
    monkeypatch: pytest.MonkeyPatch, snapshot: TableSnapshot
) -> None:
    """The server would refuse each query of this table for ever, and no step and no change would be loaded."""
    found = prepared(monkeypatch, snapshot, 1054)
    assert (found.state, found.where, found.request) == (SnapshotState.READING, None, 5)
    assert found.open == (Chunk(0, None, ("9",), 10),), "also the chunks that were read with the condition"


def test_condition_that_the_server_accepts_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared(monkeypatch, READING, None) == READING
    whole = replace(READING, where=None)
    assert prepared(monkeypatch, whole, 1054) == whole


def test_condition_that_is_refused_for_another_reason_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared(monkeypatch, READING, 1142) == READING, "the query of the chunk reports it"


@pytest.mark.parametrize(
    ("planned", "is_read_again"),
    [("`id`", False), (None, False), ("`id` utf8mb4_0900_ai_ci", True), ("`region`, `id`", True)],
)
def test_snapshot_whose_chunks_have_another_order_begins_again(
    monkeypatch: pytest.MonkeyPatch, planned: str | None, is_read_again: bool
) -> None:
    """As after ALTER TABLE t ADD x INT, MODIFY id .. COLLATE utf8mb4_bin, which the job follows as ADD COLUMN."""
    reading = replace(READING, where=None, deletes_orphans=True, order=planned)
    found = prepared(monkeypatch, reading, None)
    if not is_read_again:
        assert found == reading
        return
    assert found.open == (Chunk(0, None, ("9",), 10),) and (found.done, found.order) == (0, "`id`")
    assert (found.deletes_orphans, found.request) == (True, 5)


def test_step_whose_rows_may_have_another_order_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that was read in part would continue after a key of the other order, and omit rows."""
    code = Column("code", Kind.VARCHAR, "varchar(9)", nullable=False, length=9, charset="utf8mb4")
    schema = TableSchema("shop", "orders", (code,), ("code",))
    order = KeyOrder("`shop`.`orders`", "`PRIMARY`", (KeyColumn(code, "utf8mb4_bin"),))
    index = {"Key_name": "PRIMARY", "Column_name": "code", "Sub_part": None, "Collation": "A", "Index_type": "BTREE"}
    sorting = {"name": "code", "collation": "utf8mb4_bin"}
    server = SimpleNamespace(ask=lambda sql, *_: [index if "SHOW KEYS" in sql else sorting])
    monkeypatch.setattr("cdc.snapshot.table_shape.table_schemas", lambda *_: {("shop", "orders"): schema})
    assert is_unchanged(cast(Server, server), schema, order)
    sorting["collation"] = "utf8mb4_0900_ai_ci"
    assert is_unchanged(cast(Server, server), schema, None)
    assert not is_unchanged(cast(Server, server), schema, order)
    monkeypatch.setattr("cdc.snapshot.coordinator.Server", lambda _: nullcontext(server))
    monkeypatch.setattr("cdc.snapshot.coordinator.refuse_other_server", lambda *_: None)
    settings = SnapshotSettings(cast(Any, None), cast(Any, None))
    coordinator = SnapshotCoordinator(cast(Any, None), settings, lambda _: None)
    read = cast(Any, SimpleNamespace(tables=[SimpleNamespace(order=order)]))
    with pytest.raises(SchemaMismatch):
        coordinator.complete(SnapshotStep((ORDERS,), (schema,), read), SnapshotResult((), ()), 1.0)


def test_order_of_an_enum_key_contains_its_labels() -> None:
    """Bounds are numbers of labels: with other labels, the chunks that are left have other rows."""
    code = Column("Code", Kind.ENUM, "enum('a','b')", nullable=False, charset="utf8mb4", labels=("a", "b"))
    orders = [
        KeyOrder("t", "p", (KeyColumn(replace(code, labels=one), "utf8mb4_bin"),)) for one in (("a", "b"), ("b", "a"))
    ]
    assert [one.text for one in orders] == ["`code` utf8mb4_bin ('a', 'b')", "`code` utf8mb4_bin ('b', 'a')"]


@pytest.mark.parametrize(("has_keys", "is_first"), [(True, False), (False, False), (True, True)])
def test_table_that_is_read_again_after_its_channel_was_removed_loses_orphan_rows(
    monkeypatch: pytest.MonkeyPatch, has_keys: bool, is_first: bool
) -> None:
    """The source has deleted rows while no channel read the table, and the stream never delivers these deletes."""
    monkeypatch.setattr("cdc.snapshot.coordinator.Server", lambda _: nullcontext())
    names = [("shop", "orders"), ("shop", "items"), ("shop", "adopted")]
    monkeypatch.setattr("cdc.snapshot.coordinator.mapped_tables", lambda *_: names)
    sink = SimpleNamespace(keys=lambda *_: None) if has_keys else SimpleNamespace()
    routes = SimpleNamespace(maps=lambda *_: True)
    status = ReceiverStatus(is_at_end=False, created=frozenset(("shop.created", "shop.gone")))
    receiver = SimpleNamespace(status=lambda: status, note_loaded=lambda tables: None)
    context = cast(Any, SimpleNamespace(routes=routes, sink=sink, runner=None, receiver=receiver))
    settings = SnapshotSettings(cast(Any, None), cast(Any, None))
    coordinator = SnapshotCoordinator(context, settings, lambda _: None)
    counts = {
        ORDERS: ChannelCounts(upserts=7, last_committed_at="2026-01-01T00:00:00Z"),
        "shop.gone": ChannelCounts(upserts=7, last_committed_at="2026-01-01T00:00:00Z"),  # dropped in the source
        "shop.adopted": ChannelCounts(),  # nothing was committed since `--adopt`
    }
    saved = {} if is_first else {"shop.users": TableSnapshot(SnapshotState.CONSISTENT)}
    committed = Checkpoint(3, 1, CheckpointState.COMMITTED, HERE, HERE, counts=counts, snapshots=saved)
    cycles = SimpleNamespace(committed=committed, poll=None, save_state=lambda: None)
    unused = cast(Any, SimpleNamespace(submit=None))
    verify = SimpleNamespace()
    steps = BoundarySteps(
        context, settings, coordinator, cast(Any, cycles), cast(Any, verify), unused, unused, lambda: 0.0
    )
    steps.begin(())
    found = {name: one.deletes_orphans for name, one in coordinator.tables.items() if name not in saved}
    assert found == {ORDERS: has_keys and not is_first, "shop.items": False, "shop.adopted": False}
    # when the source has the table again, the stream has all its rows, and the target those of the dropped one
    coordinator.requests = cast(Any, SimpleNamespace(apply=lambda tables: tables))
    created = coordinator.advance(HERE, ["shop.gone", "shop.created"], at_end=False)
    assert created["shop.created"].state is SnapshotState.CONSISTENT
    assert created["shop.gone"].deletes_orphans == created["shop.gone"].is_due == (has_keys and not is_first)


@pytest.mark.parametrize("is_failover", [False, True])
def test_table_at_the_end_is_consistent_after_its_high_watermark_is_read(
    monkeypatch: pytest.MonkeyPatch, is_failover: bool
) -> None:
    """A connection that was lost without notice is at its end too. The head of a file moves the end of the binlog."""

    def at(offset: int, server: str = "u") -> BinlogPosition:
        return BinlogPosition("b.000002", offset, server)

    monkeypatch.setattr("cdc.snapshot.coordinator.Server", lambda _: nullcontext())
    status = [ReceiverStatus(is_at_end=True, read_to=at(4))]
    context = SimpleNamespace(receiver=SimpleNamespace(status=lambda: status[-1]))
    settings = SnapshotSettings(cast(Any, None), lambda _: at(200))
    coordinator = SnapshotCoordinator(cast(Any, context), settings, lambda _: None)
    coordinator.requests = cast(Any, SimpleNamespace(apply=lambda tables: tables))
    coordinator.tables = {
        ORDERS: TableSnapshot(SnapshotState.CATCHING_UP, high=at(900, "earlier one") if is_failover else at(200))
    }

    def state(*, at_end: bool = True) -> SnapshotState:
        return coordinator.advance(BinlogPosition("b.000001", 500, "u"), [], at_end=at_end)[ORDERS].state

    assert state() is SnapshotState.CATCHING_UP
    status.append(ReceiverStatus(is_at_end=True, read_to=at(199)))
    assert state() is SnapshotState.CATCHING_UP
    assert coordinator.tables[ORDERS].high == at(200)
    status.append(ReceiverStatus(is_at_end=False, read_to=at(200)))
    assert state() is SnapshotState.CATCHING_UP
    status.append(ReceiverStatus(is_at_end=True, read_to=at(200)))
    assert state(at_end=False) is SnapshotState.CATCHING_UP
    assert state() is SnapshotState.CONSISTENT


def test_table_of_unknown_columns_waits_and_other_tables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel was added, and a statement on its table may follow the position of the stream."""

    def schema(*_: str) -> TableSchema:
        raise SchemaMismatch("The columns are not known yet.", hint="No action is needed.")

    monkeypatch.setattr("cdc.snapshot.coordinator.table_schemas", lambda _, names, *__: dict.fromkeys(names, "today"))
    routes = SimpleNamespace(maps=lambda *_: True, leave_out=lambda *_: False)
    context = SimpleNamespace(routes=routes, receiver=SimpleNamespace(schema=schema))
    coordinator = SnapshotCoordinator(cast(Any, context), cast(Any, None), lambda _: None)
    coordinator.tables = {ORDERS: TableSnapshot()}
    assert coordinator._prepare_table(cast(Server, None), ORDERS, HERE) is None
    assert coordinator.tables == {ORDERS: TableSnapshot()}
    assert [error.context["table"] for error in coordinator._mismatches] == [ORDERS]


class HiddenTables:
    """A coordinator on a server that shows only the tables ``shown``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[str] = []
        self.status = ReceiverStatus(is_at_end=True)
        self.loaded: list[str] = []
        self.dropped_requests: list[int] = []
        self.left_out: set[str] = set()
        fakes: dict[str, Any] = {
            "Server": lambda _: nullcontext(),
            "mapped_tables": lambda *_: [table_of(name) for name in self.shown],
            "table_schemas": lambda _, names, *__: {
                name: cast(Any, schema_of)(ORDERS) for name in names if table_text(*name) in self.shown
            },
            "key_order_of": lambda *_: SimpleNamespace(columns=("id",), text="`id`"),
            "order_columns": lambda *_: ("id",),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(f"cdc.snapshot.coordinator.{name}", fake)
        routes = SimpleNamespace(maps=lambda *name: table_text(*name) not in self.left_out, leave_out=lambda *_: False)
        receiver = SimpleNamespace(
            schema=lambda *_: cast(Any, schema_of)(ORDERS), status=lambda: self.status, note_loaded=self.loaded.extend
        )
        store = SimpleNamespace(requests=lambda job: (), drop_requests=self.dropped_requests.extend)
        self.context = SimpleNamespace(routes=routes, receiver=receiver, store=store, run=SimpleNamespace(job="shop"))

    def coordinator(self, saved: Mapping[str, TableSnapshot], dropped: Sequence[str] = ()) -> SnapshotCoordinator:
        settings = SnapshotSettings(cast(Any, None), cast(Any, None))
        found = SnapshotCoordinator(cast(Any, self.context), settings, lambda _: cast(Channel, SimpleNamespace()))
        found.begin(saved, dropped=dropped)
        return found


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> HiddenTables:
    return HiddenTables(monkeypatch)


@pytest.mark.parametrize("snapshot", [READING, TableSnapshot(request=5), replace(READING, where=None)])
def test_table_that_the_source_does_not_show_keeps_its_snapshot(hidden: HiddenTables, snapshot: TableSnapshot) -> None:
    """REVOKE hides it, and so does DROP TABLE before the RENAME TABLE of drop_swap. Its open chunks are not read."""
    coordinator = hidden.coordinator({ORDERS: snapshot})
    assert coordinator._prepare_table(cast(Server, None), ORDERS, HERE) is None
    (error,) = coordinator._mismatches
    assert error.message == NOT_VISIBLE and "GRANT SELECT" in error.hint and error.context["table"] == ORDERS
    assert hidden.loaded == [ORDERS], "a DROP TABLE IF EXISTS ends the snapshot"
    assert coordinator.advance(HERE, [ORDERS], at_end=False) == {ORDERS: snapshot}
    assert coordinator.is_due and not hidden.dropped_requests
    hidden.shown = [ORDERS]
    again = hidden.coordinator(coordinator.tables)
    assert again.tables == {ORDERS: snapshot} and again.is_due
    if snapshot.state is SnapshotState.READING and snapshot.where is None:
        found = again._prepare_table(cast(Server, None), ORDERS, HERE)
        assert found is not None and found[3] == snapshot


def test_table_that_was_dropped_in_the_stream_waits_for_its_rename(hidden: HiddenTables) -> None:
    coordinator = hidden.coordinator({ORDERS: READING}, dropped=[ORDERS])
    assert coordinator.is_due
    assert coordinator._prepare_table(cast(Server, None), ORDERS, HERE) is None
    assert coordinator.tables == {ORDERS: READING} and not coordinator._mismatches
    assert not coordinator.is_due, "the server is not asked again and again"


def test_table_whose_drop_the_user_accepted_has_no_snapshot(hidden: HiddenTables) -> None:
    hidden.status = ReceiverStatus(is_at_end=True, removed=frozenset((ORDERS,)))
    coordinator = hidden.coordinator({ORDERS: READING})
    assert coordinator._prepare_table(cast(Server, None), ORDERS, HERE) is None
    assert coordinator.tables == {} and not coordinator._mismatches
    assert coordinator.advance(HERE, [ORDERS], at_end=False) == {}, "its channel still exists"


def test_table_that_is_omitted_meanwhile_has_no_snapshot(hidden: HiddenTables) -> None:
    coordinator = hidden.coordinator({ORDERS: READING})
    hidden.left_out.add(ORDERS)
    coordinator._keep_hidden(ORDERS)
    assert coordinator.tables == {} and not coordinator._mismatches
    assert coordinator.advance(HERE, [ORDERS], at_end=False) == {}


def test_table_with_rows_and_without_a_seen_creation_is_loaded(hidden: HiddenTables) -> None:
    """The account had no privilege on shop.orders at the start, and row events need none."""
    hidden.shown = ["shop.customers"]
    hidden.status = ReceiverStatus(is_at_end=True, created=frozenset(("shop.created",)))
    coordinator = hidden.coordinator({})
    assert hidden.loaded == ["shop.customers"]
    found = coordinator.advance(HERE, ["shop.customers", ORDERS, "shop.created"], at_end=False)
    assert {name: one.state for name, one in found.items()} == {
        "shop.customers": SnapshotState.WAITING,
        ORDERS: SnapshotState.WAITING,
        "shop.created": SnapshotState.CONSISTENT,
    }
    hidden.shown.append(ORDERS)
    assert hidden.coordinator(found).tables[ORDERS].is_due
