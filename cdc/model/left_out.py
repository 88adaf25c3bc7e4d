"""Tables that a wildcard channel matches but that the job omits, because they cannot be mapped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a table is omitted, and the hint. Saved with the checkpoint and shown in the status."""

    reason: str
    hint: str
