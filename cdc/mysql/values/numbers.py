"""Numbers: kernels that convert the row values of a column to its Arrow buffer.

Every ``put`` function gets the offsets of ``count`` values in ``data`` (-1 = NULL) and fills ``block`` from offset
``out`` on.

Source: MySQL source, strings/decimal.cc (decimal2bin), for the format of DECIMAL.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (kernels declare Python's int for numpy integers)

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc.mysql.values.kernels import (
    kernel,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    part,
    store_8,
    store_16,
    store_32,
    store_64,
    swap_bytes,
)

(
    COPY_1, COPY_2, COPY_4, COPY_8, U8_I16, U16_I32, I24_I32, U24_I32, U32_I64, U64_DECIMAL, DECIMAL_64, DECIMAL_128,
    BITS_I64, BITS_DECIMAL, YEAR_I16, INDEX_1, INDEX_2, MASK,
) = range(18)  # fmt: skip

_DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)
_POWERS = np.array([10**n for n in range(10)], np.int64)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@part
def put_small(data: np.ndarray, starts: np.ndarray, count: int, block: np.ndarray, out: int) -> None:
    """Convert TINYINT to int8."""
    for i in range(count):
        at = starts[i]
        store_8(block, out + i, np.int64(load_u8(data, max(at, 0))) if at >= 0 else np.int64(0))


@part
def put_16(op: int, data: np.ndarray, starts: np.ndarray, count: int, block: np.ndarray, out: int) -> None:
    """Convert SMALLINT, TINYINT UNSIGNED and YEAR to int16."""
    if op == COPY_2:
        for i in range(count):
            at = starts[i]
            store_16(block, out + 2 * i, np.int64(load_u16(data, max(at, 0))) if at >= 0 else np.int64(0))
    else:
        epoch = np.int64(1900) if op == YEAR_I16 else np.int64(0)
        for i in range(count):
            at = starts[i]
            value = np.int64(load_u8(data, max(at, 0))) if at >= 0 else np.int64(0)
            store_16(block, out + 2 * i, value + epoch if value else value)


@part
def put_32(op: int, data: np.ndarray, starts: np.ndarray, count: int, block: np.ndarray, out: int) -> None:
    """Convert INT, MEDIUMINT, SMALLINT UNSIGNED, the bits of FLOAT and ENUM indexes to int32."""
    if op == COPY_4:
        for i in range(count):
            at = starts[i]
            store_32(block, out + 4 * i, np.int64(load_u32(data, max(at, 0))) if at >= 0 else np.int64(0))
    else:
        mask = np.uint64(0xFFFFFF)
        sign = np.int64(0x800000) if op == I24_I32 else np.int64(0)
        if op == U16_I32 or op == INDEX_2:  # noqa: SIM109 (a tuple makes the kernel slower)
            mask = np.uint64(0xFFFF)
        elif op == INDEX_1:
            mask = np.uint64(0xFF)
        for i in range(count):
            at = starts[i]
            value = np.int64(load_u32(data, max(at, 0)) & mask) if at >= 0 else np.int64(0)
            store_32(block, out + 4 * i, (value ^ sign) - sign)


@part
def put_64(op: int, width: int, data: np.ndarray, starts: np.ndarray, count: int, block: np.ndarray,
           out: int) -> None:  # fmt: skip
    """Convert BIGINT, INT UNSIGNED, the bits of DOUBLE, BIT up to 63 and SET masks to int64."""
    if op == COPY_8:
        for i in range(count):
            at = starts[i]
            store_64(block, out + 8 * i, np.int64(load_u64(data, max(at, 0))) if at >= 0 else np.int64(0))
    else:
        shift = np.uint64(32) if op == U32_I64 else np.uint64(64 - 8 * width)
        for i in range(count):
            at = starts[i]
            word = load_u64(data, max(at, 0)) if at >= 0 else np.uint64(0)
            word = swap_bytes(word) >> shift if op == BITS_I64 else (word << shift) >> shift
            store_64(block, out + 8 * i, np.int64(word))


@part
def put_wide(op: int, data: np.ndarray, starts: np.ndarray, count: int, block: np.ndarray, out: int) -> None:
    """Convert BIGINT UNSIGNED and BIT(64) to decimal128."""
    for i in range(count):
        at = starts[i]
        word = load_u64(data, max(at, 0)) if at >= 0 else np.uint64(0)
        store_64(block, out + 16 * i, np.int64(word if op == U64_DECIMAL else swap_bytes(word)))
        store_64(block, out + 16 * i + 8, np.int64(0))


@part
def put_decimal_64(precision: int, scale: int, data: np.ndarray, starts: np.ndarray, count: int,
                   block: np.ndarray, out: int) -> int:  # fmt: skip
    """Convert DECIMAL up to 18 digits to decimal128. Return the first value with invalid digits, or -1."""
    first_digits = (precision - scale) % 9
    last_digits = scale % 9
    first_bytes = _DIGIT_BYTES[first_digits]
    last_bytes = _DIGIT_BYTES[last_digits]
    groups = (precision - scale) // 9 + scale // 9
    top = np.uint64(1) << np.uint64(63)
    for i in range(count):
        at = starts[i]
        if at < 0:
            store_64(block, out + 16 * i, np.int64(0))
            store_64(block, out + 16 * i + 8, np.int64(0))
            continue
        flip = np.uint64(0) if data[at] & 0x80 else ~np.uint64(0)
        sign = top  # only the first group has the sign bit
        value = np.int64(0)
        if first_bytes:
            digits = np.int64((swap_bytes(load_u64(data, at)) ^ flip ^ sign) >> np.uint64(64 - 8 * first_bytes))
            if digits >= _POWERS[first_digits]:
                return i
            sign = np.uint64(0)
            value = digits
            at += first_bytes
        for _ in range(groups):
            digits = np.int64((swap_bytes(load_u64(data, at)) ^ flip ^ sign) >> np.uint64(32))
            if digits >= 1000000000:
                return i
            sign = np.uint64(0)
            value = value * 1000000000 + digits
            at += 4
        if last_bytes:
            digits = np.int64((swap_bytes(load_u64(data, at)) ^ flip ^ sign) >> np.uint64(64 - 8 * last_bytes))
            if digits >= _POWERS[last_digits]:
                return i
            value = value * _POWERS[last_digits] + digits
        if flip:
            value = -value
        store_64(block, out + 16 * i, value)
        store_64(block, out + 16 * i + 8, value >> 63)
    return -1


@part
def put_decimal_128(precision: int, scale: int, data: np.ndarray, starts: np.ndarray, count: int,
                    block: np.ndarray, out: int) -> int:  # fmt: skip
    """Convert DECIMAL of 19 to 38 digits to decimal128. Return the first value with invalid digits, or -1."""
    whole = precision - scale
    head = whole % 9
    tail = scale % 9
    groups = whole // 9 + scale // 9 + (1 if head else 0) + (1 if tail else 0)
    for i in range(count):
        at = starts[i]
        high = np.uint64(0)
        low = np.uint64(0)
        flip = np.uint64(0)
        if at >= 0:
            flip = np.uint64(0) if data[at] & 0x80 else ~np.uint64(0)
            sign = np.uint64(1) << np.uint64(63)
            for group in range(groups):
                count_here = np.int64(9)
                if group == 0 and head:
                    count_here = head
                elif group == groups - 1 and tail:
                    count_here = tail
                size = _DIGIT_BYTES[count_here]
                digits = (swap_bytes(load_u64(data, at)) ^ flip ^ sign) >> np.uint64(64 - 8 * size)
                sign = np.uint64(0)
                factor = np.uint64(_POWERS[count_here])
                if digits >= factor:
                    return i
                at += size
                lower = (low & _LOW) * factor + digits
                upper = (low >> _HALF) * factor + (lower >> _HALF)
                low = (upper << _HALF) | (lower & _LOW)
                high = high * factor + (upper >> _HALF)
        if flip:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
        store_64(block, out + 16 * i, np.int64(low))
        store_64(block, out + 16 * i + 8, np.int64(high))
    return -1


@kernel
def _decimal_text(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, precision: int, scale: int,
                  out: np.ndarray, offsets: np.ndarray) -> int:  # fmt: skip
    whole = precision - scale
    end = np.int64(0)
    digits = np.empty(80, np.uint8)
    for i in range(starts.shape[0]):
        offsets[i] = end
        if lengths[i] < 0:
            continue
        at = starts[i]
        flip = np.uint64(0) if data[at] & 0x80 else ~np.uint64(0)
        sign = np.uint64(1) << np.uint64(63)
        position = 0
        left = whole
        for side in range(2):
            while left > 0:
                # the group of fewer than nine digits is the first one before the point, and the last one after it
                digit_count = 9 if left >= 9 and (side == 1 or left % 9 == 0) else left % 9
                size = _DIGIT_BYTES[digit_count]
                number = np.int64((swap_bytes(load_u64(data, at)) ^ flip ^ sign) >> np.uint64(64 - 8 * size))
                sign = np.uint64(0)
                if number >= _POWERS[digit_count]:
                    return i
                for digit in range(digit_count - 1, -1, -1):
                    digits[position + digit] = 48 + number % 10
                    number //= 10
                position += digit_count
                at += size
                left -= digit_count
            left = scale
        if flip:
            out[end] = 45
            end += 1
        first = 0
        while first < whole and digits[first] == 48:
            first += 1
        if first == whole:
            out[end] = 48
            end += 1
        for digit in range(first, whole):
            out[end] = digits[digit]
            end += 1
        if scale:
            out[end] = 46
            end += 1
        for digit in range(whole, precision):
            out[end] = digits[digit]
            end += 1
    offsets[starts.shape[0]] = end
    return -1


def decimal_text_array(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, precision: int, scale: int
) -> pa.StringArray | int:
    """Return DECIMAL of any size as the server prints it, or the first row with invalid digits."""
    out = np.empty(len(starts) * (precision + 3) + 1, np.uint8)
    offsets = np.empty(len(starts) + 1, np.int32)
    bad = _decimal_text(data, starts, lengths, precision, scale, out, offsets)
    if bad >= 0:
        return int(bad)
    return pa.StringArray.from_buffers(
        len(starts), pa.py_buffer(offsets), pa.py_buffer(out), validity_of(lengths), int((lengths < 0).sum())
    )


def vector_array(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.ListArray:
    """Return VECTOR values as lists of float32. Servers only write multiples of 4 bytes; other bytes are ignored."""
    floats = np.maximum(lengths, 0) // 4
    offsets = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(floats, out=offsets[1:])
    values = np.empty(int(offsets[-1]) * 4, np.uint8)
    copy_values(data, starts, offsets, values)
    items = pa.Array.from_buffers(pa.float32(), int(offsets[-1]), [None, pa.py_buffer(values)], 0)
    buffers = [validity_of(lengths), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(pa.float32()), len(starts), buffers, int((lengths < 0).sum()), 0, [items])


@kernel
def copy_values(data: np.ndarray, starts: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Copy values of 4-byte items to ``out``. ``offsets`` count items."""
    for i in range(starts.shape[0]):
        size = 4 * np.int64(offsets[i + 1] - offsets[i])
        for byte in range(size):
            out[4 * np.int64(offsets[i]) + byte] = data[starts[i] + byte]


def validity_of(lengths: np.ndarray) -> pa.Buffer | None:
    """Return a validity bitmap; None if no length is -1."""
    if len(lengths) == 0 or lengths.min() >= 0:
        return None
    return pa.py_buffer(np.packbits(lengths >= 0, bitorder="little"))
