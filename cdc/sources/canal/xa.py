"""XA transactions in Canal's entries. Canal sends their rows at XA PREPARE, and they may be rolled back later.

Rows of mapped tables in such a transaction therefore stop the job before they are delivered. Transactions without rows
of mapped tables are ignored, and so are their XA COMMIT and XA ROLLBACK.

Source: alibaba/canal 1.1.8, LogEventConvert.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from google.protobuf.message import DecodeError as ProtobufError

from cdc.errors import DecodeError, SourceActionRequired
from cdc.model.position import BinlogPosition, CanalPosition
from cdc.model.xid import xid_of
from cdc.mysql.server import Server
from cdc.sources.canal import kernels
from cdc.sources.canal.entries import Entries
from cdc.sources.canal.protocol_pb2 import TransactionEdge
from cdc.sources.prepared_xa import refuse_unknown

_EDGE_BYTES = 24  # edges (BEGIN or END entries) with an xid are longer, and almost no others
_KNOWN_MOST = 10_000


class CanalXa:
    """Remember the XA transactions without rows of mapped tables, to accept their XA COMMIT."""

    def __init__(self, ask: Callable[[], Server] | None, maps: Callable[[str, str], bool]) -> None:
        """``ask``: opens a connection to the source's MySQL. ``maps``: returns whether a channel reads a table."""
        self._ask, self._maps = ask, maps
        self._known: dict[str, None] = {}  # in the order of their arrival

    def note(self, entries: Entries) -> None:
        """Remember the XA transactions in a batch, also in one that arrives again."""
        for _, xid in edges(entries, 0, len(entries)):
            self._known[xid] = None
        while len(self._known) > _KNOWN_MOST:
            del self._known[next(iter(self._known))]

    def check_commit(self, sql: str, position: CanalPosition) -> None:
        """Check an XA COMMIT at ``position``.

        Raises: SourceActionRequired - its rows were not read, and some are or may be of mapped tables.
        """
        xid = xid_of(sql)
        if xid is None or xid not in self._known:
            at = BinlogPosition(position.file, position.offset)
            refuse_unknown(xid or sql[:120], at, at, self._ask, self._maps)


def edges(entries: Entries, first: int, last: int) -> list[tuple[int, str]]:
    """Return the BEGIN and END entries of XA transactions, with their xids, from ``first`` up to before ``last``.

    Raises: DecodeError.
    """
    index = entries.index[first:last]
    edge = (index[:, kernels.KIND] == kernels.BEGIN) | (index[:, kernels.KIND] == kernels.END)
    found = []
    for number in (first + np.flatnonzero(edge & (index[:, kernels.STORE_AT + 1] > _EDGE_BYTES))).tolist():
        at, size = entries.index[number, kernels.STORE_AT : kernels.STORE_AT + 2]
        try:
            properties = {
                pair.key: pair.value for pair in TransactionEdge.FromString(bytes(entries.body[at : at + size])).props
            }
        except ProtobufError as error:
            raise DecodeError(
                "A BEGIN or END entry of Canal is not a valid protobuf message.",
                hint="Check the version of Canal.",
            ) from error
        if "XA_XID" in properties:
            found.append((number, xid_of(properties["XA_XID"]) or properties["XA_XID"]))
    return found


def undecided(xid: str, tables: str) -> SourceActionRequired:
    """Return the error that stops a job before the rows of ``xid``."""
    return SourceActionRequired(
        f"XA transaction {xid} changes {tables}: Canal sends its rows before XA COMMIT, and they may be rolled back.",
        hint="Use a binlog source, or no XA transactions on mapped tables. `cdc resume NAME --accept-gap` continues "
        "without these rows. After XA COMMIT, run `cdc snapshot` for the tables.",
        xid=xid,
    )
