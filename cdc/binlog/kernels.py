"""How every kernel is compiled, and the unaligned loads and stores they are made of.

Compiled code is kept on disk under a name made from the sources of all kernels: Numba itself looks only at the file of
the outermost function, and would go on using code whose callees have changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

SLACK_BYTES = 32  # a load may touch this many bytes behind a value; every buffer has them behind its last byte
_KEPT_CACHES = 4  # of older versions of the sources


def _cache_folder() -> Path:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    given = os.environ.get("NUMBA_CACHE_DIR")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parent = Path(given) if given else caches / "spark-binlog-load" / "numba"
    return parent / f"kernels-{digest}"


def _drop_old(folder: Path) -> None:
    older = sorted(folder.parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for stale in older[_KEPT_CACHES:]:
        shutil.rmtree(stale, ignore_errors=True)


def _use_cache() -> bool:
    folder = _cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _drop_old(folder)
    except OSError:
        return False  # no place to write: the kernels are compiled at each start
    if not os.access(folder, os.W_OK):
        return False
    numba.config.CACHE_DIR = str(folder)
    return True


kernel = numba.njit(cache=_use_cache(), nogil=True, error_model="numpy")

# parts of kernels: Python never calls them, so they need no wrapper, and their code is kept with the kernel's. They
# make no arrays: without reference counts (locked instructions per array and call) a short part is four times as fast
part = numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


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
