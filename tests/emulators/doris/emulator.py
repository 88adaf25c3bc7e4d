"""The whole cluster: FEs, BEs, SQL port, and what a test does to them."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.emulators.cluster import ClusterEmulator
from tests.emulators.doris.backend import Backend
from tests.emulators.doris.frontend import Frontend
from tests.emulators.doris.settings import DorisSettings
from tests.emulators.doris.sql import DorisStatements
from tests.emulators.doris.transactions import Transactions


class DorisEmulator(ClusterEmulator):
    """A Doris in this process. A context manager."""

    settings: DorisSettings
    frontend = Frontend
    node_column = "Host"
    only_leader_forgets = False

    def __init__(
        self, settings: DorisSettings | None = None, *, clock: Callable[[], float] = time.time, fe_port: int = 0,
        sql_port: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(settings or DorisSettings())
        self.transactions = Transactions(self.settings, self.storage, clock)
        self.generation = 0  # rises at every BE restart: what was under way then is lost
        self.backends = [Backend(self) for _ in range(self.settings.backends)]
        self.sql = DorisStatements(self)
        self.open(fe_port, sql_port)

    def knows(self, user: tuple[str, str]) -> bool:
        """Return True if user and password are right. Old versions write ``user@cluster``."""
        return super().knows((user[0].partition("@")[0], user[1]))

    def stop_backend(self, number: int = 0) -> None:
        """See ClusterEmulator."""
        self.generation += 1
        super().stop_backend(number)

    def start_backend(self, number: int = 0) -> None:
        """See ClusterEmulator."""
        self.backends[number] = Backend(self, self.backends[number].port)
