"""The findings of ``cdc check`` for real servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.checks.mysql import check_files, check_read_for_us, check_source, run_checks
from cdc.demo.local_servers import LocalServer, free_port, obtain
from cdc.errors import SourceActionRequired, TargetMismatch
from cdc.mysql.connection import Endpoint
from cdc.mysql.server import Server
from cdc.sources.binlog.replication_stream import ReaderIdentity
from cdc.sources.binlog.transport import check_readers
from tests.support.receiving import Collector, Mapped, endpoint, identity, position, receiver_of


class Keyed(Mapped):
    """Raise for a table without a key, as mappings do."""

    def reads(self, schema):
        if not schema.key:
            raise TargetMismatch(f"{schema.name} has no key.", hint="Give the channel a `key:`.")
        return super().reads(schema)


def problems(findings, fatal=None):
    return [finding.problem for finding in findings if fatal is None or finding.fatal is fatal]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_check_correct_server_has_no_finding(kind, request):
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    assert check_source(endpoint(server), identity(), Keyed(database), [f"{database}.*", f"{database}.t"]) == ()


def test_mariadb_with_a_mysql_version_is_read_as_mariadb(tmp_path):
    options = ["--version=8.0.31-proxy", "--binlog-row-metadata=FULL"]
    with LocalServer.start(obtain("mariadb"), tmp_path / "s", options=options) as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        assert check_source(endpoint(server), identity(), Keyed("shop"), ["shop.*"]) == ()
        reader = receiver_of(server, Mapped("shop"))
        reader.open(position(server), (), 0)
        server.execute("INSERT INTO shop.orders VALUES (1), (2)")
        collected = Collector(reader).collect_rows(2)
        reader.close()
    assert collected.values() == [1, 2] and collected.batches[-1].last.gtid_set.startswith("0-1-")


def test_check_unreachable_server_and_wrong_password_are_findings(mysql):
    away = check_source(Endpoint("127.0.0.1", free_port(), "cdc", "x"), identity(), Keyed("shop"), [])
    assert "cannot be reached" in away[0].problem
    wrong = check_source(Endpoint("127.0.0.1", mysql.port, "cdc", "wrong"), identity(), Keyed("shop"), [])
    assert "refuses the login" in wrong[0].problem and "source.password" in wrong[0].hint


def test_check_missing_grants_include_the_statement(mysql, database):
    mysql.execute("DROP USER IF EXISTS poor@'localhost'", "DROP USER IF EXISTS poor@'127.0.0.1'")
    mysql.create_user("poor", "pw", "USAGE")
    found = check_source(
        Endpoint("127.0.0.1", mysql.port, "poor", "pw"), identity(), Keyed(database), [f"{database}.t"]
    )
    hints = [finding.hint for finding in found]
    assert any("GRANT REPLICATION CLIENT ON *.* TO 'poor'@" in hint for hint in hints)
    assert any("GRANT REPLICATION SLAVE ON *.* TO 'poor'@" in hint for hint in hints)
    assert any(f"GRANT SELECT ON `{database}`.`t`" in hint for hint in hints)
    assert len(hints) == len(set(hints)), "the same grant is reported once"


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_check_reports_all_wrong_settings_together(kind, tmp_path):
    options = ["--binlog-row-image=MINIMAL", "--binlog-format=MIXED"]
    options += ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"] if kind == "mysql" else []
    options += ["--binlog-expire-logs-seconds=3600"]
    with LocalServer.start(obtain(kind), tmp_path / "s", options=options) as server:
        found = check_source(endpoint(server), identity(server_id=1), Keyed("shop"), ["shop.orders", "crm.*"])
    fatal, advice = problems(found, True), problems(found, False)
    for part in (
        "binlog_format is MIXED",
        "binlog_row_image is MINIMAL",
        "Table shop.orders does not exist",
    ):
        assert any(part in problem for problem in fatal), part
    assert any("Server id 1 is the id of the source server" in problem for problem in fatal)
    wanted = ["crm.* matches no table", "binlog_row_metadata is", "kept for 3600 s"] + (
        ["gtid_mode is OFF"] if kind == "mysql" else []
    )
    for part in wanted:
        assert any(part in problem for problem in advice), part
    setting = next(finding.hint for finding in found if "binlog_row_image" in finding.problem)
    assert f"SET {'PERSIST' if kind == 'mysql' else 'GLOBAL'} binlog_row_image = 'FULL'" in setting


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_incomplete_binlog_is_rejected_at_check_and_connect(kind, tmp_path):
    # given a replica that does not log what it replicates, and that omits one of two databases
    updates = "--log-replica-updates=OFF" if kind == "mysql" else "--log-slave-updates=OFF"
    with LocalServer.start(obtain(kind), tmp_path / "s", options=[updates, "--binlog-ignore-db=shop"]) as server:
        server.execute(*(f"CREATE DATABASE {name}" for name in ("shop", "crm")))
        server.execute(*(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)" for name in ("shop", "crm")))
        alone = check_source(endpoint(server), identity(), Keyed("crm"), ["crm.t"])
        replica = "REPLICATION SOURCE TO SOURCE" if kind == "mysql" else "MASTER TO MASTER"
        server.execute(f"CHANGE {replica}_HOST='127.0.0.1'")

        # when it is checked and jobs connect, while it is a replica and afterwards
        found = problems(check_source(endpoint(server), identity(), Keyed("shop"), ["shop.t"]), True)
        canal = problems(check_read_for_us(endpoint(server), Keyed("shop"), ["shop.t"]), True)
        server.create_user("asker", "pw", "SELECT")
        asker = endpoint(server, user="asker", password="pw")
        with pytest.raises(SourceActionRequired, match="The server is a replica"):
            receiver_of(server, Mapped("crm")).open(position(server), (), 0)
        unseen = check_read_for_us(asker, Keyed("shop"), ["shop.t"])
        server.execute("RESET REPLICA ALL")
        with pytest.raises(SourceActionRequired, match="Database shop is not in the binlog: the server ignores shop"):
            receiver_of(server, Mapped("shop")).open(position(server), (), 0)

    # then both faults are reported, and a server that is not a replica may omit other databases
    assert problems(alone, True) == [] and any("binlog_ignore_db is set" in problem for problem in problems(alone))
    assert len(canal) == 2 and set(canal) <= set(found) and unseen == ()
    assert any("updates=OFF: its binlog does not have the replicated changes" in problem for problem in found)
    assert any("Database shop is not in the binlog" in problem for problem in found)


def test_check_hidden_replica_status_on_mariadb_is_a_warning(mariadb, mariadb_database):
    mariadb.execute("DROP USER IF EXISTS reader@'localhost'", "DROP USER IF EXISTS reader@'127.0.0.1'")
    mariadb.create_user("reader", "pw", "SELECT, REPLICATION SLAVE, REPLICATION CLIENT")
    found = check_source(Endpoint("127.0.0.1", mariadb.port, "reader", "pw"), identity(), Keyed(mariadb_database), [])
    assert problems(found, True) == []
    assert any("cannot see whether the server is a replica" in problem for problem in problems(found, False))


def test_check_missing_binary_log_is_fatal(tmp_path):
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


def test_check_hidden_foreign_keys_are_a_warning(mariadb, mariadb_database):
    mariadb.execute(
        f"CREATE TABLE {mariadb_database}.orders (id INT PRIMARY KEY)",
        "DROP USER IF EXISTS poor@'localhost'",
        "DROP USER IF EXISTS poor@'127.0.0.1'",
    )
    mariadb.create_user("poor", "pw", "REPLICATION SLAVE, BINLOG MONITOR")
    mariadb.execute(
        *(f"GRANT SELECT (id) ON {mariadb_database}.orders TO poor@'{host}'" for host in ("localhost", "127.0.0.1"))
    )
    account = endpoint(mariadb, user="poor")
    found = check_source(replace(account, password="pw"), identity(), Keyed(mariadb_database), [])
    (about,) = [finding for finding in found if "foreign keys" in finding.problem]
    assert not about.fatal and "GRANT SELECT ON" in about.hint


def test_check_used_server_id_is_fatal(mysql, database):
    reader = receiver_of(mysql, Mapped(database), name="other")
    reader.open(position(mysql), (), 0)
    collected = identity("other").server_id
    found = check_source(endpoint(mysql), identity("shop", collected), Keyed(database), [])
    reader.close()
    assert any("is used by another reader: cdc-other" in problem for problem in problems(found, True))


def test_earlier_reader_of_the_job_gets_time_to_disconnect(mysql, database):
    reader = receiver_of(mysql, Mapped(database), name="dead")
    reader.open(position(mysql), (), 0)
    successor = ReaderIdentity.of("dead", "5eed5eed", "127.0.0.1")
    with Server(endpoint(mysql)) as server:
        with pytest.raises(SourceActionRequired, match="is used by another reader: cdc-dead-0badcafe"):
            check_readers(server, successor)  # it is connected and stays so
        reader.close()
        assert successor.server_id in {listed.server_id for listed in server.readers()}, "closed, but still listed"
        check_readers(server, successor)


def test_check_missing_binlog_files_are_a_finding(tmp_path):
    (finding,) = check_files(str(tmp_path / "mysql-bin.*"))
    assert "No binlog file" in finding.problem


def test_check_that_fails_is_a_finding_and_others_run():
    def broken():
        raise TargetMismatch("The target is wrong.", hint="Correct it.", table="t")

    found = run_checks([broken, lambda: check_files("/nowhere/x.*")])
    assert [finding.problem for finding in found] == [
        "The target is wrong. (table t).",
        "No binlog file matches /nowhere/x.*.",
    ]
