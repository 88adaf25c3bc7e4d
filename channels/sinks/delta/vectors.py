"""Deletion vectors: the rows of a data file that are deleted, as a bitmap beside the file.

Source: the Delta protocol, "Deletion Vectors", "Deletion Vector Descriptor Schema", "Deletion Vector Format".
"""

from __future__ import annotations

import base64
import re
import struct
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from cdc.errors import TargetMismatch
from channels.sinks.delta.files import unavailable
from channels.sinks.delta.storage import StorePath, path_of, read_ranges, write_file

Positions = npt.NDArray[np.uint64]  # row numbers within a data file, rising

_MAGIC = struct.pack("<I", 1681511377)  # of a RoaringBitmapArray in the portable format
_VERSION = b"\x01"  # first byte of a file
_UUID_CHARACTERS = 20  # of a UUID in base 85
_PREFIX = re.compile(r"[A-Za-z0-9]*", re.ASCII)  # the folder of a file below the table
_OWN_UUID = b"\xcd\xcd\xcd\xcd"  # start of the UUIDs of this program: vacuum deletes only its own files
OWN_FILES = "deletion_vector_cdcdcdcd-*.bin*"
_TO_Z85 = bytes.maketrans(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)
_FROM_Z85 = bytes.maketrans(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)
_Z85 = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]*")


@dataclass(frozen=True, slots=True)
class Vector:
    """The descriptor of a deletion vector, as an entry of the log has it."""

    storage: str  # u: file below the table; i: within the descriptor; p: absolute path
    location: str
    offset: int | None  # of the size field in the file
    size: int  # bytes of the bitmap
    cardinality: int  # deleted rows

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Vector:
        """Return the descriptor of a log entry."""
        return cls(
            data["storageType"],
            data["pathOrInlineDv"],
            data.get("offset"),
            data["sizeInBytes"],
            data["cardinality"],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the descriptor for a log entry."""
        found = {"storageType": self.storage, "pathOrInlineDv": self.location}
        offset = {} if self.offset is None else {"offset": self.offset}
        return {**found, **offset, "sizeInBytes": self.size, "cardinality": self.cardinality}

    def file(self, table: StorePath) -> StorePath | None:
        """Return the file of the vector; None if the descriptor contains it.

        Raises: TargetMismatch - the file is outside the folder ``table``.
        """
        if self.storage == "i":
            return None
        if self.storage == "u":
            prefix, code = self.location[:-_UUID_CHARACTERS], self.location[-_UUID_CHARACTERS:]
            if len(code) != _UUID_CHARACTERS or not _PREFIX.fullmatch(prefix):
                raise damaged("names a file outside the table", table, self)
            name = uuid.UUID(bytes=_from_z85(code, table, self))
            return table / prefix / f"deletion_vector_{name}.bin"
        path = path_of(self.location, table) if self.storage == "p" else None
        relative_to: Any = table  # of the same kind
        if path is None or not path.is_relative_to(relative_to):
            raise damaged("names a file outside the table", table, self)
        return path


def damaged(problem: str, table: StorePath, vector: Vector) -> TargetMismatch:
    """Return the error for a vector that cannot be used. Without it, deleted rows would be visible again."""
    return TargetMismatch(
        f"A deletion vector of the Delta table {problem}.",
        hint="Restore the table from a backup, then run `cdc resume NAME`. Or move its folder away and run "
        "`cdc resume NAME --reload-missing`.",
        path=table,
        vector=vector.location[:80],
    )


def read_vector(table: StorePath, vector: Vector) -> Positions:
    """Return the deleted rows. Raises: TargetMismatch - it is damaged or outside the table; SinkUnavailable."""
    path = vector.file(table)
    if path is None:
        data = _from_z85(vector.location, table, vector)[: vector.size]
    else:
        try:
            start = 1 if vector.offset is None else vector.offset
            version, stored = read_ranges(path, [(0, 1), (start, vector.size + 8)])
        except OSError as error:
            raise unavailable(error, path) from error
        if version != _VERSION:
            raise damaged("has a file of an unknown version", table, vector)
        if len(stored) != vector.size + 8 or struct.unpack(">I", stored[:4])[0] != vector.size:
            raise damaged("has not the size that the log names", table, vector)
        data = stored[4:-4]
        if struct.unpack(">I", stored[-4:])[0] != zlib.crc32(data):
            raise damaged("has a wrong checksum", table, vector)
    if len(data) != vector.size or data[:4] != _MAGIC:
        raise damaged("is not a bitmap in the portable format", table, vector)
    try:
        found = np.array(BitMap64.deserialize(data[4:]).to_array(), np.uint64)
    except (ValueError, IndexError) as error:
        raise damaged("is not a bitmap in the portable format", table, vector) from error
    if len(found) != vector.cardinality:
        raise damaged("has not the number of rows that the log names", table, vector)
    return found


def write_vectors(table: StorePath, rows: Mapping[str, Positions]) -> dict[str, Vector]:
    """Write one file with a vector for each key of ``rows`` durably, and return the descriptors. Raises: OSError."""
    name = uuid.UUID(bytes=_OWN_UUID + uuid.uuid4().bytes[len(_OWN_UUID) :])
    content, vectors = bytearray(_VERSION), {}
    location = base64.b85encode(name.bytes).translate(_TO_Z85).decode()
    for key, positions in rows.items():
        bitmap = BitMap64(positions)
        bitmap.run_optimize()
        data = _MAGIC + bitmap.serialize()
        vectors[key] = Vector("u", location, len(content), len(data), len(positions))
        content += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    write_file(table / f"deletion_vector_{name}.bin", bytes(content))
    return vectors


def _from_z85(text: str, table: StorePath, vector: Vector) -> bytes:
    code = text.encode()
    try:
        if len(code) % 5 or not _Z85.fullmatch(code):
            raise ValueError(text)
        return base64.b85decode(code.translate(_FROM_Z85))
    except ValueError as error:
        raise damaged("has a descriptor that is not in base 85", table, vector) from error
