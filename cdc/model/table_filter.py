"""The contract by which sources ask which tables a job reads."""

from __future__ import annotations

from typing import Protocol

from cdc.errors import CdcError
from cdc.model.batch import RequiredColumns
from cdc.model.schema import TableSchema


class TableFilter(Protocol):
    """Selects source tables and their columns. Calls: once per table and schema, never per row."""

    def maps(self, database: str, table: str) -> bool:
        """Return whether a channel reads this table, which exists. With a pattern it gets its target."""

    def may_map(self, database: str, table: str) -> bool:
        """Return whether a channel would read a table of this name. It gets no target: it may not exist."""

    def reads(self, schema: TableSchema) -> RequiredColumns:
        """Return the columns that the channel of this table reads.

        Raises: SchemaMismatch - the schema lacks a column of the mapping; TargetMismatch - there is no usable key.
        """

    def leave_out(self, database: str, table: str, error: CdcError) -> bool:
        """Return whether the job omits a table that cannot be mapped because of ``error``.

        True if only a pattern maps it, no row of it is committed, and the source has tables, so that a later start can
        load it whole. ``maps`` then returns False, and the status shows the error. If False, raise ``error``, whose
        hint names the possible corrections. Calls: from any thread.
        """
