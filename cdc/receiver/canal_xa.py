"""XA transactions as Canal tells them: their rows come when they are prepared, and may be rolled back later.

So rows of mapped tables stop us before they are handed out. What else is seen of XA is let through: rows of other
tables, and the decision on a transaction whose rows were let through.

Source: alibaba/canal 1.1.8, LogEventConvert.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from google.protobuf.message import DecodeError as ProtobufError

from cdc.binlog.server import Server
from cdc.binlog.xa import xid_of
from cdc.canal import kernels
from cdc.canal.entries import Entries
from cdc.canal.protocol_pb2 import TransactionEdge
from cdc.errors import DecodeError, SourceBlocked
from cdc.position import BinlogPosition, CanalPosition
from cdc.receiver.undecided import refuse_unknown

_EDGE_BYTES = 24  # an edge that tells an xid is longer, and hardly another one
_KNOWN_MOST = 10_000


class CanalXa:
    """Remembers which XA transactions were let through, so that their decisions are."""

    def __init__(self, ask: Callable[[], Server] | None, maps: Callable[[str, str], bool]) -> None:
        """``ask``: opens a connection to the source's MySQL. ``maps``: whether a channel reads a table."""
        self._ask, self._maps = ask, maps
        self._known: dict[str, None] = {}  # in the order in which they came

    def note(self, entries: Entries) -> None:
        """Remember those that end in a batch, also where it comes again."""
        for _, xid in edges(entries, 0, len(entries)):
            self._known[xid] = None
        while len(self._known) > _KNOWN_MOST:
            del self._known[next(iter(self._known))]

    def check_commit(self, sql: str, place: CanalPosition) -> None:
        """Judge an XA COMMIT at ``place``.

        Raises: SourceBlocked - its rows were never seen, and some are of mapped tables, or may be.
        """
        xid = xid_of(sql)
        if xid is None or xid not in self._known:
            at = BinlogPosition(place.file, place.offset)
            refuse_unknown(xid or sql[:120], at, at, self._ask, self._maps)


def edges(entries: Entries, first: int, last: int) -> list[tuple[int, str]]:
    """Where XA transactions begin and end from entry ``first`` up to, not with, ``last``, and their xids.

    Raises: DecodeError.
    """
    index = entries.index[first:last]
    edge = (index[:, kernels.KIND] == kernels.BEGIN) | (index[:, kernels.KIND] == kernels.END)
    found = []
    for number in (first + np.flatnonzero(edge & (index[:, kernels.STORE_AT + 1] > _EDGE_BYTES))).tolist():
        at, size = entries.index[number, kernels.STORE_AT : kernels.STORE_AT + 2]
        try:
            told = {pair.key: pair.value for pair in TransactionEdge.FromString(entries.body[at : at + size]).props}
        except ProtobufError as error:
            raise DecodeError(
                "An edge of a transaction of Canal's that is no protobuf message.", mend="Check the server's version."
            ) from error
        if "XA_XID" in told:
            found.append((number, xid_of(told["XA_XID"]) or told["XA_XID"]))
    return found


def undecided(xid: str, tables: str) -> SourceBlocked:
    """What stops a job before the rows of ``xid``."""
    return SourceBlocked(
        f"XA transaction {xid} changes {tables}: Canal tells its rows before they are committed, and they may yet be "
        "rolled back.",
        mend="Use a binlog source, or no XA on mapped tables. `cdc resume NAME --accept-gap` goes on without these "
        "rows; once the transaction is decided, load the tables again with `cdc snapshot`.",
        xid=xid,
    )
