"""What the sinks of Doris and StarRocks share: checks of tables, refusals with hints, commits of new attempts."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pymysql
import pytest

from cdc.config.sink_models import TargetTablesConfig
from cdc.errors import (
    CdcError,
    ErrorAction,
    LoadRejected,
    PreparedLoadLost,
    SinkBusy,
    SinkOwnershipError,
    SinkUnavailable,
    TargetMismatch,
    action_for,
)
from cdc.model.batch import FENCE_STEP
from channels.sinks.base import LoadState, TargetTable
from channels.sinks.labels import label_for
from channels.sinks.stream_load import checkpoints, frontend
from channels.sinks.stream_load.http import HttpClient
from tests.emulators.cases import (
    TABLE,
    UNTYPED,
    USER,
    gives_up_loads_of_a_gone_column,
    mark_of,
    name_of,
    resize_name,
    rows_of,
    write,
)
from tests.emulators.doris import cases as doris
from tests.emulators.faults import Fault
from tests.emulators.starrocks import cases as starrocks

ROWS = ((1, "a", False, 1), (2, "b", False, 2))
OTHER = replace(TABLE, name="ods.t")
REST = 'DISTRIBUTED BY HASH(id) BUCKETS 1 PROPERTIES ("replication_num" = "1"%s)'
# module of cases, arguments of its sink, model, property of the sequence, words of grant and of a missing table
KINDS: dict[str, tuple[ModuleType, dict[str, Any], str, str, str]] = {
    "doris": (doris, {}, "UNIQUE", ', "function_column.sequence_type" = "bigint"', "GRANT LOAD_PRIV"),
    "starrocks-single": (starrocks, {"mode": "single"}, "PRIMARY", "", "GRANT SELECT, INSERT"),
    "starrocks-multi": (starrocks, {"mode": "multi"}, "PRIMARY", "", "GRANT SELECT, INSERT"),
}
ADOPTING = replace(mark_of(1, 2 * FENCE_STEP), incarnation="ffffffff", fence=2)
SINGLE = pytest.mark.parametrize("kind", ["doris", "starrocks-single"], indirect=True)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(kind: str) -> Iterator[Any]:
    with KINDS[kind][0].emulator() as cluster:
        yield cluster


@pytest.fixture
def sink(kind: str, cluster: Any) -> Iterator[Any]:
    """A sink whose table TABLE exists."""
    sink = sink_on(kind, cluster)
    sink.ensure_table(TABLE)
    yield sink
    sink.close()


def sink_on(kind: str, cluster: Any, **arguments: Any) -> Any:
    return KINDS[kind][0].sink_on(cluster, **KINDS[kind][1], **arguments)


def create_text(kind: str, columns: str) -> str:
    """CREATE TABLE ods.t with the model and the properties that the sink requires."""
    _, _, model, sequence, _ = KINDS[kind]
    return f"CREATE TABLE ods.t ({columns}) {model} KEY(id) {REST % sequence}"


# ---- tables


@SINGLE
@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 3), ({"replication": 2}, 2), ({"properties": {"replication_num": "1"}}, 1)],
    ids=["backends", "replication", "property"],
)
def test_created_table_has_a_replica_per_backend(kind: str, options: dict[str, Any], expected: int) -> None:
    with KINDS[kind][0].emulator(backends=4) as cluster:
        sink = sink_on(kind, cluster, tables=TargetTablesConfig(**options).model_dump())
        assert ("replication_num" in sink.ddl(TABLE)) is bool(options)
        sink.ensure_table(TABLE)
        statement = str(cluster.execute("SHOW CREATE TABLE ods.orders")[1][0][1])
        assert f'"replication_num" = "{expected}"' in statement, statement
        sink.close()


@SINGLE
@pytest.mark.parametrize(
    ("columns", "problem", "hint"),
    [
        ("name VARCHAR(39) NULL", "column name is VARCHAR(39)", "MODIFY COLUMN `name` VARCHAR(40) NULL"),
        ("name VARCHAR(40) NOT NULL", "NOT NULL, and the source has NULL", "MODIFY COLUMN `name` varchar(40) NULL"),
        ("other INT NULL", "column name is missing", "ADD COLUMN `name` VARCHAR(40) NULL"),
        ("name STRING, other INT NOT NULL", "other is NOT NULL without a default", "MODIFY COLUMN `other` int NULL"),
    ],
    ids=["short", "not null", "missing", "not filled"],
)
def test_hint_of_mismatched_column_fixes_it(
    kind: str, cluster: Any, sink: Any, columns: str, problem: str, hint: str
) -> None:
    cluster.execute(create_text(kind, f"id BIGINT NOT NULL, {columns}"))
    findings = sink.describe(OTHER)
    assert any(problem in finding.problem and hint in finding.hint for finding in findings), findings
    with pytest.raises(TargetMismatch):
        sink.ensure_table(OTHER)
    for finding in findings:
        cluster.execute(finding.hint.partition(";")[0])
    assert sink.describe(OTHER) == ()


@SINGLE
def test_table_with_other_model_or_key_is_refused(kind: str, cluster: Any, sink: Any) -> None:
    cluster.execute(create_text(kind, "id BIGINT NOT NULL, name VARCHAR(40)").replace(KINDS[kind][2], "DUPLICATE"))
    (finding,) = sink.describe(OTHER)
    assert "model is DUPLICATE KEY" in finding.problem and "cdc ddl" in finding.hint
    cluster.execute("DROP TABLE ods.t")
    swapped = create_text(kind, "name VARCHAR(40) NOT NULL, id BIGINT").replace("KEY(id)", "KEY(name)")
    cluster.execute(swapped)
    with pytest.raises(TargetMismatch, match="table's key is \\(name\\)") as caught:
        sink.ensure_table(OTHER)
    assert "key:" in caught.value.hint


@SINGLE
def test_comment_that_looks_like_clause_is_ignored(kind: str, cluster: Any, sink: Any) -> None:
    columns = "id BIGINT NOT NULL COMMENT 'once DUPLICATE KEY (other)', name VARCHAR(40) COMMENT 'AUTO PARTITION'"
    cluster.execute(create_text(kind, columns))
    assert sink.describe(OTHER) == ()


@SINGLE
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(("table", "column"), UNTYPED)
def test_column_without_type_is_refused_before_create(sink: Any, table: TargetTable, column: str, exists: bool) -> None:
    table = replace(table, name="ods.orders" if exists else "ods.others")
    (finding,) = sink.check([table])
    assert f"column {column}" in finding.problem and "cast(... as string)" in finding.hint and finding.fatal
    assert finding in sink.describe(table)
    for refused in (sink.ensure_table, sink.ddl):
        with pytest.raises(TargetMismatch, match=f"column {column}"):
            refused(table)


def test_missing_table_is_refused_if_job_may_not_create(kind: str, cluster: Any) -> None:
    sink = sink_on(kind, cluster, create_tables=False)
    with pytest.raises(TargetMismatch, match=r"no table ods\.orders"):
        sink.ensure_table(TABLE)
    assert True in [finding.fatal for finding in sink.check([TABLE])]
    sink.close()


# ---- environment


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"password": "wrong"}, TargetMismatch, "sink.password"),
        ({"sql_port": 1}, SinkUnavailable, "does not answer"),
    ],
    ids=["password", "port"],
)
def test_check_of_unreachable_cluster_has_one_finding(
    kind: str, cluster: Any, change: dict[str, Any], error: type[CdcError], text: str
) -> None:
    sink = sink_on(kind, cluster, **change)
    (finding,) = sink.check([TABLE])
    assert text in f"{finding.problem} {finding.hint}" and finding.hint not in finding.problem
    with pytest.raises(error):
        sink.ensure_table(TABLE)
    sink.close()


def test_load_without_backend_is_retried(cluster: Any, sink: Any) -> None:
    numbers = range(len(cluster.backends))
    for number in numbers:
        cluster.stop_backend(number)
    with pytest.raises(SinkUnavailable, match="alive"):
        write(sink, *ROWS)
    for number in numbers:
        cluster.start_backend(number)
    assert sink.state(write(sink, *ROWS, name=name_of(2))) is LoadState.PREPARED


def test_missing_privilege_names_grant(kind: str, cluster: Any, sink: Any) -> None:
    cluster.settings.denied.add((USER[0], "ods"))
    with pytest.raises(TargetMismatch, match=KINDS[kind][4]):
        write(sink, *ROWS)


def test_load_into_dropped_table_names_it(cluster: Any, sink: Any) -> None:
    cluster.execute("DROP TABLE ods.orders")
    with pytest.raises(TargetMismatch, match=r"unknown table|Failed to find table"):
        write(sink, *ROWS)


@SINGLE
def test_too_many_running_transactions_delay_load(kind: str) -> None:
    with KINDS[kind][0].emulator(max_running_txn_num_per_db=1) as cluster:
        sink = sink_on(kind, cluster, tries=1)
        sink.ensure_table(TABLE)
        write(sink, *ROWS)
        with pytest.raises(SinkBusy) as caught:
            write(sink, *ROWS, name=name_of(task=1))
        assert caught.value.after_s > 0
        assert any("running transactions" in finding.problem for finding in sink.check([TABLE]))
        sink.close()


# ---- loads


def test_pickled_part_writer_loads_without_printing_password(cluster: Any, sink: Any) -> None:
    writer = pickle.loads(pickle.dumps(sink.part_writer(TABLE)))
    load = writer(name_of(), iter([rows_of(*ROWS)]))
    sink.commit([load], mark_of())
    assert cluster.rows("SELECT * FROM ods.orders") == [(1, "a"), (2, "b")]
    assert USER[1] not in repr(writer)
    assert writer(name_of(2), iter([rows_of()])) is None


def test_rejected_rows_are_shown_and_loaded_after_fix(kind: str, cluster: Any, sink: Any) -> None:
    resize_name(cluster, 3)
    with pytest.raises(LoadRejected) as caught:
        sink.commit([write(sink, (1, "ok", False, 1), (77, "too long", False, 2))], mark_of())
    assert action_for(caught.value) is ErrorAction.PAUSE
    assert "length of input is too long" in str(caught.value) and "77" in str(caught.value)
    if kind == "starrocks-multi":  # the error of a whole transaction names no table
        assert 'columns: {c: "left(c, ...)"}' in caught.value.hint and "filter:" in caught.value.hint
        assert "in the source" not in caught.value.hint, "exactly these rows are replayed"
    else:
        assert caught.value.context["key"] == "id"
    resize_name(cluster, 10)
    load = write(sink, (1, "ok", False, 1), (77, "too long", False, 2), name=name_of(2))
    sink.commit([load], mark_of(2))
    assert cluster.rows("SELECT * FROM ods.orders") == [(1, "ok"), (77, "too long")]


@pytest.mark.parametrize("count", [1, 60])
def test_load_whose_rows_are_all_rejected_is_rejected(cluster: Any, sink: Any, count: int) -> None:
    resize_name(cluster, 3)
    rows = [(number, "too long", False, number) for number in range(count)]
    with pytest.raises(LoadRejected, match="rejected rows") as caught:
        sink.commit([write(sink, *rows)], mark_of())
    assert action_for(caught.value) is ErrorAction.PAUSE


def test_loads_after_drop_of_column_are_aborted(cluster: Any, sink: Any) -> None:
    gives_up_loads_of_a_gone_column(cluster, sink)


@SINGLE
def test_commit_of_new_attempt_first_aborts_earlier_ones(cluster: Any, sink: Any) -> None:
    old = write(sink, (1, "old", False, 1))
    new = write(sink, (1, "new", False, 2), name=name_of(attempt=1))
    commit_load, states = sink._commit_load, []

    def look_then_commit(load: Any) -> Any:
        states.append(sink.state(old))
        return commit_load(load)

    sink._commit_load = look_then_commit
    sink.commit([new], mark_of())
    assert states == [LoadState.ABORTED]
    assert cluster.rows("SELECT * FROM ods.orders") == [(1, "new")]


def test_lost_loads_name_the_reason_of_the_server(kind: str, cluster: Any, sink: Any) -> None:
    load = write(sink, *ROWS)
    cluster.transactions.expire()
    if kind == "starrocks-multi":
        cluster.multi.restart()
    with pytest.raises(PreparedLoadLost) as caught:
        sink.commit([load], mark_of())
    words = {"doris": "timeout by txn manager", "starrocks-single": "ABORTED", "starrocks-multi": "after restart"}
    assert words[kind] in caught.value.location, caught.value.location


@pytest.mark.parametrize("text", ["no queryable replica found", "DESC command denied to user 'cdc' for table 'orders'"])
def test_commit_waits_while_columns_cannot_be_read(cluster: Any, sink: Any, text: str) -> None:
    """The column can have been dropped: the cluster would commit the load without its values."""
    load = write(sink, *ROWS)
    cluster.execute("ALTER TABLE ods.orders DROP COLUMN name")
    cluster.faults.order("sql", Fault.ERROR, match="DESC `ods`", text=text)
    with pytest.raises(SinkUnavailable, match=text[:20]) as caught:
        sink.commit([load], mark_of())
    assert action_for(caught.value) is ErrorAction.RETRY
    assert cluster.rows("SELECT id FROM ods.orders") == []
    with pytest.raises(PreparedLoadLost):
        sink.commit([load], mark_of())


def test_lost_connection_does_not_hide_columns_of_a_table(cluster: Any, sink: Any) -> None:
    """Doris shows its hidden columns to a session that has asked for them, and the next connection is another one."""
    cluster.faults.order("sql", Fault.RESET, match="DESC `ods`")
    assert [*sink.describe(TABLE)] == []
    assert len(cluster.faults.struck) == 1


def test_table_is_not_missing_on_a_lagging_frontend(cluster: Any, sink: Any) -> None:
    """A job would stop as if its table was dropped, and save that the table lacks committed rows."""
    sink.acquire_ownership(mark_of(0), [TABLE.name])
    load = write(sink, *ROWS)
    cluster.is_behind = True
    assert sink.identities([TABLE.name]).keys() == {TABLE.name}
    assert sink.target_states(mark_of().job, mark_of().incarnation, [TABLE.name]).keys() == {TABLE.name}
    assert [*sink.describe(TABLE)] == []
    sink._tables.forget(TABLE.name)
    sink.part_writer(TABLE)
    sink.commit([load], mark_of())
    cluster.is_behind = False
    assert len(cluster.rows("SELECT * FROM ods.orders")) == len(ROWS)


@SINGLE
def test_name_of_a_table_is_no_reason_of_a_refusal(kind: str, cluster: Any) -> None:
    """Servers put the label into their errors, and it has the name of the table."""
    table, sink = replace(TABLE, name="ods.user_privileges"), sink_on(kind, cluster)
    sink.ensure_table(table)
    name = replace(name_of(), channel="shop.user_privileges")
    for text in (f"load of {label_for(name)} was interrupted", "tablet 5 of user_privileges has no alive replica"):
        cluster.faults.order("load", Fault.ERROR, text=text)
        assert sink.part_writer(table)(name, iter([rows_of(*ROWS)])).rows == len(ROWS)
        name = replace(name, task=name.task + 1)
    assert len(cluster.faults.struck) == 2
    sink.close()


def test_frontend_without_free_connections_does_not_refuse_statements(
    cluster: Any, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next frontend is asked. A refused list of transactions would leave those of a killed run prepared."""
    load, log_in, hosts = write(sink, *ROWS), frontend.log_in, []

    def refuse_first(host: str, *rest: Any) -> Any:
        hosts.append(host)
        if len(hosts) % 2:
            raise pymysql.err.OperationalError(1203, "Reach limit of connections")
        return log_in(host, *rest)

    monkeypatch.setattr(frontend, "log_in", refuse_first)
    sink._sql.close()
    sink.abort(load.name.job, load.name.incarnation, load.name.fence, load.name.checkpoint)
    assert len(hosts) == 2
    assert sink.state(load) is not LoadState.PREPARED
    monkeypatch.setattr(frontend, "log_in", lambda host, *rest: hosts.clear() or refuse_first(host, *rest))
    sink._sql.close()
    with pytest.raises(SinkUnavailable, match="Reach limit"):
        sink._sql.execute("CREATE TABLE `ods`.`new` (a INT)", "ods.new")


