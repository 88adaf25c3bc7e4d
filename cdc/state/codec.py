"""The JSON codec of saved state, for all values in the store."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from cdc.errors import CheckpointError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Value = TypeVar("Value")


def to_json(value: object, kind: Any = None) -> str:
    """Return ``value`` as JSON text in ASCII. ``kind``: its type, needed only if the type is generic."""
    # pydantic's writer refuses lone surrogates, which paths and messages may contain; the json module escapes them
    known: Any = kind or type(value)
    return json.dumps(_adapter(known).dump_python(value, mode="json"))


def from_json(kind: type[Value], text: str) -> Value:
    """Return the value of type ``kind`` that ``to_json`` wrote. Raises: CheckpointError - the text has another form."""
    known: Any = kind  # mypy does not know that every type is hashable
    try:
        found: Value = _adapter(known).validate_python(json.loads(text))
    except ValueError as error:  # JSONDecodeError, or ValidationError of pydantic
        raise CheckpointError(
            "A value in the state store cannot be read.",
            hint="Restore a copy of the store or move it away, then run `cdc start JOB.yaml --adopt`.",
            type=getattr(kind, "__name__", kind),
            cause=" ".join(str(error).splitlines()[:3]),
        ) from error
    return found


def prepare(*kinds: Any) -> None:
    """Build what the first value of each type needs, for the forks of this process."""
    for kind in kinds:
        _adapter(kind)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # a command that reads no state saves this import of 0.1 s

    return TypeAdapter(kind)
