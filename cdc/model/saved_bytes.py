"""Bytes in values of the state store, whose JSON has only text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


class _AsText:
    """Save bytes as UTF-8 text, and each byte that is not UTF-8 as a lone surrogate."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Return how pydantic reads and writes the bytes. It calls this when it first needs the type."""
        from pydantic_core import core_schema

        writer = core_schema.plain_serializer_function_ser_schema(_text_of, when_used="json")
        return core_schema.no_info_plain_validator_function(_bytes_of, serialization=writer)


def _text_of(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _bytes_of(saved: object) -> bytes:
    if isinstance(saved, bytes):
        return saved
    if isinstance(saved, str):
        return saved.encode("utf-8", "surrogateescape")
    raise ValueError("a text is expected")


SavedBytes = Annotated[bytes, _AsText()]
