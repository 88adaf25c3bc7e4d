"""What only the StarRocks sink does: modes, types, tables, and every fault of a load and a commit."""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import (
    ErrorAction,
    LoadRejected,
    PreparedLoadLost,
    SinkBusy,
    SinkLimitExceeded,
    SinkUnavailable,
    TargetMismatch,
    action_for,
)
from cdc.model.batch import PreparedLoad
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import LoadState, TargetColumn, TargetTable
from channels.sinks.starrocks import client as starrocks_client
from channels.sinks.starrocks import loader as starrocks_loader
from channels.sinks.starrocks.sink import StarrocksSink
from channels.sinks.starrocks.transaction_mode import why_not_shared
from channels.sinks.starrocks.types import parsed, starrocks_type
from channels.sinks.stream_load import checkpoints, loader, target_tables
from channels.sinks.stream_load.http import Unreachable
from tests.emulators.cases import (
    TABLE,
    USER,
    committed_once,
    mark_of,
    name_of,
    resize_name,
    write,
)
from tests.emulators.faults import Fault
from tests.emulators.starrocks.cases import MODES, emulator, sink_on
from tests.emulators.starrocks.emulator import StarrocksEmulator

ROWS = ((1, "a", False, 1), (2, "b", False, 2))
SEEN = [(1, "a"), (2, "b")]
REST = 'DISTRIBUTED BY HASH(id) PROPERTIES ("replication_num" = "1")'
COLUMNS = TargetTable(
    "ods.kinds",
    (
        TargetColumn("id", pa.decimal128(20, 0), False, "bigint unsigned"),
        TargetColumn("bytes", pa.binary(), False, "varbinary(40)"),
        TargetColumn("doc", pa.string(), True, "json"),
        TargetColumn("vector", pa.list_(pa.float32()), True, "vector(2)"),
        TargetColumn("moment", pa.timestamp("us"), False, "datetime(6)"),
        TargetColumn("text", pa.string(), False, "text", "with\ttab"),
    ),
    ("id",),
)


@pytest.fixture
def starrocks() -> Iterator[StarrocksEmulator]:
    with emulator() as starrocks:
        yield starrocks


@pytest.fixture(params=MODES)
def sink(request: pytest.FixtureRequest, starrocks: StarrocksEmulator) -> Iterator[StarrocksSink]:
    sink = sink_on(starrocks, request.param)
    sink.ensure_table(TABLE)
    yield sink
    sink.close()


@pytest.fixture
def single(starrocks: StarrocksEmulator) -> Iterator[StarrocksSink]:
    sink = sink_on(starrocks, "single")
    sink.ensure_table(TABLE)
    yield sink
    sink.close()


@pytest.fixture
def multi(starrocks: StarrocksEmulator) -> Iterator[StarrocksSink]:
    sink = sink_on(starrocks, "multi")
    sink.ensure_table(TABLE)
    yield sink
    sink.close()


def labels(*loads: PreparedLoad) -> list[str]:
    return [load.detail["label"] for load in loads]


def again(step: Callable[[int], Any], times: int = 12) -> Any:
    """Repeat ``step`` as the job does: if loads were lost, in a new checkpoint."""
    for number in range(times):
        try:
            return step(number)
        except (SinkUnavailable, PreparedLoadLost):
            continue
    raise AssertionError(f"{times} tries were not enough")


# ---- modes


@pytest.mark.parametrize(
    ("version", "databases", "wanted", "is_multi"),
    [
        ((4, 0, 7), ["ods"], "auto", True),
        ((4, 0, 6), ["ods"], "auto", False),
        ((3, 5, 9), ["ods"], "auto", False),
        ((4, 1, 0), ["ods", "crm"], "auto", False),
        ((4, 1, 0), ["ods"], "off", False),
    ],
)
def test_mode_depends_on_version_and_databases(
    version: tuple[int, int, int], databases: list[str], wanted: str, is_multi: bool
) -> None:
    with emulator(version=version) as starrocks:
        sink = sink_on(starrocks, databases=databases, multi_table=wanted)
        assert sink.tasks_in_order is is_multi
        told = [finding for finding in sink.check([TABLE]) if "one by one" in finding.problem]
        assert bool(told) is (not is_multi and wanted == "auto")
        assert not any(finding.fatal for finding in told)
        sink.close()


@pytest.mark.parametrize("version", [(2, 4, 0), (3, 5, 9), (4, 0, 2), (4, 0, 7)])
def test_sink_works_with_each_version(version: tuple[int, int, int]) -> None:
    with emulator(version=version, followers=1) as starrocks:
        sink = sink_on(starrocks, multi_table="auto", tables={"buckets": 1})
        sink.ensure_table(TABLE)
        load = write(sink, *ROWS)
        sink.commit([load], mark_of())
        gone = write(sink, (7, "gone", False, 9), name=name_of(2))
        sink.abort("shop", "0a1b2c3d", 1, 2)
        assert sink.state(gone) is LoadState.ABORTED
        assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
        assert sink.last_checkpoint("shop") == mark_of()
        assert not any(finding.fatal for finding in sink.check([TABLE]))
        sink.close()


def test_old_version_without_buckets_names_option() -> None:
    with emulator(version=(2, 4, 0)) as starrocks:
        sink = sink_on(starrocks, "single")
        with pytest.raises(TargetMismatch, match="BUCKETS") as caught:
            sink.ensure_table(TABLE)
        assert "sink.tables" in caught.value.hint
        sink.close()


