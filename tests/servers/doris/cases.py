"""A Doris sink on a stand-in or on a real cluster."""

from __future__ import annotations

import os
from typing import Any

from channels.sinks.doris import DorisSink
from tests.servers.doris.settings import DorisSettings
from tests.servers.doris.stand_in import DorisStandIn
from tests.servers.olap_cases import USER, RealCluster


def stand_in(**settings: Any) -> DorisStandIn:
    return DorisStandIn(DorisSettings(users={"root": "", USER[0]: USER[1]}, **settings))


def any_doris() -> DorisStandIn | RealCluster:
    """The real cluster where CDC_TEST_DORIS names one, else the stand-in."""
    address = os.environ.get("CDC_TEST_DORIS")
    return RealCluster(address) if address else stand_in()


def sink_on(doris: DorisStandIn | RealCluster, **arguments: Any) -> DorisSink:
    name, password = doris.user if isinstance(doris, RealCluster) else USER
    given = {"username": name, "password": password, "sql_port": doris.sql_port, "pause_s": 0.01, **arguments}
    return DorisSink(doris.fe, **given)
