"""Change the columns of a Delta table: all steps of a change become visible in one commit.

Columns that are added without a value, or made nullable, change only the metadata. All other steps write each data file
again, with the new columns, or remove all data files (TRUNCATE). Column mapping is not used, because pyarrow readers
return NULL for such columns.
A column is never dropped by metadata alone, because old values would be visible if its name is added again.

Source: the Delta protocol, "Change Metadata", "Transaction Identifiers"; docs/explanation/schema-changes.md.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, TableFeatures
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field, PrimitiveType
from deltalake.schema import Schema as DeltaSchema
from deltalake.transaction import AddAction

from cdc.errors import SinkUnavailable, TargetMismatch
from channels.sinks.alter_plan import AlterPlan, PlannedColumn, alter_plan
from channels.sinks.base import AlterStep, Finding, SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta import table as delta_tables
from channels.sinks.delta.commits import add_features
from channels.sinks.delta.entries import Action
from channels.sinks.delta.fence import transactions
from channels.sinks.delta.files import unavailable
from channels.sinks.delta.log import NO_HOOKS, DurableLogs
from channels.sinks.delta.merge import write_files
from channels.sinks.delta.open_tables import OpenTables
from channels.sinks.delta.ownership import Ownership
from channels.sinks.delta.sink_checkpoint import mark_to_json
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table_files import TableFile, live_tables, table_files

logger = logging.getLogger(__name__)


class DeltaAlterer:
    """Alters the tables of one sink. See ``channels.sinks.base.TableAlterer``."""

    def __init__(
        self,
        tables: OpenTables,
        folder_of: Callable[[str], StorePath],
        logs: DurableLogs,
        ownership: Ownership,
        threads: Executor,
    ) -> None:
        """``threads``: rewrite data files, each thread one at a time."""
        self._tables = tables
        self._folder_of = folder_of
        self._logs = logs
        self._ownership = ownership
        self._threads = threads
        self._stopped = threading.Event()
        self.progress: float | None = None  # of the rewrite that runs

    def check(self, table: TargetTable, steps: Sequence[AlterStep]) -> tuple[Finding, ...]:
        """See ``TableAlterer.check_steps``. Reads the log only."""
        found = self._tables.open(table.name)
        if found is None:
            return ()  # it is created with the columns after the steps
        try:
            plan = _plan(found, table.name, steps)
        except TargetMismatch as error:
            return (*delta_tables.unwritable(found), Finding(error.message, error.hint))
        costs = () if plan.empties else _costs(plan, table.name, table_files(found, ()))
        return (*delta_tables.unwritable(found), *costs)

    def alter(
        self, found: DeltaTable, version: int, table: TargetTable, steps: Sequence[AlterStep], mark: SinkCheckpoint
    ) -> None:
        """Commit ``steps`` to ``found`` as the next version after ``version``.

        Raises: CommitFailedError; see ``TableAlterer.alter``.
        """
        folder, started = self._folder_of(table.name), time.monotonic()
        self._refuse_stopped(folder)
        found = self._own_handle(version, table.name)
        plan = _plan(found, table.name, steps)
        files = table_files(found, _key(found))
        schema = _schema(found, plan)
        try:
            self._check_filled(plan, found, folder, table.name, files)
            if _lacks_timestamps(found, schema):
                features = [TableFeatures.TimestampWithoutTimezone, TableFeatures.Invariants]
                add_features(found, folder, self._logs, features)
                if found.version() != version + 1:
                    raise CommitFailedError(f"another writer has committed version {version + 1} of {folder}")
            if plan.rewrites:
                self._rewrite(found, table.name, plan, schema, files, mark)
            else:
                self._change_metadata(found, table.name, schema, mark)
        except OSError as error:
            raise unavailable(error, folder) from error
        verb = "removed" if plan.empties else "rewrote" if plan.rewrites else "changed the metadata of"
        logger.info("altered %s: %s %d files in %.3f s", table.name, verb, len(files), time.monotonic() - started)

    def _own_handle(self, version: int, table: str) -> DeltaTable:
        """Return a handle of ``version`` that no other thread updates.

        Files are written for minutes. A thread that only reads would meanwhile update the shared handle to the entry
        of another writer, and this commit would replace files that it has not read.
        """
        own = self._tables.open(table, fresh=True)
        if own is None or own.version() != version:
            raise CommitFailedError(f"another writer has changed {table}")
        return own

    def begin_run(self) -> None:
        """Forget the ``stop`` of an earlier run. ``alter`` does not: a stop can come just before it."""
        self._stopped.clear()

    def stop(self) -> None:
        """Stop ``alter``, now or at its next call, before its next data file: it raises SinkUnavailable.

        Calls: any thread.
        """
        self._stopped.set()

    def _refuse_stopped(self, folder: StorePath) -> None:
        if self._stopped.is_set():
            raise SinkUnavailable(
                "The change of the table was stopped. Nothing of it is visible.",
                hint="No action is needed: the next run of the job does it again.",
                path=folder,
            )

    def _check_filled(
        self, plan: AlterPlan, found: DeltaTable, folder: StorePath, table: str, files: Sequence[TableFile]
    ) -> None:
        if not plan.filled:
            return
        known = {field.name: field for field in delta_tables.arrow_schema(found)}
        schema = pa.schema([known[name] for name in dict(plan.filled)])
        for file in files:
            self._refuse_stopped(folder)
            for rows in live_tables(folder, file, schema):
                plan.check_filled(table, rows)

    def _change_metadata(self, found: DeltaTable, table: str, schema: DeltaSchema, mark: SinkCheckpoint) -> None:
        """Commit the new columns without files. A step that is done already commits only ``mark``."""
        folder, text = self._folder_of(table), mark_to_json(mark)
        old = {field.name: field for field in found.schema().fields}
        # deltalake adds the missing fields, and an existing one becomes nullable by a nullable field of its name
        fields = [field for field in schema.fields if old.get(field.name) != field]
        self._ownership.check(mark)
        marks = transactions(found, table, mark)

        def write(properties: CommitProperties) -> None:
            found.alter.add_columns(fields, commit_properties=properties, post_commithook_properties=NO_HOOKS)

        if fields:
            self._logs.commit(found, folder, write, 0, text, marks)
        else:
            self._logs.append(found, folder, [], text, marks, version=found.version())

    def _rewrite(
        self,
        found: DeltaTable,
        table: str,
        plan: AlterPlan,
        schema: DeltaSchema,
        files: Sequence[TableFile],
        mark: SinkCheckpoint,
    ) -> None:
        """Write all rows again, and commit the new files, the removal of the old ones and the columns together."""
        folder = self._folder_of(table)
        old, new = delta_tables.arrow_schema(found), _arrow(schema)
        key, name = _key(found), f"part-{uuid.uuid4().hex}"

        def rewritten(number: int) -> list[AddAction]:
            self._refuse_stopped(folder)
            found = live_tables(folder, files[number], old)
            rows = (part for group in found for part in plan.rows(group, new))
            return write_files(rows, folder, f"{name}-{number}", new, key)

        rewrites = files[:0] if plan.empties else files
        # deltalake would remove files by paths that it encodes itself, which may not be those of the log
        actions, done = list[Action](file.removal() for file in files), 0
        size = sum(file.size for file in rewrites)
        try:
            self.progress = 0.0
            for file, written in zip(rewrites, self._threads.map(rewritten, range(len(rewrites))), strict=True):
                actions += written
                done += file.size
                self.progress = done / size if size else 1.0
        finally:
            self.progress = None

        self._ownership.check(mark)
        text, marks = mark_to_json(mark), transactions(found, table, mark)
        self._logs.append(found, folder, actions, text, marks, version=found.version(), schema=schema)


def _plan(found: DeltaTable, table: str, steps: Sequence[AlterStep]) -> AlterPlan:
    types = delta_tables.arrow_schema(found).types
    fields = found.schema().fields
    columns = [TargetColumn(one.name, kind, one.nullable) for one, kind in zip(fields, types, strict=True)]
    return alter_plan(table, columns, _key(found), steps)


def _key(found: DeltaTable) -> list[str]:
    key: list[str] = json.loads(found.metadata().configuration.get("cdc.key", "[]"))
    return key


def _costs(plan: AlterPlan, table: str, files: Sequence[TableFile]) -> Iterator[Finding]:
    if plan.rewrites:
        rows, size = sum(file.rows for file in files), sum(file.size for file in files)
        yield Finding(
            f"The change writes all rows of {table} again: {rows} rows, {size} bytes.",
            "No action is needed. Readers see the old table until the change is complete.",
            fatal=False,
        )


def _schema(found: DeltaTable, plan: AlterPlan) -> DeltaSchema:
    """Return the columns after the steps. Those that exist keep their metadata, for example their comment."""
    old = {field.name: field for field in found.schema().fields}
    return DeltaSchema([_field(one, old) for one in plan.columns])


def _field(one: PlannedColumn, old: dict[str, Field]) -> Field:
    new = delta_tables.delta_field(one.column)
    if one.source is None:
        return new
    return Field(new.name, new.type, nullable=new.nullable, metadata=old[one.source].metadata)


def _arrow(schema: DeltaSchema) -> pa.Schema:
    return delta_tables.plain_schema(pa.schema(schema.to_arrow()))


def _lacks_timestamps(found: DeltaTable, schema: DeltaSchema) -> bool:
    """Return whether ``schema`` needs the feature of timestamps without zone, and the table does not have it."""
    needs = any(field.type == PrimitiveType("timestamp_ntz") for field in schema.fields)
    return needs and "timestampNtz" not in (found.protocol().writer_features or ())
