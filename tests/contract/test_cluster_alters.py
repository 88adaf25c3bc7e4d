"""Columns of Doris and StarRocks are changed once: every step, every state of the cluster's job, crashes, repeats."""

from __future__ import annotations

import datetime
import decimal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import SinkOwnershipError, SinkUnavailable, TargetMismatch
from cdc.model.batch import FENCE_STEP
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import AlterAction, AlterStep, LoadState, TargetColumn, TargetTable, can_alter
from tests.contract.test_cluster_sinks import KINDS, sink_on
from tests.emulators.cases import TABLE, USER, mark_of, name_of, write
from tests.emulators.faults import Fault

NAME = TABLE.columns[1]
INT = TargetColumn("n", pa.int32(), True, "int")
LONG = TargetColumn("n", pa.int64(), True, "bigint")
FIVE = pa.scalar(5, pa.int32())
ADD = AlterStep(AlterAction.ADD, None, INT)
ADD_FIVE = AlterStep(AlterAction.ADD, None, INT, FIVE)
DROP = AlterStep(AlterAction.DROP, INT, None)
RENAME = AlterStep(AlterAction.RENAME, NAME, replace(NAME, name="was"))
WIDEN = AlterStep(AlterAction.WIDEN, INT, LONG)
LOOSEN = AlterStep(AlterAction.MAKE_NULLABLE, replace(INT, nullable=False), INT)
TRUNCATE = AlterStep(AlterAction.TRUNCATE, None, None)
WITH_N = replace(TABLE, columns=(*TABLE.columns, INT))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest.fixture
def cluster(kind: str, settings: dict[str, Any]) -> Iterator[Any]:
    with KINDS[kind][0].emulator(**settings) as cluster:
        yield cluster


@pytest.fixture
def sink(kind: str, cluster: Any) -> Iterator[Any]:
    """A sink whose table TABLE has two rows of checkpoint 1."""
    sink = new_sink(kind, cluster)
    sink.ensure_table(TABLE)
    sink.commit([write(sink, (1, "a", False, 1), (2, None, False, 2))], mark_of())
    yield sink
    sink.close()


def new_sink(kind: str, cluster: Any, **arguments: Any) -> Any:
    sink = sink_on(kind, cluster, **arguments)
    sink._alterer.first_pause_s = 0.01
    sink.acquire_ownership(mark_of(0), [TABLE.name])
    return sink


@pytest.fixture
def with_n(kind: str, cluster: Any, sink: Any) -> Any:
    """The sink after an added column ``n``, an INT whose existing rows have 5."""
    sink.alter(TABLE, [ADD_FIVE], mark_of(2))
    return sink


def described(cluster: Any) -> dict[str, tuple[str, str, Any]]:
    return {row[0]: (row[1], row[2], row[4]) for row in cluster.execute("DESC ods.orders")[1]}


def alters(cluster: Any) -> list[str]:
    return [job.state for job in cluster.alters.jobs]


def load_n(sink: Any, table: TargetTable, number: int, checkpoint: int) -> None:
    """Load and commit one row of ``table``: id, name, n."""
    columns = {column.name: pa.array([value], column.arrow) for column, value in zip(
        table.columns, (number, "new", number), strict=True)}  # fmt: skip
    batch = pa.record_batch({**columns, DELETED: pa.array([False]), SEQUENCE: pa.array([checkpoint * 1000])})
    load = sink.part_writer(table)(name_of(checkpoint), iter([batch]))
    sink.commit([load], mark_of(checkpoint))


# ---- steps


def test_cluster_sink_alters_one_step_at_a_time(sink: Any) -> None:
    assert can_alter(sink) and sink.alters_in_one_commit is False


@pytest.mark.parametrize(("step", "value"), [(ADD, None), (ADD_FIVE, 5)], ids=["null", "five"])
def test_added_column_gives_old_rows_the_fill(cluster: Any, sink: Any, step: AlterStep, value: int | None) -> None:
    assert sink.check_steps(TABLE, [step]) == ()
    sink.alter(TABLE, [step], mark_of(2))
    assert cluster.rows("SELECT * FROM ods.orders") == [(1, "a", value), (2, None, value)]
    assert sink.describe(WITH_N) == ()
    load_n(sink, WITH_N, 3, 3)
    assert (3, "new", 3) in cluster.rows("SELECT * FROM ods.orders")


