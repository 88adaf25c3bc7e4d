"""The store in SQL, for every database: jobs, checkpoints, schemas, changes and requests.

Every write of a run is a compare-and-set on the row of its job, in the same transaction. A lock alone is not enough: on
a cluster with several writable members, the older run's save was committed after the fence had been raised elsewhere.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from cdc.errors import LeaseLost
from cdc.model.change_record import ChangeRecord, ChangeSummary
from cdc.model.schema import TableSchema
from cdc.model.snapshot import SnapshotRequest
from cdc.model.verify import Verification, VerifyRequest
from cdc.state.base import Checkpoint, CheckpointState, JobRecord
from cdc.state.change_history import NEWEST, read_changes, record_change, summarize_changes
from cdc.state.codec import from_json, to_json
from cdc.state.database import Database, Transaction
from cdc.state.deployments import Deployments, end_pause
from cdc.state.events import EventKind, Events, add_event
from cdc.state.hosts import HostIdentity, Hosts
from cdc.state.job_lock import folder_errors, lock_job, replaced_job
from cdc.state.run_row import RunRow, record_of
from cdc.state.snapshot_requests import read_requests, request_insert
from cdc.state.tables import OF_JOB
from cdc.state.verifications import read_verifications, record_result, verification_insert
from cdc.state.write_times import WriteTimes

KEPT_COMMITTED = 100  # for a person who examines them; recovery needs one
DEFAULT_LEASE_S = 6.0  # a busy JVM or a full disk looks dead below 3 s
_SCHEMAS = tuple[TableSchema, ...]


@dataclass(frozen=True, slots=True)
class _KnownSchemas:
    """Schemas with their text. The schemas of 1,000 tables are 1 MB of JSON, and most checkpoints share them."""

    schemas: tuple[TableSchema, ...]
    digest: str
    text: str
    texts: Mapping[int, str]  # of each table, by the id of its object, which ``schemas`` keeps alive


class SqlStore:
    """Implements ``CheckpointStore``. Calls: any thread. ``lease_s``: 0 for a store without leases."""

    def __init__(self, database: Database, locks: Path, host: HostIdentity, lease_s: float) -> None:
        self.database = database
        self.host = host
        self.lease_s = lease_s
        self.events = Events(database)
        self.hosts = Hosts(database, host, lease_s or DEFAULT_LEASE_S)
        self.deployments = Deployments(database)
        self._locks = locks
        self._run = RunRow(database, host, lease_s)
        self._known_schemas: tuple[_KnownSchemas, ...] = ()  # before and after a statement

    @property
    def location(self) -> str:
        """The file or server of the store, without secrets."""
        return self.database.location

    @property
    def is_shared(self) -> bool:
        """Whether other hosts use the store too."""
        return self.lease_s > 0

    @property
    def write_times(self) -> WriteTimes:
        """See ``CheckpointStore``."""
        return self._run.write_times

    def acquire(self, job: str, job_file: str, incarnation: str | None = None) -> JobRecord:
        """See ``CheckpointStore``."""
        lock_file = self._lock(job)
        try:
            return self._run.acquire(job, job_file, lock_file, incarnation)
        except BaseException:
            lock_file.close()
            raise

    def release(self) -> None:
        """See ``CheckpointStore``."""
        self._run.release()

    def renew(self, summary: Mapping[str, Any] | None = None) -> None:
        """See ``CheckpointStore``."""
        self._run.renew(summary)

    def check_fence(self) -> None:
        """See ``CheckpointStore``."""
        self._run.check()

    def close(self) -> None:
        """See ``CheckpointStore``."""
        self.release()
        self.database.close()

    def jobs(self) -> tuple[JobRecord, ...]:
        """See ``CheckpointStore``."""
        return tuple(record_of(text) for (text,) in self.database.all("SELECT record FROM cdc_jobs ORDER BY name"))

    def job(self, name: str) -> JobRecord | None:
        """See ``CheckpointStore``."""
        rows = self.database.all("SELECT record FROM cdc_jobs WHERE name = :name", name=name)
        return record_of(rows[0][0]) if rows else None

    def save_job(self, record: JobRecord) -> None:
        """See ``CheckpointStore``."""

        self._run.write(lambda transaction, held: self._write_record(transaction, held, record), after=record)

    def end_pause(self) -> None:
        """See ``CheckpointStore``."""
        self._run.write(
            lambda transaction, held: end_pause(transaction, self.database.words.now, held.name, self.host.name)
        )

    def save_adoption(self, record: JobRecord, start: Checkpoint) -> None:
        """See ``CheckpointStore``."""
        write_start = self._writer_of(start)

        def work(transaction: Transaction, held: JobRecord) -> None:
            self._write_record(transaction, held, record)
            write_start(transaction, held)

        self._run.write(work, after=record)

    def next_id(self) -> int:
        """See ``CheckpointStore``."""
        rows = self.database.all("SELECT highest_id FROM cdc_jobs WHERE name = :name", name=self._run.held.name)
        return int(rows[0][0]) + 1 if rows else 0

    def save(self, checkpoint: Checkpoint) -> None:
        """See ``CheckpointStore``."""
        self._run.write(self._writer_of(checkpoint))

    def discard(self, checkpoint_id: int) -> None:
        """See ``CheckpointStore``."""
        sql = "DELETE FROM cdc_checkpoints WHERE job = :job AND id = :id"
        self._run.write(lambda transaction, held: transaction.run(sql, job=held.name, id=checkpoint_id))

    def unfinished(self) -> tuple[Checkpoint, ...]:
        """See ``CheckpointStore``."""
        return self._checkpoints("c.job = :job AND c.state <> 'COMMITTED' ORDER BY c.id", self._run.held.name)

    def last_committed(self, job: str) -> Checkpoint | None:
        """See ``CheckpointStore``."""
        found = self.committed(job, limit=1)
        return found[0] if found else None

    def committed(self, job: str, *, before: int = 1 << 62, limit: int = 100) -> tuple[Checkpoint, ...]:
        """Return COMMITTED checkpoints with ids smaller than ``before``, newest first. Needs no lock."""
        where = "c.job = :job AND c.state = 'COMMITTED' AND c.id < :before ORDER BY c.id DESC LIMIT"
        return self._checkpoints(f"{where} {int(limit)}", job, before=before)

    def changes(self, job: str, limit: int, *, before: int | None = None) -> tuple[ChangeRecord, ...]:
        """See ``CheckpointStore``."""
        return read_changes(self.database.all, job, limit, before if before is not None else NEWEST)

    def change_summary(self, job: str) -> ChangeSummary:
        """See ``CheckpointStore``."""
        return summarize_changes(self.database.all, job)

    def add_request(self, job: str, request: SnapshotRequest, incarnation: str | None = None) -> None:
        """See ``CheckpointStore``."""
        self.database.transact(request_insert(job, request, incarnation))

    def requests(self, job: str) -> tuple[SnapshotRequest, ...]:
        """See ``CheckpointStore``."""
        return read_requests(self.database.all, job)

    def drop_requests(self, numbers: Collection[int]) -> None:
        """See ``CheckpointStore``."""

        def work(transaction: Transaction, held: JobRecord) -> None:
            for number in numbers:
                sql = "DELETE FROM cdc_snapshot_requests WHERE job = :job AND number = :number"
                transaction.run(sql, job=held.name, number=number)

        self._run.write(work)

    def add_verification(self, job: str, request: VerifyRequest) -> None:
        """See ``CheckpointStore``."""
        self.database.transact(verification_insert(job, request))

    def verifications(self, job: str, limit: int) -> tuple[Verification, ...]:
        """See ``CheckpointStore``."""
        return read_verifications(self.database.all, job, limit)

    def forget(self, job: str, incarnation: str | None = None) -> None:
        """See ``CheckpointStore``."""

        def work(transaction: Transaction) -> None:
            row = self._run.refuse_other_host(transaction, job)
            if row is not None and incarnation not in (None, row[2].incarnation):
                raise replaced_job(job)
            transaction.run("DELETE FROM cdc_jobs WHERE name = :name", name=job)
            for table in OF_JOB:
                transaction.run(f"DELETE FROM {table} WHERE job = :job", job=job)

        with self._lock(job):
            self.database.transact(work)
            (self._locks / f"{job}.lock").unlink()

    def _write_record(self, transaction: Transaction, held: JobRecord, record: JobRecord) -> None:
        if record.fence < held.fence:
            raise LeaseLost(
                "An older run of the job tries to save.", hint="End it.", job=record.name, fence=record.fence
            )
        transaction.run(
            "UPDATE cdc_jobs SET fence = :fence, record = :record WHERE name = :name",
            fence=record.fence,
            record=to_json(record),
            name=record.name,
        )
        if (record.state, record.reason) != (held.state, held.reason):
            self._add_state_event(transaction, record)

    def _writer_of(self, checkpoint: Checkpoint) -> Callable[[Transaction, JobRecord], None]:
        body = to_json(replace(checkpoint, schemas=()))
        schemas = self._text_of(checkpoint.schemas)

        def work(transaction: Transaction, held: JobRecord) -> None:
            key = {"job": held.name, "digest": schemas.digest}
            if not transaction.all("SELECT 1 FROM cdc_schemas WHERE job = :job AND digest = :digest", **key):
                transaction.run("INSERT INTO cdc_schemas VALUES (:job, :digest, :body)", body=schemas.text, **key)
            values = {**key, "id": checkpoint.id, "state": str(checkpoint.state), "body": body}
            if not transaction.run(
                "UPDATE cdc_checkpoints SET state = :state, schemas_digest = :digest, body = :body"
                " WHERE job = :job AND id = :id",
                **values,
            ):
                transaction.run("INSERT INTO cdc_checkpoints VALUES (:job, :id, :state, :digest, :body)", **values)
            transaction.run(
                "UPDATE cdc_jobs SET highest_id = :id WHERE name = :name AND highest_id < :id",
                id=checkpoint.id,
                name=held.name,
            )
            record_change(transaction, self.database.words.now, held.name, checkpoint)
            record_result(transaction, held.name, checkpoint)
            if checkpoint.state is CheckpointState.COMMITTED:
                self._prune(transaction, held.name)

        return work

    def _lock(self, job: str) -> IO[str]:
        with folder_errors(self._locks):
            return lock_job(self._locks, job)

    def _add_state_event(self, transaction: Transaction, record: JobRecord) -> None:
        detail = {"state": record.state, "hint": record.hint, "resume": record.resume, "fence": record.fence}
        text = f"{record.state}: {record.reason}" if record.reason else str(record.state)
        add_event(
            transaction, self.database.words.now, record.name, EventKind.STATE, text, self.host.name, detail
        )  # fmt: skip

    def _checkpoints(self, where: str, job: str, **values: Any) -> tuple[Checkpoint, ...]:
        rows = self.database.all(
            "SELECT c.body, s.body FROM cdc_checkpoints c"
            f" JOIN cdc_schemas s ON s.job = c.job AND s.digest = c.schemas_digest WHERE {where}",
            job=job,
            **values,
        )
        return tuple(replace(from_json(Checkpoint, body), schemas=self._schemas_of(text)) for body, text in rows)

    def _schemas_of(self, text: str) -> tuple[TableSchema, ...]:
        known = next((one for one in self._known_schemas if one.text == text), None)
        return (known or self._know(from_json(_SCHEMAS, text), text, {})).schemas

    def _text_of(self, schemas: tuple[TableSchema, ...]) -> _KnownSchemas:
        """Return the text of ``schemas`` and its digest. Tables whose text is known are not written again."""
        known = self._known_schemas
        if found := next((one for one in known if _are_same(one.schemas, schemas)), None):
            return found
        old = known[-1].texts if known else {}
        texts = {id(table): old.get(id(table)) or to_json(table) for table in schemas}
        return self._know(schemas, f"[{', '.join(texts[id(table)] for table in schemas)}]", texts)

    def _know(self, schemas: tuple[TableSchema, ...], text: str, texts: dict[int, str]) -> _KnownSchemas:
        known = _KnownSchemas(schemas, hashlib.sha256(text.encode()).hexdigest(), text, texts)
        self._known_schemas = (*self._known_schemas[-1:], known)
        return known

    def _prune(self, transaction: Transaction, job: str) -> None:
        oldest = transaction.all(
            "SELECT id FROM cdc_checkpoints WHERE job = :job AND state = 'COMMITTED' ORDER BY id DESC"
            f" LIMIT 1 OFFSET {KEPT_COMMITTED}",
            job=job,
        )
        if oldest:
            sql = "DELETE FROM cdc_checkpoints WHERE job = :job AND state = 'COMMITTED' AND id <= :id"
            transaction.run(sql, job=job, id=oldest[0][0])
            transaction.run(
                "DELETE FROM cdc_schemas WHERE job = :job AND digest NOT IN"
                " (SELECT schemas_digest FROM cdc_checkpoints WHERE job = :job)",
                job=job,
            )


def _are_same(some: tuple[TableSchema, ...], others: tuple[TableSchema, ...]) -> bool:
    """Return whether both have the same objects. ``==`` would leave out what is saved but not compared."""
    return len(some) == len(others) and all(map(operator.is_, some, others))
