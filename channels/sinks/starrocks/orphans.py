"""Transactions of StarRocks that a run has begun or prepared and no checkpoint commits: found by label, rolled back."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence

from cdc.errors import CdcError, TargetMismatch
from channels.sinks.base import Finding, SinkCheckpoint
from channels.sinks.starrocks.client import LoadTransaction, StarrocksHttp
from channels.sinks.starrocks.errors import STARROCKS
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.http import Unreachable
from channels.sinks.stream_load.messages import SqlError
from channels.sinks.stream_load.sink import abort_until_none
from channels.sinks.stream_load.statements import string_literal

logger = logging.getLogger(__name__)


def is_shared(label: str) -> bool:
    """Return True if ``label`` names a transaction over several tables."""
    return re.search(r"-all-\d+$", label) is not None


class OrphanTransactions:
    """Running transactions of the target databases, as far as the user may see them."""

    def __init__(self, client: StarrocksHttp, sql: FrontendSql, databases: Sequence[str], tries: int) -> None:
        self._client, self._sql, self._databases, self._tries = client, sql, databases, tries

    def findings(self) -> Iterator[Finding]:
        """Find out if the user may see running transactions."""
        for database in self._databases:
            try:
                self._running(database)
            except (SqlError, TargetMismatch) as error:
                if "nknown database" not in str(error):
                    yield Finding(
                        f"The user may not see running transactions ({error}): loads that a killed run has prepared "
                        "stay until they expire, and delay ALTER TABLE until then.",
                        f"GRANT OPERATE ON SYSTEM TO USER '{self._client.address.username}'",
                        fatal=False,
                    )
                return

    def roll_back(self, is_due: Callable[[str], bool]) -> None:
        """Roll back the transactions whose label ``is_due``. Raises: SinkUnavailable - they do not end."""

        def find(database: str) -> list[str]:
            try:
                return [label for label in self._running(database) if is_due(label)]
            except (SqlError, TargetMismatch) as error:
                logger.info(
                    "transactions of %s cannot be listed (%s): orphans end at their time limit", database, error
                )
                return []

        abort_until_none(self._databases, find, self._roll_back, self._tries, STARROCKS)

    def _roll_back(self, database: str, label: str) -> None:
        try:
            reply = self._client.ask("rollback", LoadTransaction(database, label, multi=is_shared(label)))
            if reply.is_missing:
                self._client.cancel(database, label)
        except Unreachable as error:
            logger.info("the rollback of %s has no answer (%s); the label is checked again", label, error)

    def _running(self, database: str) -> list[str]:
        """Return labels that are begun or prepared, at most 2000. Raises: SqlError, TargetMismatch - not visible."""
        rows = self._sql.rows(f"SHOW PROC {string_literal(f'/transactions/{database}/running')}")
        # the list also has transactions that wait for publishing, which cannot be rolled back
        return [str(row["Label"]) for row in rows if row["TransactionStatus"] in ("PREPARE", "PREPARED")]

    def roll_back_earlier_runs(self, checkpoint: SinkCheckpoint) -> None:
        """Roll back what earlier runs of this job have prepared and no checkpoint names any more."""
        own = re.compile(rf"cdc-{re.escape(checkpoint.job)}-{checkpoint.incarnation}-(\d+)-")

        def is_due(label: str) -> bool:
            found = own.match(label)
            return found is not None and int(found[1]) < checkpoint.fence

        try:
            self.roll_back(is_due)
        except CdcError as error:
            logger.info("orphans of earlier runs stay: %s", error)
