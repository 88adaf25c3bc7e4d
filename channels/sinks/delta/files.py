"""Parquet files of the Delta sink: durable writes on executors and in merges, and statistics for the log."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from cdc.errors import SinkUnavailable
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.schema import DELETED
from channels.sinks.base import TargetTable
from channels.sinks.delta.object_path import ObjectPath, first_line
from channels.sinks.delta.storage import StorePath, make_folder, relative, sync_path
from channels.sinks.labels import label_for, label_prefix
from channels.sinks.null_checks import check_nulls

STAGING = "_cdc_staging"
_GROUP_ROWS, _GROUP_BYTES = 1 << 17, 32 << 20  # largest row group: a merge reads one at a time
_LONGEST_BOUND = 256  # characters of text bounds in the statistics of the log
_NUMBER = re.compile(r"\(os error (\d+)\)")  # of an error of the operating system in the text of deltalake's errors


class _Rooted(Protocol):
    @property
    def root(self) -> StorePath: ...


_P = ParamSpec("_P")
_R = TypeVar("_R")
_Sink = TypeVar("_Sink", bound=_Rooted)


def write_parquet(path: StorePath, schema: pa.Schema, tables: Iterator[pa.Table]) -> pq.FileMetaData:
    """Write ``tables`` to ``path`` durably, and return the footer.

    Raises: SinkUnavailable - disk full, no permission, the folder does not exist. Never: creates a folder.
    """
    found: list[pq.FileMetaData] = []
    # under a temporary name: an existing file at ``path`` may be part of a table by a hard link
    try:
        if isinstance(path, ObjectPath):
            path.put(_parquet(schema, tables, found))
            return found[0]
        growing = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            with growing.open("wb") as file:
                _write_groups(file, schema, tables, found)
                file.flush()
                os.fsync(file.fileno())
            growing.replace(path)
        finally:
            growing.unlink(missing_ok=True)
        sync_path(path.parent)
    except OSError as error:
        raise unavailable(error, path) from error
    return found[0]


def _parquet(schema: pa.Schema, tables: Iterator[pa.Table], found: list[pq.FileMetaData]) -> memoryview:
    content = pa.BufferOutputStream()
    _write_groups(content, schema, tables, found)
    return memoryview(content.getvalue()).cast("B")  # obstore accepts unsigned bytes only


def _write_groups(file: Any, schema: pa.Schema, tables: Iterator[pa.Table], found: list[pq.FileMetaData]) -> None:
    # no dictionaries and a fast codec: files are often rewritten soon, and CPU costs more than disk
    options: dict[str, Any] = {"compression": "snappy", "use_dictionary": False, "store_schema": False}
    with pq.ParquetWriter(file, schema, metadata_collector=found, **options) as writer:
        # without it, Spark 3 refuses dates before 1582, because their calendar depends on the writer
        writer.add_key_value_metadata({"org.apache.spark.version": "4.0.0"})
        for table in tables:
            batch_rows = table.num_rows * _GROUP_BYTES // max(1, table.nbytes)
            writer.write_table(table, row_group_size=max(1, min(_GROUP_ROWS, batch_rows)))


def unavailable(error: OSError, path: StorePath) -> SinkUnavailable:
    """Return the error of the job for an error of the file system."""
    if isinstance(path, ObjectPath):
        return _store_unavailable(error, path)
    match = _NUMBER.search(str(error))
    number = int(match[1]) if error.errno is None and match else error.errno
    if number in (errno.ENOSPC, errno.EDQUOT):
        hint = f"Free space on the file system of {path.parent}; the job then continues automatically."
        return SinkUnavailable("The disk of the Delta tables is full.", hint=hint, path=path)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = f"Give this user write permission to {path.parent}; the job then continues automatically."
        return SinkUnavailable("The folder of the Delta tables cannot be written.", hint=hint, path=path)
    missing = [folder for folder in path.parents if not folder.is_dir()] if number == errno.ENOENT else []
    if missing:
        return folder_missing(missing[-1])
    hint = f"Check the file system of {path.parent}; the job then continues automatically."
    return SinkUnavailable(f"A file of a Delta table cannot be read or written: {error}.", hint=hint, path=path)


def _store_unavailable(error: OSError, path: ObjectPath) -> SinkUnavailable:
    if isinstance(error, PermissionError):
        hint = "Check `sink.storage` and the rights of this key or role; the job then continues automatically."
        problem = f"The object store refuses the access: {error.strerror}."
        return SinkUnavailable(problem, hint=hint, path=path)
    hint = "Check the object store and the network; the job then continues automatically."
    problem = f"An object of a Delta table cannot be read or written: {error.strerror or error}."
    return SinkUnavailable(problem, hint=hint, path=path)


def guarded(method: Callable[Concatenate[_Sink, _P], _R]) -> Callable[Concatenate[_Sink, _P], _R]:
    """Raise errors of an object store as SinkUnavailable. Each request can fail there, also a short one."""

    @functools.wraps(method)
    def call(self: _Sink, /, *args: _P.args, **options: _P.kwargs) -> _R:
        try:
            return method(self, *args, **options)
        except (OSError, DeltaError) as error:
            if not isinstance(self.root, ObjectPath):
                raise
            known = error if isinstance(error, OSError) else OSError(first_line(error))
            raise unavailable(known, self.root) from error

    return call


def folder_missing(folder: StorePath) -> SinkUnavailable:
    """Return the error for a folder that the job has written and that no longer exists."""
    if isinstance(folder, ObjectPath):
        return SinkUnavailable(
            "The marker of the Delta tables does not exist in the object store any more.",
            hint="Restore the objects below this path; the job then continues automatically.",
            path=folder,
        )
    return SinkUnavailable(
        "The folder of the Delta tables does not exist, or its file system is not mounted.",
        hint="Restore or mount it; the job then continues automatically.",
        path=folder,
    )


def unpacked_bytes(footer: pq.FileMetaData) -> int:
    """Return about how many bytes the rows of a file need in memory. On disk they can be far fewer."""
    return sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))


def statistics(footer: pq.FileMetaData, text_columns: Sequence[str] = ()) -> str:
    """Return row count and bounds of the columns from the footer of a file, in the form of the Delta log.

    Of text columns only ``text_columns``, the key, have bounds: merges use them to skip files.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(footer.num_columns):
        groups = [footer.row_group(group).column(number) for group in range(footer.num_row_groups)]
        if not groups or "." in groups[0].path_in_schema:
            continue
        name = groups[0].path_in_schema
        try:
            found = [group.statistics for group in groups]
            if any(one is None or one.null_count is None for one in found):
                continue
            nulls[name] = sum(one.null_count for one in found)
            bounded = [one for one, group in zip(found, groups, strict=True) if one.null_count < group.num_values]
            if not bounded or not all(one.has_min_max for one in bounded):
                continue
            first, last = min(one.min for one in bounded), max(one.max for one in bounded)
        except (NotImplementedError, OverflowError, ValueError, pa.ArrowException):
            continue  # Python cannot represent the bound (year 0000, some decimals), so omit it
        first, last = _bound(first, name in text_columns), _bound(last, name in text_columns)
        if first is not None and last is not None:
            low[name], high[name] = first, last
    entry = {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return json.dumps(entry, ensure_ascii=False)  # deltalake decodes JSON escapes of characters beyond U+FFFF wrongly


def _bound(value: Any, text: bool) -> Any:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else None
    if isinstance(value, datetime):
        zone = "Z" if value.tzinfo is not None else ""
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if text and len(value) <= _LONGEST_BOUND else None
    return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class StagedFileWriter:
    """Writes a part as one Parquet file below ``_cdc_staging/``, on an executor.

    The file has the columns of the target, and ``__deleted`` if the part has deletes.
    """

    root: str
    token: str  # file that the driver created in the staging folder: an executor that sees it has the same file system
    table: TargetTable
    host: str  # of the driver
    umask: int  # of the driver: executors of a cluster may have another one

    def __call__(self, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        """See ``channels.sinks.base.PartWriter``."""
        os.umask(self.umask)
        table = pa.Table.from_batches(rows)
        if not table.num_rows:
            return None
        staging = Path(self.root) / STAGING
        if not (staging / self.token).exists():
            raise self._unseen()
        return stage(Path(self.root), name, self.table, table)

    def _unseen(self) -> SinkUnavailable:
        """Return the error of an executor that does not see the driver's file.

        The job retries, and its next run checks on the host of the driver whether the folder exists.
        """
        host, root = os.uname().nodename, Path(self.root)
        if host == self.host and not (root / STAGING).is_dir():
            return folder_missing(root)
        return SinkUnavailable(
            f"The executor on host {host} does not see the folder of the Delta tables of host {self.host}.",
            hint="If the folder was moved or is not mounted, restore it; the job then continues automatically. "
            "Otherwise set `sink.path` to a folder that all executors share, or run on `local[*]`.",
            path=self.root,
        )


@dataclass(frozen=True, slots=True)
class StagedObjectWriter:
    """Writes one part of a load to an object store, from the executor."""

    root: ObjectPath
    table: TargetTable

    def __call__(self, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        """See ``channels.sinks.base.PartWriter``."""
        table = pa.Table.from_batches(rows)
        return stage(self.root, name, self.table, table) if table.num_rows else None


def stage(root: StorePath, name: LoadName, target: TargetTable, rows: pa.Table) -> PreparedLoad:
    """Write ``rows``, a part of a load, durably below ``root``. Raises: LoadRejected, SinkUnavailable."""
    staging, deleted = root / STAGING, rows.column(DELETED)
    delete_count = pc.sum(deleted).as_py()
    check_nulls(target, rows)
    schema = pa.schema([pa.field(column.name, column.arrow) for column in target.columns])
    data = rows.select(schema.names).cast(schema)
    if delete_count:
        data = data.append_column(DELETED, deleted)
    folder = staging / label_prefix(name.job, name.incarnation, name.fence, name.checkpoint).rstrip("-")
    path = folder / f"{label_for(name)}.parquet"
    try:
        if isinstance(path, ObjectPath):
            content = _parquet(data.schema, iter([data]), [])
            # named by its content: a late attempt with other rows does not replace the object that a commit reads
            path = path.parent / f"{label_for(name)}.{hashlib.sha256(content).hexdigest()[:32]}.parquet"
            path.put(content)
            size = len(content)
        else:
            make_folder(folder, staging)
            write_parquet(path, data.schema, iter([data]))
            size = path.stat().st_size
    except OSError as error:
        raise unavailable(error, path) from error
    detail = {"file": relative(path, root), "size": size, "deletes": delete_count}
    return PreparedLoad(name, target.name, rows.num_rows, rows.nbytes, detail)


def now_ms() -> int:
    """Return the time in milliseconds since 1970, as in the Delta log."""
    return time.time_ns() // 1_000_000
