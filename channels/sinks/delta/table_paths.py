"""Folders of Delta tables: the only module that converts a target name to a path.

Names come from the source and are untrusted: a table may be called ``../../etc`` or ``/etc``. A target name becomes two
path components, database and table. A character that is not allowed in a path, or that deltalake does not support, is
written as ``~`` and two hexadecimal digits. Each name therefore has its own folder, and can be restored from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from cdc.errors import ConfigError, TargetMismatch

# deltalake decodes %XX of a path once too often, reads \ as /, loses the history after #, and refuses the others
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\%~\[\]#?]")
_ESCAPED = re.compile(r"~([0-9a-f]{2})")
_RESERVED = re.compile(r"\.|_cdc_|_delta_log$")  # start of a component: hidden, relative, or a name of the sink
_LONGEST = 255  # bytes of a component, on every common file system


def table_folder(root: Path, target: str) -> Path:
    """Return the folder of ``target`` ("database.table"), two levels below ``root``.

    Raises: TargetMismatch - the name is empty or too long for a file system.
    """
    database, dot, table = target.partition(".")
    parts = [_escaped(name) for name in (database, table)]
    if not (database and dot and table) or any(len(part.encode()) > _LONGEST for part in parts):
        raise TargetMismatch(
            f"The target name {target!r} is not valid for a folder: each part must have 1 to {_LONGEST} bytes.",
            hint="Give the channel a shorter `target`, or leave the table out with `exclude`.",
        )
    return root.joinpath(*parts)


def target_of(folder: Path) -> str:
    """Return the target of a folder that ``table_folder`` returned."""
    return f"{_original(folder.parent.name)}.{_original(folder.name)}"


def table_uri(folder: Path) -> str:
    """Return ``folder`` as a URI, because deltalake would read ``#`` or ``?`` of a plain path as parts of a URL."""
    return folder.as_uri()


def check_root(root: Path) -> None:
    """Raise ConfigError if deltalake cannot address tables below ``root``."""
    if found := re.search(r"[\x00-\x1f\x7f\\\[\]#?]|%[0-9A-Fa-f]{2}", str(root)):
        raise ConfigError(
            f"sink.path {str(root)!r} contains {found[0]!r}, which the Delta library does not support in a path.",
            hint="Choose a folder without control characters, backslashes, brackets, #, ? and %XX in its path.",
        )


def refuse_shared(target: str, folder: Path, others: Iterable[Path]) -> None:
    """Refuse ``target`` if its folder is that of another target: on a file system that ignores case, or by a link.

    Raises: TargetMismatch.
    """
    for other in others:
        if other != folder and folder.exists() and other.exists() and folder.samefile(other):
            raise TargetMismatch(
                f"The targets {target_of(other)!r} and {target!r} have the same folder: the file system does not "
                "distinguish their names.",
                hint="Give one of them another `target` in a separate channel, or leave it out with `exclude`.",
                table=target,
                path=folder,
            )


def _escaped(name: str) -> str:
    text = _UNSAFE.sub(lambda found: f"~{ord(found[0]):02x}", name)
    return f"~{ord(text[0]):02x}{text[1:]}" if _RESERVED.match(text) else text


def _original(component: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), component)
