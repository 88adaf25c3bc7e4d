"""What the Doris sink asks of FE and BE: hosts, loads, states, two-phase commit, SQL.

Source: Doris, ``LoadAction.java``, ``GetStreamLoadState.java``, ``stream_load_2pc.cpp``, ``ShowTransactionStmt.java``.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pymysql

from cdc.errors import SinkUnavailable, TargetMismatch
from channels.sinks.stream_load import Access, HttpClient, Reply, Unreachable, each_host, split_location

_DENIED = ("Access denied", "Unauthorized", "NOT_AUTHORIZED", "no valid Basic authorization")
_BACKENDS_KEPT_S = 10.0  # a list of this age may lack a new BE, or have one that is gone
_AUTH_CODES = (1044, 1045, 1227)


@dataclass(frozen=True, slots=True)
class Answer:
    """What ``_stream_load_2pc`` said."""

    status: str
    message: str


class DorisHttp:
    """HTTP with FEs and BEs. Picklable; shared by the threads of a process."""

    def __init__(self, access: Access, hosts: tuple[str, ...] = ()) -> None:
        self._client = HttpClient(access)
        self.access = access
        self._hosts = hosts
        self._asked_at = time.monotonic()

    def __reduce__(self) -> tuple[type[DorisHttp], tuple[Access, tuple[str, ...]]]:
        return DorisHttp, (self.access, self._hosts)

    def backends(self, *, fresh: bool = False, via: str = "") -> tuple[str, ...]:
        """Hosts of the BEs alive, asked for again now and then, or at once if ``fresh``.

        ``via`` is a path whose redirect names one where the list is forbidden. While no FE answers, those known go on.

        Raises: SinkUnavailable - none is known, or none is alive; TargetMismatch - the credentials are refused.
        """
        if self.access.backends:
            return self.access.backends
        if fresh or not self._hosts or time.monotonic() - self._asked_at > _BACKENDS_KEPT_S:
            try:
                self.ask_backends(via)
            except SinkUnavailable:
                if not self._hosts:
                    raise
        return self._hosts

    def ask_backends(self, via: str = "") -> int:
        """How many BEs are alive. Raises: see ``backends``; and SinkUnavailable - no FE answers."""
        hosts = self._listed() or self._redirected(via)
        self._hosts, self._asked_at = hosts, time.monotonic()
        if not hosts:
            raise SinkUnavailable(
                "Doris has no backend alive.", mend="See SHOW BACKENDS on the FE.", fe=", ".join(self.access.fe)
            )
        return len(hosts)

    def _listed(self) -> tuple[str, ...]:
        reply = self.frontend("GET", "/api/backends?is_alive=true")
        data = reply.json() if reply.status == 200 else {}
        if not isinstance(data.get("data"), dict):
            self.refuse_denied(data.get("data"), data.get("msg"))
            return ()
        found = [backend for backend in data["data"]["backends"] if backend["is_alive"]]
        return tuple(f"{_bracketed(backend['ip'])}:{backend['http_port']}" for backend in found)

    def _redirected(self, path: str) -> tuple[str, ...]:
        if not path:
            return ()
        headers = {"Expect": "100-continue"}
        reply = self._frontends(lambda host: self._client.request("PUT", host, path, headers=headers))
        return (split_location(reply.headers["location"])[0],) if reply.status == 307 else ()

    def load(
        self, host: str, path: str, headers: Mapping[str, str], body: Callable[[], Iterable[bytes]]
    ) -> dict[str, Any]:
        """A Stream Load's answer. Raises: Unreachable."""
        answer = self._client.request("PUT", host, path, headers=headers, body=body).json()
        if not isinstance(answer, dict) or "Status" not in answer:
            raise Unreachable(f"http://{host} gives no load's answer: {answer!r}")
        return answer

    def state(self, database: str, label: str) -> str:
        """UNKNOWN, PREPARE, PRECOMMITTED, COMMITTED, VISIBLE or ABORTED. Raises: SinkUnavailable, TargetMismatch."""
        reply = self.frontend("GET", f"/api/{quote(database)}/get_load_state?label={quote(label)}")
        answer = reply.json()
        if answer.get("code") == 0:
            return str(answer["data"])
        self.refuse_denied(answer.get("data"), answer.get("msg"))
        if "nknown database" in str(answer.get("data")):
            return "UNKNOWN"
        raise SinkUnavailable(f"Doris does not tell a label's state: {answer.get('data')}", mend=_WAIT, label=label)

    def cancel(self, database: str, label: str) -> None:
        """Abort what is not committed of ``label``; harmless where nothing is. Raises: SinkUnavailable."""
        self.frontend("POST", f"/api/{quote(database)}/_cancel?label={quote(label)}")

    def finish(self, operation: str, database: str, number: int) -> Answer:
        """Commit or abort a transaction. Raises: Unreachable, SinkUnavailable, TargetMismatch."""
        headers = {"txn_operation": operation, "txn_id": str(number)}
        hosts = self._client.least_busy(self.backends(), number)
        path = f"/api/{quote(database)}/_stream_load_2pc"
        reply = each_host(hosts, lambda host: self._client.request("PUT", host, path, headers=headers))
        answer = reply.json()
        return Answer(str(answer.get("status")), str(answer.get("msg")))

    def text(self, url: str) -> str:
        """A page of a BE, the log of refused rows; what went wrong instead, where it cannot be had."""
        try:
            host, path = split_location(url)
            return self._client.request("GET", host, path, timeout_s=10).body.decode(errors="replace")
        except Unreachable as error:
            return f"the log of refused rows could not be read: {error}"

    def least_busy(self, hosts: Iterable[str], turn: int) -> list[str]:
        """See HttpClient."""
        return self._client.least_busy(list(hosts), turn)

    def frontend(self, method: str, path: str) -> Reply:
        """A request to the first FE that answers. Raises: SinkUnavailable."""
        return self._frontends(lambda host: self._client.redirected(method, host, path, timeout_s=30))

    def _frontends(self, ask: Callable[[str], Reply]) -> Reply:
        try:
            return each_host(self.access.fe, ask)
        except Unreachable as error:
            raise unavailable(error, fe=", ".join(self.access.fe)) from error

    def refuse_denied(self, *texts: object) -> None:
        """Raises: TargetMismatch - one of ``texts`` says that the credentials or privileges do not do."""
        for text in texts:
            if isinstance(text, str) and any(word in text for word in _DENIED):
                raise denied(text, self.access.username)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()


