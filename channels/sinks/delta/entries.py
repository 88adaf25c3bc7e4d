"""Entries of the Delta log with deletion vectors, which deltalake can read but not write.

A RemoveAction of deltalake 1.6 has no vector. Its entry does not remove a file that has one, so the old rows would stay
beside those that replace them. Therefore all entries that remove files of such a table are written here.

Paths are URI-encoded in the log. deltalake compares them as text, so an entry that removes a file repeats its path as
the log has it: writers encode different characters.

Source: the Delta protocol, "Add File and Remove File", "Action Reconciliation", "Deletion Vectors", "Checkpoints".
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Schema
from deltalake.transaction import AddAction

from channels.sinks.delta.files import now_ms, unavailable
from channels.sinks.delta.object_path import ObjectPath
from channels.sinks.delta.storage import ObjectTable, StorePath, open_parquet, put_if_absent
from channels.sinks.delta.vectors import Vector

FEATURE = "deletionVectors"
ENABLED = "delta.enableDeletionVectors"
_LOG = "_delta_log"
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet", re.ASCII)
_SAFE = "/!$&'()*+,;=:@~-._"  # characters of a path that the log has unchanged
Line = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MarkedFile:
    """A data file whose deleted rows change, or a new one that has deleted rows."""

    path: str
    size: int
    vector: Vector
    stats: str  # of all rows; see ``loose``
    data_change: bool = True
    logged: str | None = None  # its path as the log has it; None: a new file


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A data file that is no longer part of the table."""

    path: str
    size: int
    logged: str  # its path as the log has it
    data_change: bool = True


Action = AddAction | RemovedFile | MarkedFile


def has_vectors(found: DeltaTable) -> bool:
    """Return whether files of the table can have deletion vectors."""
    return FEATURE in (found.protocol().reader_features or ())


def writes_vectors(found: DeltaTable) -> bool:
    """Return whether the owner of the table allows new deletion vectors."""
    return has_vectors(found) and found.metadata().configuration.get(ENABLED, "false").lower() == "true"


def folder_of(found: DeltaTable) -> StorePath:
    """Return the folder of the table."""
    if isinstance(found, ObjectTable):
        return found.folder
    return Path(unquote(urlsplit(found.table_uri).path))


def loose(stats: str) -> str:
    """Return statistics of all rows as those of a file with deleted rows: the others may have closer bounds."""
    return json.dumps({**json.loads(stats), "tightBounds": False}, ensure_ascii=False)


