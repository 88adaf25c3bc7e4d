"""Whether all loads of a checkpoint go into one transaction: what stands against it, and what a run has decided.

Source: StarRocks, ``StreamLoadMultiStmtTask.java``, ``update_manager.cpp``, ``ListPartitionInfo.java``; its release
notes of 4.0.7; its issue 75014 (order of deletes in shared storage) and pull request 78790 (partitions that a load
makes).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from cdc.errors import SinkSetting
from channels.sinks.cluster import FrontendSql

logger = logging.getLogger(__name__)

MULTI_FROM = (4, 0, 7)  # before it a rollback is no fence: a transaction that was rolled back takes loads and commits
# by lines: a comment may hold anything that looks like a clause
_MADE_BY_LOADS = re.compile(r"^\s*PARTITION\s+BY\s+(?!RANGE\s*\(|LIST\s*\()", re.IGNORECASE | re.MULTILINE)
_COLUMN = re.compile(r"^\s*`((?:[^`]|``)*)`", re.MULTILINE)


class Mode:
    """Of one sink, and so of one run: decided with its first load, and kept."""

    def __init__(self, sql: FrontendSql, databases: Sequence[str], wanted: str) -> None:
        """``databases``: of all targets. ``wanted``: auto, on or off."""
        self._sql, self._databases, self._wanted = sql, databases, wanted
        self._tables: dict[str, str] = {}  # why not, by table
        self._version = ""
        self._is_shared: bool | None = None  # once a table shows it
        self._is_multi: bool | None = None  # once it is decided

    def look(self, table: str, statement: str) -> None:
        """A target joins, or is looked at again. ``statement``: that makes it, or made it."""
        why = why_not_shared(table, statement)
        if why is None:
            self._tables.pop(table, None)
        else:
            self._tables[table] = why

    def refuse(self) -> None:
        """Raises: SinkSetting - what is wanted, or was decided, cannot be kept; SinkUnavailable."""
        if self._is_multi is False or self._wanted == "off":
            return
        if self._wanted == "on" and (why := self.why_not()):
            raise SinkSetting(why, mend="Set sink.multi_table: auto, or off.")
        if self._is_multi and self._tables:
            raise SinkSetting(
                f"This run commits all tables at one moment. {next(iter(self._tables.values()))}",
                mend="`cdc stop`, then `cdc start`: each table is committed by itself then. Or set "
                "sink.multi_table: off and `cdc resume`.",
            )

    def is_multi(self) -> bool:
        """What holds from now on. Raises: SinkSetting - what is wanted cannot be; SinkUnavailable."""
        if self._is_multi is None:
            self.refuse()
            why = self.why_not()
            self._is_multi = why is None
            logger.info("StarRocks commits %s", "all tables at one moment" if why is None else f"each table: {why}")
        return self._is_multi

    def may_have_been(self) -> bool:
        """Whether an earlier run may have begun a transaction over several tables. Raises: SinkUnavailable."""
        return len(self._databases) == 1 and self._has_multi()

    def why_not(self) -> str | None:
        """The first reason against it, of all that is known by now. Raises: SinkUnavailable, TargetMismatch."""
        if self._wanted == "off":
            return "sink.multi_table is off."
        if len(self._databases) != 1:
            return f"Targets lie in {len(self._databases)} databases ({', '.join(self._databases)}), not in one."
        if not self._databases[0].isascii():
            return _not_ascii(f"The name of database {self._databases[0]}")
        if not self._has_multi():
            return f"StarRocks {self._version} has no safe transactions over several tables; 4.0.7 and later have."
        if self._is_in_shared_storage():
            return (
                "Tables lie in shared storage, where a row that is deleted and comes again in one transaction may stay "
                "deleted."
            )
        return next(iter(self._tables.values()), None)

    def _has_multi(self) -> bool:
        if not self._version:
            self._version = str(self._sql.ask("SELECT current_version() AS version")[0]["version"])
        found = re.search(r"(\d+)\.(\d+)\.(\d+)", self._version)
        return found is not None and tuple(map(int, found.groups())) >= MULTI_FROM

    def _is_in_shared_storage(self) -> bool:
        """As any table shows, for a cluster has one kind; at first there may be none, and nothing tells."""
        if self._is_shared is None:
            rows = self._sql.ask(
                "SELECT DISTINCT TABLE_ENGINE FROM information_schema.tables_config WHERE TABLE_SCHEMA = %s",
                (self._databases[0],),
            )
            engines = {str(row["TABLE_ENGINE"]).upper() for row in rows}
            if engines:
                self._is_shared = any(engine.startswith("CLOUD_NATIVE") for engine in engines)
        return self._is_shared is True


def why_not_shared(table: str, statement: str) -> str | None:
    """Why ``table``, which ``statement`` makes, cannot be in a transaction over several tables."""
    odd = next((name for name in (table, *_COLUMN.findall(statement)) if not name.isascii()), None)
    if odd:
        return _not_ascii(f"{table}: the name {odd[:64]}")
    if _MADE_BY_LOADS.search(statement):
        return f"{table}: loads make its partitions, which a transaction over several tables cannot."
    return None


def _not_ascii(what: str) -> str:
    return f"{what} is not ASCII, and a transaction over several tables does not find it."
