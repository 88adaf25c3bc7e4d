"""What is asked of a StarRocks cluster before a job runs: backends, and whether the user may load."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from cdc.errors import CdcError, TargetMismatch
from channels.sinks.base import Finding, TargetTable
from channels.sinks.cluster import FrontendSql, SqlError
from channels.sinks.starrocks_client import STARROCKS, StarrocksHttp, Transaction
from channels.sinks.starrocks_load import roll_back
from channels.sinks.starrocks_refusals import raise_refused
from channels.sinks.stream_load import Unreachable


def alive(sql: FrontendSql) -> int | None:
    """How many backends are alive; None where the user may not see them, or there are compute nodes instead."""
    try:
        found = sql.rows("SHOW BACKENDS")
    except (SqlError, TargetMismatch):
        return None
    return sum(str(row["Alive"]).lower() == "true" for row in found) if found else None


def load_findings(http: StarrocksHttp, table: TargetTable) -> Iterator[Finding]:
    """Begins a transaction and rolls it back, which changes nothing: that takes a privilege and a backend."""
    database, _, name = table.name.partition(".")
    transaction = Transaction(database, f"cdc-check-{uuid.uuid4().hex[:12]}", name)
    where = {"table": table.name}
    try:
        answer = http.ask("begin", transaction, timeout="30")
        if answer.is_ok:
            roll_back(http, transaction)
            return
        raise_refused(answer.message, dict, http.access.username, where)
        raise STARROCKS.unavailable(answer.message, **where)
    except Unreachable as error:
        yield Finding(f"{table.name}: StarRocks begins no load: {error}", "See that FE and BE are up and reachable.")
    except CdcError as error:
        yield Finding(f"{table.name}: {error.message}", error.mend.replace("<database>", database))
