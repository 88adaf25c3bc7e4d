"""Binlog files on disk of which one is missing, was cut, or was replaced: the job pauses, and a gap can be accepted."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from cdc.checks.mysql import check_files
from cdc.demo.local_servers import LocalServer, obtain
from cdc.errors import PositionLost, SourceActionRequired
from cdc.sources.binlog.receiver import BinlogReceiver
from cdc.sources.schema_history import ResumeOptions
from tests.support.receiving import Collector, Mapped, position

XA = ("XA START 'x'", "INSERT INTO shop.other VALUES (1)", "XA END 'x'", "XA PREPARE 'x'")
# transactions of every kind: a GTID that is not counted would look like a missing one at the next file
ODD = {
    "mysql": (
        *("CREATE TABLE shop.other (id INT PRIMARY KEY)", *XA, "XA COMMIT 'x'", "DELETE FROM shop.other", *XA, "XA ROLLBACK 'x'"),
        *("SET GTID_NEXT = '11111111-1111-1111-1111-111111111111:5'", "BEGIN", "COMMIT", "SET GTID_NEXT = AUTOMATIC"),
        *("SET binlog_transaction_compression = ON", "INSERT INTO shop.other VALUES (2)"),
        *("CREATE TEMPORARY TABLE shop.t (id INT)", "CREATE TABLE shop.copy (id INT PRIMARY KEY) SELECT id FROM shop.other"),
        *("BEGIN", "SAVEPOINT s", "INSERT INTO shop.other VALUES (3)", "ROLLBACK TO s", "COMMIT", "ANALYZE TABLE shop.other"),
        *("CREATE USER IF NOT EXISTS odd", "DROP USER odd", "DROP TABLE shop.other, shop.copy"),
    ),
    "mariadb": (
        *("CREATE TABLE shop.other (id INT PRIMARY KEY)", *XA, "XA COMMIT 'x'", "DELETE FROM shop.other", *XA, "XA ROLLBACK 'x'"),
        *("SET gtid_domain_id = 7", "INSERT INTO shop.other VALUES (2)", "SET gtid_domain_id = 0"),
        *("SET server_id = 9", "INSERT INTO shop.other VALUES (4)", "SET server_id = DEFAULT"),
        *("CREATE TABLE shop.copy (id INT PRIMARY KEY) SELECT id FROM shop.other", "ANALYZE TABLE shop.other"),
        *("CREATE USER IF NOT EXISTS odd", "DROP USER odd", "DROP TABLE shop.other, shop.copy"),
    ),
}  # fmt: skip


class Archive:
    """Three consecutive binlog files with three rows each; ``half`` is the offset after the first row of the second."""

    numbers = count(5)  # of GTIDs that are set by hand

    def __init__(self, server, kind, folder):
        self.folder = folder
        server.execute("DELETE FROM shop.orders", "FLUSH BINARY LOGS")
        self.start = replace(position(server), server="", gtid_set="")
        names = []
        for number in range(3):
            names.append(position(server).file)
            for row in range(3):
                server.execute(f"INSERT INTO shop.orders VALUES ({10 * number + row})")
                if (number, row) == (1, 0):
                    self.half = position(server).offset
            with server.connect() as connection, connection.cursor() as cursor:
                connection.autocommit(True)
                for statement in ODD[kind]:
                    cursor.execute(statement.replace(":5'", f":{next(self.numbers)}'"))
            server.execute("FLUSH BINARY LOGS")
        self.files = [folder / name for name in names]
        for file in self.files:
            shutil.copy(server.data / file.name, file)

    def read(self, start=None, **options):
        """Return the collector of all rows from ``start`` on."""
        receiver = BinlogReceiver.of_files(f"{self.folder}/*.0*", Mapped("shop", "orders"), **options)
        try:
            receiver.open(start or self.start, (), 0)
            return Collector(receiver).collect(lambda collector: collector.receiver.status().is_finished)
        finally:
            receiver.close()

    def read_past_gap(self):
        return self.read(accept_gap=True, resume_options=ResumeOptions(past_gap=True)).values()


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    with LocalServer.start(obtain(request.param), folder / "s", options=("--binlog-row-metadata=FULL",)) as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        yield server


@pytest.fixture
def archive(server, request, tmp_path):
    return Archive(server, request.node.callspec.params["server"], tmp_path)


def test_complete_files_are_read_from_every_position(archive):
    whole = archive.read()
    assert whole.values() == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    read = 0
    for number, batch in enumerate(whole.batches):
        with suppress(SourceActionRequired):  # the position is between XA PREPARE and the end of the XA transaction
            rows = archive.read(batch.last).rows
            assert len(rows) == sum(each.rows for each in whole.batches[number + 1 :])
            read += 1
    assert read >= 3


def test_missing_file_pauses_until_gap_is_accepted(archive):
    archive.files[1].unlink()
    with pytest.raises(PositionLost, match=f"between {archive.files[0].name} and {archive.files[2].name}") as raised:
        archive.read()
    assert "--accept-gap" in raised.value.hint
    (finding,) = check_files(f"{archive.folder}/*.0*")
    assert finding.fatal and archive.files[2].name in finding.problem
    assert archive.read_past_gap() == [0, 1, 2, 20, 21, 22]


def test_cut_file_pauses_until_gap_is_accepted(archive):
    archive.files[1].write_bytes(archive.files[1].read_bytes()[: archive.half])
    with pytest.raises(PositionLost, match=f"beginning of {archive.files[2].name} are missing") as raised:
        archive.read()
    assert "--accept-gap" in raised.value.hint
    assert archive.read_past_gap() == [0, 1, 2, 10, 20, 21, 22]


def test_replaced_file_pauses_and_names_no_flag(archive):
    last = archive.read().batches[-1].last
    header = archive.files[2].read_bytes()
    other = (int.from_bytes(header[4:8], "little") + 1).to_bytes(4, "little")  # its creation time
    archive.files[2].write_bytes(header[:4] + other + header[8:])
    with pytest.raises(PositionLost, match="replaced") as raised:
        archive.read(last)
    assert "--accept-gap" not in raised.value.hint and "source.path" in raised.value.hint
