"""Detect keys whose rows are in more than one partition: there is no order between partitions.

A fixed table has one slot per hash, so its memory does not depend on the number of keys. A key whose slot another key
has taken since is not detected.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cdc.mysql.values.kernels import kernel

SLOTS = 1 << 20
_TABLE = 0x9E3779B97F4A7C15
_BASIS, _PRIME = 0xCBF29CE484222325, 0x100000001B3  # FNV-1a


class KeyPartitions:
    """The last partition of each key. Shape: ``SLOTS`` pairs of hash and partition."""

    def __init__(self) -> None:
        self._hashes = np.zeros(SLOTS, np.uint64)
        self._partitions = np.zeros(SLOTS, np.int32)  # plus one, so that memory is used only for known keys

    def first_conflict(self, columns: Sequence[pa.Array], partitions: NDArray[np.int32], table: int) -> int:
        """Add keys. Return the row whose key was in another partition before; -1 if there is none.

        ``columns``: the key columns; ``partitions``: of each row; ``table``: a number that distinguishes tables.
        """
        return self.insert(hashes_of(columns, table), partitions) if columns and len(columns[0]) else -1

    def insert(self, hashes: NDArray[np.uint64], partitions: NDArray[np.int32]) -> int:
        """Add keys by their hashes. Return the row whose key was in another partition before; -1 if there is none."""
        return int(_insert(hashes, np.ascontiguousarray(partitions), self._hashes, self._partitions))


def hashes_of(columns: Sequence[pa.Array], table: int = 0) -> NDArray[np.uint64]:
    """Return a hash of each row's values. ``columns``: at least one, without NULL; ``table``: distinguishes tables."""
    # not the number itself: FNV only adds it to the first byte, so key 2 of table 1 would be key 1 of table 2
    hashes = np.full(len(columns[0]), table * _TABLE % (1 << 64), np.uint64)
    for column in columns:
        _mix(hashes, *_bytes_of(column))
    return hashes


def _bytes_of(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the offsets of the values (one more than rows) and their bytes."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
        kind = column.type
    buffers, rows = column.buffers(), len(column)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = np.frombuffer(buffers[1], np.int32)[column.offset : column.offset + rows + 1].astype(np.int64)
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        offsets = np.frombuffer(buffers[1], np.int64)[column.offset : column.offset + rows + 1]
    else:
        width = kind.bit_width // 8
        offsets = (np.arange(rows + 1, dtype=np.int64) + column.offset) * width
        return offsets, np.frombuffer(buffers[1], np.uint8)
    return offsets, np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.zeros(0, np.uint8)


@kernel
def _mix(hashes, offsets, data):  # type: ignore[no-untyped-def]
    for row in range(len(hashes)):
        mixed = np.uint64(_BASIS) ^ hashes[row]
        for at in range(offsets[row], offsets[row + 1]):
            mixed = (mixed ^ np.uint64(data[at])) * np.uint64(_PRIME)
        # FNV leaves the low bits of short keys alike; the slot is made of them
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        hashes[row] = mixed ^ (mixed >> np.uint64(32))


@kernel
def _insert(hashes, partitions, known, owners):  # type: ignore[no-untyped-def]
    for row in range(len(hashes)):
        slot = hashes[row] & np.uint64(len(known) - 1)
        owner = partitions[row] + 1
        if owners[slot] != 0 and known[slot] == hashes[row] and owners[slot] != owner:
            return row
        known[slot] = hashes[row]
        owners[slot] = owner
    return -1
