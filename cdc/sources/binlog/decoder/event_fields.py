"""Kernels that read single fields of events: packed numbers, GTIDs, the statement of a QUERY, the hash of a table map.

They are parts of the kernels of ``framing``, ``columns`` and ``row_images``.

Source: MySQL manual, "Binary Log Event"; MySQL source, libs/mysql/binlog/event.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (kernels use numpy's numbers where Python's are declared)

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, load_u16, load_u64, part

ORIGIN_BYTES = 64  # 16 bytes uuid, 1 byte length of the tag, tag; MariaDB: domain, server id, zeros, 255
_K = np.uint64(0x9E3779B97F4A7C15)


@inlined
def content_hash(data: np.ndarray, start: int, end: int) -> int:
    """Return a hash of ``data[start:end]``. Reads slack bytes after ``end``."""
    value = np.uint64(end - start) * _K
    at = start
    while at + 8 <= end:
        value = (value ^ load_u64(data, at)) * _K
        value ^= value >> np.uint64(29)
        at += 8
    if at < end:
        kept = np.uint64((end - at) * 8)
        value = (value ^ (load_u64(data, at) & ((np.uint64(1) << kept) - np.uint64(1)))) * _K
        value ^= value >> np.uint64(29)
    return np.int64(value & np.uint64(0x7FFFFFFFFFFFFFFF))


@inlined
def read_pint(data: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Return the packed number at ``at`` and the offset after it; offset -1: the number does not end before ``end``."""
    if at >= end:
        return np.int64(0), np.int64(-1)
    first = np.int64(data[at])
    width = 0
    if first >= 0xFB:
        if first == 0xFC:
            width = 2
        elif first == 0xFD:
            width = 3
        elif first == 0xFE:
            width = 8
        else:
            return np.int64(0), np.int64(-1)
        if at + 1 + width > end:
            return np.int64(0), np.int64(-1)
        first = np.int64(load_u64(data, at + 1))
        if width < 8:
            first &= (np.int64(1) << (8 * width)) - 1
        elif first < 0:
            return np.int64(0), np.int64(-1)
    return first, np.int64(at + 1 + width)


@part
def _read_vint(data: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Return the number of MySQL's serialization library at ``at`` and the offset after it; -1 as ``read_pint``."""
    if at >= end:
        return np.uint64(0), np.int64(-1)
    width = 1
    first = np.int64(data[at])
    while first & 1 and width < 9:
        first >>= 1
        width += 1
    if at + width > end:
        return np.uint64(0), np.int64(-1)
    if width == 9:
        return load_u64(data, at + 1), np.int64(at + 9)
    value = load_u64(data, at)
    if width < 8:
        value &= (np.uint64(1) << np.uint64(8 * width)) - np.uint64(1)
    return value >> np.uint64(width), np.int64(at + width)


@inlined
def read_gtid(data: np.ndarray, body: int, end: int, needed: np.ndarray, number: np.ndarray) -> bool:
    """Write the origin to ``needed``, (gno, commit microseconds or -1) to ``number``; False: the body is too short."""
    if end - body < 25:
        return False
    for i in range(ORIGIN_BYTES):
        needed[i] = 0
    for i in range(16):
        needed[i] = data[body + 1 + i]
    number[0] = np.int64(load_u64(data, body + 17))
    number[1] = -1
    if end - body >= 49:
        number[1] = np.int64(load_u64(data, body + 42) & np.uint64(0x7FFFFFFFFFFFFF))
    return True


@part
def read_tagged_gtid(data: np.ndarray, body: int, end: int, needed: np.ndarray, number: np.ndarray) -> bool:
    """Do the same as ``read_gtid`` for GTID_TAGGED."""
    for i in range(ORIGIN_BYTES):
        needed[i] = 0
    number[0] = 0
    number[1] = -1
    value, at = _read_vint(data, body, end)
    for _ in range(2):
        if at < 0:
            return False
        value, at = _read_vint(data, at, end)
    while at >= 0 and at < end:
        field, at = _read_vint(data, at, end)
        if at < 0:
            return False
        if field == 1:
            for i in range(16):
                value, at = _read_vint(data, at, end)
                if at < 0 or value > 255:
                    return False
                needed[i] = value
        elif field == 3:
            length, at = _read_vint(data, at, end)
            if at < 0 or length > 32 or at + np.int64(length) > end:
                return False
            needed[16] = length
            for i in range(np.int64(length)):
                needed[17 + i] = data[at + i]
            at += np.int64(length)
        else:
            value, at = _read_vint(data, at, end)
            if field == 2:
                number[0] = np.int64(value >> np.uint64(1))
            elif field == 6:
                number[1] = np.int64(value & np.uint64(0x7FFFFFFFFFFFFF))
    return at >= 0


@inlined
def query_word(data: np.ndarray, body: int, end: int) -> int:
    """Return the type of a QUERY: 1 BEGIN, 2 COMMIT, 3 ROLLBACK, 4 SAVEPOINT, 0 another statement, -1 malformed."""
    if end - body < 14:
        return -1
    at = body + 13 + np.int64(load_u16(data, body + 11)) + np.int64(data[body + 8]) + 1
    if at > end:
        return -1
    length = end - at
    if length < 5:
        return 0
    word = load_u64(data, at)
    if length == 5 and word & np.uint64(0xFFFFFFFFFF) == np.uint64(0x4E49474542):
        return 1
    if length == 6 and word & np.uint64(0xFFFFFFFFFFFF) == np.uint64(0x54494D4D4F43):
        return 2
    if length == 8 and word == np.uint64(0x4B4341424C4C4F52):
        return 3
    if length > 10 and word == np.uint64(0x4E494F5045564153) and data[at + 8] == 0x54 and data[at + 9] == 0x20:
        return 4
    return 0
