"""The shared transaction of all loads of a checkpoint: its last load, its commit and its rollback.

Source: StarRocks, ``StreamLoadMultiStmtTask.java``, ``TransactionLoadAction.java``.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from enum import Enum, auto

from cdc.errors import SinkUnavailable
from channels.sinks.base import SinkCheckpoint
from channels.sinks.starrocks.client import DONE, LoadTransaction, NotSent, StarrocksHttp, StarrocksReply
from channels.sinks.starrocks.errors import STARROCKS
from channels.sinks.starrocks.loader import final_state
from channels.sinks.stream_load.checkpoints import record_row
from channels.sinks.stream_load.http import Unreachable
from channels.sinks.stream_load.loader import attempts
from channels.sinks.stream_load.name_rules import CHECKPOINTS
from channels.sinks.stream_load.statements import quoted

COMMIT_WAIT_S = 60  # the FE answers after this time if locks or publishing take longer; the commit continues
_TOO_LATE = re.compile(r"can not abort (committed|visible)", re.IGNORECASE)
_ROLLBACK_LATER = re.compile(r"rollback pending|already in progress", re.IGNORECASE)
_COMMITTING = re.compile(r"already committing|during committing", re.IGNORECASE)


class RolledBack(Enum):
    """What became of a transaction that was to be rolled back."""

    DONE = auto()
    MISSING = auto()  # never begun, or forgotten
    TOO_LATE = auto()  # it is committed


class SharedTransaction:
    """The driver's requests for a shared transaction, after all loads have arrived."""

    def __init__(self, client: StarrocksHttp, tries: int, pause_s: float) -> None:
        self._client, self._tries, self._pause_s = client, tries, pause_s
        self._cut_off: dict[str, str] = {}  # by label: why a part of the row of a mark may be in the transaction

    def commit(self, whole: LoadTransaction, number: object, mark: SinkCheckpoint) -> StarrocksReply:
        """Commit all loads together with ``mark``, and return OK, or why they are not committed.

        ``number``: of the transaction that has the loads.
        Raises: SinkUnavailable - the state is unknown, or a commit is still running.
        """
        if whole.label in self._cut_off:  # its rollback had no answer
            return StarrocksReply("", self._cut_off[whole.label])
        if not self._is_committing(whole):
            reply = self._record(whole, mark)
            if not reply.is_ok:
                return reply
            if reply.number != number:
                return StarrocksReply("", "it was lost and begun again without its loads")
        return self._ask_to_commit(whole)

    def _is_committing(self, whole: LoadTransaction) -> bool:
        """Return True if an earlier commit is still running: another load would cancel it.

        The request begins a lost transaction again. Then the next load returns another number.
        """
        try:
            reply = self._client.ask("begin", whole, timeout=str(COMMIT_WAIT_S))
        except Unreachable as error:
            raise STARROCKS.unavailable(error, label=whole.label) from error
        return reply.exists and reply.fields.get("ExistingJobStatus") == "COMMITING"  # StarRocks' spelling

    def _record(self, whole: LoadTransaction, mark: SinkCheckpoint) -> StarrocksReply:
        """Load the row of ``cdc_checkpoints`` into the transaction, so that both are committed together."""
        row = record_row(mark)
        headers = {
            "columns": ",".join(map(quoted, row)),
            "format": "json",
            "strip_outer_array": "false",
            "strict_mode": "true",
            "Expect": "100-continue",
        }
        body = json.dumps({name: str(value) for name, value in row.items()}).encode() + b"\n"
        try:
            return self._client.load(replace(whole, table=CHECKPOINTS), headers, lambda: [body])
        except NotSent as error:
            raise STARROCKS.unavailable(error, label=whole.label) from error
        except Unreachable as error:
            self._cut_off[whole.label] = str(error)
            return StarrocksReply("", str(error))

    def _ask_to_commit(self, whole: LoadTransaction) -> StarrocksReply:
        """Return OK if the label's state is committed. The answer alone proves nothing: an OK can be wrong too."""
        reply = StarrocksReply("", "no answer")
        for _ in attempts(self._tries, 2 * self._pause_s, 2.0):
            try:
                reply = self._client.ask("commit", whole, timeout=str(COMMIT_WAIT_S))
            except Unreachable as error:
                reply = StarrocksReply("", str(error))
            is_committing = _COMMITTING.search(reply.message)
            state = (
                final_state(self._client, whole) if is_committing else self._client.state(whole.database, whole.label)
            )
            if state in DONE:
                return StarrocksReply("OK", "")
            if is_committing and state != "ABORTED":
                raise _still_committing(whole)
            if state == "ABORTED" or reply.is_missing:
                text = f"{reply.message or 'answered OK'}, and the transaction is {state}"
                return StarrocksReply("", text, reply.fields)
        return StarrocksReply("", reply.message, reply.fields)

    def is_rolled_back(self, whole: LoadTransaction) -> bool:
        """Roll back. Return True if nothing of it will ever be committed, False if it is committed.

        Raises: SinkUnavailable - the state is unknown.
        """
        return self.roll_back(whole) is not RolledBack.TOO_LATE

    def roll_back(self, whole: LoadTransaction) -> RolledBack:
        """Roll back, and return what became of it. Raises: SinkUnavailable - the state is unknown."""
        try:
            reply = self._client.ask("rollback", whole)
        except Unreachable as error:
            raise STARROCKS.unavailable(error, label=whole.label) from error
        if reply.is_missing or (reply.is_ok and not _ROLLBACK_LATER.search(reply.message)):
            self._cut_off.pop(whole.label, None)
            return RolledBack.MISSING if reply.is_missing else RolledBack.DONE
        if _TOO_LATE.search(reply.message):
            return RolledBack.TOO_LATE
        state = final_state(self._client, whole)
        if state in (*DONE, "ABORTED"):
            return RolledBack.DONE if state == "ABORTED" else RolledBack.TOO_LATE
        if _COMMITTING.search(reply.message):
            raise _still_committing(whole)
        raise STARROCKS.unavailable(reply.message, label=whole.label, state=state)


def _still_committing(whole: LoadTransaction) -> SinkUnavailable:
    return SinkUnavailable(
        "A commit is still running in StarRocks.",
        hint="It is checked again until it has ended; SHOW PROC '/transactions' shows what it waits for.",
        label=whole.label,
    )
