"""Requests to load tables again, of the running job and of the store, until a COMMITTED checkpoint contains them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from cdc.model.snapshot import SnapshotRequest, TableSnapshot
from cdc.model.table_names import table_of
from cdc.run_context import RunContext

_log = logging.getLogger(__name__)


class LoadRequests:
    """Applies the requests to the states of the tables. Calls: the Consumer's thread."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._pending: list[SnapshotRequest] = []  # not applied yet
        self._saved: dict[int, SnapshotRequest] = {}  # requests of the store that no COMMITTED checkpoint contains

    @property
    def are_pending(self) -> bool:
        """Whether a request of the running job is not applied yet."""
        return bool(self._pending)

    def add(self, request: SnapshotRequest) -> None:
        """Load a table again, from the next step on."""
        self._pending.append(request)

    def note_committed(self, snapshots: Mapping[str, TableSnapshot]) -> None:
        """Delete the saved requests that the COMMITTED ``snapshots`` contain. Raises: CheckpointError."""
        self._drop(
            [
                number
                for number, request in self._saved.items()
                if (one := snapshots.get(request.table)) is not None and one.request >= number
            ]
        )

    def drop_table(self, name: str) -> None:
        """Delete the saved requests for a table that the job no longer reads. Raises: CheckpointError."""
        self._drop([number for number, one in self._saved.items() if one.table == name])

    def apply(self, tables: Mapping[str, TableSnapshot]) -> Mapping[str, TableSnapshot]:
        """Return ``tables`` with all requests of the job and of the store. Raises: CheckpointError."""
        for saved in self._context.store.requests(self._context.run.job):
            self._saved[saved.number] = saved
            known = tables.get(saved.table)
            if not self._context.routes.maps(*table_of(saved.table)):
                _log.warning("%s is not loaded again: the job no longer reads it", saved.table)
                self._drop([saved.number])
            elif known is None or known.request < saved.number:  # else it is done: a crash prevented its deletion
                self._pending.append(saved)
        pending, self._pending = self._pending, []
        for request in pending:
            old, where, deletes_orphans = tables.get(request.table), request.where, request.where is None
            if old is not None and old.is_due and old.where != where:  # two conditions: load the whole table
                where, deletes_orphans = None, deletes_orphans or old.deletes_orphans
            number = max(request.number, old.request if old is not None else 0)
            again = TableSnapshot(where=where, deletes_orphans=deletes_orphans, request=number)
            tables = {**tables, request.table: again}
        return tables

    def _drop(self, numbers: Collection[int]) -> None:
        if numbers:
            self._context.store.drop_requests(numbers)
            self._saved = {number: one for number, one in self._saved.items() if number not in numbers}
