"""How every kernel is compiled, and the unaligned loads and stores they are made of.

Compiled code is kept on disk under a name made from the sources of all kernels: Numba itself looks only at the file of
the outermost function, and would go on using code whose callees have changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cdc.cache import cache_folder
from cdc.errors import ConfigError
from cdc.permissions import owned_by_others, refuse_untrusted

SLACK_BYTES = 32  # a load may touch this many bytes behind a value; every buffer has them behind its last byte
_KEPT_CACHES = 12  # of other versions of the sources; each has some 10 MB
_CONSTANTS = ("kernels.py", "charset_tables.py")


def _cache_folder() -> Path:
    """Return the folder of compiled kernels. Raises: ConfigError, OSError - see ``refuse_untrusted``."""
    texts = {path.name: path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))}
    # what has no kernels, and gives them no constants, may change without a new compilation
    sources = [text for name, text in texts.items() if b"cdc.binlog.kernels import" in text or name in _CONSTANTS]
    digest = hashlib.sha256(b"".join(sources)).hexdigest()[:16]
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        refuse_untrusted(Path(given), "NUMBA_CACHE_DIR")
    folder = (Path(given) if given else cache_folder() / "numba") / f"kernels-{digest}"
    refuse_untrusted(folder, "NUMBA_CACHE_DIR" if given else "CDC_CACHE")
    if owned_by_others(folder):
        raise ConfigError(
            "The folder of compiled kernels holds files of another user, and cannot be trusted.",
            mend=f"Remove {folder}: the kernels are compiled again.",
            path=folder,
        )
    return folder


def _drop_old(folder: Path) -> None:
    older = sorted(folder.parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for stale in older[_KEPT_CACHES:]:
        shutil.rmtree(stale, ignore_errors=True)


def _use_cache() -> bool:
    try:
        folder = _cache_folder()
        _drop_old(folder)
    except (OSError, ConfigError):
        # nothing can be written, or nothing there can be trusted: the kernels are compiled at each start. An import
        # does not refuse the job; `refuse_untrusted_caches` does.
        return False
    if not os.access(folder, os.W_OK):
        return False
    numba.config.CACHE_DIR = str(folder)
    return True


CACHED = _use_cache()


def refuse_untrusted_caches() -> None:
    """Raise ConfigError if another user can change what this process loads from its cache folders.

    Calls: before a job starts. A cache folder that cannot be created is no fault: the kernels are compiled.
    """
    with suppress(OSError):
        cache_folder()
    with suppress(OSError):
        _cache_folder()


kernel = numba.njit(cache=CACHED, nogil=True, error_model="numpy")

# parts of kernels: Python never calls them, so they need no wrapper, and their code is kept with the kernel's. They
# allocate nothing, and do not count references: else every array given to a part costs two locked instructions a call
_PART = {
    "nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False,
}  # fmt: skip
part = numba.njit(**_PART)
inlined = numba.njit(**_PART, forceinline=True)  # those called per row or event


def nothing_compiled() -> bool:
    """Whether this is the first start: there is a cache, and nothing in it."""
    return CACHED and next(_cache_folder().rglob("*.nbi"), None) is None


def _loader(bits: int) -> Any:
    value = {8: types.uint8, 16: types.uint16, 32: types.uint32, 64: types.uint64}[bits]

    def load(typing_context: Any, data: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.gep(array.data, [arguments[1]])
            number = builder.load(builder.bitcast(place, ir.IntType(bits).as_pointer()), align=1)
            return number if bits == 64 else builder.zext(number, ir.IntType(64))

        return types.uint64(data, types.int64), generate

    load.__name__ = f"load_u{value.bitwidth}"
    return intrinsic(load)


def _storer(bits: int) -> Any:
    def store(typing_context: Any, data: Any, offset: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.gep(array.data, [arguments[1]])
            value = arguments[2] if bits == 64 else builder.trunc(arguments[2], ir.IntType(bits))
            builder.store(value, builder.bitcast(place, ir.IntType(bits).as_pointer()), align=1)
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
    """The 8 bytes of a uint64 in reverse order: big-endian numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic
def multiply_high(typing_context: Any, left: Any, right: Any) -> Any:
    """The upper 64 bits of the 128-bit product of two uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """The number of the lowest bit set in a uint64, which must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic
def peek(typing_context: Any, numbers: Any, index: Any) -> Any:
    """``numbers[index]`` of int64, without the test for an index from behind."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load(builder.gep(array.data, [arguments[1]]), align=8)

    return types.int64(numbers, types.int64), generate


@intrinsic
def poke(typing_context: Any, numbers: Any, index: Any, number: Any) -> Any:
    """``numbers[index] = number`` of int64, likewise."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        builder.store(arguments[2], builder.gep(array.data, [arguments[1]]), align=8)
        return context.get_dummy_value()

    return types.void(numbers, types.int64, types.int64), generate


@intrinsic
def copy_32(typing_context: Any, source: Any, start: Any, target: Any, at: Any) -> Any:
    """Copy 32 bytes, of which the last may lie in the slack of either buffer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), 32).as_pointer()
        arrays = [context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2)]
        places = [
            builder.bitcast(builder.gep(array.data, [arguments[i]]), vector)
            for array, i in zip(arrays, (1, 3), strict=True)
        ]
        builder.store(builder.load(places[0], align=1), places[1], align=1)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate


@intrinsic
def prefetch(typing_context: Any, data: Any, offset: Any) -> Any:
    """Ask for the cache line at an offset, which may lie anywhere: values a row apart cost a miss each."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        i32 = ir.IntType(32)
        place = builder.gep(array.data, [arguments[1]])
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [place.type], ir.FunctionType(ir.VoidType(), [place.type, i32, i32, i32])
        )
        builder.call(function, [place, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


@inlined
def same_bytes(left: Any, left_at: int, right: Any, right_at: int, count: int) -> bool:
    """Whether ``count`` bytes at two places are the same; nothing behind them is looked at."""
    done = 0
    while done + 8 <= count:
        if load_u64(left, left_at + done) != load_u64(right, right_at + done):
            return False
        done += 8
    while done < count:
        if left[left_at + done] != right[right_at + done]:
            return False
        done += 1
    return True
