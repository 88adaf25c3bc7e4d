"""Parquet files of the Delta sink: durable writes on executors and in merges, and statistics for the log."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc.errors import SinkUnavailable
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.schema import DELETED
from channels.sinks.base import TargetTable
from channels.sinks.labels import label_for, label_prefix
from channels.sinks.null_checks import check_nulls

STAGING = "_cdc_staging"
_GROUP_ROWS, _GROUP_BYTES = 1 << 17, 32 << 20  # largest row group: a merge reads one at a time
_LONGEST_BOUND = 256  # characters of text bounds in the statistics of the log
_NUMBER = re.compile(r"\(os error (\d+)\)")  # of an error of the operating system in the text of deltalake's errors


def write_parquet(path: Path, schema: pa.Schema, tables: Iterator[pa.Table]) -> pq.FileMetaData:
    """Write ``tables`` to ``path`` durably, and return the footer.

    Raises: SinkUnavailable - disk full, no permission, the folder does not exist. Never: creates a folder.
    """
    found: list[pq.FileMetaData] = []
    # under a temporary name: an existing file at ``path`` may be part of a table by a hard link
    growing = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        try:
            with growing.open("wb") as file:
                # no dictionaries and a fast codec: files are often rewritten soon, and CPU costs more than disk
                options: dict[str, Any] = {"compression": "snappy", "use_dictionary": False, "store_schema": False}
                with pq.ParquetWriter(file, schema, metadata_collector=found, **options) as writer:
                    # without it, Spark 3 refuses dates before 1582, because their calendar depends on the writer
                    writer.add_key_value_metadata({"org.apache.spark.version": "4.0.0"})
                    for table in tables:
                        batch_rows = table.num_rows * _GROUP_BYTES // max(1, table.nbytes)
                        writer.write_table(table, row_group_size=max(1, min(_GROUP_ROWS, batch_rows)))
                file.flush()
                os.fsync(file.fileno())
            growing.replace(path)
        finally:
            growing.unlink(missing_ok=True)
        sync_path(path.parent)
    except OSError as error:
        raise unavailable(error, path) from error
    return found[0]


def copy(source: Path, path: Path) -> None:
    """Copy a file durably. Raises: SinkUnavailable."""
    try:
        shutil.copyfile(source, path)
        sync_path(path)
    except OSError as error:
        raise unavailable(error, path) from error


def make_folder(folder: Path, root: Path | None = None) -> None:
    """Create ``folder`` and the missing folders above it, with durable names.

    ``root``: is not created. If it was moved away, an empty folder must not appear at its old path.
    Raises: OSError - for example if ``root`` is missing.
    """
    if folder.is_dir():
        return
    if folder == root:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root))
    make_folder(folder.parent, root)
    folder.mkdir(exist_ok=True)
    with suppress(PermissionError):  # a folder that this user may write but not list
        sync_path(folder.parent)


def sync_path(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, durable. Raises: OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unavailable(error: OSError, path: Path) -> SinkUnavailable:
    """Return the error of the job for an error of the file system."""
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


def folder_missing(folder: Path) -> SinkUnavailable:
    """Return the error for a folder that the job has written and that no longer exists."""
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
        deleted = table.column(DELETED)
        delete_count = pc.sum(deleted).as_py()
        check_nulls(self.table, table)
        schema = pa.schema([pa.field(column.name, column.arrow) for column in self.table.columns])
        data = table.select(schema.names).cast(schema)
        if delete_count:
            data = data.append_column(DELETED, deleted)
        folder = staging / label_prefix(name.job, name.incarnation, name.fence, name.checkpoint).rstrip("-")
        path = folder / f"{label_for(name)}.parquet"
        try:
            make_folder(folder, staging)
        except OSError as error:
            raise unavailable(error, path) from error
        write_parquet(path, data.schema, iter([data]))
        size = path.stat().st_size
        detail = {"file": str(path.relative_to(self.root)), "size": size, "deletes": delete_count}
        return PreparedLoad(name, self.table.name, table.num_rows, table.nbytes, detail)

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


def now_ms() -> int:
    """Return the time in milliseconds since 1970, as in the Delta log."""
    return time.time_ns() // 1_000_000
