"""Tasks on a local Spark write the same rows to a Delta table, packed and typed."""

from __future__ import annotations

import datetime
import decimal
import os
import signal
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc.errors import LoadRejected, SchemaMismatch, SinkUnavailable
from cdc.model.batch import Changes, LoadName, PreparedLoad
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from channels.channel import Channel
from channels.mapping import Mapping, SparkExpressionTypes
from channels.sinks.base import PartWriter, SinkCheckpoint
from channels.sinks.delta.sink import DeltaSink
from channels.spark_runner import _DATA_EXCEPTION, SparkTaskRunner, _spark_message
from channels.task import RunIdentity
from spark.frames import typed_frame
from spark.session import SessionHolder
from tests.support.loading import prepare

RUN = RunIdentity("shop", "0badcafe", 1)
SCHEMA = TableSchema(
    "shop",
    "orders",
    (
        Column("id", Kind.BIGINT, "bigint unsigned", unsigned=True, nullable=False, comment="the key"),
        Column("email", Kind.VARCHAR, "varchar(40)", length=40, charset="utf8mb4"),
        Column("country", Kind.CHAR, "char(2)", length=2, charset="utf8mb4", nullable=False),
        Column("created", Kind.DATETIME, "datetime"),
        Column("seen", Kind.TIMESTAMP, "timestamp"),
        Column("point", Kind.VECTOR, "vector(2)", length=2),
        Column("day", Kind.DATE, "date"),
    ),
    key=("id",),
    comment="orders",
)
ROW = {
    "email": "Ann@Example.org",
    "country": "DE",
    "created": datetime.datetime(1, 1, 1, 2, 30),
    "seen": datetime.datetime(2024, 3, 31, 1, 30, tzinfo=datetime.UTC),
    "point": [1.5, -2.0],
    "day": datetime.date(1582, 10, 10),
}


def changes(*rows: dict[str, Any], first: int = 1) -> Changes:
    """Return Changes of rows with default values; ``deleted=True`` marks a delete."""
    fields = [pa.field(column.name, column.arrow) for column in SCHEMA.columns]
    schema = pa.schema([*fields, pa.field(DELETED, pa.bool_()), pa.field(SEQUENCE, pa.int64())])
    found = []
    for number, row in enumerate(rows):
        deleted = row.get("deleted", False)
        whole = {**ROW, **row, "id": decimal.Decimal(row["id"]), DELETED: deleted, SEQUENCE: first + number}
        found.append({name: whole[name] for name in schema.names})
    return Changes(SCHEMA, pa.RecordBatch.from_pylist(found, schema=schema))


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[DeltaSink]:
    found = DeltaSink(tmp_path)
    yield found
    found.close()


@pytest.fixture
def runner(sessions: SessionHolder, sink: DeltaSink) -> Iterator[SparkTaskRunner]:
    found = SparkTaskRunner(sessions, sink)
    yield found
    found.cancel(0)


def load(runner: SparkTaskRunner, sink: DeltaSink, channel: Channel, checkpoint: int, *given: Changes) -> None:
    sink.ensure_table(channel.target)
    for one in given:
        channel.add(one)
    futures = runner.submit([task] if (task := channel.task_for(RUN, checkpoint)) else [])
    loads = [load for future in futures for load in future.result()]
    position = BinlogPosition("b.000001", 4)
    sink.commit(loads, SinkCheckpoint(RUN.job, RUN.incarnation, RUN.fence, checkpoint, position, position, 1))


def rows(folder: Path, order: str = "id") -> list[dict[str, Any]]:
    table = DeltaTable(str(folder))
    found = QueryBuilder().register("t", table).execute(f"select * from t order by {order}").read_all()
    return pa.table(found).to_pylist()


