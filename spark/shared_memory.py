"""Rows in memory that the driver and the workers on this machine share.

Rows that are sent through the JVM are copied about six times. These are written once and read without a copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa

Range = tuple[int, int]  # offset and size in bytes

_ALIGNMENT = 64  # of Arrow's buffers, so that they are read without a copy


class SharedRows:
    """An unnamed file in memory, which exists until ``close`` or the end of the process. Linux only.

    Executors run as the same user and open it through the file descriptor of the driver.
    """

    def __init__(self) -> None:
        self._handle = os.memfd_create("cdc-rows", os.MFD_CLOEXEC)
        # written by Arrow itself: a Python file object would be called for each buffer of each batch
        self._file = pa.OSFile(f"/proc/self/fd/{self._handle}", "wb")
        self.path = f"/proc/{os.getpid()}/fd/{self._handle}"  # valid in every process of this machine
        self.inode = os.fstat(self._handle).st_ino  # the path can be that of later memory, because numbers are reused

    def put(self, rows: Sequence[pa.RecordBatch]) -> Range:
        """Append ``rows`` of one schema as an Arrow IPC stream, and return its position."""
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        start = self._file.tell()
        with pa.ipc.new_stream(self._file, rows[0].schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
        return start, self._file.tell() - start

    def put_bytes(self, data: bytes) -> Range:
        """Append ``data``, and return its position."""
        start = self._file.tell()
        self._file.write(data)
        return start, len(data)

    def duplicate(self) -> int:
        """Return another descriptor of the memory, to read it. The caller closes it."""
        return os.dup(self._handle)

    def close(self) -> None:
        """Release the memory as soon as no process reads it."""
        self._file.close()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> SharedRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StaleMemory(OSError):
    """The memory was released, and its path belongs to another one."""


class SharedReader:
    """The memory of a ``SharedRows``, in another process. What it returns is valid after ``SharedRows.close``."""

    def __init__(self, path: str, inode: int | None = None) -> None:
        """Open the memory at ``path``.

        ``inode``: of the memory; None accepts any. Raises: OSError - this process cannot read it; StaleMemory.
        """
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if inode is not None and os.fstat(handle).st_ino != inode:
                raise StaleMemory(f"{path} is the memory of a later job; that of this job was released")
            self._file = pa.memory_map(f"/proc/self/fd/{handle}")  # of the file that was compared
        finally:
            os.close(handle)

    def bytes_at(self, at: Range) -> pa.Buffer:
        """Return the bytes at a position, without a copy."""
        offset, size = at
        self._file.seek(offset)
        return self._file.read_buffer(size)

    def rows_at(self, at: Range) -> pa.Table:
        """Return the rows at a position, without a copy."""
        return pa.ipc.open_stream(self.bytes_at(at)).read_all()

    def close(self) -> None:
        """Close the file. What was returned stays valid."""
        self._file.close()


class SameMachine:
    """The transport to executors of this machine. See ``RowTransport``."""

    reader = SharedReader

    def share(self, memory: SharedRows) -> list[object]:
        """See ``RowTransport``."""
        return [memory.path, memory.inode]

    def withdraw(self, memory: SharedRows) -> None:
        """See ``RowTransport``: the memory is released when it is closed."""

    def close(self) -> None:
        """See ``RowTransport``."""
