"""Error messages of Doris and StarRocks: what is common, and what each server error means.

Both servers report errors as text without codes, so an error is recognized by its words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cdc.errors import (
    LoadRejected,
    PreparedLoadLost,
    SinkBusy,
    SinkError,
    SinkLimitExceeded,
    SinkUnavailable,
    TargetMismatch,
)
from cdc.mysql.client import shown
from channels.sinks.stream_load.http import CHECK_TLS

_RETRIED = "The request is retried; check that FE and BE run and can be reached from driver and executors."
_BUSY_AFTER_S = 5.0
_SHOWN_ROWS = 5  # of the log of rejected rows


class SqlError(Exception):
    """The FE rejected a statement. The caller decides what this means."""

    def __init__(self, text: str, statement: str) -> None:
        super().__init__(text)
        self.statement = statement


@dataclass(frozen=True, slots=True)
class Refusal:
    """The meaning of one kind of server error. ``message`` may contain {name} and {text}, ``hint`` {user}."""

    words: tuple[str, ...]  # in lower case; the error has one of them
    error: type[SinkError]
    message: str
    hint: str
    unless: tuple[str, ...] = ()  # in lower case; the error has none of them
    is_multi: bool = False  # only for a transaction over several tables

    def matches(self, text: str, *, multi: bool) -> bool:
        """Return True if ``text``, in lower case, is an error of this kind."""
        if any(word in text for word in self.unless) or (self.is_multi and not multi):
            return False
        return any(word in text for word in self.words)


# error, message and hint of refusals that both products have
OVERLOADED = (
    SinkBusy,
    "{name} is overloaded: {text}",
    "The load is retried automatically; a longer commit.interval creates fewer versions.",
)
MISSING = (TargetMismatch, "The target does not exist: {text}", "Create it: `cdc ddl JOB.yaml` prints the statement.")
MISMATCHED = (
    TargetMismatch,
    "The target table does not match: {text}",
    "`cdc check JOB.yaml` prints the ALTER statement that fixes it.",
)
OVER_LIMIT = (
    SinkLimitExceeded,
    "The load exceeds a limit: {text}",
    "Raise the limit that the message names, or lower tasks.max_bytes.",
)
TOO_MANY = (SinkBusy, "{name} has too many running transactions: {text}")  # the hint follows
DENIED = (TargetMismatch, "{name} refuses the user: {text}.")  # the hint follows


@dataclass(frozen=True, slots=True)
class ProductMessages:
    """The messages and errors of one product."""

    name: str
    grants: str  # the privileges that the user needs; {user} is replaced
    lost: str  # the message for prepared loads that the cluster no longer has
    lost_hint: str
    refusals: tuple[Refusal, ...]  # the first one that matches counts

    def unavailable(self, error: object, **context: object) -> SinkUnavailable:
        """Return the error for a cluster that cannot be reached now."""
        hint = getattr(error, "hint", "") or _RETRIED
        return SinkUnavailable(f"{self.name} does not answer: {shown(str(error))}.", hint=hint, **context)

    def denied(self, text: str, username: str) -> TargetMismatch:
        """Return the error for a wrong user or password, or a missing privilege."""
        return TargetMismatch(
            f"{self.name} refuses the user: {shown(text)}.",
            hint=f"Check sink.username and sink.password; {self.grants.format(user=username)}.",
            user=username,
        )

    def unsafe(self, text: str) -> TargetMismatch:
        """Return the error for a login that needs the plain password at a server whose identity is not verified."""
        return TargetMismatch(
            f"The login at {self.name} was stopped and the password was not sent: {text}.",
            hint="Set `sink.tls` to verify_identity, or to verify_ca, with the cluster's `ca`.",
        )

    def no_tls(self, text: str, **context: object) -> SinkUnavailable:
        """Return the error for a failed TLS handshake."""
        return SinkUnavailable(f"TLS with {self.name} fails: {text}.", hint=CHECK_TLS, **context)

    def refused(self, error: SqlError, **context: object) -> SinkUnavailable:
        """Return the error for a rejected statement that may succeed later."""
        return SinkUnavailable(
            f"{self.name} refuses a statement: {error}.",
            hint="The statement is retried; run it by hand to see more.",
            statement=error.statement.split("VALUES")[0][:200],
            **context,
        )

    def loads_lost(self, labels: list[str], reason: object) -> PreparedLoadLost:
        """Return the error for prepared loads that the cluster no longer has. ``reason``: the server's text."""
        return PreparedLoadLost(self.lost, hint=self.lost_hint, labels=labels, reason=shown(str(reason)))

    def raise_refused(
        self,
        text: str,
        username: str,
        context: Mapping[str, Any],
        bad_rows: Callable[[], Mapping[str, Any]] = dict,
        *,
        multi: bool = False,
    ) -> None:
        """Raise the error that a server's refusal means. Return if a retry can succeed.

        ``bad_rows``: returns the first rejected rows. ``multi``: a transaction over several tables was refused.
        """
        plain = self._without_names(text.lower(), context)
        refusal = next((each for each in self.refusals if each.matches(plain, multi=multi)), None)
        if refusal is None:
            return
        message = refusal.message.format(name=self.name, text=shown(text))
        hint = refusal.hint.format(user=username)
        if refusal.error is SinkBusy:
            raise SinkBusy(message, hint=hint, after_s=_BUSY_AFTER_S, **context)
        raise refusal.error(message, hint=hint, **context, **(bad_rows() if refusal.error is LoadRejected else {}))

    def _without_names(self, text: str, context: Mapping[str, Any]) -> str:
        """Return ``text`` without the names of the load that look like an error: a table can be user_privileges."""
        label, table = (str(context.get(key, "")).lower() for key in ("label", "table"))
        for name in (label, table, *table.split(".")):
            if any(word in name for each in self.refusals for word in each.words):
                text = text.replace(name, "")
        return text


def first_rejected_rows(page: str, separator: str) -> str:
    """Return the first rows of a cluster's log of rejected rows. ``separator``: of the fields of a row."""
    lines = [line for line in page.splitlines() if line.strip()]
    return " | ".join(line.replace(separator, ", ")[:500] for line in lines[:_SHOWN_ROWS])
