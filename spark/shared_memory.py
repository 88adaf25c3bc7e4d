"""Rows in memory that the driver and the workers on this machine share.

Rows that are sent through the JVM are copied about six times. These are written once and read without a copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa


class SharedRows:
    """An unnamed file in memory, which exists until ``close`` or the end of the process. Linux only.

    Executors run as the same user and open it through the file descriptor of the driver.
    """

    def __init__(self) -> None:
        self._handle = os.memfd_create("cdc-rows", os.MFD_CLOEXEC)
        self._file = pa.PythonFile(os.fdopen(self._handle, "wb", buffering=0), "w")
        self.path = f"/proc/{os.getpid()}/fd/{self._handle}"  # valid in every process of this machine

    def put(self, rows: Sequence[pa.RecordBatch]) -> tuple[int, int]:
        """Append ``rows`` of one schema as an Arrow IPC stream, and return its offset and size in bytes."""
        start = self._file.tell()
        with pa.ipc.new_stream(self._file, rows[0].schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
        return start, self._file.tell() - start

    def close(self) -> None:
        """Release the memory as soon as no process reads it."""
        self._file.close()

    def __enter__(self) -> SharedRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shared_rows(path: str, offset: int, size: int) -> pa.Table:
    """Return the rows at ``offset``, without a copy."""
    with pa.memory_map(path) as file:
        file.seek(offset)
        return pa.ipc.open_stream(file.read_buffer(size)).read_all()


def is_shared(path: str) -> bool:
    """Return whether this process can read the memory at ``path``."""
    try:
        with pa.memory_map(path):
            return True
    except OSError:
        return False
