"""Rows for executors on this machine: they lie in memory that the driver and its workers share.

Bytes that go through the JVM are copied half a dozen times on the way; these are written once and read where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa


class SharedRows:
    """An unnamed file in memory, which goes with the process or at ``close``, whichever is first.

    Linux only. Executors open it through the driver's file descriptor, as the same user.
    """

    def __init__(self) -> None:
        self._handle = os.memfd_create("cdc-rows", os.MFD_CLOEXEC)
        self._file = pa.PythonFile(os.fdopen(self._handle, "wb", buffering=0), "w")
        self.path = f"/proc/{os.getpid()}/fd/{self._handle}"  # good in every process of this machine

    def put(self, rows: Sequence[pa.RecordBatch]) -> tuple[int, int]:
        """Append ``rows``, of one shape, as an Arrow IPC stream; its offset and size in bytes."""
        start = self._file.tell()
        with pa.ipc.new_stream(self._file, rows[0].schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
        return start, self._file.tell() - start

    def close(self) -> None:
        """Give the memory back as soon as nobody reads it any more."""
        self._file.close()

    def __enter__(self) -> SharedRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shared_rows(path: str, offset: int, size: int) -> pa.Table:
    """The rows at ``offset``; they lie where they were put."""
    with pa.memory_map(path) as file:
        file.seek(offset)
        return pa.ipc.open_stream(file.read_buffer(size)).read_all()


def is_shared(path: str) -> bool:
    """Whether this process can read the memory behind ``path``."""
    try:
        with pa.memory_map(path):
            return True
    except OSError:
        return False
