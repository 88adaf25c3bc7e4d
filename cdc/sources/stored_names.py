"""The names of tables in statements, as the server stores them.

With ``lower_case_table_names=1``, rows have names in lower case, and statements have them as their user has written
them. Binlog files do not have this setting, nor do Canal and Kafka if the job knows no server.

Source: MySQL manual, "Identifier Case Sensitivity".
"""

from __future__ import annotations

from collections.abc import Callable

from cdc.model.table_names import table_text
from cdc.mysql.ddl_tokens import Unreadable

Name = tuple[str, str]  # database and table


class UncertainName(Unreadable):
    """A statement names a table in another case than the job knows it."""


class StoredNames:
    """Find the table that a statement names. The table is "" for a database."""

    def __init__(
        self, knows: Callable[[str, str], bool], maps: Callable[[str, str], bool], *, has_server: bool
    ) -> None:
        """``knows``: whether the job has seen a table of this name. ``maps``: see ``TableLookup``."""
        self.fold_case: bool | None = None  # the server stores names in lower case; None: not known
        self._knows, self._maps, self._has_server = knows, maps, has_server

    def first(self, database: str, table: str) -> Name:
        """Return the table that is meant if the spelling is the server's."""
        return self._possible(database, table)[0]

    def last(self, database: str, table: str) -> Name:
        """Return the table that is meant if the server stores names in lower case."""
        return self._possible(database, table)[-1]

    def certain(self, database: str, table: str) -> Name:
        """Return the table. Raises: UncertainName - it is not certain which one is meant."""
        found = self._possible(database, table)
        if self.fold_case is None and found != ((database, table),):
            raise UncertainName(
                f"it names {table_text(database, table) if table else database}, and it is not known whether names of "
                "tables that differ only in upper and lower case are the same for the server"
            )
        return found[0]

    def _possible(self, database: str, table: str) -> tuple[Name, ...]:
        written, lower = (database, table), (database.lower(), table.lower())
        if self.fold_case is False or written == lower:
            return (written,)
        if self.fold_case and self._has_server:
            return (lower,)
        # without a server, ``fold_case`` is of the one that describes the tables of files: rows are a better evidence
        if known := tuple(name for name in (written, lower) if self._knows(*name)):
            return known
        names = (lower, written) if self.fold_case else (written, lower)
        return next(((name,) for name in names if self._maps(*name)), (written,))
