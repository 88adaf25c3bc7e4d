"""Compare the number of rows that a snapshot has read with COUNT(*).

Chunks are read by key ranges with bound values. If the server compares a bound wrongly, rows are missing and no error
is raised. A count without ranges, with the last key as a literal, detects this. Rows may be inserted and deleted while
chunks are read. Therefore only a gross difference is an error: fewer rows than half of the smaller count of two, one
at the first and one after the last chunk. The second count is only needed if the first one finds a gross difference.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait

import pymysql

from cdc.errors import SnapshotIncomplete
from cdc.model.snapshot import Chunk, TableSnapshot
from cdc.mysql.connection import Endpoint, query, translated
from cdc.mysql.key_order import MARK, KeyOrder
from cdc.mysql.query_stream import configure_session
from cdc.mysql.server import Server

# The stream waits for the counts of a step at most this long after the rows of the step are read. A table without a
# count is compared with the optimizer's estimate.
LIMIT_S = 5.0
_FEWEST = 3  # one or two rows may have been deleted and inserted again meanwhile
_ESTIMATE_ERROR = 10  # the optimizer's estimate is rarely wrong by more than this factor
_LEAST_S = 0.001  # a limit of 0 is none
_MOST_S = 50.0  # a query without an answer fails after a minute
_TIMEOUTS = (1969, 3024)  # MariaDB: ER_STATEMENT_TIMEOUT; MySQL: ER_QUERY_TIMEOUT

_log = logging.getLogger(__name__)


def count_rows(server: Server, order: KeyOrder, snapshot: TableSnapshot, limit_s: float = LIMIT_S) -> int | None:
    """Return COUNT(*) of the rows up to the last key of ``snapshot`` that match its ``where``.

    The last key is a literal, because the count must detect faults of bound values. Return None if it takes longer
    than ``limit_s``. Raises: SourceUnavailable.
    """
    limit_s = max(limit_s, _LEAST_S)
    rows, bounds = order.rows_of(Chunk(0, None, snapshot.last_key), snapshot.where)
    # an escaped text has no NUL character, which marks a bound
    for value in bounds:
        rows = rows.replace(MARK, server.connection.escape(value), 1)
    sql = (
        f"SET STATEMENT max_statement_time = {limit_s} FOR SELECT COUNT(*) AS n{rows}"
        if server.mariadb
        else f"SELECT /*+ MAX_EXECUTION_TIME({math.ceil(limit_s * 1000)}) */ COUNT(*) AS n{rows}"
    )
    try:
        return int(query(server.connection, sql)[0]["n"])
    except pymysql.err.MySQLError as error:
        if error.args and error.args[0] in _TIMEOUTS:
            return None
        raise translated(error, server.endpoint) from error


class StepCounts:
    """The counts of one snapshot step. Calls: the Consumer's thread. It waits at most ``LIMIT_S`` for all of them."""

    def __init__(self) -> None:
        self._left_s = LIMIT_S
        self._counts: dict[str, int] = {}
        self._ended: Future[None] | None = None

    @property
    def is_used_up(self) -> bool:
        """Whether no time is left for another count."""
        return self._left_s <= 0

    def begin(self, endpoint: Endpoint, tables: Mapping[str, tuple[KeyOrder, TableSnapshot]], reading_s: float) -> None:
        """Count ``tables``, the smallest ones first, over another connection while their first rows are read.

        ``reading_s``: longest duration of the step.
        """
        if tables:
            self._ended = Future()
            in_order = sorted(tables.items(), key=lambda table: table[1][1].estimated_rows)
            arguments = endpoint, in_order, time.monotonic() + reading_s + LIMIT_S, self._ended
            # A daemon, because a job that stops does not wait for a count.
            threading.Thread(target=self._run, args=arguments, name="row counts", daemon=True).start()

    def _run(
        self,
        endpoint: Endpoint,
        tables: Sequence[tuple[str, tuple[KeyOrder, TableSnapshot]]],
        deadline: float,
        ended: Future[None],
    ) -> None:
        try:
            with Server(endpoint) as server:
                configure_session(server)
                for name, (order, snapshot) in tables:
                    if (left_s := deadline - time.monotonic()) <= 0:
                        break
                    if (counted := count_rows(server, order, snapshot, min(left_s, _MOST_S))) is not None:
                        self._counts[name] = counted
        except Exception as error:  # noqa: BLE001 - the rows themselves can be read
            names = ", ".join(name for name, _ in tables if name not in self._counts)
            _log.warning("the rows of %s were not counted: %s", names, error)
        finally:
            ended.set_result(None)

    def ended_counts(self) -> Mapping[str, int]:
        """Return the counts of ``begin``, without those that failed or took too long."""
        if self._ended is not None:
            began = time.monotonic()
            wait([self._ended], self._left_s)
            self._left_s -= time.monotonic() - began
        return self._counts.copy()

    def count(self, server: Server, order: KeyOrder, snapshot: TableSnapshot) -> int | None:
        """Return ``count_rows``, limited by the remaining time."""
        began = time.monotonic()
        counted = count_rows(server, order, snapshot, self._left_s)
        self._left_s -= time.monotonic() - began
        return counted


def lacks_rows(snapshot: TableSnapshot) -> bool:
    """Return whether ``snapshot`` has read fewer than half of the rows that were counted at its first chunk."""
    return snapshot.counted_rows is not None and _is_gross(snapshot.rows, snapshot.counted_rows)


def check_rows_read(name: str, snapshot: TableSnapshot, counted: int | None) -> None:
    """Raise SnapshotIncomplete if ``snapshot`` lacks most rows of its table. Calls: after its last chunk.

    ``counted``: if ``lacks_rows``, the result of ``count_rows`` after the last chunk.
    """
    if snapshot.counted_rows is not None and not lacks_rows(snapshot):
        return
    if snapshot.counted_rows is not None and counted is not None:
        expected = min(snapshot.counted_rows, counted)
        is_gross = _is_gross(snapshot.rows, expected)
    else:
        expected = snapshot.estimated_rows if snapshot.where is None else 0
        is_gross = _ESTIMATE_ERROR * max(snapshot.rows, 1) < expected
    if is_gross:
        raise SnapshotIncomplete(
            f"The snapshot of {name} has read {snapshot.rows} rows, and the table has about {expected}.",
            hint="If most rows were deleted and inserted again during the snapshot, run "
            f"`cdc snapshot NAME {name}`, which reads the table again, then `cdc resume NAME`. Otherwise report a bug "
            "with the table's SHOW CREATE TABLE, and use `exclude` for the table.",
            table=name,
        )


def _is_gross(rows: int, expected: int) -> bool:
    return expected >= _FEWEST and 2 * rows < expected
