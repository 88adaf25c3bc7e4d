"""Errors of SQLite and of the file system as CheckpointError, each with its hint.

Source: SQLite manual, "Result and Error Codes".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc.errors import CheckpointError
from cdc.state.job_lock import folder_errors

_CLOSE_PROGRAM = "Close the program that has the file open (`fuser` shows it)."
_CHANGE_OWNER = "Make the user that runs the job the owner of its folder."
_HINTS = {
    sqlite3.SQLITE_FULL: ("The disk of the state file is full.", "Free some space; the job continues automatically."),
    sqlite3.SQLITE_BUSY: ("The state file stays locked.", _CLOSE_PROGRAM),
    sqlite3.SQLITE_LOCKED: ("The state file stays locked.", _CLOSE_PROGRAM),
    sqlite3.SQLITE_CORRUPT: (
        "The state file is damaged.",
        "Restore a copy or move it away, then continue with the commits of the sink: `cdc start JOB.yaml --adopt`.",
    ),
    sqlite3.SQLITE_READONLY: ("The state file cannot be written.", _CHANGE_OWNER),
    sqlite3.SQLITE_CANTOPEN: ("The state file cannot be opened.", _CHANGE_OWNER),
    sqlite3.SQLITE_IOERR: ("The state file cannot be read or written.", "Check the disk and the system's log."),
}
_HINTS[sqlite3.SQLITE_NOTADB] = _HINTS[sqlite3.SQLITE_CORRUPT]


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise CheckpointError in place of the errors of SQLite and of the file system. ``path``: the state file."""
    try:
        with folder_errors(path):
            yield
    except sqlite3.Error as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        message, hint = _HINTS.get(code, ("The state file cannot be used.", "See the cause in the log."))
        raise CheckpointError(message, hint=hint, path=path, cause=error) from error