def test_dropped_column_is_gone_and_loads_go_on(cluster: Any, with_n: Any) -> None:
    with_n.alter(WITH_N, [DROP], mark_of(3))
    assert [*described(cluster)] == ["id", "name"]
    with_n.commit([write(with_n, (3, "c", False, 4000), name=name_of(4))], mark_of(4))
    assert cluster.rows("SELECT * FROM ods.orders") == [(1, "a"), (2, None), (3, "c")]


def test_renamed_column_keeps_values(cluster: Any, sink: Any) -> None:
    sink.alter(TABLE, [RENAME], mark_of(2))
    table = replace(TABLE, columns=(TABLE.columns[0], replace(NAME, name="was")))
    assert sink.describe(table) == ()
    sink.commit([write(sink, (3, "c", False, 3000), name=name_of(3), table=table)], mark_of(3))
    assert cluster.rows("SELECT id, was FROM ods.orders") == [(1, "a"), (2, None), (3, "c")]


def test_widened_column_keeps_default_comment_and_values(cluster: Any, with_n: Any) -> None:
    storage = cluster.storage
    table = storage.tables["ods", "orders"]
    table.columns = (*table.columns[:-1], replace(table.columns[-1], comment="it's `n`"))
    (cost,) = with_n.check_steps(WITH_N, [WIDEN])
    assert not cost.fatal and "rewrites all rows" in cost.problem and "about 2 rows and 200 bytes" in cost.problem
    with_n.alter(WITH_N, [WIDEN], mark_of(3))
    assert described(cluster)["n"] == ("bigint", "Yes", "5") and table.columns[-1].comment == "it's `n`"
    assert cluster.rows("SELECT n FROM ods.orders") == [(5,), (5,)]


def test_column_made_nullable_accepts_null(kind: str, cluster: Any, sink: Any) -> None:
    cluster.execute("ALTER TABLE ods.orders ADD COLUMN n INT NOT NULL DEFAULT '5'")
    sink.alter(WITH_N, [LOOSEN], mark_of(2))
    assert described(cluster)["n"] == ("int", "Yes", "5")
    assert sink.describe(WITH_N) == ()


def test_column_of_not_null_source_is_added_nullable(cluster: Any, sink: Any) -> None:
    step = AlterStep(AlterAction.ADD, None, replace(INT, nullable=False), FIVE)
    sink.alter(TABLE, [step], mark_of(2))
    assert described(cluster)["n"][1] == "Yes"


