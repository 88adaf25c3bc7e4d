"""The whole cluster: FEs, BEs, SQL port, and what a test does to them."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.servers.olap_cluster import ClusterStandIn
from tests.servers.starrocks.backend import Backend
from tests.servers.starrocks.frontend import Frontend
from tests.servers.starrocks.multi import MultiTasks
from tests.servers.starrocks.settings import StarrocksSettings
from tests.servers.starrocks.sql import StarrocksStatements
from tests.servers.starrocks.transactions import Transactions


class StarrocksStandIn(ClusterStandIn):
    """A StarRocks in this process. A context manager."""

    settings: StarrocksSettings

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
        self.frontends = [Frontend(self, leader=True, port=fe_port)]
        self.frontends += [Frontend(self, leader=False) for _ in range(self.settings.followers)]
        self.open_sql(sql_port)

    def start_backend(self, number: int = 0) -> None:
        """See ClusterStandIn."""
        old = self.backends[number]
        self.backends[number] = Backend(self, number, port=old.port, generation=old.generation + 1)

    def restart_frontend(self, number: int = 0) -> None:
        """See ClusterStandIn: what is PREPARED and beyond stays."""
        frontend = self.frontends[number]
        frontend.stop()
        if frontend.leader:
            self.transactions.lose_unsaved()
            self.multi.restart()
            self.coordinators.clear()
        self.frontends[number] = Frontend(self, leader=frontend.leader, port=frontend.port)
