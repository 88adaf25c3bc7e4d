"""The Delta tables that channels map to: comparison with their mapping, creation, and stored types."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import CommitFailedError

from channels.sinks.base import Finding, TargetTable
from channels.sinks.delta import table as delta_tables
from channels.sinks.delta.commits import add_features, refuse
from channels.sinks.delta.compaction import MergeMode
from channels.sinks.delta.entries import ENABLED, enable_vectors
from channels.sinks.delta.files import unavailable
from channels.sinks.delta.log import LOG, DurableLogs, truncated_entries
from channels.sinks.delta.object_path import ObjectPath
from channels.sinks.delta.open_tables import OpenTables
from channels.sinks.delta.roots import has_foreign_files
from channels.sinks.delta.storage import StorePath, make_folder, sync_path
from channels.sinks.delta.table_paths import refuse_shared, table_uri


class DeltaTargets:
    """The tables of one sink, compared with the mappings of its channels."""

    def __init__(
        self,
        root: StorePath,
        tables: OpenTables,
        folder: Callable[[str], StorePath],
        logs: DurableLogs,
        *,
        create: bool,
        retention_s: float,
        merge: MergeMode,
    ) -> None:
        """``create``, ``retention_s`` and ``merge``: see ``DeltaSink``."""
        self._root = root
        self._tables = tables
        self._folder = folder
        self._logs = logs
        self._create_tables = create
        self._retention_s = retention_s
        self._with_vectors = merge == "deletion_vectors"
        self._met: dict[str, tuple[TargetTable, TargetTable]] = {}  # last mapping that matched, and with stored types

    def ensure(self, table: TargetTable) -> None:
        """See ``Sink.ensure_table``."""
        folder, found = self._folder(table.name), self._tables.open(table.name)
        refuse(table.name, folder, self._findings(table, folder, found))
        refuse_shared(table.name, folder, map(self._folder, self._tables.with_log_of(table.name)))
        if found is None:
            if self._tables.is_known(table.name):
                raise self._tables.missing_error(table.name)
            self._create(table, folder)
            found = self._tables.open(table.name)
        if self._with_vectors and found is not None and delta_tables.awaits_vectors(found):
            self._enable_vectors(found, folder)
            found = self._tables.open(table.name)
        if found is not None and delta_tables.lacks_invariants(found):
            add_features(found, folder, self._logs, [TableFeatures.Invariants])
        self._note_met(table, found)

    def _create(self, table: TargetTable, folder: StorePath) -> None:
        requested = delta_tables.VECTORS_REQUESTED if self._with_vectors else {}
        try:
            make_folder(folder, self._root)
            DeltaTable.create(
                table_uri(folder),
                delta_tables.delta_schema(table),
                name=table.name,
                description=table.comment or None,
                configuration={**delta_tables.properties(table, self._retention_s), **requested},
                raise_if_key_not_exists=False,
                storage_options=folder.store.delta_options if isinstance(folder, ObjectPath) else None,
            )
            self._logs.sync(folder, 0)
            sync_path(folder)
        except OSError as error:
            raise unavailable(error, folder / LOG) from error

    def _enable_vectors(self, found: DeltaTable, folder: StorePath) -> None:
        """Let a table without rows have deletion vectors, also one whose creation by this sink was interrupted."""
        try:
            with suppress(CommitFailedError):  # another job has changed the table since; a later start decides again
                enable_vectors(found)
            self._logs.sync(folder, found.version())
        except OSError as error:
            raise unavailable(error, folder / LOG) from error

    def describe(self, table: TargetTable) -> tuple[Finding, ...]:
        """See ``Sink``."""
        return self._findings(table, self._folder(table.name), self._tables.open(table.name))

    def _findings(self, table: TargetTable, folder: StorePath, found: DeltaTable | None) -> tuple[Finding, ...]:
        if found is None and has_foreign_files(folder, LOG):
            return (
                Finding(
                    f"The folder of target {table.name} has files, but no Delta table: {folder}.",
                    "Give the channel another `target`, or move the files away.",
                ),
            )
        if found is None and self._create_tables:
            return ()  # it is created when its first rows arrive
        if found is None:
            return (
                Finding(
                    f"The table {table.name} does not exist at {folder}.",
                    "Set `sink.create_tables: true`, or create it: `cdc ddl` prints the statement.",
                ),
            )
        kept = delta_tables.log_findings(found, table, self._retention_s)
        way = delta_tables.merge_findings(found, table) if self._with_vectors else ()
        return (*delta_tables.differences(found, table), *kept, *way)

    def check(self, table: TargetTable) -> Iterable[Finding]:
        """Return what ``describe`` finds, or that the log of the table has incomplete files."""
        cut = list(truncated_entries(self._folder(table.name) / LOG))
        if not cut:
            return self.describe(table)
        names = ", ".join(path.name for path in cut)
        return [
            Finding(
                f"The log of Delta table {table.name} has incomplete files: {names}.",
                "No action is needed: they have no committed data, and the next start renames them.",
                fatal=False,
            )
        ]

    def ddl(self, table: TargetTable) -> str:
        """See ``Sink``."""
        options = {ENABLED: "true"} if self._with_vectors else {}
        return delta_tables.create_table(table, self._folder(table.name), self._retention_s, options)

    def with_stored_types(self, table: TargetTable) -> TargetTable:
        """Return the mapping with the types that the table has. Raises: TargetMismatch - new columns do not match."""
        if self._met.get(table.name, (None,))[0] != table:
            found = self._tables.open(table.name, fresh=True)
            refuse(
                table.name,
                self._folder(table.name),
                delta_tables.differences(found, table) if found is not None else (),
            )
            self._note_met(table, found)
        return self._met[table.name][1]

    def _note_met(self, table: TargetTable, found: DeltaTable | None) -> None:
        stored = table if found is None else delta_tables.with_stored_types(found, table)
        self._met[table.name] = (table, stored)

    def forget(self, name: str) -> None:
        """Compare the next mapping of a table again: its columns are about to change."""
        self._met.pop(name, None)
