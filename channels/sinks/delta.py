"""The embedded sink: Delta tables in a folder, written without a server and without a JVM.

Table ``ods.orders`` lies at ``<root>/ods/orders``; prepared loads lie under ``<root>/_cdc_staging``. A commit puts its
checkpoint into the log of every table it changes: as an application transaction, which makes a repeat harmless, and
in full as commit metadata, which ``last_checkpoint`` reads.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from cdc.batch import LoadName, PreparedLoad, TargetState
from cdc.errors import LoadLost, SinkForeign, SinkSetting, SinkUnavailable, TargetLost, TargetMismatch
from cdc.permissions import current_umask
from cdc.position import position_from_json
from channels.label import label_for, label_prefix
from channels.sinks import delta_tables
from channels.sinks.base import CheckpointMark, Finding, LoadState, TargetTable, loads_of
from channels.sinks.delta_claim import Claim
from channels.sinks.delta_files import STAGING, StagedFileWriter, gone, make_folder, sync_path, unavailable
from channels.sinks.delta_layout import compaction, delete_unused
from channels.sinks.delta_log import LOG, MARK, NO_HOOKS, DurableLogs, damaged, mend, sum_up, summed_up
from channels.sinks.delta_marker import MARKER, read_marker, write_marker
from channels.sinks.delta_merge import Action, Load, Merge, table_files
from channels.sinks.delta_paths import check_root, table_folder, table_uri, target_of
from spark.writers import write_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_COMMIT_TRIES = 5  # somebody else may write the table's log between our snapshot and our commit, rarely
_ABORTED_KEPT_S = 3600.0  # an executor that outlives its driver gives up long before
_MAINTAIN_EVERY_S = 5.0  # looking costs as well
_VACUUM_EVERY_S = 300.0  # listing a table's folder costs; deleted files may lie a little longer


class DeltaSink:
    """See ``channels.sinks.base.Sink``. One process writes at a time; anyone may read."""

    tasks_in_order = False  # what is staged is merged in order

    def __init__(
        self,
        root: Path | str,
        *,
        create_tables: bool = True,
        retention_s: float = 3600.0,
        merge_memory_bytes: int = 1 << 30,
        threads: int | None = None,
        parts: int = 2,
    ) -> None:
        """``retention_s``: how long files that a merge replaced, and entries of the log, stay for readers of older
        versions.

        ``merge_memory_bytes``: what the keys of one load may take while merging (``memory.merge``).
        """
        self._root = Path(root).resolve()
        check_root(self._root)
        self._create_tables = create_tables
        self._retention_s = retention_s
        self._merge_memory_bytes = merge_memory_bytes
        self._parts = parts
        cores = threads or os.cpu_count() or 2
        self._table_threads = ThreadPoolExecutor(cores * 2, "delta-table")
        self._leaf_threads = ThreadPoolExecutor(cores, "delta-leaf")
        self._claim = Claim(self._root / STAGING)
        self._began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._logs = DurableLogs()
        self._tables: dict[str, DeltaTable] = {}
        self._identities: dict[str, str] = {}  # of tables with committed rows
        self._committed: dict[str, int | None] = {}  # the newest application transaction that was seen in them
        self._log_inodes: dict[str, tuple[int, int]] = {}  # device and inode of the log that ``_tables`` were read from
        self._met: dict[str, TargetTable] = {}  # what rows of a table were last found to fit
        self._maintained: dict[str, float] = {}
        self._vacuumed: dict[str, float] = {}
        self._umask = current_umask()
        self._has_root = False  # the marker of the root was there when it was last read
        self._token: str | None = None  # see StagedFileWriter
        self._probe_head = "seen-"
        self._swept: dict[tuple[str, str, int], float] = {}  # when leftovers of a run's forerunners went
        self._unswept: list[CheckpointMark] = []  # commits that were begun, and whose staged files may still be there

    def ensure_table(self, table: TargetTable) -> None:
        """See ``Sink``."""
        self._refuse_missing_root()
        folder = self._folder(table.name)
        self._refuse(table.name, self.describe(table))
        self._met[table.name] = table
        found = self._open(table.name)
        if found is None:
            if table.name in self._identities:
                raise self._gone(table.name)
            self._create(table, folder)
            found = self._open(table.name)
        if found is not None and delta_tables.lacks_invariants(found):
            self._add_invariants(found, folder)

    def _refuse(self, table: str, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if finding.fatal:
                raise TargetMismatch(finding.problem, mend=finding.mend, table=table, path=self._folder(table))

    def _add_invariants(self, found: DeltaTable, folder: Path) -> None:
        """Name a feature that NOT NULL is, and deltalake does not name: Spark refuses to read a table without it."""
        try:
            found.alter.add_feature(TableFeatures.Invariants, allow_protocol_versions_increase=True)
            self._logs.sync(folder, found.version())
        except OSError as error:
            raise unavailable(error, folder / LOG) from error

    def _create(self, table: TargetTable, folder: Path) -> None:
        try:
            make_folder(folder, self._root)
            DeltaTable.create(
                table_uri(folder),
                delta_tables.delta_schema(table),
                name=table.name,
                description=table.comment or None,
                configuration=delta_tables.properties(table, self._retention_s),
                raise_if_key_not_exists=False,
            )
            self._logs.sync(folder, 0)
            sync_path(folder)
        except OSError as error:
            raise unavailable(error, folder / LOG) from error

    def describe(self, table: TargetTable) -> tuple[Finding, ...]:
        """See ``Sink``."""
        found, folder = self._open(table.name), self._folder(table.name)
        if found is None and _has_foreign_files(folder):
            return (
                Finding(
                    f"The folder of target {table.name} holds files and no Delta table: {folder}.",
                    "Give the channel another `target`, or move the files away.",
                ),
            )
        if found is None and self._create_tables:
            return ()  # it is made when its first rows come
        if found is None:
            return (
                Finding(
                    f"There is no table {table.name} at {self._folder(table.name)}.",
                    "Set `sink.create_tables: true`, or create it: `cdc ddl` prints how.",
                ),
            )
        kept = delta_tables.log_findings(found, table, self._retention_s)
        return (*delta_tables.differences(found, table), *kept)

    def check(self, tables: Iterable[TargetTable]) -> tuple[Finding, ...]:
        """See ``Sink``."""
        return (*self._writable(), *(finding for table in tables for finding in self._check(table)))

    def _check(self, table: TargetTable) -> Iterable[Finding]:
        cut = list(damaged(self._folder(table.name) / LOG))
        if not cut:
            return self.describe(table)
        names = ", ".join(path.name for path in cut)
        return [
            Finding(
                f"The log of Delta table {table.name} has files that were not written to their end: {names}.",
                "Nothing is to be done: a start puts them aside. They were not committed.",
                fatal=False,
            )
        ]

    def _writable(self) -> Iterator[Finding]:
        """Whether files can be made in the folder, or where it would be made: tried, since rights alone do not tell."""
        folder = self._root
        while not os.path.exists(folder):  # noqa: PTH110 - Path.exists raises where we may not look
            folder = folder.parent
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            yield Finding(
                f"No Delta tables can be written below {self._root}: {folder}: {error.strerror}.",
                "Correct `sink.path`, or let this user make files there.",
            )

    def ddl(self, table: TargetTable) -> str:
        """See ``Sink``: Spark SQL for a Delta table."""
        return delta_tables.create_table(table, self._folder(table.name), self._retention_s)

    def part_writer(self, table: TargetTable) -> StagedFileWriter:
        """See ``Sink``. Raises: TargetMismatch - the mapping gives other columns by now, and they do not fit."""
        if self._met.get(table.name) != table:
            found = self._open(table.name, anew=True)
            self._refuse(table.name, delta_tables.differences(found, table) if found is not None else ())
            self._met[table.name] = table
        return StagedFileWriter(str(self._root), self._probe(), table, os.uname().nodename, self._umask)

    def claim(self, mark: CheckpointMark, targets: Sequence[str]) -> None:
        """See ``Sink``: the folder is claimed as a whole."""
        self._refuse_missing_root()
        self._claim.take(mark)
        self._probe_head = f"seen-{mark.job}-"
        for path in (self._root / STAGING).glob(self._probe_head + "[0-9a-f]" * 32):
            if path.name != self._token:  # of a run that was killed: this job's claim is ours alone
                with suppress(OSError):
                    path.unlink()

    def prepare(self, frame: DataFrame, name: LoadName, table: TargetTable) -> tuple[PreparedLoad, ...]:
        """See ``Sink``."""
        return loads_of(write_parts(frame, name, table.key, self.part_writer(table), self._parts))

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        """See ``Sink``. Tables are merged side by side; each table's rows become visible at once."""
        self._refuse_missing_root()
        self._claim.check(checkpoint)
        if checkpoint not in self._unswept:
            self._unswept.append(checkpoint)
        by_table: dict[str, list[PreparedLoad]] = {}
        for load in sorted(loads, key=lambda load: load.name):
            by_table.setdefault(load.table, []).append(load)
        jobs = [
            self._table_threads.submit(self._commit_table, table, found, checkpoint)
            for table, found in by_table.items()
        ]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        lost = [error for error in errors if isinstance(error, LoadLost)]
        if lost:
            labels = [label for error in lost for label in error.where["labels"]]  # type: ignore[attr-defined]
            raise LoadLost("Staged files are gone.", mend="They are loaded again by themselves.", labels=labels)
        if errors:
            raise errors[0]
        self._sweep(checkpoint)

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """See ``Sink``."""
        self._refuse_missing_root()
        folder = self._staging_of(job, incarnation, fence, checkpoint)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            make_folder(folder.parent, self._root)
            folder.with_suffix(".aborted").touch()
        except OSError as error:
            raise unavailable(error, folder) from error

    def state(self, load: PreparedLoad) -> LoadState:
        """See ``Sink``."""
        self._refuse_missing_root()
        name = load.name
        folder = self._staging_of(name.job, name.incarnation, name.fence, name.checkpoint)
        if folder.with_suffix(".aborted").exists():
            return LoadState.ABORTED
        table = self._open(load.table)
        if table is not None:
            committed = table.transaction_version(_application(name.job, name.incarnation))
            if committed == name.checkpoint or (
                committed is not None and committed > name.checkpoint and _has_mark(table, name)
            ):
                return LoadState.COMMITTED
        return LoadState.PREPARED if self._is_staged(load) else LoadState.UNKNOWN

    def last_checkpoint(self, job: str) -> CheckpointMark | None:
        """See ``Sink``. Reads the newest entries of every table's log."""
        marks = []
        for log in self._root.glob("*/*/_delta_log"):
            table = self._open(target_of(log.parent))
            if table is None:
                continue
            mark = _newest_mark(table, job)
            if mark is not None:
                marks.append(mark)
        return max(marks, key=lambda mark: (mark.fence, mark.checkpoint), default=None)

    def identity(self, *, create: bool) -> str | None:
        """See ``Sink``: the marker in the root folder."""
        try:
            found = write_marker(self._root) if create else read_marker(self._root)
        except OSError as error:
            raise unavailable(error, self._root) from error
        self._has_root = found is not None
        return found

    def target_states(self, job: str, incarnation: str, targets: Sequence[str]) -> Mapping[str, TargetState]:
        """See ``Sink``: ``metaData.id``, the application transaction, and the files on the disk."""
        if self._has_root:  # else the caller knows already that the root is missing
            self._refuse_missing_root()
        states = {}
        for name in targets:
            self._forget(name)  # the caller compares
            found = self._open(name)
            if found is None:
                continue
            committed = found.transaction_version(_application(job, incarnation))
            identity = self._identities[name] = str(found.metadata().id)
            self._committed[name] = committed
            missing = _missing_files(found, self._folder(name))
            states[name] = TargetState(identity, -1 if committed is None else committed, missing)
        return states

    def repair(self, target: str) -> None:
        """See ``Sink``: the log drops data files that do not exist, which every reader stumbles over."""
        found, folder = self._open(target), self._folder(target)
        if found is None or not _missing_files(found, folder):
            return
        try:
            found.repair(post_commithook_properties=NO_HOOKS)
            found.update_incremental()
            self._logs.sync(folder, found.version())
        except (DeltaError, OSError) as error:
            raise SinkUnavailable(
                f"The log of the Delta table cannot be repaired: {error}.",
                mend=f"Check {folder}; the job continues automatically.",
                table=target,
            ) from error

    @property
    def tells_keys(self) -> bool:
        """See ``Sink``."""
        return True

    def keys(self, table: TargetTable) -> pa.Table | None:
        """See ``Sink``."""
        found, folder = self._open(table.name), self._folder(table.name)
        schema = pa.schema(
            [pa.field(column.name, column.arrow) for column in table.columns if column.name in table.key]
        )
        pieces = [schema.empty_table()]
        for file in table_files(found, table.key) if found is not None else ():
            pieces.append(pq.read_table(folder / file.path, columns=schema.names, partitioning=None).cast(schema))
        return pa.concat_tables(pieces).select(list(table.key))

    def maintain(self, tables: Iterable[TargetTable]) -> None:
        """See ``Sink``: puts small files together, and deletes what no version within retention needs.

        A table is looked at every few seconds at most.
        """
        now = time.monotonic()
        for table in tables:
            if now - self._maintained.get(table.name, -_MAINTAIN_EVERY_S) < _MAINTAIN_EVERY_S:
                continue
            found = self._open(table.name)
            if found is None or any(delta_tables.unwritable(found)):
                continue
            self._maintained[table.name] = now
            self._compact(found, table)
            self._tidy_log(found, table)
            self._vacuum(table)

    def close(self) -> None:
        """See ``Sink``."""
        self._table_threads.shutdown(wait=True)
        self._leaf_threads.shutdown(wait=True)
        self._claim.release()
        if self._token is not None:
            (self._root / STAGING / self._token).unlink(missing_ok=True)
            self._token = None

    def _commit_table(self, table: str, loads: Sequence[PreparedLoad], mark: CheckpointMark) -> None:
        for attempt in range(_COMMIT_TRIES):
            found = self._open(table)
            if found is None:
                raise self._gone(table)
            done = found.transaction_version(_application(mark.job, mark.incarnation))
            if (known := self._committed.get(table)) is not None and (done is None or done < known):
                raise self._replaced(table, f"checkpoint {done}", f"checkpoint {known}")
            if done == mark.checkpoint:
                self._make_durable(found, table)  # a repeat
                return
            if done is not None and done > mark.checkpoint:
                raise _ahead(table, mark, done)
            if done is None:
                self._refuse_foreign(found, table, mark)
            self._refuse(table, delta_tables.unwritable(found))
            lost = [label_for(load.name) for load in loads if not self._is_staged(load)]
            if lost:
                raise LoadLost("Staged files are gone.", mend="They are loaded again by themselves.", labels=lost)
            try:
                self._merge(found, table, loads, mark)
                if table in self._identities:
                    self._committed[table] = mark.checkpoint
                return
            except CommitFailedError:
                # another writer's commit came between; nothing of ours is in the log, so it starts from there anew
                logger.warning("table %s was changed by another writer during a merge", table)
                time.sleep(0.05 * 2**attempt)
        raise SinkUnavailable(
            f"Another writer changes the table all the time: {_COMMIT_TRIES} merges in a row came too late.",
            mend="Stop the other writer, an OPTIMIZE for instance; the job compacts its tables itself.",
            table=table,
        )

    def _merge(self, found: DeltaTable, table: str, loads: Sequence[PreparedLoad], mark: CheckpointMark) -> None:
        folder, key = self._folder(table), json.loads(found.metadata().configuration["cdc.key"])
        schema = delta_tables.arrow_schema(found)
        started = time.monotonic()
        try:
            load = Load([self._root / one.detail["file"] for one in loads], key)
            if load.key_bytes > self._merge_memory_bytes:
                raise SinkSetting(
                    f"The keys of one checkpoint take {load.key_bytes >> 20} MiB while merging.",
                    mend="Raise `memory.merge`, or lower `commit.max_rows` where transactions allow.",
                    table=table,
                )
            # no name is used twice: a file that a stopped process holds for unused never becomes part of the table
            name = f"part-{label_for(loads[0].name)}-{uuid.uuid4().hex[:16]}"
            actions = Merge(folder, schema, load, table_files(found, key), name).actions(self._leaf_threads)
            self._claim.check(mark)
            self._write_log(found, table, actions, mark)
        except OSError as error:
            raise unavailable(error, folder) from error
        logger.debug("merged %s rows into %s in %.3f s", load.row_count, table, time.monotonic() - started)

    def _write_log(self, found: DeltaTable, table: str, actions: list[Action], mark: CheckpointMark) -> None:
        transaction = Transaction(_application(mark.job, mark.incarnation), mark.checkpoint)
        text = json.dumps(_mark_to_json(mark))
        self._logs.append(found, self._folder(table), actions, text, [transaction])

    def _make_durable(self, found: DeltaTable, table: str) -> None:
        """What is committed may be so by a process that was killed before it could see to it."""
        folder = self._folder(table)
        try:
            sync_path(folder)
            self._logs.sync(folder, found.version())
        except OSError as error:
            raise unavailable(error, folder / LOG) from error

    def _refuse_foreign(self, found: DeltaTable, table: str, mark: CheckpointMark) -> None:
        """A job of the same name and another life must have been adopted, and then goes on above the old one."""
        other = _newest_mark(found, mark.job)
        if other is not None and other.incarnation != mark.incarnation and other.checkpoint >= mark.checkpoint:
            raise SinkForeign(
                f"The table has checkpoint {other.checkpoint} of job {mark.job} in another life "
                f"({other.incarnation}, ours is {mark.incarnation}).",
                mend="Start the job with `--adopt` to go on above it.",
                table=table,
            )

    def _compact(self, found: DeltaTable, table: TargetTable) -> None:
        schema, folder = delta_tables.arrow_schema(found), self._folder(table.name)
        try:
            actions = compaction(folder, schema, table.key, table_files(found, table.key), uuid.uuid4().hex)
            if not actions:
                return
            self._claim.check_all()
            self._logs.append(found, folder, actions, found.history(1)[0].get(MARK))
            found.update_incremental()
        except CommitFailedError:
            logger.warning("table %s was changed by another writer while its small files were put together", table.name)
        except OSError as error:
            raise unavailable(error, folder) from error
        else:
            added = sum(isinstance(action, AddAction) for action in actions)
            logger.info("compacted %s: %d files into %d", table.name, len(actions) - added, added)

    def _tidy_log(self, found: DeltaTable, table: TargetTable) -> None:
        """Sum up the log in a checkpoint now and then, and delete entries before it that have expired.

        A commit takes time by the length of the log: 50,000 entries, half a day's, are 0.8 s. Where another writer's
        entry is the newest, the one with our mark may be old, and stays.
        """
        folder = self._folder(table.name)
        try:
            unsummed = found.version() - summed_up(folder / LOG)
            if unsummed >= delta_tables.CHECKPOINT_EVERY and MARK in found.history(1)[0]:
                self._logs.sync(folder, found.version())
                sum_up(found, folder)
        except OSError as error:
            raise unavailable(error, folder / LOG) from error

    def _vacuum(self, table: TargetTable) -> None:
        now = time.monotonic()
        if now - self._vacuumed.get(table.name, -_VACUUM_EVERY_S) < min(_VACUUM_EVERY_S, self._retention_s):
            return
        self._vacuumed[table.name] = now
        folder, oldest = self._folder(table.name), self._wall_clock() - self._retention_s

        def active() -> set[str]:
            found = self._open(table.name, anew=True)
            if found is None:
                raise self._gone(table.name)
            return {file.path for file in table_files(found, ())}

        try:
            delete_unused(folder, active, oldest, self._claim.check_all)
        except OSError as error:
            raise unavailable(error, folder) from error

    def _wall_clock(self) -> float:
        """Return seconds since 1970; a clock that is set ahead while this process lives shortens no retention."""
        return min(time.time(), self._began + time.clock_gettime(time.CLOCK_BOOTTIME))

    def _refuse_missing_root(self) -> None:
        """Raise SinkUnavailable if the root is away. A marker that was there is missing where it is not mounted."""
        if not self._root.is_dir() or (self._has_root and not (self._root / MARKER).exists()):
            raise gone(self._root)

    def _gone(self, table: str) -> SinkUnavailable:
        return SinkUnavailable(
            "The target table is gone.",
            mend="Put its folder back (a file system that is not mounted?); the job then continues automatically. If "
            "it is lost: `cdc pause NAME`, then `cdc resume NAME --reload-missing`.",
            table=table,
            path=self._folder(table),
        )

    def _open(self, table: str, *, anew: bool = False) -> DeltaTable | None:
        """The table at its newest version; None when there is none.

        ``anew``: for a thread beside a commit, whose own must not move on under its merge.
        """
        folder = self._folder(table)
        if not (folder / LOG).is_dir():
            self._tables.pop(table, None)
            return None
        try:
            if anew:
                return self._identified(table, DeltaTable(table_uri(folder)))
            status = (folder / LOG).stat()
            inode = status.st_dev, status.st_ino
            if self._log_inodes.setdefault(table, inode) != inode:  # another log: nothing that was read of it is valid
                self._log_inodes[table] = inode
                self._tables.pop(table, None)
            if table in self._tables:
                self._tables[table].update_incremental()
            else:
                mend(folder / LOG)
                self._tables[table] = DeltaTable(table_uri(folder))
            return self._identified(table, self._tables[table])
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            self._tables.pop(table, None)
            raise SinkUnavailable(
                f"The log of the Delta table cannot be read: {error}.",
                mend=f"Look after {folder / LOG}; the job goes on by itself.",
                table=table,
            ) from error

    def _identified(self, table: str, found: DeltaTable) -> DeltaTable:
        """Return ``found``. Raises: TargetLost - the table was replaced since it was met first."""
        identity = str(found.metadata().id)
        if self._identities.get(table, identity) == identity:
            return found
        raise self._replaced(table, f"identity {identity}", f"identity {self._identities[table]}")

    def _replaced(self, table: str, found: str, expected: str) -> TargetLost:
        self._tables.pop(table, None)
        return TargetLost(
            "The target table was replaced while the job runs.",
            mend="Bring the job's table back, then `cdc resume NAME`; or `cdc resume NAME --reload-missing` loads "
            "it again.",
            table=table,
            found=found,
            expected=expected,
        )

    def _forget(self, table: str) -> None:
        for known in (self._identities, self._committed, self._log_inodes, self._tables):
            known.pop(table, None)

    def _folder(self, table: str) -> Path:
        return table_folder(self._root, table)

    def _staging_of(self, job: str, incarnation: str, fence: int, checkpoint: int) -> Path:
        return self._root / STAGING / label_prefix(job, incarnation, fence, checkpoint).rstrip("-")

    def _is_staged(self, load: PreparedLoad) -> bool:
        path = self._root / load.detail["file"]
        return path.exists() and path.stat().st_size == load.detail["size"]  # type: ignore[no-any-return]

    def _probe(self) -> str:
        self._refuse_missing_root()
        token = self._token or f"{self._probe_head}{uuid.uuid4().hex}"
        path = self._root / STAGING / token
        try:
            if self._token is None or not path.exists():  # somebody else may delete it
                make_folder(path.parent, self._root)
                path.touch()
        except OSError as error:
            raise unavailable(error, path) from error
        self._token = token
        return token

    def _sweep(self, mark: CheckpointMark) -> None:
        """Delete what was staged for ``mark`` and, now and then, what earlier runs and checkpoints left behind.

        Commits come in order: whatever of this job was staged for an earlier checkpoint is committed or dead. So is
        what earlier runs have staged for this one, which a recovery commits under its own fence.
        """
        # one whose answer was lost is not committed again: its files go with those of the next
        for each in self._unswept:
            shutil.rmtree(self._staging_of(each.job, each.incarnation, each.fence, each.checkpoint), ignore_errors=True)
        self._unswept.clear()
        run = (mark.job, mark.incarnation, mark.fence)
        if time.monotonic() - self._swept.get(run, -_ABORTED_KEPT_S) < _ABORTED_KEPT_S:
            return
        self._swept[run] = time.monotonic()
        head = f"cdc-{mark.job}-"
        for path in (self._root / STAGING).glob(f"{head}*"):
            parts = path.name.removesuffix(".aborted").removeprefix(head).split("-")
            if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
                continue  # of another job, whose name begins like ours
            if path.suffix == ".aborted":  # kept for a while: the label stays unused, and `state` still knows
                if path.stat().st_mtime < time.time() - _ABORTED_KEPT_S:
                    path.unlink(missing_ok=True)
            elif parts[0] != mark.incarnation or int(parts[2]) <= mark.checkpoint:
                shutil.rmtree(path, ignore_errors=True)


