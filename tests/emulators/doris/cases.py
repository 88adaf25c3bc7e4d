"""A Doris sink on an emulator or on a real cluster."""

from __future__ import annotations

import os
from typing import Any

from channels.sinks.doris.sink import DorisSink
from tests.emulators.cases import USER, RealCluster, address_of
from tests.emulators.doris.emulator import DorisEmulator
from tests.emulators.doris.settings import DorisSettings


def emulator(**settings: Any) -> DorisEmulator:
    return DorisEmulator(DorisSettings(users={"root": "", USER[0]: USER[1]}, **settings))


def any_doris() -> DorisEmulator | RealCluster:
    """Return the real cluster that CDC_TEST_DORIS names, else an emulator."""
    address = os.environ.get("CDC_TEST_DORIS")
    return RealCluster(address) if address else emulator()


def sink_on(doris: DorisEmulator | RealCluster, **arguments: Any) -> DorisSink:
    return DorisSink(address_of(doris, arguments), **{"pause_s": 0.01, **arguments})
