"""The CheckpointStore in an SQLite file of this machine, with a lock file per job beside it.

::

    $CDC_HOME/            made with 0700; a folder that is there stays as it is
      state.db            0600, and so are -wal and -shm: jobs, checkpoints, schemas (WAL, synchronous=FULL)
      locks/              0700
        shop.lock         held with flock by the driver of the job "shop"; its pid is inside

Source: SQLite manual, "PRAGMA", "Write-Ahead Logging" and "Result and Error Codes"; flock(2).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cdc.checkpoint import Checkpoint, CheckpointState, JobRecord, JobState
from cdc.errors import CheckpointError, LeaseLost

if TYPE_CHECKING:
    from cdc.schema import TableSchema

FORMAT = 1  # of the file, in PRAGMA user_version
BUSY_TIMEOUT_S = 10.0  # writes take milliseconds; who holds the file longer than this is stuck
KEPT_COMMITTED = 10  # checkpoints a person may want to look back on; recovery needs one

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
"""
# who writes, and how often it has written: a file that was replaced or rolled back under a run does not agree with it
_RUNS = """
CREATE TABLE IF NOT EXISTS runs (job TEXT PRIMARY KEY, token TEXT NOT NULL, writes INTEGER NOT NULL) STRICT
"""

_MENDS = {
    sqlite3.SQLITE_FULL: ("The disk of the state file is full.", "Free some space; the job then goes on by itself."),
    sqlite3.SQLITE_BUSY: ("The state file stays locked.", "Close the program that holds it open (fuser names it)."),
    sqlite3.SQLITE_LOCKED: ("The state file stays locked.", "Close the program that holds it open (fuser names it)."),
    sqlite3.SQLITE_CORRUPT: (
        "The state file is damaged.",
        "Put a copy back or move it away, then run `cdc start JOB.yaml --adopt`: it goes on from what the sink holds.",
    ),
    sqlite3.SQLITE_READONLY: ("The state file cannot be written.", "Give its folder to the user that runs the job."),
    sqlite3.SQLITE_CANTOPEN: ("The state file cannot be opened.", "Give its folder to the user that runs the job."),
    sqlite3.SQLITE_IOERR: ("The state file cannot be read or written.", "See to the disk; the system's log says more."),
}
_MENDS[sqlite3.SQLITE_NOTADB] = _MENDS[sqlite3.SQLITE_CORRUPT]


def state_folder() -> Path:
    """``$CDC_HOME``, or ``~/.cdc``."""
    return Path(os.environ.get("CDC_HOME") or Path.home() / ".cdc").absolute()


