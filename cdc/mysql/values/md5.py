"""MD5 of many texts without a Python object per text: the sum of their digests, which does not depend on their order.

Source: RFC 1321.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (kernels use numpy's numbers where Python's are declared)

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from cdc.mysql.values.kernels import inlined, kernel, load_u32, swap_bytes

DIGITS = 15  # hexadecimal, of each half of a digest: its first 60 bits, which every 64-bit integer holds

_BLOCK = 64
_MASK = np.uint64(0xFFFFFFFF)
_SINES = np.array([int(abs(math.sin(step + 1)) * 2**32) for step in range(64)], np.uint64)
_SHIFTS = np.array([(7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21)], np.uint64)
_START = np.array([0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476], np.uint64)
_U32, _U4 = np.uint64(32), np.uint64(4)


@inlined
def _mix(state: np.ndarray, data: np.ndarray, at: int, words: np.ndarray) -> None:
    """Add the block ``data[at:at + 64]`` to ``state``."""
    for number in range(16):
        words[number] = load_u32(data, at + 4 * number)
    a, b, c, d = state[0], state[1], state[2], state[3]
    for step in range(64):
        phase = step >> 4
        if phase == 0:
            mixed, number = d ^ (b & (c ^ d)), step
        elif phase == 1:
            mixed, number = c ^ (d & (b ^ c)), (5 * step + 1) & 15
        elif phase == 2:
            mixed, number = b ^ c ^ d, (3 * step + 5) & 15
        else:
            mixed, number = c ^ (b | (d ^ _MASK)), (7 * step) & 15
        total = (a + mixed + _SINES[step] + words[number]) & _MASK
        shift = _SHIFTS[phase, step & 3]
        turned = ((total << shift) | (total >> (_U32 - shift))) & _MASK
        a, d, c, b = d, c, b, (b + turned) & _MASK
    state[0] = (state[0] + a) & _MASK
    state[1] = (state[1] + b) & _MASK
    state[2] = (state[2] + c) & _MASK
    state[3] = (state[3] + d) & _MASK


@kernel
def _add_digests(offsets: np.ndarray, data: np.ndarray, sums: np.ndarray) -> None:
    """Add both halves of each digest to ``sums``: the low 32 bits of the first half, its high bits, the same again."""
    state, words, last = np.empty(4, np.uint64), np.empty(16, np.uint64), np.empty(2 * _BLOCK, np.uint8)
    for row in range(len(offsets) - 1):
        start, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        size, at = end - start, start
        state[:] = _START
        while at + _BLOCK <= end:
            _mix(state, data, at, words)
            at += _BLOCK
        left = end - at
        last[:] = 0
        for number in range(left):
            last[number] = data[at + number]
        last[left] = 0x80
        padded = _BLOCK if left < 56 else 2 * _BLOCK
        for number in range(8):
            last[padded - 8 + number] = np.uint8((size * 8) >> (8 * number) & 0xFF)
        _mix(state, last, 0, words)
        if padded > _BLOCK:
            _mix(state, last, _BLOCK, words)
        for half in range(2):
            digits = swap_bytes(state[2 * half] | (state[2 * half + 1] << _U32)) >> _U4
            sums[2 * half] += digits & _MASK
            sums[2 * half + 1] += digits >> _U32


def digest_sums(texts: pa.Array) -> tuple[int, int]:
    """Return two sums over the MD5 of each text: of the hexadecimal digits 1 to 15, and of the digits 17 to 31.

    ``texts``: ``pa.string()`` without NULL, fewer than 2^31 rows.
    """
    sums = np.zeros(4, np.uint64)
    if len(texts):
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        _add_digests(ends, np.frombuffer(data or b"", np.uint8), sums)
    low, high, second_low, second_high = (int(one) for one in sums)
    return low + (high << 32), second_low + (second_high << 32)
