"""Permissions of files: who may read what the job creates, and which folders the job trusts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cdc.errors import ConfigError

UMASK = "CDC_UMASK"  # environment variable: an octal number, for readers or writers in another group
_STRICTEST = 0o077
_DEFAULT = 0o027  # folders 0750, files 0640


def restrict_umask() -> None:
    """Set the umask of this process: ``$CDC_UMASK``, else the present one with at least 0027 withheld.

    Calls: at the entry of each process that creates files; children inherit it. Raises: ConfigError.
    """
    os.umask(_configured() if os.environ.get(UMASK) else current_umask() | _DEFAULT)


def _configured() -> int:
    text = os.environ[UMASK]
    if text.strip("01234567") or int(text, 8) > _STRICTEST:
        raise ConfigError(
            f"{UMASK} is {text!r}, which is not a umask that lets the user of the job use its own files.",
            mend=f"Set {UMASK} to an octal number up to 077: 027 lets the group read, 007 lets it write too.",
        )
    return int(text, 8)


def current_umask() -> int:
    """Return the umask of this process."""
    # there is no call that only reads it; a file that another thread creates meanwhile is stricter, never wider
    umask = os.umask(_STRICTEST)
    os.umask(umask)
    return umask


def refuse_untrusted(folder: Path, variable: str) -> None:
    """Check that only this user and root can change what is in ``folder``, through any folder above it.

    A folder that does not exist is created with mode 0700, like those above it.
    ``variable``: the environment variable that moves the folder, for the hint.
    Raises: ConfigError - another user owns or can write one of them; OSError - they cannot be created or examined.
    """
    folder = folder.absolute()
    _check(folder, variable)  # what exists, before anything is created through it
    create_private(folder)
    _check(folder, variable)


def _check(folder: Path, variable: str) -> None:
    for path, is_leaf in _chain(folder):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        trusted = found.st_uid in (0, os.geteuid())
        # in a sticky folder other users can create files, and cannot replace those that exist
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and (is_leaf or not found.st_mode & stat.S_ISVTX)
        if trusted and (stat.S_ISLNK(found.st_mode) or not shared):
            continue
        why = (
            f"other users can write it (mode {stat.S_IMODE(found.st_mode):04o})" if trusted else "another user owns it"
        )
        raise ConfigError(
            f"The cache folder {folder} holds code that the job runs, and cannot be trusted: {path}: {why}.",
            mend=f"Set {variable} to a folder that only this user can write, or correct this one: "
            + (f"`chmod go-w {path}`." if trusted else "remove it, or give it to this user."),
        )


def owned_by_others(folder: Path) -> bool:
    """Return whether another user than this one and root owns something below ``folder``."""
    return any(path.lstat().st_uid not in (0, os.geteuid()) for path in folder.rglob("*"))


def create_private(folder: Path) -> None:
    """Create ``folder`` and the missing folders above it with mode 0700, whatever the umask is. Raises: OSError."""
    if not folder.is_dir():
        create_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _chain(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield ``folder``, the folders above it, and what symbolic links among them lead through; True for the end."""
    pending, seen = [(folder, True)], set()
    while pending:
        path, is_leaf = pending.pop()
        if (path, is_leaf) in seen:
            continue
        seen.add((path, is_leaf))
        yield path, is_leaf
        if path.is_symlink():
            pending.append((path.parent / path.readlink(), is_leaf))
        if path.parent != path:
            pending.append((path.parent, False))