class SqliteStore:
    """Implements CheckpointStore. Calls: any thread; one connection, used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.db"
        self._locks = folder / "locks"
        self._lock_file: IO[str] | None = None
        self._held: JobRecord | None = None
        self._token, self._writes = "", 0  # as the file has them in ``runs``
        self._thread_lock = threading.RLock()
        self._known_schemas: tuple[tuple[TableSchema, ...], str] | None = None
        with self._translated():
            for private in (folder, self._locks):
                private.mkdir(0o700, parents=True, exist_ok=True)  # one that is there may be other people's too
            self._keep_private()
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
                raise LeaseLost("An older run tries to save.", mend="End it.", job=record.name, fence=record.fence)
            self._write_record(record)
            self._held = record

    def check_fence(self) -> None:
        """See ``CheckpointStore``."""
        with self._thread_lock, self._translated():
            self._check()

    def next_id(self) -> int:
        """See ``CheckpointStore``."""
        row = self._one("SELECT highest_id FROM jobs WHERE name = ?", self._holding().name)
        return int(row[0]) + 1 if row else 0

    def save(self, checkpoint: Checkpoint) -> None:
        """See ``CheckpointStore``."""
        with self._writing() as held:
            digest = self._keep_schemas(held.name, checkpoint.schemas)
            self._run(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)",
                *(held.name, checkpoint.id, checkpoint.state.value, digest, json.dumps(checkpoint.to_json())),
            )
            self._run("UPDATE jobs SET highest_id = max(highest_id, ?) WHERE name = ?", checkpoint.id, held.name)
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

    def forget(self, job: str) -> None:
        """See ``CheckpointStore``."""
        with self._lock(job), self._transaction():
            for table, column in (("jobs", "name"), ("checkpoints", "job"), ("schemas", "job"), ("runs", "job")):
                self._run(f"DELETE FROM {table} WHERE {column} = ?", job)
            (self._locks / f"{job}.lock").unlink()

    def _keep_private(self) -> None:
        """Before SQLite makes the file, with the mode of any other file; those beside it take theirs from it."""
        self.path.touch(0o600)
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).chmod(0o600)

    # the lock and the fence

    def _lock(self, job: str) -> IO[str]:
        path = self._locks / f"{job}.lock"
        while True:
            with self._translated():
                file = path.open("a+", encoding="ascii")
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.seek(0)
                    pid = file.read().strip() or "unknown"
                    file.close()
                    raise LeaseLost(
                        f"Another process runs the job {job}.",
                        mend=f"Look at it with `cdc status {job}`, or end process {pid}.",
                        pid=pid,
                    ) from None
                # `forget` may have unlinked the file between our open and our lock: then nobody else would see the lock
                with suppress(FileNotFoundError):
                    if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                        file.truncate(0)
                        file.write(f"{os.getpid()}\n")
                        file.flush()
                        return file
                file.close()

    def _holding(self) -> JobRecord:
        if self._held is None:
            raise LeaseLost("This process does not hold the job.", mend="Start the job again.")
        return self._held

    def _check(self) -> JobRecord:
        held = self._holding()
        try:
            in_place = self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            in_place = False
        if not in_place:
            raise LeaseLost(
                "The state file was taken away or replaced under the running job.",
                mend="Put it back and start the job again; without it, `cdc start JOB.yaml --adopt`.",
                job=held.name,
                path=self.path,
            )
        row = self._one("SELECT fence, record FROM jobs WHERE name = ?", held.name)
        if row is None or row[0] != held.fence:
            pid = _record(row[1]).driver_pid if row else None
            raise LeaseLost(
                f"Another process runs the job {held.name} now.",
                mend=f"Nothing is to be done here; see `cdc status {held.name}`.",
                fence=held.fence,
                newer_fence=row[0] if row else "none",
                pid=pid or "unknown",
            )
        run = self._one("SELECT token, writes FROM runs WHERE job = ?", held.name)
        if run != (self._token, self._writes):
            raise LeaseLost(
                "The state file was replaced by an older copy under the running job.",
                mend="Put the newer file back and start the job again; without it, `cdc start JOB.yaml --adopt`.",
                job=held.name,
                path=self.path,
                writes=f"{run[1] if run else 'none'}, expected {self._writes}",
            )
        return held

    # SQL

    def _set_up(self) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}")
        with self._transaction():
            self._connection.execute(_RUNS)
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _TABLES.strip().split(";\n"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {FORMAT}")
            elif version != FORMAT:
                raise CheckpointError(
                    f"The state file has format {version}; this program knows {FORMAT}.",
                    mend="Use the program's version that wrote it, or set CDC_HOME to another folder.",
                    path=self.path,
                )

    @contextmanager
    def _writing(self) -> Iterator[JobRecord]:
        """A transaction of the run that holds the job; the fence is checked inside it."""
        with self._thread_lock:
            with self._transaction():
                held = self._check()
                yield held
                self._run("UPDATE runs SET writes = writes + 1 WHERE job = ?", held.name)
            self._writes += 1

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._thread_lock, self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # some errors (disk full) end the transaction by themselves; a second ROLLBACK would hide the cause
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                self._known_schemas = None
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
            message, mend = _MENDS.get(code, ("The state file cannot be used.", "See the cause in the log."))
            raise CheckpointError(message, mend=mend, path=self.path, cause=error) from error
        except OSError as error:
            raise CheckpointError(
                "The state folder cannot be used.",
                mend="Give it to the user that runs the job, free some space, or set CDC_HOME to another folder.",
                path=error.filename or self.path,
                cause=error.strerror,
            ) from error

    def _run(self, sql: str, *values: Any) -> None:
        self._connection.execute(sql, values)

    def _all(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._thread_lock, self._translated():
            return self._connection.execute(sql, values).fetchall()

    def _one(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        rows = self._all(sql, *values)
        return rows[0] if rows else None

    def _checkpoints(self, where: str, job: str) -> tuple[Checkpoint, ...]:
        from cdc.schema import TableSchema  # needs pyarrow, which a look at the jobs should not wait for

        rows = self._all(
            "SELECT c.body, s.body FROM checkpoints c JOIN schemas s ON s.job = c.job AND s.digest = c.schemas"
            f" WHERE {where}",
            job,
        )
        return tuple(
            Checkpoint.from_json(json.loads(body), tuple(TableSchema.from_json(one) for one in json.loads(schemas)))
            for body, schemas in rows
        )

    def _write_record(self, record: JobRecord) -> None:
        self._run(
            "INSERT INTO jobs VALUES (?, ?, -1, ?)"
            " ON CONFLICT (name) DO UPDATE SET fence = excluded.fence, record = excluded.record",
            *(record.name, record.fence, json.dumps(record.to_json())),
        )

    def _keep_schemas(self, job: str, schemas: tuple[TableSchema, ...]) -> str:
        # a thousand tables make a megabyte of JSON; between two DDL statements every checkpoint has the same one
        if self._known_schemas is not None and self._known_schemas[0] == schemas:
            return self._known_schemas[1]
        body = json.dumps([schema.to_json() for schema in schemas])
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
    return JobRecord.from_json(json.loads(text))
