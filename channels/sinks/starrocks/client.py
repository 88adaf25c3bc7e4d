"""The HTTP requests of the StarRocks sink: the transaction interface, and states of labels.

FEs answer or redirect: a follower to the leader, the leader to the backend that has the label. FE and backend word the
same result differently, so only the results on a list of known words count as done.

Source: StarRocks, ``TransactionLoadAction.java``, ``GetStreamLoadState.java``, ``transaction_stream_load.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from cdc.errors import SinkUnavailable
from cdc.mysql.client import shown
from channels.sinks.base import TargetTable
from channels.sinks.starrocks.errors import STARROCKS
from channels.sinks.stream_load.encoding import FIELD_END
from channels.sinks.stream_load.http import (
    HOPS,
    REDIRECTS,
    HttpClient,
    Reply,
    Unreachable,
    each_host,
    too_many_redirects,
)
from channels.sinks.stream_load.messages import first_rejected_rows
from channels.sinks.stream_load.name_rules import url_segment

DONE = ("COMMITTED", "VISIBLE")
_STATE_S = 30.0
_ASK_S = 120.0  # a prepare writes the rows that its backend still has in memory
_MISSING = ("does not exist", "not exists", "no transaction found", "can't find the transaction")
_TRACKING_URL = re.compile(r"tracking_url: (\S+?)[,;.]?(?:\s|$)")


@dataclass(frozen=True, slots=True)
class LoadTransaction:
    """A transaction, which its label identifies."""

    database: str
    label: str
    table: str = ""  # of a single-table transaction, or of one load in a multi-table one
    multi: bool = False

    def headers(self) -> dict[str, str]:
        """Return the headers that every operation on it needs."""
        return {
            "db": self.database,
            "label": self.label,
            **({"table": self.table} if self.table else {}),
            **({"transaction_type": "multi"} if self.multi else {}),
        }


@dataclass(frozen=True, slots=True)
class StarrocksReply:
    """The answer to an operation, from FE or BE."""

    status: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Return True if it is done, now or before. For a load: its bytes have arrived; its rows are not checked."""
        return self.status == "OK"

    @property
    def exists(self) -> bool:
        """Return True if a begin found its label in use."""
        return self.status == "LABEL_ALREADY_EXISTS"

    @property
    def is_busy(self) -> bool:
        """Return True if another operation on the label runs: this one had no effect, and the transaction exists."""
        return self.status == "TXN_IN_PROCESSING"

    @property
    def is_missing(self) -> bool:
        """Return True if the transaction does not exist: never begun, forgotten, or lost with its server."""
        return self.status == "TXN_NOT_EXISTS" or any(word in self.message.lower() for word in _MISSING)

    @property
    def number(self) -> int | None:
        """Return the id of the transaction; None if the answer has none."""
        found = self.fields.get("TxnId")
        return found if isinstance(found, int) else None


class NotSent(Unreachable):
    """The frontends gave no answer, so the body of the load was not sent."""


class StarrocksHttp:
    """HTTP with FEs and BEs. Picklable; shared by the threads of a process."""

    def __init__(self, http: HttpClient) -> None:
        self.http, self.address = http, http.address

    # ---- the transaction interface

    def ask(self, operation: str, transaction: LoadTransaction, **headers: str) -> StarrocksReply:
        """Send begin, prepare, commit or rollback. ``headers``: further ones. Raises: Unreachable; TargetMismatch."""
        headers = {**transaction.headers(), **headers}
        path = f"/api/transaction/{operation}"
        return self._reply(self.http.ask_frontends("POST", path, headers=headers, timeout_s=_ASK_S))

    def load(
        self, transaction: LoadTransaction, headers: Mapping[str, str], body: Callable[[], Iterable[bytes]]
    ) -> StarrocksReply:
        """Send a body to the backend that has the label.

        Raises: NotSent; Unreachable - a part of it may have arrived, so the transaction must not be used any more;
        TargetMismatch.
        """
        headers = {**transaction.headers(), **headers}
        path = "/api/transaction/load"
        try:
            reply = each_host(
                self.http.frontends,
                lambda host: self.http.request("PUT", host, path, headers=headers, timeout_s=_ASK_S),
            )
        except Unreachable as error:
            raise NotSent(str(error), error.hint) from error
        for _ in range(HOPS):
            if reply.status not in REDIRECTS:
                return self._reply(reply)
            host, path = self.http.follow(reply, f"load of {transaction.label}")
            is_frontend = host in self.address.fe
            reply = self.http.request(
                "PUT",
                host,
                path,
                headers=headers,
                body=None if is_frontend else body,
                timeout_s=_ASK_S if is_frontend else None,
            )
        if reply.status in REDIRECTS:
            raise too_many_redirects(f"load of {transaction.label}")
        return self._reply(reply)

    # ---- labels

    def state(self, database: str, label: str) -> str:
        """Return UNKNOWN, PREPARE, PREPARED, COMMITTED, VISIBLE or ABORTED. Raises: SinkUnavailable, TargetMismatch."""
        path = f"/api/{url_segment(database)}/get_load_state?label={quote(label, safe='')}"
        try:
            reply = self.http.ask_frontends("GET", path, timeout_s=_STATE_S)
            answer = reply.json()
        except Unreachable as error:
            raise STARROCKS.unavailable(error, label=label) from error
        self._refuse_unauthorized(reply, answer)
        if answer.get("status") == "OK":
            return str(answer.get("state"))
        if "unknown database" in str(answer.get("msg")).lower():
            return "UNKNOWN"
        raise SinkUnavailable(
            f"StarRocks does not report the state of a label: {shown(str(answer.get('msg')))}.",
            hint="The request is retried automatically.",
            label=label,
        )

    def cancel(self, database: str, label: str) -> None:
        """Abort a transaction at the FE that its backend has forgotten. Raises: Unreachable, TargetMismatch."""
        path = f"/api/{url_segment(database)}/_/_cancel?label={quote(label, safe='')}"
        self._reply(self.http.ask_frontends("POST", path, timeout_s=_STATE_S))

    # ---- answers

    def rejected_rows(self, reply: StarrocksReply, table: TargetTable | None = None) -> dict[str, object]:
        """Return the first rejected rows, and the key columns of ``table``, for an error message."""
        found: dict[str, object] = {"key": ", ".join(table.key)} if table else {}
        tracked = _TRACKING_URL.search(reply.message)  # an FE has no field for the address
        url = reply.fields.get("ErrorURL") or (tracked and tracked[1])
        return found | {"first": first_rejected_rows(self.http.page(str(url)), FIELD_END)} if url else found

    def _reply(self, reply: Reply) -> StarrocksReply:
        data = reply.json()
        self._refuse_unauthorized(reply, data)
        status, message = data.get("Status", data.get("status")), data.get("Message", data.get("msg", ""))
        return StarrocksReply(str(status), str(message), data)

    def _refuse_unauthorized(self, reply: Reply, data: Mapping[str, Any]) -> None:
        if reply.status == 401:
            raise STARROCKS.denied(str(data.get("msg", "Unauthorized")), self.address.username)
