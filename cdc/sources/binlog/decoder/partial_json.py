"""Partial JSON updates: apply the differences of PARTIAL_UPDATE_ROWS to the document before.

A document is unpacked into containers with binary scalars, changed, and packed again. The kernel ``json_text`` then
makes text of it. This is Python work per changed row, but such rows exist only with
``binlog_row_value_options=PARTIAL_JSON``, and most have one difference.

Source: mysql-server sql/json_diff.h (paths are those of the statement, so ``[last]`` and ``[0]`` of a scalar occur).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from cdc.errors import GAP_HINT, DecodeError

_DEEPEST = 128
_LEG = re.compile(
    r'\.(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<name>[^.\[\s"]+))|\[(?P<last>last)?(?P<index>-?\d+)?\]', re.DOTALL
)
_NULL = b"\x04\x00"
_INLINE = (4, 5, 6)
_INLINE_LARGE = (4, 5, 6, 7, 8)
_SCALAR_SIZES = {4: 1, 5: 2, 6: 2, 7: 4, 8: 4, 9: 8, 10: 8, 11: 8}


class _Operation(IntEnum):
    REPLACE = 0
    INSERT = 1
    REMOVE = 2


@dataclass(slots=True)
class _Object:
    members: dict[bytes, _Node]


@dataclass(slots=True)
class _Array:
    cells: list[_Node]


_Node = _Object | _Array | bytes  # bytes: an unchanged scalar, type byte first


@dataclass(frozen=True, slots=True)
class _Cell:
    """A leg of a path that selects an array cell."""

    index: int
    from_end: bool

    def of(self, size: int) -> int:
        """Return the index in an array of ``size`` cells. It may be outside of the array."""
        return size - 1 - self.index if self.from_end else self.index


class _Damaged(Exception):
    """A document or its differences are not valid."""


def apply_diffs(
    data: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    diff_data: np.ndarray,
    diff_starts: np.ndarray,
    diff_lengths: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of the documents after their differences, and (start, length) of each document in them.

    An empty list of differences does not change the document. An empty document is a JSON null.
    Raises: DecodeError - a difference does not match its document; ``context`` has the row.
    """
    positions = np.empty((len(starts), 2), np.int64)
    pieces = []
    at = 0
    for row in range(len(starts)):
        before = _piece(data, starts, lengths, row)
        differences = _piece(diff_data, diff_starts, diff_lengths, row)
        try:
            after = _applied(before, differences) if differences else before
        except (_Damaged, IndexError, ValueError, RecursionError) as error:
            raise DecodeError(
                f"A partial JSON update does not match its document: {error}.",
                hint=f"Set binlog_row_value_options='' on the source. {GAP_HINT}",
                row=row,
            ) from error
        positions[row] = at, len(after)
        pieces.append(after)
        at += len(after)
    return np.frombuffer(b"".join(pieces), np.uint8), positions


def _piece(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, row: int) -> bytes:
    start, length = int(starts[row]), max(int(lengths[row]), 0)
    if start < 0 or start + length > data.size:
        raise DecodeError(
            "A JSON value is longer than its event.",
            hint=f"Check the binlog file on the server with mysqlbinlog --verify-binlog-checksum. {GAP_HINT}",
            row=row,
        )
    return data[start : start + length].tobytes()


def _applied(before: bytes, differences: bytes) -> bytes:
    document = _unpacked(before or _NULL)
    at = 0
    while at < len(differences):
        operation = differences[at]
        path, at = _counted(differences, at + 1)
        value = b""
        if operation != _Operation.REMOVE:
            value, at = _counted(differences, at)
        legs = _legs(path.decode())
        if operation == _Operation.REPLACE:
            document = _replaced(document, legs, _unpacked(value))
        elif operation == _Operation.INSERT:
            _insert(document, legs, _unpacked(value))
        elif operation == _Operation.REMOVE:
            _remove(document, legs)
        else:
            raise _Damaged(f"operation {operation} is unknown")
    return _packed(document)


