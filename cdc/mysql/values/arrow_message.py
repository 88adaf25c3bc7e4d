"""The head of an Arrow IPC message, created once per table, so that one call of Arrow creates all arrays of a block.

Source: Arrow columnar format, "Serialization and Interprocess Communication"; FlatBuffers internals.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ArrowMessage:
    """The head of an Arrow IPC message for one schema, and the offsets of the numbers in it."""

    schema: pa.Schema
    head: np.ndarray
    length_at: int
    body_length_at: int
    nodes_at: int
    buffers_at: int

    @classmethod
    def of(cls, schema: pa.Schema) -> ArrowMessage:
        """Create the head from a message of Arrow. The offsets are read from its flatbuffer."""
        nulls = [pa.nulls(1, field.type) for field in schema]
        raw = pa.RecordBatch.from_arrays(nulls, schema=schema).serialize().to_pybytes()
        (size,) = struct.unpack_from("<i", raw, 4)
        root = 8 + struct.unpack_from("<I", raw, 8)[0]
        batch_at = _member(raw, root, 2)
        batch = batch_at + struct.unpack_from("<I", raw, batch_at)[0]
        nodes, buffers = (
            at + struct.unpack_from("<I", raw, at)[0] + 4 for at in (_member(raw, batch, k) for k in (1, 2))
        )
        head = np.frombuffer(raw[: 8 + size], np.uint8)
        return cls(schema, head, _member(raw, batch, 0), _member(raw, root, 3), nodes, buffers)

    def arrays(self, block: np.ndarray) -> pa.RecordBatch:
        """Return the arrays that the head of the block describes. They have a reference to the block."""
        return pa.ipc.read_record_batch(pa.py_buffer(block), self.schema)


def _member(raw: bytes, table: int, number: int) -> int:
    """Return the offset of field ``number`` of a table in a flatbuffer."""
    members = table - struct.unpack_from("<i", raw, table)[0]
    return table + int(struct.unpack_from("<H", raw, members + 4 + 2 * number)[0])
