"""What a run of a job has begun or prepared in StarRocks and nobody will commit: found by its labels, rolled back."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence

from cdc.errors import CdcError, TargetMismatch
from channels.sinks.base import CheckpointMark, Finding
from channels.sinks.cluster import FrontendSql, SqlError
from channels.sinks.starrocks_client import STARROCKS, StarrocksHttp, Transaction
from channels.sinks.stream_load import Unreachable

logger = logging.getLogger(__name__)


def is_shared(label: str) -> bool:
    """Return True if ``label`` names a transaction over several tables."""
    return re.search(r"-all-\d+$", label) is not None


class Leftovers:
    """Running transactions of the targets' databases, as far as the user may see them."""

    def __init__(self, http: StarrocksHttp, sql: FrontendSql, databases: Sequence[str], tries: int) -> None:
        self._http, self._sql, self._databases, self._tries = http, sql, databases, tries

    def findings(self) -> Iterator[Finding]:
        """Whether they can be seen."""
        for database in self._databases:
            try:
                self._running(database)
            except (SqlError, TargetMismatch) as error:
                if "nknown database" not in str(error):
                    yield Finding(
                        f"The user may not see running transactions ({error}): loads that a killed run has prepared "
                        f"stay until they expire, and hold back ALTER TABLE for so long.",
                        f"GRANT OPERATE ON SYSTEM TO USER '{self._http.access.username}'",
                        fatal=False,
                    )
                return

    def roll_back(self, is_due: Callable[[str], bool]) -> None:
        """Roll back those whose label ``is_due``. Raises: SinkUnavailable - they do not go away."""
        for database in self._databases:
            for _ in range(self._tries):
                try:
                    labels = [label for label in self._running(database) if is_due(label)]
                except (SqlError, TargetMismatch) as error:
                    logger.info(
                        "transactions of %s cannot be seen (%s): leftovers expire by themselves", database, error
                    )
                    break
                if not labels:
                    break
                for label in labels:
                    self._dropped(Transaction(database, label, multi=is_shared(label)))
            else:
                raise STARROCKS.unavailable("prepared loads do not go away", database=database)

    def _dropped(self, transaction: Transaction) -> None:
        try:
            answer = self._http.ask("rollback", transaction)
            if answer.is_gone:
                self._http.cancel(transaction.database, transaction.label)
        except Unreachable as error:
            logger.info("rollback of %s has no answer (%s); it is looked for again", transaction.label, error)

    def _running(self, database: str) -> list[str]:
        """Labels that are begun or prepared, of 2000 at most. Raises: SqlError, TargetMismatch - not ours to see."""
        rows = self._sql.rows(f"SHOW PROC '/transactions/{database}/running'")
        # those that wait for publishing are among them, and cannot be rolled back
        return [str(row["Label"]) for row in rows if row["TransactionStatus"] in ("PREPARE", "PREPARED")]

    def sweep(self, checkpoint: CheckpointMark) -> None:
        """What earlier runs of this job have left prepared, and no checkpoint names any more, goes."""
        ours = re.compile(rf"cdc-{re.escape(checkpoint.job)}-{checkpoint.incarnation}-(\d+)-")

        def is_due(label: str) -> bool:
            found = ours.match(label)
            return found is not None and int(found[1]) < checkpoint.fence

        try:
            self.roll_back(is_due)
        except CdcError as error:
            logger.info("leftovers of earlier runs stay: %s", error)
