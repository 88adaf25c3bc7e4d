"""What only the StarRocks sink promises: modes, types, tables and their mends, every fault of a load and a commit."""

from __future__ import annotations

import datetime
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdc.batch import PreparedLoad
from cdc.errors import (
    Answer,
    CdcError,
    LoadLost,
    LoadRejected,
    SinkBusy,
    SinkSetting,
    SinkUnavailable,
    TargetMismatch,
    decide,
)
from cdc.schema import DELETED, SEQUENCE
from channels.sinks import cluster_sink, starrocks_client, starrocks_load
from channels.sinks.base import LoadState, TargetColumn, TargetTable
from channels.sinks.starrocks import StarrocksSink
from channels.sinks.starrocks_mode import why_not_shared
from channels.sinks.starrocks_types import parsed, starrocks_type
from tests.servers.olap_cases import (
    TABLE,
    UNTYPED,
    USER,
    committed_once,
    gives_up_loads_of_a_gone_column,
    mark_of,
    name_of,
    rows_of,
    write,
)
from tests.servers.olap_faults import Fault
from tests.servers.starrocks.cases import MODES, sink_on, stand_in
from tests.servers.starrocks.stand_in import StarrocksStandIn

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
def starrocks() -> Iterator[StarrocksStandIn]:
    with stand_in() as starrocks:
        yield starrocks


@pytest.fixture(params=MODES)
def sink(request: pytest.FixtureRequest, starrocks: StarrocksStandIn) -> Iterator[StarrocksSink]:
    sink = sink_on(starrocks, request.param)
    sink.ensure_table(TABLE)
    yield sink
    sink.close()


@pytest.fixture
def single(starrocks: StarrocksStandIn) -> Iterator[StarrocksSink]:
    sink = sink_on(starrocks, "single")
    sink.ensure_table(TABLE)
    yield sink
    sink.close()


@pytest.fixture
def multi(starrocks: StarrocksStandIn) -> Iterator[StarrocksSink]:
    sink = sink_on(starrocks, "multi")
    sink.ensure_table(TABLE)
    yield sink
    sink.close()


def labels(*loads: PreparedLoad) -> list[str]:
    return [load.detail["label"] for load in loads]


def again(step: Callable[[int], Any], times: int = 12) -> Any:
    """What the job does: the same work once more, in a checkpoint of its own where loads were dropped."""
    for number in range(times):
        try:
            return step(number)
        except (SinkUnavailable, LoadLost):
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
def test_the_mode_follows_version_and_databases(
    version: tuple[int, int, int], databases: list[str], wanted: str, is_multi: bool
) -> None:
    with stand_in(version=version) as starrocks:
        sink = sink_on(starrocks, databases=databases, multi_table=wanted)
        assert sink.tasks_in_order is is_multi
        told = [finding for finding in sink.check([TABLE]) if "one by one" in finding.problem]
        assert bool(told) is (not is_multi and wanted == "auto")
        assert not any(finding.fatal for finding in told)
        sink.close()


@pytest.mark.parametrize("version", [(2, 4, 0), (3, 5, 9), (4, 0, 2), (4, 0, 7)])
def test_every_version_is_served(version: tuple[int, int, int]) -> None:
    with stand_in(version=version, followers=1) as starrocks:
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


def test_a_version_that_cannot_choose_buckets_wants_to_be_told_them() -> None:
    with stand_in(version=(2, 4, 0)) as starrocks:
        sink = sink_on(starrocks, "single")
        with pytest.raises(TargetMismatch, match="BUCKETS") as caught:
            sink.ensure_table(TABLE)
        assert "sink.tables" in caught.value.mend
        sink.close()


def test_a_mode_that_cannot_be_is_refused() -> None:
    with stand_in(version=(3, 3, 1)) as starrocks:
        sink = sink_on(starrocks, "multi")
        with pytest.raises(SinkSetting, match=r"3\.3\.1"):
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
def test_what_one_transaction_would_lose_goes_table_by_table(
    settings: dict[str, Any], table: TargetTable, why: str
) -> None:
    with stand_in(**settings) as starrocks:
        insisting, sink = sink_on(starrocks), sink_on(starrocks, multi_table="auto")
        with pytest.raises(SinkSetting, match=why) as caught:
            insisting.ensure_table(table)
            insisting.part_writer(table)
        assert decide(caught.value) is Answer.PAUSE
        sink.claim(mark_of(0), [table.name])
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
def test_a_table_whose_partitions_are_made_beforehand_may_share_a_transaction(clause: str, is_shared: bool) -> None:
    statement = f"CREATE TABLE `orders` (\n  `id` bigint NOT NULL\n) ENGINE=OLAP\nPRIMARY KEY(`id`)\n{clause}\n"
    assert (why_not_shared("ods.orders", statement) is None) is is_shared


