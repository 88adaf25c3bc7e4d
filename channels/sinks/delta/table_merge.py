"""Merge the loads of a checkpoint into one Delta table, in the way of the table, and write the entry of the log."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from deltalake import DeltaTable

from cdc.errors import PreparedLoadLost, SinkLimitExceeded
from cdc.model.batch import PreparedLoad
from channels.sinks.base import SinkCheckpoint
from channels.sinks.delta import table as delta_tables
from channels.sinks.delta.compaction import Compactions
from channels.sinks.delta.entries import RemovedFile
from channels.sinks.delta.fence import transactions
from channels.sinks.delta.files import unavailable
from channels.sinks.delta.log import DurableLogs
from channels.sinks.delta.merge import Merge, MergeLoad
from channels.sinks.delta.object_path import ObjectPath
from channels.sinks.delta.ownership import Ownership
from channels.sinks.delta.sink_checkpoint import mark_to_json
from channels.sinks.delta.staging import Staging
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table_files import table_files
from channels.sinks.delta.vector_merge import FindRows, VectorMerge
from channels.sinks.labels import label_for

logger = logging.getLogger(__name__)


class TableMerge:
    """Merges loads into the tables of one sink. Calls: any thread, one at a time for a table."""

    def __init__(
        self,
        staging: Staging,
        folder_of: Callable[[str], StorePath],
        logs: DurableLogs,
        ownership: Ownership,
        compactions: Compactions,
        threads: Executor,
        memory_bytes: int,
    ) -> None:
        """``threads``: for data files. ``memory_bytes``: limit for the keys of one load."""
        self._staging = staging
        self._folder_of = folder_of
        self._logs = logs
        self._ownership = ownership
        self._compactions = compactions
        self._threads = threads
        self._memory_bytes = memory_bytes
        self.executors: FindRows | None = None  # for merges with many bytes of keys to read

    def merge(
        self, found: DeltaTable, version: int, table: str, loads: Sequence[PreparedLoad], mark: SinkCheckpoint
    ) -> None:
        """Commit ``loads`` to ``found`` as the next version after ``version``.

        Raises: CommitFailedError - another writer has committed meanwhile; PreparedLoadLost, SinkLimitExceeded,
        SinkUnavailable, SinkOwnershipError, TargetMismatch.
        """
        folder, key = self._folder_of(table), json.loads(found.metadata().configuration["cdc.key"])
        threads = self._threads if isinstance(folder, ObjectPath) else None
        there = map(self._staging.holds, loads) if threads is None else threads.map(self._staging.holds, loads)
        lost = [label_for(load.name) for load, is_there in zip(loads, there, strict=True) if not is_there]
        if lost:
            raise PreparedLoadLost(
                "Staged files do not exist.", hint="The job loads them again automatically.", labels=lost
            )
        schema, started = delta_tables.arrow_schema(found), time.monotonic()
        try:
            load = MergeLoad([self._staging.path(one) for one in loads], key, threads)
            if load.key_bytes > self._memory_bytes:
                raise SinkLimitExceeded(
                    f"The keys of one checkpoint need {load.key_bytes >> 20} MiB during the merge.",
                    hint="Increase `memory.merge`, or decrease `commit.max_rows` if transactions are small enough.",
                    table=table,
                )
            # no name is used twice, so a file that a frozen process is about to delete never becomes part of the table
            name = f"part-{label_for(loads[0].name)}-{uuid.uuid4().hex[:16]}"
            with_vectors = self._compactions.merges_with_vectors(found)
            merge = (VectorMerge if with_vectors else Merge)(folder, schema, load, table_files(found, key), name)
            if isinstance(merge, VectorMerge):
                merge.executors = self.executors
            actions = merge.actions(self._threads)
            self._ownership.check(mark)
            marks = transactions(found, table, mark)
            self._logs.append(found, folder, actions, mark_to_json(mark), marks, version=version)
        except OSError as error:
            raise unavailable(error, folder) from error
        if with_vectors:  # it only removes files without rows
            self._compactions.note_emptied(table, [one.path for one in actions if isinstance(one, RemovedFile)])
        logger.debug("merged %s rows into %s in %.3f s", load.row_count, table, time.monotonic() - started)
