"""Which unreadable changes of a binlog may be omitted: those that the user accepted with ``--accept-gap``.

The acceptance covers the changes that the server had when the job resumed, and never rows of XA transactions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from cdc.errors import CdcError
from cdc.model.position import BinlogPosition
from cdc.mysql.server import Server
from cdc.sources.omitted_changes import OmittedChanges, log_omission


class ReadProgress(Protocol):
    """How far a decoder has read."""

    @property
    def position(self) -> BinlogPosition:
        """Return the position after the last transaction that was returned."""

    @property
    def read_to(self) -> BinlogPosition:
        """Return the position after the last event between transactions, as of the head of a file or a heartbeat."""

    @property
    def inside_xa(self) -> bool:
        """Return whether the events that are read now belong to an XA transaction."""

    @property
    def is_ahead(self) -> bool:
        """Return whether whole transactions wait to be returned. ``position`` is before them."""


@dataclass(frozen=True, slots=True)
class _NotStarted:
    position: BinlogPosition
    read_to: BinlogPosition
    inside_xa: bool = False
    is_ahead: bool = False


class OmissionRules:
    """Decide whether changes that cannot be read are omitted."""

    def __init__(self, *, is_accepted: bool, has_server: bool) -> None:
        self.progress: ReadProgress = _NotStarted(BinlogPosition("", 0), BinlogPosition("", 0))
        self.omitted = OmittedChanges()
        self._is_accepted = is_accepted
        self._has_server = has_server
        self._accepted_until: BinlogPosition | None = None

    def note_server(self, server: Server) -> None:
        """Record the end of the server's binlog at the first connection. The acceptance covers nothing after it."""
        if self._is_accepted and self._accepted_until is None:
            end = server.position()
            gtids = server.gtids_at(end.file, end.offset) if server.mariadb else server.executed()
            self._accepted_until = replace(end, gtid_set=gtids or "")

    def omits(self, error: CdcError, tables: Collection[str]) -> bool:
        """Return whether to omit changes of ``tables`` that cannot be read because of ``error``. If so, note them."""
        if self.progress.inside_xa:  # a new snapshot of the table before the XA COMMIT would lack these rows
            error.hint = (
                "Rows of an XA transaction cannot be omitted. Start a new job after the transaction, with another name "
                "and empty targets."
            )
            return False
        if not self._is_accepted or (self._has_server and self._is_new()):
            return False
        log_omission(error, tables)
        self.omitted.note(tables)
        return True

    def _is_new(self) -> bool:
        """Return whether the change was made after the user accepted omissions."""
        return self._accepted_until is None or has_reached(self.progress.position, self._accepted_until)


def has_reached(position: BinlogPosition, other: BinlogPosition) -> bool:
    """Return ``Position.reached``. Return True if the two cannot be compared: nothing is omitted without proof."""
    try:
        return position.reached(other)
    except ValueError:
        return True
