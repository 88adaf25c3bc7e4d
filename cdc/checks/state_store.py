"""Checks of ``cdc check`` for the state store: whether it answers, its format, its clock, and what its user may do.

Source: MySQL manual, "Privileges Provided by MySQL" and "innodb_flush_log_at_trx_commit"; PostgreSQL manual, "GRANT".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from cdc.checks.mysql import finding_of
from cdc.errors import CheckpointError
from cdc.state.sql import SqlStore
from cdc.state.tables import FORMAT, TABLES
from channels.sinks.base import Finding

CLOCK_MOST_S = 2.0  # a larger difference makes the shown lag and times wrong
_DENIED = (1044, 1142, 1143, "42501")  # code of an error: a privilege is missing
_GRANT = (
    "Grant its user SELECT, INSERT, UPDATE, DELETE, CREATE and INDEX on the database; in PostgreSQL, make it the owner."
)
# statements that need a privilege and change no row
_TRIED = {
    "SELECT": "SELECT 1 FROM {table} WHERE 1 = 0",
    "INSERT": "INSERT INTO {table} ({column}) SELECT {column} FROM {table} WHERE 1 = 0",
    "UPDATE": "UPDATE {table} SET {column} = {column} WHERE 1 = 0",
    "DELETE": "DELETE FROM {table} WHERE 1 = 0",
}


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """What is known of the state store after its check."""

    location: str | None  # file or server, without secrets; None: not known
    format: int | None = None  # None: it could not be read
    clock_ahead_s: float | None = None  # clock of this host minus that of the store; None: the same clock
    findings: tuple[Finding, ...] = ()


def refused_store(error: CheckpointError) -> StoreCheck:
    """Return the check of a store that could not be opened."""
    location = error.context.get("store") or error.context.get("path")
    return StoreCheck(str(location) if location else None, findings=(finding_of(error),))


def check_store(store: SqlStore) -> StoreCheck:
    """Check an open store, whose format is therefore the one of this version. Raises: CheckpointError."""
    if not store.is_shared:
        return StoreCheck(store.location, FORMAT)
    before = time.time()
    ((now,),) = store.database.all(f"SELECT {store.database.words.now}")
    ahead_s = (before + time.time()) / 2 - float(now)
    findings = (*_clock(ahead_s), *_rights(store), *_durability(store))
    return StoreCheck(store.location, FORMAT, round(ahead_s, 3), findings)


def _clock(ahead_s: float) -> Iterator[Finding]:
    if abs(ahead_s) > CLOCK_MOST_S:
        where = "ahead of" if ahead_s > 0 else "behind"
        yield Finding(
            f"The clock of this host is {abs(ahead_s):.1f} s {where} the clock of the state store.",
            "Let both follow a time server. No job is lost or taken over because of it, as leases use the clock of the "
            "store only; but the times and the lag that are shown are wrong.",
            fatal=False,
        )


def _rights(store: SqlStore) -> Iterator[Finding]:
    """Try each operation: privileges of roles are not listed everywhere."""
    for verb, statement in _TRIED.items():
        refused = [table for table in TABLES if _is_denied(store, statement, table)]
        if refused:
            tables = "the tables" if len(refused) == len(TABLES) else ", ".join(refused)
            yield Finding(f"The user of the state store may not {verb} in {tables}.", _GRANT)


def _is_denied(store: SqlStore, statement: str, table: str) -> bool:
    column = "name" if table in ("cdc_jobs", "cdc_hosts") else "job"
    sql = statement.format(table=table, column=column)
    try:
        store.database.transact(lambda transaction: transaction.run(sql), repeats=False)
    except CheckpointError as error:
        if error.context.get("code") not in _DENIED:
            raise
        return True
    return False


def _durability(store: SqlStore) -> Iterator[Finding]:
    """Warn about a server that may lose committed transactions after a power failure."""
    if store.location.startswith("mysql"):
        ((flush,),) = store.database.all("SELECT @@innodb_flush_log_at_trx_commit")
        setting, is_durable, wanted = f"innodb_flush_log_at_trx_commit is {flush}", int(flush) == 1, "1"
    else:
        ((fsync,),) = store.database.all("SELECT current_setting('fsync')")
        setting, is_durable, wanted = f"fsync is {fsync}", fsync == "on", "on"
    if not is_durable:
        yield Finding(
            f"The state store may lose its newest commits when its machine fails: {setting}.",
            f"Set {setting.split()[0]} to {wanted}. Otherwise a job may then need `cdc start JOB.yaml --adopt`.",
            fatal=False,
        )
