"""The transaction mode of a run: all loads of a checkpoint in one shared transaction, or each table separately.

Source: StarRocks, ``StreamLoadMultiStmtTask.java``, ``update_manager.cpp``, ``ListPartitionInfo.java``; its release
notes of 4.0.7; its issue 75014 (order of deletes in shared storage) and pull request 78790 (partitions that a load
creates).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from cdc.errors import SinkLimitExceeded
from channels.sinks.stream_load.frontend import FrontendSql

logger = logging.getLogger(__name__)

MULTI_FROM = (4, 0, 7)  # before, a transaction that was rolled back still accepts loads and commits
# whole lines, because a comment can contain text like a clause
_PARTITIONS_BY_LOADS = re.compile(r"^\s*PARTITION\s+BY\s+(?!RANGE\s*\(|LIST\s*\()", re.IGNORECASE | re.MULTILINE)
_COLUMN = re.compile(r"^\s*`((?:[^`]|``)*)`", re.MULTILINE)


class TransactionMode:
    """The mode of one sink, and so of one run. It is decided at the first load and then kept."""

    def __init__(self, sql: FrontendSql, databases: Sequence[str], setting: str) -> None:
        """``databases``: of all targets. ``setting``: auto, on or off."""
        self._sql, self._databases, self._setting = sql, databases, setting
        self._reasons: dict[str, str] = {}  # by table: why it cannot be in a shared transaction
        self._version = ""
        self._is_shared_storage: bool | None = None  # unknown until the first table exists
        self._is_multi: bool | None = None  # None until it is decided

    def note_table(self, table: str, statement: str) -> None:
        """Add or update a target. ``statement``: CREATE TABLE, planned or existing."""
        why = why_not_shared(table, statement)
        if why is None:
            self._reasons.pop(table, None)
        else:
            self._reasons[table] = why

    def refuse(self) -> None:
        """Raise SinkLimitExceeded if the setting, or the mode of this run, is not possible. Raises: SinkUnavailable."""
        if self._is_multi is False or self._setting == "off":
            return
        if self._setting == "on" and (why := self.why_not()):
            raise SinkLimitExceeded(why, hint="Set sink.multi_table: auto, or off.")
        if self._is_multi and self._reasons:
            raise SinkLimitExceeded(
                f"This run commits all tables in one transaction. {next(iter(self._reasons.values()))}",
                hint="Set sink.multi_table: off, then `cdc resume NAME`: each table is then committed separately.",
            )

    def is_multi(self) -> bool:
        """Decide the mode and return it. Raises: SinkLimitExceeded - the setting is not possible; SinkUnavailable."""
        if self._is_multi is None:
            self.refuse()
            why = self.why_not()
            self._is_multi = why is None
            how = "all tables in one transaction" if why is None else f"each table separately: {why}"
            logger.info("StarRocks commits %s", how)
        return self._is_multi

    def may_have_been(self) -> bool:
        """Return True if an earlier run may have begun a shared transaction. Raises: SinkUnavailable."""
        return len(self._databases) == 1 and self._has_multi()

    def why_not(self) -> str | None:
        """Return the first known reason against the shared mode. Raises: SinkUnavailable, TargetMismatch."""
        if self._setting == "off":
            return "sink.multi_table is off."
        if len(self._databases) != 1:
            return f"Targets are in {len(self._databases)} databases ({', '.join(self._databases)}), not in one."
        if not self._databases[0].isascii():
            return _not_ascii(f"The name of database {self._databases[0]}")
        if not self._has_multi():
            return f"StarRocks {self._version} has no safe transactions over several tables; 4.0.7 and later have."
        if self._is_in_shared_storage():
            return (
                "The tables are in shared storage, where a row that is deleted and inserted again in one transaction "
                "can stay deleted."
            )
        return next(iter(self._reasons.values()), None)

    def _has_multi(self) -> bool:
        return self.is_from(MULTI_FROM)

    def is_from(self, version: tuple[int, int, int]) -> bool:
        """Return True if the cluster has this version or a later one. Raises: SinkUnavailable."""
        if not self._version:
            self._version = str(next(iter(self._sql.one("SELECT current_version() AS version").values())))
        found = re.search(r"(\d+)\.(\d+)\.(\d+)", self._version)
        return found is not None and tuple(map(int, found.groups())) >= version

    def _is_in_shared_storage(self) -> bool:
        """Return True if the cluster has shared storage. Any table shows it; without tables it is unknown."""
        if self._is_shared_storage is None:
            rows = self._sql.ask(
                "SELECT DISTINCT TABLE_ENGINE FROM information_schema.tables_config WHERE TABLE_SCHEMA = %s",
                (self._databases[0],),
            )
            engines = {str(row["TABLE_ENGINE"]).upper() for row in rows}
            if engines:
                self._is_shared_storage = any(engine.startswith("CLOUD_NATIVE") for engine in engines)
        return self._is_shared_storage is True


def why_not_shared(table: str, statement: str) -> str | None:
    """Return why ``table`` cannot be in a transaction over several tables, or None. ``statement``: CREATE TABLE."""
    name = next((name for name in (table, *_COLUMN.findall(statement)) if not name.isascii()), None)
    if name:
        return _not_ascii(f"{table}: the name {name[:64]}")
    if _PARTITIONS_BY_LOADS.search(statement):
        return f"{table}: its partitions are created by loads, which a transaction over several tables does not allow."
    return None


def _not_ascii(what: str) -> str:
    return f"{what} is not ASCII. A load in a transaction over several tables cannot use such a name."
