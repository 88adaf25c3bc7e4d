"""Folders of Delta tables: the only module that makes a path of a target's name.

Names come from the source and are untrusted: a table may be called ``../../etc`` or ``/etc``. A target name becomes two
path components, database and table. A character that a path or deltalake cannot have is written as ``~`` and its two
hexadecimal digits, so each name has a folder of its own below the root, and the name can be read back.
"""

from __future__ import annotations

import re
from pathlib import Path

from cdc.errors import ConfigError, TargetMismatch

# deltalake decodes %XX of a path once too often, takes \ for /, loses the history after #, and refuses the others
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\%~\[\]#?]")
_ESCAPED = re.compile(r"~([0-9a-f]{2})")
_RESERVED = re.compile(r"\.|_cdc_|_delta_log$")  # at the begin of a component: hidden, relative, or the sink's own
_LONGEST = 255  # bytes of a component, on every common file system


def table_folder(root: Path, target: str) -> Path:
    """Return the folder of ``target`` ("database.table"), two levels below ``root``.

    Raises: TargetMismatch - the name is empty or too long for a file system.
    """
    database, dot, table = target.partition(".")
    parts = [_escaped(name) for name in (database, table)]
    if not (database and dot and table) or any(len(part.encode()) > _LONGEST for part in parts):
        raise TargetMismatch(
            f"The target name {target!r} cannot be the name of a folder: each part has 1 to {_LONGEST} bytes.",
            mend="Give the channel a shorter `target`, or leave the table out with `exclude`.",
        )
    return root.joinpath(*parts)


def target_of(folder: Path) -> str:
    """Return the target whose folder ``table_folder`` gave."""
    return f"{_original(folder.parent.name)}.{_original(folder.name)}"


def table_uri(folder: Path) -> str:
    """Return ``folder`` as deltalake takes it: a plain path with ``#`` or ``?`` is read as a part of a URL."""
    return folder.as_uri()


def check_root(root: Path) -> None:
    """Raise ConfigError if deltalake cannot address tables below ``root``."""
    if found := re.search(r"[\x00-\x1f\x7f\\\[\]#?]|%[0-9A-Fa-f]{2}", str(root)):
        raise ConfigError(
            f"sink.path {str(root)!r} has the characters {found[0]!r}, which the Delta library cannot address.",
            mend="Choose a folder without control characters, backslashes, brackets, #, ? and %XX in its path.",
        )


def _escaped(name: str) -> str:
    text = _UNSAFE.sub(lambda found: f"~{ord(found[0]):02x}", name)
    return f"~{ord(text[0]):02x}{text[1:]}" if _RESERVED.match(text) else text


def _original(component: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), component)
