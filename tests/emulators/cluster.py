"""The shared part of both emulated clusters: ports, actions of tests, and the program that serves one."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Callable
from typing import Any, Self

from tests.emulators.alters import Alters
from tests.emulators.faults import Faults
from tests.emulators.http import Handler
from tests.emulators.sql import Context, Rows, SqlPort
from tests.emulators.storage import Storage


class ClusterEmulator:
    """A cluster in this process. A context manager.

    A product adds ``backends``, ``frontends``, ``transactions``, ``sql`` and how its servers start.
    """

    backends: list[Any]
    frontends: list[Any]
    transactions: Any
    sql: Any

    frontend: type[Any]
    only_leader_forgets = True
    node_column: str  # the column of SHOW BACKENDS that has the host

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.faults = Faults()
        self.storage = Storage(string_limit=settings.string_limit)
        self.alters = Alters(self.storage, lambda: list(self.transactions.history))
        self.time_zone = "+08:00"  # of sessions that set none
        self.is_behind = False  # queries see no rows, except after SYNC
        self._turn = 0
        self._lock = threading.Lock()

    def open(self, fe_port: int, sql_port: int) -> None:
        """Start the FEs and the SQL port. ``backends`` and ``sql`` exist."""
        self.frontends = [self.frontend(self, leader=True, port=fe_port)]
        self.frontends += [self.frontend(self, leader=False) for _ in range(self.settings.followers)]
        self._port = SqlPort(self.settings.users, self.sql.execute, sql_port, self.sql.unquote)

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
        """Run a statement without the SQL port; return names and rows."""
        return self.sql.execute(sql, Context("root", database))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, sorted."""
        return sorted(map(tuple, self.execute(sql)[1]), key=repr)

    def knows(self, user: tuple[str, str]) -> bool:
        """Return True if user and password are right."""
        return self.settings.users.get(user[0]) == user[1]

    def nodes(self, what: str) -> Rows:
        """Answer SHOW FRONTENDS, SHOW BACKENDS or SHOW COMPUTE NODES with the columns that a client needs."""
        name = self.node_column
        if what == "FRONTENDS":
            return ["Name", name, "HttpPort"], [
                (f"fe{each.port}", "127.0.0.1", str(each.port)) for each in self.frontends
            ]
        shown = [(str(number), "127.0.0.1", str(each.port), str(each.alive).lower())
                 for number, each in enumerate(self.backends)]  # fmt: skip
        return ["BackendId", name, "HttpPort", "Alive"], shown if what == "BACKENDS" else []

    def next_backend(self) -> Any:
        """Return the next running BE, round robin; None if none is running."""
        with self._lock:
            alive = [backend for backend in self.backends if backend.alive]
            self._turn += 1
            return alive[self._turn % len(alive)] if alive else None

    def stop_backend(self, number: int = 0) -> None:
        """Kill a BE: its connections are cut, and its memory is lost."""
        self.backends[number].alive = False
        self.backends[number].stop()

    def start_backend(self, number: int = 0) -> None:
        """Start the BE again on its port."""
        raise NotImplementedError

    def restart_backend(self, number: int = 0) -> None:
        """Stop and start a BE."""
        self.stop_backend(number)
        self.start_backend(number)

    def restart_frontend(self, number: int = 0) -> None:
        """Stop and start an FE: what it has not written to its journal is lost."""
        frontend = self.frontends[number]
        frontend.stop()
        if frontend.leader or not self.only_leader_forgets:
            self.forget_unsaved()
        self.frontends[number] = self.frontend(self, leader=frontend.leader, port=frontend.port)

    def forget_unsaved(self) -> None:
        """Forget what an FE has only in memory."""
        self.transactions.lose_unsaved()

    def control(self, request: Handler) -> None:
        """Run an action for another process: a JSON object with ``do`` and its arguments."""
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
        if what == "restart_frontend":  # answer first, because the restart cuts this connection too
            request.reply(b"null")
            threading.Thread(target=self.restart_frontend).start()
            return
        request.reply(actions[what](**order))

    def loads(self) -> list[dict[str, Any]]:
        """Return all transactions ever: label, table, state, rows."""
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


def serve(settings: Callable[..., Any], emulator: Callable[..., ClusterEmulator]) -> None:
    """Print the ports as one line of JSON, and serve until SIGTERM or SIGINT."""
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
    with emulator(chosen, fe_port=given.fe_port, sql_port=given.sql_port) as cluster:
        print(json.dumps({"fe": cluster.fe, "sql_port": cluster.sql_port}), flush=True)
        ended.wait()