def test_task_copies_rows_unchanged(
    tmp_path: Path, sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    first = changes({"id": 2**64 - 1}, {"id": 2}, {"id": 2, "email": "new"}, {"id": 3}, {"id": 3, "deleted": True})
    load(runner, sink, channel, 1, first, changes({"id": 4, "email": None}, first=10))
    assert rows(tmp_path / "ods/orders") == [
        {"id": decimal.Decimal(2), **ROW, "email": "new"},
        {"id": decimal.Decimal(4), **ROW, "email": None},
        {"id": decimal.Decimal(2**64 - 1), **ROW},
    ]


def test_task_renamed_columns_are_copies(
    tmp_path: Path, sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    mapping = Mapping("shop.orders", "ods.few", columns={"Mail": "EMAIL", "number": "id", "again": "email"})
    channel = Channel(mapping, SCHEMA, SparkExpressionTypes(sessions))
    channel.add(changes({"id": 1}))
    task = channel.task_for(RUN, 1)
    assert task is not None and task.copies == {"Mail": "email", "number": "id", "again": "email"}
    channel.drop()
    load(runner, sink, channel, 1, changes({"id": 1}, {"id": 2, "email": None}, {"id": 1, "deleted": True}))
    assert rows(tmp_path / "ods/few", "number") == [{"Mail": None, "number": decimal.Decimal(2), "again": None}]


def test_task_typed_rows_equal_packed_rows(
    tmp_path: Path, sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    columns = {column.name: column.name for column in SCHEMA.columns}
    given = changes({"id": 1}, {"id": 2}, {"id": 1, "email": "again"}, {"id": 2, "deleted": True}, {"id": 7})
    load(runner, sink, Channel(Mapping("shop.orders", "ods.packed"), SCHEMA), 1, given)
    typed = Mapping("shop.orders", "ods.typed", columns=columns, filter="true")
    load(runner, sink, Channel(typed, SCHEMA, SparkExpressionTypes(sessions)), 2, given)
    assert rows(tmp_path / "ods/typed") == rows(tmp_path / "ods/packed") != []
    schemas = [DeltaTable(str(tmp_path / "ods" / name)).schema() for name in ("packed", "typed")]
    assert schemas[0] == schemas[1]


def test_task_with_expressions_filter_and_deletes(
    tmp_path: Path, sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    mapping = Mapping(
        "shop.orders",
        "ods.german",
        key=("number",),
        columns={"number": "id", "mail": "lower(email)", "ratio": "cast(10 / length(email) as decimal(10,3))"},
        filter="country = 'DE' and email is not null",
    )
    channel = Channel(mapping, SCHEMA, SparkExpressionTypes(sessions))
    assert [(column.name, column.arrow) for column in channel.target.columns][2] == ("ratio", pa.decimal128(10, 3))
    load(runner, sink, channel, 1, changes({"id": 1}, {"id": 2}, {"id": 3, "country": "FR"}, {"id": 4, "email": None}))
    assert [row["number"] for row in rows(tmp_path / "ods/german", "number")] == [1, 2]
    # the filter removes row 1; the delete of row 2 has an email with which the expression would divide by zero
    load(runner, sink, channel, 2, changes({"id": 1, "country": "FR"}, {"id": 2, "email": "", "deleted": True}))
    assert rows(tmp_path / "ods/german", "number") == []


def test_channel_invalid_expression_raises_with_column(sessions: SessionHolder) -> None:
    mapping = Mapping("shop.orders", "ods.bad", columns={"id": "id", "mail": "no_such_function(email)"})
    with pytest.raises(SchemaMismatch, match="mail"):
        Channel(mapping, SCHEMA, SparkExpressionTypes(sessions))


@pytest.mark.parametrize("expression", ["cast(email as int)", "id / (length(email) - length(email))"])
def test_task_expression_failing_for_value_raises_load_rejected(
    sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner, expression: str
) -> None:
    mapping = Mapping("shop.orders", "ods.typed", columns={"id": "id", "number": expression})
    channel = Channel(mapping, SCHEMA, SparkExpressionTypes(sessions))
    with pytest.raises(LoadRejected, match=r"\[(CAST_INVALID_INPUT|DIVIDE_BY_ZERO)\]") as caught:
        load(runner, sink, channel, 1, changes({"id": 1}))
    assert caught.value.context["tables"] == "ods.typed" and "filter" in caught.value.hint


def test_task_expression_over_missing_column_raises_load_rejected(
    sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    channel = Channel(
        Mapping("shop.orders", "ods.typed", columns={"id": "id", "m": "lower(email)"}),
        SCHEMA,
        SparkExpressionTypes(sessions),
    )
    given = changes({"id": 1})
    lacking = given.rows.drop_columns(["email"])
    with pytest.raises(LoadRejected, match=r"\[UNRESOLVED_COLUMN.*`email`.*SQLSTATE: 42703") as caught:
        load(runner, sink, channel, 1, Changes(SCHEMA, lacking))
    assert caught.value.context["tables"] == "ods.typed" and "`columns`" in caught.value.hint


def test_task_reads_columns_that_are_units_or_functions(
    tmp_path: Path, sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    day = datetime.date(2024, 5, 17)
    values: dict[str, tuple[Kind, str, Any]] = {
        "id": (Kind.BIGINT, "bigint", 1),
        "day": (Kind.DATE, "date", day),
        "unit": (Kind.VARCHAR, "varchar(9)", "MONTH"),
        "current_date": (Kind.DATE, "date", datetime.date(1999, 1, 2)),
        "session_user": (Kind.VARCHAR, "varchar(9)", "Ann"),
        "other": (Kind.VARCHAR, "varchar(9)", "-"),
    }
    columns = tuple(Column(name, kind, text, nullable=name != "id") for name, (kind, text, _) in values.items())
    schema = TableSchema("shop", "orders", columns, ("id",))
    expressions = {
        "id": "id",
        "month": "trunc(day, unit)",
        "start": "date_trunc(unit, day)",
        "fixed": "current_date",
        "who": "upper(session_user)",
    }
    mapping = Mapping("shop.orders", "ods.units", columns=expressions)
    read = mapping.reads(schema).columns
    assert read == values.keys() - {"other"}
    fields = [pa.field(column.name, column.arrow) for column in columns if column.name in read]
    found = {name: values[name][2] for name in read} | {DELETED: False, SEQUENCE: 1}
    types = pa.schema([*fields, pa.field(DELETED, pa.bool_()), pa.field(SEQUENCE, pa.int64())])
    given = Changes(schema, pa.RecordBatch.from_pylist([found], types))
    load(runner, sink, Channel(mapping, schema, SparkExpressionTypes(sessions)), 1, given)
    (row,) = rows(tmp_path / "ods/units")
    first = datetime.date(2024, 5, 1)
    assert (row["month"], row["start"].date(), row["fixed"], row["who"]) == (
        first,
        first,
        values["current_date"][2],
        "ANN",
    )


def test_data_exception_with_long_value_is_shortened() -> None:
    text = "Job aborted: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value '{}' of the type"
    told = _spark_message(
        text.format("[A] \n" * 200_000) + ' "STRING" cannot be cast. SQLSTATE: 22018\n== SQL ==', _DATA_EXCEPTION
    )
    assert told.startswith("[CAST_INVALID_INPUT] The value '[A] [A] ") and told.endswith("(SQLSTATE: 22018)")
    assert len(told) < 400
    assert _spark_message("[A] " * 100_000 + "Connection refused", _DATA_EXCEPTION) == ""


def test_submit_small_tasks_share_one_spark_job(
    tmp_path: Path, sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    load(runner, sink, Channel(Mapping("shop.first", "ods.first"), SCHEMA), 1, changes({"id": 0}))  # starts the session
    channels = [Channel(Mapping(f"shop.t{number}", f"ods.t{number}"), SCHEMA) for number in range(20)]
    for number, channel in enumerate(channels):
        sink.ensure_table(channel.target)
        channel.add(changes({"id": number}))
    tasks = [task for channel in channels if (task := channel.task_for(RUN, 1)) is not None]
    jobs = sessions.get().sparkContext._jsc.sc().statusStore()  # of all groups
    before = jobs.jobsList(None).size()
    loads = [load for future in runner.submit(tasks) for load in future.result()]
    assert jobs.jobsList(None).size() - before == 1
    assert sorted(load.table for load in loads) == sorted(channel.target.name for channel in channels)


def test_task_null_in_not_null_column_raises_load_rejected(
    sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    with pytest.raises(LoadRejected) as caught:
        load(runner, sink, channel, 1, changes({"id": 1}, {"id": 2, "country": None}))
    assert caught.value.context["column"] == "country"
    assert "2" in str(caught.value.context["keys"])


def test_task_folder_unseen_by_executors_raises(
    monkeypatch: pytest.MonkeyPatch, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    sink._staging._probe()
    monkeypatch.setattr(
        sink._staging, "_probe", lambda: "seen-elsewhere"
    )  # the folder of the same name on another host does not have it
    with pytest.raises(SinkUnavailable, match="does not see"):
        load(runner, sink, channel, 1, changes({"id": 1}))


def test_task_root_removed_after_probe_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    token = sink._staging._probe()
    monkeypatch.setattr(sink._staging, "_probe", lambda: token)
    away = tmp_path.with_name("away")
    tmp_path.rename(away)
    try:
        with pytest.raises(SinkUnavailable, match=f"does not exist.*path {tmp_path}"):
            load(runner, sink, channel, 1, changes({"id": 1}))
        assert not tmp_path.exists()
    finally:
        away.rename(tmp_path)


def test_prepare_repeated_returns_same_load(tmp_path: Path, sessions: SessionHolder, sink: DeltaSink) -> None:
    target = Mapping("shop.orders", "ods.orders").target_table(SCHEMA)
    sink.ensure_table(target)
    given = changes(*({"id": number} for number in range(50)))
    name = LoadName("shop", "0badcafe", 1, 1, "ods.orders", 0)
    found = [prepare(sink, typed_frame(sessions.get(), [given.rows]), name, target) for _ in range(2)]
    assert found[0] == found[1]
    assert [load.name.part for load in found[0]] == [0]
    sink.commit(
        found[0], SinkCheckpoint("shop", "0badcafe", 1, 1, BinlogPosition("b.1", 4), BinlogPosition("b.1", 4), 1)
    )
    assert [row["id"] for row in rows(tmp_path / "ods/orders")] == list(range(50))


def test_cancel_running_task_raises_cancelled_error(
    sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    sink.ensure_table(channel.target)
    channel.add(changes({"id": 1}))
    task = channel.task_for(RUN, 1)
    assert task is not None
    futures = runner.submit([task])
    runner.cancel(0)
    with pytest.raises(CancelledError):
        futures[0].result(timeout=0)


def test_session_with_dead_jvm_is_replaced(tmp_path: Path, sink: DeltaSink, sessions: SessionHolder) -> None:
    runner = SparkTaskRunner(sessions, sink)
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    load(runner, sink, channel, 1, changes({"id": 1}))
    process = sessions.get().sparkContext._gateway.proc  # type: ignore[union-attr]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    load(runner, sink, channel, 2, changes({"id": 2}))
    assert [row["id"] for row in rows(tmp_path / "ods/orders")] == [1, 2]


def test_task_releases_its_rows(sink: DeltaSink, runner: SparkTaskRunner) -> None:
    """The rows of a Task that was started are in shared memory only."""
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    sink.ensure_table(channel.target)
    channel.add(changes({"id": 1}))
    task = channel.task_for(RUN, 1)
    assert task is not None and task.rows
    (loads,) = (future.result() for future in runner.submit([task]))
    assert loads[0].rows == 1 and not task.rows


@dataclass(frozen=True)
class KillsJvmOnce:
    """A writer that kills the JVM of its executor at its first call."""

    writer: PartWriter
    mark: Path

    def __call__(self, name: LoadName, batches: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        if not self.mark.exists():
            self.mark.touch()
            for process in psutil.Process().parents():
                if process.name() == "java":
                    process.kill()
        return self.writer(name, batches)


def test_task_is_written_again_when_the_jvm_dies(
    tmp_path: Path, sink: DeltaSink, sessions: SessionHolder, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows are only in shared memory then."""
    runner, writer_of = SparkTaskRunner(sessions, sink), sink.part_writer
    sink.part_writer = lambda target: KillsJvmOnce(writer_of(target), tmp_path / "killed")  # type: ignore[method-assign, assignment, return-value]
    for mapping in (Mapping("shop.orders", "ods.orders"), Mapping("shop.orders", "ods.typed", filter="id > 0")):
        (tmp_path / "killed").unlink(missing_ok=True)
        load(runner, sink, Channel(mapping, SCHEMA, SparkExpressionTypes(sessions)), 1, changes({"id": 1}, {"id": 2}))
        assert [row["id"] for row in rows(tmp_path / mapping.target.replace(".", "/"))] == [1, 2]
    assert caplog.text.count("they are written again") == 2
    runner.cancel(0)


def test_task_typed_rows_are_written_as_one_part(
    tmp_path: Path, sessions: SessionHolder, sink: DeltaSink, runner: SparkTaskRunner
) -> None:
    """Spark creates a partition per ``maxRecordsPerBatch`` rows; each would be written with the same name."""
    setting, conf = "spark.sql.execution.arrow.maxRecordsPerBatch", sessions.get().conf
    before = conf.get(setting)
    conf.set(setting, "100")
    try:
        typed = Mapping("shop.orders", "ods.typed", columns={"id": "id", "email": "lower(email)"})
        channel = Channel(typed, SCHEMA, SparkExpressionTypes(sessions))
        load(runner, sink, channel, 1, changes(*({"id": number} for number in range(1000))))
    finally:
        conf.set(setting, before)
    assert [int(row["id"]) for row in rows(tmp_path / "ods/typed")] == list(range(1000))
