"""The one transaction that has all loads of a checkpoint: its last load, its commit, and how it is given up.

Source: StarRocks, ``StreamLoadMultiStmtTask.java``, ``TransactionLoadAction.java``.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

from cdc.errors import SinkUnavailable
from channels.sinks.base import CheckpointMark
from channels.sinks.cluster import CHECKPOINTS, mark_row, quoted
from channels.sinks.starrocks_client import DONE, STARROCKS, Answer, NotSent, StarrocksHttp, Transaction
from channels.sinks.starrocks_load import settled_state
from channels.sinks.stream_load import Unreachable, waits

COMMIT_WAIT_S = 60  # for locks and publishing, before the FE answers; it goes on without us
_TOO_LATE = re.compile(r"can not abort (committed|visible)", re.IGNORECASE)
_PROMISED = re.compile(r"rollback pending|already in progress", re.IGNORECASE)
_UNDER_WAY = re.compile(r"already committing|during committing", re.IGNORECASE)


class SharedCommit:
    """What the driver asks of such a transaction, once all loads have arrived."""

    def __init__(self, http: StarrocksHttp, tries: int, pause_s: float) -> None:
        self._http, self._tries, self._pause_s = http, tries, pause_s

    def committed(self, whole: Transaction, number: object, mark: CheckpointMark) -> Answer:
        """OK once all of it is committed, ``mark`` with it. ``number``: of the transaction that has the loads.

        Raises: SinkUnavailable - it cannot be told, or is still at work.
        """
        if not self._is_under_way(whole):
            answer = self._recorded(whole, mark)
            if not answer.is_ok:
                return answer
            if answer.number != number:
                return Answer("", "it was lost and begun anew, without its loads")
        return self._asked_to_commit(whole)

    def _is_under_way(self, whole: Transaction) -> bool:
        """Whether a commit that was asked for before is still at work: a load that came now would cancel it.

        One that is no longer there is begun anew by the question, and the next load tells so by its number.
        """
        try:
            answer = self._http.ask("begin", whole, timeout=str(COMMIT_WAIT_S))
        except Unreachable as error:
            raise STARROCKS.unavailable(error, label=whole.label) from error
        return answer.exists and answer.fields.get("ExistingJobStatus") == "COMMITING"  # spelt so

    def _recorded(self, whole: Transaction, mark: CheckpointMark) -> Answer:
        """The row that says how far the job has come joins the transaction that brings it there."""
        row = mark_row(mark)
        headers = {
            "columns": ",".join(map(quoted, row)),
            "format": "json",
            "strip_outer_array": "false",
            "strict_mode": "true",
            "Expect": "100-continue",
        }
        body = json.dumps({name: str(value) for name, value in row.items()}).encode() + b"\n"
        try:
            return self._http.load(replace(whole, table=CHECKPOINTS), headers, lambda: [body])
        except NotSent as error:
            raise STARROCKS.unavailable(error, label=whole.label) from error
        except Unreachable as error:
            return Answer("", str(error))

    def _asked_to_commit(self, whole: Transaction) -> Answer:
        """OK once the label's state says so: the answer alone is not to be believed, whichever it is."""
        reason = Answer("", "no answer")
        for number, pause in zip(range(self._tries), waits(self._pause_s, 2.0), strict=False):
            if number:
                time.sleep(pause)
            try:
                reason = self._http.ask("commit", whole, timeout=str(COMMIT_WAIT_S))
            except Unreachable as error:
                reason = Answer("", str(error))
            is_under_way = _UNDER_WAY.search(reason.message)
            state = settled_state(self._http, whole) if is_under_way else self._http.state(whole.database, whole.label)
            if state in DONE:
                return Answer("OK", "")
            if is_under_way and state != "ABORTED":
                raise _still_under_way(whole)
            if state == "ABORTED" or reason.is_gone:
                return Answer("", f"{reason.message or 'answered OK'}, and the transaction is {state}", reason.fields)
        return Answer("", reason.message, reason.fields)

    def is_rolled_back(self, whole: Transaction) -> bool:
        """Whether it is gone for good; False: it was committed. Raises: SinkUnavailable - it cannot be told."""
        try:
            answer = self._http.ask("rollback", whole)
        except Unreachable as error:
            raise STARROCKS.unavailable(error, label=whole.label) from error
        if answer.is_gone or (answer.is_ok and not _PROMISED.search(answer.message)):
            return True
        if _TOO_LATE.search(answer.message):
            return False
        state = settled_state(self._http, whole)
        if state in (*DONE, "ABORTED"):
            return state == "ABORTED"
        if _UNDER_WAY.search(answer.message):
            raise _still_under_way(whole)
        raise STARROCKS.unavailable(answer.message, label=whole.label, state=state)


def _still_under_way(whole: Transaction) -> SinkUnavailable:
    return SinkUnavailable(
        "A commit is still under way in StarRocks.",
        mend="It is asked for again until it has ended; SHOW PROC '/transactions' shows what it waits for.",
        label=whole.label,
    )