TEXT = 'it\'s "quoted" \\ back\nline\ttab 😀 `tick` % ; --'
VALUES: dict[str, tuple[pa.DataType, str, Any, Any]] = {
    "tinyint": (pa.int8(), "tinyint", -128, -128),
    "bigint": (pa.int64(), "bigint", -(2**63), -(2**63)),
    "largeint": (pa.decimal128(20, 0), "bigint unsigned", decimal.Decimal(2**64 - 1), 2**64 - 1),
    "decimal": (pa.decimal128(12, 2), "decimal(12,2)", decimal.Decimal("-1.50"), decimal.Decimal("-1.50")),
    "boolean": (pa.bool_(), "tinyint(1)", True, True),
    "double": (pa.float64(), "double", 1e-7, 1e-7),
    "date": (pa.date32(), "date", datetime.date(2024, 2, 29), datetime.date(2024, 2, 29)),
    "datetime": (pa.timestamp("us"), "datetime", datetime.datetime(2024, 2, 29, 1, 2, 3),
                 datetime.datetime(2024, 2, 29, 1, 2, 3)),
    "datetime6": (pa.timestamp("us"), "datetime(6)", datetime.datetime(2024, 2, 29, 1, 2, 3, 45),
                  datetime.datetime(2024, 2, 29, 1, 2, 3, 45)),
    "empty": (pa.string(), "varchar(10)", "", ""),
    "single": (pa.string(), "varchar(20)", "it's", "it's"),
    "double-quote": (pa.string(), "text", 'say "x"\n😀', 'say "x"\n😀'),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_fill_of_each_type_is_read_exactly(cluster: Any, sink: Any, name: str) -> None:
    arrow, source, value, expected = VALUES[name]
    step = AlterStep(AlterAction.ADD, None, TargetColumn("v", arrow, True, source), pa.scalar(value, arrow))
    assert sink.check_steps(TABLE, [step]) == ()
    sink.alter(TABLE, [step], mark_of(2))
    assert cluster.rows("SELECT v FROM ods.orders") == [(expected,)] * 2
    sink.alter(TABLE, [step], mark_of(2))  # a repeat recognises the default
    assert len(cluster.alters.jobs) == 1


def test_fill_with_all_kinds_of_characters_is_exact_or_refused(kind: str, cluster: Any, sink: Any) -> None:
    step = AlterStep(AlterAction.ADD, None, TargetColumn("v", pa.string(), True, "text"), pa.scalar(TEXT))
    if kind == "doris":  # its versions read escapes in different ways
        (finding,) = sink.check_steps(TABLE, [step])
        assert finding.fatal and "Load the table again" in finding.hint
        return
    sink.alter(TABLE, [step], mark_of(2))
    assert cluster.rows("SELECT v FROM ods.orders") == [(TEXT,)] * 2


@pytest.mark.parametrize("name", ["two words", "select", "weird``name", "größe", "DEFAULT", "a.b"])
def test_column_with_hostile_name_is_changed_or_refused(cluster: Any, sink: Any, name: str) -> None:
    column = replace(INT, name=name)
    steps = [
        AlterStep(AlterAction.ADD, None, column, FIVE),
        AlterStep(AlterAction.WIDEN, column, replace(column, arrow=pa.int64())),
        AlterStep(AlterAction.RENAME, replace(column, arrow=pa.int64()), replace(LONG, name="n")),
    ]
    found = [finding for finding in sink.check_steps(TABLE, steps[:1]) if finding.fatal]
    if found:
        assert repr(name) in found[0].problem
        return
    for number, step in enumerate(steps):
        sink.alter(TABLE, [step], mark_of(2 + number))
    assert cluster.rows("SELECT id, n FROM ods.orders") == [(1, 5), (2, 5)]


# ---- repeats


@pytest.mark.parametrize("step", [ADD_FIVE, RENAME, WIDEN, DROP, LOOSEN], ids=lambda step: step.action.value)
def test_repeated_step_runs_no_statement(kind: str, cluster: Any, sink: Any, step: AlterStep) -> None:
    """A new sink repeats the step, as after a crash between the end of the job and the next checkpoint."""
    if step.action not in (AlterAction.ADD, AlterAction.RENAME):
        null = "NOT NULL" if step.action is AlterAction.MAKE_NULLABLE else "NULL"
        cluster.execute(f"ALTER TABLE ods.orders ADD COLUMN n INT {null} DEFAULT '5'")
    table = TABLE if step in (ADD_FIVE, RENAME) else WITH_N
    sink.alter(table, [step], mark_of(2))
    columns, rows, jobs = described(cluster), cluster.rows("SELECT * FROM ods.orders"), len(cluster.alters.jobs)
    cluster.settings.denied_alter.add((USER[0], "ods"))
    again = new_sink(kind, cluster)
    again.alter(table, [step], mark_of(2))
    again.close()
    assert (described(cluster), cluster.rows("SELECT * FROM ods.orders")) == (columns, rows)
    assert len(cluster.alters.jobs) == jobs


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.DROP_ANSWER])
@pytest.mark.parametrize("step", [ADD_FIVE, RENAME, WIDEN, DROP], ids=lambda step: step.action.value)
def test_lost_connection_in_statement_does_the_step_once(
    cluster: Any, sink: Any, monkeypatch: pytest.MonkeyPatch, step: AlterStep, fault: Fault
) -> None:
    """The columns decide whether the statement is sent again: a second one could be executed after a later step."""
    if step in (WIDEN, DROP):
        sink.alter(TABLE, [ADD_FIVE], mark_of(2))
    before = len(cluster.alters.jobs)
    cluster.faults.order("sql", fault, match="ALTER TABLE `ods`")
    received: list[str] = []
    take = cluster.faults.take
    monkeypatch.setattr(
        cluster.faults, "take", lambda place, subject="": received.append(subject) or take(place, subject)
    )
    sink.alter(TABLE, [step], mark_of(3))
    first, *more = [number for number, one in enumerate(received) if one.startswith("ALTER TABLE `ods`")]
    assert len(more) == (fault is Fault.RESET), "a statement that was executed is not sent again"
    assert all(any(one.startswith("DESC") for one in received[first:number]) for number in more)
    assert [struck[1] for struck in cluster.faults.struck] == [fault]
    assert len(cluster.alters.jobs) - before == (0 if step is RENAME else 1)
    sink.alter(TABLE, [step], mark_of(3))


