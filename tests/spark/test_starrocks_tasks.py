"""Tasks on a local Spark load rows into StarRocks from executors; in one transaction they keep their order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import LoadRejected, PreparedLoadLost, SinkUnavailable
from cdc.model.batch import Changes
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from channels.channel import Channel
from channels.mapping import Mapping
from channels.partition_read import PartitionLoad, PartitionTarget, ReadBudget, read_partitions
from channels.sinks.base import TargetColumn, TargetTable
from channels.spark_runner import SparkTaskRunner
from channels.task import RunIdentity, Task
from spark.frames import typed_frame
from spark.session import SessionHolder
from tests.emulators.cases import TABLE, committed_once, mark_of, name_of, resize_name, rows_of
from tests.emulators.faults import Fault
from tests.emulators.starrocks.cases import MODES, emulator, sink_on
from tests.support.loading import prepare
from tests.support.partition_readers import NumberReader

RUN = RunIdentity("shop", "0a1b2c3d", 1)
SCHEMA = TableSchema(
    "shop",
    "orders",
    (
        Column("id", Kind.BIGINT, "bigint", nullable=False),
        Column("name", Kind.VARCHAR, "varchar(10)", length=10, charset="utf8mb4"),
        Column("note", Kind.CHAR, "char(2)", length=2, charset="utf8mb4", nullable=False),
    ),
    key=("id",),
)


def changes(*rows: tuple[int, str | None, bool]) -> Changes:
    ids, names, deleted = zip(*rows, strict=True)
    data: dict[str, Any] = {"id": ids, "name": names, "note": ["x"] * len(rows), DELETED: deleted}
    data[SEQUENCE] = range(1, len(rows) + 1)
    schema = pa.schema([(column.name, column.arrow) for column in SCHEMA.columns])
    schema = schema.append(pa.field(DELETED, pa.bool_())).append(pa.field(SEQUENCE, pa.int64()))
    return Changes(SCHEMA, pa.RecordBatch.from_pydict({name: list(values) for name, values in data.items()}, schema))


def tasks_of(channels: list[Channel], checkpoint: int = 1) -> list[Task]:
    return [task for channel in channels if (task := channel.task_for(RUN, checkpoint)) is not None]


@pytest.mark.parametrize("mode", MODES)
def test_submit_tasks_of_channels_are_applied_in_order(mode: str, sessions: SessionHolder) -> None:
    with emulator() as starrocks:
        sink = sink_on(starrocks, mode)
        runner = SparkTaskRunner(sessions, sink)
        channels = [Channel(Mapping(f"shop.t{number}", f"ods.t{number}"), SCHEMA) for number in range(4)]
        for channel in channels:
            sink.ensure_table(channel.target)
        # the first load of a table is slow, and later ones must not overtake it
        starrocks.faults.order("load", Fault.SLOW, times=3, seconds=0.4)
        futures = []
        for version in range(4):
            for number, channel in enumerate(channels):
                channel.add(changes((number, f"v{version}", False), (99, "gone", False), (99, None, version % 2 == 1)))
            futures += runner.submit(tasks_of(channels))
        loads = [load for future in futures for load in future.result()]
        sink.commit(loads, mark_of())
        for number in range(4):
            assert starrocks.rows(f"SELECT * FROM ods.t{number}") == [(number, "v3", "x")]
        labels = {load.detail["label"] for load in loads}
        committed_once(starrocks, labels)
        assert len(labels) == (1 if mode == "multi" else 16)
        runner.cancel(0)
        sink.close()


def test_submit_failed_load_fails_following_tasks_of_channel(sessions: SessionHolder) -> None:
    with emulator() as starrocks:
        sink = sink_on(starrocks)
        runner = SparkTaskRunner(sessions, sink)
        channel = Channel(Mapping("shop.t", "ods.t"), SCHEMA)
        sink.ensure_table(channel.target)
        starrocks.faults.order("load", Fault.RESET)
        futures = []
        for version in range(3):
            channel.add(changes((1, f"v{version}", False)))
            futures += runner.submit(tasks_of([channel]))
        for future in futures:
            assert isinstance(future.exception(), SinkUnavailable)
        # the next checkpoint is not affected
        channel.add(changes((1, "again", False)))
        (future,) = runner.submit(tasks_of([channel], 2))
        sink.commit(future.result(), mark_of(2))
        assert starrocks.rows("SELECT * FROM ods.t") == [(1, "again", "x")]
        runner.cancel(0)
        sink.close()


@pytest.mark.parametrize("mode", MODES)
def test_prepare_refused_row_raises_with_reason(mode: str, sessions: SessionHolder) -> None:
    with emulator() as starrocks:
        sink = sink_on(starrocks, mode)
        sink.ensure_table(TABLE)
        resize_name(starrocks, 3)
        # if all rows of a table are refused in a transaction over several tables, StarRocks reports no reason
        frame = typed_frame(sessions.get(), [rows_of((5, "too long", False, 1), (6, "ok", False, 2))])
        loads: tuple[Any, ...] = ()
        with pytest.raises(LoadRejected, match="length of input is too long"):
            loads = prepare(sink, frame, name_of(), TABLE)
            sink.commit(loads, mark_of())
        resize_name(starrocks, 10)
        if mode == "multi":  # the commit refused it, so all rows must be loaded again
            with pytest.raises(PreparedLoadLost):
                sink.commit(loads, mark_of())
        sink.commit(prepare(sink, frame, name_of(2), TABLE), mark_of(2))
        assert starrocks.rows("SELECT * FROM ods.orders") == [(5, "too long"), (6, "ok")]
        sink.close()


def test_prepare_repeated_returns_same_load(sessions: SessionHolder) -> None:
    with emulator() as starrocks:
        sink = sink_on(starrocks, "single")
        sink.ensure_table(TABLE)
        rows = [rows_of(*((number, f"n{number}", False, number) for number in range(60)))]
        frame = typed_frame(sessions.get(), rows)
        loads = prepare(sink, frame, name_of(), TABLE)
        assert len(loads) == 1
        assert prepare(sink, frame, name_of(), TABLE) == loads  # by their labels
        sink.commit(loads, mark_of())
        assert len(starrocks.rows("SELECT * FROM ods.orders")) == 60
        sink.close()


def test_commit_through_follower_reaches_leader(sessions: SessionHolder) -> None:
    with emulator(followers=1) as starrocks:
        starrocks.frontends.reverse()  # the follower is asked first
        sink = sink_on(starrocks)
        sink.ensure_table(TABLE)
        frame = typed_frame(sessions.get(), [rows_of((1, "a", False, 1))])
        sink.commit(prepare(sink, frame, name_of(), TABLE), mark_of())
        assert starrocks.rows("SELECT * FROM ods.orders") == [(1, "a")]
        sink.close()


def test_read_partitions_of_one_table_shares_one_transaction(sessions: SessionHolder) -> None:
    """Chunks of a snapshot step and ranges of Kafka are loaded into one table by several executors at once."""
    table = TargetTable("ods.numbers", (TargetColumn("id", pa.int32(), False, "int"),), ("id",))
    with emulator() as starrocks:
        sink = sink_on(starrocks)
        sink.ensure_table(table)
        writer = sink.part_writer(table)
        starrocks.faults.order("load", Fault.SLOW, seconds=1.0)
        partitions = [
            PartitionLoad(
                NumberReader(10 * task, 10 * task + 10),
                (PartitionTarget(name_of(task=task, channel=table.name), writer, ("id",)),),
            )
            for task in range(4)
        ]
        loads = read_partitions(sessions.get(), partitions, 2, ReadBudget(60.0, 1 << 30, 1 << 40)).loads
        assert len(loads) == 4
        sink.commit(loads, mark_of())
        assert len(starrocks.rows("SELECT * FROM ods.numbers")) == 40
        sink.close()