def test_what_one_transaction_would_lose_is_seen_in_the_load_too(
    starrocks: StarrocksStandIn, multi: StarrocksSink
) -> None:
    """Loads that are made again may come before their tables are met, and a table may be made anew."""
    odd, single = replace(BESIDE["column"][1], name="ods.odd"), sink_on(starrocks, "single")
    single.ensure_table(odd)
    single.close()
    with pytest.raises(SinkSetting, match="multi_table: off"):
        write(multi, *ROWS, name=name_of(channel=odd.name), table=odd)
    starrocks.execute("DROP TABLE ods.orders")
    starrocks.execute(
        "CREATE TABLE ods.orders (id BIGINT NOT NULL, name VARCHAR(40)) PRIMARY KEY(id)\n"
        f"PARTITION BY date_trunc('day', id)\n{REST}"
    )
    with pytest.raises(TargetMismatch, match="multi_table: off"):
        multi.commit([write(multi, *ROWS)], mark_of())


def test_a_table_that_comes_later_does_not_change_the_mode_of_a_run(starrocks: StarrocksStandIn) -> None:
    """Of a pattern: loads were made, and those of one checkpoint are committed in one way."""
    late = BESIDE["partitions"][1]
    late = replace(late, name="ods.late")
    sink, anew = (sink_on(starrocks, multi_table="auto") for _ in range(2))
    sink.ensure_table(TABLE)
    load = write(sink, *ROWS)
    with pytest.raises(SinkSetting, match=r"cdc stop.*cdc start"):
        sink.ensure_table(late)
    sink.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
    for table in (TABLE, late):
        anew.ensure_table(table)
    assert not anew.tasks_in_order
    for each in (sink, anew):
        each.close()


def test_loads_that_are_made_again_before_their_tables_are_met_go_the_same_way(starrocks: StarrocksStandIn) -> None:
    table = BESIDE["partitions"][1]
    before, after = (sink_on(starrocks, multi_table="auto") for _ in range(2))
    before.ensure_table(table)
    after.claim(mark_of(0), [table.name, "ods.*"])
    assert not after.tasks_in_order
    for sink in (before, after):
        sink.close()


