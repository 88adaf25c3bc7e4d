"""A StarRocks sink on a stand-in or on a real cluster."""

from __future__ import annotations

import os
from typing import Any

from channels.sinks.starrocks import StarrocksSink
from tests.servers.olap_cases import USER, RealCluster
from tests.servers.starrocks.settings import StarrocksSettings
from tests.servers.starrocks.stand_in import StarrocksStandIn

MODES = {"single": "off", "multi": "on"}


def stand_in(**settings: Any) -> StarrocksStandIn:
    return StarrocksStandIn(StarrocksSettings(users={"root": "", USER[0]: USER[1]}, **settings))


def any_starrocks() -> StarrocksStandIn | RealCluster:
    """The real cluster where CDC_TEST_STARROCKS names one, else the stand-in."""
    address = os.environ.get("CDC_TEST_STARROCKS")
    return RealCluster(address) if address else stand_in()


def sink_on(starrocks: StarrocksStandIn | RealCluster, mode: str = "multi", **arguments: Any) -> StarrocksSink:
    name, password = starrocks.user if isinstance(starrocks, RealCluster) else USER
    given = {
        "username": name, "password": password, "sql_port": starrocks.sql_port, "pause_s": 0.01, "databases": ["ods"],
        "multi_table": MODES[mode], **arguments,
    }  # fmt: skip
    return StarrocksSink(starrocks.fe, **given)
