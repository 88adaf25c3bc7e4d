"""Tasks on a real local Spark reach StarRocks from the executors; in one transaction they keep their order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cdc.batch import Changes
from cdc.errors import LoadLost, LoadRejected, SinkUnavailable
from cdc.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from channels.channel import Channel
from channels.mapping import Mapping
from channels.task import RunIdentity, SparkTaskRunner, Task
from spark.frames import typed_frame
from spark.session import SessionHolder
from tests.servers.olap_cases import TABLE, committed_once, mark_of, name_of, rows_of
from tests.servers.olap_faults import Fault
from tests.servers.starrocks.cases import MODES, sink_on, stand_in

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
def test_many_tasks_of_many_channels_win_in_their_order(mode: str, sessions: SessionHolder) -> None:
    with stand_in() as starrocks:
        sink = sink_on(starrocks, mode)
        runner = SparkTaskRunner(sessions, sink)
        channels = [Channel(Mapping(f"shop.t{number}", f"ods.t{number}"), SCHEMA) for number in range(4)]
        for channel in channels:
            sink.ensure_table(channel.target)
        # the first load of a table is slow: what came later must not overtake it
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


def test_a_lost_share_of_the_one_transaction_fails_what_follows_it(sessions: SessionHolder) -> None:
    with stand_in() as starrocks:
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
        # the next checkpoint is not held back by it
        channel.add(changes((1, "again", False)))
        (future,) = runner.submit(tasks_of([channel], 2))
        sink.commit(future.result(), mark_of(2))
        assert starrocks.rows("SELECT * FROM ods.t") == [(1, "again", "x")]
        runner.cancel(0)
        sink.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_row_comes_back_with_its_reason(mode: str, sessions: SessionHolder) -> None:
    with stand_in() as starrocks:
        sink = sink_on(starrocks, mode)
        sink.ensure_table(TABLE)
        starrocks.execute("ALTER TABLE ods.orders MODIFY COLUMN name VARCHAR(3) NULL")
        # where all rows of a table are refused in a transaction over several, nothing tells why
        frame = typed_frame(sessions.get(), [rows_of((5, "too long", False, 1), (6, "ok", False, 2))])
        loads: tuple[Any, ...] = ()
        with pytest.raises(LoadRejected, match="length of input is too long"):
            loads = sink.prepare(frame, name_of(), TABLE)
            sink.commit(loads, mark_of())
        starrocks.execute("ALTER TABLE ods.orders MODIFY COLUMN name VARCHAR(10) NULL")
        if mode == "multi":  # it was refused at the commit: all of it is loaded again
            with pytest.raises(LoadLost):
                sink.commit(loads, mark_of())
        sink.commit(sink.prepare(frame, name_of(2), TABLE), mark_of(2))
        assert starrocks.rows("SELECT * FROM ods.orders") == [(5, "too long"), (6, "ok")]
        sink.close()


def test_parts_of_a_frame_are_transactions_of_their_own_in_single_mode(sessions: SessionHolder) -> None:
    with stand_in() as starrocks:
        sink = sink_on(starrocks, "single", parts=3)
        sink.ensure_table(TABLE)
        rows = [rows_of(*((number, f"n{number}", False, number) for number in range(60)))]
        frame = typed_frame(sessions.get(), rows)
        loads = sink.prepare(frame, name_of(), TABLE)
        assert len(loads) == 3
        assert sink.prepare(frame, name_of(), TABLE) == loads  # by their labels
        sink.commit(loads, mark_of())
        assert len(starrocks.rows("SELECT * FROM ods.orders")) == 60
        sink.close()


def test_a_follower_that_is_asked_first_leads_to_the_leader(sessions: SessionHolder) -> None:
    with stand_in(followers=1) as starrocks:
        starrocks.frontends.reverse()  # the follower is asked first
        sink = sink_on(starrocks)
        sink.ensure_table(TABLE)
        frame = typed_frame(sessions.get(), [rows_of((1, "a", False, 1))])
        sink.commit(sink.prepare(frame, name_of(), TABLE), mark_of())
        assert starrocks.rows("SELECT * FROM ods.orders") == [(1, "a")]
        sink.close()
