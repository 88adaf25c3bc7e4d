"""The messages of Doris, and what its errors mean.

Source: Doris, ``stream_load.cpp``, ``stream_load_executor.cpp``, ``DatabaseTransactionMgr.java``.
"""

from __future__ import annotations

from cdc.errors import LoadRejected, SinkLimitExceeded
from channels.sinks.stream_load.messages import (
    DENIED,
    MISMATCHED,
    MISSING,
    OVER_LIMIT,
    OVERLOADED,
    TOO_MANY,
    ProductMessages,
    Refusal,
)

_QUOTA = "The load is retried automatically; ALTER DATABASE <db> SET TRANSACTION QUOTA <n> raises the limit."
_GRANT = "Check sink.username and sink.password; GRANT LOAD_PRIV ON <database>.* TO '{user}'."
_ROWS = (
    LoadRejected,
    "Doris rejected rows.",
    "Enlarge the column or correct the row in the source, then `cdc resume`; `cdc check` compares the table.",
)
_NO_TWO_PHASE = (
    SinkLimitExceeded,
    "Doris with separated storage has no two-phase commit for this table.",
    "Set sink.two_phase_commit: false.",
)

DORIS = ProductMessages(
    "Doris",
    "GRANT SELECT_PRIV, LOAD_PRIV, ALTER_PRIV, CREATE_PRIV ON <database>.* TO '{user}'",
    "Doris no longer has prepared loads: they expired or were forgotten.",
    "Their rows are replayed automatically; raise stream_load_default_precommit_timeout_second on the FE if commits "
    "wait for longer than an hour.",
    (
        Refusal(("too many filtered rows", "data_quality_error", "filtered data", "unqualified data"), *_ROWS),
        Refusal(("current running txns", "larger than limit"), *TOO_MANY, _QUOTA),
        Refusal(
            ("too many version", "version count", "[e-235]", "exceed limit", "mem_limit", "too many aborted txn"),
            *OVERLOADED,
        ),
        Refusal(("access denied", "not_authorized", "no valid basic authorization", "privilege"), *DENIED, _GRANT),
        Refusal(("unknown database", "unknown table"), *MISSING),
        Refusal(
            ("sequence column", "has no default value", "batch delete", "only supported in unique", "unknown column"),
            *MISMATCHED,
        ),
        Refusal(("unsupported for mow table",), *_NO_TWO_PHASE),
        Refusal(
            ("exceed max size", "exceed be's conf", "transaction quota", "quota exceed", "exceeds quota"), *OVER_LIMIT
        ),
    ),
)
