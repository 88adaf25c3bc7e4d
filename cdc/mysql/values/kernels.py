"""Compilation of kernels, and the unaligned loads and stores that they use.

Compiled code is cached on disk in a folder that is named by a digest of the sources of all kernels. Numba itself checks
only the file of the outermost function, and would use code whose callees have changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cdc.errors import ConfigError
from cdc.paths import cache_folder
from cdc.permissions import owned_by_others, refuse_untrusted

SLACK_BYTES = 32  # a load may read this many bytes after a value, so every buffer has them after its last byte
_KEPT_CACHES = 12  # of other versions of the sources; each has about 10 MB
_CONSTANTS = ("kernels.py", "charset_tables.py")


@cache
def _digest() -> str:
    """Return a name for the kernels of this process. It reads all modules, so its forks use the same text."""
    texts = {path: path.read_bytes() for path in sorted(Path(__file__).parents[2].rglob("*.py"))}
    # files without kernels and without constants for kernels may change without a new compilation
    sources = [
        text for path, text in texts.items() if b"cdc.mysql.values.kernels import" in text or path.name in _CONSTANTS
    ]
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


def _cache_folder() -> Path:
    """Return the folder of compiled kernels. Raises: ConfigError, OSError - see ``refuse_untrusted``."""
    configured = os.environ.get("NUMBA_CACHE_DIR")
    if configured:
        refuse_untrusted(Path(configured), "NUMBA_CACHE_DIR")
    folder = (Path(configured) if configured else cache_folder() / "numba") / f"kernels-{_digest()}"
    refuse_untrusted(folder, "NUMBA_CACHE_DIR" if configured else "CDC_CACHE")
    if owned_by_others(folder):
        raise ConfigError(
            "The folder of compiled kernels has files of another user, so it is not safe.",
            hint=f"Delete {folder}; the kernels are then compiled again.",
            path=folder,
        )
    return folder


def _drop_old(folder: Path) -> None:
    with suppress(FileNotFoundError):  # another process deletes them
        older = sorted(folder.parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for stale in older[_KEPT_CACHES:]:
            shutil.rmtree(stale, ignore_errors=True)


def _use_cache() -> bool:
    try:
        folder = _cache_folder()
        _drop_old(folder)
    except (OSError, ConfigError):
        # The folder cannot be written or is not safe: compile the kernels at each start. An import must not fail;
        # `refuse_untrusted_caches` refuses the job.
        return False
    if not os.access(folder, os.W_OK):
        return False
    numba.config.CACHE_DIR = str(folder)
    return True


CACHED = _use_cache()


def refuse_untrusted_caches() -> None:
    """Raise ConfigError if another user can change what this process loads from its cache folders.

    Calls: before a job starts. If a cache folder cannot be created, the kernels are compiled at each start.
    """
    with suppress(OSError):
        cache_folder()
    with suppress(OSError):
        _cache_folder()


kernel = numba.njit(cache=CACHED, nogil=True, error_model="numpy")

# Parts of kernels: Python never calls them, so they need no wrapper, and their code is cached with the kernel. They
# allocate nothing and do not count references, which would cost two locked instructions per array and call.
_PART = {
    "nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False,
}  # fmt: skip
part = numba.njit(**_PART)
inlined = numba.njit(**_PART, forceinline=True)  # for parts that are called per row or event


def nothing_compiled() -> bool:
    """Return whether this is the first start: there is an empty cache."""
    return CACHED and next(_cache_folder().rglob("*.nbi"), None) is None


def _loader(bits: int) -> Any:
    value = {8: types.uint8, 16: types.uint16, 32: types.uint32, 64: types.uint64}[bits]

    def load(typing_context: Any, data: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            address = builder.gep(array.data, [arguments[1]])
            number = builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)
            return number if bits == 64 else builder.zext(number, ir.IntType(64))

        return types.uint64(data, types.int64), generate

    load.__name__ = f"load_u{value.bitwidth}"
    return intrinsic(load)


def _storer(bits: int) -> Any:
    def store(typing_context: Any, data: Any, offset: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            address = builder.gep(array.data, [arguments[1]])
            value = arguments[2] if bits == 64 else builder.trunc(arguments[2], ir.IntType(bits))
            builder.store(value, builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(data, types.int64, types.int64), generate

    store.__name__ = f"store_{bits}"
    return intrinsic(store)


load_u8 = _loader(8)
load_u16 = _loader(16)
load_u32 = _loader(32)
load_u64 = _loader(64)
store_8 = _storer(8)
store_16 = _storer(16)
store_32 = _storer(32)
store_64 = _storer(64)


@intrinsic
def swap_bytes(typing_context: Any, value: Any) -> Any:
    """Return the 8 bytes of a uint64 in reverse order, for big-endian numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic
def multiply_high(typing_context: Any, left: Any, right: Any) -> Any:
    """Return the upper 64 bits of the 128-bit product of two uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """Return the number of the lowest set bit of a uint64, which must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic
def peek(typing_context: Any, numbers: Any, index: Any) -> Any:
    """Return ``numbers[index]`` of an int64 array, without the test for a negative index."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load(builder.gep(array.data, [arguments[1]]), align=8)

    return types.int64(numbers, types.int64), generate


@intrinsic
def poke(typing_context: Any, numbers: Any, index: Any, number: Any) -> Any:
    """Set ``numbers[index] = number`` of an int64 array, without the test for a negative index."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        builder.store(arguments[2], builder.gep(array.data, [arguments[1]]), align=8)
        return context.get_dummy_value()

    return types.void(numbers, types.int64, types.int64), generate


@intrinsic
def copy_32(typing_context: Any, source: Any, start: Any, target: Any, at: Any) -> Any:
    """Copy 32 bytes. The last ones may be in the slack of either buffer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), 32).as_pointer()
        arrays = [context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2)]
        addresses = [
            builder.bitcast(builder.gep(array.data, [arguments[i]]), vector)
            for array, i in zip(arrays, (1, 3), strict=True)
        ]
        builder.store(builder.load(addresses[0], align=1), addresses[1], align=1)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate


@intrinsic
def prefetch(typing_context: Any, data: Any, offset: Any) -> Any:
    """Prefetch the cache line at any offset, because each value of another row costs a cache miss."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        i32 = ir.IntType(32)
        address = builder.gep(array.data, [arguments[1]])
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [address.type], ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
        )
        builder.call(function, [address, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


@intrinsic
def _same_16(typing_context: Any, left: Any, left_at: Any, right: Any, right_at: Any) -> Any:
    """Return whether 16 bytes at two offsets are equal."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128).as_pointer()
        arrays = [context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2)]
        words = [
            builder.load(builder.bitcast(builder.gep(array.data, [arguments[i]]), wide), align=1)
            for array, i in zip(arrays, (1, 3), strict=True)
        ]
        return builder.icmp_unsigned("==", *words)

    return types.boolean(left, types.int64, right, types.int64), generate


@inlined
def same_bytes(left: Any, left_at: int, right: Any, right_at: int, count: int) -> bool:
    """Return whether ``count`` bytes at two offsets are equal. No byte after them is read."""
    # The last words overlap the ones before them.
    if count >= 16:
        done = 0
        while done + 16 <= count:
            if not _same_16(left, left_at + done, right, right_at + done):
                return False
            done += 16
        return bool(_same_16(left, left_at + count - 16, right, right_at + count - 16))
    if count >= 8:
        if load_u64(left, left_at) != load_u64(right, right_at):
            return False
        return bool(load_u64(left, left_at + count - 8) == load_u64(right, right_at + count - 8))
    done = 0
    while done < count:
        if left[left_at + done] != right[right_at + done]:
            return False
        done += 1
    return True