@pytest.mark.parametrize("step", [DROP, WIDEN], ids=lambda step: step.action.value)
def test_job_of_a_statement_without_answer_is_waited_for(cluster: Any, with_n: Any, step: AlterStep) -> None:
    cluster.alters.are_light, cluster.alters.is_held = False, True
    cluster.faults.order("sql", Fault.DROP_ANSWER, match="ALTER TABLE `ods`")
    ended = run_alter(with_n, step)
    wait_until(lambda: alters(cluster)[-1] == "RUNNING", cluster)
    cluster.alters.is_held = False
    assert ended() is None
    assert len(cluster.alters.jobs) == 2 and ("n" in described(cluster)) is (step is WIDEN)


@pytest.mark.parametrize("step", [RENAME, ADD_FIVE], ids=lambda step: step.action.value)
def test_answers_that_are_always_lost_are_unavailable(cluster: Any, sink: Any, step: AlterStep) -> None:
    cluster.faults.order("sql", Fault.RESET, times=50, match="ALTER TABLE `ods`")
    with pytest.raises(SinkUnavailable):
        sink.alter(TABLE, [step], mark_of(3))


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.DROP_ANSWER])
def test_lost_connection_in_truncate_is_repeated(kind: str, cluster: Any, sink: Any, fault: Fault) -> None:
    """One call sends TRUNCATE once: an FE whose answer was lost may execute it later, so the run decides again."""
    cluster.faults.order("sql", fault, times=2, match="TRUNCATE TABLE `ods`")
    for number in (1, 2):
        with pytest.raises(SinkUnavailable):
            sink.alter(TABLE, [TRUNCATE], mark_of(2))
        assert [struck[1] for struck in cluster.faults.struck] == [fault] * number
    sink.alter(TABLE, [TRUNCATE], mark_of(2))
    assert cluster.rows("SELECT * FROM ods.orders") == []
    again = new_sink(kind, cluster)
    again.alter(TABLE, [TRUNCATE], mark_of(2))
    assert cluster.rows("SELECT * FROM ods.orders") == []
    again.close()


def test_truncate_after_a_wait_checks_the_owner_again(kind: str, cluster: Any, with_n: Any) -> None:
    cluster.alters.is_held = True
    cluster.execute("ALTER TABLE ods.orders MODIFY COLUMN n BIGINT NULL DEFAULT '5'")
    ended = run_alter(with_n, TRUNCATE)
    wait_until(lambda: alters(cluster)[-1] == "RUNNING", cluster)
    other = sink_on(kind, cluster)
    other.acquire_ownership(replace(mark_of(1, 2 * FENCE_STEP), incarnation="ffffffff", fence=2), [TABLE.name])
    cluster.alters.is_held = False
    assert isinstance(ended(), SinkOwnershipError)
    assert cluster.rows("SELECT id FROM ods.orders") == [(1,), (2,)]
    other.close()


