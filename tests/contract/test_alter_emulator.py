"""The emulators run ALTER TABLE as the real servers do: refusals in their words, jobs with states, ids of columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from tests.emulators.cases import USER
from tests.emulators.doris import cases as doris
from tests.emulators.faults import Fault
from tests.emulators.sql import SqlRefused
from tests.emulators.starrocks import cases as starrocks
from tests.emulators.storage import StoredColumn

KINDS = {"doris": (doris, "UNIQUE"), "starrocks": (starrocks, "PRIMARY")}
SHOW = "SHOW ALTER TABLE COLUMN FROM ods WHERE TableName = 't' ORDER BY CreateTime DESC LIMIT 1"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(kind: str) -> Iterator[Any]:
    cases, model = KINDS[kind]
    with cases.emulator() as cluster:
        cluster.execute("CREATE DATABASE ods")
        cluster.execute(
            f"CREATE TABLE ods.t (id BIGINT NOT NULL, n INT NULL DEFAULT '5', s VARCHAR(5) NULL, j JSON NULL) "
            f"{model} KEY(id) DISTRIBUTED BY HASH(id) BUCKETS 1 PROPERTIES ('replication_num' = '1')"
        )
        cluster.execute("INSERT INTO ods.t (id, s) VALUES (1, 'a')")
        yield cluster


def alter(cluster: Any, clause: str) -> None:
    cluster.execute(f"ALTER TABLE ods.t {clause}")


def rename(cluster: Any, old: str, new: str) -> None:
    alter(cluster, f"RENAME COLUMN {old} {'TO ' * cluster.sql.rename_to}{new}")


def state(cluster: Any) -> str:
    names, rows = cluster.execute(SHOW)
    return str(dict(zip(names, rows[0], strict=True))["State"]) if rows else ""


@pytest.mark.parametrize(
    ("clause", "text"),
    [
        ("ADD COLUMN n INT NULL DEFAULT '5'", "Can not add column which already exists in base table: n"),
        ("ADD COLUMN x JSON NULL DEFAULT '{}'", "default value just support null"),
        ("ADD COLUMN x VARCHAR(2) NULL DEFAULT 'abc'", "Default value is too long"),
        ("DROP COLUMN x", "Column does not exists: x"),
        ("DROP COLUMN id", "Can not drop key column"),
        ("MODIFY COLUMN id LARGEINT NOT NULL", "Can not modify key column: id"),
        ("MODIFY COLUMN x INT NULL", "Column[x] does not exists"),
        ("MODIFY COLUMN n INT NULL DEFAULT '5'", "Nothing is changed"),
        ("MODIFY COLUMN n BIGINT NULL", "Can not change default value"),
        ("MODIFY COLUMN n BIGINT NOT NULL DEFAULT '5'", "Can not change from nullable to non-nullable"),
        ("MODIFY COLUMN n DATE NULL DEFAULT '5'", "Can not change INT to DATE"),
        ("MODIFY COLUMN n SMALLINT NULL DEFAULT '5'", "Can not change INT to SMALLINT"),
        ("MODIFY COLUMN s VARCHAR(3) NULL", "Shorten type length is prohibited"),
    ],
)
def test_alter_that_servers_refuse_changes_nothing(cluster: Any, clause: str, text: str) -> None:
    columns = cluster.execute("DESC ods.t")
    with pytest.raises(SqlRefused) as caught:
        alter(cluster, clause)
    assert text in str(caught.value)
    assert cluster.execute("DESC ods.t") == columns and cluster.alters.jobs == []


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("x", "y", "Column[x] does not exists"),
        ("n", "s", "Column name[s] is already used"),
        ("n", "N", "Same column name"),
        ("id", "i", "distribution column[id]"),
    ],
)
def test_rename_that_servers_refuse_changes_nothing(cluster: Any, old: str, new: str, text: str) -> None:
    with pytest.raises(SqlRefused) as caught:
        rename(cluster, old, new)
    assert text in str(caught.value)


def test_other_definition_of_column_has_text_of_product(kind: str, cluster: Any) -> None:
    text = "already exists in base table: n" if kind == "doris" else "Repeatedly add column: n"
    with pytest.raises(SqlRefused, match=text):
        alter(cluster, "ADD COLUMN n BIGINT NULL")


def test_default_is_seen_in_old_rows_and_loads_without_the_column(cluster: Any) -> None:
    alter(cluster, """ADD COLUMN d VARCHAR(9) NULL DEFAULT "it's" """)
    cluster.execute("INSERT INTO ods.t (id) VALUES (2)")
    assert cluster.rows("SELECT id, n, d FROM ods.t") == [(1, 5, "it's"), (2, 5, "it's")]
    alter(cluster, "ADD COLUMN e VARCHAR(9) NULL DEFAULT 'NULL'")
    assert cluster.rows("SELECT e FROM ods.t") == [(None,), (None,)]
    assert [row[0] for row in cluster.execute("DESC ods.t")[1]] == ["id", "n", "s", "j", "d", "e"]


def test_renamed_column_keeps_its_id_in_starrocks(kind: str, cluster: Any) -> None:
    rename(cluster, "n", "m")
    if kind == "doris":
        alter(cluster, "ADD COLUMN n INT NULL")
        return
    with pytest.raises(SqlRefused, match="already exists in column id: n"):
        alter(cluster, "ADD COLUMN n INT NULL")
    alter(cluster, "DROP COLUMN m")
    alter(cluster, "ADD COLUMN n INT NULL")


def test_other_form_of_rename_is_no_syntax(cluster: Any) -> None:
    with pytest.raises(SqlRefused, match="mismatched input"):
        alter(cluster, f"RENAME COLUMN n {'' if cluster.sql.rename_to else 'TO '}m")


def test_job_advances_with_delay_and_refuses_second_alter(cluster: Any) -> None:
    cluster.alters.delay_s = 3600
    alter(cluster, "MODIFY COLUMN n BIGINT NULL DEFAULT '5'")
    assert state(cluster) == "PENDING"
    for clause in ("ADD COLUMN x INT NULL", "MODIFY COLUMN s VARCHAR(9) NULL"):
        with pytest.raises(SqlRefused, match=r"state\(SCHEMA_CHANGE\) is not NORMAL"):
            alter(cluster, clause)
    cluster.execute("INSERT INTO ods.t (id, n) VALUES (2, 7)")
    cluster.alters.delay_s = 0
    assert state(cluster) == "FINISHED"
    assert cluster.rows("SELECT id, n FROM ods.t") == [(1, 5), (2, 7)]
    assert cluster.execute("DESC ods.t")[1][1][1] == "bigint"


def test_cancelled_job_shows_message_and_changes_nothing(cluster: Any) -> None:
    cluster.alters.cancelled = ["no replica"]
    alter(cluster, "MODIFY COLUMN n BIGINT NULL DEFAULT '5'")
    assert state(cluster) == "CANCELLED" and "no replica" in cluster.execute(SHOW)[1][0]
    assert cluster.execute("DESC ods.t")[1][1][1] == "int"


def test_added_column_without_light_property_needs_job(kind: str, cluster: Any) -> None:
    table = cluster.storage.tables["ods", "t"]
    cluster.alters.is_held = True
    alter(cluster, "ADD COLUMN x INT NULL")
    assert state(cluster) == "FINISHED"
    table.properties[cluster.sql.light_property] = "false"
    alter(cluster, "DROP COLUMN x")
    assert state(cluster) == "RUNNING"
    assert table.columns[-1] == StoredColumn("x", "INT")


def test_user_without_alter_right_is_refused(cluster: Any) -> None:
    cluster.settings.denied_alter.add((USER[0], "ods"))
    with pymysql.connect(host="127.0.0.1", port=cluster.sql_port, user=USER[0], password=USER[1]) as connection:
        with pytest.raises(pymysql.MySQLError, match="ALTER"):
            connection.cursor().execute("ALTER TABLE ods.t DROP COLUMN n")
        connection.cursor().execute("SELECT 1")


@pytest.mark.parametrize(("fault", "is_done"), [(Fault.RESET, False), (Fault.DROP_ANSWER, True)])
def test_connection_is_cut_before_or_after_the_work(cluster: Any, fault: Fault, is_done: bool) -> None:
    cluster.faults.order("sql", fault, match="ALTER")
    connection = pymysql.connect(host="127.0.0.1", port=cluster.sql_port, user=USER[0], password=USER[1])
    with pytest.raises(pymysql.err.OperationalError, match="Lost connection"):
        connection.cursor().execute("ALTER TABLE ods.t DROP COLUMN n")
    assert (len(cluster.execute("DESC ods.t")[1]) == 3) is is_done