def _counted(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes after a packed length, and the offset after them."""
    length = data[at]
    at += 1
    if length > 0xFA:
        width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(length, 0)
        if not width or at + width > len(data):
            raise _Damaged("a length is cut off")
        length = int.from_bytes(data[at : at + width], "little")
        at += width
    if at + length > len(data):
        raise _Damaged("a length is larger than the differences")
    return data[at : at + length], at + length


# -- paths ---------------------------------------------------------------------------------------------------------


def _legs(path: str) -> list[bytes | _Cell]:
    if not path.startswith("$"):
        raise _Damaged(f"{path!r} is not a path")
    legs: list[bytes | _Cell] = []
    at = 1
    while at < len(path):
        match = _LEG.match(path, at)
        if match is None:
            raise _Damaged(f"a difference cannot have the path {path!r}")
        at = match.end()
        if match["quoted"] is not None:
            legs.append(str(json.loads(match["quoted"], strict=False)).encode())
        elif match["name"] is not None:
            legs.append(match["name"].encode())
        elif match["last"]:
            legs.append(_Cell(-int(match["index"] or 0), True))
        else:
            legs.append(_Cell(int(match["index"]), False))
    return legs


def _child(node: _Node, leg: bytes | _Cell) -> _Node:
    """Return the value one leg down. As in MySQL, a value that is not an array counts as an array of one cell."""
    if isinstance(leg, _Cell):
        if not isinstance(node, _Array):
            if leg.of(1) == 0:
                return node
        elif 0 <= leg.of(len(node.cells)) < len(node.cells):
            return node.cells[leg.of(len(node.cells))]
    elif isinstance(node, _Object) and leg in node.members:
        return node.members[leg]
    raise _Damaged(f"the document has no value at {leg!r}")


def _parent(document: _Node, legs: list[bytes | _Cell]) -> _Node:
    for leg in legs[:-1]:
        document = _child(document, leg)
    return document


def _replaced(document: _Node, legs: list[bytes | _Cell], value: _Node) -> _Node:
    while legs:
        parent, leg = _parent(document, legs), legs[-1]
        _child(parent, leg)
        if isinstance(parent, _Object) and isinstance(leg, bytes):
            parent.members[leg] = value
            return document
        if isinstance(parent, _Array) and isinstance(leg, _Cell):
            parent.cells[leg.of(len(parent.cells))] = value
            return document
        legs = legs[:-1]  # cell 0 of a value that is not an array is the value itself
    return value


def _insert(document: _Node, legs: list[bytes | _Cell], value: _Node) -> None:
    if not legs:
        raise _Damaged("nothing can be inserted at the root")
    parent, leg = _parent(document, legs), legs[-1]
    if isinstance(parent, _Object) and isinstance(leg, bytes):
        parent.members[leg] = value
    elif isinstance(parent, _Array) and isinstance(leg, _Cell):
        parent.cells.insert(max(leg.of(len(parent.cells)), 0), value)
    else:
        raise _Damaged(f"nothing can be inserted at {leg!r}")


def _remove(document: _Node, legs: list[bytes | _Cell]) -> None:
    if not legs:
        raise _Damaged("the root cannot be removed")
    parent, leg = _parent(document, legs), legs[-1]
    _child(parent, leg)
    if isinstance(parent, _Object) and isinstance(leg, bytes):
        del parent.members[leg]
    elif isinstance(parent, _Array) and isinstance(leg, _Cell):
        del parent.cells[leg.of(len(parent.cells))]
    else:
        raise _Damaged(f"nothing can be removed at {leg!r}")


# -- binary documents ----------------------------------------------------------------------------------------------


def _unpacked(document: bytes) -> _Node:
    if not document:
        raise _Damaged("a document has no bytes")
    return _node(document, document[0], 1, len(document), 0, [len(document)])


def _node(data: bytes, kind: int, at: int, limit: int, depth: int, left: list[int]) -> _Node:
    """Return the value of type ``kind`` at ``at``. ``left``: entries that a valid document can still have."""
    left[0] -= 1
    if left[0] < 0 or depth > _DEEPEST:
        raise _Damaged("containers are nested in a circle or too deeply")
    if kind > 3:
        end = at + _scalar_size(data, kind, at)
        if end > limit:
            raise _Damaged("a value is longer than its container")
        return bytes([kind]) + data[at:end]
    wide = 4 if kind & 1 else 2
    count, size = _number(data, at, wide), _number(data, at + wide, wide)
    is_object = kind < 2
    values = at + 2 * wide + (count * (wide + 2) if is_object else 0)
    end = at + size
    if end > limit or values + count * (1 + wide) > end:
        raise _Damaged("a container is longer than the one around it")
    nodes = []
    for entry in range(count):
        slot = values + entry * (1 + wide)
        inline = data[slot] in (_INLINE_LARGE if wide == 4 else _INLINE)
        position = slot + 1 if inline else at + _number(data, slot + 1, wide)
        nodes.append(_node(data, data[slot], position, end, depth + 1, left))
    if not is_object:
        return _Array(nodes)
    names = []
    for entry in range(count):
        slot = at + 2 * wide + entry * (wide + 2)
        name, length = at + _number(data, slot, wide), _number(data, slot + wide, 2)
        if name + length > end:
            raise _Damaged("a key is longer than its object")
        names.append(data[name : name + length])
    return _Object(dict(zip(names, nodes, strict=True)))


def _number(data: bytes, at: int, width: int) -> int:
    if at + width > len(data):
        raise _Damaged("a container is cut off")
    return int.from_bytes(data[at : at + width], "little")


def _scalar_size(data: bytes, kind: int, at: int) -> int:
    if kind in _SCALAR_SIZES:
        return _SCALAR_SIZES[kind]
    if kind not in (0x0C, 0x0F):
        raise _Damaged(f"JSON type {kind} is unknown")
    length = 0
    start = at
    at += kind == 0x0F  # an opaque value has its column type before its length
    for i in range(5):
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return at + length - start
    raise _Damaged("a length does not end")


def _packed(node: _Node) -> bytes:
    """Return the binary form. Every container is a large one, which readers accept everywhere."""
    if isinstance(node, bytes):
        return node
    if isinstance(node, _Array):
        return b"\x03" + _container([], node.cells)
    members = sorted(node.members.items(), key=lambda member: (len(member[0]), member[0]))
    return b"\x01" + _container([name for name, _ in members], [value for _, value in members])


def _container(names: list[bytes], nodes: list[_Node]) -> bytes:
    position = 8 + 6 * len(names) + 5 * len(nodes)
    keys = bytearray()
    for name in names:
        keys += position.to_bytes(4, "little") + len(name).to_bytes(2, "little")
        position += len(name)
    slots, tail = bytearray(), bytearray()
    for node in nodes:
        value = _packed(node)
        if value[0] in _INLINE_LARGE:
            slots += value[:1] + value[1:].ljust(4, b"\0")
        else:
            slots += value[:1] + (position + len(tail)).to_bytes(4, "little")
            tail += value[1:]
    size = position + len(tail)
    return len(nodes).to_bytes(4, "little") + size.to_bytes(4, "little") + keys + slots + b"".join(names) + tail