def test_stop_before_truncate_keeps_the_rows(cluster: Any, sink: Any) -> None:
    sink.stop_altering()
    with pytest.raises(SinkUnavailable, match="The run was stopped before TRUNCATE"):
        sink.alter(TABLE, [TRUNCATE], mark_of(2))
    assert len(cluster.rows("SELECT * FROM ods.orders")) == 2
    sink.alter(TABLE, [TRUNCATE], mark_of(2))
    assert cluster.rows("SELECT * FROM ods.orders") == []


def test_prepared_load_of_killed_run_does_not_survive_truncate(kind: str, cluster: Any, sink: Any) -> None:
    killed = new_sink(kind, cluster)
    load = write(killed, (9, "x", False, 9), name=name_of(2))
    killed.close()
    sink.alter(TABLE, [TRUNCATE], mark_of(3))
    assert sink.state(load) is not LoadState.PREPARED
    assert cluster.rows("SELECT * FROM ods.orders") == []


def test_truncate_waits_for_the_job_of_the_table(cluster: Any, with_n: Any) -> None:
    cluster.alters.is_held = True
    cluster.execute("ALTER TABLE ods.orders MODIFY COLUMN n BIGINT NULL DEFAULT '5'")
    ended = run_alter(with_n, TRUNCATE)
    wait_until(lambda: alters(cluster)[-1] == "RUNNING", cluster)
    assert cluster.rows("SELECT id FROM ods.orders") == [(1,), (2,)]
    cluster.alters.is_held = False
    assert ended() is None
    assert cluster.rows("SELECT id FROM ods.orders") == []


def test_truncate_that_is_always_refused_stops_with_its_text(cluster: Any, sink: Any) -> None:
    cluster.faults.order("sql", Fault.ERROR, times=50, match="TRUNCATE TABLE", text="table is not stable")
    with pytest.raises(TargetMismatch, match="table is not stable") as caught:
        sink.alter(TABLE, [TRUNCATE], mark_of(2))
    assert "TRUNCATE TABLE `ods`.`orders`" in caught.value.hint


def test_crash_while_job_runs_is_waited_for_by_next_sink(kind: str, cluster: Any, with_n: Any) -> None:
    cluster.alters.is_held = True
    stopped = run_alter(with_n, WIDEN)
    wait_until(lambda: alters(cluster)[-1] == "RUNNING", cluster)
    with_n.stop_altering()
    assert "The wait was stopped" in str(stopped())
    again = new_sink(kind, cluster)
    ended = run_alter(again, WIDEN)
    time.sleep(0.1)
    cluster.alters.is_held = False
    assert ended() is None
    again.close()
    assert len(cluster.alters.jobs) == 2 and described(cluster)["n"][0] == "bigint"


@pytest.mark.parametrize("statement", ["ALTER TABLE ods.orders ADD COLUMN n BIGINT NULL DEFAULT '5'", ""])
def test_step_done_by_hand_is_accepted(cluster: Any, sink: Any, statement: str) -> None:
    cluster.execute(statement or "ALTER TABLE ods.orders ADD COLUMN n INT NULL DEFAULT '5'")
    sink.alter(TABLE, [ADD_FIVE], mark_of(2))
    assert len(cluster.alters.jobs) == 1


@pytest.mark.parametrize(
    ("by_hand", "step", "shown"),
    [
        ("ADD COLUMN n DATE NULL", ADD_FIVE, "has `n` DATE NULL; before the change it has no column, after it `n` INT"),
        ("ADD COLUMN n INT NULL", ADD_FIVE, "has `n` INT NULL; before the change it has no column"),
        ("ADD COLUMN n INT NULL DEFAULT '6'", ADD_FIVE, "DEFAULT '6'"),
        ("ADD COLUMN n DATE NULL", WIDEN, "has `n` DATE NULL; before the change it has `n` INT NULL"),
        ("ADD COLUMN was VARCHAR(40) NULL", RENAME, "has `name` VARCHAR(40) NULL, `was` VARCHAR(40) NULL"),
        ("DROP COLUMN name", RENAME, "has no such column"),
    ],
)
def test_column_changed_to_something_else_stops_the_job(
    cluster: Any, sink: Any, by_hand: str, step: AlterStep, shown: str
) -> None:
    cluster.execute(f"ALTER TABLE ods.orders {by_hand}")
    before = described(cluster)
    with pytest.raises(TargetMismatch) as caught:
        sink.alter(TABLE, [step], mark_of(2))
    assert shown in caught.value.message and "cdc resume" in caught.value.hint
    assert [finding.fatal for finding in sink.check_steps(TABLE, [step])] == [True]
    assert described(cluster) == before


