"""What ``cdc check`` finds at real servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.binlog.connection import Endpoint, ReaderIdentity
from cdc.binlog.server import Server
from cdc.errors import SourceBlocked, TargetMismatch
from cdc.local_servers import LocalServer, free_port, obtain
from cdc.preflight import check_files, check_read_for_us, check_source, run_checks
from cdc.receiver.feeds import check_readers
from tests.receiving import Mapped, Taker, endpoint, identity, position, receiver_of


class Keyed(Mapped):
    """Refuses a table without a key, as mappings do."""

    def reads(self, schema):
        if not schema.key:
            raise TargetMismatch(f"{schema.name} has no key.", mend="Give the channel a `key:`.")
        return super().reads(schema)


def problems(findings, fatal=None):
    return [finding.problem for finding in findings if fatal is None or finding.fatal is fatal]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_server_as_it_should_be_has_no_fatal_finding(kind, request):
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    assert check_source(endpoint(server), identity(), Keyed(database), [f"{database}.*", f"{database}.t"]) == ()


def test_a_mariadb_that_calls_itself_something_else_is_read_as_what_it_is(tmp_path):
    options = ["--version=8.0.31-proxy", "--binlog-row-metadata=FULL"]
    with LocalServer.start(obtain("mariadb"), tmp_path / "s", options=options) as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        assert check_source(endpoint(server), identity(), Keyed("shop"), ["shop.*"]) == ()
        reader = receiver_of(server, Mapped("shop"))
        reader.open(position(server), (), 0)
        server.execute("INSERT INTO shop.orders VALUES (1), (2)")
        taken = Taker(reader).take_rows(2)
        reader.close()
    assert taken.values() == [1, 2] and taken.batches[-1].last.gtid_set.startswith("0-1-")


def test_a_server_away_and_a_wrong_password(mysql):
    away = check_source(Endpoint("127.0.0.1", free_port(), "cdc", "x"), identity(), Keyed("shop"), [])
    assert "cannot be reached" in away[0].problem
    wrong = check_source(Endpoint("127.0.0.1", mysql.port, "cdc", "wrong"), identity(), Keyed("shop"), [])
    assert "refuses the login" in wrong[0].problem and "source.password" in wrong[0].mend


def test_missing_grants_come_with_the_statement_that_mends_them(mysql, database):
    mysql.execute("DROP USER IF EXISTS poor@'localhost'", "DROP USER IF EXISTS poor@'127.0.0.1'")
    mysql.create_user("poor", "pw", "USAGE")
    found = check_source(
        Endpoint("127.0.0.1", mysql.port, "poor", "pw"), identity(), Keyed(database), [f"{database}.t"]
    )
    mends = [finding.mend for finding in found]
    assert any("GRANT REPLICATION CLIENT ON *.* TO 'poor'@" in mend for mend in mends)
    assert any("GRANT REPLICATION SLAVE ON *.* TO 'poor'@" in mend for mend in mends)
    assert any(f"GRANT SELECT ON `{database}`.`t`" in mend for mend in mends)
    assert len(mends) == len(set(mends)), "the same grant is reported once"


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_every_setting_that_is_wrong_is_named_at_once(kind, tmp_path):
    options = ["--binlog-row-image=MINIMAL", "--binlog-format=MIXED"]
    options += ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"] if kind == "mysql" else []
    options += ["--binlog-expire-logs-seconds=3600"]
    with LocalServer.start(obtain(kind), tmp_path / "s", options=options) as server:
        found = check_source(endpoint(server), identity(server_id=1), Keyed("shop"), ["shop.orders", "crm.*"])
    fatal, advice = problems(found, True), problems(found, False)
    for part in (
        "binlog_format is MIXED",
        "binlog_row_image is MINIMAL",
        "Table shop.orders is not there",
    ):
        assert any(part in problem for problem in fatal), part
    assert any("Server id 1 is the source server's own" in problem for problem in fatal)
    wanted = ["crm.* matches no table", "binlog_row_metadata is", "kept for 3600 s"] + (
        ["gtid_mode is OFF"] if kind == "mysql" else []
    )
    for part in wanted:
        assert any(part in problem for problem in advice), part
    setting = next(finding.mend for finding in found if "binlog_row_image" in finding.problem)
    assert f"SET {'PERSIST' if kind == 'mysql' else 'GLOBAL'} binlog_row_image = 'FULL'" in setting


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_server_that_does_not_log_all_changes_is_refused_at_every_connect(kind, tmp_path):
    # given a replica that keeps what it replicates out of its binlog, and one of two databases as well
    updates = "--log-replica-updates=OFF" if kind == "mysql" else "--log-slave-updates=OFF"
    with LocalServer.start(obtain(kind), tmp_path / "s", options=[updates, "--binlog-ignore-db=shop"]) as server:
        server.execute(*(f"CREATE DATABASE {name}" for name in ("shop", "crm")))
        server.execute(*(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)" for name in ("shop", "crm")))
        alone = check_source(endpoint(server), identity(), Keyed("crm"), ["crm.t"])
        replica = "REPLICATION SOURCE TO SOURCE" if kind == "mysql" else "MASTER TO MASTER"
        server.execute(f"CHANGE {replica}_HOST='127.0.0.1'")

        # when it is checked, and jobs connect, before and after it is a replica no more
        found = problems(check_source(endpoint(server), identity(), Keyed("shop"), ["shop.t"]), True)
        canal = problems(check_read_for_us(endpoint(server), Keyed("shop"), ["shop.t"]), True)
        server.create_user("asker", "pw", "SELECT")
        asker = endpoint(server, user="asker", password="pw")
        with pytest.raises(SourceBlocked, match="The server is a replica"):
            receiver_of(server, Mapped("crm")).open(position(server), (), 0)
        unseen = check_read_for_us(asker, Keyed("shop"), ["shop.t"])
        server.execute("RESET REPLICA ALL")
        with pytest.raises(SourceBlocked, match="Database shop is not in the binlog: the server leaves out shop"):
            receiver_of(server, Mapped("shop")).open(position(server), (), 0)

    # then both are named, and a server that is no replica may go without
    assert problems(alone, True) == [] and any("binlog_ignore_db is set" in problem for problem in problems(alone))
    assert len(canal) == 2 and set(canal) <= set(found) and unseen == ()
    assert any("updates is OFF: what it replicates is not in its binlog" in problem for problem in found)
    assert any("Database shop is not in the binlog" in problem for problem in found)


def test_an_account_that_may_not_see_replication_hears_so_from_mariadb(mariadb, mariadb_database):
    mariadb.execute("DROP USER IF EXISTS reader@'localhost'", "DROP USER IF EXISTS reader@'127.0.0.1'")
    mariadb.create_user("reader", "pw", "SELECT, REPLICATION SLAVE, REPLICATION CLIENT")
    found = check_source(Endpoint("127.0.0.1", mariadb.port, "reader", "pw"), identity(), Keyed(mariadb_database), [])
    assert problems(found, True) == []
    assert any("may not see whether the server is a replica" in problem for problem in problems(found, False))


def test_no_binary_log_at_all(tmp_path):
    with LocalServer.start(obtain("mysql"), tmp_path / "s", options=["--skip-log-bin"]) as server:
        found = check_source(endpoint(server), identity(), Keyed("shop"), [])
    assert any("log_bin is OFF" in problem for problem in problems(found, True))


def test_check_source_reports_cascades_and_history(mariadb, mariadb_database):
    mariadb.execute(
        f"CREATE TABLE {mariadb_database}.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE {mariadb_database}.child (id INT PRIMARY KEY, p INT, CONSTRAINT fk FOREIGN KEY (p) REFERENCES "
        f"{mariadb_database}.parent (id) ON DELETE CASCADE)",
        f"CREATE TABLE {mariadb_database}.history (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
    )
    found = check_source(endpoint(mariadb), identity(), Keyed(mariadb_database), [f"{mariadb_database}.*"])
    assert any("history is system-versioned" in problem for problem in problems(found, True))
    assert any("ON DELETE CASCADE" in problem for problem in problems(found, False))


def test_foreign_keys_that_the_account_cannot_see_are_found(mariadb, mariadb_database):
    mariadb.execute(
        f"CREATE TABLE {mariadb_database}.orders (id INT PRIMARY KEY)",
        "DROP USER IF EXISTS poor@'localhost'",
        "DROP USER IF EXISTS poor@'127.0.0.1'",
    )
    mariadb.create_user("poor", "pw", "REPLICATION SLAVE, BINLOG MONITOR")
    mariadb.execute(
        *(f"GRANT SELECT (id) ON {mariadb_database}.orders TO poor@'{host}'" for host in ("localhost", "127.0.0.1"))
    )
    place = endpoint(mariadb, user="poor")
    found = check_source(replace(place, password="pw"), identity(), Keyed(mariadb_database), [])
    (about,) = [finding for finding in found if "foreign keys" in finding.problem]
    assert not about.fatal and "GRANT SELECT ON" in about.mend


def test_a_taken_server_id_is_found(mysql, database):
    reader = receiver_of(mysql, Mapped(database), name="other")
    reader.open(position(mysql), (), 0)
    taken = identity("other").server_id
    found = check_source(endpoint(mysql), identity("shop", taken), Keyed(database), [])
    reader.close()
    assert any("is taken by another reader: cdc-other" in problem for problem in problems(found, True))


def test_the_jobs_reader_of_an_earlier_incarnation_gets_the_time_to_be_noticed_as_dead(mysql, database):
    reader = receiver_of(mysql, Mapped(database), name="dead")
    reader.open(position(mysql), (), 0)
    heir = ReaderIdentity.of("dead", "5eed5eed", "127.0.0.1")
    with Server(endpoint(mysql)) as server:
        with pytest.raises(SourceBlocked, match="is taken by another reader: cdc-dead-0badcafe"):
            check_readers(server, heir)  # it lives, and goes on living
        reader.close()
        assert heir.server_id in {listed.server_id for listed in server.readers()}, "closed, and still listed"
        check_readers(server, heir)


def test_files_that_are_not_there(tmp_path):
    (finding,) = check_files(str(tmp_path / "mysql-bin.*"))
    assert "No binlog file" in finding.problem


def test_a_check_that_fails_is_a_finding_and_the_others_run():
    def broken():
        raise TargetMismatch("The target lies.", mend="Mend it.", table="t")

    found = run_checks([broken, lambda: check_files("/nowhere/x.*")])
    assert [finding.problem for finding in found] == [
        "The target lies. (table t).",
        "No binlog file matches /nowhere/x.*.",
    ]