def test_impossible_mode_is_refused() -> None:
    with emulator(version=(3, 3, 1)) as starrocks:
        sink = sink_on(starrocks, "multi")
        with pytest.raises(SinkLimitExceeded, match=r"3\.3\.1"):
            sink.ensure_table(TABLE)
        assert any(finding.fatal for finding in sink.check([TABLE]))
        sink.close()


BESIDE = {
    "shared data": ({"shared_data": True}, TABLE, "shared storage"),
    "table": ({}, replace(TABLE, name="ods.größen"), "größen"),
    "column": ({}, replace(TABLE, columns=(TABLE.columns[0], replace(TABLE.columns[1], name="größe"))), "größe"),
    "partitions": ({}, replace(TABLE, options={"partition": "PARTITION BY date_trunc('day', `id`)"}), "partition"),
}


@pytest.mark.parametrize(("settings", "table", "why"), BESIDE.values(), ids=list(BESIDE))
def test_unsafe_tables_are_committed_separately(settings: dict[str, Any], table: TargetTable, why: str) -> None:
    with emulator(**settings) as starrocks:
        insisting, sink = sink_on(starrocks), sink_on(starrocks, multi_table="auto")
        with pytest.raises(SinkLimitExceeded, match=why) as caught:
            insisting.ensure_table(table)
            insisting.part_writer(table)
        assert action_for(caught.value) is ErrorAction.PAUSE
        sink.acquire_ownership(mark_of(0), [table.name])
        sink.ensure_table(table)
        loads = [
            write(sink, *given, name=name_of(task=task, channel=table.name), table=table)
            for task, given in enumerate((ROWS, [(1, None, True, 3)], [(1, "back", False, 4)]))
        ]
        sink.commit(loads, mark_of())
        assert starrocks.rows(f"SELECT * FROM {table.name}") == [(1, "back"), (2, "b")]
        for asked, is_fatal in ((sink, False), (insisting, True)):
            (told,) = [finding for finding in asked.check([table]) if "one by one" in finding.problem]
            assert why in told.problem and told.fatal is is_fatal
        for each in (insisting, sink):
            each.close()


@pytest.mark.parametrize(
    ("clause", "is_shared"),
    [
        ("", True),
        ('PARTITION BY RANGE(`day`)\n(PARTITION p1 VALUES [("2024-01-01"), ("2024-02-01")))', True),
        ("PARTITION BY LIST(`city`)(\n  PARTITION p1 VALUES IN ('Köln')\n)", True),
        ("PARTITION BY date_trunc('day', `day`)", False),
        ("PARTITION BY (`city`)", False),
        ("PARTITION BY `city`,`day`", False),
        ('COMMENT "größe \\"PARTITION BY (city)\\""', True),
    ],
)
def test_table_with_existing_partitions_is_shared(clause: str, is_shared: bool) -> None:
    statement = f"CREATE TABLE `orders` (\n  `id` bigint NOT NULL\n) ENGINE=OLAP\nPRIMARY KEY(`id`)\n{clause}\n"
    assert (why_not_shared("ods.orders", statement) is None) is is_shared


def test_load_of_unsafe_table_is_refused(starrocks: StarrocksEmulator, multi: StarrocksSink) -> None:
    """A replay can load before ``ensure_table``, and a table can be dropped and created again."""
    odd, single = replace(BESIDE["column"][1], name="ods.odd"), sink_on(starrocks, "single")
    single.ensure_table(odd)
    single.close()
    with pytest.raises(SinkLimitExceeded, match="multi_table: off"):
        write(multi, *ROWS, name=name_of(channel=odd.name), table=odd)
    starrocks.execute("DROP TABLE ods.orders")
    starrocks.execute(
        "CREATE TABLE ods.orders (id BIGINT NOT NULL, name VARCHAR(40)) PRIMARY KEY(id)\n"
        f"PARTITION BY date_trunc('day', id)\n{REST}"
    )
    with pytest.raises(TargetMismatch, match="multi_table: off"):
        multi.commit([write(multi, *ROWS)], mark_of())


def test_later_unsafe_table_keeps_mode_of_run(starrocks: StarrocksEmulator) -> None:
    """A new table of a pattern joins a run that has loads already, and a checkpoint has only one mode."""
    late = BESIDE["partitions"][1]
    late = replace(late, name="ods.late")
    sink, anew = (sink_on(starrocks, multi_table="auto") for _ in range(2))
    sink.ensure_table(TABLE)
    load = write(sink, *ROWS)
    with pytest.raises(SinkLimitExceeded, match=r"This run commits all tables") as refused:
        sink.ensure_table(late)
    assert refused.value.hint == (
        "Set sink.multi_table: off, then `cdc resume NAME`: each table is then committed separately."
    )
    sink.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
    for table in (TABLE, late):
        anew.ensure_table(table)
    assert not anew.tasks_in_order
    for each in (sink, anew):
        each.close()


def test_claim_adds_existing_tables_to_mode(starrocks: StarrocksEmulator) -> None:
    table = BESIDE["partitions"][1]
    before, after = (sink_on(starrocks, multi_table="auto") for _ in range(2))
    before.ensure_table(table)
    after.acquire_ownership(mark_of(0), [table.name, "ods.*"])
    assert not after.tasks_in_order
    for sink in (before, after):
        sink.close()


