"""Parquet files of the Delta sink: written durably on executors or while merging, and their statistics for the log."""

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

from cdc.batch import LoadName, PreparedLoad
from cdc.errors import SinkUnavailable
from cdc.schema import DELETED
from channels.label import label_for, label_prefix
from channels.sinks.base import TargetTable
from channels.sinks.nulls import check_nulls

STAGING = "_cdc_staging"
_GROUP_ROWS, _GROUP_BYTES = 1 << 17, 32 << 20  # of a row group at most: what a merge holds of a file at a time
_LONGEST_BOUND = 256  # characters of text in the log's statistics
_NUMBER = re.compile(r"\(os error (\d+)\)")  # deltalake's errors have none elsewhere


def write_parquet(path: Path, schema: pa.Schema, tables: Iterator[pa.Table]) -> pq.FileMetaData:
    """Write ``tables`` to ``path``, durable when this returns; gives the footer.

    Raises: SinkUnavailable - disk full, no permission, the folder is gone. Never: creates a folder.
    """
    found: list[pq.FileMetaData] = []
    # under another name first: a file that is there already may by now be part of a table, by a hard link
    growing = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        try:
            with growing.open("wb") as file:
                # no dictionaries and a light codec: a file is often rewritten soon, and CPU is dearer than disk
                options: dict[str, Any] = {"compression": "snappy", "use_dictionary": False, "store_schema": False}
                with pq.ParquetWriter(file, schema, metadata_collector=found, **options) as writer:
                    # Spark 3 asks who wrote a date before 1582, and refuses it where nothing tells
                    writer.add_key_value_metadata({"org.apache.spark.version": "4.0.0"})
                    for table in tables:
                        fitting = table.num_rows * _GROUP_BYTES // max(1, table.nbytes)
                        writer.write_table(table, row_group_size=max(1, min(_GROUP_ROWS, fitting)))
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
    """Copy a file, durable when this returns. Raises: SinkUnavailable."""
    try:
        shutil.copyfile(source, path)
        sync_path(path)
    except OSError as error:
        raise unavailable(error, path) from error


def make_folder(folder: Path, root: Path | None = None) -> None:
    """Create ``folder`` and the missing folders above it, with durable names.

    ``root``: is not created, because a root that was moved away must not appear again, empty, at its old path.
    Raises: OSError - also if ``root`` is missing.
    """
    if folder.is_dir():
        return
    if folder == root:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root))
    make_folder(folder.parent, root)
    folder.mkdir(exist_ok=True)
    with suppress(PermissionError):  # one that this user may write and not list
        sync_path(folder.parent)


def sync_path(path: Path) -> None:
    """Make what ``path`` holds durable: a file's bytes, a folder's names. Raises: OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unavailable(error: OSError, path: Path) -> SinkUnavailable:
    """What an error of the file system means to the job."""
    told = _NUMBER.search(str(error))
    number = int(told[1]) if error.errno is None and told else error.errno
    if number in (errno.ENOSPC, errno.EDQUOT):
        mend = f"Free space on the file system of {path.parent}; the job goes on by itself."
        return SinkUnavailable("The disk of the Delta tables is full.", mend=mend, path=path)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        mend = f"Give this user write permission to {path.parent}; the job goes on by itself."
        return SinkUnavailable("The folder of the Delta tables cannot be written.", mend=mend, path=path)
    missing = [folder for folder in path.parents if not folder.is_dir()] if number == errno.ENOENT else []
    if missing:
        return gone(missing[-1])
    mend = f"Look after the file system of {path.parent}; the job goes on by itself."
    return SinkUnavailable(f"A file of a Delta table cannot be read or written: {error}.", mend=mend, path=path)


def gone(folder: Path) -> SinkUnavailable:
    """Return the error for a folder that a job has written to and that is no longer there."""
    return SinkUnavailable(
        "The folder of the Delta tables is gone, or its file system is not mounted.",
        mend="Bring it back; the job then continues automatically.",
        path=folder,
    )


def unpacked_bytes(footer: pq.FileMetaData) -> int:
    """What a file's rows take in memory, about: a megabyte of one letter is a few bytes on disk."""
    return sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))


def statistics(footer: pq.FileMetaData, text_columns: Sequence[str] = ()) -> str:
    """Row count and the columns' bounds as the Delta log keeps them, taken from a file's footer.

    Text has bounds for ``text_columns``, the key, alone: merges are pruned by them.
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
            continue  # a bound that Python cannot hold (year 0000, some decimals): the column has none
        first, last = _bound(first, name in text_columns), _bound(last, name in text_columns)
        if first is not None and last is not None:
            low[name], high[name] = first, last
    told = {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return json.dumps(told, ensure_ascii=False)  # deltalake decodes escapes of characters beyond U+FFFF wrongly


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
    """Writes a part as one Parquet file under ``_cdc_staging/``; runs on an executor.

    The file has the target's columns, and ``__deleted`` where the part deletes anything.
    """

    root: str
    token: str  # name of a file that the driver left in the staging folder: proof that we see its file system
    table: TargetTable
    host: str  # of the driver
    umask: int  # of the driver: executors of a cluster have another parent

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

        It is retried: the next run of the job finds on the driver's host whether the folder is gone.
        """
        host, root = os.uname().nodename, Path(self.root)
        if host == self.host and not (root / STAGING).is_dir():
            return gone(root)
        return SinkUnavailable(
            f"The executor on host {host} does not see the folder of the Delta tables of host {self.host}.",
            mend="If the folder was moved or is not mounted, bring it back; the job then continues automatically. Else "
            "set `sink.path` to a folder that all executors share, or run on `local[*]`.",
            path=self.root,
        )


def now_ms() -> int:
    """Now, as the Delta log counts: milliseconds since 1970."""
    return time.time_ns() // 1_000_000
