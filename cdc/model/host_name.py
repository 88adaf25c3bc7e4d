"""The form of the name of a host of ``cdc serve``, which is a part of addresses of the REST API."""

from __future__ import annotations

import re

HOST_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,189}$"
HOST_NAME_FORM = "must consist of 1 to 190 characters A-Z, a-z, 0-9, _, . and -, and not start with . or -"


def is_host_name(text: str) -> bool:
    """Return whether the REST API and the web page can address a host with this name."""
    return re.fullmatch(HOST_NAME.strip("^$"), text) is not None