def history(found: DeltaTable, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the commit information of the newest ``limit`` versions that the log has, the newest first.

    ``DeltaTable.history`` blocks all threads of Python while it waits for an object store.
    Raises: OSError, DeltaError.
    """
    if not isinstance(found, ObjectTable):
        yield from found.history(limit)
        return
    log, version = found.folder / _LOG, found.version()
    for number in range(version, -1 if limit is None else max(-1, version - limit), -1):
        try:
            lines = list(_lines(_entry(log, number).read_bytes()))
        except FileNotFoundError:
            return  # it has expired
        yield from (line["commitInfo"] for line in lines if "commitInfo" in line)


def newest_commit(found: DeltaTable) -> dict[str, Any]:
    """Return the commit information of the newest version. Raises: OSError, DeltaError."""
    return next(history(found, 1), {})


def count_of(actions: Sequence[Action]) -> int:
    """Return how many files the entry with ``actions`` adds and removes: a marked file that is not new is both."""
    return len(actions) + sum(isinstance(action, MarkedFile) and action.logged is not None for action in actions)


def file_vectors(found: DeltaTable) -> Mapping[str, Vector]:
    """Return the deletion vector of each file that has one, by path, in the version of ``found``.

    The result of the newest call is kept for each table, so that the next call reads only later entries.
    Raises: SinkUnavailable - an entry of the log is missing.
    """
    try:
        return _LOGS.read(found) if has_vectors(found) else {}
    except OSError as error:
        raise unavailable(error, folder_of(found) / _LOG) from error


@dataclass(frozen=True, slots=True)
class _State:
    table: str  # its id
    version: int
    entry: tuple[object, ...] | None  # of its file: a restored table can have other entries with the same numbers
    vectors: dict[str, Vector]


class _Logs:
    """The vectors of tables at their last read version. Calls: any thread."""

    def __init__(self) -> None:
        self._states: dict[StorePath, _State] = {}
        self._lock = threading.Lock()

    def read(self, found: DeltaTable) -> Mapping[str, Vector]:
        log, version, table = folder_of(found) / _LOG, found.version(), str(found.metadata().id)
        with self._lock:
            known = self._states.get(log)
        if known is None or known.table != table or known.version > version or not _is_same(log, known):
            vectors, first = _from_checkpoint(log, version)
        else:
            vectors, first = dict(known.vectors), known.version + 1
        try:
            for number in range(first, version + 1):
                _replay(_lines(_entry(log, number).read_bytes()), vectors)
        except FileNotFoundError:
            if known is None:
                raise
            with self._lock:
                self._states.pop(log, None)  # a checkpoint may have replaced the entry
            return self.read(found)
        state = _State(table, version, _file_state(_entry(log, version)), vectors)  # can be a request to a store
        with self._lock:
            self._states[log] = state
        return vectors


_LOGS = _Logs()


def _is_same(log: StorePath, known: _State) -> bool:
    return known.entry is not None and _file_state(_entry(log, known.version)) == known.entry


def _file_state(path: StorePath) -> tuple[object, ...] | None:
    """Return inode, size and time of a file; None if it does not exist: a checkpoint has replaced it."""
    try:
        if isinstance(path, ObjectPath):
            return tuple(path.stat().version.values())
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _entry(log: StorePath, version: int) -> StorePath:
    return log / f"{version:020}.json"


def newest_checkpoint(log: StorePath, upto: int | None = None) -> tuple[list[StorePath], int]:
    """Return the files of the newest complete checkpoint, up to the version ``upto``, and its version; [] and -1.

    Other writers divide a large checkpoint into several files, and may be writing them now.
    """
    parts: dict[tuple[int, int], list[StorePath]] = {}  # by version and number of files
    for path in log.glob("[0-9]*.checkpoint*.parquet"):
        if (match := _CHECKPOINT.fullmatch(path.name)) and (upto is None or int(match[1]) <= upto):
            parts.setdefault((int(match[1]), int(match[2] or 1)), []).append(path)
    version, count = max((one for one, files in parts.items() if len(files) == one[1]), default=(-1, 0))
    return parts.get((version, count), []), version


def _from_checkpoint(log: StorePath, version: int) -> tuple[dict[str, Vector], int]:
    """Return the vectors in the newest complete checkpoint up to ``version``, and the version after it."""
    files, number = newest_checkpoint(log, version)
    vectors: dict[str, Vector] = {}
    for path in files:
        with open_parquet(path) as file:
            table = file.read(["add.path", "add.deletionVector"])
        for add in table.column("add").drop_null().to_pylist():
            _replay([{"add": add}], vectors)
    return vectors, number + 1


def _lines(content: bytes) -> Iterator[Line]:
    return (json.loads(line) for line in content.split(b"\n") if line)


def _replay(lines: Iterator[Line] | Sequence[Line], vectors: dict[str, Vector]) -> None:
    """Apply the actions of one version. Within an entry the order of actions has no meaning: an add is the result."""
    added: dict[str, Vector | None] = {}
    for line in lines:
        for action in ("add", "remove"):
            file = line.get(action)
            if file is None or file.get("path") is None:
                continue
            path, vector = unquote(file["path"]), file.get("deletionVector")
            one = Vector.from_json(vector) if vector and vector.get("storageType") else None
            if action == "add":
                added[path] = one
            elif vectors.get(path) == one:  # readers ignore the removal of a file with another vector
                vectors.pop(path, None)
    for path, one in added.items():
        vectors.pop(path, None)
        if one is not None:
            vectors[path] = one


def write_entry(
    found: DeltaTable,
    version: int,
    actions: Sequence[Action],
    properties: CommitProperties,
    schema: Schema | None = None,
) -> None:
    """Commit ``actions`` as the next version after ``version``. ``properties``: transactions and metadata of the entry.

    ``schema``: new columns of the table. Raises: CommitFailedError - another writer has committed meanwhile; OSError.
    """
    vectors = file_vectors(found)
    lines: list[Line] = [
        {"txn": {"appId": one.app_id, "version": one.version, "lastUpdated": now_ms()}}
        for one in properties.app_transactions or ()
    ]
    if schema is not None:
        lines.append(_metadata_line(found, schema, {}))
    for action in actions:
        lines += _file_lines(action, vectors.get(action.path))
    marks = any(isinstance(action, MarkedFile) for action in actions)
    put_entry(found, version, "MERGE" if marks else "WRITE", lines, properties.custom_metadata or {})


def _file_lines(action: Action, old: Vector | None) -> Iterator[Line]:
    logged = None if isinstance(action, AddAction) else action.logged
    path = quote(action.path, safe=_SAFE) if logged is None else logged
    common: dict[str, Any] = {"partitionValues": {}, "size": action.size}
    if logged is not None:
        removed = {"path": path, "deletionTimestamp": now_ms(), "dataChange": action.data_change}
        named = {"deletionVector": old.to_json()} if old is not None else {}
        yield {"remove": {**removed, "extendedFileMetadata": True, **common, **named}}
    if not isinstance(action, RemovedFile):
        added = {"path": path, **common, "modificationTime": now_ms(), "dataChange": action.data_change}
        new = {"deletionVector": action.vector.to_json()} if isinstance(action, MarkedFile) else {}
        yield {"add": {**added, "stats": action.stats, **new}}


def _metadata_line(found: DeltaTable, schema: Schema, more: Mapping[str, str]) -> Line:
    """Return the metadata of the table with the columns of ``schema`` and ``more`` properties."""
    metadata = found.metadata()
    return {
        "metaData": {
            "id": str(metadata.id),
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema.to_json(),
            "partitionColumns": metadata.partition_columns,
            "createdTime": metadata.created_time,
            "configuration": {**metadata.configuration, **more},
        }
    }


def enable_vectors(found: DeltaTable) -> None:
    """Allow deletion vectors in the table. deltalake would add the feature ``variantType`` as well.

    Raises: CommitFailedError, OSError.
    """
    version, protocol = found.version(), found.protocol()
    readers = {*(protocol.reader_features or ()), FEATURE}
    # a writer of version 2 supports these two
    writers = {*(protocol.writer_features or ("appendOnly",)), "invariants", FEATURE}
    lines: list[Line] = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": sorted(readers),
                "writerFeatures": sorted(writers),
            }
        },
        _metadata_line(found, found.schema(), {ENABLED: "true"}),
    ]
    put_entry(found, version, "SET TBLPROPERTIES", lines, {})


def put_entry(
    found: DeltaTable, version: int, operation: str, lines: Sequence[Line], metadata: Mapping[str, Any]
) -> None:
    """Write the next entry after ``version``, unless the log has one with this number.

    A lost answer is decided by the content of the log: each entry has its own id.
    Raises: CommitFailedError - another writer has written this version; OSError.
    """
    log = folder_of(found) / _LOG
    information = {"timestamp": now_ms(), "operation": operation, "operationParameters": {}, "txnId": str(uuid.uuid4())}
    entries = [{"commitInfo": {**information, "engineInfo": "spark-binlog-load", **metadata}}, *lines]
    # deltalake decodes JSON escapes of characters beyond U+FFFF wrongly
    content = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in entries)
    try:
        put_if_absent(_entry(log, version + 1), content)
    except FileExistsError as error:
        raise CommitFailedError(f"version {version + 1} exists in {log}") from error
