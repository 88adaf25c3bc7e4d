"""Parts of addresses in the headers of a request, which may have any text."""

from __future__ import annotations

from urllib.parse import urlsplit


def netloc_of(origin: str) -> str:
    """Return host and port of an ``Origin`` header; "" if it is not an address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def host_of(address: str) -> str:
    """Return the host of an address; "" if it has none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
