"""The CRC32 of events inside kernels, equal to zlib's. A call of zlib per event would need Python work per event.

Processors with carry-less multiplication fold 64 bytes at a time. Others look up 16 bytes at a time in tables.

Source: Intel, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"; Intel, "High Octane CRC
Generation with the Intel Slicing-by-8 Algorithm" (here with 16 tables).
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (kernels use numpy's numbers where Python's are declared)

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cdc.mysql.values.kernels import inlined, kernel, load_u32, load_u64


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


_FOLD_64 = (0x154442BD4, 0x1C6E41596)  # x^(512+-32) mod P and so on, bits reversed
_FOLD_16 = (0x1751997D0, 0x0CCAA009E)
_FEWEST_FOLDED = 64
_FOLDS = bool(llvmlite.binding.get_host_cpu_features().get("pclmul", False))


@intrinsic
def _folded(typing_context: Any, data: Any, start: Any, end: Any, crc: Any) -> Any:
    """Fold the whole 16-byte blocks of ``data[start:end]``, at least four, into 16 bytes with the same CRC."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        start, end, crc = arguments[1:]
        word, vector = ir.IntType(64), ir.VectorType(ir.IntType(64), 2)
        multiply = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector, vector, ir.IntType(8)]), "llvm.x86.pclmulqdq"
        )

        def load(at: Any) -> Any:
            address = builder.bitcast(builder.gep(array.data, [at]), vector.as_pointer())
            return builder.load(address, align=1)

        def fold(value: Any, factors: tuple[int, int], following: Any) -> Any:
            constant = ir.Constant(vector, list(factors))
            low = builder.call(multiply, [value, constant, ir.Constant(ir.IntType(8), 0x00)])
            high = builder.call(multiply, [value, constant, ir.Constant(ir.IntType(8), 0x11)])
            return builder.xor(builder.xor(low, high), following)

        def offset(at: Any, by: int) -> Any:
            return builder.add(at, ir.Constant(word, by))

        lanes = [cgutils.alloca_once(builder, vector) for _ in range(4)]
        at = cgutils.alloca_once_value(builder, offset(start, 64))
        for number, lane in enumerate(lanes):
            builder.store(load(offset(start, 16 * number)), lane)
        seed = builder.insert_element(ir.Constant(vector, [0, 0]), crc, ir.Constant(ir.IntType(32), 0))
        builder.store(builder.xor(builder.load(lanes[0]), seed), lanes[0])

        def loop(step: int, body: Any) -> None:
            test, inside, after = (builder.append_basic_block(name) for name in ("test", "inside", "behind"))
            builder.branch(test)
            builder.position_at_end(test)
            builder.cbranch(builder.icmp_signed("<=", offset(builder.load(at), step), end), inside, after)
            builder.position_at_end(inside)
            body(builder.load(at))
            builder.store(offset(builder.load(at), step), at)
            builder.branch(test)
            builder.position_at_end(after)

        def fold_four(address: Any) -> None:
            for number, lane in enumerate(lanes):
                builder.store(fold(builder.load(lane), _FOLD_64, load(offset(address, 16 * number))), lane)

        loop(64, fold_four)
        joined = builder.load(lanes[0])
        for lane in lanes[1:]:
            joined = fold(joined, _FOLD_16, builder.load(lane))
        builder.store(joined, lanes[0])
        loop(16, lambda address: builder.store(fold(builder.load(lanes[0]), _FOLD_16, load(address)), lanes[0]))
        result = builder.load(lanes[0])
        halves = [builder.extract_element(result, ir.Constant(ir.IntType(32), i)) for i in range(2)]
        return context.make_tuple(builder, signature.return_type, halves)

    return types.UniTuple(types.uint64, 2)(data, types.int64, types.int64, types.uint64), generate


@inlined
def _look_up_8(b: int) -> int:
    """Return the CRC register after the 8 bytes ``b``, which contain the register before."""
    return np.uint64(
        _T[np.uint64(1792) + (b & _BYTE)]
        ^ _T[np.uint64(1536) + ((b >> np.uint64(8)) & _BYTE)]
        ^ _T[np.uint64(1280) + ((b >> np.uint64(16)) & _BYTE)]
        ^ _T[np.uint64(1024) + ((b >> np.uint64(24)) & _BYTE)]
        ^ _T[np.uint64(768) + ((b >> np.uint64(32)) & _BYTE)]
        ^ _T[np.uint64(512) + ((b >> np.uint64(40)) & _BYTE)]
        ^ _T[np.uint64(256) + ((b >> np.uint64(48)) & _BYTE)]
        ^ _T[b >> np.uint64(56)]
    )


@inlined
def _look_up(a: int, b: int) -> int:
    """Return the CRC register after the 16 bytes ``a``, ``b``, which contain the register before."""
    low = (
        _T[np.uint64(3840) + (a & _BYTE)]
        ^ _T[np.uint64(3584) + ((a >> np.uint64(8)) & _BYTE)]
        ^ _T[np.uint64(3328) + ((a >> np.uint64(16)) & _BYTE)]
        ^ _T[np.uint64(3072) + ((a >> np.uint64(24)) & _BYTE)]
        ^ _T[np.uint64(2816) + ((a >> np.uint64(32)) & _BYTE)]
        ^ _T[np.uint64(2560) + ((a >> np.uint64(40)) & _BYTE)]
        ^ _T[np.uint64(2304) + ((a >> np.uint64(48)) & _BYTE)]
        ^ _T[np.uint64(2048) + (a >> np.uint64(56))]
    )
    return np.uint64(low) ^ _look_up_8(b)


@inlined
def _rest(data: np.ndarray, start: int, end: int, crc: int) -> int:
    at = np.int64(start)
    while at + 16 <= end:
        crc = _look_up(load_u64(data, at) ^ crc, load_u64(data, at + 8))
        at += 16
    if at + 8 <= end:
        crc = _look_up_8(load_u64(data, at) ^ crc)
        at += 8
    if at + 4 <= end:
        word = load_u32(data, at) ^ crc
        crc = np.uint64(
            _T[np.uint64(768) + (word & _BYTE)]
            ^ _T[np.uint64(512) + ((word >> np.uint64(8)) & _BYTE)]
            ^ _T[np.uint64(256) + ((word >> np.uint64(16)) & _BYTE)]
            ^ _T[word >> np.uint64(24)]
        )
        at += 4
    while at < end:
        crc = (crc >> np.uint64(8)) ^ np.uint64(_T[(crc ^ np.uint64(data[at])) & _BYTE])
        at += 1
    return crc ^ np.uint64(0xFFFFFFFF)


if _FOLDS:

    @inlined
    def event_crc(data: np.ndarray, start: int, end: int) -> int:
        """Return the same as ``crc32``, inside a kernel."""
        crc = np.uint64(0xFFFFFFFF)
        at = np.int64(start)
        if end - at >= _FEWEST_FOLDED:
            low, high = _folded(data, at, np.int64(end), crc)
            crc = _look_up(low, high)
            at += (end - at) >> 4 << 4
        return _rest(data, at, end, crc)

else:

    @inlined
    def event_crc(data: np.ndarray, start: int, end: int) -> int:
        """Return the same as ``crc32``, inside a kernel."""
        return _rest(data, start, end, np.uint64(0xFFFFFFFF))


@kernel
def crc32(data: np.ndarray, start: int, end: int) -> int:
    """Return the CRC32 of ``data[start:end]``."""
    return event_crc(data, start, end)
