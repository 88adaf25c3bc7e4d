"""The CheckpointStore in an SQLite file of this machine, with a lock file per job beside it.

::

    $CDC_HOME/            created with mode 0700; an existing folder keeps its mode
      state.db            0600, as are -wal and -shm: jobs, checkpoints, schemas, changes (WAL, synchronous=FULL)
      locks/              0700
        shop.lock         locked with flock by the driver of the job "shop"; contains its pid

Source: SQLite manual, "PRAGMA" and "Write-Ahead Logging".
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from cdc.errors import CheckpointError, LeaseLost
from cdc.model.change_record import ChangeRecord, ChangeSummary
from cdc.model.schema import TableSchema
from cdc.model.snapshot import SnapshotRequest
from cdc.model.verify import Verification, VerifyRequest
from cdc.state.base import Checkpoint, CheckpointState, JobRecord, JobState
from cdc.state.change_history import TABLE as CHANGES_TABLE
from cdc.state.change_history import read_changes, record_change, summarize_changes
from cdc.state.codec import from_json, to_json
from cdc.state.job_lock import check_state_file, lock_job
from cdc.state.sqlite_errors import translated
from cdc.state.verifications import TABLE as VERIFICATIONS_TABLE
from cdc.state.verifications import add_request as add_verification
from cdc.state.verifications import read_verifications, record_result

FORMAT = 4  # of the file, in PRAGMA user_version
BUSY_TIMEOUT_S = 10.0  # writes take milliseconds, so a process that locks the file for longer hangs
KEPT_COMMITTED = 10  # for a person who examines the file; recovery needs one

_TABLES = """
CREATE TABLE jobs (
    name TEXT PRIMARY KEY, fence INTEGER NOT NULL, highest_id INTEGER NOT NULL, record TEXT NOT NULL
) STRICT;
CREATE TABLE schemas (
    job TEXT NOT NULL, digest TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (job, digest)
) STRICT;
CREATE TABLE checkpoints (
    job TEXT NOT NULL, id INTEGER NOT NULL, state TEXT NOT NULL, schemas TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (job, id)
) STRICT;
-- random token of the run and number of its writes: they detect that the file was replaced by an older copy
CREATE TABLE runs (job TEXT PRIMARY KEY, token TEXT NOT NULL, writes INTEGER NOT NULL) STRICT;
-- AUTOINCREMENT: a checkpoint has the number of its newest request, so a number must not be used twice
CREATE TABLE requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, source TEXT NOT NULL, condition TEXT
) STRICT;
"""
_SCHEMAS = tuple[TableSchema, ...]


class SqliteStore:
    """Implements ``CheckpointStore``. Calls: any thread; one thread at a time uses the connection."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.db"
        self._locks = folder / "locks"
        self._lock_file: IO[str] | None = None
        self._held: JobRecord | None = None
        self._token, self._writes = "", 0  # expected in ``runs`` of the file
        self._thread_lock = threading.RLock()
        self._known_schemas: tuple[tuple[TableSchema, ...], str] | None = None
        with translated(self.path):
            for private in (folder, self._locks):
                private.mkdir(0o700, parents=True, exist_ok=True)  # other users may use an existing folder
            _keep_private(self.path)
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                self._set_up()
            except BaseException:
                self._connection.close()
                raise
            self._inode = self.path.stat().st_ino

    def acquire(self, job: str, job_file: str) -> JobRecord:
        """See ``CheckpointStore``."""
        lock_file = self._lock(job)
        try:
            with self._transaction():
                row = self._one("SELECT fence, record FROM jobs WHERE name = ?", job)
                record = (
                    replace(_record(row[1]), job_file=job_file, fence=row[0] + 1)
                    if row
                    else JobRecord(job, secrets.token_hex(4), 1, JobState.PENDING, job_file)
                )
                self._write_record(record)
                token = secrets.token_hex(8)
                self._run("INSERT OR REPLACE INTO runs VALUES (?, ?, 0)", job, token)
        except BaseException:
            lock_file.close()
            raise
        self._lock_file, self._held, self._token, self._writes = lock_file, record, token, 0
        return record

    def release(self) -> None:
        """See ``CheckpointStore``."""
        with self._thread_lock:
            if self._lock_file is not None:
                self._lock_file.close()
            self._lock_file = self._held = None

    def close(self) -> None:
        """See ``CheckpointStore``."""
        with self._thread_lock:
            self.release()
            self._connection.close()

    def jobs(self) -> tuple[JobRecord, ...]:
        """See ``CheckpointStore``."""
        return tuple(_record(text) for (text,) in self._all("SELECT record FROM jobs ORDER BY name"))

    def job(self, name: str) -> JobRecord | None:
        """See ``CheckpointStore``."""
        row = self._one("SELECT record FROM jobs WHERE name = ?", name)
        return _record(row[0]) if row else None

    def save_job(self, record: JobRecord) -> None:
        """See ``CheckpointStore``."""
        with self._writing() as held:
            if record.fence < held.fence:
                raise LeaseLost(
                    "An older run of the job tries to save.", hint="End it.", job=record.name, fence=record.fence
                )
            self._write_record(record)
            self._held = record

    def check_fence(self) -> None:
        """See ``CheckpointStore``."""
        with self._thread_lock, translated(self.path):
            self._check()

    def next_id(self) -> int:
        """See ``CheckpointStore``."""
        row = self._one("SELECT highest_id FROM jobs WHERE name = ?", self._holding().name)
        return int(row[0]) + 1 if row else 0

    def save(self, checkpoint: Checkpoint) -> None:
        """See ``CheckpointStore``."""
        with self._writing() as held:
            digest, body = self._keep_schemas(held.name, checkpoint.schemas), replace(checkpoint, schemas=())
            self._run(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)",
                *(held.name, checkpoint.id, checkpoint.state, digest, to_json(body)),
            )
            self._run("UPDATE jobs SET highest_id = max(highest_id, ?) WHERE name = ?", checkpoint.id, held.name)
            record_change(self._run, held.name, checkpoint)
            record_result(self._run, held.name, checkpoint)
            if checkpoint.state is CheckpointState.COMMITTED:
                self._prune(held.name)

    def discard(self, checkpoint_id: int) -> None:
        """See ``CheckpointStore``."""
        with self._writing() as held:
            self._run("DELETE FROM checkpoints WHERE job = ? AND id = ?", held.name, checkpoint_id)

    def unfinished(self) -> tuple[Checkpoint, ...]:
        """See ``CheckpointStore``."""
        where = "c.job = ? AND c.state <> 'COMMITTED' ORDER BY c.id"
        return self._checkpoints(where, self._holding().name)

    def last_committed(self, job: str) -> Checkpoint | None:
        """See ``CheckpointStore``."""
        found = self._checkpoints("c.job = ? AND c.state = 'COMMITTED' ORDER BY c.id DESC LIMIT 1", job)
        return found[0] if found else None

    def changes(self, job: str, limit: int) -> tuple[ChangeRecord, ...]:
        """See ``CheckpointStore``."""
        return read_changes(self._all, job, limit)

    def change_summary(self, job: str) -> ChangeSummary:
        """See ``CheckpointStore``."""
        return summarize_changes(self._all, job)

    def add_request(self, job: str, request: SnapshotRequest) -> None:
        """See ``CheckpointStore``."""
        sql = "INSERT INTO requests (job, source, condition) VALUES (?, ?, ?)"
        with self._transaction():
            self._run(sql, job, request.table, request.where)

    def requests(self, job: str) -> tuple[SnapshotRequest, ...]:
        """See ``CheckpointStore``."""
        rows = self._all("SELECT source, condition, number FROM requests WHERE job = ? ORDER BY number", job)
        return tuple(SnapshotRequest(*row) for row in rows)

    def drop_requests(self, numbers: Collection[int]) -> None:
        """See ``CheckpointStore``."""
        with self._writing() as held:
            for number in numbers:
                self._run("DELETE FROM requests WHERE job = ? AND number = ?", held.name, number)

    def add_verification(self, job: str, request: VerifyRequest) -> None:
        """See ``CheckpointStore``."""
        with self._transaction():
            add_verification(self._run, job, request)

    def verifications(self, job: str, limit: int) -> tuple[Verification, ...]:
        """See ``CheckpointStore``."""
        return read_verifications(self._all, job, limit)

    def forget(self, job: str) -> None:
        """See ``CheckpointStore``."""
        with self._lock(job), self._transaction():
            self._run("DELETE FROM jobs WHERE name = ?", job)
            for table in ("checkpoints", "schemas", "runs", "requests", "changes", "verifications"):
                self._run(f"DELETE FROM {table} WHERE job = ?", job)
            (self._locks / f"{job}.lock").unlink()

    def _lock(self, job: str) -> IO[str]:
        with translated(self.path):
            return lock_job(self._locks, job)

    def _holding(self) -> JobRecord:
        if self._held is None:
            raise LeaseLost("This process does not have the lock of the job.", hint="Start the job again.")
        return self._held

    def _check(self) -> JobRecord:
        held = self._holding()
        check_state_file(self.path, self._inode, held.name)
        row = self._one("SELECT fence, record FROM jobs WHERE name = ?", held.name)
        if row is None or row[0] != held.fence:
            pid = _record(row[1]).driver_pid if row else None
            raise LeaseLost(
                f"Another process runs the job {held.name} now.",
                hint=f"See `cdc status {held.name}`. This process ends.",
                fence=held.fence,
                newer_fence=row[0] if row else "none",
                pid=pid or "unknown",
            )
        run = self._one("SELECT token, writes FROM runs WHERE job = ?", held.name)
        if run != (self._token, self._writes):
            raise LeaseLost(
                "The state file was replaced by an older copy while the job ran.",
                hint="Restore the newer file and start the job again. If it is lost: `cdc start JOB.yaml --adopt`.",
                job=held.name,
                path=self.path,
                writes=f"{run[1] if run else 'none'}, expected {self._writes}",
            )
        return held

    def _set_up(self) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}")
        with self._transaction():
            _create_tables(self._connection, self.path)

    @contextmanager
    def _writing(self) -> Iterator[JobRecord]:
        """Run a transaction of the locked job, after a check of its fence in the same transaction."""
        with self._thread_lock:
            with self._transaction():
                held = self._check()
                yield held
                self._run("UPDATE runs SET writes = writes + 1 WHERE job = ?", held.name)
            self._writes += 1

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._thread_lock, translated(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # after some errors (disk full) SQLite has rolled back already; a second ROLLBACK would hide the cause
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                self._known_schemas = None
                raise

    def _run(self, sql: str, *values: Any) -> None:
        self._connection.execute(sql, values)

    def _all(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._thread_lock, translated(self.path):
            return self._connection.execute(sql, values).fetchall()

    def _one(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        rows = self._all(sql, *values)
        return rows[0] if rows else None

    def _checkpoints(self, where: str, job: str) -> tuple[Checkpoint, ...]:
        rows = self._all(
            "SELECT c.body, s.body FROM checkpoints c JOIN schemas s ON s.job = c.job AND s.digest = c.schemas"
            f" WHERE {where}",
            job,
        )
        return tuple(
            replace(from_json(Checkpoint, body), schemas=from_json(_SCHEMAS, schemas)) for body, schemas in rows
        )

    def _write_record(self, record: JobRecord) -> None:
        self._run(
            "INSERT INTO jobs VALUES (?, ?, -1, ?)"
            " ON CONFLICT (name) DO UPDATE SET fence = excluded.fence, record = excluded.record",
            *(record.name, record.fence, to_json(record)),
        )

    def _keep_schemas(self, job: str, schemas: tuple[TableSchema, ...]) -> str:
        # the schemas of 1,000 tables are 1 MB of JSON, and checkpoints between two DDL statements share them
        if self._known_schemas is not None and self._known_schemas[0] == schemas:
            return self._known_schemas[1]
        body = to_json(schemas, _SCHEMAS)
        digest = hashlib.sha256(body.encode()).hexdigest()
        self._run("INSERT OR IGNORE INTO schemas VALUES (?, ?, ?)", job, digest, body)
        self._known_schemas = (schemas, digest)
        return digest

    def _prune(self, job: str) -> None:
        self._run(
            "DELETE FROM checkpoints WHERE job = ? AND state = 'COMMITTED' AND id NOT IN"
            " (SELECT id FROM checkpoints WHERE job = ? AND state = 'COMMITTED' ORDER BY id DESC LIMIT ?)",
            *(job, job, KEPT_COMMITTED),
        )
        self._run(
            "DELETE FROM schemas WHERE job = ? AND digest NOT IN (SELECT schemas FROM checkpoints WHERE job = ?)",
            *(job, job),
        )


def _record(text: str) -> JobRecord:
    return from_json(JobRecord, text)


def _keep_private(path: Path) -> None:
    """Create the file with mode 0600, as SQLite would use the umask. -wal and -shm get the mode of the file."""
    path.touch(0o600)
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).chmod(0o600)


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables in a new file. Raises: CheckpointError - the file has another format."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        for statement in (_TABLES + CHANGES_TABLE + VERIFICATIONS_TABLE).strip().split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {FORMAT}")
    elif version != FORMAT:
        raise CheckpointError(
            f"The state file has format {version}, but this version of cdc supports only {FORMAT}.",
            hint="Use the version of cdc that wrote the file, or set CDC_HOME to another folder.",
            path=path,
        )