# ---- jobs


def run_alter(sink: Any, step: AlterStep, table: TargetTable = WITH_N) -> Any:
    """Run ``alter`` in a thread. The returned function waits for its end and returns its error."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            sink.alter(table, [step], mark_of(3))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> BaseException | None:
        thread.join(240)
        assert not thread.is_alive()
        return errors[0] if errors else None

    return result


def wait_until(condition: Any, cluster: Any) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        cluster.alters.advance()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("step", [WIDEN, DROP], ids=["widen", "drop"])
def test_alter_waits_through_all_states_of_job(cluster: Any, with_n: Any, step: AlterStep) -> None:
    cluster.alters.delay_s, cluster.alters.are_light = 0.1, False
    started = time.monotonic()
    with_n.alter(WITH_N, [step], mark_of(3))
    assert time.monotonic() - started >= 0.2
    assert cluster.alters.jobs[-1].states == ["PENDING", "WAITING_TXN", "RUNNING", "FINISHED"]


def test_loads_of_killed_run_are_discarded_before_the_job(kind: str, cluster: Any, with_n: Any) -> None:
    """The cluster's job would wait for them until they expire."""
    killed = new_sink(kind, cluster)
    batch = pa.record_batch({"id": [9], "name": ["x"], "n": pa.array([1], pa.int32()), DELETED: [False], SEQUENCE: [9]})
    load = killed.part_writer(WITH_N)(name_of(2), iter([batch]))
    killed.close()
    with_n.alter(WITH_N, [WIDEN], mark_of(3))
    assert with_n.state(load) is not LoadState.PREPARED
    assert alters(cluster)[-1] == "FINISHED"


def test_alter_waits_for_transaction_of_another_client(kind: str, cluster: Any, with_n: Any) -> None:
    other = name_of(1, job="other")
    batch = pa.record_batch({"id": [9], "name": ["x"], "n": pa.array([1], pa.int32()), DELETED: [False], SEQUENCE: [9]})
    load = with_n.part_writer(WITH_N)(other, iter([batch]))
    ended = run_alter(with_n, WIDEN)
    wait_until(lambda: alters(cluster)[-1] == "WAITING_TXN", cluster)
    with_n.abort("other", "0a1b2c3d", 1, 1)
    assert ended() is None and load is not None
    assert described(cluster)["n"][0] == "bigint"


def test_cancelled_job_is_tried_again(cluster: Any, with_n: Any) -> None:
    cluster.alters.cancelled = ["tablet 7 has no replica", "tablet 8 has no replica"]
    with_n.alter(WITH_N, [WIDEN], mark_of(3))
    assert alters(cluster)[1:] == ["CANCELLED", "CANCELLED", "FINISHED"]


def test_job_that_is_always_cancelled_stops_with_its_message(cluster: Any, with_n: Any) -> None:
    cluster.alters.cancelled = ["tablet 7 has no replica"] * 9
    with pytest.raises(TargetMismatch, match="job was cancelled: tablet 7 has no replica") as caught:
        with_n.alter(WITH_N, [WIDEN], mark_of(3))
    assert "MODIFY COLUMN `n` BIGINT NULL" in caught.value.hint
    assert alters(cluster)[1:] == ["CANCELLED"] * 5
    assert described(cluster)["n"] == ("int", "Yes", "5")


def test_hanging_job_ends_the_wait_after_the_time_limit(kind: str, cluster: Any, with_n: Any) -> None:
    cluster.alters.is_held = True
    sink = new_sink(kind, cluster, alter_timeout_s=0.3)
    with pytest.raises(SinkUnavailable, match=r"its job is RUNNING after 0\.3 s") as caught:
        sink.alter(WITH_N, [WIDEN], mark_of(3))
    assert "SHOW ALTER TABLE COLUMN" in caught.value.hint
    cluster.alters.is_held = False
    sink.alter(WITH_N, [WIDEN], mark_of(3))
    sink.close()
    assert alters(cluster)[1:] == ["FINISHED"]


