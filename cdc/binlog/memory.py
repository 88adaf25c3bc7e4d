"""Loads and stores of whole words at any address, and the high half of a product: what kernels lack in plain Numba.

Never: checked. A caller proves beforehand that the words lie inside its buffers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_DOUBLE_WORD = ir.IntType(128)


@intrinsic
def load64(typing_context: Any, address: Any) -> Any:
    """The eight bytes at ``address`` as a little-endian unsigned word."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(types.uint64), code


@intrinsic
def store64(typing_context: Any, address: Any, word: Any) -> Any:
    """Write ``word`` as eight little-endian bytes to ``address``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store(arguments[1], pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), code


@intrinsic
def multiply_high(typing_context: Any, left: Any, right: Any) -> Any:
    """The upper 64 bits of the 128-bit product of two unsigned words."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = [builder.zext(argument, _DOUBLE_WORD) for argument in arguments]
        product = builder.mul(*wide)
        return builder.trunc(builder.lshr(product, ir.Constant(_DOUBLE_WORD, 64)), _WORD)

    return types.uint64(types.uint64, types.uint64), code
