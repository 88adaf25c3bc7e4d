"""Tasks on a local Spark load rows into Doris from executors, packed and typed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import LoadRejected, SinkBusy
from cdc.model.batch import Changes
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from channels.channel import Channel
from channels.mapping import Mapping
from channels.sinks.base import SinkCheckpoint
from channels.sinks.doris.sink import DorisSink
from channels.spark_runner import SparkTaskRunner
from channels.task import RunIdentity
from spark.frames import typed_frame
from spark.session import SessionHolder
from tests.emulators.cases import TABLE, committed_once, mark_of, name_of, resize_name, rows_of
from tests.emulators.doris.cases import emulator, sink_on
from tests.emulators.doris.emulator import DorisEmulator
from tests.emulators.faults import Fault
from tests.support.loading import prepare

RUN = RunIdentity("shop", "0badcafe", 1)
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


@pytest.fixture
def doris() -> Iterator[DorisEmulator]:
    with emulator(backends=2) as doris:
        yield doris


@pytest.fixture
def sink(doris: DorisEmulator) -> Iterator[DorisSink]:
    sink = sink_on(doris)
    yield sink
    sink.close()


def changes(*rows: tuple[int, str | None, bool]) -> Changes:
    ids, names, deleted = zip(*rows, strict=True)
    data: dict[str, Any] = {"id": ids, "name": names, "note": ["x"] * len(rows), DELETED: deleted}
    data[SEQUENCE] = range(1, len(rows) + 1)
    schema = pa.schema([(column.name, column.arrow) for column in SCHEMA.columns])
    schema = schema.append(pa.field(DELETED, pa.bool_())).append(pa.field(SEQUENCE, pa.int64()))
    return Changes(SCHEMA, pa.RecordBatch.from_pydict({name: list(values) for name, values in data.items()}, schema))


def test_submit_many_channels_loads_and_commits(doris: DorisEmulator, sink: DorisSink, sessions: SessionHolder) -> None:
    runner = SparkTaskRunner(sessions, sink)
    channels = [Channel(Mapping(f"shop.t{number}", f"ods.t{number}"), SCHEMA) for number in range(6)]
    for number, channel in enumerate(channels):
        sink.ensure_table(channel.target)
        channel.add(changes((number, "old", False), (number, "new", False), (99, "gone", False), (99, None, True)))
    doris.faults.order("load", Fault.DROP_ANSWER, times=2)
    tasks = [task for channel in channels if (task := channel.task_for(RUN, 1)) is not None]
    loads = [load for future in runner.submit(tasks) for load in future.result()]
    sink.commit(loads, SinkCheckpoint("shop", "0badcafe", 1, 1, BinlogPosition("b.1", 4), BinlogPosition("b.1", 9), 4))
    for number in range(6):
        assert doris.rows(f"SELECT * FROM ods.t{number}") == [(number, "new", "x")]
    committed_once(doris, [load.detail["label"] for load in loads])
    runner.cancel(0)


def test_prepare_errors_of_executors_keep_their_class(
    doris: DorisEmulator, sink: DorisSink, sessions: SessionHolder
) -> None:
    sink.ensure_table(TABLE)
    resize_name(doris, 3)
    frame = typed_frame(sessions.get(), [rows_of((5, "too long", False, 1))])
    with pytest.raises(LoadRejected, match="length of input is too long"):
        prepare(sink, frame, name_of(), TABLE)
    doris.faults.order("load", Fault.ERROR)
    with pytest.raises(SinkBusy) as caught:
        prepare(sink, frame, name_of(2), TABLE)
    assert caught.value.after_s > 0


def test_prepare_repeated_returns_same_load(doris: DorisEmulator, sessions: SessionHolder) -> None:
    sink = sink_on(doris)
    sink.ensure_table(TABLE)
    frame = typed_frame(sessions.get(), [rows_of(*((number, f"n{number}", False, number) for number in range(60)))])
    loads = prepare(sink, frame, name_of(), TABLE)
    assert len(loads) == 1
    assert prepare(sink, frame, name_of(), TABLE) == loads  # by their labels
    sink.commit(loads, mark_of())
    assert len(doris.rows("SELECT * FROM ods.orders")) == 60
    sink.close()
