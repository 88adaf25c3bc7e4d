"""Snapshots of a MySQL server without GTIDs, whose commits wait for a replica before queries see them."""

from __future__ import annotations

import threading
import time

import pymysql

from cdc.demo.local_servers import LocalServer, obtain
from cdc.errors import PrerequisiteError
from cdc.mysql.connection import Endpoint, Tls
from cdc.mysql.server import Server
from cdc.mysql.visibility import is_visible
from tests.conftest import unavailable
from tests.support.limits import HANG_S

WAITS_S = 600  # for a replica that never answers; the test ends the wait earlier


def test_commit_that_waits_for_a_replica_is_waited_for(tmp_path):
    try:
        binaries = obtain("mysql")
    except PrerequisiteError as error:
        unavailable(str(error))
    options = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
    with LocalServer.start(binaries, tmp_path / "mysql", options=options) as source:
        source.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        try:
            source.execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
        except pymysql.err.MySQLError as error:
            unavailable(f"the plugin for semi-synchronous replication: {error}")
        source.execute(f"SET GLOBAL rpl_semi_sync_source_timeout = {WAITS_S * 1000}",
                       "SET GLOBAL rpl_semi_sync_source_enabled = ON")  # fmt: skip
        with Server(Endpoint("127.0.0.1", source.port, "root", tls=Tls("off"))) as server:
            begin = server.position()
            assert is_visible(server, begin), "nothing waits"
            committing = threading.Thread(target=source.execute, args=["INSERT INTO shop.t VALUES (1)"])
            committing.start()
            began = time.monotonic()
            while server.position() == begin:
                assert time.monotonic() < began + HANG_S
                time.sleep(0.01)
            assert not server.ask("SELECT id FROM shop.t"), "it is in the binlog, and not visible"
            assert not is_visible(server, server.position(), 1.5), "a chunk that is read now would lack it"
            source.execute("SET GLOBAL rpl_semi_sync_source_enabled = OFF")
            assert is_visible(server, server.position(), HANG_S)
            assert server.ask("SELECT id FROM shop.t")
            committing.join()