def _ahead(table: str, mark: CheckpointMark, done: int) -> SinkForeign:
    return SinkForeign(
        f"The table holds checkpoint {done} of job {mark.job}, and this run is about to commit checkpoint "
        f"{mark.checkpoint}: another process of the job has written it, or the state is an older copy.",
        mend=f"End the other process. If the state was restored from a copy: `cdc start JOB.yaml --adopt` continues "
        f"job {mark.job} above what the sink holds.",
        table=table,
    )


def _has_mark(table: DeltaTable, name: LoadName) -> bool:
    marks = (json.loads(entry[MARK]) for entry in table.history() if MARK in entry)
    key = name.job, name.incarnation, name.checkpoint
    return any((one["job"], one["incarnation"], one["checkpoint"]) == key for one in marks)


def _has_foreign_files(folder: Path) -> bool:
    """Return whether somebody else uses ``folder``. Never: raises where it cannot be listed; its creation will."""
    try:
        return not (folder / LOG).is_dir() and any(folder.iterdir())
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
    except OSError:
        return False


def _missing_files(table: DeltaTable, folder: Path) -> int:
    there = {entry.name for entry in os.scandir(folder)}
    return sum(file.path not in there and not (folder / file.path).exists() for file in table_files(table, ()))


def _application(job: str, incarnation: str) -> str:
    return f"cdc/{job}/{incarnation}"


def _newest_mark(table: DeltaTable, job: str) -> CheckpointMark | None:
    for limit in (5, 100, None):
        for entry in table.history(limit):
            if MARK in entry:
                data = json.loads(entry[MARK])
                if data["job"] == job:
                    return _mark_from_json(data)
    return None


def _mark_to_json(mark: CheckpointMark) -> dict[str, Any]:
    return {
        "job": mark.job,
        "incarnation": mark.incarnation,
        "fence": mark.fence,
        "checkpoint": mark.checkpoint,
        "first": mark.first.to_json(),
        "position": mark.position.to_json(),
        "sequence": mark.sequence,
    }


def _mark_from_json(data: Mapping[str, Any]) -> CheckpointMark:
    return CheckpointMark(
        data["job"],
        data["incarnation"],
        data["fence"],
        data["checkpoint"],
        position_from_json(data["first"]),
        position_from_json(data["position"]),
        data["sequence"],
    )
