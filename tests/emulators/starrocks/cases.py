"""A StarRocks sink on an emulator or on a real cluster."""

from __future__ import annotations

import os
from typing import Any

from channels.sinks.starrocks.sink import StarrocksSink
from tests.emulators.cases import USER, RealCluster, address_of
from tests.emulators.starrocks.emulator import StarrocksEmulator
from tests.emulators.starrocks.settings import StarrocksSettings

MODES = {"single": "off", "multi": "on"}


def emulator(**settings: Any) -> StarrocksEmulator:
    return StarrocksEmulator(StarrocksSettings(users={"root": "", USER[0]: USER[1]}, **settings))


def any_starrocks() -> StarrocksEmulator | RealCluster:
    """Return the real cluster that CDC_TEST_STARROCKS names, else an emulator."""
    address = os.environ.get("CDC_TEST_STARROCKS")
    return RealCluster(address) if address else emulator()


def sink_on(starrocks: StarrocksEmulator | RealCluster, mode: str = "multi", **arguments: Any) -> StarrocksSink:
    address = address_of(starrocks, arguments)
    return StarrocksSink(address, **{"pause_s": 0.01, "databases": ["ods"], "multi_table": MODES[mode], **arguments})
