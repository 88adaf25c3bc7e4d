"""The whole cluster: FEs, BEs, SQL port, and what a test does to them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.servers.doris.backend import Backend
from tests.servers.doris.frontend import Frontend
from tests.servers.doris.settings import DorisSettings
from tests.servers.doris.sql import DorisStatements
from tests.servers.doris.transactions import Transactions
from tests.servers.olap_faults import Faults
from tests.servers.olap_http import Handler
from tests.servers.olap_sql import Context, Rows, SqlPort
from tests.servers.olap_storage import Storage


class DorisStandIn:
    """A Doris in this process. A context manager."""

    def __init__(
        self, settings: DorisSettings | None = None, *, clock: Callable[[], float] = time.time, fe_port: int = 0,
        sql_port: int = 0,
    ) -> None:  # fmt: skip
        self.settings = settings or DorisSettings()
        self.faults = Faults()
        self.storage = Storage(string_limit=self.settings.string_limit)
        self.transactions = Transactions(self.settings, self.storage, clock)
        self.generation = 0  # rises at every BE restart: what was under way then is lost
        self.backends = [Backend(self) for _ in range(self.settings.backends)]
        self.sql = DorisStatements(self)
        self.frontends = [Frontend(self, master=True, port=fe_port)]
        self.frontends += [Frontend(self, master=False) for _ in range(self.settings.followers)]
        self._port = SqlPort(self.settings.users, self.sql.execute, sql_port)
        self._turn = 0
        self._lock = threading.Lock()

    def __enter__(self) -> DorisStandIn:
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
        return self.settings.users.get(user[0].partition("@")[0]) == user[1]

    def next_backend(self) -> Backend | None:
        """Round robin over those alive."""
        with self._lock:
            alive = [backend for backend in self.backends if backend.alive]
            self._turn += 1
            return alive[self._turn % len(alive)] if alive else None

    def stop_backend(self, number: int = 0) -> None:
        """A BE dies: its connections are cut, and what it was loading is lost."""
        backend = self.backends[number]
        self.generation += 1
        backend.alive = False
        backend.stop()

    def start_backend(self, number: int = 0) -> None:
        """The BE comes back on its port."""
        self.backends[number] = Backend(self, self.backends[number].port)

    def restart_backend(self, number: int = 0) -> None:
        """Down and up again."""
        self.stop_backend(number)
        self.start_backend(number)

    def restart_frontend(self, number: int = 0) -> None:
        """Down and up again; loads that are not pre-committed are forgotten."""
        frontend = self.frontends[number]
        frontend.stop()
        self.transactions.lose_unsaved()
        self.frontends[number] = Frontend(self, master=frontend.master, port=frontend.port)

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
        if what == "restart_frontend":  # answers first: its own connection is cut as well
            request.reply(b"null")
            threading.Thread(target=self.restart_frontend).start()
            return
        request.reply(actions[what](**order))

    def loads(self) -> list[dict[str, Any]]:
        """Every load there ever was: label, table, state, rows."""
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
