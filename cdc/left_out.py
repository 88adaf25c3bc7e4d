"""Tables that a wildcard channel matches and that the job goes on without, because they cannot be mapped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a table is left out, and what its user can do about it. Saved with the checkpoint and shown in the status."""

    reason: str
    mend: str