def test_tables_and_checkpoint_are_one_transaction(starrocks: StarrocksEmulator, multi: StarrocksSink) -> None:
    items = TargetTable("ods.items", TABLE.columns, TABLE.key)
    multi.ensure_table(items)
    loads = [
        write(multi, *ROWS),
        write(multi, *ROWS, name=name_of(channel="ods.items"), table=items),
        write(multi, (2, "c", False, 3), name=name_of(task=1)),
    ]
    starrocks.transactions.hold_publish = True
    multi._visibility.timeout_s = 0.1
    for _ in range(2):
        with pytest.raises(SinkUnavailable, match="not visible yet"):
            multi.commit(loads, mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == starrocks.rows("SELECT * FROM ods.items") == []
    assert multi.last_checkpoint("shop") is None
    starrocks.transactions.publish()
    multi.commit(loads, mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == [(1, "a"), (2, "c")]
    assert starrocks.rows("SELECT * FROM ods.items") == SEEN
    assert multi.last_checkpoint("shop") == mark_of()
    assert len(set(labels(*loads))) == 1
    assert len(starrocks.loads()) == 1


def test_commit_of_incomplete_transaction_loses_loads(starrocks: StarrocksEmulator, multi: StarrocksSink) -> None:
    first = write(multi, *ROWS)
    starrocks.multi.forget()
    second = write(multi, (3, "c", False, 3), name=name_of(task=1))
    assert labels(first) == labels(second)
    with pytest.raises(PreparedLoadLost) as caught:
        multi.commit([first, second], mark_of())
    assert len(caught.value.context["labels"]) == 2  # type: ignore[arg-type]
    assert starrocks.rows("SELECT * FROM ods.orders") == []
    loads = [write(multi, *ROWS), write(multi, (3, "c", False, 3), name=name_of(task=1))]
    assert labels(loads[0]) != labels(first), "a late load of the lost one could join"
    multi.commit(loads, mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == [*SEEN, (3, "c")]


def test_commit_without_loads_in_transaction_is_refused(starrocks: StarrocksEmulator, multi: StarrocksSink) -> None:
    """A late executor has begun the label again after all of its loads were lost."""
    load = write(multi, *ROWS)
    starrocks.multi.forget()
    write(multi, *ROWS, name=name_of(task=1))
    with pytest.raises(PreparedLoadLost):
        multi.commit([load], mark_of())
    assert multi.last_checkpoint("shop") is None
    assert starrocks.rows("SELECT * FROM ods.orders") == []


def test_cancelled_label_is_replayed_by_next_sink(starrocks: StarrocksEmulator) -> None:
    """A new sink counts losses from 0, and uses labels that the previous one has used."""
    starrocks.execute("CREATE DATABASE ods")
    first, second = (sink_on(starrocks, tries=1) for _ in range(2))
    first.ensure_table(TABLE)
    resize_name(starrocks, 3)
    load = write(first, (1, "too long", False, 1))
    with pytest.raises(LoadRejected):
        first.commit([load], mark_of())
    resize_name(starrocks, 40)
    with pytest.raises(SinkUnavailable, match="already been cancelled"):
        write(second, (1, "too long", False, 1))
    with pytest.raises(PreparedLoadLost):
        second.commit([load], mark_of())
    second.commit([write(second, (1, "too long", False, 1))], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == [(1, "too long")]
    for sink in (first, second):
        sink.close()


def test_single_loads_are_committed_after_upgrade(starrocks: StarrocksEmulator) -> None:
    old, new = sink_on(starrocks, "single"), sink_on(starrocks, "multi")
    old.ensure_table(TABLE)
    load = write(old, *ROWS)
    new.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
    old.close()
    new.close()


def test_lost_load_is_replayed_in_other_mode(starrocks: StarrocksEmulator) -> None:
    old, new = sink_on(starrocks, "single"), sink_on(starrocks, "multi")
    items = TargetTable("ods.items", TABLE.columns, TABLE.key)
    for table in (TABLE, items):
        old.ensure_table(table)
    kept, lost = write(old, *ROWS), write(old, *ROWS, name=name_of(channel="ods.items"), table=items)
    starrocks.transactions.expire(labels(lost)[0])
    with pytest.raises(PreparedLoadLost) as caught:
        new.commit([kept, lost], mark_of())
    assert caught.value.context["labels"] == labels(lost)
    again = write(new, *ROWS, name=name_of(channel="ods.items", attempt=1), table=items)
    for _ in range(2):
        new.commit([kept, again], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == starrocks.rows("SELECT * FROM ods.items") == SEEN
    assert new.last_checkpoint("shop") == mark_of()
    old.close()
    new.close()


# ---- faults


@pytest.mark.parametrize("place", ["begin", "load", "prepare"])
@pytest.mark.parametrize(
    "fault", [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.SLOW, Fault.ERROR_DONE, Fault.ERROR]
)
@pytest.mark.parametrize("times", [1, 2])
def test_load_with_fault_is_loaded_once(
    starrocks: StarrocksEmulator, sink: StarrocksSink, place: str, fault: Fault, times: int
) -> None:
    if sink.tasks_in_order and place == "prepare":
        place = "load"  # there is no prepare in multi mode
    starrocks.faults.order(place, fault, times=times, match="cdc-", text="quorum is lost")

    def step(number: int) -> PreparedLoad:
        load = write(sink, *ROWS, name=name_of(1 + number))
        sink.commit([load], mark_of(1 + number))
        return load

    load = again(step)
    assert starrocks.faults.struck
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
    assert sink.state(load) is LoadState.COMMITTED
    committed_once(starrocks, labels(load))
    assert sum(each["status"] == "VISIBLE" for each in starrocks.loads()) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.SLOW, Fault.ERROR_DONE, Fault.ERROR,
        Fault.PUBLISH_TIMEOUT,
    ],
)  # fmt: skip
def test_commit_with_fault_happens_once(starrocks: StarrocksEmulator, sink: StarrocksSink, fault: Fault) -> None:
    starrocks.faults.order("commit", fault, times=2)
    loads = [write(sink, *ROWS), write(sink, (2, "c", False, 3), name=name_of(task=1))]
    again(lambda _: sink.commit(loads, mark_of()))
    assert starrocks.faults.struck
    assert starrocks.rows("SELECT * FROM ods.orders") == [(1, "a"), (2, "c")]
    assert sink.last_checkpoint("shop") == mark_of()
    committed_once(starrocks, set(labels(*loads)))


def test_cut_body_is_not_continued_by_next_load(starrocks: StarrocksEmulator, single: StarrocksSink) -> None:
    starrocks.faults.order("load", Fault.RESET, times=2)
    load = write(single, *ROWS)
    single.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
    assert [each["status"] for each in starrocks.loads()] == ["ABORTED", "ABORTED", "VISIBLE"]


def test_unanswered_prepare_waits_before_the_state_is_read(
    starrocks: StarrocksEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(starrocks_loader, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append))
    sink = sink_on(starrocks, "single", pause_s=0.2)
    sink.ensure_table(TABLE)
    ask = starrocks_client.StarrocksHttp.ask

    def drop_prepare(client: Any, operation: str, *arguments: Any, **more: Any) -> Any:
        reply = ask(client, operation, *arguments, **more)
        if operation == "prepare":
            raise Unreachable("no answer")
        return reply

    monkeypatch.setattr(starrocks_client.StarrocksHttp, "ask", drop_prepare)
    load = write(sink, *ROWS)
    assert sink.state(load) is LoadState.PREPARED
    assert len(pauses) == 5 and sum(pauses) == pytest.approx(6.2, rel=0.25)
    sink.close()


def test_cut_load_loses_whole_transaction(starrocks: StarrocksEmulator, multi: StarrocksSink) -> None:
    first = write(multi, *ROWS)
    starrocks.faults.order("load", Fault.RESET)
    with pytest.raises(SinkUnavailable):
        write(multi, (3, "c", False, 3), name=name_of(task=1))
    with pytest.raises(PreparedLoadLost):
        multi.commit([first], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == []


def test_begin_without_answer_is_retried(starrocks: StarrocksEmulator, multi: StarrocksSink) -> None:
    """Without an answer of a frontend no byte of the body is sent, so the transaction has not changed."""
    starrocks.faults.order("begin", Fault.DROP_ANSWER, times=2)
    load = again(lambda number: write(multi, *ROWS, name=name_of(1 + number)))
    multi.commit([load], mark_of(load.name.checkpoint))
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN


def test_load_waits_for_other_part_of_its_table(starrocks: StarrocksEmulator, multi: StarrocksSink) -> None:
    """Readers of a snapshot step load into one table at a time; a busy answer must not roll back the transaction."""
    starrocks.faults.order("load", Fault.SLOW, seconds=0.6)
    with ThreadPoolExecutor(3) as threads:
        parts = [
            threads.submit(write, multi, (number, "a", False, number), name=name_of(task=number)) for number in range(3)
        ]
        loads = [part.result() for part in parts]
    assert len({load.detail["transaction"] for load in loads}) == 1
    multi.commit(loads, mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders ORDER BY id") == [(0, "a"), (1, "a"), (2, "a")]


def test_load_with_endless_other_part_is_unavailable(
    starrocks: StarrocksEmulator, multi: StarrocksSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starrocks_loader, "_BUSY_TIMEOUT_S", 0.3)
    starrocks.faults.order("load", Fault.SLOW, seconds=4)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(write, multi, *ROWS)
        while not starrocks.faults.struck:
            time.sleep(0.01)
        with pytest.raises(SinkUnavailable, match=r"Another part of ods\.orders is still being loaded"):
            write(multi, (3, "c", False, 3), name=name_of(task=1))
    with pytest.raises(PreparedLoadLost):  # the whole transaction was rolled back
        multi.commit([first.result()], mark_of())


@pytest.mark.parametrize("loss", ["expire", "forget"])
def test_lost_load_is_named_and_replayed(starrocks: StarrocksEmulator, sink: StarrocksSink, loss: str) -> None:
    loads = [write(sink, (number, "a", False, number), name=name_of(task=number)) for number in range(3)]
    getattr(starrocks.transactions, loss)(labels(loads[1])[0])
    if sink.tasks_in_order and loss == "forget":
        starrocks.restart_frontend()
    with pytest.raises(PreparedLoadLost) as caught:
        sink.commit(loads, mark_of())
    assert len(caught.value.context["labels"]) == (3 if sink.tasks_in_order else 1)  # type: ignore[arg-type]
    assert sink.last_checkpoint("shop") is None
    names = [name_of(task=number, attempt=1) for number in range(3)]
    anew = [write(sink, (number, "a", False, 10 + number), name=name) for number, name in enumerate(names)]
    sink.commit(anew, mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == [(0, "a"), (1, "a"), (2, "a")]
    committed_once(starrocks, set(labels(*anew)))


def test_commit_of_forgotten_label_is_a_repeat(starrocks: StarrocksEmulator, sink: StarrocksSink) -> None:
    load = write(sink, *ROWS)
    sink.commit([load], mark_of())
    starrocks.transactions.forget()
    starrocks.restart_frontend()
    assert sink.state(load) is LoadState.COMMITTED
    sink.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN


def test_commit_with_few_kept_labels_succeeds() -> None:
    with emulator(label_keep_max_num=1) as starrocks:
        sink = sink_on(starrocks, "single")
        sink.ensure_table(TABLE)
        loads = [write(sink, (number, "a", False, number), name=name_of(task=number)) for number in range(4)]
        sink.commit(loads, mark_of())
        sink.commit(loads, mark_of())
        assert len(starrocks.rows("SELECT * FROM ods.orders")) == 4
        sink.close()


def test_frontend_restart_keeps_prepared_load(starrocks: StarrocksEmulator, single: StarrocksSink) -> None:
    load = write(single, *ROWS)
    starrocks.restart_frontend()
    single.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN


def test_backend_restart_loses_open_transaction(starrocks: StarrocksEmulator, multi: StarrocksSink) -> None:
    load = write(multi, *ROWS)
    for number in range(2):
        starrocks.restart_backend(number)
    with pytest.raises(PreparedLoadLost):
        multi.commit([load], mark_of())


def test_load_avoids_stopped_backend(starrocks: StarrocksEmulator, sink: StarrocksSink) -> None:
    starrocks.stop_backend(0)
    loads = [write(sink, (number, "a", False, number), name=name_of(task=number)) for number in range(4)]
    sink.commit(loads, mark_of())
    assert starrocks.rows("SELECT count(*) FROM ods.orders") == [(4,)]


def test_commit_with_wrong_ok_loses_loads() -> None:
    with emulator(version=(4, 0, 7), false_ok=True, unknown_before_commit=True) as starrocks:
        sink = sink_on(starrocks)
        sink.ensure_table(TABLE)
        load = write(sink, *ROWS)
        for number in range(2):
            starrocks.restart_backend(number)
        with pytest.raises(PreparedLoadLost):
            sink.commit([load], mark_of())
        assert sink.last_checkpoint("shop") is None
        sink.close()


def test_shared_transaction_with_half_a_mark_is_replayed(starrocks: StarrocksEmulator, multi: StarrocksSink) -> None:
    """The next row of a mark would be taken for the end of the one that was cut off, and be rejected."""
    load = write(multi, *ROWS)
    starrocks.faults.order("load", Fault.RESET)
    starrocks.faults.order("rollback", Fault.HTTP_500)
    with pytest.raises(SinkUnavailable):
        multi.commit([load], mark_of())
    with pytest.raises(PreparedLoadLost):
        multi.commit([load], mark_of())
    assert multi.state(load) is LoadState.ABORTED


def test_too_many_versions_delay_load(starrocks: StarrocksEmulator, sink: StarrocksSink) -> None:
    starrocks.faults.order("load", Fault.ERROR)
    with pytest.raises(SinkBusy):
        write(sink, *ROWS)
    load = write(sink, *ROWS, name=name_of(2))
    sink.commit([load], mark_of(2))
    committed_once(starrocks, labels(load))


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.HTTP_500])
def test_abort_ends_only_loads_of_its_checkpoint(
    starrocks: StarrocksEmulator, sink: StarrocksSink, fault: Fault
) -> None:
    kept = [write(sink, *ROWS, name=name_of(1)), write(sink, *ROWS, name=name_of(21))]
    gone = [write(sink, *ROWS, name=name_of(2, task)) for task in range(3)]
    starrocks.faults.order("rollback", fault)
    for _ in range(2):
        again(lambda _: sink.abort("shop", "0a1b2c3d", 1, 2))
    assert {sink.state(load) for load in gone} == {LoadState.ABORTED}
    assert {sink.state(load) for load in kept} == {LoadState.PREPARED}


def test_abort_finds_the_shared_transactions_that_another_process_has_begun(
    starrocks: StarrocksEmulator, multi: StarrocksSink
) -> None:
    lost = write(multi, *ROWS)
    for number in range(2):
        starrocks.restart_backend(number)
    with pytest.raises(PreparedLoadLost):
        multi.commit([lost], mark_of())
    load = write(multi, *ROWS)
    assert labels(lost) != labels(load)
    other = sink_on(starrocks)
    other.ensure_table(TABLE)
    other.abort("shop", "0a1b2c3d", 1, 1)
    other.close()
    assert multi.state(load) is LoadState.ABORTED


def test_first_commit_aborts_loads_of_earlier_runs(starrocks: StarrocksEmulator, single: StarrocksSink) -> None:
    left = write(single, *ROWS, name=name_of(7, fence=0))
    load = write(single, *ROWS)
    single.commit([load], mark_of())
    assert single.state(left) is LoadState.ABORTED
    assert single.state(load) is LoadState.COMMITTED


def test_check_without_operate_names_grant(starrocks: StarrocksEmulator) -> None:
    starrocks.settings.operators.discard(USER[0])
    sink = sink_on(starrocks, "single", backends=[f"127.0.0.1:{each.port}" for each in starrocks.backends])
    sink.ensure_table(TABLE)
    sink.abort("shop", "0a1b2c3d", 1, 1)
    (finding,) = sink.check([TABLE])
    assert "GRANT OPERATE" in finding.hint and not finding.fatal
    sink.close()


def test_commit_waits_for_publishing(starrocks: StarrocksEmulator, sink: StarrocksSink) -> None:
    load = write(sink, *ROWS)
    starrocks.transactions.hold_publish = True
    publisher = threading.Timer(0.3, starrocks.transactions.publish)
    started = time.monotonic()
    publisher.start()
    sink.commit([load], mark_of())
    publisher.join()
    assert time.monotonic() - started >= 0.3
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN


def test_running_commit_is_awaited(
    starrocks: StarrocksEmulator, multi: StarrocksSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another load during the commit would cancel it."""
    load = write(multi, *ROWS)
    starrocks.multi.hold_commits = True
    with monkeypatch.context() as patch:
        patch.setattr(starrocks_client, "_ASK_S", 0.3)
        patch.setattr(loader, "STATE_TIMEOUT_S", 0.3)
        for _ in range(2):
            with pytest.raises(SinkUnavailable, match="still running"):
                multi.commit([load], mark_of())
        with pytest.raises(SinkUnavailable, match="still running"):
            multi.abort("shop", "0a1b2c3d", 1, 1)
    starrocks.multi.hold_commits = False
    again(lambda _: multi.commit([load], mark_of()), times=2)
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
    committed_once(starrocks, labels(load))
    assert len(starrocks.loads()) == 1


def test_pending_rollback_is_awaited(
    starrocks: StarrocksEmulator, multi: StarrocksSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "STATE_TIMEOUT_S", 0.3)
    load = write(multi, *ROWS)
    starrocks.multi.hold_aborts = True
    with pytest.raises(SinkUnavailable, match="rollback pending"):
        multi.abort("shop", "0a1b2c3d", 1, 1)
    starrocks.multi.hold_aborts = False
    multi.abort("shop", "0a1b2c3d", 1, 1)
    assert multi.state(load) is LoadState.ABORTED


def test_older_run_keeps_newer_checkpoint(starrocks: StarrocksEmulator, sink: StarrocksSink) -> None:
    sink.commit([write(sink, *ROWS)], mark_of(5, sequence=500))
    old = mark_of(4, sequence=400)
    sink.commit([write(sink, *ROWS, name=name_of(4, fence=0))], type(old)(**{**_fields(old), "fence": 0}))
    assert sink.last_checkpoint("shop") == mark_of(5, sequence=500)


def test_commit_after_many_runs_reads_one_row(single: StarrocksSink, monkeypatch: pytest.MonkeyPatch) -> None:
    for fence in range(1, 6):
        mark = replace(mark_of(fence), fence=fence)
        single.acquire_ownership(mark, [TABLE.name])
        single.commit([write(single, *ROWS, name=name_of(fence, fence=fence))], mark)
    asked, told = single._sql.ask_synced, []

    def ask(statement: str, values: tuple[Any, ...] | None = None) -> list[dict[str, Any]]:
        rows = asked(statement, values)
        told.extend(rows if "cdc_checkpoints` WHERE" in statement else ())
        return rows

    monkeypatch.setattr(single._sql, "ask_synced", ask)
    single._checkpoints.check_commit(mark)
    assert [row["fence"] for row in told] == [5] and single.last_checkpoint("shop") == mark


def _fields(mark: Any) -> dict[str, Any]:
    return {name: getattr(mark, name) for name in type(mark).__dataclass_fields__}


# ---- rows and types


def test_bytes_json_and_vectors_are_converted(starrocks: StarrocksEmulator, sink: StarrocksSink) -> None:
    sink.ensure_table(COLUMNS)
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 1)
    schema = pa.schema([(column.name, column.arrow) for column in COLUMNS.columns])
    data = {
        "id": [2**64 - 1, 7, 8], "bytes": [b"\x00\xff", b"", None], "doc": ['{"a": [1, "x"]}', None, None],
        "vector": [[1.5, -2.0], None, None], "moment": [moment, moment, None], "text": ["a\tb\x01\\N\n", "\\N", None],
    }  # fmt: skip
    rows = pa.RecordBatch.from_pydict(data, schema)
    rows = rows.append_column(DELETED, pa.array([False, False, True])).append_column(SEQUENCE, pa.array([1, 2, 3]))
    load = sink.part_writer(COLUMNS)(name_of(channel="ods.kinds"), iter([rows]))
    assert load is not None
    sink.commit([load], mark_of())
    _, found = starrocks.execute("SELECT id, bytes, doc, vector, moment, text FROM ods.kinds ORDER BY id")
    assert [bytes(row[1]) for row in found] == [b"", b"\x00\xff"]
    assert json.loads(found[1][2]) == {"a": [1, "x"]}
    assert list(found[1][3]) == [1.5, -2.0]
    assert [(int(row[0]), row[4], row[5]) for row in found] == [
        (7, moment, "\\N"), (2**64 - 1, moment, "a\tb\x01\\N\n")
    ]  # fmt: skip


def test_long_bytes_arrive(starrocks: StarrocksEmulator, sink: StarrocksSink) -> None:
    blob = TargetColumn("data", pa.binary(), True, "longblob")
    table = TargetTable("ods.files", (TABLE.columns[0], blob), ("id",))
    sink.ensure_table(table)
    data = [b"\xab" * (600 << 10), b"short"]
    rows = pa.record_batch(
        {"id": pa.array([1, 2], pa.int64()), "data": data, DELETED: [False, False], SEQUENCE: [1, 2]}
    )
    load = sink.part_writer(table)(name_of(channel=table.name), iter([rows]))
    assert load is not None
    sink.commit([load], mark_of())
    assert [bytes(row[1]) for row in starrocks.rows("SELECT * FROM ods.files")] == data


def test_long_json_document_is_rejected_before_load(starrocks: StarrocksEmulator, sink: StarrocksSink) -> None:
    doc = TargetColumn("doc", pa.string(), True, "json")
    table = TargetTable("ods.docs", (TABLE.columns[0], doc), ("id",))
    sink.ensure_table(table)
    rows = pa.record_batch(
        {"id": [1, 7], "doc": ['{"a": 1}', f'"{"x" * (16 << 20)}"'], DELETED: [False, False], SEQUENCE: [1, 2]}
    )
    with pytest.raises(LoadRejected, match="column doc") as caught:
        sink.part_writer(table)(name_of(channel=table.name), iter([rows]))
    assert caught.value.context["keys"] == [{"id": 7}] and not starrocks.loads()
    load = sink.part_writer(table)(name_of(channel=table.name), iter([rows.slice(0, 1)]))
    assert load is not None
    sink.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.docs") == [(1, '{"a": 1}')]


@pytest.mark.parametrize("end", ["", "\x01"], ids=["csv", "json"])
def test_json_documents_of_every_kind_keep_their_value(
    starrocks: StarrocksEmulator, sink: StarrocksSink, end: str
) -> None:
    documents = ["1", "-1.5", "true", " false", '"x"', '"null"', "[]", "{}", '{"a": [1, null]}']
    for nullable in (True, False):
        columns = (
            TABLE.columns[0],
            TargetColumn("doc", pa.string(), nullable, "json"),
            TargetColumn("note", pa.string(), True, "text"),
        )
        table = TargetTable(f"ods.docs{nullable:d}", columns, ("id",))
        sink.ensure_table(table)
        count = len(documents)
        rows = pa.record_batch(
            {
                "id": [*range(count + 2)],
                "doc": [*documents, "null", None],  # of deleted rows
                "note": [f"text{end}"] * (count + 2),
                DELETED: [False] * count + [True, True],
                SEQUENCE: [*range(count + 2)],
            }
        )
        load = sink.part_writer(table)(name_of(channel=table.name, checkpoint=1 + nullable), iter([rows]))
        assert load is not None
        sink.commit([load], mark_of(checkpoint=1 + nullable))
        found = [json.loads(doc) for _, doc in starrocks.rows(f"SELECT id, doc FROM {table.name} ORDER BY id")]
        assert list(map(repr, found)) == [repr(json.loads(document)) for document in documents]


def test_text_of_two_documents_is_rejected_before_load(starrocks: StarrocksEmulator) -> None:
    table = TargetTable("ods.docs", (TABLE.columns[0], TargetColumn("doc", pa.string(), True, "json")), ("id",))
    sink = sink_on(starrocks, "single", parses_documents=True)
    sink.ensure_table(table)
    load = write(sink, (1, "{}", False, 1), (2, "[1]", False, 2), table=table)
    sink.commit([load], mark_of())
    with pytest.raises(LoadRejected, match="is not a JSON document"):
        write(sink, (1, '{"a": 1}, {"b": 2}', False, 3), name=name_of(2), table=table)
    assert starrocks.rows("SELECT id, doc FROM ods.docs") == [(1, "{}"), (2, "[1]")]
    sink.close()


def test_json_document_null_is_rejected_before_load(starrocks: StarrocksEmulator, sink: StarrocksSink) -> None:
    table = TargetTable("ods.docs", (TABLE.columns[0], TargetColumn("doc", pa.string(), True, "json")), ("id",))
    sink.ensure_table(table)
    rows = pa.record_batch({"id": [1, 7], "doc": [None, "null"], DELETED: [False, False], SEQUENCE: [1, 2]})
    with pytest.raises(LoadRejected, match="the JSON value null") as caught:
        sink.part_writer(table)(name_of(channel=table.name), iter([rows]))
    assert caught.value.context["keys"] == [{"id": 7}] and not starrocks.loads()


def test_long_key_names_setting(starrocks: StarrocksEmulator, single: StarrocksSink) -> None:
    table = TargetTable("ods.keyed", (TargetColumn("id", pa.string(), False, "varchar(200)"),), ("id",))
    single.ensure_table(table)
    rows = pa.record_batch({"id": ["x" * 129], DELETED: [False], SEQUENCE: [1]})
    with pytest.raises(LoadRejected, match="primary_key_limit_size"):
        single.part_writer(table)(name_of(channel="ods.keyed"), iter([rows]))


# ---- tables


def test_ddl_is_statement_of_created_table(starrocks: StarrocksEmulator, single: StarrocksSink) -> None:
    text = single.ddl(COLUMNS)
    for line in ("`id` LARGEINT NOT NULL", "`bytes` VARBINARY NOT NULL", "`doc` JSON NULL", "PRIMARY KEY (`id`)",
                 "`text` VARCHAR(1048576) NOT NULL COMMENT 'with\ttab'", "`vector` ARRAY<FLOAT> NULL"):  # fmt: skip
        assert line in text
    single.ensure_table(COLUMNS)
    assert single.describe(COLUMNS) == ()
    assert single.ddl(COLUMNS).count("BUCKETS") == 0


@pytest.mark.parametrize(
    ("arrow", "source", "key", "expected"),
    [
        (pa.string(), "varchar(20)", False, "VARCHAR(80)"),
        (pa.string(), "varchar(16383)", False, "VARCHAR(65532)"),
        (pa.string(), "text", False, "VARCHAR(1048576)"),
        (pa.string(), "time(6)", False, "VARCHAR(17)"),
        (pa.decimal128(12, 2), "decimal(12,2)", True, "VARCHAR(14)"),
        (pa.decimal128(20, 0), "bigint unsigned", True, "LARGEINT"),
        (pa.binary(), "binary(16)", True, "VARCHAR(32)"),
        (pa.binary(), "blob", False, "VARBINARY"),
        (pa.timestamp("us"), "datetime(3)", False, "DATETIME"),
        (pa.int64(), "bit(1)", False, "BOOLEAN"),
    ],
)
def test_source_type_has_expected_starrocks_type(arrow: pa.DataType, source: str, key: bool, expected: str) -> None:
    assert str(starrocks_type(TargetColumn("c", arrow, True, source), key=key)) == expected


def test_string_holds_only_65533_bytes() -> None:
    assert not parsed("string").holds(parsed("varchar(1048576)"))
    assert parsed("varchar(65533)").holds(parsed("string"))
    with pytest.raises(TypeError, match="does not support DOUBLE"):
        starrocks_type(TargetColumn("c", pa.float64(), False, "double"), key=True)


def test_column_with_reserved_name_is_refused(single: StarrocksSink) -> None:
    table = TargetTable("ods.t", (*TABLE.columns, TargetColumn("__op", pa.int8(), True, "tinyint")), TABLE.key)
    for check in (single.ensure_table, single.part_writer):  # a replay can load before ``ensure_table``
        with pytest.raises(TargetMismatch, match="reserved name"):
            check(table)


# ---- environment


def test_check_with_http_auth_needs_no_more_rights() -> None:
    with emulator(http_auth=True) as starrocks:
        sink = sink_on(starrocks)
        assert sink.check([TABLE]) == (), "there is no database yet"
        sink.ensure_table(TABLE)
        assert sink.check([TABLE]) == ()
        sink.close()


def test_denied_statement_names_grant(starrocks: StarrocksEmulator, single: StarrocksSink) -> None:
    single.acquire_ownership(mark_of(0), [TABLE.name])
    text = "Access denied; you need (at least one of) the SELECT privilege(s) on TABLE cdc_checkpoints"
    starrocks.faults.order("sql", Fault.ERROR, match="SELECT * FROM", text=text)
    with pytest.raises(TargetMismatch, match="GRANT SELECT"):
        single.last_checkpoint("shop")


def test_abort_keeps_load_that_waits_for_publishing(
    starrocks: StarrocksEmulator, single: StarrocksSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    single._visibility.timeout_s = 0.1
    monkeypatch.setattr(checkpoints, "VISIBLE_TIMEOUT_S", 0.1)
    load = write(single, *ROWS)
    starrocks.transactions.hold_publish = True
    with pytest.raises(SinkUnavailable, match="not visible yet"):
        single.commit([load], mark_of())
    single.abort("shop", "0a1b2c3d", 1, 1)
    assert single.state(load) is LoadState.COMMITTED


@pytest.mark.parametrize(
    ("change", "look_s", "says"),
    [
        ("DROP COLUMN name", 0.0, "column name is missing"),
        ("ADD COLUMN other INT NOT NULL", 60.0, "no default value. column: other"),  # the load reports it
    ],
)
def test_change_of_columns_during_run_is_found(
    starrocks: StarrocksEmulator, sink: StarrocksSink, monkeypatch: pytest.MonkeyPatch,
    change: str, look_s: float, says: str,
) -> None:  # fmt: skip
    """The server accepts a load with columns that the table lacks, and drops their values without an error."""
    sink.commit([write(sink, *ROWS)], mark_of())
    monkeypatch.setattr(target_tables, "CHECK_INTERVAL_S", look_s)
    starrocks.execute(f"ALTER TABLE ods.orders {change}")
    with pytest.raises(TargetMismatch, match=says) as caught:
        write(sink, (3, "c", False, 3), name=name_of(2))
    assert action_for(caught.value) is ErrorAction.PAUSE


def test_commit_of_dropped_table_succeeds_without_its_rows(starrocks: StarrocksEmulator, sink: StarrocksSink) -> None:
    """The server reports success, so that the Committer compares the identities of the tables."""
    load = write(sink, *ROWS)
    assert sink.identities(["ods.orders"]) == {
        "ods.orders": sink.target_states("job", "i", ["ods.orders"])["ods.orders"].identity
    }
    starrocks.execute("DROP TABLE ods.orders")
    sink.commit([load], mark_of())
    assert sink.identities(["ods.orders"]) == {} and sink.state(load) is LoadState.COMMITTED


def test_commit_of_lost_load_aborts_rest_of_attempt(starrocks: StarrocksEmulator, single: StarrocksSink) -> None:
    loads = [write(single, (number, "a", False, number), name=name_of(task=number)) for number in range(3)]
    starrocks.transactions.expire(labels(loads[0])[0])
    with pytest.raises(PreparedLoadLost):
        single.commit(loads, mark_of())
    assert {single.state(load) for load in loads} == {LoadState.ABORTED}
    assert starrocks.rows("SELECT * FROM ods.orders") == []
