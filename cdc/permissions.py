"""File permissions: the umask for files that the job creates, and the folders that it trusts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cdc.errors import ConfigError

UMASK = "CDC_UMASK"  # environment variable: an octal number, for readers or writers in another group
_STRICTEST = 0o077
_DEFAULT = 0o027  # folders 0750, files 0640


def restrict_umask() -> None:
    """Set the umask of this process: ``$CDC_UMASK``, else the current umask combined with 0027.

    Calls: at the entry of each process that creates files; children inherit it. Raises: ConfigError.
    """
    os.umask(_configured() if os.environ.get(UMASK) else current_umask() | _DEFAULT)


def _configured() -> int:
    text = os.environ[UMASK]
    if text.strip("01234567") or int(text, 8) > _STRICTEST:
        raise ConfigError(
            f"{UMASK} is {text!r}, but must be an octal number from 0 to 077.",
            hint=f"Set {UMASK} to 027 to let the group read the files, or to 007 to let it also write.",
        )
    return int(text, 8)


def current_umask() -> int:
    """Return the umask of this process."""
    # The umask can only be read by setting it. A file that another thread creates meanwhile has fewer permissions.
    umask = os.umask(_STRICTEST)
    os.umask(umask)
    return umask


def refuse_untrusted(folder: Path, variable: str) -> None:
    """Raise ConfigError if another user than root could replace files in ``folder``, even through a parent folder.

    Missing folders are created with mode 0700. ``variable`` is the environment variable that sets the folder, for the
    hint. Raises: ConfigError - another user owns or can write one of the folders; OSError.
    """
    folder = folder.absolute()
    _check(folder, variable)  # the existing folders, before anything is created in them
    create_private(folder)
    _check(folder, variable)


def _check(folder: Path, variable: str) -> None:
    for path, is_last in _chain(folder):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        trusted = found.st_uid in (0, os.geteuid())
        # in a folder with the sticky bit, other users can create files but cannot replace existing ones
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and (is_last or not found.st_mode & stat.S_ISVTX)
        if trusted and (stat.S_ISLNK(found.st_mode) or not shared):
            continue
        why = (
            f"other users can write it (mode {stat.S_IMODE(found.st_mode):04o})" if trusted else "another user owns it"
        )
        raise ConfigError(
            f"The cache folder {folder} contains code that the job runs, and it is not safe: {path}: {why}.",
            hint=f"Set {variable} to a folder that only this user can write, or correct this one: "
            + (f"`chmod go-w {path}`." if trusted else "remove it, or make this user its owner."),
        )


def owned_by_others(folder: Path) -> bool:
    """Return whether a user other than this one and root owns something below ``folder``. Raises: OSError."""
    for path in folder.rglob("*"):
        # another process of this user may rename its temporary files meanwhile
        with suppress(FileNotFoundError):
            if path.lstat().st_uid not in (0, os.geteuid()):
                return True
    return False


def create_private(folder: Path) -> None:
    """Create ``folder`` and its missing parents with mode 0700, for any umask. Raises: OSError."""
    if not folder.is_dir():
        create_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _chain(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield ``folder``, its parents, and the same for each symbolic link among them. True marks the folder itself."""
    pending, seen = [(folder, True)], set()
    while pending:
        path, is_last = pending.pop()
        if (path, is_last) in seen:
            continue
        seen.add((path, is_last))
        yield path, is_last
        if path.is_symlink():
            pending.append((path.parent / path.readlink(), is_last))
        if path.parent != path:
            pending.append((path.parent, False))
