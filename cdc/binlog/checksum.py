"""CRC32 of events, as zlib's, inside kernels: a call of zlib per event would cost Python work per event.

Source: Intel, "High Octane CRC Generation with the Intel Slicing-by-8 Algorithm" (here with 16 tables).
"""

from __future__ import annotations

import numpy as np

from cdc.binlog.kernels import kernel, load_u64


def _tables() -> np.ndarray:
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for row in range(1, 16):
        tables[row] = (tables[row - 1] >> np.uint32(8)) ^ tables[0][tables[row - 1] & np.uint32(0xFF)]
    return tables.reshape(-1)


_T = _tables()
_BYTE = np.uint64(0xFF)


@kernel
def crc32(data: np.ndarray, start: int, end: int) -> int:
    """CRC32 of ``data[start:end]``."""
    crc = np.uint64(0xFFFFFFFF)
    at = np.int64(start)
    while at + 16 <= end:
        a = load_u64(data, at) ^ crc
        b = load_u64(data, at + 8)
        low = (
            _T[np.uint64(3840) + (a & _BYTE)]
            ^ _T[np.uint64(3584) + ((a >> np.uint64(8)) & _BYTE)]
            ^ _T[np.uint64(3328) + ((a >> np.uint64(16)) & _BYTE)]
            ^ _T[np.uint64(3072) + ((a >> np.uint64(24)) & _BYTE)]
        )
        middle = (
            _T[np.uint64(2816) + ((a >> np.uint64(32)) & _BYTE)]
            ^ _T[np.uint64(2560) + ((a >> np.uint64(40)) & _BYTE)]
            ^ _T[np.uint64(2304) + ((a >> np.uint64(48)) & _BYTE)]
            ^ _T[np.uint64(2048) + (a >> np.uint64(56))]
        )
        high = (
            _T[np.uint64(1792) + (b & _BYTE)]
            ^ _T[np.uint64(1536) + ((b >> np.uint64(8)) & _BYTE)]
            ^ _T[np.uint64(1280) + ((b >> np.uint64(16)) & _BYTE)]
            ^ _T[np.uint64(1024) + ((b >> np.uint64(24)) & _BYTE)]
        )
        top = (
            _T[np.uint64(768) + ((b >> np.uint64(32)) & _BYTE)]
            ^ _T[np.uint64(512) + ((b >> np.uint64(40)) & _BYTE)]
            ^ _T[np.uint64(256) + ((b >> np.uint64(48)) & _BYTE)]
            ^ _T[b >> np.uint64(56)]
        )
        crc = np.uint64(low ^ middle ^ high ^ top)
        at += 16
    while at < end:
        crc = (crc >> np.uint64(8)) ^ np.uint64(_T[(crc ^ np.uint64(data[at])) & _BYTE])
        at += 1
    return crc ^ np.uint64(0xFFFFFFFF)
