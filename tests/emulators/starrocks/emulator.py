"""The whole cluster: FEs, BEs, SQL port, and what a test does to them."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.emulators.cluster import ClusterEmulator
from tests.emulators.starrocks.backend import Backend
from tests.emulators.starrocks.frontend import Frontend
from tests.emulators.starrocks.multi import MultiTasks
from tests.emulators.starrocks.settings import StarrocksSettings
from tests.emulators.starrocks.sql import StarrocksStatements
from tests.emulators.starrocks.transactions import Transactions


class StarrocksEmulator(ClusterEmulator):
    """A StarRocks in this process. A context manager."""

    settings: StarrocksSettings
    frontend = Frontend
    node_column = "IP"

    def __init__(
        self, settings: StarrocksSettings | None = None, *, clock: Callable[[], float] = time.time, fe_port: int = 0,
        sql_port: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(settings or StarrocksSettings())
        self.transactions = Transactions(self.settings, self.storage, clock)
        self.multi = MultiTasks(self)
        self.coordinators: dict[str, int] = {}  # label to BE, in the FE's memory
        self.backends = [Backend(self, number) for number in range(self.settings.backends)]
        self.sql = StarrocksStatements(self)
        self.open(fe_port, sql_port)

    def start_backend(self, number: int = 0) -> None:
        """See ClusterEmulator."""
        old = self.backends[number]
        self.backends[number] = Backend(self, number, port=old.port, generation=old.generation + 1)

    def forget_unsaved(self) -> None:
        """See ClusterEmulator. PREPARED transactions stay."""
        super().forget_unsaved()
        self.multi.restart()
        self.coordinators.clear()
