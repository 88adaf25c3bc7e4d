"""What the StarRocks sink asks over HTTP: the transaction interface, states of labels.

FEs answer or lead on: a follower to the leader, the leader to the backend that holds the label. An answer is the FE's
or a backend's, and the two spell the same thing differently; only what is on a white list counts as done.

Source: StarRocks, ``TransactionLoadAction.java``, ``GetStreamLoadState.java``, ``transaction_stream_load.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from cdc.errors import SinkUnavailable
from channels.sinks.cluster import Product
from channels.sinks.stream_load import Access, HttpClient, Reply, Unreachable, each_host, split_location

DONE = ("COMMITTED", "VISIBLE")
_REDIRECTS = (301, 302, 307, 308)
_HOPS = 3  # leader, backend, and one that was a frontend after all
_ASK_S = 120.0  # a prepare flushes what its backend still holds in memory
_GONE = ("does not exist", "not exists", "no transaction found", "can't find the transaction")

STARROCKS = Product(
    "StarRocks",
    "GRANT SELECT, INSERT, UPDATE, DELETE, ALTER ON ALL TABLES IN DATABASE <database> TO USER '{user}'; "
    "GRANT CREATE TABLE ON DATABASE <database> TO USER '{user}'",
)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction by its label."""

    database: str
    label: str
    table: str = ""  # of a single-table transaction, or of one load in a multi-table one
    multi: bool = False

    def headers(self) -> dict[str, str]:
        """What every operation on it says."""
        return {
            "db": self.database,
            "label": self.label,
            **({"table": self.table} if self.table else {}),
            **({"transaction_type": "multi"} if self.multi else {}),
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What an operation was answered, whoever wrote it."""

    status: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Done, or done before. Of a load: its bytes have arrived, which says nothing of the rows."""
        return self.status == "OK"

    @property
    def exists(self) -> bool:
        """Of a begin: the label is in use."""
        return self.status == "LABEL_ALREADY_EXISTS"

    @property
    def is_gone(self) -> bool:
        """There is no such transaction: it never was, is forgotten, or was lost with its server."""
        return self.status == "TXN_NOT_EXISTS" or any(word in self.message.lower() for word in _GONE)

    @property
    def number(self) -> int | None:
        """The transaction's id, where it is told."""
        return int(self.fields["TxnId"]) if "TxnId" in self.fields else None


class NotSent(Unreachable):
    """No answer from the frontends: the body of a load did not leave."""


class StarrocksHttp:
    """HTTP with FEs and BEs. Picklable; shared by the threads of a process."""

    def __init__(self, access: Access) -> None:
        self._client = HttpClient(access)
        self.access = access

    def __reduce__(self) -> tuple[type[StarrocksHttp], tuple[Access]]:
        return StarrocksHttp, (self.access,)

    def ask(self, operation: str, transaction: Transaction, **more: str) -> Answer:
        """begin, prepare, commit or rollback. ``more``: headers. Raises: Unreachable; TargetMismatch."""
        headers = {**transaction.headers(), **more}
        path = f"/api/transaction/{operation}"
        return self._answer(
            each_host(
                self.access.fe,
                lambda host: self._client.redirected("POST", host, path, headers=headers, timeout_s=_ASK_S),
            )
        )

    def load(self, transaction: Transaction, headers: Mapping[str, str], body: Callable[[], Iterable[bytes]]) -> Answer:
        """Send a body to the backend that has the label.

        Raises: NotSent; Unreachable - some of it may have arrived, so the transaction is not to be used further;
        TargetMismatch.
        """
        headers = {**transaction.headers(), **headers}
        path = "/api/transaction/load"
        try:
            reply = each_host(self.access.fe, lambda host: self._client.request("PUT", host, path, headers=headers))
        except Unreachable as error:
            raise NotSent(str(error)) from error
        for _ in range(_HOPS):
            if reply.status not in _REDIRECTS:
                break
            host, path = split_location(reply.headers.get("location", ""))
            is_frontend = host in self.access.fe
            reply = self._client.request(
                "PUT", host, path, headers=headers, body=None if is_frontend else body, timeout_s=None
            )
        return self._answer(reply)

    def state(self, database: str, label: str) -> str:
        """UNKNOWN, PREPARE, PREPARED, COMMITTED, VISIBLE or ABORTED. Raises: SinkUnavailable, TargetMismatch."""
        path = f"/api/{quote(database)}/get_load_state?label={quote(label)}"
        try:
            reply = each_host(self.access.fe, lambda host: self._client.redirected("GET", host, path, timeout_s=30))
            answer = reply.json()
        except Unreachable as error:
            raise STARROCKS.unavailable(error, label=label) from error
        self._refuse_denied(reply, answer)
        if answer.get("status") == "OK":
            return str(answer["state"])
        if "unknown database" in str(answer.get("msg")).lower():
            return "UNKNOWN"
        raise SinkUnavailable(
            f"StarRocks does not tell a label's state: {answer.get('msg')}.", mend="It is asked again.", label=label
        )

    def cancel(self, database: str, label: str) -> None:
        """Abort at the frontend what its backend no longer knows. Raises: Unreachable, TargetMismatch."""
        path = f"/api/{quote(database)}/_/_cancel?label={quote(label)}"
        self._answer(each_host(self.access.fe, lambda host: self._client.redirected("POST", host, path, timeout_s=30)))

    def page(self, url: str) -> str:
        """See HttpClient."""
        return self._client.page(url)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _answer(self, reply: Reply) -> Answer:
        data = reply.json()
        self._refuse_denied(reply, data)
        status, message = data.get("Status", data.get("status")), data.get("Message", data.get("msg", ""))
        return Answer(str(status), str(message), data)

    def _refuse_denied(self, reply: Reply, data: Mapping[str, Any]) -> None:
        if reply.status == 401:
            raise STARROCKS.denied(str(data.get("msg", "Unauthorized")), self.access.username)
