"""The message at which the job stops."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.errors import CdcError


@dataclass(frozen=True, slots=True)
class Stop:
    """The first message that must not be loaded, and why."""

    message: int  # its number in the block
    error: CdcError
