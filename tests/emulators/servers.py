"""What the emulated FEs and BEs of both products share: credentials, routing to the leader, faults, error logs."""

from __future__ import annotations

from typing import Any

from tests.emulators.faults import Fault
from tests.emulators.http import Handler, Server

TEXT = {"Content-Type": "text/plain"}


class ClusterFrontend(Server):
    """One FE; the first is the leader."""

    redirect_scheme = ""  # "" for the scheme of this port

    def __init__(self, cluster: Any, *, leader: bool, port: int = 0) -> None:
        self.cluster, self.leader = cluster, leader
        super().__init__(port, cluster.settings.tls)

    def answer(self, request: Handler) -> None:
        """Check the credentials, then route one request."""
        if self.refuses_path(request):
            return
        user = request.credentials()
        if request.segments[:1] == ["__control"]:
            self.cluster.control(request)
        elif user is None or not self.cluster.knows(user):
            self.refuse_user(request, user)
        else:
            self.route(request, user)

    def refuses_path(self, request: Handler) -> bool:
        """Answer a path that this product refuses, and return True."""
        return False

    def refuse_user(self, request: Handler, user: tuple[str, str] | None) -> None:
        """Answer a request without credentials, or with wrong ones."""
        raise NotImplementedError

    def route(self, request: Handler, user: tuple[str, str]) -> None:
        """Answer a request of ``user``."""
        raise NotImplementedError

    def to_leader(self, request: Handler) -> bool:
        """Redirect to the leader and return True, if this is a follower."""
        if not self.leader:
            self.redirect(request, next(each for each in self.cluster.frontends if each.leader).port)
        return not self.leader

    def redirect(self, request: Handler, port: int) -> None:
        """Redirect to the same path at another port."""
        location = f"{self.redirect_scheme or self.scheme}://127.0.0.1:{port}{request.path}"
        request.reply(b"", 307, {"Location": location, **TEXT})

    def may_load(self, user: str, database: str) -> bool:
        """Return True if ``user`` may load into ``database``."""
        return (user, database) not in self.cluster.settings.denied

    def is_state_broken(self, request: Handler, label: str) -> bool:
        """Answer the request for a state with the fault that a test ordered, and return True."""
        order = self.cluster.faults.take("state", label)
        if order is not None and order.fault is Fault.DROP_ANSWER:
            request.cut()
        if order is not None:
            request.reply(b"Internal Server Error", 500, TEXT)
        return order is not None


class ClusterBackend(Server):
    """One BE."""

    def __init__(self, cluster: Any, port: int = 0) -> None:
        self.cluster = cluster
        self.alive = True
        self.error_logs: dict[str, bytes] = {}
        super().__init__(port, cluster.settings.tls)

    def answer(self, request: Handler) -> None:
        """Route one request."""
        if request.command == "GET" and request.segments == ["api", "_load_error_log"]:
            found = self.error_logs.get(request.query.get("file", ""))
            request.reply(found or b"No such file", 200 if found else 404, TEXT)
        elif not self.route(request):
            request.reply(b"Not Found", 404, TEXT)

    def route(self, request: Handler) -> bool:
        """Answer a request and return True; False if there is no such path."""
        raise NotImplementedError

    def keep_error_log(self, name: str, bad: tuple[str, ...]) -> str:
        """Keep the lines of rejected rows and return the address of their log."""
        self.error_logs[name] = "\n".join(filter(None, bad)).encode()
        return f"{self.scheme}://127.0.0.1:{self.port}/api/_load_error_log?file={name}"
