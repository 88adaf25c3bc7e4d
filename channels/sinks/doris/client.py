"""The HTTP requests of the Doris sink to FE and BE: hosts, loads, states, two-phase commit.

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
from cdc.mysql.client import shown
from channels.sinks.base import TargetTable
from channels.sinks.doris.errors import DORIS
from channels.sinks.stream_load.hosts import with_port
from channels.sinks.stream_load.http import REDIRECTS, HttpClient, Reply, Unreachable, each_host
from channels.sinks.stream_load.name_rules import url_segment

_DENIED = ("Access denied", "Unauthorized", "NOT_AUTHORIZED", "no valid Basic authorization")
_BACKENDS_KEPT_S = 10.0  # an older list may lack a new BE, or contain one that has stopped
_ASK_S = 30.0
_FINISH_S = 200.0  # a BE waits for the FE for at most 180 s; an answer that never comes must not block all commits


@dataclass(frozen=True, slots=True)
class DorisReply:
    """The answer of ``_stream_load_2pc``."""

    status: str
    message: str

    @property
    def is_ok(self) -> bool:
        """Return True if the operation is done."""
        return self.status == "Success"


class DorisHttp:
    """HTTP with FEs and BEs. Picklable; shared by the threads of a process."""

    def __init__(self, http: HttpClient, hosts: tuple[str, ...] = ()) -> None:
        """``hosts``: the running BEs."""
        self.http, self.address = http, http.address
        self._hosts = hosts
        self._asked_at = time.monotonic()

    def __reduce__(self) -> tuple[type[DorisHttp], tuple[HttpClient, tuple[str, ...]]]:
        return DorisHttp, (self.http, self._hosts)

    # ---- backends

    def backends(self, *, fresh: bool = False) -> tuple[str, ...]:
        """Return the hosts of the running BEs. The list is at most 10 s old, or new if ``fresh``.

        If no FE answers, the old list is returned.

        Raises: SinkUnavailable - no BE is known or running; TargetMismatch - the credentials are refused.
        """
        if self.address.backends:
            return self.address.backends
        if fresh or not self._hosts or time.monotonic() - self._asked_at > _BACKENDS_KEPT_S:
            try:
                self.ask_backends()
            except SinkUnavailable:
                if not self._hosts:
                    raise
        return self._hosts

    def ask_backends(self) -> int:
        """Ask for the running BEs and return their number. Raises: see ``backends``."""
        self._hosts, self._asked_at = self._listed(), time.monotonic()
        if not self._hosts:
            raise SinkUnavailable(
                "Doris has no backend alive, or lists no backend to this account.",
                hint="Check SHOW BACKENDS on the FE. If the account may not list them, name them in `sink.be`.",
                fe=", ".join(self.address.fe),
            )
        return len(self._hosts)

    def _listed(self) -> tuple[str, ...]:
        reply = self._ask_frontends("GET", "/api/backends?is_alive=true")
        data = self._json(reply) if reply.status == 200 else {}
        if not isinstance(data.get("data"), dict):
            self.refuse_denied(data.get("data"), data.get("msg"))
            return ()
        try:
            found = [backend for backend in data["data"]["backends"] if backend["is_alive"]]
            return tuple(with_port(str(backend["ip"]), int(backend["http_port"])) for backend in found)
        except (KeyError, TypeError, ValueError) as error:
            raise self._unavailable(Unreachable(f"the list of backends has another form: {data['data']!r}")) from error

    # ---- loads

    def ask_to_load(self, table: TargetTable) -> None:
        """Ask which BE takes a load of ``table``; no load begins. Raises: TargetMismatch - the user may not load."""
        database, _, name = table.name.partition(".")
        path, headers = f"/api/{url_segment(database)}/{url_segment(name)}/_stream_load", {"Expect": "100-continue"}
        try:
            reply = each_host(self.http.frontends, lambda host: self.http.request("PUT", host, path, headers=headers))
        except Unreachable as error:
            raise self._unavailable(error) from error
        if reply.status not in REDIRECTS:
            answer = self._json(reply)
            self.refuse_denied(answer.get("msg"), answer.get("data"))

    def load(
        self, host: str, path: str, headers: Mapping[str, str], body: Callable[[], Iterable[bytes]]
    ) -> dict[str, Any]:
        """Send a Stream Load and return its answer. Raises: Unreachable, TargetMismatch."""
        reply = self.http.request("PUT", host, path, headers=headers, body=body)
        self._refuse_unauthorized(reply)
        answer = reply.json()
        number = answer.get("TxnId", None if answer.get("Status") in ("Success", "Publish Timeout") else -1)
        if "Status" not in answer or not isinstance(number, int):
            raise Unreachable(f"{host} gives no load's answer: {answer!r}")
        return answer

    def state(self, database: str, label: str) -> str:
        """Return UNKNOWN, PREPARE, PRECOMMITTED, COMMITTED, VISIBLE or ABORTED.

        Raises: SinkUnavailable, TargetMismatch.
        """
        path = f"/api/{url_segment(database)}/get_load_state?label={quote(label, safe='')}"
        answer = self._json(self._ask_frontends("GET", path))
        if answer.get("code") == 0:
            return str(answer.get("data"))
        self.refuse_denied(answer.get("data"), answer.get("msg"))
        if "nknown database" in str(answer.get("data")):
            return "UNKNOWN"
        raise SinkUnavailable(
            f"Doris does not report the state of a label: {shown(str(answer.get('data')))}.",
            hint="The request is retried; check that FE and BE run and can be reached.",
            label=label,
        )

    def cancel(self, database: str, label: str) -> None:
        """Cancel a running load; a prepared one stays. Raises: SinkUnavailable."""
        self._ask_frontends("POST", f"/api/{url_segment(database)}/_cancel?label={quote(label, safe='')}")

    def finish(self, operation: str, database: str, number: int) -> DorisReply:
        """Commit or abort a transaction. Raises: Unreachable, SinkUnavailable, TargetMismatch."""
        headers = {"txn_operation": operation, "txn_id": str(number)}
        hosts = self.http.least_busy(self.backends(), number)
        path = f"/api/{url_segment(database)}/_stream_load_2pc"
        reply = each_host(
            hosts, lambda host: self.http.request("PUT", host, path, headers=headers, timeout_s=_FINISH_S)
        )
        self._refuse_unauthorized(reply)
        answer = reply.json()
        return DorisReply(str(answer.get("status")), str(answer.get("msg")))

    # ---- answers

    def _ask_frontends(self, method: str, path: str) -> Reply:
        try:
            return self.http.ask_frontends(method, path, timeout_s=_ASK_S)
        except Unreachable as error:
            raise self._unavailable(error) from error

    def _json(self, reply: Reply) -> Mapping[str, Any]:
        """Return the JSON of an FE's answer. Raises: SinkUnavailable - a proxy answered instead."""
        try:
            return reply.json()
        except Unreachable as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Unreachable) -> SinkUnavailable:
        return DORIS.unavailable(error, fe=", ".join(self.address.fe))

    def refuse_denied(self, *texts: object) -> None:
        """Raise TargetMismatch if one of ``texts`` says that the credentials or privileges are not sufficient."""
        for text in texts:
            if isinstance(text, str) and any(word in text for word in _DENIED):
                raise DORIS.denied(text, self.address.username)

    def _refuse_unauthorized(self, reply: Reply) -> None:
        # with enable_all_http_auth a BE requires LOAD on *.* before it commits, and gives no reason
        if reply.status in (401, 403) and not reply.body.strip():
            text = f"a backend answers {reply.status}; if it has enable_all_http_auth: GRANT LOAD_PRIV ON *.*"
            raise DORIS.denied(text, self.address.username)


def transaction_number(message: str) -> int | None:
    """Return the number of the transaction in the message of Label Already Exists."""
    found = re.search(r"relate to txn \[(\d+)\]", message)
    return int(found[1]) if found else None
