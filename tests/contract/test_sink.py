"""The Sink contract, run on every sink: prepare, commit, abort, state, last_checkpoint, and repeats of each."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.errors import LoadRejected, PreparedLoadLost, SinkOwnershipError, SinkUnavailable, TargetMismatch
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import LoadState, Sink, SinkCheckpoint, TargetColumn, TargetTable, can_list_keys, can_maintain
from channels.sinks.delta.sink import DeltaSink, MergeMode
from channels.sinks.delta.table_paths import table_folder
from channels.sinks.doris.sink import DorisSink
from channels.sinks.memory import MemorySink
from channels.sinks.starrocks.sink import StarrocksSink
from tests.emulators.cases import RealCluster
from tests.emulators.doris.cases import any_doris, sink_on
from tests.emulators.doris.emulator import DorisEmulator
from tests.emulators.starrocks.cases import any_starrocks
from tests.emulators.starrocks.cases import sink_on as starrocks_on
from tests.emulators.starrocks.emulator import StarrocksEmulator
from tests.support.object_stores import Bucket

ORDERS = TargetTable(
    "ods.orders",
    (TargetColumn("id", pa.int64(), False), TargetColumn("text", pa.string(), True)),
    key=("id",),
)
Row = tuple[int, str | None]


@dataclass
class Subject:
    """A sink under test, a function that reads its rows, and one that starts it again."""

    sink: Sink
    read: Callable[[str], list[dict[str, Any]]]
    restart: Callable[[], Sink]
    two_phase: bool = True  # False: rows are visible when they are loaded
    sequence: int = 0
    columns: dict[str, dict[str, str]] = field(default_factory=dict)  # table -> column -> name of its content

    def prepare(self, name: LoadName, *rows: Row, deletes: Sequence[int] = (), table: TargetTable = ORDERS) -> Any:
        ids = [number for number, _ in rows] + list(deletes)
        self.sequence += len(ids)
        batch = pa.RecordBatch.from_pydict(
            {
                "id": pa.array(ids, pa.int64()),
                "text": pa.array([text for _, text in rows] + [None] * len(deletes), pa.string()),
                DELETED: pa.array([False] * len(rows) + [True] * len(deletes)),
                SEQUENCE: pa.array(range(self.sequence - len(ids), self.sequence), pa.int64()),
            }
        )
        return self.sink.part_writer(table)(name, iter([batch]))

    def texts(self, table: str = "ods.orders") -> dict[int, str | None]:
        rows = self.read(table)
        found = {row["id"]: row["text"] for row in rows}
        assert len(found) == len(rows), "the table contains a key twice"
        return found


def _memory(folder: Path) -> Subject:
    sink = MemorySink()
    return Subject(sink, lambda table: sink.rows(table).to_pylist(), lambda: sink)


def _delta(folder: Path) -> Subject:
    def read(table: str) -> list[dict[str, Any]]:
        return read_delta(folder / table.replace(".", "/")).to_pylist()

    return Subject(DeltaSink(folder), read, lambda: DeltaSink(folder))


def read_delta(folder: Path) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(str(folder))).execute("select * from t").read_all())


def _doris(doris: DorisEmulator | RealCluster, *, two_phase: bool) -> Subject:
    """Return a subject for Doris. Bytes are hexadecimal digits, and TIMESTAMP is UTC without a zone."""

    def value(column: str, found: Any) -> Any:
        if column == "bytes" and found is not None:
            return bytes.fromhex(found)
        if column == "vector" and isinstance(found, str):
            return json.loads(found)
        return found.replace(tzinfo=datetime.UTC) if column == "timestamp" and found is not None else found

    def read(table: str) -> list[dict[str, Any]]:
        names, rows = doris.execute(f"SELECT * FROM {table}")
        columns = subject.columns.get(table, {})
        return [
            {name: value(columns.get(name, name), cell) for name, cell in zip(names, row, strict=True)} for row in rows
        ]

    def make() -> DorisSink:
        return sink_on(doris, two_phase_commit=two_phase)

    subject = Subject(make(), read, make, two_phase)
    return subject


def _starrocks(starrocks: StarrocksEmulator | RealCluster, mode: str) -> Subject:
    """Return a subject for StarRocks. TIMESTAMP is UTC without a zone; in keys, decimals and bytes are text."""

    def value(column: str, found: Any) -> Any:
        if column == "bytes" and isinstance(found, str):
            return bytes.fromhex(found)
        if column == "wide" and isinstance(found, str):
            return decimal.Decimal(found)
        if column == "vector" and isinstance(found, str):
            return json.loads(found)
        return found.replace(tzinfo=datetime.UTC) if column == "timestamp" and found is not None else found

    def read(table: str) -> list[dict[str, Any]]:
        names, rows = starrocks.execute(f"SELECT * FROM {table}")
        columns = subject.columns.get(table, {})
        return [
            {name: value(columns.get(name, name), cell) for name, cell in zip(names, row, strict=True)} for row in rows
        ]

    def make() -> StarrocksSink:
        return starrocks_on(starrocks, mode)

    subject = Subject(make(), read, make)
    return subject


def _delta_vectors(folder: Path) -> Subject:
    def make() -> DeltaSink:
        return DeltaSink(folder, merge="deletion_vectors")

    return replace(_delta(folder), sink=make(), restart=make)


def _delta_s3(bucket: Bucket, merge: MergeMode) -> Subject:
    def read(table: str) -> list[dict[str, Any]]:
        return bucket.read(table_folder(Path("/warehouse"), table).as_posix()[1:]).to_pylist()

    def make() -> DeltaSink:
        return DeltaSink(f"{bucket.url}/warehouse", merge=merge, storage=bucket.options)

    return Subject(make(), read, make)


SINKS = {"memory": _memory, "delta": _delta, "delta vectors": _delta_vectors}


DORIS = {"doris": True, "doris plain": False}
STARROCKS = {"starrocks": "single", "starrocks multi": "multi"}
S3: dict[str, MergeMode] = {"delta s3": "rewrite", "delta s3 vectors": "deletion_vectors"}


# in the plain mode rows are visible when they are loaded, so conditions on prepared rows do not apply
with_two_phases = pytest.mark.parametrize("subject", [*SINKS, *S3, "doris", *STARROCKS], indirect=True)


@pytest.fixture(params=[*SINKS, "delta s3 vectors", *DORIS, *STARROCKS])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param in DORIS:
        with any_doris() as doris:
            yield from _with_orders(_doris(doris, two_phase=DORIS[request.param]))
    elif request.param in STARROCKS:
        with any_starrocks() as starrocks:
            yield from _with_orders(_starrocks(starrocks, STARROCKS[request.param]))
    elif request.param in S3:
        yield from _with_orders(_delta_s3(request.getfixturevalue("s3_server").bucket(), S3[request.param]))
    else:
        yield from _with_orders(SINKS[request.param](tmp_path))


def _with_orders(found: Subject) -> Iterator[Subject]:
    found.sink.ensure_table(ORDERS)
    yield found
    found.sink.close()


def name(checkpoint: int = 1, task: int = 0, **other: Any) -> LoadName:
    values = {"job": "shop", "incarnation": "0badcafe", "fence": 1, "channel": "ods.orders", **other}
    return LoadName(checkpoint=checkpoint, task=task, **values)


def mark(checkpoint: int = 1, fence: int = 1, incarnation: str = "0badcafe", job: str = "shop") -> SinkCheckpoint:
    position = BinlogPosition("mysql-bin.000001", 100 + checkpoint, "server", "")
    return SinkCheckpoint(job, incarnation, fence, checkpoint, position, position, checkpoint * 1000)


def test_sink_row_with_equal_sequence_replaces_the_existing_one(subject: Subject) -> None:
    """Rows of a snapshot have the highest sequence used so far."""
    first = subject.prepare(name(1), (1, "stream"))
    subject.sink.commit([first], mark(1))
    subject.sequence -= 1
    again = subject.prepare(name(2), (1, "snapshot"))
    subject.sink.commit([again], mark(2))
    assert subject.texts() == {1: "snapshot"}


def test_sink_keys_are_complete_and_paged(subject: Subject) -> None:
    load = subject.prepare(name(1), (1, "one"), (2, "two"), (3, "three"))
    subject.sink.commit([load], mark(1))
    gone = subject.prepare(name(2), (4, "four"), deletes=[2])
    sink = subject.sink
    assert can_list_keys(sink)
    keys = sink.keys(ORDERS, None, 10)
    assert keys.column("id").to_pylist() in ([1, 2, 3], [1, 3, 4]) and keys.column_names == ["id"]
    subject.sink.commit([gone], mark(2))
    assert sink.keys(ORDERS, None, 10).column("id").to_pylist() == [1, 3, 4]
    assert sink.keys(ORDERS, keys.slice(0, 1), 1).column("id").to_pylist() == [3]
    assert sink.keys(ORDERS, pa.table({"id": [4]}), 1).num_rows == 0


@with_two_phases
def test_sink_prepared_rows_are_visible_only_after_commit(subject: Subject) -> None:
    load = subject.prepare(name(), (1, "one"), (2, "two"))
    assert subject.texts() == {}
    assert (load.rows, load.table) == (2, "ods.orders")
    subject.sink.commit([load], mark())
    assert subject.texts() == {1: "one", 2: "two"}


def test_sink_last_task_wins_for_one_key(subject: Subject) -> None:
    inserted = subject.prepare(name(task=0), (7, "new"), (8, "kept"))
    updated = subject.prepare(name(task=1), (7, "changed"))
    deleted = subject.prepare(name(task=2), deletes=[7])
    subject.sink.commit([inserted, updated, deleted], mark())
    assert subject.texts() == {8: "kept"}
    again = [subject.prepare(name(2, task), (7, f"version {task}")) for task in range(12)]
    subject.sink.commit(again[::-1], mark(2))  # the order is by name, not by position in the list
    assert subject.texts() == {7: "version 11", 8: "kept"}


def test_sink_delete_then_insert_in_one_checkpoint_keeps_the_row(subject: Subject) -> None:
    subject.sink.commit([subject.prepare(name(), (1, "old"))], mark())
    loads = [subject.prepare(name(2, 0), deletes=[1]), subject.prepare(name(2, 1), (1, "back"))]
    subject.sink.commit(loads, mark(2))
    assert subject.texts() == {1: "back"}


def test_sink_updates_deletes_and_inserts_change_old_rows(subject: Subject) -> None:
    subject.sink.commit([subject.prepare(name(), *((number, "old") for number in range(10)))], mark())
    subject.sink.commit([subject.prepare(name(2), (3, "new"), (20, "in"), deletes=[4, 99])], mark(2))
    expected: dict[int, str | None] = dict.fromkeys(range(10), "old") | {3: "new", 20: "in"}
    del expected[4]
    assert subject.texts() == expected


def test_sink_repeated_commit_changes_nothing(subject: Subject) -> None:
    first = subject.prepare(name(), (1, "one"))
    subject.sink.commit([first], mark())
    second = subject.prepare(name(2), deletes=[1])
    subject.sink.commit([second], mark(2))
    subject.sink.commit([second], mark(2))
    assert subject.texts() == {}
    assert subject.sink.state(first) is LoadState.COMMITTED


def test_sink_target_states_prove_identity_and_checkpoint(subject: Subject) -> None:
    states = subject.sink.target_states("shop", mark().incarnation, ["ods.orders", "ods.nothing"])
    assert states.keys() == {"ods.orders"}, "a missing table is omitted"
    assert states["ods.orders"].checkpoint in (None, -1)
    subject.sink.commit([subject.prepare(name(), (1, "one"))], mark())
    again = subject.restart().target_states("shop", mark().incarnation, ["ods.orders"])
    assert again["ods.orders"].identity == states["ods.orders"].identity
    assert again["ods.orders"].checkpoint in (None, 1)
    assert not again["ods.orders"].missing_files


def test_sink_repeated_prepare_returns_the_same_load(subject: Subject) -> None:
    first = subject.prepare(name(), (1, "one"))
    second = subject.prepare(name(), (1, "one"))
    assert first == second
    subject.sink.commit([second], mark())
    assert subject.texts() == {1: "one"}


def test_sink_empty_part_is_no_load(subject: Subject) -> None:
    assert subject.prepare(name()) is None


@with_two_phases
def test_sink_abort_drops_prepared_loads(subject: Subject) -> None:
    load = subject.prepare(name(5), (1, "one"))
    for _ in range(2):
        subject.sink.abort("shop", "0badcafe", 1, 5)
    assert subject.sink.state(load) is LoadState.ABORTED
    with pytest.raises(PreparedLoadLost) as caught:
        subject.sink.commit([load], mark(5))
    assert len(caught.value.context["labels"]) == 1  # type: ignore[arg-type]
    assert subject.texts() == {}


@with_two_phases
def test_sink_abort_keeps_other_runs_and_checkpoints(subject: Subject) -> None:
    others = [name(5, fence=2), name(6), name(51), name(5, job="shop2"), name(5, incarnation="0badcaff")]
    loads = [subject.prepare(other, (number, "x")) for number, other in enumerate(others)]
    subject.sink.abort("shop", "0badcafe", 1, 5)
    assert [subject.sink.state(load) for load in loads] == [LoadState.PREPARED] * len(loads)


@with_two_phases
def test_sink_state_reports_every_load_state(subject: Subject) -> None:
    never = PreparedLoad(name(9), "ods.orders", 1, 1, {"file": "_cdc_staging/none/none.parquet", "size": 1})
    assert subject.sink.state(never) is LoadState.UNKNOWN
    aborted, kept = subject.prepare(name(1), (1, "x")), subject.prepare(name(2), (2, "x"))
    assert subject.sink.state(kept) is LoadState.PREPARED
    subject.sink.abort("shop", "0badcafe", 1, 1)
    subject.sink.commit([kept], mark(2))
    assert subject.sink.state(kept) is LoadState.COMMITTED
    assert subject.sink.state(aborted) is LoadState.ABORTED


@with_two_phases
def test_sink_states_and_loads_survive_a_restart(subject: Subject) -> None:
    load = subject.prepare(name(), (1, "one"))
    load = PreparedLoad.from_json(load.to_json())
    subject.sink = subject.restart()
    assert subject.sink.state(load) is LoadState.PREPARED
    subject.sink.commit([load], mark())
    subject.sink = subject.restart()
    assert subject.sink.state(load) is LoadState.COMMITTED
    assert subject.texts() == {1: "one"}


def test_sink_last_checkpoint_is_the_newest_committed_one(subject: Subject) -> None:
    assert subject.sink.last_checkpoint("shop") is None
    for number in (3, 4):
        subject.sink.commit([subject.prepare(name(number), (1, "x"))], mark(number))
    subject.sink.commit([subject.prepare(name(1, job="other"), (2, "x"))], mark(1, job="other"))
    subject.sink = subject.restart()
    assert subject.sink.last_checkpoint("shop") == mark(4)
    assert subject.sink.last_checkpoint("other") == mark(1, job="other")
    assert subject.sink.last_checkpoint("sho") is None


def test_sink_claim_by_an_unrelated_run_raises(subject: Subject) -> None:
    subject.sink.acquire_ownership(mark(0), ["ods.orders"])
    subject.sink.acquire_ownership(mark(0), ["ods.orders"])
    other = subject.restart()
    with pytest.raises(SinkOwnershipError, match="0badcafe") as refused:
        other.acquire_ownership(mark(0, incarnation="deadbeef"), ["ods.orders", "ods.items"])
    assert "cdc stop shop" in refused.value.hint
    if other is not subject.sink:
        other.close()
    load = subject.prepare(name(), (1, "one"))
    subject.sink.commit([load], mark())
    assert subject.texts() == {1: "one"}


def test_sink_claim_by_later_and_adopting_runs_succeeds(subject: Subject) -> None:
    subject.sink.acquire_ownership(mark(0), ["ods.orders"])
    subject.sink.commit([subject.prepare(name(), (1, "one"))], mark())
    subject.sink.close()
    subject.sink = subject.restart()
    subject.sink.acquire_ownership(mark(1, fence=2), ["ods.orders"])
    subject.sink.commit([subject.prepare(name(2, fence=2), (2, "two"))], mark(2, fence=2))
    subject.sink.close()
    subject.sink = subject.restart()
    adopting = mark(9, fence=3, incarnation="deadbeef")
    subject.sink.acquire_ownership(adopting, ["ods.orders"])
    load = subject.prepare(name(10, fence=3, incarnation="deadbeef"), (3, "three"))
    subject.sink.commit([load], mark(10, fence=3, incarnation="deadbeef"))
    assert subject.texts() == {1: "one", 2: "two", 3: "three"}
    with pytest.raises(SinkOwnershipError):
        subject.sink.commit([load], mark(3, fence=2))


def test_sink_adopting_run_uses_the_highest_fence_seen(subject: Subject) -> None:
    """Rows of runs without a commit may be visible, and their sequences would win over those of a lower fence."""
    if not isinstance(subject.sink, DorisSink | StarrocksSink):
        return  # tables of the other sinks have no sequences
    subject.sink.acquire_ownership(mark(0), ["ods.orders"])
    subject.sink.commit([subject.prepare(name(), (1, "one"))], mark())
    newer = subject.restart()
    newer.acquire_ownership(mark(1, fence=7), ["ods.orders"])
    found = newer.last_checkpoint("shop")
    assert found == replace(mark(), fence=7)
    with pytest.raises(SinkOwnershipError):  # of the same incarnation, for example in a copied folder
        subject.sink.commit([subject.prepare(name(2), (1, "older"))], mark(2))
    with pytest.raises(SinkOwnershipError):
        subject.sink.acquire_ownership(mark(1, fence=6), ["ods.orders"])
    adopting = subject.restart()
    with pytest.raises(SinkOwnershipError):  # it read the row before the run with fence 7 acquired the sink
        adopting.acquire_ownership(mark(9, fence=6, incarnation="deadbeef"), ["ods.orders"])
    adopting.close()
    newer.acquire_ownership(mark(1, fence=7), ["ods.orders"])
    newer.close()


def test_sink_checkpoint_without_changed_rows_is_recorded(subject: Subject) -> None:
    load = subject.prepare(name(), deletes=[42])
    subject.sink.commit([load], mark())
    assert subject.sink.state(load) is LoadState.COMMITTED
    assert subject.sink.last_checkpoint("shop") == mark()


def test_delta_commit_continues_after_a_failure_between_tables(tmp_path: Path) -> None:
    subject = _delta(tmp_path)
    items = TargetTable("ods.items", ORDERS.columns, ORDERS.key)
    subject.sink.ensure_table(ORDERS)
    subject.sink.ensure_table(items)
    loads = [subject.prepare(name(), (1, "one")), subject.prepare(name(channel="ods.items"), (1, "item"), table=items)]
    (tmp_path / "ods/items").rename(tmp_path / "away")
    with pytest.raises(SinkUnavailable, match="does not exist"):
        subject.sink.commit(loads, mark())
    assert subject.texts() == {1: "one"}
    (tmp_path / "away").rename(tmp_path / "ods/items")
    subject.sink = subject.restart()
    subject.sink.commit(loads, mark())
    assert (subject.texts(), subject.texts("ods.items")) == ({1: "one"}, {1: "item"})
    subject.sink.close()


def test_sink_null_in_a_not_null_column_or_key_is_rejected(subject: Subject) -> None:
    columns = (ORDERS.columns[0], TargetColumn("text", pa.string(), False))
    table = TargetTable("ods.strict", columns, ("id",))
    subject.sink.ensure_table(table)
    with pytest.raises(LoadRejected) as caught:
        subject.prepare(name(channel="ods.strict"), (1, "fine"), (17, None), table=table)
    assert caught.value.context == {"table": "ods.strict", "column": "text", "keys": [{"id": 17}]}
    assert subject.prepare(name(channel="ods.strict"), (1, "fine"), deletes=[2], table=table).rows == 2
    with pytest.raises(LoadRejected, match="key column id"):
        subject.prepare(name(), (None, "x"))  # type: ignore[arg-type]


def test_sink_table_mismatch_raises(subject: Subject) -> None:
    subject.sink.ensure_table(ORDERS)
    assert subject.sink.check([ORDERS]) == ()
    changed = TargetTable("ods.orders", (ORDERS.columns[0], TargetColumn("text", pa.int32(), True)), ("id",))
    assert subject.sink.check([changed])
    with pytest.raises(TargetMismatch):
        subject.sink.ensure_table(changed)
    with pytest.raises(TargetMismatch):
        subject.sink.ensure_table(TargetTable("ods.orders", ORDERS.columns, ("text",)))


@with_two_phases
def test_sink_maintenance_keeps_every_row(subject: Subject) -> None:
    expected = {}
    for checkpoint in range(1, 20):
        subject.sink.commit([subject.prepare(name(checkpoint), (checkpoint, f"{checkpoint}"))], mark(checkpoint))
        expected[checkpoint] = f"{checkpoint}"
    pending = subject.prepare(name(20), (1, "changed"))
    if can_maintain(subject.sink):
        subject.sink.maintain([ORDERS])
    assert subject.texts() == expected
    assert subject.sink.last_checkpoint("shop") == mark(19)
    assert subject.sink.state(pending) is LoadState.PREPARED
    subject.sink.commit([pending], mark(20))
    assert subject.texts() == expected | {1: "changed"}


Action = tuple[str, int]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    checkpoints=st.lists(
        st.lists(st.lists(st.tuples(st.sampled_from("ud"), st.integers(0, 12)), max_size=8), max_size=4), max_size=6
    ),
    routed=st.sampled_from([2, 1000]),
    leaf_bytes=st.sampled_from([60, 1 << 20]),
)
def test_delta_rows_equal_those_of_the_memory_sink(
    checkpoints: list[list[list[Action]]],
    routed: int,
    leaf_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("channels.sinks.delta.merge.FILE_ROWS", 4)
    monkeypatch.setattr("channels.sinks.delta.merge._ASSIGNED_ROWS", routed)
    monkeypatch.setattr("channels.sinks.delta.merge.FILE_BYTES", leaf_bytes)
    monkeypatch.setattr("channels.sinks.delta.compaction._SMALL_FILES", 3)
    subjects = [make(tmp_path_factory.mktemp("model")) for make in SINKS.values()]
    for found in subjects:
        found.sink.ensure_table(ORDERS)
        for checkpoint, tasks in enumerate(checkpoints, 1):
            loads = []
            for number, actions in enumerate(tasks):
                last = {key: kind for kind, key in actions}
                rows = [(key, f"{checkpoint}.{number}") for key, kind in last.items() if kind == "u"]
                deletes = [key for key, kind in last.items() if kind == "d"]
                loads.append(found.prepare(name(checkpoint, number), *rows, deletes=deletes))
            found.sink.commit([load for load in loads if load is not None], mark(checkpoint))
        if can_maintain(found.sink):
            found.sink.maintain([ORDERS])
    assert all(found.texts() == subjects[0].texts() for found in subjects[1:])
    for found in subjects:
        found.sink.close()


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 127]),
    "small": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "big": (pa.int64(), [-(2**63), 2**63 - 1]),
    "unsigned": (pa.decimal128(20, 0), [decimal.Decimal(0), decimal.Decimal(2**64 - 1)]),
    "wide": (pa.decimal128(38, 10), [decimal.Decimal("-9999999999999999999999999999.9999999999"), decimal.Decimal(1)]),
    "float": (pa.float32(), [1.5, -3.4028234663852886e38]),
    "double": (pa.float64(), [math.pi, -0.0]),
    "date": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "datetime": (
        pa.timestamp("us"),
        [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)],
    ),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [
            datetime.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=datetime.UTC),
            datetime.datetime(2038, 1, 19, 3, 14, 7, 999999, tzinfo=datetime.UTC),
        ],
    ),
    "text": (pa.string(), ["", "\x00 é \U0001f600 \\N \t\n"]),
    "bytes": (pa.binary(), [b"", bytes(range(256))]),
    "vector": (pa.list_(pa.float32()), [[], [1.5, -2.0]]),
}


# keys that collations, padding, signs or escapes could confuse
MORE_KEYS: dict[str, list[Any]] = {
    "text": [
        "a",
        "A",
        "a ",
        "a\t",
        "\u00e4",
        "\u00df",
        "ss",
        "\U0001f600",
        "it's",
        'a"b',
        "a\\b",
        "a\\",
        "%s",
        "\n",
        "0",
        "-",
        "\\N",
    ],
}


def test_sink_every_type_is_read_back_unchanged(subject: Subject) -> None:
    columns = tuple(TargetColumn(name, kind, True) for name, (kind, _) in VALUES.items())
    table = TargetTable("ods.types", (TargetColumn("id", pa.int64(), False), *columns), ("id",))
    subject.sink.ensure_table(table)
    data = {"id": [1, 2, 3], **{name: [*values, None] for name, (_, values) in VALUES.items()}}
    schema = pa.schema([pa.field(column.name, column.arrow) for column in table.columns])
    rows = pa.Table.from_pydict(data, schema=schema)
    rows = rows.append_column(DELETED, pa.array([False] * 3)).append_column(SEQUENCE, pa.array([1, 2, 3]))
    for checkpoint in (1, 2):  # the second checkpoint merges into the file of the first one
        load = subject.sink.part_writer(table)(name(checkpoint, channel="ods.types"), iter(rows.to_batches()))
        assert load is not None
        subject.sink.commit([load], mark(checkpoint))
    found = sorted(subject.read("ods.types"), key=lambda row: row["id"])
    assert found == pa.Table.from_pydict(data, schema=schema).to_pylist()


@pytest.mark.parametrize("kind", [name for name in VALUES if name not in ("vector", "float", "double")])
def test_sink_every_type_can_be_part_of_a_key(kind: str, subject: Subject) -> None:
    arrow, values = VALUES[kind]
    table = TargetTable(
        "ods.keyed", (TargetColumn("a", arrow, False), TargetColumn("b", pa.int32(), False)), ("a", "b")
    )
    subject.sink.ensure_table(table)
    subject.columns["ods.keyed"] = {"a": kind}
    # StarRocks accepts keys of 128 bytes, and each byte in them is two digits
    values = [value[:60] if isinstance(value, bytes) else value for value in values]
    keys = [(value, number) for value in values for number in (1, 2)]

    def load(checkpoint: int, deleted: list[bool]) -> None:
        batch = pa.RecordBatch.from_pydict(
            {
                "a": pa.array([value for value, _ in keys], arrow),
                "b": pa.array([number for _, number in keys], pa.int32()),
                DELETED: pa.array(deleted),
                SEQUENCE: pa.array(range(4), pa.int64()),
            }
        )
        found = subject.sink.part_writer(table)(name(checkpoint, channel="ods.keyed"), iter([batch]))
        subject.sink.commit([found], mark(checkpoint))  # type: ignore[list-item]

    load(1, [False] * 4)
    load(2, [False, True, False, False])
    found = {(row["a"], row["b"]) for row in subject.read("ods.keyed")}
    assert found == {keys[0], keys[2], keys[3]} and len(subject.read("ods.keyed")) == 3


@pytest.mark.parametrize("kind", [name for name in VALUES if name not in ("vector", "float", "double")])
def test_sink_keys_of_every_type_are_exact_and_paged(kind: str, subject: Subject) -> None:
    arrow, values = VALUES[kind]
    table = TargetTable(
        "ods.keyed", (TargetColumn("a", arrow, False), TargetColumn("b", pa.int32(), False)), ("a", "b")
    )
    subject.sink.ensure_table(table)
    values = [*(value[:60] if isinstance(value, bytes) else value for value in values), *MORE_KEYS.get(kind, ())]
    keys = [(value, number) for value in values for number in (-1, 2)]
    batch = pa.RecordBatch.from_pydict(
        {
            "a": pa.array([value for value, _ in keys], arrow),
            "b": pa.array([number for _, number in keys], pa.int32()),
            DELETED: pa.array([False] * len(keys)),
            SEQUENCE: pa.array(range(len(keys)), pa.int64()),
        }
    )
    load = subject.sink.part_writer(table)(name(1, channel="ods.keyed"), iter([batch]))
    assert load is not None and can_list_keys(subject.sink)
    subject.sink.commit([load], mark(1))
    found: list[tuple[Any, int]] = []
    after = None
    while (page := subject.sink.keys(table, after, 3)).num_rows:
        assert page.schema == pa.schema([pa.field("a", arrow), pa.field("b", pa.int32())])
        found += [(row["a"], row["b"]) for row in page.to_pylist()]
        after = page.slice(page.num_rows - 1)
    assert len(found) == len(keys) and set(found) == set(keys)
    # the page after a key that is deleted meanwhile is the same
    second = subject.sink.keys(table, None, 2)
    gone = batch.slice(keys.index(found[1]), 1).set_column(2, DELETED, pa.array([True]))
    load = subject.sink.part_writer(table)(name(2, channel="ods.keyed"), iter([gone]))
    subject.sink.commit([load], mark(2))  # type: ignore[list-item]
    again = subject.sink.keys(table, second.slice(1), 1).to_pylist()
    assert [(row["a"], row["b"]) for row in again] == found[2:3]


def test_delta_keeps_year_zero(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    table = TargetTable("ods.old", (TargetColumn("day", pa.date32(), False),), ("day",))
    sink.ensure_table(table)
    days = pa.array([-719528, 0], pa.int32()).cast(pa.date32())  # 0000-01-01 and 1970-01-01
    batch = pa.RecordBatch.from_pydict(
        {"day": days, DELETED: pa.array([False] * 2), SEQUENCE: pa.array([1, 2], pa.int64())}
    )
    for checkpoint in (1, 2):
        load = sink.part_writer(table)(name(checkpoint, channel="ods.old"), iter([batch]))
        assert load is not None
        sink.commit([load], mark(checkpoint))
    found = read_delta(tmp_path / "ods/old").column("day").cast(pa.int32()).to_pylist()
    assert sorted(found) == [-719528, 0]
    sink.close()
    shutil.rmtree(tmp_path / "ods")


def test_sink_commit_older_than_the_newest_checkpoint_raises(subject: Subject) -> None:
    subject.sink.acquire_ownership(mark(0), ["ods.orders"])
    newer = subject.prepare(name(5), (1, "five"))
    subject.sink.commit([newer], mark(5))
    subject.sink.commit([newer], mark(5))  # an equal checkpoint is a repeat
    older = subject.prepare(name(4), (2, "four"))
    with pytest.raises(SinkOwnershipError, match="checkpoint 5"):
        subject.sink.commit([older], mark(4))
    assert subject.sink.last_checkpoint("shop") == mark(5)
