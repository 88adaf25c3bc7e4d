"""Translation of server errors: a refused binlog dump always has the number 1236, so its text is compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pymysql
import pytest

from cdc.errors import PositionLost, ServerMismatch, SourceUnavailable
from cdc.mysql.connection import Endpoint, ServerError, translated
from cdc.mysql.query_stream import check_condition, configure_session
from cdc.mysql.server import Server


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "The slave is connecting using CHANGE MASTER TO MASTER_AUTO_POSITION = 1, but the master has purged binary "
            "logs containing GTIDs that the slave requires.",
            "were purged",
        ),
        ("Cannot replicate because the source purged required binary logs.", "were purged"),
        ("event read from binlog did not pass crc check; the first event 'b.000001' at 4", "is damaged"),
        ("event read from binlog did not pass checksum algorithm check specified on --binlog-checksum", "is damaged"),
    ],
)
def test_translated_lost_position_is_known_by_its_text(text, message):
    error = translated(ServerError(1236, "HY000", text), Endpoint("db"))
    assert isinstance(error, PositionLost)
    assert message in error.message and text in error.message


@pytest.mark.parametrize(
    "text",
    [
        "Slave has more GTIDs than the master has, using the master's SERVER_UUID.",
        "The binlog on the master is missing the GTID, which is not in the master's binlog",
    ],
)
def test_translated_server_mismatch_hint_accepts_server_then_loads(text):
    error = translated(ServerError(1236, "HY000", text), Endpoint("db"))
    assert isinstance(error, ServerMismatch)
    assert "`cdc resume NAME --accept-server`, then `cdc snapshot` for the job's tables." in error.hint


def test_configure_session_reports_a_lost_connection_as_unavailable():
    """The server restarts between the login and the first statement."""

    class Lost:
        def cursor(self):
            return self

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def execute(self, *_):
            raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")

    server = cast(Server, SimpleNamespace(connection=Lost(), endpoint=Endpoint("db.example")))
    for call in (lambda: configure_session(server), lambda: check_condition(server, ("shop", "orders"), "id > 5")):
        with pytest.raises(SourceUnavailable, match=r"Lost connection .*db\.example:3306"):
            call()
