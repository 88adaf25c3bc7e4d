"""Detect a transaction whose END entry does not arrive, so that its rows are delivered nevertheless."""

from __future__ import annotations

import time

from cdc.sources.canal.transactions import OpenTransaction

TRANSACTION_ENTRIES = 1024  # canal.instance.transaction.size: Canal may lose the END after a multiple of this number
_LOST_END_S = 2.0
_FILTERED_END_S = 10.0  # after another number: Canal filters END entries (canal.instance.filter.transaction.entry)


def has_lost_end(transaction: OpenTransaction) -> bool:
    """Return whether the rows of ``transaction`` have waited for its END for too long.

    If Canal has only paused inside the transaction, its other rows follow in a later Batch.
    Calls: while the server has nothing more.
    """
    if not transaction.changes or transaction.xid:
        return False
    timeout_s = _FILTERED_END_S if transaction.length % TRANSACTION_ENTRIES else _LOST_END_S
    return time.monotonic() - transaction.changed_at >= timeout_s
