"""The key ``verify`` of a job file."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from cdc.config.fields import Model, Seconds, Text

_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def share(value: object) -> float:
    """Return a percentage such as ``1%`` as a fraction. Raises: ValueError - it is not between 0 and 100."""
    match = _SHARE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not 0 < float(match[1]) <= 100:
        raise ValueError("must be a percentage above 0%, such as 1% or 100%")
    return float(match[1]) / 100


Share = Annotated[
    float,
    BeforeValidator(share),
    WithJsonSchema({"type": "string", "pattern": f"^{_SHARE.pattern}$", "examples": ["1%", "100%"]}),
]


class Verify(Model):
    """Verifications: comparisons of source and target."""

    every: Seconds | None = Field(
        default=None, description="Verify all tables at this interval. Default: only with `cdc verify`."
    )
    sample: Share = Field(default=1.0, description="Share of the rows that a scheduled verification compares.")
    repair: bool = Field(
        default=False, description="Whether a scheduled verification repairs what differs, as `cdc verify --repair`."
    )
    hide: tuple[Text, ...] = Field(
        default=(), description="Target columns whose values results of verifications do not show."
    )
