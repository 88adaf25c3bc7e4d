"""The marker file in the root folder of Delta tables, which identifies the folder.

If the file system is not mounted, its mount point is an empty folder. Without the marker a job would use it as its
root and create all tables again.
"""

from __future__ import annotations

import errno
import json
import uuid
from contextlib import suppress

from channels.sinks.delta.storage import StorePath, make_folder, put_if_absent, sync_path

MARKER = "_cdc_sink.json"  # no table has this name, because the root contains only folders of databases


def read_marker(root: StorePath) -> str | None:
    """Return the identity of ``root``; None if it has no marker. Raises: OSError."""
    try:
        return str(json.loads((root / MARKER).read_bytes())["id"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(errno.EIO, "the marker of the sink is damaged", str(root / MARKER)) from error


def write_marker(root: StorePath) -> str:
    """Create the marker durably if it is missing, and return its identity. Raises: OSError."""
    make_folder(root)
    if read_marker(root) is None:
        with suppress(FileExistsError):  # another job creates it at the same moment
            put_if_absent(root / MARKER, json.dumps({"id": uuid.uuid4().hex, "format": 1}).encode())
        sync_path(root)
    identity = read_marker(root)
    if identity is None:
        raise FileNotFoundError(2, "the marker was removed", str(root / MARKER))
    return identity
