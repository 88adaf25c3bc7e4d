"""What StarRocks' refusals mean: by their words, for it has no codes, and with the first refused rows.

Source: StarRocks, ``StreamLoadTask.java``, ``StreamLoadMultiStmtTask.java``, ``Load.java``, ``stream_load.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from cdc.errors import LoadRejected, SinkBusy, SinkSetting, TargetMismatch
from channels.sinks import bodies
from channels.sinks.base import TargetTable
from channels.sinks.starrocks_client import STARROCKS, Answer, StarrocksHttp

_BUSY_AFTER_S = 5.0
BAD_ROWS = 5  # shown of a refused load
_TRACKING_URL = re.compile(r"tracking_url: (\S+?)[,;.]?(?:\s|$)")
_REFUSED_ROWS = (
    "too many filtered rows", "abnormal data more than max filter rate", "primary key size exceed", "json parse error",
    "data quality",
)  # fmt: skip
_NO_ROWS = "no rows were imported"  # what a frontend says first where every row of a table was refused


def bad_rows(http: StarrocksHttp, table: TargetTable | None, answer: Answer) -> dict[str, object]:
    """The first refused rows, for people."""
    found: dict[str, object] = {"key": ", ".join(table.key)} if table else {}
    told = _TRACKING_URL.search(answer.message)  # a frontend has no field for it
    url = answer.fields.get("ErrorURL") or (told and told[1])
    if not url:
        return found
    lines = [line for line in http.page(str(url)).splitlines() if line.strip()]
    return found | {"first": " | ".join(line.replace(bodies.FIELD_END, ", ")[:500] for line in lines[:BAD_ROWS])}


def raise_refused(
    message: str,
    bad: Callable[[], dict[str, object]],
    username: str,
    where: Mapping[str, object],
    *,
    multi: bool = False,
) -> None:
    """Raise what a definite refusal means; returns where another try may do.

    ``multi``: it is the refusal of a transaction over several tables.
    """
    low = message.lower()

    def says(*words: str) -> bool:
        return any(word in low for word in words)

    # what follows these words is why another load of the transaction failed, and is told with its rows there
    is_told = says("has already been cancelled", " is aborting")
    # none of our loads is empty, so one without rows is one whose rows were all refused
    if not is_told and (says(*_REFUSED_ROWS) or (multi and says(_NO_ROWS))):
        raise LoadRejected(
            f"StarRocks refused rows: {message}.",
            mend="Widen the column or mend the row at the source, then `cdc resume`; `cdc check` compares the table. "
            "A key longer than 128 bytes: primary_key_limit_size of the BE.",
            **where,
            **bad(),
        )
    if says("current running txns", "streamload txn num per be"):
        raise SinkBusy(
            f"StarRocks has too many running transactions: {message}",
            mend="It goes on by itself; max_running_txn_num_per_db of the FE raises the limit.",
            after_s=_BUSY_AFTER_S,
            **where,
        )
    if says("too many versions", "version count", "mem_limit", "memory limit", "memory exceed", "lock timeout"):
        raise SinkBusy(
            f"StarRocks asks for patience: {message}",
            mend="It goes on by itself; a longer commit.interval makes fewer versions.",
            after_s=_BUSY_AFTER_S,
            **where,
        )
    if says("access denied", "no valid basic authorization", "privilege"):
        raise STARROCKS.denied(message, username)
    if says("automatic create partition failed") and multi:
        raise TargetMismatch(
            f"A load cannot make the partitions of its table here: {message}",
            mend="Set sink.multi_table: off, or make the partitions beforehand; then `cdc resume`.",
            **where,
        )
    if says("unknown table", "failed to find table", "unknown database", "] does not exist"):
        raise TargetMismatch(
            f"The target is not there: {message}", mend="Create it: `cdc ddl JOB.yaml` prints the statement.", **where
        )
    if says("unknown column", "cannot be resolved", "has no default value", "not primary key", "load by primary key"):
        raise TargetMismatch(
            f"The target table does not fit: {message}",
            mend="`cdc check JOB.yaml` names the ALTER that mends it.",
            **where,
        )
    if says("exceed max size", "size of this batch exceed", "exceeds quota", "quota exceed"):
        raise SinkSetting(
            f"The load outgrows a limit: {message}", mend="Raise the limit named, or lower tasks.max_bytes.", **where
        )
