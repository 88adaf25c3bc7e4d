"""Folders of Delta tables: the only module that converts a target name to a path.

Names come from the source and are untrusted: a table may be called ``../../etc`` or ``/etc``. A target name becomes two
path components, database and table. A character that is not allowed in a path, or that deltalake does not support, is
written as ``~`` and two hexadecimal digits. Each name therefore has its own folder, and can be restored from it.

In an object store, deltalake encodes a part of its keys twice, and ``~`` as well. There each byte of UTF-8 that is not
a letter, a digit, ``_``, ``-`` or ``.`` is written as ``=`` and two hexadecimal digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import overload

from cdc.errors import ConfigError, TargetMismatch
from channels.sinks.delta.files import STAGING
from channels.sinks.delta.object_path import ObjectPath
from channels.sinks.delta.storage import StorePath

# deltalake decodes %XX of a path once too often, reads \ as /, loses the history after #, and refuses the others
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\%~\[\]#?]")
_ESCAPED = re.compile(r"~([0-9a-f]{2})")
_UNSAFE_KEY = re.compile(rb"[^A-Za-z0-9_.-]")
_ESCAPED_KEY = re.compile(rb"=([0-9a-f]{2})")
_SAFE_PREFIX = re.compile(r"[A-Za-z0-9_.=/-]*", re.ASCII)
_RESERVED = re.compile(r"\.|_cdc_|_delta_log$")  # start of a component: hidden, relative, or a name of the sink
_LONGEST = 255  # bytes of a component, on every common file system
_LONGEST_KEY = 1024  # bytes of a key, in all stores


@overload
def table_folder(root: Path, target: str) -> Path: ...
@overload
def table_folder(root: ObjectPath, target: str) -> ObjectPath: ...
def table_folder(root: StorePath, target: str) -> StorePath:
    """Return the folder of ``target`` ("database.table"), two levels below ``root``.

    Raises: TargetMismatch - the name is empty or too long for a file system.
    """
    database, dot, table = target.partition(".")
    escape = _escaped_key if isinstance(root, ObjectPath) else _escaped
    parts = [escape(name) for name in (database, table)]
    longest = _LONGEST_KEY if isinstance(root, ObjectPath) else _LONGEST
    if not (database and dot and table) or any(len(part.encode()) > longest for part in parts):
        raise TargetMismatch(
            f"The target name {target!r} is not valid for a folder: each part must have 1 to {longest} bytes.",
            hint="Give the channel a shorter `target`, or leave the table out with `exclude`.",
        )
    found = root.joinpath(*parts)
    _refuse_long(found, target)
    return found


def target_of(folder: StorePath) -> str:
    """Return the target of a folder that ``table_folder`` returned."""
    original = _original_key if isinstance(folder, ObjectPath) else _original
    return f"{original(folder.parent.name)}.{original(folder.name)}"


def table_uri(folder: StorePath) -> str:
    """Return ``folder`` as a URI, because deltalake would read ``#`` or ``?`` of a plain path as parts of a URL."""
    return folder.as_uri()


def table_folders(root: StorePath) -> Iterator[StorePath]:
    """Yield the folders of all tables below ``root`` that have the name of a target. Raises: OSError."""
    for database in root.glob("*"):
        if database.name != STAGING:
            for folder in database.glob("*"):
                if _is_target(root, folder) and (folder / "_delta_log").is_dir():
                    yield folder


def _is_target(root: StorePath, folder: StorePath) -> bool:
    """Return whether ``folder`` is that of a target: others are of other programs, such as partitions of a table."""
    try:
        return table_folder(root, target_of(folder)) == folder
    except (UnicodeDecodeError, TargetMismatch):
        return False


def _refuse_long(folder: StorePath, target: str) -> None:
    """Raise TargetMismatch if the names of files in ``folder`` are too long for an object store."""
    if isinstance(folder, ObjectPath) and len(folder.key.encode()) + _LONGEST > _LONGEST_KEY:
        raise TargetMismatch(
            f"The target name {target!r} is too long for an object store: keys have at most {_LONGEST_KEY} bytes.",
            hint="Give the channel a shorter `target`, or choose a shorter `sink.path`.",
        )


def check_root(root: StorePath) -> None:
    """Raise ConfigError if deltalake cannot address tables below ``root``."""
    if isinstance(root, ObjectPath):
        if not _SAFE_PREFIX.fullmatch(root.key):
            raise ConfigError(
                f"sink.path {str(root)!r} has characters that the Delta library does not support in an object store.",
                hint="Choose a prefix of the letters A-Z and a-z, digits, and the characters / _ - . =",
            )
        return
    if found := re.search(r"[\x00-\x1f\x7f\\\[\]#?]|%[0-9A-Fa-f]{2}", str(root)):
        raise ConfigError(
            f"sink.path {str(root)!r} contains {found[0]!r}, which the Delta library does not support in a path.",
            hint="Choose a folder without control characters, backslashes, brackets, #, ? and %XX in its path.",
        )


def refuse_shared(target: str, folder: StorePath, others: Iterable[StorePath]) -> None:
    """Refuse ``target`` if its folder is that of another target: on a file system that ignores case, or by a link.

    Raises: TargetMismatch.
    """
    for other in others:
        if isinstance(folder, ObjectPath) or isinstance(other, ObjectPath):
            return  # keys are compared byte by byte
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


def _escaped_key(name: str) -> str:
    text = _UNSAFE_KEY.sub(lambda found: b"=%02x" % found[0][0], name.encode("utf-8", "surrogatepass")).decode()
    return f"={ord(text[0]):02x}{text[1:]}" if _RESERVED.match(text) else text


def _original_key(component: str) -> str:
    return _ESCAPED_KEY.sub(lambda found: bytes([int(found[1], 16)]), component.encode()).decode(
        "utf-8", "surrogatepass"
    )
