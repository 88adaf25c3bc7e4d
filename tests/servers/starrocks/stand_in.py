"""The whole cluster: FEs, BEs, SQL port, and what a test does to them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.servers.olap_faults import Faults
from tests.servers.olap_http import Handler
from tests.servers.olap_sql import Context, Rows, SqlPort
from tests.servers.olap_storage import Storage
from tests.servers.starrocks.backend import Backend
from tests.servers.starrocks.frontend import Frontend
from tests.servers.starrocks.multi import MultiTasks
from tests.servers.starrocks.settings import StarrocksSettings
from tests.servers.starrocks.sql import StarrocksStatements
from tests.servers.starrocks.transactions import Transactions


class StarrocksStandIn:
    """A StarRocks in this process. A context manager."""

    def __init__(
        self, settings: StarrocksSettings | None = None, *, clock: Callable[[], float] = time.time, fe_port: int = 0,
        sql_port: int = 0,
    ) -> None:  # fmt: skip
        self.settings = settings or StarrocksSettings()
        self.faults = Faults()
        self.storage = Storage(string_limit=self.settings.string_limit)
        self.transactions = Transactions(self.settings, self.storage, clock)
        self.multi = MultiTasks(self)
        self.coordinators: dict[str, int] = {}  # label to BE, in the FE's memory
        self.backends = [Backend(self, number) for number in range(self.settings.backends)]
        self.sql = StarrocksStatements(self)
        self.frontends = [Frontend(self, leader=True, port=fe_port)]
        self.frontends += [Frontend(self, leader=False) for _ in range(self.settings.followers)]
        self._port = SqlPort(self.settings.users, self.sql.execute, sql_port)
        self._turn = 0
        self._lock = threading.Lock()

    def __enter__(self) -> StarrocksStandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def fe(self) -> list[str]:
        """Addresses of the FEs, as the job file lists them."""
        return [f"127.0.0.1:{frontend.port}" for frontend in self.frontends]

    @property
    def sql_port(self) -> int:
        return self._port.port

    def execute(self, sql: str, database: str | None = None) -> Rows:
        """A statement without the wire: names and rows."""
        return self.sql.execute(sql, Context("root", database))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query, sorted."""
        return sorted(map(tuple, self.execute(sql)[1]), key=repr)

    def knows(self, user: tuple[str, str]) -> bool:
        """Whether user and password are right."""
        return self.settings.users.get(user[0]) == user[1]

    def next_backend(self) -> Backend | None:
        """One that is alive, in turn."""
        with self._lock:
            alive = [backend for backend in self.backends if backend.alive]
            self._turn += 1
            return alive[self._turn % len(alive)] if alive else None

    def stop_backend(self, number: int = 0) -> None:
        """A BE dies: its connections are cut, and what was in its memory is lost."""
        self.backends[number].alive = False
        self.backends[number].stop()

    def start_backend(self, number: int = 0) -> None:
        """The BE comes back on its port."""
        old = self.backends[number]
        self.backends[number] = Backend(self, number, port=old.port, generation=old.generation + 1)

    def restart_backend(self, number: int = 0) -> None:
        """Down and up again."""
        self.stop_backend(number)
        self.start_backend(number)

    def restart_frontend(self, number: int = 0) -> None:
        """Down and up again: what was in its memory is lost, what is PREPARED and beyond is not."""
        frontend = self.frontends[number]
        frontend.stop()
        if frontend.leader:
            self.transactions.lose_unsaved()
            self.multi.restart()
            self.coordinators.clear()
        self.frontends[number] = Frontend(self, leader=frontend.leader, port=frontend.port)

    def control(self, request: Handler) -> None:
        """Orders from another process: a JSON object with ``do`` and its arguments."""
        order = json.loads(b"".join(request.body()) or b"{}")
        what = order.pop("do")
        actions: dict[str, Callable[..., Any]] = {
            "fault": self.faults.order,
            "clear": self.faults.clear,
            "expire": self.transactions.expire,
            "forget": self.transactions.forget,
            "restart_backend": self.restart_backend,
            "history": self.loads,
        }
        request.reply(actions[what](**order))

    def loads(self) -> list[dict[str, Any]]:
        """Every transaction there ever was: label, table, state, rows."""
        return [
            {"id": each.id, "label": each.label, "table": f"{each.database}.{each.table}", "status": each.status.value,
             "rows": each.row_count}
            for each in self.transactions.history
        ]  # fmt: skip

    def stop(self) -> None:
        """Close every port."""
        for frontend in self.frontends:
            frontend.stop()
        for backend in self.backends:
            if backend.alive:
                backend.stop()
        self._port.stop()
