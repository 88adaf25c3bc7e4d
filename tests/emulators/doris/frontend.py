"""The emulated FE of Doris: redirects, states, cancel, backends, schema and SQL over HTTP."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.emulators.doris.transactions import Refused, Status
from tests.emulators.faults import Fault
from tests.emulators.http import Handler
from tests.emulators.names import is_ambiguous, normal_segments
from tests.emulators.servers import TEXT, ClusterFrontend
from tests.emulators.sql import Context, SqlRefused

if TYPE_CHECKING:
    from tests.emulators.doris.emulator import DorisEmulator


class Frontend(ClusterFrontend):
    """One FE; the first is the leader, which Doris calls master."""

    segments = staticmethod(normal_segments)
    redirect_scheme = "http"  # also with TLS
    cluster: DorisEmulator

    def refuses_path(self, request: Handler) -> bool:
        """See ClusterFrontend."""
        if not self.cluster.settings.has("refuses_ambiguous_paths") or not is_ambiguous(request.path.partition("?")[0]):
            return False
        request.reply(b"Ambiguous URI", 400, TEXT)
        return True

    def refuse_user(self, request: Handler, user: tuple[str, str] | None) -> None:
        """See ClusterFrontend."""
        text = "Need auth information."
        if user is not None:
            text = f"Access denied for user '{user[0]}'@'127.0.0.1' (using password: {'YES' if user[1] else 'NO'})"
        request.reply({"msg": "Unauthorized", "code": 401, "data": text, "count": 0})

    def route(self, request: Handler, user: tuple[str, str]) -> None:
        """See ClusterFrontend."""
        match request.command, request.segments:
            case "PUT", ["api", database, table, "_stream_load"]:
                self._stream_load(request, user, database, table)
            case "PUT", ["api", database, "_stream_load_2pc"] | ["api", database, _, "_stream_load_2pc"]:
                self._two_phase(request, user, database)
            case "GET", ["api", "backends"]:
                self._backends(request)
            case "GET", ["api", database, "get_load_state"]:
                self._state(request, database)
            case "POST", ["api", database, "_cancel"]:
                self._cancel(request, user, database)
            case "GET", ["api", database, table, "_schema"]:
                self._schema(request, database, table)
            case "POST", ["api", "query", _, database]:
                self._query(request, user, database)
            case _:
                request.reply({"msg": "Not Found", "code": 404, "data": None, "count": 0})

    def _refused(self, request: Handler, text: str) -> None:
        request.reply({"status": "FAILED", "msg": text})

    def _stream_load(self, request: Handler, user: tuple[str, str], database: str, table: str) -> None:
        if not request.expects_continue:
            return self._refused(request, "There is no 100-continue header")
        if self.cluster.settings.resets_bodies and not request.body_read:
            request.cut()
        self._to_backend(request, user, database)

    def _two_phase(self, request: Handler, user: tuple[str, str], database: str) -> None:
        if not request.headers.get("txn_id") and not request.headers.get("label"):
            by_label = self.cluster.settings.has("two_phase_by_label")
            return self._refused(request, f"No transaction id{' or label' if by_label else ''} selected.")
        if not request.headers.get("txn_operation"):
            return self._refused(request, "No transaction operation('commit' or 'abort') selected.")
        self._to_backend(request, user, database)

    def _to_backend(self, request: Handler, user: tuple[str, str], database: str) -> None:
        if not self.may_load(user[0], database):
            return self._refused(request, f"Access denied for user '{user[0]}' to database '{database}': LOAD needed")
        backend = self.cluster.next_backend()
        if backend is None:
            return self._refused(request, "No backend load available.")
        cluster = "@default_cluster" if self.cluster.settings.version < (2, 1) else ""
        name = f"{quote(user[0] + cluster, safe='')}:{quote(user[1], safe='')}"
        _, _, query = request.path.partition("?")
        path = "/" + "/".join(quote(part, safe="") for part in request.segments)  # written again from the decoded path
        location = f"http://{name}@127.0.0.1:{backend.port}{path}?{query}"
        request.reply(b"", 307, {"Location": location, "Content-Type": "text/plain"})

    def _backends(self, request: Handler) -> None:
        order = self.cluster.faults.take("backends")
        if order is not None and order.fault is Fault.HTTP_500:
            return request.reply(b"Internal Server Error", 500)
        found = [
            {"ip": "127.0.0.1", "http_port": backend.port, "is_alive": backend.alive}
            for backend in self.cluster.backends
            if backend.alive or request.query.get("is_alive") != "true"
        ]
        self._ok(request, {"backends": found})

    def _ok(self, request: Handler, data: Any) -> None:
        request.reply({"msg": "success", "code": 0, "data": data, "count": 0})

    def _error(self, request: Handler, text: str, code: int = 1) -> None:
        request.reply({"msg": {1: "Error", 403: "Bad Request"}[code], "code": code, "data": text, "count": 0})

    def _state(self, request: Handler, database: str) -> None:
        label = request.query.get("label", "")
        if self.to_leader(request) or self.is_state_broken(request, label):
            return
        if not label:
            return self._error(request, "No label selected", 403)
        if database not in self.cluster.storage.databases:
            return self._error(request, f"unknown databases, dbName={database}")
        self._ok(request, self.cluster.transactions.state(database, label))

    def _cancel(self, request: Handler, user: tuple[str, str], database: str) -> None:
        if self.to_leader(request):
            return
        if not self.may_load(user[0], database):
            return self._error(request, f"Access denied for user '{user[0]}' to database '{database}'")
        label = request.query.get("label", "")
        try:
            found = self.cluster.transactions.by_label(database, label, (Status.PREPARE,))
            self.cluster.transactions.abort(found, "user cancel")
        except Refused as error:
            return self._error(request, str(error))
        self._ok(request, None)

    def _schema(self, request: Handler, database: str, table: str) -> None:
        found = self.cluster.storage.find(database, table)
        if found is None:
            return self._error(request, f"Unknown table '{table}'")
        columns = [
            {
                "name": column.name,
                "type": column.base,
                "comment": column.comment,
                "aggregation_type": "" if column.name in found.key else "REPLACE",
                "is_nullable": "Yes" if column.nullable else "No",
            }
            for column in found.columns
        ]
        self._ok(request, {"status": 200, "keysType": f"{found.model}_KEYS", "properties": columns})

    def _query(self, request: Handler, user: tuple[str, str], database: str) -> None:
        import json

        statement = json.loads(b"".join(request.body()))["stmt"]
        try:
            names, rows = self.cluster.sql.execute(statement, Context(user[0], database))
        except SqlRefused as error:
            return self._error(request, f"Failed to execute sql: {error}")
        meta = [{"name": name, "type": "VARCHAR"} for name in names]
        data = [[None if value is None else str(value) for value in row] for row in rows]
        if names:
            return self._ok(request, {"type": "result_set", "meta": meta, "data": data, "time": 1})
        self._ok(request, {"type": "exec_status", "status": {}})


def basic(user: str, password: str) -> str:
    """The Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