class DorisSql:
    """The FEs' SQL port, one connection, made again when it is lost. For the driver alone."""

    def __init__(self, access: Access, port: int) -> None:
        self._access, self._port = access, port
        self._connection: pymysql.Connection[Any] | None = None
        self._lock = threading.Lock()

    def rows(self, statement: str, values: tuple[Any, ...] | None = None) -> list[dict[str, Any]]:
        """Rows of a statement, by column. Raises: SinkUnavailable, TargetMismatch; SqlError - refused."""
        with self._lock:
            last: Exception | None = None
            for host in (
                *self._access.fe,
                *self._access.fe,
            ):  # a connection that the FE closed while idle is made again
                try:
                    connection = self._connected(host)
                    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
                        cursor.execute(statement, values)
                        return list(cursor.fetchall())
                except pymysql.MySQLError as error:
                    code, text = error.args[0] if error.args else 0, str(error.args[-1] if error.args else error)
                    if code in _AUTH_CODES:
                        self._drop()
                        raise denied(text, self._access.username) from error
                    if not isinstance(error, pymysql.err.InterfaceError) and not 2000 <= int(code) < 3000:
                        raise SqlError(text, statement) from error
                    self._drop()
                    last = error
            raise unavailable(last, fe=", ".join(self._access.fe), sql_port=self._port) from last

    def _connected(self, host: str) -> pymysql.Connection[Any]:
        if self._connection is None:
            name = host.rpartition(":")[0].strip("[]")
            self._connection = pymysql.connect(
                host=name, port=self._port, user=self._access.username, password=self._access.password, autocommit=True,
                charset="utf8mb4", connect_timeout=int(self._access.connect_timeout_s) or 1, read_timeout=120,
            )  # fmt: skip
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        """Close the connection. Harmless when repeated."""
        with self._lock:
            self._drop()


class SqlError(Exception):
    """The FE refused a statement; the caller says what that means."""

    def __init__(self, text: str, statement: str) -> None:
        super().__init__(text)
        self.statement = statement


_WAIT = "It is tried again; see that FE and BE are up and reachable from driver and executors."


def unavailable(error: object, **where: object) -> SinkUnavailable:
    """Doris cannot be reached for now."""
    return SinkUnavailable(f"Doris does not answer: {error}.", mend=_WAIT, **where)


def denied(text: str, username: str) -> TargetMismatch:
    """User, password or privileges do not do."""
    return TargetMismatch(
        f"Doris refuses the user: {text.strip()}.",
        mend="Check sink.username and sink.password; GRANT SELECT_PRIV, LOAD_PRIV, ALTER_PRIV, CREATE_PRIV ON "
        f"<database>.* TO '{username}'.",
        user=username,
    )


def transaction_number(message: str) -> int | None:
    """The transaction that a Label Already Exists speaks of."""
    found = re.search(r"relate to txn \[(\d+)\]", message)
    return int(found[1]) if found else None


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