def test_frontend_that_refuses_sync_is_not_asked(cluster: Any, sink: Any) -> None:
    """A follower that cannot reach the leader. After an idle time the connection begins with the first frontend."""
    text = "Failed to forward the statement to the leader: no leader is found"
    cluster.faults.order("sql", Fault.ERROR, match="SYNC", text=text)
    assert sink.identities([TABLE.name]).keys() == {TABLE.name}
    cluster.faults.order("sql", Fault.ERROR, match="SYNC", text=text)
    assert [*sink.describe(TABLE)] == []
    cluster.faults.order("sql", Fault.ERROR, match="SYNC", text=text, times=100)
    with pytest.raises(SinkUnavailable, match="no leader is found"):
        sink.identities([TABLE.name])


def test_only_a_server_that_gets_rows_may_take_long_to_answer(
    cluster: Any, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server answers instead of one that is frozen, and a commit waits for it."""
    request, slow = HttpClient.request, []

    def note(client: HttpClient, method: str, host: str, path: str, **options: Any) -> Any:
        if not options.get("body") and (options.get("timeout_s") or client.address.answer_timeout_s) > 200:
            slow.append(f"{method} {path}")
        return request(client, method, host, path, **options)

    monkeypatch.setattr(HttpClient, "request", note)
    sink.commit([write(sink, *ROWS)], mark_of())
    assert slow == []


def test_identity_of_table_does_not_depend_on_the_time_zone(kind: str, cluster: Any, sink: Any) -> None:
    """A frontend with another time zone would show each target as another table."""
    known = sink.identities([TABLE.name])
    cluster.time_zone = "-05:30"
    other = sink_on(kind, cluster)
    assert other.identities([TABLE.name]) == known
    other.close()
    cluster.execute("DROP TABLE ods.orders")
    sink._tables.forget(TABLE.name)
    sink.ensure_table(TABLE)
    assert sink.identities([TABLE.name]) != known


# ---- ownership and checkpoints


@SINGLE
def test_commit_waits_until_its_checkpoint_is_visible(cluster: Any, sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new run would find an older checkpoint than its state has, and pause."""
    monkeypatch.setattr(checkpoints, "VISIBLE_TIMEOUT_S", 0.1)
    sink.commit([write(sink, *ROWS)], mark_of())
    load = write(sink, (3, "c", False, 3), name=name_of(2))
    cluster.faults.order("sql", Fault.PUBLISH_TIMEOUT, match="INSERT INTO")
    with pytest.raises(SinkUnavailable, match="checkpoint is not visible yet"):
        sink.commit([load], mark_of(2))
    assert sink.last_checkpoint("shop") == mark_of() and sink.state(load) is LoadState.COMMITTED
    cluster.transactions.publish()
    sink.commit([load], mark_of(2))
    assert sink.last_checkpoint("shop") == mark_of(2)
    assert len(cluster.rows("SELECT * FROM ods.orders")) == 3


def test_ownership_waits_until_its_row_is_visible(cluster: Any, sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.acquire_ownership(mark_of(0), [TABLE.name])
    monkeypatch.setattr(checkpoints, "VISIBLE_TIMEOUT_S", 0.1)
    cluster.transactions.hold_publish = True
    with pytest.raises(SinkUnavailable, match="checkpoint is not visible yet"):
        sink.acquire_ownership(ADOPTING, [TABLE.name])
    monkeypatch.setattr(checkpoints, "VISIBLE_TIMEOUT_S", 10.0)
    publisher = threading.Timer(0.3, cluster.transactions.publish)
    publisher.start()
    sink.acquire_ownership(ADOPTING, [TABLE.name])
    publisher.join()
    assert sink.last_checkpoint("shop") == ADOPTING


def test_visible_checkpoint_is_not_read_again(cluster: Any, sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, marks = [], sink._checkpoints.marks
    monkeypatch.setattr(sink._checkpoints, "marks", lambda *of: asked.append(of) or marks(*of))
    sink.acquire_ownership(mark_of(0), [TABLE.name])
    asked.clear()
    sink.commit([write(sink, *ROWS)], mark_of())
    assert len(asked) == 1, "only the check of the owner reads cdc_checkpoints"


def test_commit_on_lagging_frontend_sees_new_owner(kind: str, cluster: Any, sink: Any) -> None:
    sink.acquire_ownership(mark_of(0), [TABLE.name])
    load = write(sink, *ROWS)
    other = sink_on(kind, cluster)
    cluster.is_behind = True  # every query without SYNC
    other.acquire_ownership(ADOPTING, [TABLE.name])
    with pytest.raises(SinkOwnershipError):
        sink.commit([load], mark_of())
    cluster.is_behind = False
    assert cluster.rows("SELECT * FROM ods.orders") == []
    other.close()


def test_adopting_run_aborts_prepared_loads_of_frozen_run(
    kind: str, cluster: Any, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old run was frozen between the check of its ownership and the commit."""
    sink.acquire_ownership(mark_of(0), [TABLE.name])
    load = write(sink, *ROWS)
    other = sink_on(kind, cluster)
    other.acquire_ownership(ADOPTING, [TABLE.name])
    monkeypatch.setattr(sink._checkpoints, "check_commit", lambda mark: None)
    with pytest.raises(PreparedLoadLost):
        sink.commit([load], mark_of())
    assert cluster.rows("SELECT * FROM ods.orders") == []
    other.close()


@SINGLE
def test_abort_of_replaced_run_is_repeated_after_an_error(
    kind: str, cluster: Any, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.acquire_ownership(mark_of(0), [TABLE.name])
    load = write(sink, *ROWS)
    other = sink_on(kind, cluster)
    discard, failures = other._discard_unfinished, [SinkUnavailable("busy", hint="")]

    def fail_once(mark: Any) -> None:
        if failures:
            raise failures.pop()
        discard(mark)

    monkeypatch.setattr(other, "_discard_unfinished", fail_once)
    with pytest.raises(SinkUnavailable):
        other.acquire_ownership(ADOPTING, [TABLE.name])
    assert sink.state(load) is LoadState.PREPARED
    other.acquire_ownership(ADOPTING, [TABLE.name])
    assert sink.state(load) is not LoadState.PREPARED
    other.close()
