"""The whole cluster: FEs, BEs, SQL port, and what a test does to them."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.servers.doris.backend import Backend
from tests.servers.doris.frontend import Frontend
from tests.servers.doris.settings import DorisSettings
from tests.servers.doris.sql import DorisStatements
from tests.servers.doris.transactions import Transactions
from tests.servers.olap_cluster import ClusterStandIn


class DorisStandIn(ClusterStandIn):
    """A Doris in this process. A context manager."""

    settings: DorisSettings

    def __init__(
        self, settings: DorisSettings | None = None, *, clock: Callable[[], float] = time.time, fe_port: int = 0,
        sql_port: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(settings or DorisSettings())
        self.transactions = Transactions(self.settings, self.storage, clock)
        self.generation = 0  # rises at every BE restart: what was under way then is lost
        self.backends = [Backend(self) for _ in range(self.settings.backends)]
        self.sql = DorisStatements(self)
        self.frontends = [Frontend(self, master=True, port=fe_port)]
        self.frontends += [Frontend(self, master=False) for _ in range(self.settings.followers)]
        self.open_sql(sql_port)

    def knows(self, user: tuple[str, str]) -> bool:
        """Whether user and password are right; ``user@cluster`` is the user's old form."""
        return super().knows((user[0].partition("@")[0], user[1]))

    def stop_backend(self, number: int = 0) -> None:
        """See ClusterStandIn."""
        self.generation += 1
        super().stop_backend(number)

    def start_backend(self, number: int = 0) -> None:
        """See ClusterStandIn."""
        self.backends[number] = Backend(self, self.backends[number].port)

    def restart_frontend(self, number: int = 0) -> None:
        """See ClusterStandIn: loads that are not pre-committed are forgotten."""
        frontend = self.frontends[number]
        frontend.stop()
        self.transactions.lose_unsaved()
        self.frontends[number] = Frontend(self, master=frontend.master, port=frontend.port)
