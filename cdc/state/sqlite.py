"""The store in an SQLite file of this machine, with a lock file per job beside it.

::

    $CDC_HOME/            created with mode 0700; an existing folder keeps its mode
      state.db            0600, as are -wal and -shm: the tables of ``cdc.state.tables`` (WAL, synchronous=FULL)
      locks/              0700
        shop.lock         locked with flock by the driver of the job "shop"; contains its pid
      host-id             random; identifies this folder as a host in a shared store

It uses the module sqlite3 directly: importing SQLAlchemy costs 0.25 s, which every command would pay.
Source: SQLite manual, "PRAGMA" and "Write-Ahead Logging".
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cdc.state.database import Result, Row, SqlWords, Transaction
from cdc.state.hosts import this_host
from cdc.state.job_lock import check_state_file, folder_errors
from cdc.state.sql import SqlStore
from cdc.state.sqlite_errors import translated
from cdc.state.tables import FORMAT, check_format, create_tables

BUSY_TIMEOUT_S = 10.0  # writes take milliseconds, so a process that locks the file for longer hangs


class SqliteStore(SqlStore):
    """Implements ``CheckpointStore`` in ``folder/state.db``. The lock of a job is its lock file; it has no lease."""

    def __init__(self, folder: Path) -> None:
        locks = folder / "locks"
        with folder_errors(folder):
            for private in (folder, locks):
                private.mkdir(0o700, parents=True, exist_ok=True)  # other users may use an existing folder
            host = this_host(folder)
        self.path = folder / "state.db"
        self.file = SqliteDatabase(self.path)
        super().__init__(self.file, locks, host, lease_s=0.0)


class SqliteDatabase:
    """Implements ``Database``. Calls: any thread; one thread at a time uses the connection."""

    words = SqlWords(
        # the clock of this machine; SQLite 3.40 has no unixepoch('subsec')
        now="((julianday('now') - 2440587.5) * 86400.0)",
        key="TEXT",
        text="TEXT",
        serial="INTEGER PRIMARY KEY AUTOINCREMENT",
    )

    def __init__(self, path: Path) -> None:
        """Open the file, or create it. Raises: CheckpointError."""
        self.path = path
        self._lock = threading.RLock()
        with translated(path):
            _keep_private(path)
            self.connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                for pragma in ("journal_mode = WAL", "synchronous = FULL"):
                    self.connection.execute(f"PRAGMA {pragma}")
                self.transact(self._create_tables)
            except BaseException:
                self.connection.close()
                raise
            self._inode = path.stat().st_ino

    @property
    def location(self) -> str:
        """See ``Database``."""
        return str(self.path)

    def transact(self, work: Callable[[Transaction], Result], *, repeats: bool = True) -> Result:
        """See ``Database``. SQLite itself waits for a locked file."""
        with self._lock, translated(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(_SqliteTransaction(self.connection))
                self.connection.execute("COMMIT")
            except BaseException:
                # after some errors (disk full) SQLite has rolled back already; a second ROLLBACK would hide the cause
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
            return result

    def all(self, sql: str, **values: Any) -> list[Row]:
        """See ``Database``."""
        with self._lock, translated(self.path):
            return self.connection.execute(sql, values).fetchall()

    def check_file(self, job: str) -> None:
        """See ``Database``."""
        with translated(self.path):
            check_state_file(self.path, self._inode, job)

    def close(self) -> None:
        """See ``Database``."""
        with self._lock:
            self.connection.close()

    def _create_tables(self, transaction: Transaction) -> None:
        ((found,),) = transaction.all("PRAGMA user_version")
        if found == 0:
            create_tables(transaction, self.words)
            transaction.run(f"PRAGMA user_version = {FORMAT}")
        else:
            check_format(found, self.location)


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, sql: str, **values: Any) -> int:
        return self._connection.execute(sql, values).rowcount

    def all(self, sql: str, **values: Any) -> list[Row]:
        return self._connection.execute(sql, values).fetchall()

    def insert(self, sql: str, **values: Any) -> int:
        return int(self._connection.execute(sql, values).lastrowid or 0)


def _keep_private(path: Path) -> None:
    """Create the file with mode 0600, as SQLite would use the umask. -wal and -shm get the mode of the file."""
    path.touch(0o600)
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).chmod(0o600)
