"""Compare the rows that a snapshot has read with what the server counts, by a mechanism of its own.

Chunks are read by key ranges with bound values. If the server compares one of them wrongly, rows are left out and no
error is raised. A count with a literal shows it. Rows may be inserted and deleted while chunks are read, so only a
gross difference counts: fewer than half of the rows that were there both before the first and after the last chunk.
"""

from __future__ import annotations

import pymysql

from cdc.binlog.connection import query, translated
from cdc.binlog.server import Server
from cdc.errors import SnapshotIncomplete
from cdc.snapshot.chunks import Chunk, TableSnapshot
from cdc.snapshot.keys import MARK, Order

LIMIT_S = 5.0  # of one count; the stream waits for it. Larger tables are compared with the optimizer's estimate
_FEWEST = 3  # tables of one or two rows may be empty at any moment
_ESTIMATE_ERROR = 10  # the optimizer's estimate is seldom wrong by more than this factor
_TIMEOUTS = (1969, 3024)  # MariaDB: ER_STATEMENT_TIMEOUT; MySQL: ER_QUERY_TIMEOUT


def count_rows(server: Server, order: Order, snapshot: TableSnapshot, limit_s: float = LIMIT_S) -> int | None:
    """Return COUNT(*) of the rows that ``snapshot`` reads: those up to its last key for which its ``where`` holds.

    The last key is a literal, since a fault of bound values is what this is for. None: it takes longer than
    ``limit_s``.
    Raises: SourceUnavailable.
    """
    rows, bounds = order.rows_of(Chunk(0, None, snapshot.last_key), snapshot.where)
    # an escaped text has no NUL
    for value in bounds:
        rows = rows.replace(MARK, server.connection.escape(value), 1)
    sql = (
        f"SET STATEMENT max_statement_time = {limit_s} FOR SELECT COUNT(*) AS n{rows}"
        if server.mariadb
        else f"SELECT /*+ MAX_EXECUTION_TIME({int(limit_s * 1000)}) */ COUNT(*) AS n{rows}"
    )
    try:
        return int(query(server.connection, sql)[0]["n"])
    except pymysql.err.MySQLError as error:
        if error.args and error.args[0] in _TIMEOUTS:
            return None
        raise translated(error, server.endpoint) from error


def check_rows_read(name: str, snapshot: TableSnapshot, counted: int | None) -> None:
    """Raise SnapshotIncomplete if ``snapshot``, whose chunks are all read, lacks most rows of its table.

    ``counted``: ``count_rows`` after the last chunk; None: not known.
    """
    if snapshot.counted_rows is not None and counted is not None:
        expected = min(snapshot.counted_rows, counted)
        is_gross = expected >= _FEWEST and 2 * snapshot.rows < expected
    else:
        expected = snapshot.estimated_rows if snapshot.where is None else 0
        is_gross = _ESTIMATE_ERROR * max(snapshot.rows, 1) < expected
    if is_gross:
        raise SnapshotIncomplete(
            f"The snapshot of {name} has read {snapshot.rows} rows, and the table has about {expected}.",
            mend="If most rows of the table were deleted and inserted again meanwhile, `cdc resume NAME` reads the "
            "last chunks again. Otherwise report it with the table's SHOW CREATE TABLE, and leave the table out with "
            "`exclude`.",
            table=name,
        )