def test_progress_is_that_of_the_running_job(cluster: Any, with_n: Any) -> None:
    cluster.alters.is_held = True
    assert with_n.alter_progress is None
    ended = run_alter(with_n, WIDEN)
    wait_until(lambda: with_n.alter_progress == 0.5, cluster)
    cluster.alters.is_held = False
    assert ended() is None and with_n.alter_progress is None


def test_stop_without_running_alter_ends_the_next_wait_only(cluster: Any, with_n: Any) -> None:
    with_n.stop_altering()
    cluster.alters.is_held = True
    with pytest.raises(SinkUnavailable, match="stopped"):
        with_n.alter(WITH_N, [WIDEN], mark_of(3))
    cluster.alters.is_held = False
    with_n.alter(WITH_N, [WIDEN], mark_of(3))


def test_statement_during_job_of_a_person_waits(cluster: Any, with_n: Any) -> None:
    cluster.alters.is_held, cluster.alters.are_light = True, False
    cluster.execute("ALTER TABLE ods.orders ADD COLUMN other INT NULL")
    ended = run_alter(with_n, WIDEN)
    time.sleep(0.1)
    assert len(cluster.alters.jobs) == 2
    cluster.alters.is_held = False
    assert ended() is None
    assert {"n", "other"} < {*described(cluster)}


# ---- refusals


def test_refused_statement_is_tried_again(cluster: Any, with_n: Any) -> None:
    cluster.faults.order("sql", Fault.ERROR, times=2, match="ALTER TABLE `ods`", text="table is not stable")
    with_n.alter(WITH_N, [DROP], mark_of(3))
    assert "n" not in described(cluster)


def test_statement_that_is_always_refused_stops_with_its_text(cluster: Any, with_n: Any) -> None:
    cluster.faults.order("sql", Fault.ERROR, times=50, match="ALTER TABLE `ods`", text="Column does not exists: n")
    with pytest.raises(TargetMismatch, match=r"does not change ods\.orders") as caught:
        with_n.alter(WITH_N, [DROP], mark_of(3))
    assert "Column does not exists: n" in caught.value.message and "DROP COLUMN `n`" in caught.value.hint


def test_missing_alter_right_names_the_grant(kind: str, cluster: Any, sink: Any) -> None:
    cluster.settings.denied_alter.add((USER[0], "ods"))
    with pytest.raises(TargetMismatch, match="refuses the user") as caught:
        sink.alter(TABLE, [ADD], mark_of(2))
    grant = "ALTER_PRIV, CREATE_PRIV ON ods.*" if kind == "doris" else "ALTER ON ALL TABLES IN DATABASE ods"
    assert grant in caught.value.hint
    cluster.settings.denied_alter.clear()
    sink.alter(TABLE, [ADD], mark_of(2))


def test_alter_of_other_owner_is_refused(kind: str, cluster: Any, sink: Any) -> None:
    other = sink_on(kind, cluster)
    other.acquire_ownership(replace(mark_of(1, 2 * FENCE_STEP), incarnation="ffffffff", fence=2), [TABLE.name])
    with pytest.raises(SinkOwnershipError):
        sink.alter(TABLE, [ADD], mark_of(2))
    other.close()
    assert "n" not in described(cluster)


def test_missing_table_is_reported(sink: Any) -> None:
    missing = replace(TABLE, name="ods.missing")
    (finding,) = sink.check_steps(missing, [ADD])
    assert finding.fatal and "no table ods.missing" in finding.problem
    with pytest.raises(TargetMismatch):
        sink.alter(missing, [ADD], mark_of(2))


def test_cluster_that_does_not_answer_raises_unavailable(kind: str, cluster: Any, sink: Any) -> None:
    away = sink_on(kind, cluster, sql_port=1)
    with pytest.raises(SinkUnavailable):
        away.alter(TABLE, [ADD], mark_of(2))
    with pytest.raises(SinkUnavailable):
        away.check_steps(TABLE, [ADD])
    away.close()


