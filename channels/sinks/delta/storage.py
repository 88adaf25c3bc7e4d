"""Files of the Delta sink in a folder or in an object store, and their durable writes.

All other modules of the sink use paths of both kinds, and these functions where the two differ.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from channels.sinks.delta.object_path import ObjectPath

StorePath = Path | ObjectPath


class ObjectTable(DeltaTable):
    """A Delta table in an object store, with the path of its folder."""

    folder: ObjectPath


def open_table(folder: StorePath) -> DeltaTable:
    """Open the Delta table in ``folder``. Raises: TableNotFoundError, DeltaError, OSError."""
    if isinstance(folder, Path):
        return DeltaTable(folder.as_uri())
    table = ObjectTable(folder.as_uri(), storage_options=folder.store.delta_options)
    table.folder = folder
    return table


def put_if_absent(path: StorePath, content: bytes) -> None:
    """Create a file with a content that no other file has. Readers see all of it, or no file.

    In a folder, its name is durable after ``sync_path(path.parent)``.
    Raises: FileExistsError - another process has created it; OSError - it is not known whether it was created.
    """
    if isinstance(path, ObjectPath):
        path.create(content)
        return
    written = path.with_name(f"_commit_{uuid.uuid4()}.json.tmp")
    try:
        with written.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(written, path)  # fails if the name exists, also on NFS; rename would replace the other file
        except OSError:
            try:
                found = path.read_bytes()
            except FileNotFoundError:
                found = None
            if found != content:
                raise
    finally:
        with suppress(OSError):
            written.unlink(missing_ok=True)


def write_file(path: StorePath, content: bytes) -> None:
    """Write a file that no reader opens before this call returns. Raises: OSError."""
    if isinstance(path, ObjectPath):
        path.put(content)
        return
    growing = path.with_name(f"{path.name}.tmp")
    try:
        with growing.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        growing.replace(path)
    finally:
        growing.unlink(missing_ok=True)
    sync_path(path.parent)


def open_parquet(path: StorePath, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a Parquet file; only what is read is transferred. ``footer``: if it is known. Raises: OSError, ArrowInvalid.

    Spark writes timestamps as INT96 by default. In nanoseconds, Arrow has only those of the years 1677 to 2262.
    """
    options: dict[str, Any] = {"metadata": footer, "coerce_int96_timestamp_unit": "us"}
    if isinstance(path, ObjectPath):
        return pq.ParquetFile(pa.PythonFile(path.open(), mode="r"), pre_buffer=True, **options)
    return pq.ParquetFile(path, memory_map=True, **options)


def read_ranges(path: StorePath, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the bytes of each range (start, length) of a file; fewer at its end. Raises: OSError."""
    if isinstance(path, ObjectPath):
        return path.read_ranges(ranges)
    found = []
    with path.open("rb") as file:
        for start, length in ranges:
            file.seek(start)
            found.append(file.read(length))
    return found


def adopt(source: StorePath, path: StorePath) -> None:
    """Make a file available at ``path`` as well, without reading it if possible. Raises: OSError."""
    if isinstance(source, ObjectPath) and isinstance(path, ObjectPath):
        path.copy_from(source)
        return
    link: Any = (source, path)
    path.unlink(missing_ok=True)
    try:
        os.link(*link)
        # VACUUM of another writer deletes old files that its version of the table does not have, and a link has the
        # time of its file
        os.utime(link[1])
    except OSError:  # another file system, one without links, or a file of another user, whose time cannot be changed
        path.unlink(missing_ok=True)
        shutil.copyfile(*link)
        sync_path(path)


def make_folder(folder: StorePath, root: StorePath | None = None) -> None:
    """Create ``folder`` and the missing folders above it, with durable names. Object stores need no folders.

    ``root``: is not created. If it was moved away, an empty folder must not appear at its old path.
    Raises: OSError - for example if ``root`` is missing.
    """
    if isinstance(folder, ObjectPath) or folder.is_dir():
        return
    if folder == root:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root))
    make_folder(folder.parent, root)
    folder.mkdir(exist_ok=True)
    with suppress(PermissionError):  # a folder that this user may write but not list
        sync_path(folder.parent)


def touch(path: StorePath) -> None:
    """Create an empty file if it does not exist. Raises: OSError."""
    if isinstance(path, ObjectPath):
        path.put(b"")
    else:
        path.touch()


def delete_folder(path: StorePath) -> None:
    """Delete a folder with its files as far as possible; later calls delete the rest."""
    if isinstance(path, ObjectPath):
        with suppress(OSError):
            path.delete_all()
    else:
        shutil.rmtree(path, ignore_errors=True)


def path_of(url: str, table: StorePath) -> StorePath | None:
    """Return the path of a URL in the log of ``table``, without ``..``; None if it is in another store."""
    parts = urlsplit(url)
    path = posixpath.normpath(unquote(parts.path))
    if isinstance(table, Path):
        return Path(path)
    if f"{parts.scheme}://{parts.netloc}" != table.store.url:
        return None
    return ObjectPath(table.store, path.strip("/"))


def relative(path: StorePath, folder: StorePath) -> str:
    """Return ``path`` relative to ``folder``."""
    above: Any = folder  # of the same kind
    return str(path.relative_to(above))


def sync_path(path: StorePath) -> None:
    """Make the bytes of a file, or the names in a folder, durable. Raises: OSError."""
    if isinstance(path, ObjectPath):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
