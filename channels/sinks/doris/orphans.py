"""Transactions of Doris that a run has begun or prepared and no checkpoint commits: found by label, aborted."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from cdc.errors import TargetMismatch
from channels.sinks.base import Finding
from channels.sinks.doris.client import DorisHttp
from channels.sinks.doris.errors import DORIS
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.http import Unreachable
from channels.sinks.stream_load.messages import SqlError
from channels.sinks.stream_load.sink import abort_until_none
from channels.sinks.stream_load.statements import quoted, string_literal

logger = logging.getLogger(__name__)

_SYSTEM_DATABASES = {"information_schema", "mysql", "__internal_schema"}
_UNFINISHED = ("PREPARE", "PRECOMMITTED")


class DorisTransactions:
    """Unfinished transactions of all databases, as far as the user may see them."""

    def __init__(self, client: DorisHttp, sql: FrontendSql, tries: int, *, two_phase: bool) -> None:
        self._client, self._sql, self._tries = client, sql, tries
        # a running plain load becomes visible and is not aborted; prepared ones are from an earlier setting
        self._states = _UNFINISHED if two_phase else _UNFINISHED[1:]

    def findings(self, databases: Iterable[str]) -> Iterator[Finding]:
        """Find databases whose transactions the user may not see."""
        for database in databases:
            try:
                self._list(database, "cdc-check-")
            except (SqlError, TargetMismatch) as error:
                yield Finding(
                    f"The user may not see the transactions of {database} ({error}): what a killed run has prepared "
                    "stays for an hour, counts as running and delays ALTER TABLE.",
                    "From 4.0 on Doris shows them to users with ADMIN_PRIV; without it no data is lost.",
                    fatal=False,
                )

    def abort(self, prefix: str, kept: Collection[str], owned: Collection[str]) -> None:
        """Abort those whose label begins with ``prefix`` and is not one of ``kept``.

        ``owned``: the databases of this job. Raises: SinkUnavailable - they do not end.
        """

        def find(database: str) -> list[tuple[int, str]]:
            return [found for found in self._unfinished(database, prefix, owned) if found[1] not in kept]

        databases = sorted(self._sql.databases() - _SYSTEM_DATABASES)
        abort_until_none(databases, find, self._abort, self._tries, DORIS, labels=prefix)

    def _unfinished(self, database: str, prefix: str, owned: Collection[str]) -> Iterator[tuple[int, str]]:
        try:
            rows = self._list(database, prefix)
        except (SqlError, TargetMismatch) as error:
            # expected for databases of others; for those of this job `cdc check` has warned
            level = logging.WARNING if database in owned else logging.DEBUG
            logger.log(level, "prepared loads of %s cannot be listed and end at their time limit: %s", database, error)
            return
        for row in rows:
            if row["Label"].startswith(prefix) and row["TransactionStatus"] in self._states:
                yield int(row["TransactionId"]), row["Label"]

    def _list(self, database: str, prefix: str) -> list[dict[str, Any]]:
        """Return transactions, among them all with a label that begins with ``prefix``.

        Raises: SqlError, TargetMismatch.
        """
        show = f"SHOW TRANSACTION FROM {quoted(database)} WHERE"
        try:
            return self._sql.rows(f"{show} label LIKE {string_literal(prefix + '%')}")
        except SqlError:
            # 1.2 needs a complete label; 4.0 and later do not support a status
            return [row for status in _UNFINISHED for row in self._sql.rows(f"{show} status = '{status}'")]

    def _abort(self, database: str, found: tuple[int, str]) -> None:
        number, label = found
        try:
            reply = self._client.finish("abort", database, number)
        except Unreachable as error:
            logger.info("the abort of %s has no answer (%s); the label is checked again", label, error)
            return
        if not reply.is_ok:
            logger.info("abort of %s: %s", label, reply.message)
