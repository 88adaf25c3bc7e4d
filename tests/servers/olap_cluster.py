"""What both stand-ins have: a cluster's ports, what a test does to them, and a process of its own."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Callable
from typing import Any, Self

from tests.servers.olap_faults import Faults
from tests.servers.olap_http import Handler
from tests.servers.olap_sql import Context, Rows, SqlPort
from tests.servers.olap_storage import Storage


class ClusterStandIn:
    """A cluster in this process. A context manager.

    A product adds ``backends``, ``frontends``, ``transactions``, ``sql`` and how its servers start.
    """

    backends: list[Any]
    frontends: list[Any]
    transactions: Any
    sql: Any

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.faults = Faults()
        self.storage = Storage(string_limit=settings.string_limit)
        self._turn = 0
        self._lock = threading.Lock()

    def open_sql(self, port: int) -> None:
        """Open the SQL port; ``sql`` is there."""
        self._port = SqlPort(self.settings.users, self.sql.execute, port)

    def __enter__(self) -> Self:
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

    def next_backend(self) -> Any:
        """One that is alive, in turn; None where none is."""
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
        raise NotImplementedError

    def restart_backend(self, number: int = 0) -> None:
        """Down and up again."""
        self.stop_backend(number)
        self.start_backend(number)

    def restart_frontend(self, number: int = 0) -> None:
        """Down and up again: what was not written to its journal is lost."""
        raise NotImplementedError

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


def serve(settings: Callable[..., Any], stand_in: Callable[..., ClusterStandIn]) -> None:
    """A process of its own until SIGTERM or SIGINT; prints its ports as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--null", action="store_true", help="count the rows of bodies and throw them away")
    parser.add_argument("--backends", type=int, default=1)
    parser.add_argument("--fe-port", type=int, default=0)
    parser.add_argument("--sql-port", type=int, default=0)
    parser.add_argument("--user", default="cdc:secret", help="name:password")
    given = parser.parse_args()
    user, _, password = given.user.partition(":")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    chosen = settings(null=given.null, backends=given.backends, users={"root": "", user: password})
    with stand_in(chosen, fe_port=given.fe_port, sql_port=given.sql_port) as cluster:
        print(json.dumps({"fe": cluster.fe, "sql_port": cluster.sql_port}), flush=True)
        ended.wait()
