"""What the Doris sink asks of FE and BE: hosts, loads, states, two-phase commit.

Source: Doris, ``LoadAction.java``, ``GetStreamLoadState.java``, ``stream_load_2pc.cpp``, ``ShowTransactionStmt.java``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from cdc.errors import SinkUnavailable
from channels.sinks.base import TargetTable
from channels.sinks.cluster import Product
from channels.sinks.stream_load import Access, HttpClient, Reply, Unreachable, each_host, split_location

_DENIED = ("Access denied", "Unauthorized", "NOT_AUTHORIZED", "no valid Basic authorization")
_BACKENDS_KEPT_S = 10.0  # a list of this age may lack a new BE, or have one that is gone
_WAIT = "It is tried again; see that FE and BE are up and reachable from driver and executors."

DORIS = Product("Doris", "GRANT SELECT_PRIV, LOAD_PRIV, ALTER_PRIV, CREATE_PRIV ON <database>.* TO '{user}'")


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
        data = self._told(reply) if reply.status == 200 else {}
        if not isinstance(data.get("data"), dict):
            self.refuse_denied(data.get("data"), data.get("msg"))
            return ()
        found = [backend for backend in data["data"]["backends"] if backend["is_alive"]]
        return tuple(f"{_bracketed(backend['ip'])}:{backend['http_port']}" for backend in found)

    def _redirected(self, path: str) -> tuple[str, ...]:
        if not path:
            return ()
        reply = self._asked_to_load(path)
        try:
            return (split_location(reply.headers.get("location", ""))[0],) if reply.status == 307 else ()
        except Unreachable as error:
            raise self._unavailable(error) from error

    def ask_to_load(self, table: TargetTable) -> None:
        """Ask where a load of ``table`` would go: nothing is begun. Raises: TargetMismatch - ours it would not be."""
        database, _, name = table.name.partition(".")
        reply = self._asked_to_load(f"/api/{quote(database)}/{quote(name)}/_stream_load")
        if reply.status not in (301, 302, 307, 308):
            answer = self._told(reply)
            self.refuse_denied(answer.get("msg"), answer.get("data"))

    def _asked_to_load(self, path: str) -> Reply:
        headers = {"Expect": "100-continue"}
        return self._frontends(lambda host: self._client.request("PUT", host, path, headers=headers))

    def load(
        self, host: str, path: str, headers: Mapping[str, str], body: Callable[[], Iterable[bytes]]
    ) -> dict[str, Any]:
        """A Stream Load's answer. Raises: Unreachable, TargetMismatch."""
        reply = self._client.request("PUT", host, path, headers=headers, body=body)
        self._refuse_unknown(reply)
        answer = reply.json()
        if "Status" not in answer:
            raise Unreachable(f"http://{host} gives no load's answer: {answer!r}")
        return answer

    def state(self, database: str, label: str) -> str:
        """UNKNOWN, PREPARE, PRECOMMITTED, COMMITTED, VISIBLE or ABORTED. Raises: SinkUnavailable, TargetMismatch."""
        reply = self.frontend("GET", f"/api/{quote(database)}/get_load_state?label={quote(label)}")
        answer = self._told(reply)
        if answer.get("code") == 0:
            return str(answer["data"])
        self.refuse_denied(answer.get("data"), answer.get("msg"))
        if "nknown database" in str(answer.get("data")):
            return "UNKNOWN"
        raise SinkUnavailable(f"Doris does not tell a label's state: {answer.get('data')}", mend=_WAIT, label=label)

    def cancel(self, database: str, label: str) -> None:
        """End a load of ``label`` that runs; what is prepared stays so. Raises: SinkUnavailable."""
        self.frontend("POST", f"/api/{quote(database)}/_cancel?label={quote(label)}")

    def finish(self, operation: str, database: str, number: int) -> Answer:
        """Commit or abort a transaction. Raises: Unreachable, SinkUnavailable, TargetMismatch."""
        headers = {"txn_operation": operation, "txn_id": str(number)}
        hosts = self._client.least_busy(self.backends(), number)
        path = f"/api/{quote(database)}/_stream_load_2pc"
        reply = each_host(hosts, lambda host: self._client.request("PUT", host, path, headers=headers))
        self._refuse_unknown(reply)
        answer = reply.json()
        return Answer(str(answer.get("status")), str(answer.get("msg")))

    def page(self, url: str) -> str:
        """See HttpClient."""
        return self._client.page(url)

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
            raise self._unavailable(error) from error

    def _told(self, reply: Reply) -> Mapping[str, Any]:
        """What an FE says. Raises: SinkUnavailable - a proxy has answered in its place."""
        try:
            return reply.json()
        except Unreachable as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Unreachable) -> SinkUnavailable:
        return DORIS.unavailable(error, fe=", ".join(self.access.fe))

    def refuse_denied(self, *texts: object) -> None:
        """Raises: TargetMismatch - one of ``texts`` says that the credentials or privileges do not do."""
        for text in texts:
            if isinstance(text, str) and any(word in text for word in _DENIED):
                raise DORIS.denied(text, self.access.username)

    def _refuse_unknown(self, reply: Reply) -> None:
        # with enable_all_http_auth a BE asks for LOAD on everything before it commits, and gives no reason
        if reply.status in (401, 403) and not reply.body.strip():
            text = f"a backend answers {reply.status}; where it has enable_all_http_auth: GRANT LOAD_PRIV ON *.*"
            raise DORIS.denied(text, self.access.username)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()


def transaction_number(message: str) -> int | None:
    """The transaction that a Label Already Exists speaks of."""
    found = re.search(r"relate to txn \[(\d+)\]", message)
    return int(found[1]) if found else None


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
