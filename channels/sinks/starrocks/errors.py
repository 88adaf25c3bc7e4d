"""The messages of StarRocks, and what its errors mean.

Source: StarRocks, ``StreamLoadTask.java``, ``StreamLoadMultiStmtTask.java``, ``MergeLoad.java``, ``stream_load.cpp``.
"""

from __future__ import annotations

from cdc.errors import LoadRejected, TargetMismatch
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

_GRANTS = (
    "GRANT SELECT, INSERT, UPDATE, DELETE, ALTER ON ALL TABLES IN DATABASE <database> TO USER '{user}'; "
    "GRANT CREATE TABLE ON DATABASE <database> TO USER '{user}'"
)
_TRANSACTIONS = "The load is retried automatically; max_running_txn_num_per_db of the FE raises the limit."
_ROWS = (
    LoadRejected,
    "StarRocks rejected rows: {text}.",
    (  # multi mode replays the same rows of the stream, so a correction in the source does not change them
        "Enlarge the column (`cdc check` compares the table), shorten the value in the channel by columns: "
        '{{c: "left(c, ...)"}}, or exclude the row by filter:; then `cdc resume`. '
        "For a key longer than 128 bytes, raise primary_key_limit_size of the BE."
    ),
    # after these words the FE says why another load of the transaction failed, and that load reports its rows
    ("has already been cancelled", " is aborting"),
)
_PARTITIONS = (
    TargetMismatch,
    "A load in a transaction over several tables cannot create partitions: {text}",
    "Set sink.multi_table: off, or create the partitions before the load; then `cdc resume`.",
)

STARROCKS = ProductMessages(
    "StarRocks",
    _GRANTS,
    "StarRocks no longer has prepared loads: they expired, were forgotten, or were lost with a server.",
    "Their rows are replayed automatically.",
    (
        Refusal(
            (
                "too many filtered rows",
                "abnormal data more than max filter rate",
                "primary key size exceed",
                "json parse error",
                "data quality",
            ),
            *_ROWS,
        ),
        # the FE's text if all rows of a table were rejected; the sink sends no load without rows
        Refusal(("no rows were imported",), *_ROWS, is_multi=True),
        Refusal(("current running txns", "streamload txn num per be"), *TOO_MANY, _TRANSACTIONS),
        Refusal(
            ("too many versions", "version count", "mem_limit", "memory limit", "memory exceed", "lock timeout"),
            *OVERLOADED,
        ),
        Refusal(
            ("access denied", "no valid basic authorization", "privilege"),
            *DENIED,
            f"Check sink.username and sink.password; {_GRANTS}.",
        ),
        Refusal(("automatic create partition failed",), *_PARTITIONS, is_multi=True),
        Refusal(("unknown table", "failed to find table", "unknown database", "] does not exist"), *MISSING),
        Refusal(
            (
                "unknown column",
                "cannot be resolved",
                "has no default value",
                "not primary key",
                "load by primary key",
            ),
            *MISMATCHED,
        ),
        Refusal(("exceed max size", "size of this batch exceed", "exceeds quota", "quota exceed"), *OVER_LIMIT),
    ),
)
