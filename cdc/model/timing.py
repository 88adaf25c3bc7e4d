"""Times in the form in which they are saved and shown."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Return the current time as ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