@pytest.mark.parametrize("match", ["SHOW ALTER", "DESC `ods`", "SHOW FULL COLUMNS"])
def test_lost_connection_between_statements_is_opened_again(cluster: Any, with_n: Any, match: str) -> None:
    cluster.faults.order("sql", Fault.RESET, match=match)
    with_n.alter(WITH_N, [WIDEN], mark_of(3))
    assert len(cluster.faults.struck) == 1 and alters(cluster) == ["FINISHED"] * 2


def test_wide_column_takes_rows_of_a_narrower_source_and_is_renamed(cluster: Any, with_n: Any) -> None:
    """A source column that becomes narrower changes nothing in the target, and later steps know the wide column."""
    with_n.alter(WITH_N, [WIDEN], mark_of(3))
    load_n(with_n, WITH_N, 7, 4)
    assert not [one for one in with_n.check([WITH_N]) if one.fatal]
    renamed = AlterStep(AlterAction.RENAME, INT, replace(INT, name="m"))
    again = AlterStep(AlterAction.WIDEN, renamed.after, replace(LONG, name="m"))
    assert not [one for one in with_n.check_steps(WITH_N, [renamed, again]) if one.fatal]
    with_n.alter(WITH_N, [renamed, again], mark_of(5))
    assert described(cluster)["m"][0].lower() == "bigint"
    assert cluster.rows("SELECT m FROM ods.orders WHERE id = 7") == [(7,)]


def test_key_column_change_is_fatal_in_check(sink: Any) -> None:
    key = TABLE.columns[0]
    for step in (
        AlterStep(AlterAction.DROP, key, None),
        AlterStep(AlterAction.RENAME, key, replace(key, name="other")),
        AlterStep(AlterAction.WIDEN, key, replace(key, arrow=pa.decimal128(20, 0), source_type="bigint unsigned")),
    ):
        assert any(finding.fatal and "key" in finding.problem for finding in sink.check_steps(TABLE, [step])), step


def test_starrocks_refuses_the_first_name_of_a_renamed_column(kind: str, cluster: Any, sink: Any) -> None:
    sink.alter(TABLE, [RENAME], mark_of(2))
    step = AlterStep(AlterAction.ADD, None, NAME)
    if kind == "doris":
        sink.alter(TABLE, [step], mark_of(3))
        return
    with pytest.raises(TargetMismatch, match="already exists in column id: name"):
        sink.alter(TABLE, [step], mark_of(3))


# ---- properties and versions


def test_new_table_has_light_schema_change(kind: str, cluster: Any, sink: Any) -> None:
    name = "light_schema_change" if kind == "doris" else "fast_schema_evolution"
    properties = cluster.storage.tables["ods", "orders"].properties
    assert properties[name] == "true"
    assert sink.check([TABLE]) == () or not any(name in finding.problem for finding in sink.check([TABLE]))
    properties[name] = "false"
    (finding,) = [finding for finding in sink.check([TABLE]) if name in finding.problem]
    assert not finding.fatal and finding.hint
    if kind == "doris":
        (fatal,) = sink.check_steps(TABLE, [RENAME])
        assert fatal.fatal and "renames no column" in fatal.problem
        cluster.execute(finding.hint)
        assert sink.check_steps(TABLE, [RENAME]) == ()


@pytest.mark.parametrize("kind", ["starrocks-single"], indirect=True)
@pytest.mark.parametrize("settings", [{"version": (3, 1, 5)}])
def test_old_starrocks_cannot_rename(cluster: Any, sink: Any) -> None:
    assert "fast_schema_evolution" not in cluster.storage.tables["ods", "orders"].properties
    (finding,) = sink.check_steps(TABLE, [RENAME])
    assert finding.fatal and "3.3.2" in finding.problem
    assert any("3.3.2" in found.problem and not found.fatal for found in sink.check([TABLE]))
    with pytest.raises(TargetMismatch, match="syntax error"):
        sink.alter(TABLE, [RENAME], mark_of(2))
