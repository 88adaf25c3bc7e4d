"""Changes that cannot be read and that the user accepted to omit (``cdc resume --accept-gap``).

A receiver notes their tables; the next Batch carries them as ``Batch.gaps``, and the tables are then loaded again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from cdc.errors import CdcError

log = logging.getLogger(__name__)


class OmittedChanges:
    """Collect, for the next Batch, the tables of which changes were omitted."""

    def __init__(self) -> None:
        self._tables: frozenset[str] = frozenset()

    def note(self, tables: Iterable[str]) -> None:
        """Record that the next Batch lacks changes of these tables."""
        self._tables |= set(tables)

    def take(self) -> frozenset[str]:
        """Return the tables noted since the last call."""
        tables, self._tables = self._tables, frozenset()
        return tables


def log_omission(error: CdcError, tables: Collection[str]) -> None:
    """Log that changes of ``tables`` are omitted because of ``error``."""
    log.warning("omitting changes of %s: %s", ", ".join(sorted(tables)) or "unknown tables", error)