def test_all_tables_of_a_checkpoint_and_its_mark_are_one_transaction(
    starrocks: StarrocksStandIn, multi: StarrocksSink
) -> None:
    items = TargetTable("ods.items", TABLE.columns, TABLE.key)
    multi.ensure_table(items)
    loads = [
        write(multi, *ROWS),
        write(multi, *ROWS, name=name_of(channel="ods.items"), table=items),
        write(multi, (2, "c", False, 3), name=name_of(task=1)),
    ]
    starrocks.transactions.hold_publish = True
    multi._visible_timeout_s = 0.1
    multi.commit(loads, mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == starrocks.rows("SELECT * FROM ods.items") == []
    assert multi.last_checkpoint("shop") is None
    starrocks.transactions.publish()
    assert starrocks.rows("SELECT * FROM ods.orders") == [(1, "a"), (2, "c")]
    assert starrocks.rows("SELECT * FROM ods.items") == SEEN
    assert multi.last_checkpoint("shop") == mark_of()
    assert len(set(labels(*loads))) == 1
    assert len(starrocks.loads()) == 1


def test_a_transaction_that_was_lost_and_begun_anew_does_not_pass_for_whole(
    starrocks: StarrocksStandIn, multi: StarrocksSink
) -> None:
    first = write(multi, *ROWS)
    starrocks.multi.forget()
    second = write(multi, (3, "c", False, 3), name=name_of(task=1))
    assert labels(first) == labels(second)
    with pytest.raises(LoadLost) as caught:
        multi.commit([first, second], mark_of())
    assert len(caught.value.where["labels"]) == 2  # type: ignore[arg-type]
    assert starrocks.rows("SELECT * FROM ods.orders") == []
    loads = [write(multi, *ROWS), write(multi, (3, "c", False, 3), name=name_of(task=1))]
    assert labels(loads[0]) != labels(first), "a late load of the lost one could join"
    multi.commit(loads, mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == [*SEEN, (3, "c")]


def test_a_mark_alone_is_not_committed(starrocks: StarrocksStandIn, multi: StarrocksSink) -> None:
    """A late executor has begun the label anew after everything in it was lost."""
    load = write(multi, *ROWS)
    starrocks.multi.forget()
    write(multi, *ROWS, name=name_of(task=1))
    with pytest.raises(LoadLost):
        multi.commit([load], mark_of())
    assert multi.last_checkpoint("shop") is None
    assert starrocks.rows("SELECT * FROM ods.orders") == []


def test_a_label_that_was_cancelled_heals_and_its_old_reason_pauses_nothing(starrocks: StarrocksStandIn) -> None:
    """A sink that is made anew counts losses from the beginning, and meets labels that the one before has used."""
    starrocks.execute("CREATE DATABASE ods")
    first, second = (sink_on(starrocks, tries=1) for _ in range(2))
    first.ensure_table(TABLE)
    starrocks.execute("ALTER TABLE ods.orders MODIFY COLUMN name VARCHAR(3) NULL")
    load = write(first, (1, "too long", False, 1))
    with pytest.raises(LoadRejected):
        first.commit([load], mark_of())
    starrocks.execute("ALTER TABLE ods.orders MODIFY COLUMN name VARCHAR(40) NULL")
    with pytest.raises(SinkUnavailable, match="already been cancelled"):
        write(second, (1, "too long", False, 1))
    with pytest.raises(LoadLost):
        second.commit([load], mark_of())
    second.commit([write(second, (1, "too long", False, 1))], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == [(1, "too long")]
    for sink in (first, second):
        sink.close()


def test_single_loads_of_a_run_before_an_upgrade_are_committed_after_it(starrocks: StarrocksStandIn) -> None:
    old, new = sink_on(starrocks, "single"), sink_on(starrocks, "multi")
    old.ensure_table(TABLE)
    load = write(old, *ROWS)
    new.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
    old.close()
    new.close()


def test_what_was_lost_in_one_mode_is_loaded_again_in_the_other(starrocks: StarrocksStandIn) -> None:
    old, new = sink_on(starrocks, "single"), sink_on(starrocks, "multi")
    items = TargetTable("ods.items", TABLE.columns, TABLE.key)
    for table in (TABLE, items):
        old.ensure_table(table)
    kept, lost = write(old, *ROWS), write(old, *ROWS, name=name_of(channel="ods.items"), table=items)
    starrocks.transactions.expire(labels(lost)[0])
    with pytest.raises(LoadLost) as caught:
        new.commit([kept, lost], mark_of())
    assert caught.value.where["labels"] == labels(lost)
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
def test_a_load_arrives_once_whatever_becomes_of_its_answers(
    starrocks: StarrocksStandIn, sink: StarrocksSink, place: str, fault: Fault, times: int
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
def test_a_commit_happens_once_whatever_becomes_of_its_answer(
    starrocks: StarrocksStandIn, sink: StarrocksSink, fault: Fault
) -> None:
    starrocks.faults.order("commit", fault, times=2)
    loads = [write(sink, *ROWS), write(sink, (2, "c", False, 3), name=name_of(task=1))]
    again(lambda _: sink.commit(loads, mark_of()))
    assert starrocks.faults.struck
    assert starrocks.rows("SELECT * FROM ods.orders") == [(1, "a"), (2, "c")]
    assert sink.last_checkpoint("shop") == mark_of()
    committed_once(starrocks, set(labels(*loads)))


def test_a_body_that_was_cut_never_ends_in_the_next_one(starrocks: StarrocksStandIn, single: StarrocksSink) -> None:
    starrocks.faults.order("load", Fault.RESET, times=2)
    load = write(single, *ROWS)
    single.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
    assert [each["status"] for each in starrocks.loads()] == ["ABORTED", "ABORTED", "VISIBLE"]


def test_a_cut_share_takes_the_whole_transaction_with_it(starrocks: StarrocksStandIn, multi: StarrocksSink) -> None:
    first = write(multi, *ROWS)
    starrocks.faults.order("load", Fault.RESET)
    with pytest.raises(SinkUnavailable):
        write(multi, (3, "c", False, 3), name=name_of(task=1))
    with pytest.raises(LoadLost):
        multi.commit([first], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == []


def test_what_lies_before_a_load_is_asked_again(starrocks: StarrocksStandIn, multi: StarrocksSink) -> None:
    """No byte of the body has left while no frontend answers: the transaction is as it was."""
    starrocks.faults.order("begin", Fault.DROP_ANSWER, times=2)
    load = again(lambda number: write(multi, *ROWS, name=name_of(1 + number)))
    multi.commit([load], mark_of(load.name.checkpoint))
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN


@pytest.mark.parametrize("loss", ["expire", "forget"])
def test_a_lost_load_is_named_and_loaded_again(starrocks: StarrocksStandIn, sink: StarrocksSink, loss: str) -> None:
    loads = [write(sink, (number, "a", False, number), name=name_of(task=number)) for number in range(3)]
    getattr(starrocks.transactions, loss)(labels(loads[1])[0])
    if sink.tasks_in_order and loss == "forget":
        starrocks.restart_frontend()
    with pytest.raises(LoadLost) as caught:
        sink.commit(loads, mark_of())
    assert len(caught.value.where["labels"]) == (3 if sink.tasks_in_order else 1)  # type: ignore[arg-type]
    assert sink.last_checkpoint("shop") is None
    names = [name_of(task=number, attempt=1) for number in range(3)]
    anew = [write(sink, (number, "a", False, 10 + number), name=name) for number, name in enumerate(names)]
    sink.commit(anew, mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == [(0, "a"), (1, "a"), (2, "a")]
    committed_once(starrocks, set(labels(*anew)))


def test_a_label_forgotten_after_its_commit_is_no_lost_load(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    load = write(sink, *ROWS)
    sink.commit([load], mark_of())
    starrocks.transactions.forget()
    starrocks.restart_frontend()
    assert sink.state(load) is LoadState.COMMITTED
    sink.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN


def test_labels_run_over_by_others_are_no_lost_loads() -> None:
    with stand_in(label_keep_max_num=1) as starrocks:
        sink = sink_on(starrocks, "single")
        sink.ensure_table(TABLE)
        loads = [write(sink, (number, "a", False, number), name=name_of(task=number)) for number in range(4)]
        sink.commit(loads, mark_of())
        sink.commit(loads, mark_of())
        assert len(starrocks.rows("SELECT * FROM ods.orders")) == 4
        sink.close()


def test_a_frontend_s_restart_between_prepare_and_commit_loses_nothing_that_is_prepared(
    starrocks: StarrocksStandIn, single: StarrocksSink
) -> None:
    load = write(single, *ROWS)
    starrocks.restart_frontend()
    single.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN


def test_a_backend_s_restart_under_an_open_transaction_costs_the_checkpoint(
    starrocks: StarrocksStandIn, multi: StarrocksSink
) -> None:
    load = write(multi, *ROWS)
    for number in range(2):
        starrocks.restart_backend(number)
    with pytest.raises(LoadLost):
        multi.commit([load], mark_of())


def test_a_dead_backend_is_passed_by(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    starrocks.stop_backend(0)
    loads = [write(sink, (number, "a", False, number), name=name_of(task=number)) for number in range(4)]
    sink.commit(loads, mark_of())
    assert starrocks.rows("SELECT count(*) FROM ods.orders") == [(4,)]


def test_a_false_ok_is_not_believed() -> None:
    with stand_in(version=(4, 0, 7), false_ok=True, unknown_before_commit=True) as starrocks:
        sink = sink_on(starrocks)
        sink.ensure_table(TABLE)
        load = write(sink, *ROWS)
        for number in range(2):
            starrocks.restart_backend(number)
        with pytest.raises(LoadLost):
            sink.commit([load], mark_of())
        assert sink.last_checkpoint("shop") is None
        sink.close()


def test_too_many_versions_ask_for_patience(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    starrocks.faults.order("load", Fault.ERROR)
    with pytest.raises(SinkBusy):
        write(sink, *ROWS)
    load = write(sink, *ROWS, name=name_of(2))
    sink.commit([load], mark_of(2))
    committed_once(starrocks, labels(load))


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.HTTP_500])
def test_an_abort_takes_everything_of_its_checkpoint_and_nothing_else(
    starrocks: StarrocksStandIn, sink: StarrocksSink, fault: Fault
) -> None:
    kept = [write(sink, *ROWS, name=name_of(1)), write(sink, *ROWS, name=name_of(21))]
    gone = [write(sink, *ROWS, name=name_of(2, task)) for task in range(3)]
    starrocks.faults.order("rollback", fault)
    for _ in range(2):
        again(lambda _: sink.abort("shop", "0a1b2c3d", 1, 2))
    assert {sink.state(load) for load in gone} == {LoadState.ABORTED}
    assert {sink.state(load) for load in kept} == {LoadState.PREPARED}


def test_what_an_earlier_run_left_prepared_goes_with_the_first_commit(
    starrocks: StarrocksStandIn, single: StarrocksSink
) -> None:
    left = write(single, *ROWS, name=name_of(7, fence=0))
    load = write(single, *ROWS)
    single.commit([load], mark_of())
    assert single.state(left) is LoadState.ABORTED
    assert single.state(load) is LoadState.COMMITTED


def test_who_may_not_see_transactions_is_told_so(starrocks: StarrocksStandIn) -> None:
    starrocks.settings.operators.discard(USER[0])
    sink = sink_on(starrocks, "single")
    sink.ensure_table(TABLE)
    sink.abort("shop", "0a1b2c3d", 1, 1)
    (finding,) = sink.check([TABLE])
    assert "GRANT OPERATE" in finding.mend and not finding.fatal
    sink.close()


def test_a_commit_waits_for_publishing(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    load = write(sink, *ROWS)
    starrocks.transactions.hold_publish = True
    publisher = threading.Timer(0.3, starrocks.transactions.publish)
    started = time.monotonic()
    publisher.start()
    sink.commit([load], mark_of())
    publisher.join()
    assert time.monotonic() - started >= 0.3
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN


def test_a_commit_that_outlasts_its_answer_is_waited_for(
    starrocks: StarrocksStandIn, multi: StarrocksSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would join it meanwhile would cancel it."""
    monkeypatch.setattr(starrocks_client, "_ASK_S", 0.3)
    monkeypatch.setattr(starrocks_load, "_SETTLE_S", 0.3)
    load = write(multi, *ROWS)
    starrocks.multi.hold_commits = True
    for _ in range(2):
        with pytest.raises(SinkUnavailable, match="under way"):
            multi.commit([load], mark_of())
    with pytest.raises(SinkUnavailable, match="under way"):
        multi.abort("shop", "0a1b2c3d", 1, 1)
    starrocks.multi.hold_commits = False
    again(lambda _: multi.commit([load], mark_of()), times=2)
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
    committed_once(starrocks, labels(load))
    assert len(starrocks.loads()) == 1


def test_a_rollback_that_is_only_promised_is_waited_for(
    starrocks: StarrocksStandIn, multi: StarrocksSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starrocks_load, "_SETTLE_S", 0.3)
    load = write(multi, *ROWS)
    starrocks.multi.hold_aborts = True
    with pytest.raises(SinkUnavailable, match="rollback pending"):
        multi.abort("shop", "0a1b2c3d", 1, 1)
    starrocks.multi.hold_aborts = False
    multi.abort("shop", "0a1b2c3d", 1, 1)
    assert multi.state(load) is LoadState.ABORTED


def test_an_older_run_cannot_set_the_record_back(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    sink.commit([write(sink, *ROWS)], mark_of(5, sequence=500))
    old = mark_of(4, sequence=400)
    sink.commit([write(sink, *ROWS, name=name_of(4, fence=0))], type(old)(**{**_fields(old), "fence": 0}))
    assert sink.last_checkpoint("shop") == mark_of(5, sequence=500)


def test_a_commit_asks_for_one_row_however_many_runs_there_were(
    single: StarrocksSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fence in range(1, 6):
        mark = replace(mark_of(fence), fence=fence)
        single.claim(mark, [TABLE.name])
        single.commit([write(single, *ROWS, name=name_of(fence, fence=fence))], mark)
    asked, told = single._sql.ask, []

    def ask(statement: str, values: tuple[Any, ...] | None = None) -> list[dict[str, Any]]:
        rows = asked(statement, values)
        told.extend(rows if "_cdc_checkpoints` WHERE" in statement else ())
        return rows

    monkeypatch.setattr(single._sql, "ask", ask)
    single._check_claim(mark)
    assert [row["fence"] for row in told] == [5] and single.last_checkpoint("shop") == mark


def _fields(mark: Any) -> dict[str, Any]:
    return {name: getattr(mark, name) for name in type(mark).__dataclass_fields__}


# ---- rows and types


def test_bytes_documents_and_vectors_are_converted_on_the_way_in(
    starrocks: StarrocksStandIn, sink: StarrocksSink
) -> None:
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


def test_bytes_that_are_long_as_digits_arrive(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
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


def test_a_document_that_would_become_null_is_refused_before_it_is_sent(
    starrocks: StarrocksStandIn, sink: StarrocksSink
) -> None:
    doc = TargetColumn("doc", pa.string(), True, "json")
    table = TargetTable("ods.docs", (TABLE.columns[0], doc), ("id",))
    sink.ensure_table(table)
    rows = pa.record_batch(
        {"id": [1, 7], "doc": ['{"a": 1}', f'"{"x" * (16 << 20)}"'], DELETED: [False, False], SEQUENCE: [1, 2]}
    )
    with pytest.raises(LoadRejected, match="column doc") as caught:
        sink.part_writer(table)(name_of(channel=table.name), iter([rows]))
    assert caught.value.where["keys"] == [{"id": 7}] and not starrocks.loads()
    load = sink.part_writer(table)(name_of(channel=table.name), iter([rows.slice(0, 1)]))
    assert load is not None
    sink.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.docs") == [(1, '{"a": 1}')]


def test_refused_rows_are_shown_and_made_again_after_the_mend(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    starrocks.execute("ALTER TABLE ods.orders MODIFY COLUMN name VARCHAR(3) NULL")

    def step() -> list[PreparedLoad]:
        loads = [write(sink, (1, "ok", False, 1), (77, "too long", False, 2))]
        return loads if sink.commit(loads, mark_of()) is None else []

    with pytest.raises(LoadRejected) as caught:
        step()
    assert decide(caught.value) is Answer.PAUSE
    assert "length of input is too long" in str(caught.value) and "77" in str(caught.value)
    starrocks.execute("ALTER TABLE ods.orders MODIFY COLUMN name VARCHAR(10) NULL")
    load = write(sink, (1, "ok", False, 1), (77, "too long", False, 2), name=name_of(2))
    sink.commit([load], mark_of(2))
    assert starrocks.rows("SELECT * FROM ods.orders") == [(1, "ok"), (77, "too long")]


def test_a_load_of_nothing_but_refused_rows_is_no_lost_one(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    starrocks.execute("ALTER TABLE ods.orders MODIFY COLUMN name VARCHAR(3) NULL")
    with pytest.raises(LoadRejected, match="refused rows") as caught:
        sink.commit([write(sink, (77, "too long", False, 2))], mark_of())
    assert decide(caught.value) is Answer.PAUSE


def test_a_key_that_is_too_long_is_refused_by_name(starrocks: StarrocksStandIn, single: StarrocksSink) -> None:
    table = TargetTable("ods.keyed", (TargetColumn("id", pa.string(), False, "varchar(200)"),), ("id",))
    single.ensure_table(table)
    rows = pa.record_batch({"id": ["x" * 129], DELETED: [False], SEQUENCE: [1]})
    with pytest.raises(LoadRejected, match="primary_key_limit_size"):
        single.part_writer(table)(name_of(channel="ods.keyed"), iter([rows]))


def test_a_part_writer_travels(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    writer = pickle.loads(pickle.dumps(sink.part_writer(TABLE)))
    load = writer(name_of(), iter([rows_of(*ROWS)]))
    sink.commit([load], mark_of())
    assert starrocks.rows("SELECT * FROM ods.orders") == SEEN
    assert USER[1] not in repr(writer)


# ---- tables


def test_a_table_is_created_as_it_is_printed(starrocks: StarrocksStandIn, single: StarrocksSink) -> None:
    text = single.ddl(COLUMNS)
    for line in ("`id` LARGEINT NOT NULL", "`bytes` VARBINARY NOT NULL", "`doc` JSON NULL", "PRIMARY KEY (`id`)",
                 "`text` VARCHAR(1048576) NOT NULL COMMENT 'with\ttab'", "`vector` ARRAY<FLOAT> NULL"):  # fmt: skip
        assert line in text
    single.ensure_table(COLUMNS)
    assert single.describe(COLUMNS) == ()
    assert single.ddl(COLUMNS).count("BUCKETS") == 0


@pytest.mark.parametrize(
    ("statement", "problem", "mend"),
    [
        (f"CREATE TABLE ods.t (id BIGINT NOT NULL, name VARCHAR(40)) DUPLICATE KEY(id) {REST}", "DUPLICATE", "cdc ddl"),
        (
            f"CREATE TABLE ods.t (name VARCHAR(40) NOT NULL, id BIGINT) PRIMARY KEY(name) {REST}",
            "key is (name)",
            "key:",
        ),
        ("name VARCHAR(39)", "column name is VARCHAR(39)", "MODIFY COLUMN `name` VARCHAR(40) NULL"),
        ("name VARCHAR(40) NOT NULL", "NOT NULL, and the source has NULL", "MODIFY COLUMN `name` varchar(40) NULL"),
        ("other INT", "column name is missing", "ADD COLUMN `name` VARCHAR(40) NULL"),
        ("name STRING, other INT NOT NULL", "other is NOT NULL without a default", "MODIFY COLUMN `other` int NULL"),
    ],
)
def test_a_table_that_does_not_fit_is_named_with_its_mend(
    starrocks: StarrocksStandIn, single: StarrocksSink, statement: str, problem: str, mend: str
) -> None:
    table = TargetTable("ods.t", TABLE.columns, TABLE.key)
    if not statement.startswith("CREATE"):
        statement = f"CREATE TABLE ods.t (id BIGINT NOT NULL, {statement}) PRIMARY KEY(id) {REST}"
    starrocks.execute(statement)
    findings = single.describe(table)
    assert any(problem in finding.problem and mend in finding.mend for finding in findings), findings
    with pytest.raises(TargetMismatch):
        single.ensure_table(table)
    for finding in findings:
        if finding.mend.startswith("ALTER"):
            starrocks.execute(finding.mend.partition(";")[0])
    if "KEY" not in statement.partition(") ")[2] or "PRIMARY KEY(id)" in statement:
        assert single.describe(table) == ()


def test_a_comment_is_no_clause(starrocks: StarrocksStandIn, single: StarrocksSink) -> None:
    columns = "id BIGINT NOT NULL COMMENT 'once the UNIQUE KEY (other)', name VARCHAR(40)"
    starrocks.execute(f"CREATE TABLE ods.commented ({columns}) PRIMARY KEY(id) {REST}")
    assert single.describe(replace(TABLE, name="ods.commented")) == ()


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
def test_every_type_has_its_own(arrow: pa.DataType, source: str, key: bool, expected: str) -> None:
    assert str(starrocks_type(TargetColumn("c", arrow, True, source), key=key)) == expected


def test_string_is_not_endless() -> None:
    assert not parsed("string").holds(parsed("varchar(1048576)"))
    assert parsed("varchar(65533)").holds(parsed("string"))
    with pytest.raises(TypeError, match="no DOUBLE as a key"):
        starrocks_type(TargetColumn("c", pa.float64(), False, "double"), key=True)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize(("table", "column"), UNTYPED)
def test_a_column_without_a_type_is_named_before_anything_is_made(
    single: StarrocksSink, table: TargetTable, column: str, is_there: bool
) -> None:
    table = replace(table, name="ods.orders" if is_there else "ods.others")
    single.ensure_table(TABLE)
    (finding,) = single.check([table])
    assert f"column {column}" in finding.problem and "cast(... as string)" in finding.mend and finding.fatal
    assert finding in single.describe(table)
    for refused in (single.ensure_table, single.ddl):
        with pytest.raises(TargetMismatch, match=f"column {column}"):
            refused(table)


def test_a_column_called_like_the_operation_is_refused_by_name(single: StarrocksSink) -> None:
    table = TargetTable("ods.t", (*TABLE.columns, TargetColumn("__op", pa.int8(), True, "tinyint")), TABLE.key)
    with pytest.raises(TargetMismatch, match="reserved name"):
        single.ensure_table(table)


# ---- surroundings


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"password": "wrong"}, TargetMismatch, "sink.password"),
        ({"sql_port": 1}, SinkUnavailable, "does not answer"),
    ],
)
def test_check_says_what_is_wrong_with_the_cluster(
    starrocks: StarrocksStandIn, change: dict[str, Any], error: type[CdcError], says: str
) -> None:
    sink = sink_on(starrocks, **change)
    (finding,) = sink.check([TABLE])
    assert says in f"{finding.problem} {finding.mend}"
    with pytest.raises(error):
        sink.ensure_table(TABLE)
    sink.close()


def test_check_asks_for_nothing_that_a_user_has_no_right_to() -> None:
    with stand_in(http_auth=True) as starrocks:
        sink = sink_on(starrocks)
        assert sink.check([TABLE]) == (), "there is no database yet"
        sink.ensure_table(TABLE)
        assert sink.check([TABLE]) == ()
        sink.close()


def test_a_statement_that_is_denied_names_the_grant(starrocks: StarrocksStandIn, single: StarrocksSink) -> None:
    single.claim(mark_of(0), [TABLE.name])
    text = "Access denied; you need (at least one of) the SELECT privilege(s) on TABLE _cdc_checkpoints"
    starrocks.faults.order("sql", Fault.ERROR, match="SELECT * FROM", text=text)
    with pytest.raises(TargetMismatch, match="GRANT SELECT"):
        single.last_checkpoint("shop")


def test_what_waits_for_publishing_is_no_leftover(starrocks: StarrocksStandIn, single: StarrocksSink) -> None:
    single._visible_timeout_s = 0.1
    load = write(single, *ROWS)
    starrocks.transactions.hold_publish = True
    single.commit([load], mark_of())
    single.abort("shop", "0a1b2c3d", 1, 1)
    assert single.state(load) is LoadState.COMMITTED


def test_no_backend_alive_is_said_and_tried_again(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    for number in range(2):
        starrocks.stop_backend(number)
    with pytest.raises(SinkUnavailable, match="alive"):
        write(sink, *ROWS)
    for number in range(2):
        starrocks.start_backend(number)
    assert sink.state(write(sink, *ROWS, name=name_of(2))) is LoadState.PREPARED


def test_a_missing_privilege_names_the_grant(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    starrocks.settings.denied.add((USER[0], "ods"))
    with pytest.raises(TargetMismatch, match="GRANT SELECT, INSERT"):
        write(sink, *ROWS)


@pytest.mark.parametrize(
    ("change", "look_s", "says"),
    [
        ("DROP COLUMN name", 0.0, "column name is missing"),
        ("ADD COLUMN other INT NOT NULL", 60.0, "no default value. column: other"),  # the load itself says so
    ],
)
def test_columns_that_change_while_a_job_runs_are_seen(
    starrocks: StarrocksStandIn, sink: StarrocksSink, monkeypatch: pytest.MonkeyPatch,
    change: str, look_s: float, says: str,
) -> None:  # fmt: skip
    """A load whose columns the table does not have is taken, and what they hold is dropped without a word."""
    sink.commit([write(sink, *ROWS)], mark_of())
    monkeypatch.setattr(cluster_sink, "_LOOK_S", look_s)
    starrocks.execute(f"ALTER TABLE ods.orders {change}")
    with pytest.raises(TargetMismatch, match=says) as caught:
        write(sink, (3, "c", False, 3), name=name_of(2))
    assert decide(caught.value) is Answer.PAUSE


def test_loads_made_after_a_column_has_gone_are_given_up(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    gives_up_loads_of_a_gone_column(starrocks, sink)


def test_a_dropped_table_is_named(starrocks: StarrocksStandIn, sink: StarrocksSink) -> None:
    starrocks.execute("DROP TABLE ods.orders")
    with pytest.raises(TargetMismatch, match=r"unknown table|Failed to find table"):
        write(sink, *ROWS)


def test_too_many_running_transactions_ask_for_patience() -> None:
    with stand_in(max_running_txn_num_per_db=1) as starrocks:
        sink = sink_on(starrocks, "single", tries=1)
        sink.ensure_table(TABLE)
        write(sink, *ROWS)
        with pytest.raises(SinkBusy) as caught:
            write(sink, *ROWS, name=name_of(task=1))
        assert caught.value.after_s > 0
        assert any("running transactions" in finding.problem for finding in sink.check([TABLE]))
        sink.close()


def test_a_missing_table_that_is_not_ours_to_make(starrocks: StarrocksStandIn) -> None:
    sink = sink_on(starrocks, create_tables=False)
    with pytest.raises(TargetMismatch, match=r"no table ods\.orders"):
        sink.ensure_table(TABLE)
    assert True in [finding.fatal for finding in sink.check([TABLE])]
    sink.close()


def test_commit_of_lost_load_aborts_rest_of_attempt(starrocks: StarrocksStandIn, single: StarrocksSink) -> None:
    loads = [write(single, (number, "a", False, number), name=name_of(task=number)) for number in range(3)]
    starrocks.transactions.expire(labels(loads[0])[0])
    with pytest.raises(LoadLost):
        single.commit(loads, mark_of())
    assert {single.state(load) for load in loads} == {LoadState.ABORTED}
    assert starrocks.rows("SELECT * FROM ods.orders") == []


def test_commit_of_new_attempt_first_aborts_earlier_ones(starrocks: StarrocksStandIn, single: StarrocksSink) -> None:
    old = write(single, (1, "old", False, 1))
    new = write(single, (1, "new", False, 2), name=name_of(attempt=1))
    commit_load, states = single._commit_load, []

    def look_then_commit(load: PreparedLoad) -> bool:
        states.append(single.state(old))
        return commit_load(load)

    single._commit_load = look_then_commit  # type: ignore[method-assign]
    single.commit([new], mark_of())
    assert states == [LoadState.ABORTED]
    assert starrocks.rows("SELECT * FROM ods.orders") == [(1, "new")]
